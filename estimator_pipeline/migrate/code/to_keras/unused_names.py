"""Removal of aliases and imports that a converted program no longer uses."""

from __future__ import annotations

import ast
import re

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["without_unused_names"]

# Packages whose unused imports are removed.
_TENSORFLOW = re.compile(r"(tensorflow|tf_slim|tensorflow_gan|estimator_pipeline\.compat)\b")


def without_unused_names(reader: Rewriter, text: str) -> str:
    """Return a text without unused aliases (`layers = tf.compat.v1.layers`) and imports."""
    contrib_names = {line.split()[-1] for line in reader.tree.needs}
    for scope in (reader.tree.scope, *reader.tree.scopes.values()):
        for name, bindings in scope.names.items():
            value = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "value" else None
            old = re.match(r"tf\.(compat\.v1|estimator|feature_column)\b", reader.name(value)) if value else None
            if not old and (dotted_of(value) or "").split(".")[0] not in contrib_names:
                continue
            without = re.sub(rf"(?m)^[ \t]*{name} = .*\n", "", text)
            if not re.search(rf"(?<!keras\.)(?<!slim\.)\b{name}\b", without):
                text = without
    return _without_stdlib_imports(reader, _without_tensorflow_imports(reader, text))


def _without_tensorflow_imports(reader: Rewriter, text: str) -> str:
    """Remove unused imports such as `from tensorflow import estimator`."""
    for statement in reader.tree.module.body:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(small, (cst.Import, cst.ImportFrom)) or isinstance(small.names, cst.ImportStar):
            continue
        modules = [small.module] if isinstance(small, cst.ImportFrom) else [alias.name for alias in small.names]
        if any(not _TENSORFLOW.match(dotted_of(module) or "") for module in modules):
            continue
        source = reader.source(statement)
        without = text.replace(f"{source}\n", "", 1)
        names = [alias.evaluated_alias or alias.evaluated_name.split(".")[0] for alias in small.names]
        if not _read(without) & set(names):
            text = without
    return text


def _read(text: str) -> set[str]:
    """Return the names that a text uses outside of imports; attributes do not count."""
    try:
        return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    except SyntaxError:  # reported by the final check of the text
        return set(re.findall(r"\w+", text))


def _without_stdlib_imports(reader: Rewriter, text: str) -> str:
    """Remove unused imports of `functools`."""
    for _, binding in reader.tree.imports:
        if binding.kind != "import" or binding.scope is not reader.tree.scope:
            continue
        name = binding.module.split(".")[0]
        if name != "functools" or len(re.findall(rf"\b{name}\b", text)) > 1:
            continue
        text = re.sub(rf"(?m)^import {name}\n", "", text)
    return text
