"""Attribute chains, such as `a.b.c`."""

from __future__ import annotations

import libcst as cst

__all__ = ["root"]


def root(node: cst.CSTNode) -> cst.Name:
    """Return the first name of an attribute chain; the name `_` for any other expression."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else cst.Name("_")
