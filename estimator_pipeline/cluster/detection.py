"""Detection of the scheduler or launcher that has started this process. Imports no TensorFlow."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from estimator_pipeline.cluster.environments.aws_batch import AWSBatch
from estimator_pipeline.cluster.environments.base import Allocation, Environment
from estimator_pipeline.cluster.environments.flux import Flux
from estimator_pipeline.cluster.environments.grid_engine import GridEngine
from estimator_pipeline.cluster.environments.kubernetes import IndexedJob, JobSet, StatefulSet
from estimator_pipeline.cluster.environments.lsf import LSF
from estimator_pipeline.cluster.environments.mpi import Hydra, OpenMPI
from estimator_pipeline.cluster.environments.oar import OAR
from estimator_pipeline.cluster.environments.pbs import PBS
from estimator_pipeline.cluster.environments.sagemaker import SageMaker
from estimator_pipeline.cluster.environments.slurm import Slurm
from estimator_pipeline.cluster.environments.tf_config import TFConfigVariable
from estimator_pipeline.cluster.environments.vertex import Vertex
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.text import nearest

__all__ = [
    "ENVIRONMENTS",
    "NO_ENVIRONMENT",
    "Detection",
    "Surroundings",
    "detect",
    "lone_task",
    "names",
    "surroundings",
]

NO_ENVIRONMENT = "none"

ENVIRONMENTS: tuple[Environment, ...] = (
    # A description of the whole cluster with roles is explicit and complete. TF_CONFIG comes first: Kubeflow sets it in
    # a pod, and SageMaker's parameter servers and the launcher of this package set it in addition to other variables.
    TFConfigVariable(),
    Vertex(),
    # The Job Step Manager of LSF also sets Open MPI's variables; its variables agree with them, and have LSF's job id.
    LSF(),
    # The launcher of this process numbers it. mpirun runs inside a job of the schedulers below: their variables then
    # belong to the job script, or to mpirun's daemon on each node, and show all ranks of a node as one.
    OpenMPI(),
    Hydra(),
    # Launchers that may run inside a job of a different scheduler and pass its variables on: Flux within Slurm.
    Flux(),
    # Schedulers that number their tasks.
    Slurm(),
    AWSBatch(),
    SageMaker(),
    # A JobSet's pods are also pods of Indexed Jobs, so the JobSet comes first.
    JobSet(),
    IndexedJob(),
    StatefulSet(),
    # Schedulers that only list hosts: a task is identified by its host name, the weakest evidence.
    PBS(),
    GridEngine(),
    OAR(),
)
"""The supported environments in order of precedence: the first match is used."""


@dataclass(frozen=True)
class Detection:
    """A detected environment.

    Attributes:
        environment: The environment that has started this process.
        allocation: The contents of its variables.
        others: The names of further matches, later in the order.
    """

    environment: Environment
    allocation: Allocation
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """The allocation around a process that is not a task of it: a job script, or a shell.

    Attributes:
        environment: The name of the environment.
        sign: The variable that identifies it, with its value.
        launcher: The command that starts tasks.
        tasks: The number of tasks that the launcher starts by default; 1 if unknown.
    """

    environment: str
    sign: str
    launcher: str
    tasks: int = 1


# Other environments do not distinguish a job script from a task, or remove their variables from it.
_ALLOCATIONS = (
    ("slurm", "SLURM_JOB_ID", "srun"),
    ("lsf", "LSB_JOBID", "blaunch or jsrun"),
    ("pbs", "PBS_JOBID", "mpirun or pbsdsh"),
)


def surroundings(environ: Mapping[str, str]) -> Surroundings | None:
    """Return the allocation around a process that `detect` does not identify as a task, or None.

    Args:
        environ: The environment variables.
    """
    for name, variable, launcher in _ALLOCATIONS:
        if environ.get(variable):
            tasks = environ.get("SLURM_NTASKS") or environ.get("SLURM_NNODES", "") if name == "slurm" else ""
            count = int(tasks) if tasks.isdigit() else 1
            return Surroundings(name, f"{variable}={environ[variable]}", launcher, count)
    return None


def lone_task(environ: Mapping[str, str], tasks: int, *, whole: bool = True) -> ConfigError | None:
    """Return an error if a process that was not started as a task would run the job of several tasks; else None.

    Args:
        environ: The environment variables.
        tasks: The number of tasks.
        whole: Whether a process outside of any allocation may run all tasks.
    """
    around = surroundings(environ)
    if around is None and whole:
        return None
    alone = "or set --environment none to run the whole job in this process."
    if around is None:
        return ConfigError(
            f"the cluster has {tasks} tasks, and this process was not started as one of them",
            code="cluster/not-started",
            found="neither TF_CONFIG nor the variables of a scheduler's task",
            hint=f"start each task with srun, mpirun or the like, all of them with estimator-pipeline launch, {alone}",
        )
    return ConfigError(
        f"the cluster has {tasks} tasks, and this process was not started by {around.launcher}",
        code="cluster/not-started",
        found=f"{around.sign} of a job script or a shell, and no TF_CONFIG",
        hint=f"start it with {around.launcher}, which starts all {tasks}, {alone}",
    )


def names() -> tuple[str, ...]:
    """Return the values of `--environment`."""
    return (*(environment.name for environment in ENVIRONMENTS), NO_ENVIRONMENT)


def detect(environ: Mapping[str, str], *, name: str | None = None, hostname: str | None = None) -> Detection | None:
    """Detect the environment that has started this process.

    Args:
        environ: The environment variables.
        name: The name of an environment, which is read even if it does not seem to match; "none" for only TF_CONFIG;
            None to detect the environment.
        hostname: The name of this host; defaults to the system's.

    Returns:
        The detected environment; None if this process was not started as a task of a cluster.

    Raises:
        ConfigError: No environment has this name.
        ClusterError: The environment's variables are incomplete, or contradict each other.
    """
    host = hostname or socket.gethostname()
    if name is not None and name not in names():
        close = nearest(name, names())
        raise ConfigError(
            f"the environment {name!r} is unknown",
            code="argument/unknown-name",
            found=f"{name!r}; known: {', '.join(names())}",
            hint=f"did you mean {close!r}?" if close else "use one of these, or leave it out.",
        )
    if name == NO_ENVIRONMENT:
        matches = [environment for environment in ENVIRONMENTS[:1] if environment.matches(environ)]
    elif name is not None:
        matches = [environment for environment in ENVIRONMENTS if environment.name == name]
    else:
        matches = [environment for environment in ENVIRONMENTS if environment.matches(environ)]
    if not matches:
        return None
    others = tuple(environment.name for environment in matches[1:])
    return Detection(matches[0], matches[0].read(environ, hostname=host), others)
