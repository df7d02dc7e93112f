"""What a scan came to, as data: findings, what was left out, sums; and as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.migrate.code.analysis.files import Skipped
from estimator_pipeline.migrate.code.catalogue import KINDS
from estimator_pipeline.migrate.code.verdicts import (
    ESTIMATOR,
    KEEPS_MODEL_FN,
    KERAS,
    RENAMED,
    UNREADABLE,
    VERDICTS,
    FileVerdict,
)

__all__ = ["AUTOMATIC", "MANUAL", "SCHEMA", "TREATMENTS", "UNCHANGED", "CodeFinding", "Scan", "first_steps"]

UNCHANGED, AUTOMATIC, MANUAL = "unchanged", "automatic", "manual"
TREATMENTS = (UNCHANGED, AUTOMATIC, MANUAL)
SCHEMA = "estimator-pipeline/migrate-scan/2"
"""The form of the JSON document. A new number where a field goes or changes its meaning; new fields are no change."""


@dataclass(frozen=True)
class CodeFinding:
    """A construct of the program.

    Attributes:
        path: relative to what was scanned, with slashes.
        line, column, end_line, end_column: counted from 1; the end is exclusive. In a notebook: within the cell.
        cell: of a notebook, counted from 1 among all its cells.
        kind: of `..catalogue.KINDS`.
        name: the canonical name, by which the catalogue has it.
        spelled: the full name by which the program reaches it.
        treatment: unchanged, automatic or manual.
        reason: why that, in a sentence.
        keep: what to write so that it runs under compat; "" where it does.
        successor, write: what takes its place in Keras, and code for it.
        certainty: "resolved" (by imports and assignments), "by use" (by how it is called), "by name" alone.
        details: facts of this one: modes, fields, where a function is handed over.
        docs: where the documents say more.
        rule: the converter's rule, by name.
        written: the file that the cell writes (`%%writefile`), where it is in one.
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
        told = {name: getattr(self, name) for name in names}
        return told | {"written": self.written or None, "details": dict(self.details)}


@dataclass
class Scan:
    """All of a code base.

    Attributes:
        root: what was scanned, as it was named.
        findings: in the order of files, lines and columns.
        skipped: files and folders that were not read, and why.
        files: how many Python files and notebooks were read.
        lines: how many lines they have.
        without: how many of them have nothing to do with TensorFlow.
        texts: path -> the text of a file with findings; of a notebook cell `path#cell`.
        verdicts: path -> what becomes of a file, of all that were read.
        date: the day of the scan.
        commit: what is checked out there, where it is a checkout of git.
    """

    root: str
    findings: list[CodeFinding] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    without: int = 0
    texts: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, FileVerdict] = field(default_factory=dict)
    date: str = ""
    commit: str | None = None

    def count(self, treatment: str | None = None, kind: str | None = None) -> int:
        return sum(
            (treatment is None or one.treatment == treatment) and (kind is None or one.kind == kind)
            for one in self.findings
        )

    def by_file(self) -> dict[str, list[CodeFinding]]:
        found: dict[str, list[CodeFinding]] = {}
        for one in self.findings:
            found.setdefault(one.path, []).append(one)
        return found

    def judged(self, verdict: str) -> int:
        """How many files have a verdict."""
        return sum(one.verdict == verdict for one in self.verdicts.values())

    def kinds(self) -> list[str]:
        """Return the kinds that were found, in the catalogue's order."""
        there = {one.kind for one in self.findings}
        return [kind for kind in KINDS if kind in there]

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` prints: its form is that of scan.schema.json."""
        return {
            "schema": SCHEMA,
            "root": self.root,
            "date": self.date,
            "commit": self.commit,
            "files": {"read": self.files, "lines": self.lines, "without_tensorflow": self.without},
            "totals": {word: self.judged(word) for word in VERDICTS},
            "verdicts": [one.document() for one in self.verdicts.values()],
            "first": first_steps(self),
            "treatments": {
                name: {"findings": self.count(name)} for name in TREATMENTS
            },
            "kinds": {
                kind: {name: self.count(name, kind) for name in TREATMENTS} for kind in self.kinds()
            },
            "findings": [one.document() for one in self.findings],
            "skipped": [{"path": one.path, "why": one.why} for one in self.skipped],
        }  # fmt: skip


_MOST = 3  # of each kind of step
_V1 = "import tensorflow.compat.v1 as tf"


def first_steps(scan: Scan) -> list[str]:
    """What to do first, in its order: what keeps most files from running or from Keras comes before the rest."""
    steps = [f"make {one.path} readable: {one.why}" for one in scan.verdicts.values() if one.verdict == UNREADABLE]
    steps = _shortened(steps, "files that cannot be read")
    gone: dict[str, list[CodeFinding]] = {}
    for finding in scan.findings:
        if finding.treatment == MANUAL and finding.kind != "unreadable":
            gone.setdefault(_V1 if _V1 in finding.keep else finding.spelled, []).append(finding)
    by_hand = []
    for name, found in sorted(gone.items(), key=lambda one: (-len({f.path for f in one[1]}), one[0])):
        files, write = _files(len({one.path for one in found})), found[0].keep
        what = f"replace {name}{f' by {write}' if write else ''}"
        if name == _V1:
            what = f"write `{_V1}`, for {_files(len({one.spelled for one in found}), 'name')} of TensorFlow 1"
        by_hand.append(f"{what}, in {files}, first at {found[0].place}: {found[0].reason}")
    steps += _shortened(by_hand, "removed names")
    converted = [one for one in scan.verdicts.values() if one.verdict in (KERAS, KEEPS_MODEL_FN, RENAMED)]
    if converted or scan.judged(ESTIMATOR):
        keras = scan.judged(KERAS) + scan.judged(KEEPS_MODEL_FN)
        of = keras + scan.judged(ESTIMATOR)
        effects = [f"converts {keras} of {_files(of)} with Estimators to Keras"] if of else []
        effects += [f"renames {_files(scan.judged(RENAMED))} to TensorFlow 2"] if scan.judged(RENAMED) else []
        steps.append(f"run `migrate convert {scan.root} --output DIR`: {', '.join(effects)}")
    stops: dict[tuple[str, str], int] = {}
    for one in scan.verdicts.values():
        if one.verdict == ESTIMATOR:
            stops[one.stops_at, one.reason] = stops.get((one.stops_at, one.reason), 0) + 1
    blocks = [f"rewrite what keeps {_files(count)} from Keras: {place}: {reason}"
              for (place, reason), count in sorted(stops.items(), key=lambda one: (-one[1], one[0]))]  # fmt: skip
    return steps + _shortened(blocks, "places that keep files from Keras")


def _files(count: int, what: str = "file") -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _shortened(steps: list[str], what: str) -> list[str]:
    more = len(steps) - _MOST
    return steps if more <= 1 else [*steps[:_MOST], f"and {more} more {what}"]
