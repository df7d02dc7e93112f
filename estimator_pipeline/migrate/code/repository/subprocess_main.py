"""The main module of a worker process.

    python -m estimator_pipeline.migrate.code.repository.subprocess_main

Each request is a line of JSON on standard input, each answer a line on standard output. The process exits when its
standard input closes, and thus with its parent process.
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
    """Answer requests until standard input closes."""
    threading.Thread(target=_end_with_the_asking_process, daemon=True).start()
    first = json.loads(sys.stdin.readline())
    worker = Worker(PARTS[first["work"]], first["options"], Modules(first["paths"], first["package"]))
    with quiet_collector():
        for line in sys.stdin:
            job = json.loads(line)
            sources = [SourceFile.of(document) for document in job["sources"]]
            _send({"answer": worker.answer(sources, job["known"], _Ticks())})


class _Ticks:
    """Reports the number of files read, at most every `_TICK_SECS` seconds."""

    def __init__(self) -> None:
        self._count, self._last = 0, time.monotonic()

    def __call__(self) -> None:
        self._count += 1
        if time.monotonic() - self._last > _TICK_SECS:
            _send({"ticks": self._count})
            self._count, self._last = 0, time.monotonic()


def _send(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _end_with_the_asking_process() -> None:
    """Exit when the parent process ends, also in the middle of a program."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    main()
