"""From the variables of any environment to what a task itself needs: TF_CONFIG, and what belongs to it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from estimator_pipeline.cluster.detection import Detection, detect
from estimator_pipeline.cluster.own_port import REUSE_VARIABLE, holder_of, problem_of
from estimator_pipeline.cluster.port_agreement import agree, folder_for, own_address, wait_secs
from estimator_pipeline.cluster.roles import ClusterShape, derived_addresses, hosts_of, roles, task_of, tasks_of
from estimator_pipeline.cluster.tasks import Task, TFConfig
from estimator_pipeline.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from estimator_pipeline.cluster.ports import HeldPorts

__all__ = ["PORTS", "SHARED_DIR_VARIABLE", "Resolved", "port_way", "resolve"]

PORTS = ("auto", "derived", "agreed")
"""How ports are found: "derived" from the job's id, "agreed" upon in a shared folder, or "auto": derived where the
environment says who is where, agreed where it does not."""
SHARED_DIR_VARIABLE = "ESTIMATOR_PIPELINE_SHARED_DIR"
RUN_ID_VARIABLE = "ESTIMATOR_PIPELINE_RUN_ID"
# Says to all tasks of a job whether one of them is an evaluator: "1" or "0". Whoever starts them knows it.
EVALUATOR_VARIABLE = "ESTIMATOR_PIPELINE_EVALUATOR"


@dataclass
class Resolved:
    """What a process does about its environment.

    Attributes:
        detection: what was found.
        tf_config: this process's part.
        changes: variables to set before TensorFlow is used. TF_CONFIG, and what goes with it.
        text: one line for a person.
        held: the port that this process keeps bound; None where there is none.
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
    """Finds this process's task in whatever has started it.

    Args:
        environ: the variables; never changed.
        shape: the job's cluster.
        environment: the name of the environment to take, "none", or None to look for one.
        ports: one of :data:`PORTS`.
        directory: a folder that all tasks share, for agreed ports; ESTIMATOR_PIPELINE_SHARED_DIR comes before it.
        dialect: how TF_CONFIG is written.
        hostname: see :func:`detect`.

    Returns:
        What to do; None where nothing was found: the process is alone. Where TF_CONFIG was given, nothing is changed.

    Raises:
        PipelineError: The environment cannot be understood, does not fit the job, or the others did not come.
    """
    if ports not in PORTS:
        raise ConfigError(
            f"ports is {ports!r}",
            code="argument/bad-value",
            found=f"allowed: {', '.join(PORTS)}",
            hint="give one of these.",
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
        own, tasks = task_of(allocation, shape), tasks_of(shape)
        addresses: tuple[str, ...] | None = None
        way = port_way(ports, detection, shape)
        if len(tasks) == 1:
            way = None
            addresses = ()
        elif way == "agreed":
            folder = folder_for(_shared(environ, directory), allocation.job_id, allocation.restart)
            agreement = agree(
                folder,
                rank=tasks.index(own),
                size=len(tasks),
                host=own_address(environ, known=_own_host(detection, shape, tasks.index(own)), hostname=host),
                timeout=wait_secs(environ),
                hint=_hint(detection),
                addresses=_asked_at(detection, shape, environ),
            )
            result.held = agreement.held
            result.changes[REUSE_VARIABLE] = "1"
            addresses, start_id = agreement.addresses, agreement.start_id
        else:
            addresses = derived_addresses(allocation, shape, environ=environ)
            if own.type != "evaluator":
                _check_free(addresses[tasks.index(own)], own)
        result.tf_config = roles(allocation, shape, addresses)
        result.changes[EVALUATOR_VARIABLE] = "1" if shape.evaluator else "0"
    if start_id and not environ.get(RUN_ID_VARIABLE):
        result.changes[RUN_ID_VARIABLE] = start_id
    # What describes the cluster itself also has the say about an evaluator's address.
    plain = allocation.tf_config is not None or result.tf_config.cluster is None
    result.changes["TF_CONFIG"] = result.tf_config.to_json("canonical" if plain else dialect)
    result.text = _line(detection, result.tf_config, way)
    return result


def port_way(ports: str, detection: Detection, shape: ClusterShape) -> str:
    """What "auto" of :data:`PORTS` comes to here; the others are what they are."""
    if ports != "auto":
        return ports
    allocation = detection.allocation
    return "agreed" if allocation.inferred or hosts_of(allocation, shape) is None else "derived"


def _own_host(detection: Detection, shape: ClusterShape, rank: int) -> str | None:
    hosts = hosts_of(detection.allocation, shape)
    return hosts[rank] if hosts is not None else detection.allocation.own_host


def _asked_at(detection: Detection, shape: ClusterShape, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Where the tasks can ask each other while they wait: the ports that they would have without an agreement."""
    try:
        return derived_addresses(detection.allocation, shape, environ=environ)
    except ClusterError:
        return None


def _shared(environ: Mapping[str, str], directory: str | None) -> str:
    given = environ.get(SHARED_DIR_VARIABLE, "").strip() or directory
    if not given:
        raise ConfigError(
            "the tasks have no folder in which they could agree on ports",
            code="argument/missing",
            found="neither a job file with run.model_dir nor a shared folder",
            hint=f"say --shared-dir FOLDER, or set {SHARED_DIR_VARIABLE} to a folder that all tasks share.",
        )
    return given


def _hint(detection: Detection) -> str:
    name = detection.environment.name
    if not detection.allocation.inferred:
        return ""
    return (
        f"{name} does not number its processes, and this one may be the only one: start the program on every host of "
        "the job, or say --environment none to train alone."
    )


def _check_free(address: str, task: Task) -> None:
    """Whether nobody listens at this task's port on this host.

    Raises:
        ClusterError: The port is taken.
    """
    port = int(address.rpartition(":")[2])
    error = problem_of(port)
    if error is not None:
        holder, _ = holder_of(port)
        raise ClusterError(
            f"{task} should listen at {address}, and the port {port} is taken on this host.",
            code="cluster/port-in-use",
            found=f"{error}{holder and f': {holder} listens there'}",
            hint="set cluster.ports: agreed, by which each task takes a free port; or ESTIMATOR_PIPELINE_PORT_BASE to "
            "another first port, the same on every task.",
        ) from error


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
