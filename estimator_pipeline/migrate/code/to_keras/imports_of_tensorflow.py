"""The name by which a file imports TensorFlow, and the rejection of files without one."""

from __future__ import annotations

import re

import libcst as cst

from estimator_pipeline.migrate.code.analysis.name_resolution import Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible

__all__ = ["v1_import", "without_a_name"]


def v1_import(tree: Tree) -> cst.ImportAlias | None:
    """Return the alias of `import tensorflow.compat.v1 as tf` if it is the only TensorFlow import."""
    imports = [(alias, binding) for alias, binding in tree.imports
             if f"{binding.module}.".startswith(("tensorflow.", "keras.", "tf_keras."))]  # fmt: skip
    if (
        len(imports) != 1
        or not isinstance(imports[0][0], cst.ImportAlias)
        or imports[0][1].name != "tensorflow.compat.v1"
    ):
        return None
    alias = imports[0][0]
    return alias if imports[0][1].kind == "import" and alias.asname is not None else None


def without_a_name(program: Program, tree: Tree, first: cst.CSTNode) -> NotConvertible:
    """Return the error for a file without `import tensorflow as tf`, at its other import."""
    imports = [(alias, binding) for alias, binding in tree.imports
               if re.match(r"(tensorflow|keras|tf_keras)\b", binding.module or binding.name)]  # fmt: skip
    others = [alias for alias, binding in imports if not f"{binding.module}.{binding.name}".endswith("compat.v1")]
    if others and len(others) < len(imports):
        return NotConvertible("an import of TensorFlow or Keras in addition to tensorflow.compat.v1", others[0])
    if imports:
        alias, binding = imports[0]
        how = "within a function or a class" if binding.scope is not tree.scope else "in parts"
        return NotConvertible(f"tensorflow, which is imported {how}: write `import tensorflow as tf`", alias)
    for alias, binding in tree.imports:
        name = alias.evaluated_alias or alias.evaluated_name if isinstance(alias, cst.ImportAlias) else ""
        values = program.look_up(name, tree.scope) if binding.kind == "from" else ()
        if any(isinstance(value, Outside) and value.dotted.startswith("tensorflow") for value in values):
            return NotConvertible(f"{name}, a part of TensorFlow that is imported from another file", alias)
    return NotConvertible("tensorflow, which is not imported", first)
