"""`tf.contrib` as a package that any code can import: for programs of TensorFlow 1 that got today's names.

    from estimator_pipeline.compat import contrib
    from estimator_pipeline.compat.contrib.training import HParams

`migrate convert` writes these imports, for what has no other home; docs/reference/contrib.md lists all there is. It
does not ask for `exec --tf1`: TensorFlow's behaviour is as the program sets it. Importing it installs compat.

Raises:
    CompatError: TensorFlow is missing or does not fit, or a name is nowhere; the message says what to change.
"""

from __future__ import annotations

from typing import Any

from estimator_pipeline import compat as _compat
from estimator_pipeline.compat.tf1 import contrib as _contrib

_compat.install()
_contrib.install()

# A package, whose modules the finder has. Not by way of `tensorflow.contrib`: without `--tf1` that is a module of the
# names that moved (the patch `moved-names`), if any code has imported it.
__path__: list[str] = []
_names = _contrib.Contrib(_contrib.PACKAGE)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_names, name)


def __dir__() -> list[str]:
    return _contrib.packages()
