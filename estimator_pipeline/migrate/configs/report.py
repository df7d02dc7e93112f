"""The report of `migrate config`: a table of every field of the source."""

from __future__ import annotations

from estimator_pipeline.migrate.configs.convert import Conversion
from estimator_pipeline.migrate.configs.documents import dotted
from estimator_pipeline.migrate.configs.write import shown

__all__ = ["report_text"]


def report_text(made: Conversion, *, width: int | None = None, color: bool = False) -> str:
    """Return the table, and what is still to be given.

    Args:
        made: What came of a configuration.
        width: Columns; None: as many as the table wants, up to 160.
        color: Whether to colour the states, for a terminal.
    """
    import io

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, width=width or 160, force_terminal=color, color_system="standard" if color else None)
    colors = {"taken": "green", "needs a decision": "yellow", "no longer needed": "dim"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("line", "field", "value", "", "in the job file", "how, or why"):
        table.add_column(name, justify="right" if name == "line" else "left", overflow="fold")
    for finding in made.findings:
        to = dotted(finding.to) if finding.to else ""
        if finding.state == "taken":
            to = f"{to}: {shown(finding.job_value, 40)}"
        table.add_row(
            Text(str(finding.item.line or "")),
            Text(shown(finding.item.name, 60)),
            Text(shown(finding.item.value, 40)),
            Text(finding.state, style=colors[finding.state] if color else ""),
            Text(to),
            Text(finding.why),
        )
    console.print(Text(f"{made.source}: format {made.format}"))
    console.print(table)
    counts = ", ".join(f"{count} {state}" for state, count in made.counts().items())
    console.print(Text(f"\n{len(made.findings)} fields: {counts}"))
    for path, why in made.placeholders.items():
        console.print(Text(f"still to be given: {dotted(path)} ({why})"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
