"""Batch script of a job file: what the schedulers of batch jobs share.

The script starts all tasks by one command under `estimator-pipeline supervise`. The ranks are the chief, the workers,
the parameter servers, the evaluator. A template of each scheduler extends `script.jinja`.

The command stops all tasks when one fails, since tasks that do not communicate with it would not notice. It would do
the same for a task that exits with 75, such as a preempted evaluator before the checkpoint is written; and the tasks
that it stops would exit with 75 too. So here a preempted task creates a file and exits with 0
(`estimator_pipeline.progress.progress_file`).
"""

from __future__ import annotations

import importlib.resources
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.job import Job, dump_job
from estimator_pipeline.job.loading import JOB_FILE
from estimator_pipeline.launch.batch.submission import BatchPlan, Submission

__all__ = ["one_line", "plan_batch"]

# The scheduler ends a job at its time limit; the script needs this time before it for its last steps.
_SHUTDOWN_SECS = 10
# Seconds after `signal_seconds` within which the scheduler reports that the job has ended.
_SLACK_SECS = 30.0
# Number of stops in a row before the first step after which the script gives up.
_MOST_EARLY = 3
_PLURAL = {"worker": "workers", "evaluator": "evaluators", "chief": "chiefs", "ps": "ps"}


def plan_batch(
    job: Job,
    *,
    scheduler: str,
    folder: str,
    working_dir: str,
    command: Sequence[str],
    version: str,
    elements: Sequence[Job] = (),
    has_dependency: bool,
    submit_options: tuple[str, ...] = (),
    **values: Any,
) -> BatchPlan:
    """Build the submission of a job without writing it.

    Args:
        job: The job; for an array, the common part of its elements.
        scheduler: The name of the scheduler: of the section, and of the package with the template.
        folder: The submission's folder, on a file system that all nodes share.
        working_dir: The folder that relative paths of the job refer to.
        command: The command of estimator-pipeline for the supervisor; the section may set a different one for tasks.
        version: The version of this package, for the script's header.
        elements: The jobs of an array.
        has_dependency: Whether the scheduler starts it after a different job.
        submit_options: Options of the command that submits the script, which are not in it.
        values: Further values for the template.
    """
    section = getattr(job, scheduler)
    tasks = tuple(str(task) for task in tasks_of(job.cluster))
    counts = Counter(task.partition(":")[0] for task in tasks)
    counted = ", ".join(f"{count} {_PLURAL[kind] if count > 1 else kind}" for kind, count in counts.items())
    script = _template(scheduler).render(
        scheduler=scheduler,
        title=one_line(job.name),
        tasks=counted + (f"; an array of {len(elements)}" if elements else ""),
        version=version,
        job_file_shown=one_line(f"{folder}/job-N.yaml" if elements else f"{folder}/{JOB_FILE}"),
        order="Ranks: " + ", ".join(f"{rank} {task}" for rank, task in enumerate(tasks)) + ".",
        setup=[shlex.quote(line) for lines in section.setup for line in lines.split("\n")],
        teardown=shlex.quote("\n".join(section.teardown)) if section.teardown else None,
        env=[(name, shlex.quote(value)) for name, value in section.env.items()],
        folder=shlex.quote(folder),
        working_dir=shlex.quote(working_dir),
        array=bool(elements),
        preemption_secs=section.signal_seconds - _SHUTDOWN_SECS,
        grace=section.signal_seconds,
        # It runs on the node of the script, outside of any container.
        command=shlex.join(command),
        max_restarts=section.max_restarts,
        max_requeues=section.max_requeues,
        most_early=_MOST_EARLY,
        metrics=shlex.quote(section.metrics_dir) if section.metrics_dir else None,
        step_timeout=f"{section.step_timeout:g}" if section.step_timeout else None,
        **values,
    )
    files = {f"job-{i}.yaml": _job_file(element) for i, element in enumerate(elements)} or {JOB_FILE: _job_file(job)}
    submission = Submission(
        job_id="",
        folder=Path(folder),
        name=job.name,
        tasks=tasks,
        model_dirs=tuple(_absolute(element.run.model_dir, working_dir) for element in elements or [job]),
        array=len(elements) or None,
        stop_seconds=section.signal_seconds + _SLACK_SECS,
        scheduler=scheduler,
    )
    return BatchPlan(script, files, submission, has_dependency, submit_options)


def one_line(text: str) -> str:
    """Return text without line breaks."""
    return " ".join(text.split("\n"))


def _absolute(model_dir: str, working_dir: str) -> str:
    return model_dir if "://" in model_dir else os.path.join(working_dir, model_dir)


def _job_file(job: Job) -> str:
    """Format the tasks' job file, with the script's signals in an explicit list."""
    explicit = job.run.preemption_signals
    if explicit is not None:
        listed = [*explicit, *(name for name in ("SIGTERM", "SIGUSR1") if name not in explicit)]
        job = job.model_copy(update={"run": job.run.model_copy(update={"preemption_signals": listed})})
    return dump_job(job)


def _template(scheduler: str) -> jinja2.Template:
    launch = importlib.resources.files("estimator_pipeline.launch")
    names = ("batch", scheduler)
    loader = jinja2.DictLoader(
        {f"{name}.jinja": (launch / name / "script.jinja").read_text(encoding="utf-8") for name in names}
    )
    environment = jinja2.Environment(
        loader=loader,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(f"{scheduler}.jinja")
