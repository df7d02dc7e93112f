"""No subcommand: how `train` and `exec` take the part that a scheduler has given this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from estimator_pipeline.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from estimator_pipeline.cluster.resolution import Resolved
    from estimator_pipeline.cluster.roles import ClusterShape as AnyShape
    from estimator_pipeline.launch import LaunchShape

__all__ = ["enter", "parse_shape", "refuse_tasks_apart"]

# Ports stay bound until the process ends: what holds them must not be collected.
_kept: list[Resolved] = []


def enter(
    environ: MutableMapping[str, str],
    shape: AnyShape,
    *,
    environment: str | None = None,
    ports: str = "auto",
    directory: str | None = None,
    dialect: str = "canonical",
    whole: bool = True,
) -> None:
    """Writes TF_CONFIG and what goes with it into `environ`, and says in one line on standard error what was found.

    Where TF_CONFIG is given already, or nothing has started this process as a task, nothing is written or said.

    Args:
        environ: the variables.
        shape: the cluster.
        environment: the name of the environment to take, "none", or None to look for one.
        ports: one of :data:`estimator_pipeline.cluster.resolution.PORTS`.
        directory: a folder that all tasks share.
        dialect: how TF_CONFIG is written.
        whole: whether this process may be all of several training tasks where no scheduler is around.

    Raises:
        ConfigError: There are several training tasks, and nothing has started this process as one of them.
        PipelineError: See :func:`estimator_pipeline.cluster.resolve`.
    """
    from estimator_pipeline.cluster import resolve
    from estimator_pipeline.cluster.detection import NO_ENVIRONMENT

    resolved = resolve(environ, shape, environment=environment, ports=ports, directory=directory, dialect=dialect)
    if resolved is None and shape.workers + shape.chief + shape.ps > 1 and environment != NO_ENVIRONMENT:
        _refuse_alone(environ, shape.workers + shape.chief + shape.ps + shape.evaluator, whole=whole)
    if resolved is None or not resolved.changes:
        return
    environ.update(resolved.changes)
    _kept.append(resolved)
    print(resolved.text, file=sys.stderr, flush=True)


def parse_shape(text: str, environ: Mapping[str, str], *, environment: str | None = None) -> LaunchShape:
    """`workers=2,chief,ps=1,evaluator`. `workers` without a number are as many as the other roles leave.

    Raises:
        ConfigError: Another word, or a number that cannot be one.
        PipelineError: The environment, which knows how many there are, cannot be understood.
    """
    from estimator_pipeline.launch import LaunchShape

    counts: dict[str, int | None] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        single = name in ("chief", "evaluator")
        fits = name in ("workers", "ps", "chief", "evaluator") and name not in counts
        if not fits or (equals and not (number.isdigit() and (not single or number in ("0", "1")))):
            raise ConfigError(
                f"--shape {text!r} does not say which tasks there are",
                code="argument/missing",
                found=f"the part {part.strip()!r}",
                hint="write for example workers=3,chief,ps=1,evaluator, each at most once.",
            )
        counts[name] = int(number) if equals else None if name == "workers" else 1
    fixed = {name: count for name, count in counts.items() if count is not None}
    if "workers" in counts and counts["workers"] is None:
        fixed["workers"] = _tasks_started(environ, environment) - sum(fixed.values())
        if fixed["workers"] < 0:
            raise ConfigError(
                f"--shape {text!r} has more tasks than there are",
                code="argument/bad-value",
                found=f"{_tasks_started(environ, environment)} tasks started",
                hint="start more tasks, or leave a role out.",
            )
    return LaunchShape(
        workers=fixed.get("workers", 0),
        chief=bool(fixed.get("chief")),
        ps=fixed.get("ps", 0),
        evaluator=bool(fixed.get("evaluator")),
    )


def refuse_tasks_apart(environ: Mapping[str, str], *, environment: str | None = None) -> None:
    """Refuses several tasks of one start that nobody gave roles: each would run the program for itself.

    Raises:
        ConfigError: They would.
    """
    from estimator_pipeline.cluster.detection import NO_ENVIRONMENT, detect

    if environment == NO_ENVIRONMENT:
        return
    try:
        found = detect(environ, name=environment)
    except PipelineError:
        return
    if found is None or found.allocation.tf_config is not None or found.allocation.inferred:
        return
    size = found.allocation.size or 1
    if size > 1:
        raise ConfigError(
            f"{found.environment.name} has started {size} tasks, and each would run the program alone in one place",
            code="cluster/not-started",
            found=f"rank {found.allocation.rank} of {size}, no TF_CONFIG, and no --shape",
            hint="say which cluster they are, for example exec --shape workers, or exec --shape chief,workers,ps=1; or "
            "--environment none, where each is to run by itself or the program finds the others (Horovod, a TF_CONFIG "
            "of its own).",
        )


def _refuse_alone(environ: Mapping[str, str], tasks: int, *, whole: bool) -> None:
    """Refuses a process that would do alone what several training tasks should.

    Raises:
        ConfigError: It would: it is in an allocation, or there is no reason (`whole`) to run alone.
    """
    from estimator_pipeline.cluster.detection import lone_task

    problem = lone_task(environ, tasks, whole=whole)
    if problem is not None:
        raise problem


def _tasks_started(environ: Mapping[str, str], environment: str | None) -> int:
    from estimator_pipeline.cluster.detection import NO_ENVIRONMENT, detect, surroundings

    found = detect(environ, name=environment)
    if found is None:
        around = None if environment == NO_ENVIRONMENT else surroundings(environ)
        if around is not None and around.tasks > 1:
            _refuse_alone(environ, around.tasks, whole=False)
        return 1
    config = found.allocation.tf_config
    if config is not None:
        return len(config.cluster.tasks) if config.cluster is not None else 1
    if found.allocation.size is None:
        raise ConfigError(
            f"--shape says no number of workers, and {found.environment.name} says none either",
            code="argument/missing",
            found="workers without a number",
            hint="write workers=N.",
        )
    return found.allocation.size
