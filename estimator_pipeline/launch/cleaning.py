"""Removal of old logs, submissions and attempts.

They are searched below a folder that contains model directories:

    MODEL_DIR/logs/RUN_ID               the logs of a `launch`, with its resolved job and its attempts
    MODEL_DIR/slurm/TIME-ID             a submission: script, job file, logs, runs
    MODEL_DIR/slurm/TIME-ID/run-N       all runs but the newest of a submission that is kept

Checkpoints, exports, evaluations, results and ledgers are kept, and so are files that may be in use.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from estimator_pipeline.launch.batch.runs import runs_of
from estimator_pipeline.launch.batch.submission import RECORD, SCHEDULERS
from estimator_pipeline.launch.local import orphan_guard as guard
from estimator_pipeline.launch.local.record import read_launch
from estimator_pipeline.launch.supervisor.supervisor import attempt_run_id

__all__ = ["Leftover", "find", "remove"]

_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")
# Depth of the search for model directories.
_DEEPEST = 4
_TITLES = {"slurm": "Slurm", "pbs": "PBS"}
# A folder that changed within this time may be in use, also on a different machine.
_IN_USE_SECS = 3600.0


@dataclass(frozen=True)
class Leftover:
    """A folder, or a file of the cache, that can be removed.

    Attributes:
        path: Its path.
        kind: "logs of a launch", "submission to Slurm" or "submission to PBS", "run before the newest", "table in the
            cache".
        size: The size of its content in bytes.
        changed: The latest change in it, in seconds since 1970.
    """

    path: Path
    kind: str
    size: int
    changed: float


def find(
    folder: Path, *, keep: int, older_than: float, in_use: Callable[[Path], bool] = lambda submission: False
) -> list[Leftover]:
    """Find the folders that can be removed, the largest first.

    Args:
        folder: The folder to search, four levels deep. Links are not followed.
        keep: The number of newest folders of each kind to keep in each model directory.
        older_than: The minimum age in seconds since the last change.
        in_use: Returns whether the job of a submission has not ended yet.
    """
    leftovers: list[Leftover] = []
    for place in _folders(folder):
        if place.name == "logs":
            launches = [_measure(logs, "logs of a launch") for logs in _children(place) if _RUN_ID.fullmatch(logs.name)]
            leftovers += [launch for launch in _all_but(launches, keep) if not _runs(launch.path)]
        elif place.name in SCHEDULERS:
            records = [child for child in _children(place) if (child / RECORD).is_file()]
            submissions = [_measure(record, f"submission to {_TITLES[place.name]}") for record in records]
            removable = [submission for submission in _all_but(submissions, keep) if not in_use(submission.path)]
            leftovers += removable
            for submission in submissions:
                if submission not in removable:
                    leftovers += [_measure(run, "run before the newest") for run in runs_of(submission.path)[:-1]]
    limit = time.time() - max(older_than, _IN_USE_SECS)
    old = [leftover for leftover in leftovers if leftover.changed < limit]
    return sorted(old, key=lambda leftover: leftover.size, reverse=True)


def remove(leftovers: Sequence[Leftover]) -> list[tuple[Leftover, OSError]]:
    """Remove folders and files; return those that could not be removed completely, with the error of each."""
    failed = []
    for leftover in leftovers:
        try:
            if leftover.path.is_dir():
                shutil.rmtree(leftover.path)
            else:
                leftover.path.unlink()
        except OSError as error:
            failed.append((leftover, error))
    return failed


def _folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    yield folder
    if depth <= _DEEPEST and folder.name not in ("logs", *SCHEDULERS):
        for child in _children(folder):
            yield from _folders(child, depth + 1)


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _runs(logs: Path) -> bool:
    """Return whether a process of a launch, in any attempt, runs on this machine."""
    attempts, run_id = len(list(logs.glob("attempt-*"))) or 1, read_launch(logs).run_id or logs.name
    return any(guard.survivors(attempt_run_id(run_id, number), []) for number in range(1, attempts + 1))


def _all_but(leftovers: list[Leftover], keep: int) -> list[Leftover]:
    ordered = sorted(leftovers, key=lambda leftover: leftover.path.name, reverse=True)
    return ordered[keep:]


def _measure(path: Path, kind: str) -> Leftover:
    size, changed = 0, 0.0
    for base, _, names in os.walk(path):
        for name in (".", *names):
            try:
                stat = os.lstat(os.path.join(base, name))
            except OSError:
                continue
            size += stat.st_blocks * 512
            changed = max(changed, stat.st_mtime)
    return Leftover(path, kind, size, changed)
