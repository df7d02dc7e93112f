"""Processes that read programs, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from estimator_pipeline.migrate.code.analysis.files import SourceFile

__all__ = ["Event", "Processes"]


class Event(NamedTuple):
    """What a process says of a job: so many more files read, or its answer. Neither: the process has ended."""

    job: int
    ticks: int
    answer: dict[str, Any] | None


class Processes:
    """Some workers; at the end of the `with` block, an interrupt included, none of them runs any more."""

    def __init__(self, count: int, first: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "estimator_pipeline.migrate.code.repository.subprocess_main"]
        # As this process found it, wherever it is started from.
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(one or os.getcwd() for one in sys.path)}
        self._all = [
            # In a session of its own a process does not get the terminal's interrupt: it is ended here.
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
                             start_new_session=True)
            for _ in range(count)
        ]  # fmt: skip
        self._first: dict[str, Any] | None = first

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for one in self._all:
            one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()

    def each(self, jobs: Sequence[list[SourceFile]], known: Callable[[], dict[str, Any]]) -> Iterator[Event]:
        """Give jobs to whoever is free, and what is said of them, until all are done.

        Args:
            known: what is known of the other programs when a job begins.
        """
        events: queue.Queue[Event] = queue.Queue()
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for job in range(len(jobs)):
            waiting.put(job)

        def serve(process: subprocess.Popen[str], first: dict[str, Any] | None) -> None:
            with contextlib.suppress(OSError, ValueError):
                if first is not None:
                    _write(process, first)
            while True:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    _write(process, {"sources": [one.document() for one in jobs[job]], "known": known()})
                    assert process.stdout is not None
                    for line in process.stdout:
                        said = json.loads(line)
                        events.put(Event(job, said.get("ticks", 0), said.get("answer")))
                        if "answer" in said:
                            break
                    else:
                        events.put(Event(job, 0, None))
                except (OSError, ValueError):
                    events.put(Event(job, 0, None))

        for process in self._all:
            threading.Thread(target=serve, args=(process, self._first), daemon=True).start()
        self._first = None
        done = 0
        while done < len(jobs):
            event = events.get()
            done += not event.ticks
            yield event


def _write(process: subprocess.Popen[str], document: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(document) + "\n")
    process.stdin.flush()
