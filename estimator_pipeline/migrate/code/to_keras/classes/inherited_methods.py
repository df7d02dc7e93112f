"""Methods of a converted Estimator subclass, see estimator_subclasses.py."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection

__all__ = ["as_methods"]


def as_methods(text: str, *, stem: str, name: str, network: Collection[str], life: Collection[str]) -> str:
    """Return the text with the functions of a class as methods of its model.

    Args:
        text: A converted program.
        stem: Prefix of the functions' names.
        name: Name of the class.
        network: Names of the methods that build the network; they become static.
        life: Names of the methods that are called on the model.
    """
    module = ast.parse(text)
    old = f"{''.join(part.capitalize() for part in stem.split('_'))}Model"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    lines = text.splitlines(keepends=True)
    continued = _within_strings(text)
    moved: list[str] = []
    gone: set[int] = set()
    for node in module.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith(f"{stem}__"):
            continue
        first = node.lineno
        while lines[first - 2].startswith("#"):
            first -= 1
        part = [line if at in continued or not line.strip() else f"    {line}"
                for at, line in enumerate(lines[first - 1 : node.end_lineno], first)]  # fmt: skip
        if node.name.removeprefix(f"{stem}__") in network:
            part.insert(node.lineno - first, "    @staticmethod\n")
        moved.append("\n" + "".join(part).rstrip("\n") + "\n")
        gone |= set(range(first, (node.end_lineno or first) + 1))
    (model,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == old)
    lines[(model.end_lineno or 0) - 1] += "".join(moved)
    text = "".join(line for at, line in enumerate(lines, 1) if at not in gone)
    if life:
        text = re.sub(rf"(?<!def ){stem}__({'|'.join(life)})\((\w+)(?:, )?", r"\2.\1(", text)
    text = re.sub(rf"(?<=def ){stem}__(?=\w)", "", text)
    text = re.sub(rf"\b{stem}__(?=\w)", f"{name}.", text)
    taken = re.search(rf"\bmake_{snake}\b", text)
    text = text.replace(f"make_{stem}_model", f"make_{snake}{'_model' if taken else ''}")
    text = text.replace(old, name).replace(f"{stem}_model_fn", name)
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _within_strings(text: str) -> set[int]:
    """Return the numbers of the lines that start inside a string."""
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            numbers |= set(range(token.start[0] + 1, token.end[0] + 1))
    return numbers
