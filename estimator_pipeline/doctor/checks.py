"""The list of checks, and what runs them. A new one: a function (context) -> findings, and a line in :data:`CHECKS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from estimator_pipeline.doctor import machine, packages, storage
from estimator_pipeline.doctor import resources as room
from estimator_pipeline.doctor.cluster import cross_task as together
from estimator_pipeline.doctor.cluster import network
from estimator_pipeline.doctor.cluster import tf_config as clusters
from estimator_pipeline.doctor.cluster.rendezvous import Meeting, meet
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, DoctorReport, NotLookedAt, error, merged, of_error
from estimator_pipeline.doctor.job import data
from estimator_pipeline.doctor.job import model_input as fit
from estimator_pipeline.doctor.job import slurm as batch
from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.utils.text import nearest

__all__ = ["CHECKS", "TOGETHER", "DoctorCheck", "chosen", "examine"]

TOGETHER = "tasks"
"""The check of what only shows when all tasks meet; the last one, and only with `Context.shared`."""


@dataclass(frozen=True)
class DoctorCheck:
    """One check.

    Attributes:
        name: by which it can be left out or run alone.
        what: one line for the list.
        run: gives its findings; raises :class:`NotLookedAt` where there is nothing to look at.
    """

    name: str
    what: str
    run: Callable[[Context], Iterable[DoctorFinding]]


CHECKS: tuple[DoctorCheck, ...] = (
    # From what needs nothing else to what rests on it: a person mends from above.
    DoctorCheck("packages", "Python, TensorFlow and what must fit it", packages.check_packages),
    DoctorCheck("variables", "environment variables that break a job", packages.check_variables),
    DoctorCheck("environment", "the scheduler, and the values of its variables", clusters.check_environment),
    DoctorCheck("tf_config", "TF_CONFIG in any dialect", clusters.check_tf_config),
    DoctorCheck("strategy", "strategy, engine, batch and evaluator against the cluster", clusters.check_strategy),
    DoctorCheck("addresses", "every host name resolved", network.check_addresses),
    DoctorCheck("ports", "the own port free; with --connect, the others answer", network.check_ports),
    DoctorCheck("threads", "threads against cores and limits", machine.check_threads),
    DoctorCheck("devices", "GPUs that are seen against those asked for", machine.check_devices),
    DoctorCheck("memory", "memory that is there against what the tasks take", room.check_memory),
    DoctorCheck("limits", "open files and processes that a user may have", room.check_limits),
    DoctorCheck("model_dir", "written, renamed at one stroke, locked", storage.check_model_dir),
    DoctorCheck("space", "room for the next checkpoints", storage.check_space),
    DoctorCheck("lock", "no other job trains there, and whose checkpoints are there", storage.check_lock),
    DoctorCheck("identity", "the job is the one whose checkpoints are there", storage.check_identity),
    DoctorCheck("checkpoint", "the latest one is whole (--deep)", storage.check_checkpoint),
    DoctorCheck("data", "files, data sets and functions are there", data.check_data),
    DoctorCheck("shards", "even shares for the workers", data.check_shards),
    DoctorCheck("model", "a model of model_fns fits the data", fit.check_model),
    DoctorCheck("slurm", "time limit, signal and shell lines of the section slurm", batch.check_slurm),
    DoctorCheck("preemption", "time to end with a checkpoint", machine.check_preemption),
)
"""In the order in which they are run and told."""


def chosen(only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the checks to run.

    Raises:
        ConfigError: A name that no check has.
    """
    names = (*(check.name for check in CHECKS), TOGETHER)
    for option, given in (("--only", only), ("--skip", skip)):
        for name in given:
            if name not in names:
                close = nearest(name, names)
                raise ConfigError(
                    f"{option} {name}: there is no such check",
                    code="argument/unknown-name",
                    found=f"checks: {', '.join(names)}",
                    hint=f"did you mean {close!r}?" if close else "name one of these",
                )
    return tuple(name for name in names if (not only or name in only) and name not in skip)


def examine(
    context: Context,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    first: Sequence[DoctorFinding] = (),
    subject: str = "",
) -> DoctorReport:
    """Runs the checks.

    Args:
        context: what to look at.
        only: the checks to run; none: all.
        skip: the checks to leave out.
        first: what was found before, such as mistakes in the job file.
        subject: what the report is about.

    Returns:
        The report. With `context.shared` it is of all tasks, the same on each of them, where they came together.

    Raises:
        ConfigError: A check or an environment that there is not.
    """
    names = chosen(only, skip)
    _ = context.part  # A name that no environment has is bad usage, and no finding.
    report = DoctorReport(subject=subject)
    found = list(first)
    for check in CHECKS:
        if check.name not in names:
            continue
        try:
            results = list(check.run(context))
        except NotLookedAt as reason:
            report.not_looked_at[check.name] = str(reason)
            continue
        except (PipelineError, OSError) as problem:
            results = [_failed(problem)]
        found += [dataclasses.replace(one, check=check.name) for one in results]
    if TOGETHER in names:
        found = _all_tasks(context, found, report)
    report.findings = tuple(found)
    return report


def _failed(problem: PipelineError | OSError) -> DoctorFinding:
    why = "the job meets the same"
    return of_error(problem, why) if isinstance(problem, PipelineError) else error(str(problem), why, "see the message")


def _all_tasks(context: Context, found: list[DoctorFinding], report: DoctorReport) -> list[DoctorFinding]:
    """Meets the other tasks, and makes one list of what all have found."""
    if not context.shared:
        report.not_looked_at[TOGETHER] = "--shared, on every task"
        return found
    try:
        seat, folder = together.seat_of(context), together.folder_of(context)
        facts = {**together.facts_of(context), "findings": [one.to_dict() for one in found]}
        meeting = meet(
            folder,
            seat,
            facts,
            timeout=context.wait,
            connect_timeout=context.timeout,
            environ=context.environ,
        )
    except NotLookedAt as reason:
        report.not_looked_at[TOGETHER] = str(reason)
        return found
    except PipelineError as problem:
        why = "tasks that do not share the model directory, or do not start, wait for each other until a time-out"
        return [*found, dataclasses.replace(of_error(problem, why), check=TOGETHER)]
    report.rank = meeting.own
    last = [dataclasses.replace(one, check=TOGETHER) for one in together.compare(meeting, folder)]
    return [*_merged(meeting), *last]


def _merged(meeting: Meeting) -> tuple[DoctorFinding, ...]:
    told = []
    for rank, facts in sorted(meeting.facts.items()):
        known = [DoctorFinding(**{**one, "tasks": ()}) for one in facts["findings"]]
        told.append((meeting.name(rank), known))
    order = [check.name for check in CHECKS]
    every = merged(told)
    return tuple(sorted(every, key=lambda finding: order.index(finding.check) if finding.check in order else -1))
