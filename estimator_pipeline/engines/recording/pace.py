"""Time that a worker of several spends per step on its input and on waiting for the others."""

from __future__ import annotations

import statistics
from collections import deque

from estimator_pipeline.progress.progress_file import ProgressWriter

__all__ = ["WorkerPace"]

# Steps sampled per event, one per second: a checkpoint or other processes may slow down a single step.
SAMPLES = 10


class WorkerPace:
    """Reports the medians of a task's sampled steps to the launcher, which identifies the slowest worker."""

    def __init__(self, progress: ProgressWriter, *, task: str) -> None:
        self._progress, self._task = progress, task
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=SAMPLES)
        self._count, self._step = -1, 0

    def step_made(
        self, step: int, seconds: float, *, began: float, ready: float, ended: float, input: float | None = None
    ) -> None:
        """Add a sampled step.

        Args:
            step: The global step.
            seconds: Current seconds per step.
            began: Start of the step, as `time.time()`.
            ready: Time at which this worker's computation was done.
            ended: End of the step.
            input: Time at which its batch was available; None if unknown.
        """
        self._count += 1
        if not self._count:
            # The first sampled step includes the creation of the graph.
            self._step = step
            return
        self._seen.append((seconds, max(0.0, ended - ready), max(0.0, (began if input is None else input) - began)))
        if self._count % SAMPLES == 0:
            names = ("step_ms", "wait_ms", "input_ms")
            medians = (round(1000 * statistics.median(series), 3) for series in zip(*self._seen, strict=True))
            values = dict(zip(names, medians, strict=True))
            self._progress.emit("pace", task=self._task, step=step, steps=step - self._step, **values)
            self._step = step
