"""The imports of a Keras 3 program."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence, Set

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras3.not_convertible import NotInKeras3
from estimator_pipeline.migrate.code.to_keras3.support import MODULE

__all__ = ["names_of_tensorflow", "with_imports"]

_REMOVED = "\0"  # marks a line that is removed


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
                    prefix = f"tf{name.removeprefix('tensorflow')}"
                    names |= {alias.evaluated_alias or alias.evaluated_name: f"{prefix}.{alias.evaluated_name}"
                              for alias in line.names}  # fmt: skip
    return names


def with_imports(text: str, parts: Set[str], package: str) -> str:
    """Return a text that imports Keras, keras_support, and TensorFlow if it is still used."""
    lines = [
        line for line in text.split("\n") if not re.match(r"from estimator_pipeline\.|import estimator_pipeline", line)
    ]
    new_lines: list[str] = []
    aliases: list[str] = []
    at = None
    for line in lines:
        old = re.match(r"(import|from) tensorflow\b", line)
        if old and at is None:
            at = len(new_lines)
        if not old:
            new_lines.append(line)
            continue
        new = _import_of_keras(line)
        if new == "import keras":
            continue
        if new:
            aliases.append(new)
        else:
            new_lines.append(line)
    body = "\n".join(new_lines)
    kept: list[str] = []
    for line in new_lines:  # unused imports of TensorFlow
        imported = re.match(r"(?:import tensorflow(?:\.\w+)* as (\w+)|from tensorflow import (\w+))$", line)
        name = (imported[1] or imported[2]) if imported else ""
        if name and not re.search(rf"(?<![\w.]){name}\b", _without_comments(body.replace(line, ""))):
            line = _REMOVED
        kept.append(line)
    place = at if at is not None else 0
    while place and (above := re.match(r"import (\w+)", new_lines[place - 1])) and (
        "keras" < above[1] and above[1] not in sys.stdlib_module_names
    ):  # fmt: skip
        place -= 1
    needed = [] if re.search(r"(?m)^import keras$", body) else ["import keras"]
    head = [line for line in kept[:place] if line is not _REMOVED]
    tail = [line for line in kept[place:] if line is not _REMOVED]
    new_lines = [*head, *needed, *aliases, *tail]
    if parts:
        last = max(place + len(needed) + len(aliases) - 1, _last_import(new_lines))
        by_module = {name for name in parts if re.search(rf"\b{MODULE}\.{name}\b", body)}
        folder = package.removesuffix(".") or "."
        added = [f"from {folder} import {MODULE}" if package else f"import {MODULE}"] if by_module else []
        new_lines[last + 1 : last + 1] = ["", *added, *_import_of(f"{package}{MODULE}", sorted(parts - by_module))]
    text = "\n".join(new_lines)
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _import_of(module: str, names: Sequence[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 120:
        return [line] if names else []
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]


def _without_comments(text: str) -> str:
    return re.sub(r"#[^\n]*|\"\"\".*?\"\"\"", "", text, flags=re.DOTALL)


def _import_of_keras(line: str) -> str:
    """Return the import of Keras 3 for an import of `tensorflow.keras`; "" for others."""
    if re.match(r"(import|from) tensorflow\.python", line):
        raise NotInKeras3("tensorflow.python", "a private import of TensorFlow")
    line = line.rstrip()
    for pattern, new in (
        (r"import tensorflow\.keras as (\w+)$", r"import keras as \1"),
        (r"from tensorflow import keras$", "import keras"),
        (r"from tensorflow import keras as (\w+)$", r"import keras as \1"),
        (r"from tensorflow\.keras((?:\.\w+)*) import (.*)$", r"from keras\1 import \2"),
    ):
        if re.match(pattern, line):
            return re.sub(pattern, new, line).replace("import keras as keras", "import keras")
    return ""


def _last_import(lines: Sequence[str]) -> int:
    """Return the line of the last import at the start of a file."""
    last = -1
    for place, line in enumerate(lines):
        if re.match(r"(import|from) [\w.]+", line):
            last = place
        elif re.match(r"(def|class|if|try|for|with|@)\b", line):
            break
    return last
