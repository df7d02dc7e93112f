"""Find and end whatever a launch has left running; as a script, do so when the launcher has vanished.

The launcher starts one guard beside its tasks, by path with `python -I -S`:

    python -I -S guard.py RUN_ID

It reads process group ids, one a line, from a pipe whose other end only the launcher holds. A launcher
that ends properly says "done" first. When the pipe closes without it, the launcher was killed: the guard
then kills the groups and every process that carries the run id in its environment. So grandchildren end
too, even those that have moved to a session of their own, where the kernel's death signal of `shim.py`
does not reach.

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
# The mark of a supervised command: the run id is the job's, which tasks on other machines share.
SUPERVISOR_VARIABLE = "ESTIMATOR_PIPELINE_SUPERVISOR"
MARKS = (RUN_ID_VARIABLE, SUPERVISOR_VARIABLE)


def survivors(run_id: str, groups: Collection[int]) -> list[int]:
    """The living processes of a launch, zombies and this process left out.

    Args:
        run_id: The launch's value of ESTIMATOR_PIPELINE_RUN_ID.
        groups: The process groups of its tasks.

    Returns:
        Process ids. Empty on a system without /proc.
    """
    if not os.path.isdir("/proc/self"):
        return []
    marks = {f"{name}={run_id}".encode() for name in MARKS}
    found = []
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
                found.append(int(name))
                continue
            with open(f"/proc/{name}/environ", "rb") as environ:
                if not marks.isdisjoint(environ.read().split(b"\0")):
                    found.append(int(name))
        except (OSError, ValueError):
            continue  # ended while we looked, or another user's
    return found


def send(pids: Collection[int], number: int) -> None:
    """Send a signal to each process that still is."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def send_to_groups(groups: Collection[int], number: int) -> None:
    """Send a signal to each process group that still is."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def kill_all(run_id: str, groups: Collection[int], *, seconds: float = 10.0) -> list[int]:
    """Kill every process of a launch, again and again until none is found.

    A process may fork between the look and the kill, so one round is not enough.

    Args:
        run_id: The launch's value of ESTIMATOR_PIPELINE_RUN_ID.
        groups: The process groups of its tasks.
        seconds: When to give up, on processes that the kernel cannot end now.

    Returns:
        What is still there: empty, save in that case.
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
    """Wait for the launcher's last word, or for its silence."""
    (run_id,) = arguments
    groups: set[int] = set()
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.add(int(line))
    kill_all(run_id, groups)


if __name__ == "__main__":
    main(sys.argv[1:])
