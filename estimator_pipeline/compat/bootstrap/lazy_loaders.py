"""TensorFlow's lazy modules of Keras, resolved before a thread can meet them.

TensorFlow 2.16 and later have some thirty `KerasLazyLoader` objects in the copies of its API (`tf.compat.v1.layers`,
`tf.compat.v1.nn.rnn_cell`, losses, metrics, …). One says that it is initialized before it is: a second thread that
touches it in between recurses for ever. Which Keras it becomes is decided by what the environment says at that moment.

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
    found: dict[int, ModuleType] = {}
    for loaded in list(sys.modules.values()):
        with contextlib.suppress(AttributeError):
            # Past what a lazy module of any package would load when it is asked.
            names = object.__getattribute__(loaded, "__dict__")
            found |= {id(value): value for value in list(names.values()) if type(value) is kind}
    return list(found.values())


def resolve() -> int:
    """Resolves every lazy loader of Keras in TensorFlow's modules, on the calling thread; how many there are."""
    loaders = _loaders()
    for loader in loaders:
        # Its names are those of the module, which it loads for that.
        dir(loader)
    return len(loaders)
