"""Slurm: what real steps set (recorded), and what contradicts itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimator_pipeline.cluster import detect
from estimator_pipeline.cluster.environments.slurm import distribute
from estimator_pipeline.errors import ClusterError

RECORDS = Path(__file__).parents[2] / "records" / "environments" / "slurm.json"
CASES = json.loads(RECORDS.read_text())["cases"]


def environs(case: str) -> list[dict[str, str]]:
    """The variables of each process of a recorded start, by rank."""
    return [{**CASES[case]["common"], **own} for own in CASES[case]["tasks"]]


# The recorded start -> the host of each rank. What each task was told by Slurm (SLURMD_NODENAME) is the proof.
STEPS = {
    "default_uneven": "n2 n2 n10",
    "one_a_node": "n2 n10",
    "cyclic": "n1 n2 n10 n1 n1",
    "block": "n1 n1 n1 n3",
    "cyclic_pack": "n1 n3 n1 n1",
    "pmi2": "n1 n1",
    "salloc_step": "n1 n1 n2",
    "batch_step": "n1 n1 n1 n2",
    "batch_small_step": "n1 n1",
    "step_in_step": "n1 n2",
    "het_step": "n1 n2 n2 n10",
    "het_second": "n2 n2 n10",
    "het_a": "n1 n2 n10",
    # The node list of the step is n[1-2,10]; the components, and so the ranks, begin with n10.
    "het_reversed": "n10 n10 n1 n1 n2",
    "het_reversed_cyclic": "n10 n10 n1 n2 n1",
    "requeued": "n1 n1",
}


@pytest.mark.parametrize("case", STEPS)
def test_every_task_of_a_recorded_step_knows_where_all_are(case):
    expected = tuple(STEPS[case].split())
    recorded = environs(case)
    assert len(recorded) == len(expected)
    for rank, environ in enumerate(recorded):
        found = detect(environ, hostname="somewhere")
        assert found is not None and found.environment.name == "slurm"
        allocation = found.allocation
        assert (allocation.rank, allocation.size) == (rank, len(expected))
        assert allocation.hosts == expected
        assert allocation.hosts[rank] == environ["SLURMD_NODENAME"] == allocation.own_host
        assert not allocation.inferred


@pytest.mark.parametrize("case", ["salloc_shell", "batch_script", "het_script", "pty", "sbatch_from_step"])
def test_a_shell_is_no_task(case):
    """What runs once in an allocation: its SLURM_* variables give it no part in a cluster."""
    (environ,) = environs(case)
    assert environ["SLURM_JOB_ID"]
    assert detect(environ, hostname="n1") is None


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292", ""])
def test_special_steps_are_no_tasks(step):
    (environ, *_) = environs("one_a_node")
    assert detect({**environ, "SLURM_STEP_ID": step}, hostname="n1") is None


def test_steps_started_from_a_terminal_are_tasks():
    """`srun --pty bash`, and an srun in there, which inherits SLURM_PTY_PORT."""
    (environ, *_) = environs("one_a_node")
    assert detect({**environ, "SLURM_PTY_PORT": "45139"}, hostname="n2") is not None


def test_a_step_names_its_job_its_number_and_its_restarts():
    first, again = environs("one_a_node")[0], environs("requeued")[0]
    found = detect(first, hostname="x").allocation
    assert (found.job_id, found.restart, found.start_id) == ("7.0", 0, "slurm-7.0-0")
    found = detect(again, hostname="x").allocation
    assert (found.job_id, found.restart, found.start_id) == ("21.0", 1, "slurm-21.0-1")
    other = detect(environs("batch_small_step")[0], hostname="x").allocation
    assert other.job_id == "17.1"


def test_each_element_of_an_array_is_a_cluster_of_its_own():
    found = [detect(environ, hostname="x").allocation for environ in environs("array")]
    assert [one.rank for one in found] == [0, 1, 0, 1]
    assert [one.job_id for one in found] == ["22.0", "22.0", "18.0", "18.0"]
    assert "job array 18, whose element 3" in found[0].notes[0]


@pytest.mark.parametrize(("kind", "expected"), [("block", "aaabcc"), ("cyclic", "abcaca")])
def test_distributions(kind, expected):
    assert distribute("abc", [3, 1, 2], kind=kind) == list(expected)


def test_hosts_are_unknown_where_no_variable_settles_them():
    het = environs("het_step")[0]
    no_groups = {name: value for name, value in het.items() if "NODELIST_HET" not in name}
    for environ in (no_groups, environs("plane")[0], environs("arbitrary")[0]):
        found = detect(environ, hostname="x").allocation
        assert found.hosts is None and found.size == int(environ["SLURM_STEP_NUM_TASKS"])
        assert found.own_host == environ["SLURMD_NODENAME"]
        assert "does not report the host of each rank" in found.notes[0]


@pytest.mark.parametrize(
    ("changes", "what", "found"),
    [
        ({"SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "6"}, "SLURM_STEP_NUM_TASKS=6 is not the sum", "5 tasks on 3"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,2"}, "are of different lengths", "3 nodes and the tasks of 2"),
        ({"SLURM_PROCID": "5"}, "the rank 5 is not one of 5 tasks", "ranks 0 to 4"),
        ({"SLURM_PROCID": "one"}, "SLURM_PROCID='one' is not a whole number", "'one'"),
        ({"SLURM_JOB_ID": None}, "the variable SLURM_JOB_ID is not set", "looks like a task of slurm"),
        ({"SLURM_STEP_NODELIST": "n[1-2,10"}, "SLURM_STEP_NODELIST='n[1-2,10' is not a host list", "n[1-2,10"),
        ({"SLURM_DISTRIBUTION": "block"}, "SLURM_GTIDS='0,3,4'", "the ranks 0,1,2 on n1"),
    ],
)
def test_contradictions_are_one_message(changes, what, found):
    environ = environs("cyclic")[0]
    changed = {name: value for name, value in {**environ, **changes}.items() if value is not None}
    with pytest.raises(ClusterError) as caught:
        detect(changed, hostname="n1")
    assert caught.value.what.startswith("slurm: ") and what in caught.value.what
    assert found in caught.value.found and caught.value.hint
