"""Findings and their report, as text, as JSON and as an exit code."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.errors import PipelineError

__all__ = [
    "SEVERITIES",
    "DoctorFinding",
    "DoctorReport",
    "CheckSkipped",
    "error",
    "info",
    "merged",
    "of_error",
    "ok",
    "warning",
]

SEVERITIES = ("ok", "info", "warning", "error")
"""From best to worst. "info" is good to know; "warning" may cost time or results; with "error" the job will fail, hang
or produce wrong results."""
_WIDTH = 110


@dataclass(frozen=True)
class DoctorFinding:
    """One result of a check.

    Attributes:
        severity: One of `SEVERITIES`.
        message: What was checked and found, with the values; the key "what" in JSON.
        why: Why it matters; empty for "ok".
        hint: What to change; empty for "ok".
        check: The check's name, set by `examine`.
        code: The code of the error that the job would raise, if any.
        tasks: The tasks that report it, if several tasks were examined.
    """

    severity: str
    message: str
    why: str = ""
    hint: str = ""
    check: str = ""
    code: str = ""
    tasks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a mapping that `json.dumps` accepts."""
        fields = {"what" if name == "message" else name: value for name, value in dataclasses.asdict(self).items()}
        return {**fields, "tasks": list(self.tasks)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> DoctorFinding:
        """Return the finding that `to_dict` wrote, without its tasks."""
        fields = {"message" if name == "what" else name: value for name, value in document.items()}
        return cls(**{**fields, "tasks": ()})


class CheckSkipped(Exception):
    """Raised by a check that does not apply; the text is the reason."""


def ok(message: str) -> DoctorFinding:
    """Return a finding of a check that passed."""
    return DoctorFinding("ok", message)


def info(message: str, why: str = "", hint: str = "") -> DoctorFinding:
    """Return a finding that is good to know."""
    return DoctorFinding("info", message, why, hint)


def warning(message: str, why: str, hint: str) -> DoctorFinding:
    """Return a finding that may cost time or results."""
    return DoctorFinding("warning", message, why, hint)


def error(message: str, why: str, hint: str, *, code: str = "") -> DoctorFinding:
    """Return a finding with which the job will fail, hang or produce wrong results."""
    return DoctorFinding("error", message, why, hint, code=code)


def of_error(caught: PipelineError, why: str, *, severity: str = "error") -> DoctorFinding:
    """Return a finding for an error that the job would raise."""
    details = f" ({caught.found})" if caught.found else ""
    return DoctorFinding(
        severity, f"{caught.message.rstrip('.')}{details}", why, caught.hint or "", code=caught.code or ""
    )


@dataclass
class DoctorReport:
    """The findings of all checks.

    Attributes:
        findings: In the order of the checks.
        not_looked_at: The names of skipped checks, each with the reason.
        subject: What was examined, in a few words.
        rank: This task's rank if several tasks were compared; all of them then have the same report.
    """

    findings: tuple[DoctorFinding, ...] = ()
    not_looked_at: dict[str, str] = field(default_factory=dict)
    subject: str = ""
    rank: int | None = None

    def count(self, severity: str) -> int:
        """Return the number of findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 1 if there is an error (with `strict`: or a warning), else 0."""
        bad = self.count("error") + (self.count("warning") if strict else 0)
        return 1 if bad else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a mapping that `json.dumps` accepts."""
        return {
            "subject": self.subject,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.to_dict() for finding in self.findings],
            "not_looked_at": dict(self.not_looked_at),
        }

    def __str__(self) -> str:
        lines = [f"doctor: {self.subject}"] if self.subject else []
        for finding in self.findings:
            lines += _format(finding)
        if self.not_looked_at:
            by_reason: dict[str, list[str]] = {}
            for name, reason in self.not_looked_at.items():
                by_reason.setdefault(reason, []).append(name)
            skipped = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
            lines += textwrap.wrap(f"skipped: {skipped}", _WIDTH, subsequent_indent="  ")
        counts = [_counted(self.count(severity), severity) for severity in ("error", "warning") if self.count(severity)]
        lines.append(", ".join(counts) if counts else "no problems found")
        return "\n".join(lines)


def merged(findings: Iterable[tuple[str, Sequence[DoctorFinding]]]) -> tuple[DoctorFinding, ...]:
    """Merge the findings of several tasks; equal findings become one, with the names of its tasks.

    A finding of all tasks has no names. "ok" findings of one check that differ between tasks become one.

    Args:
        findings: Pairs of a task's name and its findings.
    """
    every = list(findings)
    by_finding: dict[DoctorFinding, list[str]] = {}
    for task, of_task in every:
        for finding in of_task:
            names = by_finding.setdefault(dataclasses.replace(finding, tasks=()), [])
            if task not in names:
                names.append(task)
    whole = [
        dataclasses.replace(finding, tasks=() if len(tasks) == len(every) else tuple(tasks))
        for finding, tasks in by_finding.items()
    ]
    return tuple(_likewise(whole))


def _likewise(findings: Sequence[DoctorFinding]) -> Iterator[DoctorFinding]:
    """Keep one "ok" finding per check where some tasks report different ones."""
    well: dict[str, set[str]] = {}
    for finding in findings:
        if finding.severity == "ok" and finding.tasks:
            well.setdefault(finding.check, set()).update(finding.tasks)
    for finding in findings:
        if finding.severity != "ok" or not finding.tasks:
            yield finding
        elif finding.check in well:
            others = len(well.pop(finding.check) - set(finding.tasks))
            more = f"; also ok on {others} other task{'s'[: others != 1]}" if others else ""
            yield dataclasses.replace(finding, message=finding.message + more)


def _format(finding: DoctorFinding) -> list[str]:
    head = f"{finding.severity:<8} {finding.check:<12} "
    where = f"[{', '.join(finding.tasks)}] " if finding.tasks else ""
    indent = " " * len(head)
    lines = textwrap.wrap(where + finding.message, _WIDTH - len(head), break_long_words=False, break_on_hyphens=False)
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
