"""No subcommand: how `train` and `exec` take the part that a scheduler has given this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from estimator_pipeline.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from estimator_pipeline.cluster.resolving import Resolved
    from estimator_pipeline.cluster.roles import Shape as AnyShape
    from estimator_pipeline.launch import Shape

__all__ = ["enter", "parse_shape", "warn_of_tasks"]

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
) -> None:
    """Writes TF_CONFIG and what goes with it into `environ`, and says in one line on standard error what was found.

    Where TF_CONFIG is given already, or nothing has started this process as a task, nothing is written or said.

    Raises:
        PipelineError: See :func:`estimator_pipeline.cluster.resolve`.
    """
    from estimator_pipeline.cluster import resolve

    resolved = resolve(environ, shape, environment=environment, ports=ports, directory=directory, dialect=dialect)
    if resolved is None or not resolved.changes:
        return
    environ.update(resolved.changes)
    _kept.append(resolved)
    print(resolved.text, file=sys.stderr, flush=True)


def parse_shape(text: str, environ: Mapping[str, str], *, environment: str | None = None) -> Shape:
    """`workers=2,chief,ps=1,evaluator`. `workers` without a number are as many as the other roles leave.

    Raises:
        ConfigError: Another word, or a number that cannot be one.
        PipelineError: The environment, which knows how many there are, cannot be understood.
    """
    from estimator_pipeline.launch import Shape

    counts: dict[str, int | None] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        single = name in ("chief", "evaluator")
        fits = name in ("workers", "ps", "chief", "evaluator") and name not in counts
        if not fits or (equals and not (number.isdigit() and (not single or number in ("0", "1")))):
            raise ConfigError(
                f"--shape {text!r} does not say which tasks there are",
                found=f"the part {part.strip()!r}",
                mend="write for example workers=3,chief,ps=1,evaluator, each at most once.",
            )
        counts[name] = int(number) if equals else None if name == "workers" else 1
    fixed = {name: count for name, count in counts.items() if count is not None}
    if "workers" in counts and counts["workers"] is None:
        fixed["workers"] = _tasks_started(environ, environment) - sum(fixed.values())
        if fixed["workers"] < 0:
            raise ConfigError(
                f"--shape {text!r} has more tasks than there are",
                found=f"{_tasks_started(environ, environment)} tasks started",
                mend="start more tasks, or leave a role out.",
            )
    return Shape(
        workers=fixed.get("workers", 0),
        chief=bool(fixed.get("chief")),
        ps=fixed.get("ps", 0),
        evaluator=bool(fixed.get("evaluator")),
    )


def warn_of_tasks(environ: Mapping[str, str]) -> None:
    """Says that several tasks would each train alone: a scheduler has started them, and nobody gave them roles."""
    from estimator_pipeline.cluster import detect

    with contextlib.suppress(PipelineError):
        found = detect(environ)
        if found is None or found.allocation.tf_config is not None or found.allocation.inferred:
            return
        if (found.allocation.size or 0) > 1:
            print(
                f"environment {found.environment.name}: rank {found.allocation.rank} of {found.allocation.size}; "
                "the program gets no TF_CONFIG, since exec was given no --shape",
                file=sys.stderr,
                flush=True,
            )


def _tasks_started(environ: Mapping[str, str], environment: str | None) -> int:
    from estimator_pipeline.cluster import detect

    found = detect(environ, name=environment)
    if found is None:
        return 1
    config = found.allocation.tf_config
    if config is not None:
        return len(config.cluster.tasks) if config.cluster is not None else 1
    if found.allocation.size is None:
        raise ConfigError(
            f"--shape says no number of workers, and {found.environment.name} says none either",
            found="workers without a number",
            mend="write workers=N.",
        )
    return found.allocation.size
