"""`tf.contrib` as an importable package, for converted TensorFlow 1 programs.

    from estimator_pipeline.compat import contrib
    from estimator_pipeline.compat.contrib.training import HParams

`migrate convert` writes these imports for names without a replacement in TensorFlow 2; docs/reference/contrib.md lists
all names. `exec --tf1` is not required: the program sets TensorFlow's behavior. Importing this package installs compat.

Raises:
    CompatError: TensorFlow is missing or incompatible, or a name does not exist; the message has a hint.
"""

from __future__ import annotations

from typing import Any

from estimator_pipeline import compat as _compat
from estimator_pipeline.compat.tf1 import contrib as _contrib

_compat.install()
_contrib.install()

# A package, whose modules the finder provides. `tensorflow.contrib` cannot be used: without `--tf1` it is a module of
# moved names (the patch `moved-names`), if any code has imported it.
__path__: list[str] = []
_names = _contrib.Contrib(_contrib.PACKAGE)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_names, name)


def __dir__() -> list[str]:
    return _contrib.packages()
