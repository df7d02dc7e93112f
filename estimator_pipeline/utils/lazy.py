"""Lazy imports of a package's public names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["attach"]


def attach(package: str, table: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package with lazy imports.

    Args:
        package: The package's `__name__`.
        table: Public name -> "module:attribute", or "module" for the module itself.
    """

    def __getattr__(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = table[name].partition(":")
        value: Any = importlib.import_module(module)
        value = getattr(value, attribute) if attribute else value
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted(table)

    return __getattr__, __dir__
