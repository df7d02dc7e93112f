"""Programs that know of their cluster: what they ask a RunConfig for, and strategies of parameter servers."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["MADE", "asked", "check_servers", "has_servers"]

MADE = "keras_cluster.of_workers()"
"""What makes a cluster, which is refused where it has parameter servers."""

# Of a RunConfig; a Cluster of keras_cluster has them too.
_ASKED = ("global_id_in_cluster", "is_chief", "num_ps_replicas", "num_worker_replicas", "task_id", "task_type")


def asked(reader: Rewriter, config: cst.Name) -> list[cst.CSTNode]:
    """Where a configuration is asked for its cluster, also by a function of the file that gets it."""
    home = reader.home(config)
    return [one for one in _uses(reader, home) if _asks(reader, one) or _is_handed_on(reader, one)]


def _uses(reader: Rewriter, home: tuple[cst.CSTNode, str] | None) -> list[cst.CSTNode]:
    return [one for one in reader.tree.chains if home is not None and _root(one).value == home[1]
            and reader.home(_root(one)) == home]  # fmt: skip


def _asks(reader: Rewriter, chain: cst.CSTNode) -> bool:
    return isinstance(chain, cst.Attribute) and isinstance(chain.value, cst.Name) and chain.attr.value in _ASKED


def _is_handed_on(reader: Rewriter, chain: cst.CSTNode) -> bool:
    """Whether a function of the file gets the configuration, and asks for nothing but its cluster."""
    arg = reader.tree.parents.get(chain)
    call = reader.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(arg, cst.Arg) or arg.star:
        return False
    found = reader.functions(call.func)
    if len(found) != 1 or not isinstance(found[0].node, cst.FunctionDef):
        return False
    params = [one.name.value for one in found[0].node.params.params]
    place = call.args.index(arg)
    name = arg.keyword.value if arg.keyword else params[place] if place < len(params) else ""
    return name in params and all(
        _asks(reader, one) or _is_there(reader, one) for one in _uses(reader, (found[0].node, name))
    )


def _is_there(reader: Rewriter, chain: cst.CSTNode) -> bool:
    """`config is not None`, `if config`."""
    parent = reader.tree.parents.get(chain)
    if isinstance(parent, (cst.BooleanOperation, cst.If, cst.IfExp)):
        return True
    return isinstance(parent, cst.Comparison) and any(
        isinstance(one.operator, (cst.Is, cst.IsNot)) for one in parent.comparisons
    )


def has_servers(reader: Rewriter, node: cst.BaseExpression) -> bool:
    """Whether a strategy may be one of parameter servers."""
    values: list[cst.CSTNode | None] = [node]
    if isinstance(node, cst.Name):
        values += [one.node for one in reader.program.bindings(node.value, reader.scope(node))]
    if isinstance(node, cst.IfExp):
        return has_servers(reader, node.body) or has_servers(reader, node.orelse)
    return any(_makes_servers(reader, value) for value in values)


def _makes_servers(reader: Rewriter, node: cst.CSTNode | None) -> bool:
    return "ParameterServerStrategy" in reader.called(node)


def check_servers(reader: Rewriter, gone: set[cst.CSTNode]) -> None:
    """Whether no strategy of parameter servers is left.

    Args:
        gone: what is written no more.

    Raises:
        NotConvertible: one is used for more than training.
    """
    for call in reader.tree.calls:
        if _makes_servers(reader, call) and gone.isdisjoint([call, *reader.tree.above(call)]):
            raise NotConvertible("a strategy of parameter servers that is used for more than a RunConfig", call)


def _root(node: cst.CSTNode) -> cst.Name:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else cst.Name("_")
