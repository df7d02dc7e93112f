"""Report of a scan as one self-contained HTML page: totals, and every finding beside its source.

The page includes its style, loads nothing and runs no script. All text from the program is escaped.
"""

from __future__ import annotations

import importlib.resources
from typing import Any

import jinja2

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.findings import TREATMENTS, CodeFinding, Scan, first_steps, source_lines
from estimator_pipeline.migrate.code.reports.text import MEANING, files, headline, scan_date_and_commit, verdicts_of
from estimator_pipeline.migrate.code.verdicts import VERDICTS
from estimator_pipeline.utils.version import __version__

__all__ = ["page"]

_TEMPLATE = "scan.html.jinja"
_AROUND = 2  # lines of source before and after a finding


def page(scan: Scan) -> str:
    """Return the HTML page."""
    jinja = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = jinja.from_string(importlib.resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8"))
    return template.render(
        scan=scan,
        headline=headline(scan),
        scanned=scan_date_and_commit(scan),
        totals=[{"meaning": meaning, "count": scan.judged(word)} for word, meaning in VERDICTS.items()],
        first=first_steps(scan),
        treatments=[
            {"name": name, "mark": name, "count": scan.count(name), "meaning": MEANING[name]}
            for name in TREATMENTS
        ],
        kinds=[
            {"name": catalogue.KINDS[kind], "counts": [scan.count(name, kind) for name in TREATMENTS]}
            for kind in scan.kinds()
        ],
        files=[
            {"path": path, "anchor": f"file-{number}", "blocks": _blocks(scan, findings),
             "verdicts": verdicts_of(scan, path),
             "counts": [sum(finding.treatment == name for finding in findings) for name in TREATMENTS]}
            for number, (path, findings) in enumerate(files(scan).items())
        ],
        version=__version__,
    )  # fmt: skip


def _blocks(scan: Scan, findings: list[CodeFinding]) -> list[dict[str, Any]]:
    """Return a block for each line with findings: its findings, and the lines around it that no block shows yet."""
    blocks: list[dict[str, Any]] = []
    for finding in findings:
        if not blocks or (blocks[-1]["cell"], blocks[-1]["line"]) != (finding.cell, finding.line):
            blocks.append({"cell": finding.cell, "line": finding.line, "findings": []})
        blocks[-1]["findings"].append(finding)
    shown: dict[int | None, int] = {}
    for block, after in zip(blocks, [*blocks[1:], None], strict=False):
        cell, line = block["cell"], block["line"]
        source = source_lines(scan, block["findings"][0])
        first = max(1, shown.get(cell, 0) + 1, line - _AROUND)
        last = line if after is not None and after["cell"] == cell else line + _AROUND
        block["gap"] = cell in shown and first > shown[cell] + 1
        block["new"] = cell not in shown
        shown[cell] = last
        # The mark of a line is its worst treatment: manual, then automatic, then unchanged.
        worst = max((finding.treatment for finding in block["findings"]), key=TREATMENTS.index)
        block["lines"] = [
            {"number": number, "text": source[number - 1], "mark": worst if number == line else ""}
            for number in range(first, min(last, len(source)) + 1)
        ]
    return blocks
