"""MPI launchers: recorded variables, alone and inside Slurm, where the scheduler's would say something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimator_pipeline.cluster import detect
from estimator_pipeline.errors import ClusterError

CASES = json.loads((Path(__file__).parents[2] / "records" / "environments" / "slurm.json").read_text())["cases"]

# Recorded: mpirun -np 2 of Open MPI 4.1.4, and mpiexec.hydra -np 2 of MPICH 4.0.2, on one machine.
OPEN_MPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "469368833",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_NAMESPACE": "469368833",
    "PMIX_RANK": "1",
}
HYDRA = {
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "8",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}


def test_open_mpi_on_one_machine():
    found = detect(OPEN_MPI, hostname="here")
    assert found.environment.name == "open_mpi"
    assert (found.allocation.rank, found.allocation.size) == (1, 2)
    assert found.allocation.hosts == ("localhost", "localhost")
    assert (found.allocation.job_id, found.allocation.start_id) == ("469368833", "open_mpi--469368833")


def test_hydra_on_one_machine_has_no_id_from_which_ports_could_follow():
    found = detect(HYDRA, hostname="here")
    assert found.environment.name == "hydra"
    assert (found.allocation.rank, found.allocation.size) == (1, 2)
    assert found.allocation.hosts is None and found.allocation.start_id is None
    inside = detect({**HYDRA, "PBS_JOBID": "12.server"}, hostname="here").allocation
    assert inside.hosts == ("localhost", "localhost") and inside.job_id == "12.server"


@pytest.mark.parametrize(("case", "name"), [("slurm_openmpi", "open_mpi"), ("slurm_hydra", "hydra")])
def test_inside_slurm_the_ranks_are_those_of_mpirun(case, name):
    """Slurm's variables there are those of the job script and of mpirun's daemons: three ranks would be one."""
    environs = [{**CASES[case]["common"], **own} for own in CASES[case]["tasks"]]
    assert {environ["SLURM_PROCID"] for environ in environs} != {"0", "1", "2", "3"}
    found = [detect(environ, hostname="x") for environ in environs]
    assert {one.environment.name for one in found} == {name}
    assert [one.allocation.rank for one in found] == [0, 1, 2, 3]
    assert {one.allocation.size for one in found} == {4}
    assert len({one.allocation.job_id for one in found}) == 1 and found[0].allocation.job_id.startswith("17")
    # Three ranks on the first node, one on the second: which is where, no variable says.
    assert {one.allocation.hosts for one in found} == {None}


def test_pmi_variables_of_srun_and_of_flux_are_not_hydras():
    environ = {**CASES["pmi2"]["common"], **CASES["pmi2"]["tasks"][1]}
    assert environ["PMI_RANK"] == "1" and environ["PMI_SIZE"] == "2"
    found = detect(environ, hostname="n1")
    assert found.environment.name == "slurm" and found.others == ()
    flux = {
        "FLUX_JOB_ID": "ƒ3ETxsR9H",
        "FLUX_TASK_RANK": "1",
        "FLUX_TASK_LOCAL_ID": "1",
        "FLUX_JOB_SIZE": "2",
        "FLUX_JOB_NNODES": "1",
        "PMI_RANK": "1",
        "PMI_SIZE": "2",
    }
    assert detect(flux, hostname="n1").environment.name == "flux"


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": ""}, "open_mpi: the variable OMPI_COMM_WORLD_SIZE is empty."),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2"}, "open_mpi: the rank 2 is not one of 2 tasks."),
        ({**HYDRA, "MPI_LOCALNRANKS": "3"}, "hydra: MPI_LOCALNRANKS=3 is more than PMI_SIZE=2."),
    ],
)
def test_contradictions(environ, what):
    with pytest.raises(ClusterError) as caught:
        detect(environ, hostname="here")
    assert caught.value.what == what and caught.value.found and caught.value.hint
