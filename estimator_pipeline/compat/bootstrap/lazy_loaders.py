"""Resolution of TensorFlow's lazy Keras modules before other threads use them.

TensorFlow 2.16 and later have some thirty `KerasLazyLoader` objects in the copies of its API (`tf.compat.v1.layers`,
`tf.compat.v1.nn.rnn_cell`, losses, metrics, …). Each marks itself as initialized too early: a second thread that uses
it in between fails with RecursionError. The environment at that moment decides which Keras it loads.

Private use: `tensorflow.python.util.lazy_loader` (its class `KerasLazyLoader` since 2.16).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType

__all__ = ["resolve"]


def _loaders() -> list[ModuleType]:
    module = importlib.import_module("tensorflow.python.util.lazy_loader")
    kind = getattr(module, "KerasLazyLoader", None)
    if kind is None:
        return []
    loaders: dict[int, ModuleType] = {}
    for loaded in list(sys.modules.values()):
        with contextlib.suppress(AttributeError):
            # Bypasses `__getattribute__`, which would load a lazy module.
            names = object.__getattribute__(loaded, "__dict__")
            loaders |= {id(value): value for value in list(names.values()) if type(value) is kind}
    return list(loaders.values())


def resolve() -> int:
    """Resolve every lazy Keras loader in TensorFlow's modules on the calling thread; return their number."""
    loaders = _loaders()
    for loader in loaders:
        # Listing the names loads the module.
        dir(loader)
    return len(loaders)
