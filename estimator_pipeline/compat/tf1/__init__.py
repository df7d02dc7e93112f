"""TensorFlow 1 for a program written for it: `exec --tf1` and `compat.install(tf1=True)`.

`namespace.py` is the module that such a program gets as `tensorflow`, `importers.py` says who gets it, `contrib/` is
`tf.contrib`, `contrib_wheel.py` brings TensorFlow 1.15's own files of it, `python_names.py` and `tensorflow_names.py`
have what Python and TensorFlow have lost. Nothing imports TensorFlow before `enable()` is called.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType

from estimator_pipeline.errors import CompatError

__all__ = ["VARIABLE", "enable", "enabled", "wanted"]

VARIABLE = "ESTIMATOR_PIPELINE_TF1"
_TRUE = ("1", "true", "True")

_namespace: ModuleType | None = None


def wanted() -> bool:
    """Whether the environment asks for it: what `exec --tf1` leaves to the processes that a program starts."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "false", "False", *_TRUE):
        raise CompatError(
            f"{VARIABLE}={value} is neither 1 nor 0",
            code="argument/bad-value",
            hint=f"set {VARIABLE}=1 for programs written for TensorFlow 1, or unset it",
        )
    return value in _TRUE


def enabled() -> bool:
    """Whether this process has it."""
    return _namespace is not None


def enable(tf: ModuleType) -> ModuleType:
    """Turns TensorFlow 2's behaviour off in this process and gives programs TensorFlow 1's names.

    Args:
        tf: TensorFlow, with its `tf.estimator`.

    Returns:
        The module that programs get as `tensorflow`.
    """
    global _namespace
    if _namespace is None:
        from estimator_pipeline.compat.tf1 import contrib, importers, namespace, python_names, tensorflow_names

        _without_v2_behavior(tf)
        python_names.restore()
        tensorflow_names.restore(tf)
        contrib.install()
        _namespace = namespace.build(tf)
        importers.install(_namespace)
    return _namespace


def _without_v2_behavior(tf: ModuleType) -> None:
    """Private use: the switch of TensorFlow's warnings of deprecation, of which such a program is full."""
    from tensorflow.python.util import deprecation

    deprecation._PRINT_DEPRECATION_WARNINGS = False
    warnings.filterwarnings("ignore", r"`(?:tf\.layers|tf\.nn|layer)\.\S+` is deprecated", UserWarning)
    tf.compat.v1.disable_v2_behavior()
