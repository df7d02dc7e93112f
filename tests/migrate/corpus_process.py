"""Runs programs of the corpus under compat, each in a process of its own that is forked from this one.

    python tests/migrate/corpus_process.py PARALLEL

TensorFlow is imported once, here, and nothing of it is used before the fork: each program finds what
`estimator-pipeline exec` gives it, at a fraction of the price of a start. What to run comes as JSON on standard input,
a list of {"arguments": what comes after `exec`, "folder": working directory, "output": file, "timeout": seconds}; the
last line of standard output is the list of exit codes, null where the time was up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.script_runner import runner


def start(program: dict[str, Any]) -> int:
    """Forks; the child runs the program with its output in the file, and ends without a return to the caller."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        os.chdir(program["folder"])
        output = os.open(program["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        first, *rest = program["arguments"]
        code = runner.run_module(rest[0], rest[1:]) if first == "-m" else runner.run_script(first, rest)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Exit handlers belong to the process that registered them.
        os._exit(code)


def run(programs: list[dict[str, Any]], parallel: int) -> list[int | None]:
    """Exit codes in the order given; `parallel` run at once. Programs whose time is up are killed with their group."""
    waiting = list(enumerate(programs))[::-1]
    running: dict[int, tuple[int, float]] = {}
    codes: list[int | None] = [None] * len(programs)
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                number, program = waiting.pop()
                running[start(program)] = (number, time.monotonic() + program["timeout"])
            for pid, (number, deadline) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[number] = os.waitstatus_to_exitcode(status)
                    del running[pid]
                elif time.monotonic() > deadline:
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    del running[pid]
            time.sleep(0.05)
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return codes


if __name__ == "__main__":
    compat.install()
    # What is sent before the fork is written once.
    sys.stdout.flush()
    found = run(json.load(sys.stdin), int(sys.argv[1]))
    print(json.dumps(found))
