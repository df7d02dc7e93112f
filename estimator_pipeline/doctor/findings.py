"""Findings and the report of them: for a person, as JSON, and as an exit code."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.errors import PipelineError

__all__ = [
    "SEVERITIES",
    "DoctorFinding",
    "DoctorReport",
    "NotLookedAt",
    "error",
    "info",
    "merged",
    "of_error",
    "ok",
    "warning",
]

SEVERITIES = ("ok", "info", "warning", "error")
"""From good to bad. "info" is for a person to know; "warning" may cost time or results; "error": the job will fail,
hang or be wrong."""
_WIDTH = 110


@dataclass(frozen=True)
class DoctorFinding:
    """One thing that a check has found.

    Attributes:
        check: the check's name; filled in by the one that runs the checks.
        code: of the error that the job itself would raise, where it is one.
        severity: one of :data:`SEVERITIES`.
        what: what was found, with the values.
        why: why it matters; none where all is well.
        hint: what to change; the same.
        tasks: the tasks that have found it, where several have looked.
    """

    severity: str
    what: str
    why: str = ""
    hint: str = ""
    check: str = ""
    code: str = ""
    tasks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A mapping that `json.dumps` takes."""
        return {**dataclasses.asdict(self), "tasks": list(self.tasks)}


class NotLookedAt(Exception):
    """Raised by a check that has nothing to look at; the text says why."""


def ok(what: str) -> DoctorFinding:
    """All is well."""
    return DoctorFinding("ok", what)


def info(what: str, why: str = "", hint: str = "") -> DoctorFinding:
    """Good to know."""
    return DoctorFinding("info", what, why, hint)


def warning(what: str, why: str, hint: str) -> DoctorFinding:
    """It may cost time or results."""
    return DoctorFinding("warning", what, why, hint)


def error(what: str, why: str, hint: str) -> DoctorFinding:
    """The job will fail, hang or be wrong."""
    return DoctorFinding("error", what, why, hint)


def of_error(caught: PipelineError, why: str, *, severity: str = "error") -> DoctorFinding:
    """A finding of what the job itself would raise."""
    message = caught.message.rstrip(".") + (f" ({caught.found})" if caught.found else "")
    return DoctorFinding(severity, message, why, caught.hint or "", code=caught.code or "")


@dataclass
class DoctorReport:
    """What all checks have found.

    Attributes:
        findings: in the order of the checks.
        not_looked_at: from a check's name to why it had nothing to look at.
        subject: what was examined, in a few words.
        rank: this task's, where several have met; the report is the same on all of them then.
    """

    findings: tuple[DoctorFinding, ...] = ()
    not_looked_at: dict[str, str] = field(default_factory=dict)
    subject: str = ""
    rank: int | None = None

    def count(self, severity: str) -> int:
        """How many findings are of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def exit_code(self, *, strict: bool = False) -> int:
        """0 where there is no error (`strict`: nor a warning), else 1."""
        bad = self.count("error") + (self.count("warning") if strict else 0)
        return 1 if bad else 0

    def to_dict(self) -> dict[str, Any]:
        """One document."""
        return {
            "subject": self.subject,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.to_dict() for finding in self.findings],
            "not_looked_at": dict(self.not_looked_at),
        }

    def __str__(self) -> str:
        lines = [f"doctor: {self.subject}"] if self.subject else []
        for finding in self.findings:
            lines += _told(finding)
        if self.not_looked_at:
            by_reason: dict[str, list[str]] = {}
            for name, reason in self.not_looked_at.items():
                by_reason.setdefault(reason, []).append(name)
            told = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
            lines += textwrap.wrap(f"not looked at: {told}", _WIDTH, subsequent_indent="  ")
        counts = [_counted(self.count(severity), severity) for severity in ("error", "warning") if self.count(severity)]
        lines.append(", ".join(counts) if counts else "nothing is wrong, as far as was looked")
        return "\n".join(lines)


def merged(findings: Iterable[tuple[str, Sequence[DoctorFinding]]]) -> tuple[DoctorFinding, ...]:
    """The findings of several tasks as one list: what several have found stands there once, with their names.

    What all have found bears no name. Where all is well, and each task says so in words of its own, one is told.

    Args:
        findings: pairs of a task's name and what it has found.
    """
    every = list(findings)
    found: dict[DoctorFinding, list[str]] = {}
    for task, of_task in every:
        for finding in of_task:
            told = found.setdefault(dataclasses.replace(finding, tasks=()), [])
            if task not in told:
                told.append(task)
    whole = [
        dataclasses.replace(finding, tasks=() if len(tasks) == len(every) else tuple(tasks))
        for finding, tasks in found.items()
    ]
    return tuple(_likewise(whole))


def _likewise(findings: Sequence[DoctorFinding]) -> Iterator[DoctorFinding]:
    """One for each check in the place of those that say that all is well on some of the tasks."""
    well: dict[str, set[str]] = {}
    for finding in findings:
        if finding.severity == "ok" and finding.tasks:
            well.setdefault(finding.check, set()).update(finding.tasks)
    for finding in findings:
        if finding.severity != "ok" or not finding.tasks:
            yield finding
        elif finding.check in well:
            others = len(well.pop(finding.check) - set(finding.tasks))
            more = f"; and likewise on {others} other task{'s'[: others != 1]}" if others else ""
            yield dataclasses.replace(finding, what=finding.what + more)


def _told(finding: DoctorFinding) -> list[str]:
    head = f"{finding.severity:<8} {finding.check:<12} "
    where = f"[{', '.join(finding.tasks)}] " if finding.tasks else ""
    indent = " " * len(head)
    lines = textwrap.wrap(where + finding.what, _WIDTH - len(head), break_long_words=False, break_on_hyphens=False)
    lines = [head + lines[0], *(indent + line for line in lines[1:])]
    for name, text in (("why", finding.why), ("hint", finding.hint)):
        if text:
            lines += textwrap.wrap(
                f"{name}: {text}",
                _WIDTH,
                initial_indent=indent + "  ",
                subsequent_indent=indent + "    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s'[: number != 1]}"
