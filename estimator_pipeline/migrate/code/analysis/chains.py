"""Chains of attributes in a program."""

from __future__ import annotations

import libcst as cst

__all__ = ["root"]


def root(node: cst.CSTNode) -> cst.Name:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else cst.Name("_")
