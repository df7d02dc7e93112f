"""Worker processes that read programs."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from estimator_pipeline.migrate.code.analysis.files import SourceFile

__all__ = ["Event", "Processes"]


class Event(NamedTuple):
    """A message of a worker process: files read since the last message, or the answer.

    With neither, the process has ended.
    """

    job: int
    ticks: int
    answer: dict[str, Any] | None


class Processes:
    """Worker processes, which are killed at the end of the `with` block, also after an interrupt."""

    def __init__(self, count: int, first: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "estimator_pipeline.migrate.code.repository.subprocess_main"]
        # The import path of this process, so that the workers import the same package.
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path)}
        self._all = [
            # In a new session a process does not receive the terminal's interrupt: `__exit__` kills it.
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
                             start_new_session=True)
            for _ in range(count)
        ]  # fmt: skip
        self._first: dict[str, Any] | None = first

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()

    def each(self, jobs: Sequence[list[SourceFile]], known: Callable[[], dict[str, Any]]) -> Iterator[Event]:
        """Give jobs to idle processes and yield their events until all jobs are done.

        Args:
            known: returns the facts of the other programs when a job starts.
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
                    _write(process, {"sources": [source.document() for source in jobs[job]], "known": known()})
                    assert process.stdout is not None
                    for line in process.stdout:
                        message = json.loads(line)
                        events.put(Event(job, message.get("ticks", 0), message.get("answer")))
                        if "answer" in message:
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
