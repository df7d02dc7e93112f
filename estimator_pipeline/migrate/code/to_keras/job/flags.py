"""Conversion of `tf.flags` and `tf.app.run` to absl, which TensorFlow 1 builds them on."""

from __future__ import annotations

import re

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["install"]

_FLAGS = r"tf\.compat\.v1\.(app\.)?flags\.(FLAGS|DEFINE_\w+|mark_flags?_as_required)$"
_VALUE = r"tf\.compat\.v1\.(app\.)?flags\.FLAGS\.\w+$"
_RUN = "tf.compat.v1.app.run"
# Aliases that are replaced by an import from absl.
_ALIASES = {"app": ("tf.compat.v1.app",), "flags": ("tf.compat.v1.app.flags", "tf.compat.v1.flags")}
# Argument names that TensorFlow 1 accepts and absl does not.
_OLD = ("flag_name", "default_value", "docstring")


def install(reader: Rewriter) -> None:
    """Convert flags to absl, in programs that parse them in `app.run`.

    TensorFlow 1 also parses flags on first access; absl does not.
    """
    aliases = [_find_alias(reader, name) for name in ("app", "flags") if name in reader.tree.scope.names]
    if None in aliases:
        return
    calls = [call for call in reader.tree.calls if reader.called(call) == _RUN]
    if not calls or any(_resolve_main(reader, call) is None for call in calls):
        return
    names: dict[cst.CSTNode, str] = {}
    for chain in reader.tree.chains:
        node: cst.BaseExpression = chain
        while isinstance(node, cst.Attribute):
            if reader.scope(chain) is reader.tree.scope and re.match(_VALUE, reader.name(node)):
                return  # absl parses flags only in app.run
            match = re.match(_FLAGS, reader.name(node))
            if match:
                names[node] = match[2]
                break
            node = node.value
    for name in names:
        call = reader.tree.parents.get(name)
        if isinstance(call, cst.Call) and any(arg.keyword and arg.keyword.value in _OLD for arg in call.args):
            return
    for call in calls:
        main = _resolve_main(reader, call)
        # TensorFlow 1 leaves undefined flags to the program.
        reader.replaced[call] = f"app.run({main}, flags_parser=lambda argv: flags.FLAGS(argv, known_only=True))"
    reader.replaced.update({statement: REMOVED for statement in aliases if statement is not None})
    reader.replaced.update({node: f"flags.{name}" for node, name in names.items()})
    reader.needs.add("absl")


def _find_alias(reader: Rewriter, name: str) -> cst.SimpleStatementLine | None:
    """Return the statement `flags = tf.app.flags`; None if the name has a different meaning."""
    bindings = reader.tree.scope.names[name]
    value = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "value" else None
    if not isinstance(value, cst.Attribute) or reader.name(value) not in _ALIASES[name]:
        return None
    return reader.statement_of(value)


def _resolve_main(reader: Rewriter, call: cst.Call) -> str | None:
    """Return the main function; None if it cannot be determined."""
    args = arguments(call, ("main", "argv"))
    if args.keys() - {"main"} or any(arg.star for arg in call.args):
        return None
    if "main" in args:
        return reader.source(args["main"].value)
    return "main" if "main" in reader.tree.scope.names else None
