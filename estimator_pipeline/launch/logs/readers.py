"""Readers of log files that grow, of all tasks of a job."""

from __future__ import annotations

import abc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from estimator_pipeline.progress.progress_file import Tail

if TYPE_CHECKING:
    from estimator_pipeline.launch.scheduler import LogRequest

__all__ = ["JobLogs"]

_POLL_SECS = 1.0
# After every third poll the scheduler is asked whether the job has ended.
_ASK_EVERY = 3


class JobLogs(abc.ABC):
    """Reader that follows the log files of a job.

    Args:
        last: The number of lines of each file in the first read, without lines of earlier runs; None for all lines of
            all runs.
    """

    def __init__(self, *, last: int | None = None) -> None:
        self._last = last
        self._tails: dict[Path, Tail] = {}
        self._looked = False

    @abc.abstractmethod
    def files(self) -> Iterator[tuple[Path, str, bool]]:
        """Iterate over the files: path, label, and whether it belongs to the newest run. They may not exist yet."""

    def read(self, *, whole: bool = True) -> Iterator[tuple[str, str]]:
        """Return the new lines as pairs (label, line).

        Args:
            whole: Whether to return the last line only when it is complete.
        """
        for path, label, newest in self.files():
            tail = self._tails.setdefault(path, Tail(path))
            # A line of a progress bar has several, which end in a carriage return.
            lines = [part for line in tail.lines(whole=whole) for part in line.splitlines() or [""]]
            if not self._looked and self._last is not None:
                lines = lines[-self._last :] if newest and self._last else []
            yield from ((label, line) for line in lines)
        self._looked = True

    def show(self, request: LogRequest, labels: Sequence[str], *, has_ended: Callable[[], bool]) -> None:
        """Write the lines that are requested; until the job has ended, if it is followed."""
        write = request.show(labels)

        def write_new(*, whole: bool) -> None:
            for label, line in self.read(whole=whole):
                write(label, line)

        write_new(whole=request.follow)
        for polls in itertools.count() if request.follow else ():
            ended = polls % _ASK_EVERY == 0 and has_ended()
            write_new(whole=not ended)
            if ended:
                return
            time.sleep(_POLL_SECS)
