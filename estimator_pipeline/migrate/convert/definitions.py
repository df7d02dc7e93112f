"""The statements that a name has its value from, in a model_fn and in the part of it that a new function computes.

A part is cut out by names. A name that the model_fn assigns again between two of its uses would get another value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import libcst as cst

from estimator_pipeline.migrate.convert.model_fn import ModelFnSource, Statement
from estimator_pipeline.migrate.convert.names import FileNames, Refused, names_read

__all__ = ["Definitions", "reaching"]


class Definitions:
    """The definitions of a model_fn.

    Args:
        names: the names of its file.
        model_fn: the model_fn.
        known: its statements that parts consist of; others are rewritten as a whole.
    """

    def __init__(self, names: FileNames, model_fn: ModelFnSource, known: Iterable[Statement]) -> None:
        self.names, self.model_fn, self.known = names, model_fn, {*known}

    def before(self, steps: Sequence[Statement], node: cst.CSTNode) -> list[Statement]:
        """Return the statements that end before a node; all for a node that is not in the file."""
        try:
            at = self.names.tree.position(node)[:2]
        except KeyError:
            return list(steps)
        return [step for step in steps if self.names.tree.position(step.node)[2:] <= at]

    def check(
        self, part: Sequence[Statement], mode: str, values: Iterable[cst.BaseExpression],
        outside: Callable[[str], frozenset[Statement | None]], inline: Iterable[cst.CSTNode] = (),
    ) -> None:  # fmt: skip
        """Check that each name in a part has the same definitions as in the model_fn.

        Args:
            part: the statements of a new function, in order.
            mode: the mode in which the model_fn is compared.
            values: the expressions that the function computes at its end.
            outside: name -> its definitions before the part: those of the network for its outputs.
            inline: nodes that are names of outputs in the new function.

        Raises:
            Refused: a name has another value there.
        """
        all_steps, inline = self.model_fn.in_mode(mode), list(inline)
        places = [(step.node, part[:number]) for number, step in enumerate(part)]
        for node, steps in (*places, *((value, part) for value in values)):
            for name in sorted(names_read(node, inline)):
                there = reaching(self.before(all_steps, node), name)
                if there - {None} - self.known:
                    continue
                here = reaching(steps, name)
                if None in here:
                    here = here - {None} | outside(name)
                if here != there:
                    raise Refused(f"{name}, which is assigned again between its uses", node)


def reaching(steps: Sequence[Statement], name: str) -> frozenset[Statement | None]:
    """Return the statements that may define a name behind them; None for its value before all of them."""
    definitions: set[Statement | None] = set()
    for step in reversed(steps):
        if name in step.defines:
            definitions.add(step)
            if step.replaces:
                return frozenset(definitions)
    return frozenset(definitions | {None})
