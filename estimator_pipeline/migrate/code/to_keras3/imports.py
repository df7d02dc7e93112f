"""The imports of a Keras 3 program."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence, Set

import libcst as cst

from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines
from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras3.not_convertible import NotInKeras3
from estimator_pipeline.migrate.code.to_keras3.support import MODULE

__all__ = ["import_edits", "names_of_tensorflow"]


def names_of_tensorflow(module: cst.Module) -> dict[str, str]:
    """Return name -> meaning below `tf` of the top-level imports of TensorFlow."""
    names = {}
    for statement in module.body:
        for line in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(line, cst.Import):
                for alias in line.names:
                    name = dotted_of(alias.name) or ""
                    if name == "tensorflow" or (name.startswith("tensorflow.") and alias.evaluated_alias):
                        names[alias.evaluated_alias or name] = f"tf{name.removeprefix('tensorflow')}"
            elif isinstance(line, cst.ImportFrom) and not line.relative and not isinstance(line.names, cst.ImportStar):
                module_name = dotted_of(line.module) or ""
                if module_name.split(".")[0] == "tensorflow":
                    prefix = f"tf{module_name.removeprefix('tensorflow')}"
                    names |= {alias.evaluated_alias or alias.evaluated_name: f"{prefix}.{alias.evaluated_name}"
                              for alias in line.names}  # fmt: skip
    return names


def import_edits(
    statements: Iterable[tuple[cst.BaseStatement, int, int]],
    lines: Lines,
    parts: Set[str],
    *,
    package: str,
    read: Set[str],
    by_module: Set[str],
) -> list[Edit]:
    """Return the edits of a file's imports: Keras, keras_support, and TensorFlow if it is still used.

    Args:
        statements: The statements of the module, with their first and last lines.
        lines: The lines of the text.
        parts: The names of keras_support.py that the program uses.
        package: The prefix of keras_support in an import, such as "." or "trainer.".
        read: The names that the new text reads.
        by_module: The parts that it uses by the name of the module.
    """
    gone: list[tuple[int, int]] = []  # first and last lines
    moved: list[str] = []  # imports of tensorflow.keras, which follow `import keras`
    above: list[tuple[str, int]] = []  # imports of other modules above the first one of TensorFlow, and their lines
    place, last, has_keras = 0, 0, False
    for statement, first_line, last_line in statements:
        if isinstance(statement, cst.BaseCompoundStatement):
            place = place or first_line
            break
        imported = _import_of(statement)
        if imported is None:
            continue
        module = _module(imported)
        root = module.split(".")[0]
        if root == "tensorflow":
            place = place or first_line
            if _of_tensorflow(imported, module, read, moved):
                gone.append((first_line, last_line))
                continue
        elif root == "estimator_pipeline":
            if gone and gone[-1][1] == first_line - 1:
                first_line = gone.pop()[0]
            gone.append((first_line, last_line))
            continue
        elif not place and isinstance(imported, cst.Import):
            above.append((root, first_line))
        elif not place:
            above.clear()
        has_keras = has_keras or (module == "keras" and isinstance(imported, cst.Import))
        last = last_line
    edits = [lines.deletion(first_line, last_line) for first_line, last_line in gone]
    place = place or last + 1
    while above and above[-1][0] > "keras" and above[-1][0] not in sys.stdlib_module_names:
        place = above.pop()[1]
    new = [*([] if has_keras else ["import keras"]), *moved]
    if new:
        at = lines.starts[place - 1]
        edits.append(Edit(at, at, "".join(f"{line}\n" for line in new)))
    if parts:
        folder = package.removesuffix(".") or "."
        added = [f"from {folder} import {MODULE}" if package else f"import {MODULE}"] if by_module else []
        added += _import_line(f"{package}{MODULE}", sorted(parts - by_module))
        at = lines.end(last) if last >= place else lines.starts[place - 1]
        edits.append(Edit(at, at, "".join(f"{line}\n" for line in ["", *added])))
    return edits


def _import_of(statement: cst.BaseStatement) -> cst.Import | cst.ImportFrom | None:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) > 1:
        return None
    (small,) = statement.body
    return small if isinstance(small, (cst.Import, cst.ImportFrom)) else None


def _module(imported: cst.Import | cst.ImportFrom) -> str:
    if isinstance(imported, cst.ImportFrom):
        return "" if imported.relative else dotted_of(imported.module) or ""
    return dotted_of(imported.names[0].name) or ""


def _of_tensorflow(
    imported: cst.Import | cst.ImportFrom, module: str, read: Set[str], moved: list[str]
) -> bool:  # fmt: skip
    """Return whether an import of TensorFlow goes; add what replaces it to `moved`."""
    if module.startswith("tensorflow.python"):
        raise NotInKeras3("tensorflow.python", "a private import of TensorFlow")
    code = cst.parse_module("").code_for_node(imported)
    if isinstance(imported, cst.Import):
        if module == "tensorflow.keras" and len(imported.names) == 1 and imported.names[0].asname is not None:
            moved.append(f"import keras as {imported.names[0].evaluated_alias}")
            return True
        names = [alias.evaluated_alias or alias.evaluated_name.split(".")[0] for alias in imported.names]
        return not read & set(names)
    if isinstance(imported.names, cst.ImportStar):
        return False
    if module == "tensorflow.keras" or module.startswith("tensorflow.keras."):
        moved.append(code.replace("tensorflow.keras", "keras", 1))
        return True
    names = [alias.evaluated_alias or alias.evaluated_name for alias in imported.names]
    if module == "tensorflow" and [alias.evaluated_name for alias in imported.names] == ["keras"]:
        if names != ["keras"]:
            moved.append(f"import keras as {names[0]}")
        return True
    return not read & set(names)


def _import_line(module: str, names: Sequence[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 120:
        return [line] if names else []
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]
