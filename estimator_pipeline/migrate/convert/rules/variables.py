"""The variables of the model in a loss: `tf.trainable_variables()` -> `self.trainable_variables`.

    loss += 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables() if "bias" not in v.name])

A variable's name has the names of scopes and layers before its own; those of V1, Keras 2 and Keras 3 differ. A test of
the own name is equal in all of them where no other name of the file has that text.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes
from estimator_pipeline.migrate.convert.names import Refused, names_read
from estimator_pipeline.migrate.convert.rule import TENSORS, Call, rule

__all__ = ["trainable_variables"]

_OWN_NAMES = ("kernel", "bias", "gamma", "beta")


@rule("tf.compat.v1.trainable_variables", at=(TENSORS,))
def trainable_variables(call: Call) -> str:
    call.args()
    tree = call.names.tree
    function = next((above for above in tree.above(call.node) if isinstance(above, cst.FunctionDef)), tree.module)
    nodes = list(iter_nodes(function))
    loops = [node for node in nodes if isinstance(node, (cst.CompFor, cst.For))]
    targets = {name for loop in loops for name in names_read(loop.target)}
    for node in nodes:
        if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Name):
            continue
        if node.value.value in targets and node.attr.value in ("name", "op"):
            _check_test(call, node)
    return "self.trainable_variables"


def _check_test(call: Call, name: cst.CSTNode) -> None:
    """Check that `v.name` is only in `"bias" not in v.name`, and that the text is only in own names of variables."""
    tree = call.names.tree
    target = tree.parents.get(name)
    test = tree.parents.get(target) if isinstance(target, cst.ComparisonTarget) else None
    if isinstance(test, cst.Comparison) and isinstance(test.left, cst.SimpleString) and len(test.comparisons) == 1:
        text = str(test.left.evaluated_value)
        others = [node for node in iter_nodes(tree.module) if isinstance(node, cst.SimpleString)
                  and text in str(node.evaluated_value) and not isinstance(tree.parents.get(node), cst.Comparison)
                  and not isinstance(tree.parents.get(node), cst.Expr)]  # fmt: skip
        if text in _OWN_NAMES and not others and isinstance(target.operator, (cst.In, cst.NotIn)):  # type: ignore[union-attr]
            return
    raise Refused("a choice of variables by names, which are others in Keras", name)
