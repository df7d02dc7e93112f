"""The programs that a repository's process reads, in a process of their own.

    python -m estimator_pipeline.migrate.code.repository.subprocess_main

Asked by a line of JSON on standard input, it answers by one on standard output. It ends with its standard input, and
so with the process that asks.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from typing import Any

from estimator_pipeline.migrate.code import converter, scanner
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.repository.worker import Worker, quiet_collector

PARTS = {"scan": scanner.scan_part, "convert": converter.convert_part}
_TICK_SECS = 0.2


def main() -> None:
    """Answers until standard input ends."""
    threading.Thread(target=_end_with_the_asking_process, daemon=True).start()
    first = json.loads(sys.stdin.readline())
    worker = Worker(PARTS[first["work"]], first["options"], Modules(first["paths"], first["package"]))
    with quiet_collector():
        for line in sys.stdin:
            job = json.loads(line)
            sources = [SourceFile.of(one) for one in job["sources"]]
            _say({"answer": worker.answer(sources, job["known"], _Ticks())})


class _Ticks:
    """Tells how many files were read, now and then."""

    def __init__(self) -> None:
        self._count, self._last = 0, time.monotonic()

    def __call__(self) -> None:
        self._count += 1
        if time.monotonic() - self._last > _TICK_SECS:
            _say({"ticks": self._count})
            self._count, self._last = 0, time.monotonic()


def _say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _end_with_the_asking_process() -> None:
    """Also in the middle of a program, for which nobody waits any more."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    main()
