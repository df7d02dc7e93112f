"""What a scan came to, as data: findings, what was left out, sums; and as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.migrate.code.analysis.files import Skipped
from estimator_pipeline.migrate.code.catalogue import KINDS

__all__ = ["AUTOMATIC", "MANUAL", "SCHEMA", "TREATMENTS", "UNCHANGED", "CodeFinding", "Scan"]

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
        kind: of :data:`..catalogue.KINDS`.
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

    @property
    def place(self) -> str:
        """`file.py:3:7`, or `book.ipynb:cell 2:3:7`."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.path}:{cell}{self.line}:{self.column}"

    def document(self) -> dict[str, Any]:
        names = ("path", "cell", "line", "column", "end_line", "end_column", "kind", "name", "spelled", "treatment",
                 "reason", "keep", "successor", "write", "certainty", "docs", "rule")  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"details": dict(self.details)}


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
    """

    root: str
    findings: list[CodeFinding] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    without: int = 0
    texts: dict[str, str] = field(default_factory=dict)

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

    def kinds(self) -> list[str]:
        """The kinds that were found, in the catalogue's order."""
        there = {one.kind for one in self.findings}
        return [kind for kind in KINDS if kind in there]

    def document(self) -> dict[str, Any]:
        """The document that `--json` prints: its form is that of scan.schema.json."""
        return {
            "schema": SCHEMA,
            "root": self.root,
            "files": {"read": self.files, "lines": self.lines, "without_tensorflow": self.without},
            "treatments": {
                name: {"findings": self.count(name)} for name in TREATMENTS
            },
            "kinds": {
                kind: {name: self.count(name, kind) for name in TREATMENTS} for kind in self.kinds()
            },
            "findings": [one.document() for one in self.findings],
            "skipped": [{"path": one.path, "why": one.why} for one in self.skipped],
        }  # fmt: skip
