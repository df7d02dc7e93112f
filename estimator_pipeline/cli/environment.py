"""Task detection for `train` and `exec`: TF_CONFIG from the variables of a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.utils.io_errors import code_of
from estimator_pipeline.utils.process_state import STATE

if TYPE_CHECKING:
    from estimator_pipeline.cluster.roles import ClusterShape as AnyShape
    from estimator_pipeline.launch import LaunchShape

__all__ = ["enter", "parse_shape", "reject_independent_tasks", "tf_config_text"]


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
    """Write TF_CONFIG and related variables into `environ`, and print one line on standard error.

    Does nothing if TF_CONFIG is already set or if no scheduler has started this process as a task. `whole`: whether
    this process may run all training tasks where there is no scheduler. Other arguments: see `cluster.resolve`.

    Raises:
        ConfigError: There are several training tasks, and no scheduler has started this process as one of them.
        PipelineError: See `estimator_pipeline.cluster.resolve`.
    """
    from estimator_pipeline.cluster import resolve
    from estimator_pipeline.cluster.detection import NO_ENVIRONMENT, lone_task

    resolved = resolve(environ, shape, environment=environment, ports=ports, directory=directory, dialect=dialect)
    if resolved is None and shape.workers + shape.chief + shape.ps > 1 and environment != NO_ENVIRONMENT:
        problem = lone_task(environ, shape.workers + shape.chief + shape.ps + shape.evaluator, whole=whole)
        if problem is not None:
            raise problem
    if resolved is None or not resolved.changes:
        return
    environ.update(resolved.changes)
    # Ports stay bound until the process ends: what holds them must not be collected.
    STATE.environments.append(resolved)
    print(resolved.text, file=sys.stderr, flush=True)


def parse_shape(text: str, environ: Mapping[str, str], *, environment: str | None = None) -> LaunchShape:
    """Parse `workers=2,chief,ps=1,evaluator`; `workers` without a number takes the remaining tasks.

    Raises:
        ConfigError: An unknown role, or an invalid number.
        PipelineError: The environment, which has the number of tasks, cannot be parsed.
    """
    from estimator_pipeline.launch import LaunchShape

    counts: dict[str, int | None] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        single = name in ("chief", "evaluator")
        fits = name in ("workers", "ps", "chief", "evaluator") and name not in counts
        if not fits or (equals and not (number.isdigit() and (not single or number in ("0", "1")))):
            raise ConfigError(
                f"--shape {text!r} does not list the tasks of a cluster",
                code="argument/missing",
                found=f"the part {part.strip()!r}",
                hint="write for example workers=3,chief,ps=1,evaluator, each at most once.",
            )
        counts[name] = int(number) if equals else None if name == "workers" else 1
    fixed = {name: count for name, count in counts.items() if count is not None}
    if fixed.keys() != counts.keys():
        started = _tasks_started(environ, environment)
        fixed["workers"] = started - sum(fixed.values())
        if fixed["workers"] < 0:
            raise ConfigError(
                f"--shape {text!r} has more tasks than there are",
                code="argument/bad-value",
                found=f"{started} tasks started",
                hint="start more tasks, or leave a role out.",
            )
    return LaunchShape(
        workers=fixed.get("workers", 0),
        chief=bool(fixed.get("chief")),
        ps=fixed.get("ps", 0),
        evaluator=bool(fixed.get("evaluator")),
    )


def reject_independent_tasks(environ: Mapping[str, str], *, environment: str | None = None) -> None:
    """Reject tasks without roles: each would run the whole program independently.

    Raises:
        ConfigError: A scheduler has started several tasks, and neither TF_CONFIG nor --shape has their roles.
    """
    from estimator_pipeline.cluster.detection import NO_ENVIRONMENT, detect

    if environment == NO_ENVIRONMENT:
        return
    try:
        detected = detect(environ, name=environment)
    except PipelineError:
        return
    if detected is None or detected.allocation.tf_config is not None or detected.allocation.inferred:
        return
    size = detected.allocation.size or 1
    if size > 1:
        raise ConfigError(
            f"{detected.environment.name} has started {size} tasks, and each would run the whole program independently",
            code="cluster/not-started",
            found=f"rank {detected.allocation.rank} of {size}, no TF_CONFIG, and no --shape",
            hint="name the cluster, for example exec --shape workers, or exec --shape chief,workers,ps=1; or set "
            "--environment none if the tasks are independent, or the program connects them (Horovod, or it sets "
            "TF_CONFIG).",
        )


def _tasks_started(environ: Mapping[str, str], environment: str | None) -> int:
    from estimator_pipeline.cluster.detection import NO_ENVIRONMENT, detect, lone_task, surroundings

    detected = detect(environ, name=environment)
    if detected is None:
        around = None if environment == NO_ENVIRONMENT else surroundings(environ)
        problem = lone_task(environ, around.tasks, whole=False) if around is not None and around.tasks > 1 else None
        if problem is not None:
            raise problem
        return 1
    config = detected.allocation.tf_config
    if config is not None:
        return len(config.cluster.tasks) if config.cluster is not None else 1
    if detected.allocation.size is None:
        raise ConfigError(
            f"--shape has no number of workers, and {detected.environment.name} does not report one",
            code="argument/missing",
            found="workers without a number",
            hint="write workers=N.",
        )
    return detected.allocation.size


def tf_config_text(argument: str) -> tuple[str, str]:
    """Return the text of --tf-config, a file or the document itself, and its name for messages.

    Raises:
        ConfigError: The file cannot be read.
    """
    if argument.lstrip().startswith(("{", "'", '"')):
        return argument, "--tf-config"
    try:
        return Path(argument).read_text(encoding="utf-8"), argument
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(
            f"--tf-config {argument} cannot be read",
            code=code_of(problem),
            found=str(getattr(problem, "strerror", None) or problem),
            hint="name a file that holds the document, or write the document itself: --tf-config '{\"cluster\": ...}'",
        ) from problem
