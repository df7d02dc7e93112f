"""Which environment has started this process, out of those that are known. Imports no TensorFlow."""

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
    # What describes the whole cluster with roles leaves nothing to work out, and somebody meant it so. TF_CONFIG comes
    # before all: Kubeflow sets it in a pod, SageMaker's parameter servers and our launcher beside other variables.
    TFConfigVariable(),
    Vertex(),
    # The Job Step Manager of LSF also sets Open MPI's variables; its own say the same, and the job's id is LSF's.
    LSF(),
    # Whoever started this very process numbers it. mpirun runs inside a job of the schedulers below: their variables
    # are then those of the job script, or of mpirun's one daemon on each node, and show every rank of a node as one.
    OpenMPI(),
    Hydra(),
    # Launchers that may run inside another scheduler's job, and hand its variables on: a Flux instance within Slurm.
    Flux(),
    # Schedulers that number their tasks.
    Slurm(),
    AWSBatch(),
    SageMaker(),
    # A JobSet's pods are those of Indexed Jobs, so the special one comes first.
    JobSet(),
    IndexedJob(),
    StatefulSet(),
    # Schedulers that only list hosts: a task is found by its host's name, the weakest of all signs.
    PBS(),
    GridEngine(),
    OAR(),
)
"""In order of precedence: the first that matches is taken."""


@dataclass(frozen=True)
class Detection:
    """What was found.

    Attributes:
        environment: which one has started this process.
        allocation: what it says.
        others: the names of those that match as well, and came later in the order.
    """

    environment: Environment
    allocation: Allocation
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """An allocation in which a process runs that is no task of it: a job script, or a shell.

    Attributes:
        environment: the name of the environment that would have started a task.
        sign: the variable by which it is known, with its value.
        launcher: what starts tasks there.
        tasks: how many tasks it starts by itself; 1 where nothing says so.
    """

    environment: str
    sign: str
    launcher: str
    tasks: int = 1


# The others tell a job script from a task by nothing, or take their variables away from it.
_ALLOCATIONS = (
    ("slurm", "SLURM_JOB_ID", "srun"),
    ("lsf", "LSB_JOBID", "blaunch or jsrun"),
    ("pbs", "PBS_JOBID", "mpirun or pbsdsh"),
)


def surroundings(environ: Mapping[str, str]) -> Surroundings | None:
    """The allocation around a process that :func:`detect` finds to be no task; None where there is none.

    Args:
        environ: the variables to look at.
    """
    for name, variable, launcher in _ALLOCATIONS:
        if environ.get(variable):
            tasks = environ.get("SLURM_NTASKS") or environ.get("SLURM_NNODES", "") if name == "slurm" else ""
            count = int(tasks) if tasks.isdigit() else 1
            return Surroundings(name, f"{variable}={environ[variable]}", launcher, count)
    return None


def lone_task(environ: Mapping[str, str], tasks: int, *, whole: bool = True) -> ConfigError | None:
    """Why a process that nothing has started as a task must not do alone what several tasks should; None: it may.

    Args:
        environ: the variables to look at.
        tasks: how many there are.
        whole: whether a process outside of any allocation may be all of them.
    """
    around = surroundings(environ)
    if around is None and whole:
        return None
    alone = "or give --environment none to run all of it in this process."
    if around is None:
        return ConfigError(
            f"the cluster has {tasks} tasks, and nothing has started this process as one of them",
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
    """The names that `--environment` takes."""
    return (*(environment.name for environment in ENVIRONMENTS), NO_ENVIRONMENT)


def detect(environ: Mapping[str, str], *, name: str | None = None, hostname: str | None = None) -> Detection | None:
    """Finds the environment that has started this process.

    Args:
        environ: the variables to look at.
        name: an environment's name, which is then read whether it seems to match or not; "none" for no environment
            but TF_CONFIG; None to look for one.
        hostname: what this machine calls itself; asked of the system by default.

    Returns:
        What was found; None where nothing has started this process as a task of a cluster.

    Raises:
        ConfigError: No environment has this name.
        ClusterError: The environment's variables are incomplete, or contradict each other.
    """
    host = hostname or socket.gethostname()
    if name is not None and name not in names():
        close = nearest(name, names())
        raise ConfigError(
            f"the environment {name!r} is not known",
            code="argument/unknown-name",
            found=f"{name!r}; known: {', '.join(names())}",
            hint=f"did you mean {close!r}?" if close else "name one of these, or leave it out.",
        )
    if name == NO_ENVIRONMENT:
        found = [environment for environment in ENVIRONMENTS[:1] if environment.matches(environ)]
    elif name is not None:
        found = [environment for environment in ENVIRONMENTS if environment.name == name]
    else:
        found = [environment for environment in ENVIRONMENTS if environment.matches(environ)]
    if not found:
        return None
    others = tuple(environment.name for environment in found[1:])
    return Detection(found[0], found[0].read(environ, hostname=host), others)
