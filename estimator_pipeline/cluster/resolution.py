"""Conversion of any environment's variables to TF_CONFIG and related variables."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from estimator_pipeline.cluster.detection import Detection, detect
from estimator_pipeline.cluster.own_port import REUSE_VARIABLE, require_free
from estimator_pipeline.cluster.port_agreement import agree, folder_for, own_address, wait_secs
from estimator_pipeline.cluster.roles import ClusterShape, derived_addresses, hosts_of, roles, task_of, tasks_of
from estimator_pipeline.cluster.tasks import Task, TFConfig
from estimator_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.cluster.ports import HeldPorts

__all__ = ["PORTS", "SHARED_DIR_VARIABLE", "Resolved", "port_way", "resolve"]

PORTS = ("auto", "derived", "agreed")
"""How ports are chosen: "derived" from the job id, "agreed" through a shared folder, or "auto": derived if the
environment reports the host of each task, otherwise agreed."""
SHARED_DIR_VARIABLE = "ESTIMATOR_PIPELINE_SHARED_DIR"
RUN_ID_VARIABLE = "ESTIMATOR_PIPELINE_RUN_ID"
# Whether a job has an evaluator: "1" or "0"; set by the launcher for all tasks.
EVALUATOR_VARIABLE = "ESTIMATOR_PIPELINE_EVALUATOR"


@dataclass
class Resolved:
    """The resolved environment of a process.

    Attributes:
        detection: The detected environment.
        tf_config: The cluster and this process's task.
        changes: Variables to set before TensorFlow is used: TF_CONFIG and related variables.
        text: A summary in one line.
        held: The port that this process keeps bound, or None.
    """

    detection: Detection
    tf_config: TFConfig
    changes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    held: HeldPorts | None = None


def resolve(
    environ: Mapping[str, str],
    shape: ClusterShape,
    *,
    environment: str | None = None,
    ports: str = "auto",
    directory: str | None = None,
    dialect: str = "canonical",
    hostname: str | None = None,
) -> Resolved | None:
    """Resolve this process's task from its environment.

    Args:
        environ: The variables; not modified.
        shape: The job's cluster.
        environment: The name of the environment to use, "none", or None to detect it.
        ports: One of `PORTS`.
        directory: A folder that all tasks share, for agreed ports; ESTIMATOR_PIPELINE_SHARED_DIR overrides it.
        dialect: The dialect in which TF_CONFIG is written.
        hostname: See `detect`.

    Returns:
        The result; None if the process is not a task of a cluster. If TF_CONFIG is set, there are no changes.

    Raises:
        PipelineError: The environment is invalid, does not match the job, or the other tasks did not start.
    """
    if ports not in PORTS:
        raise ConfigError(
            f"ports is {ports!r}",
            code="argument/bad-value",
            found=f"allowed: {', '.join(PORTS)}",
            hint="use one of these.",
        )
    host = hostname or socket.gethostname()
    detection = detect(environ, name=environment, hostname=host)
    if detection is None:
        return None
    allocation = detection.allocation
    if detection.environment.name == "tf_config":
        assert allocation.tf_config is not None
        return Resolved(detection, allocation.tf_config, text=_line(detection, allocation.tf_config, None))
    result = Resolved(detection, TFConfig(cluster=None, task=Task("worker")))
    start_id = allocation.start_id
    way = None
    if allocation.tf_config is not None:
        result.tf_config = allocation.tf_config
    else:
        task, tasks = task_of(allocation, shape), tasks_of(shape)
        addresses: tuple[str, ...] | None = None
        way = port_way(ports, detection, shape)
        if len(tasks) == 1:
            way = None
            addresses = ()
        elif way == "agreed":
            folder = folder_for(_shared(environ, directory), allocation.job_id, allocation.restart)
            agreement = agree(
                folder,
                rank=tasks.index(task),
                size=len(tasks),
                host=own_address(environ, known=_own_host(detection, shape, tasks.index(task)), hostname=host),
                timeout=wait_secs(environ),
                hint=_hint(detection),
            )
            result.held = agreement.held
            result.changes[REUSE_VARIABLE] = "1"
            addresses, start_id = agreement.addresses, agreement.start_id
        else:
            addresses = derived_addresses(allocation, shape, environ=environ)
            result.changes[REUSE_VARIABLE] = "0"
            if task.type != "evaluator":
                require_free(addresses[tasks.index(task)], str(task), {**environ, **result.changes})
        result.tf_config = roles(allocation, shape, addresses)
        result.changes[EVALUATOR_VARIABLE] = "1" if shape.evaluator else "0"
    if start_id and not environ.get(RUN_ID_VARIABLE):
        result.changes[RUN_ID_VARIABLE] = start_id
    # An explicit description of the cluster also determines the evaluator's address.
    plain = allocation.tf_config is not None or result.tf_config.cluster is None
    result.changes["TF_CONFIG"] = result.tf_config.to_json("canonical" if plain else dialect)
    result.text = _line(detection, result.tf_config, way)
    return result


def port_way(ports: str, detection: Detection, shape: ClusterShape) -> str:
    """Return the way to choose ports; resolves "auto" of `PORTS`."""
    if ports != "auto":
        return ports
    allocation = detection.allocation
    return "agreed" if allocation.inferred or hosts_of(allocation, shape) is None else "derived"


def _own_host(detection: Detection, shape: ClusterShape, rank: int) -> str | None:
    hosts = hosts_of(detection.allocation, shape)
    return hosts[rank] if hosts is not None else detection.allocation.own_host


def _shared(environ: Mapping[str, str], directory: str | None) -> str:
    folder = environ.get(SHARED_DIR_VARIABLE, "").strip() or directory
    if not folder:
        raise ConfigError(
            "the tasks have no shared folder to agree on ports",
            code="argument/missing",
            found="neither a job file with run.model_dir nor a shared folder",
            hint=f"set --shared-dir FOLDER, or {SHARED_DIR_VARIABLE}, to a folder that all tasks share.",
        )
    return folder


def _hint(detection: Detection) -> str:
    name = detection.environment.name
    if not detection.allocation.inferred:
        return ""
    return (
        f"{name} does not number its processes, and this may be the only process: start the program on every host of "
        "the job, or set --environment none to train in one process."
    )


def _line(detection: Detection, config: TFConfig, way: str | None) -> str:
    allocation = detection.allocation
    kind = "single process" if config.cluster is None else f"{config.task} of {config.num_training_tasks} that train"
    if config.cluster is not None and config.cluster.num_ps:
        kind += f" and {config.cluster.num_ps} ps"
    parts = [f"environment {detection.environment.name}"]
    if allocation.tf_config is None:
        of = f" of {allocation.size}" if allocation.size is not None else ""
        parts.append(f"job {allocation.job_id}, rank {allocation.rank}{of}")
    parts.append(kind)
    if way is not None:
        parts.append(f"ports {way}")
    if allocation.restart:
        parts.append(f"restart {allocation.restart}")
    parts += allocation.notes
    if detection.others:
        parts.append(f"not taken: {', '.join(detection.others)}")
    return "; ".join(parts)
