"""Cluster attributes that programs read from a RunConfig, and parameter server strategies."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["CLUSTER_CALL", "check_servers", "find_cluster_uses", "has_servers"]

CLUSTER_CALL = "keras_cluster.of_workers()"
"""Call that creates the cluster description; it rejects clusters with parameter servers."""

# Attributes of a RunConfig that a Cluster of keras_cluster also has.
_CLUSTER_ATTRIBUTES = (
    "global_id_in_cluster", "is_chief", "num_ps_replicas", "num_worker_replicas", "task_id", "task_type",
)  # fmt: skip


def find_cluster_uses(reader: Rewriter, config: cst.Name) -> list[cst.CSTNode]:
    """Return the uses of a RunConfig that only read cluster attributes."""
    home = reader.home(config)
    return [
        chain for chain in _find_uses(reader, home) if _reads_cluster(reader, chain) or _is_passed_on(reader, chain)
    ]


def _find_uses(reader: Rewriter, home: tuple[cst.CSTNode, str] | None) -> list[cst.CSTNode]:
    return [chain for chain in reader.tree.chains if home is not None and _root(chain).value == home[1]
            and reader.home(_root(chain)) == home]  # fmt: skip


def _reads_cluster(reader: Rewriter, chain: cst.CSTNode) -> bool:
    return (
        isinstance(chain, cst.Attribute)
        and isinstance(chain.value, cst.Name)
        and chain.attr.value in _CLUSTER_ATTRIBUTES
    )


def _is_passed_on(reader: Rewriter, chain: cst.CSTNode) -> bool:
    """Return whether a function that gets the RunConfig only reads cluster attributes."""
    arg = reader.tree.parents.get(chain)
    call = reader.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(arg, cst.Arg) or arg.star:
        return False
    functions = reader.functions(call.func)
    if len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef):
        return False
    params = [param.name.value for param in functions[0].node.params.params]
    place = call.args.index(arg)
    name = arg.keyword.value if arg.keyword else params[place] if place < len(params) else ""
    return name in params and all(
        _reads_cluster(reader, use) or _is_presence_test(reader, use)
        for use in _find_uses(reader, (functions[0].node, name))
    )


def _is_presence_test(reader: Rewriter, chain: cst.CSTNode) -> bool:
    """Return whether the use is a test like `config is not None` or `if config`."""
    parent = reader.tree.parents.get(chain)
    if isinstance(parent, (cst.BooleanOperation, cst.If, cst.IfExp)):
        return True
    return isinstance(parent, cst.Comparison) and any(
        isinstance(target.operator, (cst.Is, cst.IsNot)) for target in parent.comparisons
    )


def has_servers(reader: Rewriter, node: cst.BaseExpression) -> bool:
    """Return whether an expression may be a ParameterServerStrategy."""
    values: list[cst.CSTNode | None] = [node]
    if isinstance(node, cst.Name):
        values += [binding.node for binding in reader.program.bindings(node.value, reader.scope(node))]
    if isinstance(node, cst.IfExp):
        return has_servers(reader, node.body) or has_servers(reader, node.orelse)
    return any(_is_server_strategy(reader, value) for value in values)


def _is_server_strategy(reader: Rewriter, node: cst.CSTNode | None) -> bool:
    return "ParameterServerStrategy" in reader.called(node)


def check_servers(reader: Rewriter, gone: set[cst.CSTNode]) -> None:
    """Check that no parameter server strategy remains in the program.

    Args:
        gone: nodes that are removed from the program.

    Raises:
        NotConvertible: a parameter server strategy is also used outside of the RunConfig.
    """
    for call in reader.tree.calls:
        if _is_server_strategy(reader, call) and gone.isdisjoint([call, *reader.tree.above(call)]):
            raise NotConvertible("a parameter server strategy that is also used outside of the RunConfig", call)


def _root(node: cst.CSTNode) -> cst.Name:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else cst.Name("_")
