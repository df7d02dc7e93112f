"""The report of `migrate config`: a table of every field of the source."""

from __future__ import annotations

from estimator_pipeline.migrate.configs.convert import Conversion
from estimator_pipeline.migrate.configs.documents import dotted
from estimator_pipeline.migrate.configs.write import shown

__all__ = ["report_text"]


def report_text(conversion: Conversion, *, width: int | None = None, color: bool = False) -> str:
    """Format the table of fields, and the values that are still missing.

    Args:
        conversion: The converted configuration.
        width: Width in characters; None: the width that the table needs, up to 160.
        color: Whether to color the states, for a terminal.
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
    for name in ("line", "field", "value", "", "in the job file", "conversion or reason"):
        table.add_column(name, justify="right" if name == "line" else "left", overflow="fold")
    for finding in conversion.findings:
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
    console.print(Text(f"{conversion.source}: format {conversion.format}"))
    console.print(table)
    counts = ", ".join(f"{count} {state}" for state, count in conversion.counts().items())
    console.print(Text(f"\n{len(conversion.findings)} fields: {counts}"))
    for path, why in conversion.placeholders.items():
        console.print(Text(f"still missing: {dotted(path)} ({why})"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
