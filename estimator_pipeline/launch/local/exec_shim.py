"""Script that prepares a task's process and then executes its program.

It is started by its path with `python -I -S`, imports only the standard library and runs about ten milliseconds:

    python -I -S exec_shim.py LAUNCHER_PID CORES COMMAND [ARGS...]

It asks the kernel to kill this process when the launcher dies (Linux), and sets the CPU affinity before the program
counts its CPUs. Both survive `exec`. The launcher cannot do this from outside without a race, and a `preexec_fn` may
deadlock in a process that has threads.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; exit if it is dead.

    Args:
        parent: The launcher's process id. If the launcher died before the request was in place, this process has a
            different parent by now and would never be killed.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def take_cores(cores: str) -> None:
    """Restrict this process to CPUs as in "0,1", or "-" for all that the launcher may use."""
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
    # The interpreter ignores these two at its start, and `exec` keeps ignored signals ignored.
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
