"""TensorFlow 1 for programs written for it: `exec --tf1` and `compat.install(tf1=True)`.

`namespace.py` is the module that such a program imports as `tensorflow`; `importers.py` decides which modules get it;
`contrib/` is `tf.contrib`; `contrib_wheel.py` installs TensorFlow 1.15's files of it; `python_names.py` and
`tensorflow_names.py` restore removed names of Python and TensorFlow. TensorFlow is not imported before `enable()`.
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
    """Whether the environment requests it, as `exec --tf1` does for child processes."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "false", "False", *_TRUE):
        raise CompatError(
            f"{VARIABLE}={value} is neither 1 nor 0",
            code="argument/bad-value",
            hint=f"set {VARIABLE}=1 for programs written for TensorFlow 1, or unset it",
        )
    return value in _TRUE


def enabled() -> bool:
    """Whether it is enabled in this process."""
    return _namespace is not None


def enable(tf: ModuleType) -> ModuleType:
    """Turn TensorFlow 2 behavior off in this process, and provide TensorFlow 1's names to programs.

    Args:
        tf: TensorFlow, with `tf.estimator`.

    Returns:
        The module that programs import as `tensorflow`.
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
    """Turn off TensorFlow 2 behavior. Private use: the switch of TensorFlow's many deprecation warnings."""
    from tensorflow.python.util import deprecation

    deprecation._PRINT_DEPRECATION_WARNINGS = False
    warnings.filterwarnings("ignore", r"`(?:tf\.layers|tf\.nn|layer)\.\S+` is deprecated", UserWarning)
    tf.compat.v1.disable_v2_behavior()
