"""The time limit of a wait that polls."""

from __future__ import annotations

import time
from collections.abc import Iterator

__all__ = ["Deadline"]

_GROWTH = 1.3


class Deadline:
    """A time limit, from now.

    Args:
        seconds: Seconds until it; may be infinite.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._begun = time.monotonic()
        self._end = self._begun + seconds

    def extend(self, seconds: float) -> None:
        """Move the time limit to so many seconds from now, unless it is later."""
        self._end = max(self._end, time.monotonic() + seconds)

    def polls(self, pause: float, *, longest: float = 0.0) -> Iterator[float]:
        """Yield the seconds waited so far, at least once, with pauses that grow up to `longest`, until the limit."""
        while True:
            yield time.monotonic() - self._begun
            left = self._end - time.monotonic()
            if left < 0:
                return
            time.sleep(min(pause, left + 0.01))
            pause = max(pause, min(_GROWTH * pause, longest))
