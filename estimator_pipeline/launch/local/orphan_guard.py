"""Cleanup of processes that a launch left running; also the guard script.

The launcher starts one guard beside its tasks, by path with `python -I -S`:

    python -I -S orphan_guard.py RUN_ID

It reads process group ids, one per line, from a pipe whose other end only the launcher holds. A launcher that exits
normally writes "done" first. If the pipe closes without it, the launcher was killed: the guard then kills the groups
and every process with the run id in its environment. This includes grandchildren that started a new session, which the
kernel's parent-death signal (`exec_shim.py`) does not reach.

Standard library only, since it runs without site packages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection

RUN_ID_VARIABLE = "ESTIMATOR_PIPELINE_RUN_ID"
# Marks a supervised command: there the run id is the job's, and tasks on other machines have the same.
SUPERVISOR_VARIABLE = "ESTIMATOR_PIPELINE_SUPERVISOR"
MARKS = (RUN_ID_VARIABLE, SUPERVISOR_VARIABLE)


def survivors(run_id: str, groups: Collection[int]) -> list[int]:
    """Return the ids of a launch's running processes, by its run id in their environment or their process group.

    Without zombies and this process. Empty on a system without /proc.
    """
    if not os.path.isdir("/proc/self"):
        return []
    marks = {f"{name}={run_id}".encode() for name in MARKS}
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # After the name in brackets, which may hold spaces and brackets: state, parent, group.
                state, _, group = stat.read().rpartition(b")")[2].split()[:3]
            if state in (b"Z", b"X"):
                continue
            if int(group) in groups:
                pids.append(int(name))
                continue
            with open(f"/proc/{name}/environ", "rb") as environ:
                if not marks.isdisjoint(environ.read().split(b"\0")):
                    pids.append(int(name))
        except (OSError, ValueError):
            continue  # ended in the meantime, or another user's
    return pids


def send(pids: Collection[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def send_to_groups(groups: Collection[int], number: int) -> None:
    """Send a signal to each process group that still exists."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def kill_all(run_id: str, groups: Collection[int], *, seconds: float = 10.0) -> list[int]:
    """Kill every process of a launch (see `survivors`), and repeat until none is left or the time is over.

    One pass is not enough, since a process may fork between the scan and the kill. Return those that still run: the
    kernel cannot always end a process at once.
    """
    deadline = time.monotonic() + seconds
    while True:
        send_to_groups(groups, signal.SIGKILL)
        left = survivors(run_id, groups)
        if not left or time.monotonic() > deadline:
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.02)


def main(arguments: list[str]) -> None:
    """Wait until the launcher writes "done" or its end of the pipe closes."""
    (run_id,) = arguments
    groups: set[int] = set()
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.add(int(line))
    kill_all(run_id, groups)


if __name__ == "__main__":
    main(sys.argv[1:])
