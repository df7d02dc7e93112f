"""By which name a file has TensorFlow, and why one without such a name is declined."""

from __future__ import annotations

import re

import libcst as cst

from estimator_pipeline.migrate.code.analysis.name_resolution import Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible

__all__ = ["v1_import", "without_a_name"]


def v1_import(tree: Tree) -> cst.ImportAlias | None:
    """`import tensorflow.compat.v1 as tf`, where that is all there is of TensorFlow."""
    found = [(alias, binding) for alias, binding in tree.imports
             if f"{binding.module}.".startswith(("tensorflow.", "keras.", "tf_keras."))]  # fmt: skip
    if len(found) != 1 or not isinstance(found[0][0], cst.ImportAlias) or found[0][1].name != "tensorflow.compat.v1":
        return None
    alias = found[0][0]
    return alias if found[0][1].kind == "import" and alias.asname is not None else None


def without_a_name(program: Program, tree: Tree, first: cst.CSTNode) -> NotConvertible:
    """Declines what has no plain `import tensorflow as tf`, at the import that it has instead."""
    imports = [(alias, binding) for alias, binding in tree.imports
               if re.match(r"(tensorflow|keras|tf_keras)\b", binding.module or binding.name)]  # fmt: skip
    others = [alias for alias, binding in imports if not f"{binding.module}.{binding.name}".endswith("compat.v1")]
    if others and len(others) < len(imports):
        return NotConvertible("an import of TensorFlow or Keras beside that of tensorflow.compat.v1", others[0])
    if imports:
        alias, binding = imports[0]
        how = "within a function or a class" if binding.scope is not tree.scope else "in parts"
        return NotConvertible(f"tensorflow, which is imported {how}: write `import tensorflow as tf`", alias)
    for alias, binding in tree.imports:
        given = alias.evaluated_alias or alias.evaluated_name if isinstance(alias, cst.ImportAlias) else ""
        found = program.look_up(given, tree.scope) if binding.kind == "from" else ()
        if any(isinstance(one, Outside) and one.dotted.startswith("tensorflow") for one in found):
            return NotConvertible(f"{given}, which is of TensorFlow and comes from another file", alias)
    return NotConvertible("tensorflow, which is not imported by any name", first)
