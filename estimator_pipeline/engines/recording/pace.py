"""What one of several workers spends its steps with: its input, and the wait for the others."""

from __future__ import annotations

import statistics
from collections import deque

from estimator_pipeline.progress.progress_file import ProgressWriter

__all__ = ["WorkerPace"]

# So many steps are looked at for one word, one a second: a checkpoint or a neighbour on the machine makes a step slow.
SAMPLES = 10


class WorkerPace:
    """Tells the launcher the medians of the last steps that were looked at, which finds who is waited for.

    Args:
        progress: the launcher's file.
        task: whose steps they are.
    """

    def __init__(self, progress: ProgressWriter, *, task: str) -> None:
        self._progress, self._task = progress, task
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=SAMPLES)
        self._count, self._step = -1, 0

    def step_made(
        self, step: int, seconds: float, *, began: float, ready: float, ended: float, input: float | None = None
    ) -> None:
        """A step was looked at.

        Args:
            step: the global step.
            seconds: what each step takes by now.
            began: when it began, as `time.time()` has it.
            ready: when this worker's own part was done.
            ended: when it had ended.
            input: when its batch was there; None where that is not known.
        """
        self._count += 1
        if not self._count:
            # The graph with what is asked for was made in this one.
            self._step = step
            return
        self._seen.append((seconds, max(0.0, ended - ready), max(0.0, (began if input is None else input) - began)))
        if self._count % SAMPLES == 0:
            names = ("step_ms", "wait_ms", "input_ms")
            medians = (round(1000 * statistics.median(one), 3) for one in zip(*self._seen, strict=True))
            told = dict(zip(names, medians, strict=True))
            self._progress.emit("pace", task=self._task, step=step, steps=step - self._step, **told)
            self._step = step
