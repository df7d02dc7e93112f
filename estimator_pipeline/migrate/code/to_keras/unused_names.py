"""Names of what is gone from a text that became Keras: aliases and imports that nothing needs any more."""

from __future__ import annotations

import ast
import re

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["without_unused_names"]

# Whose imports go with what was called by their names.
_TENSORFLOW = re.compile(r"(tensorflow|tf_slim|tensorflow_gan|estimator_pipeline\.compat)\b")


def without_unused_names(reader: Rewriter, text: str) -> str:
    """A text without `layers = tf.compat.v1.layers`, and without imports, where nothing is called by them any more."""
    contrib_names = {one.split()[-1] for one in reader.tree.needs}
    for scope in (reader.tree.scope, *reader.tree.scopes.values()):
        for name, bindings in scope.names.items():
            value = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "value" else None
            old = re.match(r"tf\.(compat\.v1|estimator|feature_column)\b", reader.name(value)) if value else None
            if not old and (dotted_of(value) or "").split(".")[0] not in contrib_names:
                continue
            without = re.sub(rf"(?m)^[ \t]*{name} = .*\n", "", text)
            if not re.search(rf"(?<!keras\.)(?<!slim\.)\b{name}\b", without):
                text = without
    return _without_imports(reader, _without_v1(reader, text))


def _without_v1(reader: Rewriter, text: str) -> str:
    """Take `from tensorflow import estimator` and its like away where nothing is called by their names any more."""
    for statement in reader.tree.module.body:
        one = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(one, (cst.Import, cst.ImportFrom)) or isinstance(one.names, cst.ImportStar):
            continue
        modules = [one.module] if isinstance(one, cst.ImportFrom) else [alias.name for alias in one.names]
        if any(not _TENSORFLOW.match(dotted_of(module) or "") for module in modules):
            continue
        source = reader.source(statement)
        without = text.replace(f"{source}\n", "", 1)
        names = [alias.evaluated_alias or alias.evaluated_name.split(".")[0] for alias in one.names]
        if not _read(without) & set(names):
            text = without
    return text


def _read(text: str) -> set[str]:
    """Return the names that a text reads or binds otherwise than by imports; below others they are no names."""
    try:
        return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    except SyntaxError:  # it is told by the last look
        return set(re.findall(r"\w+", text))


def _without_imports(reader: Rewriter, text: str) -> str:
    """Take modules away that nothing needs any more."""
    for _, binding in reader.tree.imports:
        if binding.kind != "import" or binding.scope is not reader.tree.scope:
            continue
        name = binding.module.split(".")[0]
        if name != "functools" or len(re.findall(rf"\b{name}\b", text)) > 1:
            continue
        text = re.sub(rf"(?m)^import {name}\n", "", text)
    return text
