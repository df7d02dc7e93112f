"""What a task writes to its progress file of its training's start and failure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.cluster import from_environ as cluster_of
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.progress.error_lines import error_line
from estimator_pipeline.progress.progress_file import from_environ, heartbeat_of

__all__ = ["TaskEvents"]

_RANK = "SLURM_PROCID"


class TaskEvents:
    """The events that name the task, since all tasks of a line of `srun` write to one file.

    Args:
        environ: Of this process.
        task: Its name in the cluster; None: as TF_CONFIG says, if it is set.
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
        if environ.get(_RANK, "").isdigit():
            self._names["rank"] = int(environ[_RANK])

    def started(self, max_steps: int | None) -> None:
        """A training begins, which ends with this global step, if that is known."""
        self._raised = ""
        self._progress.emit("start", **self._names, process=heartbeat_of("").name, max_steps=max_steps)

    def raised(self, error: BaseException | str, *, echo: bool = False) -> None:
        """A training has ended with an exception, which the program may catch.

        Args:
            error: The exception, or what there is to say of it.
            echo: Whether it comes of another task's failure.
        """
        line = error if isinstance(error, str) else error_line(error)
        # On its way out it comes by several that tell of it, the first of them in time.
        if line != self._raised:
            self._raised = line
            self._progress.emit("raised", **self._names, error=line, echo=echo)

    def ended(self, error: BaseException, **fields: Any) -> None:
        """The process ends by an exception.

        Args:
            error: The exception.
            **fields: More fields of the event `end`: status, caused_by, refusal.
        """
        self._progress.emit("end", **self._names, error=error_line(error), **fields)
