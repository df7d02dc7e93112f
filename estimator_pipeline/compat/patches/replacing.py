"""Replacement of a function of the estimator package in all modules that have it.

Private use: TensorFlow's table of exported names (`tensorflow.python.util.tf_export`), which finds a symbol by its
public name.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any


def everywhere(original: Callable[..., Any], new: Callable[..., Any], *, shown_as: str | None = None) -> None:
    """Replace `original` by `new` in every module that has it as an attribute.

    Modules that are imported later get it from its defining module, and so the new one. Wrap `new` with
    `functools.wraps(original)`, since public names are attributes of the function. `shown_as`: the attribute's name, if
    it differs from the function's.
    """
    name = shown_as or original.__name__
    for module in list(sys.modules.values()):
        names = _names(module)
        # On 2.15 `tf.estimator` is a lazy loader, which has the module's names but is not in sys.modules.
        for shown in (names, _names(names.get("estimator"))):
            if shown.get(name) is original:
                shown[name] = new
    from tensorflow.python.util import tf_export

    table = getattr(tf_export, "_NAME_TO_SYMBOL_MAPPING", {})
    for public, symbol in list(table.items()):
        if symbol is original:
            table[public] = new


def _names(module: Any) -> dict[str, Any]:
    """Return the names of a module without loading a lazy one."""
    # Checked by type: sys.modules has objects that only claim to be modules (cffi's, from `cryptography`).
    if not issubclass(type(module), types.ModuleType):
        return {}
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return names
