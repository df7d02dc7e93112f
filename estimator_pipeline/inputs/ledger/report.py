"""What a check of a ledger came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["KINDS", "LedgerFinding", "LedgerReport", "Share", "listed", "ranges"]

_LISTED = 8

KINDS = {
    "twice": "records that were read twice in an epoch",
    "never": "records that were not read in an epoch",
    "unknown": "records that the data do not have",
    "missing": "steps or files of the ledger that are not there",
    "moved": "records that a different task read than the plan assigns",
    "start": "data that started at a different position than training",
    "jump": "data that resumed at a different position than training",
    "data": "data that are not those of the job file",
    "uneven": "records of which some were read more often than others, by the fingerprints of batches",
}
"""What is not as it should be, by the name of a finding."""


@dataclass(frozen=True)
class LedgerFinding:
    """Something that is not as it should be.

    Attributes:
        kind: one of :data:`KINDS`.
        text: in words.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Share:
    """What one task did.

    Attributes:
        task: such as "worker:0".
        attempts: processes of it that trained.
        steps: its steps that count.
        records: those it read in them.
        again: steps that it made and that were done again, or thrown away.
    """

    task: str
    attempts: int
    steps: int
    records: int
    again: int


@dataclass
class LedgerReport:
    """What a check of a ledger came to.

    Attributes:
        about: the ledger in a few lines.
        shares: of the tasks.
        findings: what is not as it should be.
        notes: what else is worth to know.
    """

    about: list[str] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    findings: list[LedgerFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def find(self, kind: str, text: str) -> None:
        self.findings.append(LedgerFinding(kind, text))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """Ascending numbers as "3, 7 to 9"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in found]
    return listed(texts)


def listed(texts: Sequence[object]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(map(str, texts[:_LISTED])) + more
