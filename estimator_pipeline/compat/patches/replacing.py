"""Puts a function of ours in the place of one of the estimator package, wherever that one can be found.

Private use: TensorFlow's table of exported names (`tensorflow.python.util.tf_export`), through which a symbol is
found by its public name.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any


def everywhere(original: Callable[..., Any], new: Callable[..., Any], *, shown_as: str | None = None) -> None:
    """Replaces `original` by `new` in every module that shows it, whatever name the module was imported under.

    Modules that are imported later take it from its home, and get the new one as well. `new` should be made with
    `functools.wraps(original)`: public names are kept as attributes of the function. `shown_as`: the name by which
    modules show it, where that is not its own.
    """
    name = shown_as or original.__name__
    for module in list(sys.modules.values()):
        names = _names(module)
        # On 2.15 `tf.estimator` is a lazy loader, which has the module's names and is itself in no table.
        for shown in (names, _names(names.get("estimator"))):
            if shown.get(name) is original:
                shown[name] = new
    from tensorflow.python.util import tf_export

    table = getattr(tf_export, "_NAME_TO_SYMBOL_MAPPING", {})
    for public, symbol in list(table.items()):
        if symbol is original:
            table[public] = new


def _names(module: Any) -> dict[str, Any]:
    """The names that a module has already; a lazy one is not made to load."""
    # By its type: sys.modules has objects that only say they were modules (cffi's, which `cryptography` brings).
    if not issubclass(type(module), types.ModuleType):
        return {}
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return names
