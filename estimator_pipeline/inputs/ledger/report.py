"""The report of a ledger's check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from estimator_pipeline.utils.text import few

__all__ = ["KINDS", "LISTED", "LedgerFinding", "LedgerReport", "Share", "ranges"]

LISTED = 8  # Records of a finding; more are counted.

KINDS = {
    "twice": "records that were read twice in an epoch",
    "never": "records that were not read in an epoch",
    "unknown": "records that are not in the data",
    "missing": "missing steps or files of the ledger",
    "moved": "records that a different task read than planned",
    "start": "data that started at a different position than the training",
    "jump": "data that continued at a different position than the training",
    "data": "data that differ from those of the job file",
    "uneven": "records of which some were read more often than others, by the fingerprints of batches",
}
"""The kinds of findings."""


@dataclass(frozen=True)
class LedgerFinding:
    """A problem in a ledger.

    Attributes:
        kind: One of `KINDS`.
        text: The description.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Share:
    """The contribution of one task.

    Attributes:
        task: The task, such as "worker:0".
        attempts: The number of its processes.
        steps: Its counted steps.
        records: Records read in these steps.
        again: Steps that were repeated or discarded.
    """

    task: str
    attempts: int
    steps: int
    records: int
    again: int


@dataclass
class LedgerReport:
    """The report of a ledger's check.

    Attributes:
        about: A summary of the ledger, in lines.
        shares: The contributions of the tasks.
        findings: The problems.
        notes: Further information.
    """

    about: list[str] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    findings: list[LedgerFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def find(self, kind: str, text: str) -> None:
        self.findings.append(LedgerFinding(kind, text))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON document."""
        return {"well": self.well, **asdict(self)}

    def __str__(self) -> str:
        lines = [*self.about]
        total = sum(share.records for share in self.shares) or 1
        for share in self.shares:
            again = f"; {share.again} further steps were done again" if share.again else ""
            lines.append(
                f"{share.task}: {share.steps} steps, {share.records} records ({share.records / total:.1%}), "
                f"{share.attempts} attempt(s){again}"
            )
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"found: {finding.text}" for finding in self.findings]
        lines.append("all is well" if self.well else f"{len(self.findings)} finding(s)")
        return "\n".join(lines)


def ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as "3, 7 to 9"."""
    intervals: list[list[int]] = []
    for number in numbers:
        if intervals and number == intervals[-1][1] + 1:
            intervals[-1][1] = number
        else:
            intervals.append([number, number])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in intervals]
    return few(texts, LISTED)
