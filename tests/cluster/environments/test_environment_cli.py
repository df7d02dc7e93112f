"""`train` and `exec` where a scheduler has started them: what they say, write and refuse."""

from __future__ import annotations

import json
import os
import textwrap

import pytest

from estimator_pipeline.cli.environment import enter, parse_shape, reject_independent_tasks
from estimator_pipeline.compat.script_runner import runner
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch import LaunchShape
from tests.support.command_line import call

JOB = """
model: {name: linear}
input: {source: tfds, name: digits, global_batch_size: 64}
train: {max_steps: 10}
run: {model_dir: model, train_distribute: multi_worker_mirrored}
cluster: {workers: 2}
"""
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}
THREE = ["--set", "cluster.ports=agreed", "--set", "cluster.workers=3", "--set", "input.global_batch_size=63"]


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.mark.parametrize(
    ("options", "environ", "says"),
    [
        ([], STEP, "error: slurm: 3 tasks started, but the job has 2 tasks."),
        ([], {**STEP, "SLURM_PROCID": "x"}, "error: slurm: SLURM_PROCID='x' is not a whole number from 0 on."),
        (["--environment", "slrum"], STEP, "error: the environment 'slrum' is unknown"),
        (["--environment", "flux"], STEP, "error: flux: the variable FLUX_JOB_ID is not set."),
        (["--set", "cluster.ports=mine"], STEP, "cluster.ports"),
        ([*THREE, "--set", "run.model_dir=gs://b/m"], STEP, "error: the tasks cannot agree on ports in 'gs://b/m'"),
    ],
)
def test_what_does_not_fit_is_told(job, options, environ, says):
    done = call("train", job, *options, env=environ)
    assert done.returncode == 2
    message = done.stderr[done.stderr.index("error: ") :]
    assert says in message and "hint:" in message


def test_what_does_not_fit_is_told_before_tensorflow_starts(run_python, job):
    """Where the tasks are counted, and where they look for each other's ports."""
    for options in ([], [*THREE, "--set", "run.model_dir=gs://b/m"]):
        done = run_python(["-X", "importtime", "-m", "estimator_pipeline", "train", job, *options], env=STEP)
        assert done.returncode == 2 and "error: " in done.stderr and "| tensorflow\n" not in done.stderr


def test_what_is_written_and_said(capsys):
    environ = {**STEP, "OTHER": "1"}
    enter(environ, LaunchShape(workers=3))
    assert capsys.readouterr().err == (
        "environment slurm; job 7.0, rank 1 of 3; worker:1 of 3 that train; ports derived\n"
    )
    assert json.loads(environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
    assert environ["ESTIMATOR_PIPELINE_RUN_ID"] == "slurm-7.0-0"
    # A second look finds what the first has written, and says nothing.
    before = dict(environ)
    enter(environ, LaunchShape(workers=3))
    assert environ == before and capsys.readouterr().err == ""


# In a job script; `salloc` and a notebook that Slurm has started are like it.
SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "3"}


@pytest.mark.parametrize("environ", [{}, SCRIPT])
def test_nothing_is_written_where_nothing_has_started_a_task(environ, capsys):
    before = dict(environ)
    enter(environ, LaunchShape(workers=1, evaluator=True))
    enter({**environ, **STEP}, LaunchShape(workers=9), environment="none")
    if not environ:
        enter(environ, LaunchShape(workers=3))  # a job file on a laptop
    assert environ == before and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (SCRIPT, "srun"),
        # srun --pty: a shell. A step's variables that a job has inherited from where it was submitted are none of its.
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PTY_PORT": "1"}, "srun"),
        ({**STEP, "SLURM_NTASKS": "2"}, "srun"),
        ({"LSB_JOBID": "7"}, "blaunch or jsrun"),
        ({"PBS_JOBID": "7", "PBS_ENVIRONMENT": "PBS_INTERACTIVE", "PBS_NODEFILE": "/nowhere"}, "mpirun or pbsdsh"),
    ],
)
def test_one_of_several_that_nothing_has_started_is_refused(environ, launcher):
    """It would train alone, without a word."""
    for shape in (
        LaunchShape(workers=2),
        LaunchShape(workers=1, chief=True),
        LaunchShape(workers=1, ps=1, evaluator=True),
    ):
        before = dict(environ)
        with pytest.raises(ConfigError) as caught:
            enter(environ, shape)
        assert f"and this process was not started by {launcher}" in caught.value.what
        assert f"start it with {launcher}" in caught.value.hint and "--environment none" in caught.value.hint
        enter(environ, shape, environment="none")
        assert environ == before


def test_a_job_in_an_allocation_without_srun_ends_before_anything_is_trained(job):
    done = call("train", job, env=SCRIPT, cwd=job.parent)
    assert done.returncode == 2 and not (job.parent / "model").exists()
    message = done.stderr[done.stderr.index("error: ") :]
    assert message.startswith("error: the cluster has 2 tasks, and this process was not started by srun")
    assert "found: SLURM_JOB_ID=7 of a job script or a shell, and no TF_CONFIG" in message


# exec ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("workers=2,chief,ps=1,evaluator", LaunchShape(workers=2, chief=True, ps=1, evaluator=True)),
        ("workers=2, chief=0", LaunchShape(workers=2)),
        ("workers", LaunchShape(workers=3)),
        ("chief,workers", LaunchShape(workers=2, chief=True)),
        ("chief,workers,ps=1", LaunchShape(workers=1, chief=True, ps=1)),
    ],
)
def test_shapes(text, shape):
    assert parse_shape(text, STEP) == shape


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("worker=2", "worker=2"),
        ("workers=x", "workers=x"),
        ("workers=1,workers=2", "workers=2"),
        ("chief=2", "chief=2"),
        ("", ""),
    ],
)
def test_what_is_no_shape(text, part):
    with pytest.raises(ConfigError) as caught:
        parse_shape(text, STEP)
    assert f"--shape {text!r} does not list" in caught.value.what and repr(part) in caught.value.found


def test_workers_without_a_number_need_one_that_is_known():
    pod = {"JOB_COMPLETION_INDEX": "0", "HOSTNAME": "job-0"}
    with pytest.raises(ConfigError, match="kubernetes_job does not report one"):
        parse_shape("workers", pod)
    with pytest.raises(ConfigError, match="has more tasks than there are"):
        parse_shape("workers,ps=3,chief", STEP)
    assert parse_shape("workers", {}) == LaunchShape(workers=1)


def test_several_tasks_without_a_shape_are_refused():
    with pytest.raises(ConfigError) as caught:
        reject_independent_tasks(STEP)
    assert caught.value.what.startswith("slurm has started 3 tasks, and each would run the whole program")
    assert "rank 1 of 3" in caught.value.found and "--environment none" in caught.value.hint
    one = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n1"}
    element = {**one, "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_JOB_ID": "6"}
    for environ in ({}, SCRIPT, element, {**STEP, "SLURM_PROCID": "x"}, {**STEP, "TF_CONFIG": "{}"}):
        reject_independent_tasks(environ)
    reject_independent_tasks(STEP, environment="none")


def test_exec_is_never_alone_in_silence(monkeypatch):
    ran = []
    monkeypatch.setattr(runner, "run_script", lambda path, args, *, patches, tf1: ran.append(path) or 0)
    for environ, options, says in [
        ({}, ["--shape", "workers=2"], "the cluster has 2 tasks, and this process was not started as one of them"),
        (SCRIPT, ["--shape", "workers=2"], "and this process was not started by srun"),
        (SCRIPT, ["--shape", "workers"], "the cluster has 3 tasks, and this process was not started by srun"),
        (STEP, [], "slurm has started 3 tasks"),
    ]:
        done = call("exec", *options, "program.py", env=environ)
        assert (done.returncode, ran) == (2, []), (environ, options)
        assert says in done.stderr
        done = call("exec", "--environment", "none", *options, "program.py", env=environ)
        assert done.returncode == 0 and len(ran) == 1, done.stderr
        ran.clear()
    for environ, options in [
        ({}, []),
        ({}, ["--shape", "workers"]),
        ({"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})},
         ["--shape", "workers=2"]),
        (SCRIPT, []),
        ({**SCRIPT, "SLURM_NTASKS": "1"}, ["--shape", "workers"]),
        (SCRIPT, ["--shape", "chief,evaluator"]),
    ]:  # fmt: skip
        done = call("exec", *options, "program.py", env=environ)
        assert (done.returncode, done.stderr, len(ran)) == (0, "", 1), (environ, options)
        ran.clear()


def test_what_exec_tells_a_program(monkeypatch):
    given = []

    def run_script(path, args, *, patches, tf1):
        given.append((path, args, json.loads(os.environ["TF_CONFIG"])))
        return 7

    monkeypatch.setattr(runner, "run_script", run_script)
    done = call("exec", "--shape", "chief,workers", "program.py", "--shape", "own", env=STEP)
    assert done.returncode == 7 and "worker:0 of 3 that train; ports derived" in done.stderr
    ((path, args, document),) = given
    assert (path, args) == ("program.py", ["--shape", "own"])
    assert document["task"] == {"type": "worker", "index": 0}
    assert [len(document["cluster"][job]) for job in ("chief", "worker")] == [1, 2]


@pytest.mark.nightly
def test_a_legacy_program_finds_its_tf_config(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, sys
        print(sys.argv[1:], os.environ.get("TF_CONFIG"))
        """)
    )
    command = ["-m", "estimator_pipeline", "exec", "--shape", "chief,workers", program, "--shape", "own"]
    done = run_python(command, env=STEP)
    assert done.returncode == 0, done.stderr
    arguments, _, text = done.stdout.strip().partition("] ")
    assert arguments == "['--shape', 'own'"
    document = json.loads(text)
    assert document["task"] == {"type": "worker", "index": 0}
    assert [len(document["cluster"][job]) for job in ("chief", "worker")] == [1, 2]
    assert "worker:0 of 3 that train; ports derived" in done.stderr
