"""The first thing that runs in the process of a launched task; it then becomes the task's program.

It is started by its path with `python -I -S`, so it imports nothing but the standard library and is gone
again within some ten milliseconds:

    python -I -S shim.py LAUNCHER_PID CORES COMMAND [ARGS...]

What it does cannot be done by the launcher from outside without a race, and a `preexec_fn` may deadlock
in a process that has threads: ask the kernel to end this process when the launcher dies (Linux), and take
the task's CPUs before the program counts them. Both are kept across `exec`.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when its parent ends; leave at once if it has ended.

    Args:
        parent: The process id that the launcher had. When it died before the request was in place, the
            parent is another process by now, and nobody would ever end this one.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def take_cores(cores: str) -> None:
    """Run on the named CPUs only.

    Args:
        cores: CPU numbers as in "0,1", or "-" for all that the launcher may use.
    """
    if cores == "-" or not hasattr(os, "sched_setaffinity"):
        return
    try:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    except OSError as error:
        print(f"launch: CPUs {cores} cannot be taken ({error}); running on all", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    """Prepare this process and become the command. Does not return."""
    parent, cores, *command = arguments
    die_with_parent(int(parent))
    take_cores(cores)
    # The interpreter ignores these two at its start, and what is ignored stays ignored across exec.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"launch: {command[0]} cannot be run: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main(sys.argv[1:])
