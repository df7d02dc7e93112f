"""Progress events of a training's start and failure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.cluster import from_environ as cluster_of
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.progress.error_lines import error_line
from estimator_pipeline.progress.progress_file import from_environ, heartbeat_of

__all__ = ["TaskEvents"]

# Of srun, and of the starter of `submit pbs`.
_RANKS = ("SLURM_PROCID", "ESTIMATOR_PIPELINE_RANK")


class TaskEvents:
    """Writer of the events that name the task.

    All tasks of an `srun` write to one file.

    Args:
        environ: The environment of this process.
        task: The task's name in the cluster; None for the one in TF_CONFIG, if it is set.
    """

    def __init__(self, environ: Mapping[str, str], task: str | None = None) -> None:
        self._progress = from_environ(environ)
        self._names: dict[str, Any] = {}
        self._raised = ""
        with contextlib.suppress(PipelineError):
            if task is None and environ.get("TF_CONFIG"):
                task = str(cluster_of(environ).task)
        if task is not None:
            self._names["task"] = task
        rank = next((environ[name] for name in _RANKS if name in environ), "")
        if rank.isdigit():
            self._names["rank"] = int(rank)

    def started(self, max_steps: int | None) -> None:
        """Write the start of a training, with the global step at which it ends, if known."""
        self._raised = ""
        self._progress.emit("start", **self._names, process=heartbeat_of("").name, max_steps=max_steps)

    def raised(self, error: BaseException | str, *, echo: bool = False) -> None:
        """Write that a training has ended with an exception, which the program may catch.

        Args:
            error: The exception, or its description.
            echo: Whether it is a consequence of a different task's failure.
        """
        line = error if isinstance(error, str) else error_line(error)
        # Several handlers report the exception as it propagates; the first report counts.
        if line != self._raised:
            self._raised = line
            self._progress.emit("raised", **self._names, error=line, echo=echo)

    def warned(self, text: str) -> None:
        """Write a warning for the user."""
        self._progress.emit("warning", **self._names, text=text)

    def ended(self, error: BaseException, **fields: Any) -> None:
        """Write that the process ends with an exception.

        Args:
            error: The exception.
            **fields: More fields of the event `end`: status, caused_by, refusal.
        """
        self._progress.emit("end", **self._names, error=error_line(error), **fields)
