"""The result of a scan: findings, verdicts, skipped files and totals, and their JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.migrate.code.analysis.files import Skipped
from estimator_pipeline.migrate.code.catalogue import KINDS
from estimator_pipeline.migrate.code.verdicts import ESTIMATOR, KERAS, RENAMED, UNREADABLE, VERDICTS, FileVerdict
from estimator_pipeline.utils.text import counted

__all__ = ["AUTOMATIC", "MANUAL", "SCHEMA", "TREATMENTS", "UNCHANGED", "CodeFinding", "Scan", "first_steps",
           "source_lines"]  # fmt: skip

UNCHANGED, AUTOMATIC, MANUAL = "unchanged", "automatic", "manual"
TREATMENTS = (UNCHANGED, AUTOMATIC, MANUAL)
SCHEMA = "estimator-pipeline/migrate-scan/3"
"""The version of the JSON document. It changes where a field is removed or changes its meaning, not for new fields."""


@dataclass(frozen=True)
class CodeFinding:
    """A construct of the program.

    Attributes:
        path: the file, relative to the scanned root, with slashes.
        line, column, end_line, end_column: counted from 1; the end is exclusive. In a notebook: within the cell.
        cell: the notebook cell, counted from 1 among all cells.
        kind: one of `..catalogue.KINDS`.
        name: the canonical name, as in the catalogue.
        spelled: the full name as the program spells it.
        treatment: unchanged, automatic or manual.
        reason: the reason for the treatment, in a sentence.
        keep: the code that runs under compat; "" where the construct runs unchanged.
        successor, write: the Keras replacement, and code for it.
        certainty: "resolved" (from imports and assignments), "by use" (from how it is called) or "by name" (only from
            its name).
        details: `function`, `class` and its `base`, `modes` of a spec or a model_fn.
        docs: the section of the documentation about the construct.
        rule: the name of the converter's rule.
        written: the file that the cell writes with `%%writefile`; "" for other cells.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    cell: int | None
    kind: str
    name: str
    spelled: str
    treatment: str
    reason: str
    keep: str
    successor: str
    write: str
    certainty: str
    details: Mapping[str, Any]
    docs: str
    rule: str | None = None
    written: str = ""

    @property
    def place(self) -> str:
        """`file.py:3:7`, or `book.ipynb:cell 2:3:7`."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.path}:{cell}{self.line}:{self.column}"

    def document(self) -> dict[str, Any]:
        names = ("path", "cell", "line", "column", "end_line", "end_column", "kind", "name", "spelled", "treatment",
                 "reason", "keep", "successor", "write", "certainty", "docs", "rule")  # fmt: skip
        fields = {name: getattr(self, name) for name in names}
        return fields | {"written": self.written or None, "details": dict(self.details)}


@dataclass
class Scan:
    """The scan of a code base.

    Attributes:
        root: the scanned file or folder, as the user named it.
        findings: sorted by file, line and column.
        skipped: files and folders that were not read, and why.
        files: the number of Python files and notebooks that were read.
        lines: the number of their lines.
        without: the number of files that do not use TensorFlow.
        texts: path -> the text of a file with findings; for a notebook cell `path#cell`.
        verdicts: path -> the verdict on a file, for every file that was read.
    """

    root: str
    findings: list[CodeFinding] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    without: int = 0
    texts: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, FileVerdict] = field(default_factory=dict)

    def count(self, treatment: str | None = None, kind: str | None = None) -> int:
        return sum(
            (treatment is None or finding.treatment == treatment) and (kind is None or finding.kind == kind)
            for finding in self.findings
        )

    def by_file(self) -> dict[str, list[CodeFinding]]:
        by_path: dict[str, list[CodeFinding]] = {}
        for finding in self.findings:
            by_path.setdefault(finding.path, []).append(finding)
        return by_path

    def judged(self, verdict: str) -> int:
        """Return the number of files with a verdict."""
        return sum(file.verdict == verdict for file in self.verdicts.values())

    def kinds(self) -> list[str]:
        """Return the kinds of the findings, in the catalogue's order."""
        there = {finding.kind for finding in self.findings}
        return [kind for kind in KINDS if kind in there]

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` prints; scan.schema.json is its schema."""
        return {
            "schema": SCHEMA,
            "root": self.root,
            "files": {"read": self.files, "lines": self.lines, "without_tensorflow": self.without},
            "totals": {word: self.judged(word) for word in VERDICTS},
            "verdicts": [verdict.document() for verdict in self.verdicts.values()],
            "first": first_steps(self),
            "treatments": {name: {"findings": self.count(name)} for name in TREATMENTS},
            "kinds": {kind: {name: self.count(name, kind) for name in TREATMENTS} for kind in self.kinds()},
            "findings": [finding.document() for finding in self.findings],
            "skipped": [{"path": skipped.path, "why": skipped.why} for skipped in self.skipped],
        }


def source_lines(scan: Scan, finding: CodeFinding) -> list[str]:
    """Return the lines of the file, or of the notebook cell, that a finding is in."""
    cell = "" if finding.cell is None else f"#{finding.cell}"
    return scan.texts.get(finding.path + cell, "").splitlines()


_MOST = 3  # steps of each kind
_V1 = "import tensorflow.compat.v1 as tf"


def first_steps(scan: Scan) -> list[str]:
    """Return the next steps; those that block most files come first."""
    steps = [f"make {file.path} readable: {file.why}" for file in scan.verdicts.values() if file.verdict == UNREADABLE]
    steps = _shortened(steps, "files that cannot be read")
    gone: dict[str, list[CodeFinding]] = {}
    for finding in scan.findings:
        if finding.treatment == MANUAL and finding.kind != "unreadable":
            gone.setdefault(_V1 if _V1 in finding.keep else finding.spelled, []).append(finding)
    manual = []
    for name, findings in sorted(gone.items(), key=lambda item: (-len({f.path for f in item[1]}), item[0])):
        files, write = counted(len({finding.path for finding in findings}), "file"), findings[0].keep
        step = f"replace {name}{f' by {write}' if write else ''}"
        if name == _V1:
            names = counted(len({finding.spelled for finding in findings}), "name")
            step = f"write `{_V1}`, for {names} of TensorFlow 1"
        manual.append(f"{step}, in {files}, first at {findings[0].place}: {findings[0].reason}")
    steps += _shortened(manual, "removed names")
    converted = [verdict for verdict in scan.verdicts.values() if verdict.verdict in (KERAS, RENAMED)]
    if converted or scan.judged(ESTIMATOR):
        of = scan.judged(KERAS) + scan.judged(ESTIMATOR)
        effects = [f"converts {scan.judged(KERAS)} of {counted(of, 'file')} with Estimators to Keras"] if of else []
        effects += [f"renames {counted(scan.judged(RENAMED), 'file')} to TensorFlow 2"] if scan.judged(RENAMED) else []
        steps.append(f"run `migrate convert {scan.root} --output DIR`: {', '.join(effects)}")
    stops: dict[tuple[str, str], int] = {}
    for verdict in scan.verdicts.values():
        if verdict.verdict == ESTIMATOR:
            stops[verdict.stops_at, verdict.reason] = stops.get((verdict.stops_at, verdict.reason), 0) + 1
    by_hand = "rewrite by hand what keeps {} from Keras, and compare with `parity`: {}: {}"
    blocks = [by_hand.format(counted(count, "file"), place, reason)
              for (place, reason), count in sorted(stops.items(), key=lambda item: (-item[1], item[0]))]  # fmt: skip
    return steps + _shortened(blocks, "places that keep files from Keras")


def _shortened(steps: list[str], noun: str) -> list[str]:
    more = len(steps) - _MOST
    return steps if more <= 1 else [*steps[:_MOST], f"and {more} more {noun}"]
