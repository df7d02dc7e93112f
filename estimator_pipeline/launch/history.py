"""What a supervisor did, to be read afterwards: `events.jsonl`, one JSON object a line, and `summary.json`.

| event | fields beside `time` and `attempt` |
| --- | --- |
| attempt_started | run_id, log_dir |
| first_step | task, step, from_step; lost: seconds since the failure before |
| failed, hung, diverged, preempted | task (the one that failed first), exit_code, what, error, step, checkpoint |
| attempt_ended | reason, seconds, step, checkpoint |
| restart_in | seconds, checkpoint, why |
| done | attempts, seconds |
| gave_up | attempts, seconds, why |
| interrupted, timeout | attempts, seconds |

A field that is not known is null. Lines are appended whole; a folder that is used again holds the events of both runs.
What a full disk or a kill has left of an event is a line of its own, which `read_events` leaves out.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimator_pipeline.utils import durable_files as durable

__all__ = ["EVENTS_FILE", "SUMMARY_FILE", "Attempt", "History", "attempts_text", "read_events"]

EVENTS_FILE = "events.jsonl"
SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a job.

    Attributes:
        number: From 1.
        run_id: Its own.
        log_dir: Where its logs are.
        reason: Why it ended, as in `outcome.LaunchOutcome`.
        why: The same for people.
        seconds: How long it took.
        from_step: The step that training went on from; None where no step was told.
        step: The last step that was told.
        checkpoint: The step of the last checkpoint that was told.
        lost: Seconds from the failure before to the first step of this attempt; None for the first attempt, and for
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
        """As a JSON document."""
        lost = None if self.lost is None else round(self.lost, 3)
        return {**self.__dict__, "log_dir": str(self.log_dir), "seconds": round(self.seconds, 3), "lost": lost}


class History:
    """Appends to `events.jsonl`. Never raises for the file's sake: the job matters more.

    Args:
        folder: Where the file is, which need not be there yet. A line that breaks off in it, of a supervisor that was
            killed, ends there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._torn = _breaks_off(folder / EVENTS_FILE)

    def tell(self, event: str, *, attempt: int, **fields: Any) -> None:
        """Append one event."""
        document = {"time": round(time.time(), 3), "attempt": attempt, "event": event, **fields}
        line = json.dumps(document, default=str).encode() + b"\n"
        if self._torn:
            # What a full disk left of the event before is a line of its own.
            line = b"\n" + line
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            target = os.open(self.folder / EVENTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                # A single write, so that a reader sees a whole line.
                self._torn = os.write(target, line) < len(line)
            finally:
                os.close(target)

    def summarise(self, document: dict[str, Any]) -> str | None:
        """Write `summary.json`, whole or not at all.

        Returns:
            Why it could not be written, else None. Nothing of it is left then.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            durable.write(self.folder / SUMMARY_FILE, json.dumps(document, indent=2, default=str).encode() + b"\n")
        except OSError as error:
            return error.strerror or str(error)
        return None


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events that a folder holds; none where there is no history.

    A line that breaks off, and the last one while it is being written, is left out.

    Args:
        folder: Of the history.
    """
    try:
        text = (folder / EVENTS_FILE).read_text(errors="replace")
    except OSError:
        return []
    found = []
    for line in text.split("\n"):
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                found.append(event)
    return found


def _breaks_off(path: Path) -> bool:
    """Whether the last line of a file is not a whole one."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    return False


def attempts_text(attempts: Sequence[Attempt]) -> str:
    """The attempts for people, one a line."""
    lines = []
    for one in attempts:
        parts = [f"attempt {one.number}: {one.why}"]
        if one.from_step is not None:
            parts.append(f"trained from step {one.from_step}")
        if one.step is not None:
            parts.append(f"came to step {one.step}")
        if one.checkpoint is not None:
            parts.append(f"checkpoint {one.checkpoint}")
        if one.lost is not None:
            parts.append(f"{one.lost:.1f} s lost before it")
        lines.append(", ".join([*parts, f"{one.seconds:.1f} s"]))
    return "\n".join(lines)
