"""MPI launchers: Open MPI's `mpirun`, and Hydra (MPICH, Intel MPI, MVAPICH).

* Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE:
  https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html. PMIX_NAMESPACE names the start (4 and later).
* Hydra: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS. No variable names the start. Recorded on MPICH 4.0.2.

They identify a process, but not the hosts of the others, unless all are here. They come before the schedulers: an
`mpirun` inside a job of Slurm, PBS, LSF or Grid Engine is what numbers the processes, while the scheduler's variables
are those of the shell around it, or of the one daemon on each node. `srun --mpi=pmi2` and Flux set PMI_RANK as well,
without MPI_LOCALNRANKS; these ranks are the scheduler's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, contradiction, whole_number

__all__ = ["Hydra", "OpenMPI"]

# The ids of the job around an mpirun; of all schedulers, because mpirun passes its variables on.
_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID", "AWS_BATCH_JOB_ID")


class OpenMPI:
    """A process started by Open MPI's mpirun."""

    name = "open_mpi"
    variables = (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
        "SLURMD_NODENAME",
    )

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "OMPI_COMM_WORLD_RANK" in environ

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        # Version 5 writes "prterun-host-123@1".
        start = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
        return _allocation(
            environ,
            source=self.name,
            rank="OMPI_COMM_WORLD_RANK",
            size="OMPI_COMM_WORLD_SIZE",
            local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
            start=start,
        )


class Hydra:
    """A process started by mpiexec.hydra: MPICH, Intel MPI and others."""

    name = "hydra"
    variables = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "PMI_RANK" in environ and "MPI_LOCALNRANKS" in environ

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        return _allocation(
            environ, source=self.name, rank="PMI_RANK", size="PMI_SIZE", local_size="MPI_LOCALNRANKS", start=""
        )


def _allocation(
    environ: Mapping[str, str], *, source: str, rank: str, size: str, local_size: str, start: str
) -> Allocation:
    number = whole_number(environ, rank, source=source)
    count = whole_number(environ, size, source=source)
    here = whole_number(environ, local_size, source=source)
    if here > count:
        raise contradiction(
            source,
            f"{local_size}={here} is more than {size}={count}",
            found=f"{here} tasks on this host of {count} in all",
            hint="start all tasks by one mpirun.",
        )
    job = next((environ[name] for name in _JOB_IDS if environ.get(name)), "")
    return Allocation(
        environment=source,
        job_id=".".join(part for part in (job, start) if part) or source,
        rank=number,
        size=count,
        # All tasks are on this host if the two numbers are equal. Ports cannot be derived without an id.
        hosts=("localhost",) * count if here == count and (job or start) else None,
        start_id=f"{source}-{job}-{start}" if start else None,
    )
