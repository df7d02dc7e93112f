"""The list of checks, and the function that runs them.

To add a check, write a function (context) -> findings and add it to `CHECKS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from estimator_pipeline.doctor import machine, packages, storage
from estimator_pipeline.doctor import resources as room
from estimator_pipeline.doctor.cluster import cross_task as together
from estimator_pipeline.doctor.cluster import network
from estimator_pipeline.doctor.cluster import tf_config as clusters
from estimator_pipeline.doctor.cluster.rendezvous import RendezvousResult, join
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, DoctorReport, error, merged, of_error
from estimator_pipeline.doctor.job import batch, data
from estimator_pipeline.doctor.job import model_input as fit
from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.utils.text import nearest

__all__ = ["CHECKS", "TOGETHER", "DoctorCheck", "chosen", "examine"]

TOGETHER = "tasks"
"""The check that compares all tasks. It runs last, and only with `Context.shared`."""


@dataclass(frozen=True)
class DoctorCheck:
    """One check.

    Attributes:
        name: The name that `--only` and `--skip` take.
        description: One line for `--list`.
        run: Returns the findings; raises `CheckSkipped` where the check does not apply.
    """

    name: str
    description: str
    run: Callable[[Context], Iterable[DoctorFinding]]


CHECKS: tuple[DoctorCheck, ...] = (
    # Prerequisites come first, so that a user can fix findings from the top down.
    DoctorCheck("packages", "versions of Python, TensorFlow and related packages", packages.check_packages),
    DoctorCheck("variables", "environment variables that can break a job", packages.check_variables),
    DoctorCheck("environment", "the detected scheduler, and this task's role", clusters.check_environment),
    DoctorCheck("tf_config", "TF_CONFIG in any dialect", clusters.check_tf_config),
    DoctorCheck("strategy", "strategy, engine and batch size against the cluster", clusters.check_strategy),
    DoctorCheck("addresses", "host names resolve", network.check_addresses),
    DoctorCheck("ports", "this task's port is free; with --connect, other tasks answer", network.check_ports),
    DoctorCheck("threads", "number of threads against CPU cores and limits", machine.check_threads),
    DoctorCheck("devices", "visible GPUs against requested GPUs", machine.check_devices),
    DoctorCheck("memory", "available memory against the tasks' needs", room.check_memory),
    DoctorCheck("limits", "limits on open files, threads and memory", room.check_limits),
    DoctorCheck("model_dir", "model directory: writes, renames, file locks", storage.check_model_dir),
    DoctorCheck("space", "free disk space for the next checkpoints", storage.check_space),
    DoctorCheck("lock", "no other job uses the model directory; existing checkpoints", storage.check_lock),
    DoctorCheck("identity", "the job matches the run that wrote the checkpoints", storage.check_identity),
    DoctorCheck("data", "files, data sets and functions exist", data.check_data),
    DoctorCheck("shards", "even shards for the workers", data.check_shards),
    DoctorCheck("model", "a built-in model (model_fns) matches the data", fit.check_model),
    DoctorCheck("slurm", "time limit, signal and shell lines of the slurm section", batch.check_slurm),
    DoctorCheck("pbs", "time limit, memory and shell lines of the pbs section", batch.check_pbs),
)
"""In the order in which they run and are reported."""


def chosen(only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the checks to run.

    Raises:
        ConfigError: There is no check of such a name.
    """
    names = (*(check.name for check in CHECKS), TOGETHER)
    for option, selected in (("--only", only), ("--skip", skip)):
        for name in selected:
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
    """Run the checks.

    Args:
        context: What to examine.
        only: Names of the checks to run; empty: all.
        skip: Names of the checks to skip.
        first: Findings from before, such as mistakes in the job file.
        subject: What the report is about.

    Returns:
        The report. With `context.shared` it covers all tasks and is the same on each, provided that they met.

    Raises:
        ConfigError: There is no such check or environment.
    """
    names = chosen(only, skip)
    _ = context.part  # An unknown environment name is bad usage, not a finding.
    report = DoctorReport(subject=subject)
    findings = list(first)
    for check in CHECKS:
        if check.name not in names:
            continue
        try:
            results = list(check.run(context))
        except CheckSkipped as reason:
            report.not_looked_at[check.name] = str(reason)
            continue
        except (PipelineError, OSError) as problem:
            results = [_failed(problem)]
        findings += [dataclasses.replace(finding, check=check.name) for finding in results]
    if TOGETHER in names:
        findings = _all_tasks(context, findings, report)
    report.findings = tuple(findings)
    return report


def _failed(problem: PipelineError | OSError) -> DoctorFinding:
    why = "the job would fail in the same way"
    return of_error(problem, why) if isinstance(problem, PipelineError) else error(str(problem), why, "see the message")


def _all_tasks(context: Context, findings: list[DoctorFinding], report: DoctorReport) -> list[DoctorFinding]:
    """Exchange findings with the other tasks, and merge them into one list."""
    if not context.shared:
        report.not_looked_at[TOGETHER] = "needs --shared, on every task"
        return findings
    try:
        participant, folder = together.participant_of(context), together.folder_of(context)
        facts = {**together.facts_of(context), "findings": [finding.to_dict() for finding in findings]}
        meeting = join(
            folder,
            participant,
            facts,
            timeout=context.wait,
            connect_timeout=context.timeout,
            environ=context.environ,
        )
    except CheckSkipped as reason:
        report.not_looked_at[TOGETHER] = str(reason)
        return findings
    except PipelineError as problem:
        why = "tasks that do not share the model directory, or do not start, wait for each other until a timeout"
        return [*findings, dataclasses.replace(of_error(problem, why), check=TOGETHER)]
    report.rank = meeting.rank
    last = [dataclasses.replace(finding, check=TOGETHER) for finding in together.compare(meeting, folder)]
    return [*_merged(meeting), *last]


def _merged(meeting: RendezvousResult) -> tuple[DoctorFinding, ...]:
    by_task = []
    for rank, facts in sorted(meeting.facts.items()):
        by_task.append((meeting.name(rank), [DoctorFinding.from_dict(document) for document in facts["findings"]]))
    order = [check.name for check in CHECKS]
    every = merged(by_task)
    return tuple(sorted(every, key=lambda finding: order.index(finding.check) if finding.check in order else -1))
