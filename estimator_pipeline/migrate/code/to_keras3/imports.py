"""The imports of a program of Keras 3."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence, Set

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras3.declined import Declined
from estimator_pipeline.migrate.code.to_keras3.support import MODULE

__all__ = ["names_of_tensorflow", "with_imports"]

_GONE = "\0"  # a line that goes


def names_of_tensorflow(module: cst.Module) -> dict[str, str]:
    """Name -> what it means below `tf`, of what a module imports of TensorFlow at its top."""
    found = {}
    for statement in module.body:
        for one in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(one, cst.Import):
                for alias in one.names:
                    name = dotted_of(alias.name) or ""
                    if name == "tensorflow" or (name.startswith("tensorflow.") and alias.evaluated_alias):
                        found[alias.evaluated_alias or name] = f"tf{name.removeprefix('tensorflow')}"
            elif isinstance(one, cst.ImportFrom) and not one.relative and not isinstance(one.names, cst.ImportStar):
                name = dotted_of(one.module) or ""
                if name.split(".")[0] == "tensorflow":
                    below = f"tf{name.removeprefix('tensorflow')}"
                    found |= {alias.evaluated_alias or alias.evaluated_name: f"{below}.{alias.evaluated_name}"
                              for alias in one.names}  # fmt: skip
    return found


def with_imports(text: str, parts: Set[str], package: str) -> str:
    """Import of Keras, of the module beside the program, and of TensorFlow where it is still asked."""
    lines = [
        one for one in text.split("\n") if not re.match(r"from estimator_pipeline\.|import estimator_pipeline", one)
    ]
    made: list[str] = []
    aliases: list[str] = []
    at = None
    for one in lines:
        old = re.match(r"(import|from) tensorflow\b", one)
        if old and at is None:
            at = len(made)
        if not old:
            made.append(one)
            continue
        new = _import_of_keras(one)
        if new == "import keras":
            continue
        if new:
            aliases.append(new)
        else:
            made.append(one)
    body = "\n".join(made)
    kept: list[str] = []
    for one in made:  # imports of TensorFlow that nothing asks any more
        imported = re.match(r"(?:import tensorflow(?:\.\w+)* as (\w+)|from tensorflow import (\w+))$", one)
        name = (imported[1] or imported[2]) if imported else ""
        if name and not re.search(rf"(?<![\w.]){name}\b", _bare(body.replace(one, ""))):
            one = _GONE
        kept.append(one)
    place = at if at is not None else 0
    while place and (above := re.match(r"import (\w+)", made[place - 1])) and (
        "keras" < above[1] and above[1] not in sys.stdlib_module_names
    ):  # fmt: skip
        place -= 1
    needed = [] if re.search(r"(?m)^import keras$", body) else ["import keras"]
    head = [one for one in kept[:place] if one is not _GONE]
    tail = [one for one in kept[place:] if one is not _GONE]
    made = [*head, *needed, *aliases, *tail]
    if parts:
        last = max(place + len(needed) + len(aliases) - 1, _last_import(made))
        by_module = {name for name in parts if re.search(rf"\b{MODULE}\.{name}\b", body)}
        folder = package.removesuffix(".") or "."
        added = [f"from {folder} import {MODULE}" if package else f"import {MODULE}"] if by_module else []
        made[last + 1 : last + 1] = ["", *added, *_import_of(f"{package}{MODULE}", sorted(parts - by_module))]
    text = "\n".join(made)
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _import_of(module: str, names: Sequence[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 120:
        return [line] if names else []
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]


def _bare(text: str) -> str:
    return re.sub(r"#[^\n]*|\"\"\".*?\"\"\"", "", text, flags=re.DOTALL)


def _import_of_keras(line: str) -> str:
    """Return the import of Keras 3 for one of `tensorflow.keras`; "" for others."""
    if re.match(r"(import|from) tensorflow\.python", line):
        raise Declined("tensorflow.python", "a private import of TensorFlow")
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
    """Return the line of the last import of those with which a file begins."""
    last = -1
    for place, one in enumerate(lines):
        if re.match(r"(import|from) [\w.]+", one):
            last = place
        elif re.match(r"(def|class|if|try|for|with|@)\b", one):
            break
    return last
