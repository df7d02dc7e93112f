"""What old runs have left that nothing reads any more: logs of `launch`, submissions to Slurm, and their attempts.

Found below a folder, where a person keeps model directories:

    MODEL_DIR/logs/RUN_ID               the logs of a `launch`, with its attempts
    MODEL_DIR/slurm/TIME-ID             a submission: script, job file, logs, runs
    MODEL_DIR/slurm/TIME-ID/run-N       of a submission that stays, the runs before its newest one

Checkpoints, exports, evaluations, results and ledgers are left alone, and so is what may still be in use.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from estimator_pipeline.launch.local import orphan_guard as guard
from estimator_pipeline.launch.slurm.jobs import RECORD
from estimator_pipeline.launch.slurm.logs import runs_of
from estimator_pipeline.launch.supervisor.supervisor import attempt_run_id

__all__ = ["Leftover", "find", "remove"]

_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")
# A model directory may lie so many folders deep.
_DEEPEST = 4
# What has changed so lately may be in use, on another machine as well.
_IN_USE_SECS = 3600.0


@dataclass(frozen=True)
class Leftover:
    """A folder that can go.

    Attributes:
        path: Where it is.
        what: "logs of a launch", "submission to Slurm" or "run before the newest".
        size: Bytes of all that is in it.
        changed: When something in it was last changed, in seconds since 1970.
    """

    path: Path
    what: str
    size: int
    changed: float


def find(
    folder: Path, *, keep: int, older_than: float, in_use: Callable[[Path], bool] = lambda submission: False
) -> list[Leftover]:
    """What can go, the largest first.

    Args:
        folder: Where to look, four levels deep. Links are not followed.
        keep: So many of the newest of each kind stay in each model directory.
        older_than: Seconds since the last change of what can go.
        in_use: Whether the job of a submission has not ended yet.
    """
    found: list[Leftover] = []
    for place in _folders(folder):
        if place.name == "logs":
            launches = [_look(one, "logs of a launch") for one in _children(place) if _RUN_ID.fullmatch(one.name)]
            found += [one for one in _all_but(launches, keep) if not _runs(one.path)]
        elif place.name == "slurm":
            records = [one for one in _children(place) if (one / RECORD).is_file()]
            submissions = [_look(one, "submission to Slurm") for one in records]
            going = [one for one in _all_but(submissions, keep) if not in_use(one.path)]
            found += going
            for one in submissions:
                if one not in going:
                    found += [_look(run, "run before the newest") for run in runs_of(one.path)[:-1]]
    limit = time.time() - max(older_than, _IN_USE_SECS)
    return sorted((one for one in found if one.changed < limit), key=lambda one: one.size, reverse=True)


def remove(leftovers: Sequence[Leftover]) -> list[tuple[Leftover, OSError]]:
    """Removes them.

    Returns:
        Those of which something stays, and why.
    """
    stay = []
    for one in leftovers:
        try:
            shutil.rmtree(one.path)
        except OSError as error:
            stay.append((one, error))
    return stay


def _folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    yield folder
    if depth <= _DEEPEST and folder.name not in ("logs", "slurm"):
        for child in _children(folder):
            yield from _folders(child, depth + 1)


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(one.path) for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _runs(logs: Path) -> bool:
    """Whether a process of a launch lives on this machine; each attempt of it has a run id of its own."""
    attempts = len(list(logs.glob("attempt-*"))) or 1
    return any(guard.survivors(attempt_run_id(logs.name, number), []) for number in range(1, attempts + 1))


def _all_but(leftovers: list[Leftover], keep: int) -> list[Leftover]:
    ordered = sorted(leftovers, key=lambda one: one.path.name, reverse=True)
    return ordered[keep:]


def _look(path: Path, what: str) -> Leftover:
    size, changed = 0, 0.0
    for base, _, names in os.walk(path):
        for name in (".", *names):
            try:
                stat = os.lstat(os.path.join(base, name))
            except OSError:
                continue
            size += stat.st_blocks * 512
            changed = max(changed, stat.st_mtime)
    return Leftover(path, what, size, changed)
