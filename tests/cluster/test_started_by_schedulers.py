"""Clusters whose tasks learn their part from a scheduler's variables alone, and train to the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launched_jobs import CONFIGS, SMALL

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

ROOT = Path(__file__).resolve().parents[2]


def slurm(rank, size):
    """A step on this machine, as Slurm describes it."""
    return {
        "SLURM_JOB_ID": "4712",  # of this file alone: the ports are derived from it
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(size),
        "SLURM_GTIDS": ",".join(map(str, range(size))),
        "SLURMD_NODENAME": "localhost",
    }


def hydra(rank, size):
    """What MPICH's mpiexec sets: ranks, and no hosts or ids."""
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(rank),
        "MPI_LOCALNRANKS": str(size),
        "ESTIMATOR_PIPELINE_HOST": "127.0.0.1",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "variables", "expected", "ports"),
    [
        ("digits_cnn_two_workers", slurm, ["worker:0", "worker:1", "evaluator:0"], "derived"),
        ("chief_workers_ps", hydra, None, "agreed"),
    ],
)
def test_tasks_find_their_part(run_environment, tmp_path, config, variables, expected, ports):
    from estimator_pipeline.cluster.roles import tasks_of
    from estimator_pipeline.job import load_job

    path = CONFIGS / f"{config}.yaml"
    names = [str(task) for task in tasks_of(load_job(path).cluster)]
    assert expected is None or names == expected
    changes = [*SMALL, f"run.model_dir={tmp_path / 'model'}"]
    options = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "estimator_pipeline", "train", str(path), *options, "--json", "--quiet"]
    processes = []
    try:
        for rank in range(len(names)):
            environ = {**run_environment, **variables(rank, len(names)), "OMP_NUM_THREADS": "1"}
            with open(tmp_path / f"{rank}.err", "w") as errors:
                processes.append(
                    subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
                )
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = [(tmp_path / f"{rank}.err").read_text() for rank in range(len(names))]
    assert [process.returncode for process in processes] == [0] * len(names), "\n".join(text[-1500:] for text in said)
    results = [json.loads(output) for output in outputs]
    assert all(result == results[0] for result in results) and results[0]["ended"] == "max_steps reached"
    for name, text in zip(names, said, strict=True):
        first = text.splitlines()[0]
        assert f"; {name} of " in first and f"ports {ports}" in first
