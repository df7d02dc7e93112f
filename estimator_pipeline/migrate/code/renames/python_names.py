"""Names that Python and NumPy have removed, in TensorFlow 1 programs: `np.float` becomes `float`.

Each new name is the object that the old name was an alias of. Names without an exact replacement
(`inspect.getargspec`) are unchanged; `exec --tf1` restores them.
"""

from __future__ import annotations

import collections.abc

__all__ = ["MODULES", "of_chain", "of_imported_names"]

MODULES = ("numpy", "collections")
# Removed by NumPy 1.24 and 2.0. A replacement that begins with a dot is in numpy, any other is a builtin type.
_OF_NUMPY = {
    "bool": "bool", "complex": "complex", "float": "float", "int": "int", "long": "int", "object": "object",
    "str": "str", "unicode": "str",
    "Inf": ".inf", "Infinity": ".inf", "NaN": ".nan", "alltrue": ".all", "bool8": ".bool_", "complex_": ".complex128",
    "cumproduct": ".cumprod", "float_": ".float64", "in1d": ".isin", "infty": ".inf", "mat": ".asmatrix",
    "product": ".prod", "round_": ".round", "row_stack": ".vstack", "sometrue": ".any", "string_": ".bytes_",
    "unicode_": ".str_",
}  # fmt: skip
_ABSTRACT = frozenset(collections.abc.__all__)


def of_chain(module: str, root: str, name: str) -> str | None:
    """Return the new name for `root.name`; None if the name still exists or has no replacement."""
    if module == "collections":
        return f"{root}.abc.{name}" if name in _ABSTRACT else None
    after = _OF_NUMPY.get(name)
    return root + after if after is not None and after[0] == "." else after


def of_imported_names(module: str, names: list[str]) -> str | None:
    """Return the module from which `from module import names` takes them."""
    return "collections.abc" if module == "collections" and _ABSTRACT.issuperset(names) else None
