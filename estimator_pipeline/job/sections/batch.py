"""Fields that the sections `slurm` and `pbs` of a job file share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from estimator_pipeline.job.base import Problem, Section

__all__ = ["BatchSection", "Count", "Role", "Text", "Value", "as_text", "resources_of"]

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Role = Literal["chief", "worker", "ps", "evaluator"]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def as_text(value: Any) -> Any:
    """Convert a number or boolean to text for the shell; pydantic checks everything else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Value = Annotated[str, BeforeValidator(as_text)]


class BatchSection(Section):
    """Options of a submitted batch script.

    Fields:
        job_name: Name in the queue. null: the job's name.
        account: Account.
        dependency: Dependency of the job: `"afterok:1234"`.
        signal_seconds: Seconds before the time limit at which tasks are asked to stop with a checkpoint.
        max_requeues: Maximum number of requeues after the time limit or a preemption.
        max_restarts: Maximum restarts in place in a row without progress. See docs/guides/restarts.md.
        step_timeout: Seconds without a step (five times as many for the first, at least 1800) after which the job
            counts as hung and is restarted. null: never. See docs/guides/restarts.md.
        metrics_dir: Directory of node_exporter's textfile collector on the first node; the supervisor writes
            SCHEDULER-JOBID.prom there. See docs/guides/restarts.md.
        setup: Bash lines before the tasks start: `module load ...`, `source venv/bin/activate`. See
            docs/guides/slurm.md.
        teardown: Shell lines after the tasks end, in any case. Their exit code is ignored.
        env: Environment variables of all tasks.
        command: Command for estimator-pipeline, such as `apptainer exec image.sif estimator-pipeline`. null: the Python
            that submits.
        mail_user: Recipient of mail.
        dir: Directory of scripts, logs and records of submissions, on a shared file system. null: `slurm` or `pbs` in
            the model directory.
    """

    job_name: Text | None = None
    account: Text | None = None
    dependency: Text | None = None
    signal_seconds: Annotated[int, Field(ge=30, le=65535)] = 120
    max_requeues: Annotated[int, Field(ge=0)] = 100
    max_restarts: Annotated[int, Field(ge=0)] = 3
    step_timeout: Annotated[float, Field(gt=0)] | None = None
    metrics_dir: Text | None = None
    setup: list[Text] = []
    teardown: list[Text] = []
    env: dict[str, Value] = {}
    command: Text | None = None
    mail_user: Text | None = None
    dir: Text | None = None

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                yield Problem(
                    ("env", name),
                    "this is not the name of a variable.",
                    f"{name!r}; allowed: letters, digits and underscores",
                    "rename it.",
                    code="job/bad-value",
                )


def resources_of(section: Section, resources: type[Section]) -> dict[str, Any]:
    """Return the fields of this class that a section of it sets."""
    fields = {name: getattr(section, name) for name in resources.model_fields}
    return {name: value for name, value in fields.items() if value is not None}
