"""The stages of a task before its first step, and how far a long one is: in its log, and in its progress file."""

from __future__ import annotations

import time
from collections.abc import Callable

from estimator_pipeline.progress.progress_file import ProgressWriter
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.remaining_time import time_text

__all__ = ["LongStep", "reporter_of"]

_EVERY_SECS = 5.0


def reporter_of(progress: ProgressWriter) -> Callable[[str], None]:
    """Return a function that writes a line to the log, and shows it in the launcher."""

    def report(text: str) -> None:
        logger.info("%s", text)
        progress.emit("stage", text=text)

    return report


class LongStep:
    """A long step: one line at its beginning, then every few seconds the share that is done and the time left.

    Args:
        text: What is done, such as "reading churn.csv".
        total: The amount of work, in any unit.
        report: Called with each line.
        every: Seconds between two lines.
        first: Whether there is a line at the beginning.
        clock: Returns seconds since any start; for tests.
    """

    def __init__(
        self,
        text: str,
        total: float,
        report: Callable[[str], None],
        *,
        every: float = _EVERY_SECS,
        first: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._text, self._total, self._report, self._every, self._clock = text, total, report, every, clock
        self._began = clock()
        self._due = self._began + every
        if first:
            report(text)

    @property
    def is_due(self) -> bool:
        """Whether the next call of `done` writes a line."""
        return self._clock() >= self._due

    def done(self, amount: float, *, noun: str = "") -> None:
        """Report that so much of the work is done.

        Args:
            amount: In the unit of `total`.
            noun: If given, the line has the amount in this unit, such as "records", before the share.
        """
        if not self.is_due or not 0 < amount < self._total:
            return
        now = self._clock()
        self._due = now + self._every
        counts = f"{amount:,} of {self._total:,} {noun}, " if noun else ""
        left = time_text((now - self._began) * (self._total - amount) / amount)
        self._report(f"{self._text}: {counts}{amount / self._total:.0%}, about {left} left")
