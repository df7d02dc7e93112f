"""History of a supervised job: `events.jsonl` and `summary.json`.

| event | fields beside `time` and `attempt` |
| --- | --- |
| attempt_started | run_id, log_dir |
| first_step | task, step, from_step; lost: seconds since the previous failure |
| failed, hung, diverged, preempted | task (the one that failed first), exit_code, what, error, step, checkpoint |
| attempt_ended | reason, seconds, step, checkpoint |
| restart_in | seconds, checkpoint, why |
| done | attempts, seconds |
| gave_up | attempts, seconds, why |
| interrupted, timeout | attempts, seconds |

A field that is not known is null. A folder that is used again holds the events of both runs. Lines are appended whole;
a line that a full disk or a kill has cut off is skipped by `read_events`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator_pipeline.utils import durable_files as durable

__all__ = ["EVENTS_FILE", "SUMMARY_FILE", "Attempt", "History", "attempts_text", "last_failed", "read_events"]

EVENTS_FILE = "events.jsonl"
SUMMARY_FILE = "summary.json"
_FAILURES = ("failed", "hung", "diverged")


@dataclass(frozen=True)
class Attempt:
    """One attempt to run a job.

    Attributes:
        number: The number, from 1.
        run_id: The attempt's run id.
        log_dir: The folder of its logs.
        reason: Why it ended, as in `outcome.LaunchOutcome`.
        why: The reason as text.
        seconds: Its duration.
        from_step: The step that training resumed from; None if no step was reported.
        step: The last reported step.
        checkpoint: The step of the last reported checkpoint.
        lost: Seconds from the previous failure to the first step of this attempt; None for the first attempt, and for
            one that made no step.
    """

    number: int
    run_id: str
    log_dir: Path
    reason: str
    why: str
    seconds: float
    from_step: int | None = None
    step: int | None = None
    checkpoint: int | None = None
    lost: float | None = None

    def document(self) -> dict[str, Any]:
        """Return the attempt as a JSON document."""
        lost = None if self.lost is None else round(self.lost, 3)
        return {**self.__dict__, "log_dir": str(self.log_dir), "seconds": round(self.seconds, 3), "lost": lost}


class History:
    """Writer of `events.jsonl`.

    It ignores errors of the file, which must not end the job.

    Args:
        folder: The folder of the file. It may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, event: str, *, attempt: int, **fields: Any) -> None:
        """Append one event."""
        document = {"time": round(time.time(), 3), "attempt": attempt, "event": event, **fields}
        line = json.dumps(document, default=str).encode() + b"\n"
        if _ends_mid_line(self.folder / EVENTS_FILE):  # cut off by a full disk or a kill
            line = b"\n" + line
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            target = os.open(self.folder / EVENTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(target, line)  # at once, so that a reader sees a whole line
            finally:
                os.close(target)

    def write_summary(self, document: dict[str, Any]) -> str | None:
        """Write `summary.json` atomically; return the error if it could not be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            durable.write(self.folder / SUMMARY_FILE, json.dumps(document, indent=2, default=str).encode() + b"\n")
        except OSError as error:
            return error.strerror or str(error)
        return None


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the events of the history in a folder, without incomplete lines; an empty list without a history."""
    try:
        text = (folder / EVENTS_FILE).read_text(errors="replace")
    except OSError:
        return []
    events = []
    for line in text.split("\n"):
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events


def last_failed(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the last event of a failed task."""
    return next((event for event in reversed(events) if event.get("event") in _FAILURES), None)


def _ends_mid_line(path: Path) -> bool:
    """Return whether the last line of a file is incomplete."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    return False


def attempts_text(attempts: Sequence[Attempt]) -> str:
    """Format attempts as text, one per line."""
    lines = []
    for attempt in attempts:
        parts = [f"attempt {attempt.number}: {attempt.why}"]
        if attempt.from_step is not None:
            parts.append(f"trained from step {attempt.from_step}")
        if attempt.step is not None:
            parts.append(f"reached step {attempt.step}")
        if attempt.checkpoint is not None:
            parts.append(f"checkpoint {attempt.checkpoint}")
        if attempt.lost is not None:
            parts.append(f"{attempt.lost:.1f} s lost before it")
        lines.append(", ".join([*parts, f"{attempt.seconds:.1f} s"]))
    return "\n".join(lines)
