"""The comments that a conversion writes above constructs that need manual work."""

from __future__ import annotations

import textwrap

from estimator_pipeline.migrate.code.findings import UNCHANGED, CodeFinding

__all__ = ["MARK", "note_lines"]

MARK = "# estimator_pipeline:"
"""The beginning of each line of a note. The next conversion replaces such lines."""

_WIDTH = 100


def note_lines(finding: CodeFinding, indent: int) -> list[str]:
    """Return the comment lines about a construct that is not converted, for code indented by `indent` columns."""
    if finding.treatment == UNCHANGED:
        text = f"{finding.spelled} is unchanged: it runs under compat. In Keras: {finding.successor}"
    else:
        text = f"{finding.spelled} does not run: {finding.reason}"
        text += f"; write {finding.keep}" if finding.keep else f". In Keras: {finding.successor}"
    width = max(_WIDTH - indent - len(MARK) - 1, 40)
    return [f"{MARK} {line}" for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)]
