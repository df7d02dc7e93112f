"""The comments that a conversion leaves where a person has to go on."""

from __future__ import annotations

import textwrap

from estimator_pipeline.migrate.code.findings import UNCHANGED, CodeFinding

__all__ = ["MARK", "note_lines"]

MARK = "# estimator_pipeline:"
"""How each line of a note begins; such lines are the converter's own, and are written anew by the next conversion."""

_WIDTH = 100


def note_lines(finding: CodeFinding, indent: int) -> list[str]:
    """What is left to do at a construct, as lines of comment; `indent` is how far they are moved to the right."""
    if finding.treatment == UNCHANGED:
        told = f"{finding.spelled} stays: it runs under compat. In Keras: {finding.successor}"
    else:
        told = f"{finding.spelled} does not run: {finding.reason}"
        told += f"; write {finding.keep}" if finding.keep else f". In Keras: {finding.successor}"
    width = max(_WIDTH - indent - len(MARK) - 1, 40)
    return [f"{MARK} {line}" for line in textwrap.wrap(told, width, break_long_words=False, break_on_hyphens=False)]
