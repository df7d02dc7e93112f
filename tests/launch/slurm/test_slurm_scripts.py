"""Batch scripts held against golden files; the section `slurm`; sweeps; what the commands say without Slurm."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job, make_job
from estimator_pipeline.launch.batch.runs import LogReaders, progress_of, runs_of
from estimator_pipeline.launch.batch.submission import Submission
from estimator_pipeline.launch.job_status import progress_text
from estimator_pipeline.launch.schedulers import reference_of
from estimator_pipeline.launch.slurm.scheduler import SlurmScheduler
from estimator_pipeline.launch.slurm.script import components_of, plan_slurm
from estimator_pipeline.launch.slurm.sweep import read_sweep
from tests.support.command_line import call

SLURM = SlurmScheduler()
GOLDEN = Path(__file__).parent / "golden"
CONFIGS = Path(__file__).resolve().parents[3] / "legacy_configs"
ACCEPT = "ESTIMATOR_PIPELINE_ACCEPT_GOLDEN"

FULL = {
    "job_name": "night run",
    "account": "vision",
    "qos": "long",
    "partition": "gpu",
    "time": "1-12:00:00",
    "signal_seconds": 300,
    "max_requeues": 20,
    "max_restarts": 5,
    "step_timeout": 900,
    "metrics_dir": "/var/lib/node exporter",
    "tasks_per_node": 1,
    "cpus_per_task": 8,
    "gpus_per_task": "a100:2",
    "gpus_per_node": "a100:4",
    "gres": "tmpdir:100G",
    "mem": "64G",
    "constraint": "a100&ib",
    "nodelist": "n[1-4]",
    "exclude": ["n7", "n8"],
    "exclusive": True,
    "comment": 'the "night" run # 3',
    "dependency": "afterok:1234",
    "setup": ["module load cuda/12", "source /venv/bin/activate"],
    "teardown": ["rm -rf /scratch/$SLURM_JOB_ID"],
    "env": {"TF_CPP_MIN_LOG_LEVEL": 1, "GREETING": "it's me", "TF_DETERMINISTIC_OPS": True, "SHARE": 0.5},
    "command": "apptainer exec --nv image.sif estimator-pipeline",
    "srun": ["--mpi=none"],
    "sbatch": ["--licenses=data:1", "--wckey=a b # c", "--reservation='my nodes'", "--begin now", "--hold --nice=5"],
    "mail_user": "me@example.org",
    "mail_type": "END,FAIL",
}
ROLES = {
    "cpus_per_task": 8,
    "gpus_per_task": 1,
    "partition": "gpu",
    "time": "4:00:00",
    "roles": {
        "ps": {"partition": "cpu", "gpus_per_task": 0, "mem": "32G", "cpus_per_task": 4},
        "evaluator": {"partition": "cpu", "gpus_per_task": 0, "cpus_per_task": 2},
    },
}


def job(config="digits_cnn_two_workers", **slurm):
    base = load_job(CONFIGS / f"{config}.yaml", overrides=["run.model_dir=/shared/runs/model"])
    return make_job({**base.model_dump(exclude_defaults=True), "name": base.name, "slurm": slurm})


def plan(loaded, **more):
    return plan_slurm(
        loaded,
        folder="/shared/runs/model/slurm/20260101-000000-00000000",
        working_dir="/home/me/my project",
        command=["/venv/bin/python", "-m", "estimator_pipeline"],
        version="0.1.0",
        **more,
    )


CASES = {
    "plain": lambda: plan(job()),
    "full": lambda: plan(job(**FULL)),
    "roles": lambda: plan(make_job(with_evaluator(job("chief_workers_ps", **ROLES)))),
    "array": lambda: plan(job("single", max_requeues=0), elements=[job("single")] * 3, at_once=2),
}


def with_evaluator(loaded):
    data = loaded.model_dump(exclude_defaults=True)
    data["eval"] = {**data.get("eval", {}), "during_training": False}
    return {**data, "name": loaded.name, "cluster": {**data["cluster"], "evaluator": True}}


# In place of `estimator-pipeline supervise`: fails once it is asked to end.
_FAILING = """#!/bin/bash
while [ "$1" != --log-dir ]; do shift; done
trap 'exit 1' USR1
[ -z "$TRAINED" ] || echo '{"event": "first_step", "task": "worker:0"}' >"$2/events.jsonl"
touch "$2/runs"
while :; do sleep 0.02; done
"""


@pytest.mark.parametrize("trained", [True, False])
def test_what_fails_while_it_stops_goes_back_into_the_queue(trained, tmp_path):
    """It has lost steps, if it had trained; else it came too late."""
    for name, text in (("supervisor", _FAILING), ("scontrol", "#!/bin/sh\necho $* >>called\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = load_job(CONFIGS / "digits_cnn_two_workers.yaml")
    folder, supervisor = tmp_path / "job", str(tmp_path / "supervisor")
    plan = plan_slurm(job, folder=str(folder), working_dir=str(tmp_path), command=[supervisor], version="1")
    (tmp_path / "job.sh").write_text(plan.script)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    script = subprocess.Popen(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env=variables | {"TRAINED": "1" if trained else ""},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (folder / "run-0" / "runs").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        script.send_signal(signal.SIGUSR1)
        said, _ = script.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
    assert script.returncode == 75 and (tmp_path / "called").read_text() == "requeue 7\n"
    assert ("failed while it stopped (exit code 1); the steps after the last checkpoint are lost" in said) == trained
    assert ("asked to stop before training had begun" in said) == (not trained)
    assert (folder / "too-early").exists() == (not trained)


@pytest.mark.parametrize("code", [0, 3])
def test_teardown_is_run_whatever_came_of_the_tasks(code, tmp_path):
    """And what it exits with is not the job's."""
    plan = plan_slurm(
        job(teardown=['echo "torn $NOT_SET" >torn', "exit 9"]),
        folder=str(tmp_path / "job"),
        working_dir=str(tmp_path),
        command=["sh", "-c", f"exit {code}"],
        version="1",
    )
    variables = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    done = subprocess.run(
        ["bash"], input=plan.script, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, (tmp_path / "torn").read_text()) == (code, "torn \n"), done.stderr
    assert "slurm.teardown ended with exit code 9" in done.stdout


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_as_it_was(name):
    path, script = GOLDEN / f"{name}.sh", CASES[name]().script
    if os.environ.get(ACCEPT):
        path.write_text(script)
    diff = difflib.unified_diff(path.read_text().splitlines(), script.splitlines(), "golden", "now", lineterm="")
    assert script == path.read_text(), "\n".join([*diff, f"If this is meant: {ACCEPT}=1, and look at `git diff`."])


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_bash(name):
    done = subprocess.run(["bash", "-n"], input=CASES[name]().script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, CASES[name]().script.splitlines())) < 200


def test_roles_with_resources_of_their_own_are_components_in_the_order_of_the_ranks():
    found = components_of(make_job(with_evaluator(job("chief_workers_ps", **ROLES))))
    assert [", ".join(tasks) for _, tasks in found] == ["chief:0, worker:0", "ps:0, ps:1", "evaluator:0"]
    assert [resources.gpus_per_task for resources, _ in found] == [1, 0, 0]
    assert [resources.mem for resources, _ in found] == [None, "32G", None]
    assert len(components_of(job())) == 1
    same = job(partition="gpu", roles={"evaluator": {"partition": "gpu"}})
    assert len(components_of(same)) == 1


def test_the_job_file_of_the_tasks_hears_the_signals_of_the_script():
    loaded = job()
    own = make_job(
        {**loaded.model_dump(exclude_defaults=True), "name": "x"}, overrides=["run.preemption_signals=[SIGUSR2]"]
    )
    text = plan(own).files["job.yaml"]
    assert re.findall(r"SIG\w+", text) == ["SIGUSR2", "SIGTERM", "SIGUSR1"]
    assert "preemption_signals" not in plan(loaded).files["job.yaml"]


@pytest.mark.parametrize(
    ("slurm", "says"),
    [
        ({"time": "4h"}, "slurm.time: this is not a time limit of Slurm."),
        ({"mem": "64 GB"}, "slurm.mem: this is not an amount of memory."),
        ({"mem": "1G", "mem_per_cpu": "1G"}, "memory is set both per node and per CPU."),
        ({"sbatch": ["--comment=a\n#SBATCH --uid=0"]}, "slurm.sbatch.0: this is not a long option."),
        ({"env": {"A": [1]}}, "slurm.env.A: [1] is not text."),
        ({"sbatch": ["-p gpu"]}, "slurm.sbatch.0: this is not a long option."),
        ({"sbatch": ["--output=x"]}, "hint: set slurm.dir."),
        ({"srun": ["--ntasks 3"]}, "slurm.srun.0: the script already sets --ntasks."),
        ({"env": {"a-b": "1"}}, "this is not the name of a variable."),
        ({"signal_seconds": 5}, "slurm.signal_seconds"),
        ({"roles": {"ps": {"mem": "1G"}}}, "found: the roles worker, evaluator"),
        ({"nodes": 2, "roles": {"evaluator": {}}}, "slurm.nodes: the evaluator is a separate component"),
        ({"roles": {"boss": {}}}, "slurm.roles"),
        ({"roles": {"worker": {"time": 3}}}, "'time'"),
        ({"partion": "gpu"}, "did you mean 'partition'?"),
    ],
)  # fmt: skip
def test_mistakes_in_the_section(slurm, says):
    with pytest.raises(ConfigError) as caught:
        job(**slurm)
    assert says in str(caught.value)


def test_memory_of_a_role_takes_the_place_of_the_other_kind():
    loaded = job(mem_per_cpu="2G", roles={"evaluator": {"mem": "16G"}})
    evaluator = loaded.slurm.of_role("evaluator")
    assert (evaluator.mem, evaluator.mem_per_cpu) == ("16G", None)
    assert loaded.slurm.of_role("worker").mem_per_cpu == "2G"


# Sweeps --------------------------------------------------------------------------------------------------------


def test_a_sweep_is_a_list_or_a_product(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("- {train.max_steps: 10}\n- {name: a b, run.devices: [x, y]}\n")
    assert read_sweep(path) == [["train.max_steps=10"], ['name="a b"', 'run.devices=["x", "y"]']]
    path.write_text("a: [1, 2]\nb: [x, true]\n")
    assert read_sweep(path) == [["a=1", 'b="x"'], ["a=1", "b=true"], ["a=2", 'b="x"'], ["a=2", "b=true"]]


@pytest.mark.parametrize("text", ["", "3", "[]", "a: 1", "- 1", "a: [", "a: []"])
def test_a_sweep_that_is_none(tmp_path, text):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"the sweep .*sweep\.yaml (cannot be read|has no elements)"):
        read_sweep(path)


# Commands without Slurm ----------------------------------------------------------------------------------------


def cli(tmp_path, *words):
    """With a PATH on which no Slurm is."""
    done = call(*words, env={"PATH": str(tmp_path)})
    return done.returncode, done.stdout, done.stderr


def test_dry_run_prints_the_script_anywhere_and_writes_nothing(tmp_path):
    words = ["submit", "slurm", CONFIGS / "digits_cnn_two_workers.yaml", "--set", f"run.model_dir={tmp_path / 'model'}"]
    code, out, err = cli(tmp_path, *words, "--dry-run")
    assert (code, err) == (0, "") and out.startswith("#!/bin/bash\n# digits_cnn_two_workers: 2 workers, 1 evaluator.\n")
    assert not (tmp_path / "model").exists()
    document = json.loads(cli(tmp_path, *words, "--dry-run", "--json")[1])
    assert list(document) == ["script", "folder", "files"] and "name: cnn" in document["files"]["job.yaml"]
    code, out, err = cli(tmp_path, *words)
    assert (code, out) == (2, "") and err.startswith("error: ") and "[scheduler/unavailable]\n" in err
    assert not (tmp_path / "model").exists()


def test_what_cannot_work_is_told_before_anything_is_submitted(tmp_path):
    """All of it, one a line."""
    words = ["submit", "slurm", CONFIGS / "single.yaml", "--set", f"run.model_dir={tmp_path / 'model'}"]
    words += ["--set", "input.name=digitz", "--set", "model={function: no.py:f}", "--set", "slurm.time=2"]
    for more in ([], ["--dry-run"]):
        code, out, err = cli(tmp_path, *words, *more)
        lines = err.splitlines()
        assert code == 2 and out.startswith("#!/bin/bash") == bool(more) and not (tmp_path / "model").exists()
        assert "has 3 mistakes, and nothing is submitted (--no-checks submits all the same)" in lines[0]
        begin = ("  model.function: the file no.py", "  There is no TensorFlow Datasets", "  slurm.time is 120 s")
        assert len(lines) == 7 and all(map(str.startswith, lines[1::2], begin))
        codes = ("[job/bad-function]", "[data/not-found]", "[job/conflict]")
        assert all(map(str.endswith, lines[1::2], codes)), "`explain` fits each"
        assert all(line.startswith("    hint: ") for line in lines[2::2])
    assert cli(tmp_path, *words, "--dry-run", "--no-checks")[0] == 0
    assert "there is no sbatch" in cli(tmp_path, *words, "--no-checks")[2]


def test_memory_that_may_not_be_enough_is_a_warning(tmp_path):
    """And an error where not one task has it."""
    words = ["submit", "slurm", CONFIGS / "digits_cnn_two_workers.yaml", "--set", f"run.model_dir={tmp_path / 'model'}"]
    words += ["--set", "cluster.evaluator=false", "--set", "slurm.tasks_per_node=2", "--dry-run"]
    code, out, err = cli(tmp_path, *words, "--set", "slurm.mem=700M")
    assert code == 0 and out.startswith("#!/bin/bash")
    assert (
        err.startswith("warning: slurm.mem 700M for 2 task(s) on a node (worker)") and "\n  hint: set slurm.mem" in err
    )
    assert cli(tmp_path, *words, "--set", "slurm.mem=700M", "--no-checks")[2] == ""
    code, _, err = cli(tmp_path, *words, "--set", "slurm.mem=300M")
    assert code == 2 and "slurm.mem 300M for 2 task(s) on a node (worker)" in err and "nothing is submitted" in err
    # Of an array, once.
    (tmp_path / "sweep.yaml").write_text("run.seed: [1, 2]\n")
    err = cli(tmp_path, *words, "--set", "slurm.mem=700M", "--array", tmp_path / "sweep.yaml")[2]
    assert err.count("warning: slurm.mem 700M") == 1


def test_elements_of_an_array_that_cannot_work_are_named(tmp_path):
    (tmp_path / "sweep.yaml").write_text("input.name: [digits, digitz]\nrun.seed: [1, 2]\n")
    code, _, err = cli(tmp_path, "submit", "slurm", CONFIGS / "single.yaml", "--array", tmp_path / "sweep.yaml")
    assert code == 2 and "single.yaml: elements 2, 3: There is no TensorFlow Datasets data set 'digitz'" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["submit", "slurm", "JOB", "--at-once", "2"], "--at-once requires an array"),
        (["submit", "slurm", "JOB", "--set", "run.model_dir=gs://b/m"], "need a folder that all nodes share"),
        (["submit", "slurm", "JOB", "--array", "TMP/one.yaml"], "would train in the same model directory"),
        (["submit", "slurm", "JOB", "--array", "TMP/two.yaml"], "element 1 of the sweep"),
        (["status", "JOB", "--set", "run.model_dir=TMP/none"], "nothing was launched or submitted with this"),
        (["status", "TMP", "--set", "a=1"], "requires a job file"),
        (["logs", "17"], "there is no scontrol on this machine"),
        (["cancel", "TMP"], "nothing has been submitted to Slurm here"),
    ],
)
def test_what_the_commands_refuse(tmp_path, words, says):
    (tmp_path / "one.yaml").write_text("- {run.model_dir: x}\n- {run.model_dir: x}\n")
    (tmp_path / "two.yaml").write_text("- {train.max_steps: 3}\n- {slurm.time: 3}\n")
    named = [word.replace("TMP", str(tmp_path)).replace("JOB", str(CONFIGS / "single.yaml")) for word in words]
    code, out, err = cli(tmp_path, *named)
    assert (code, out) == (2, "") and err.startswith("error: ") and says in err and "Traceback" not in err


def test_records_of_slurm_are_read(tmp_path):
    text = (
        "JobId=17 ArrayJobId=17 ArrayTaskId=0,2-3%2 JobName=a b=c JobState=PENDING Reason=Resources Restarts=1 "
        "Command=/a b/job.sh ExitCode=0:0\nJobId=18 ArrayJobId=17 ArrayTaskId=1 JobState=FAILED ExitCode=75:0\n"
    )
    first, second = SLURM.records(None, environ=fake_scontrol(tmp_path, text))
    assert (first.script, first.state, first.fields["Restarts"]) == (Path("/a b/job.sh"), "PENDING", "1")
    assert (first.ids, first.elements, second.ids, second.elements) == (("17", "17"), {0, 2, 3}, ("18", "17"), {1})
    (other,) = SLURM.records(None, environ=fake_scontrol(tmp_path, "JobId=3 ArrayTaskId=N/A"))
    assert other.elements == set() and SLURM.records(None, environ=fake_scontrol(tmp_path, "")) == []


def test_a_job_takes_over_nothing_of_the_task_that_submits_it():
    environ = {"SLURM_RESTART_COUNT": "3", "SLURM_CONF": "x", "SBATCH_ACCOUNT": "y", "TF_CONFIG": "{}", "HOME": "/"}
    assert SLURM.clean(environ) == {"SLURM_CONF": "x", "SBATCH_ACCOUNT": "y", "HOME": "/"}


def fake_scontrol(folder, said):
    """A scontrol that says one thing."""
    path = folder / "scontrol"
    path.write_text(f"#!{shutil.which('sh')}\ncat <<'X'\n{said}\nX\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/bin:/usr/bin"}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("JobState=PENDING Reason=Priority Restarts=0", "job 7 (x): waiting in the queue (Priority)"),
        ("JobState=RUNNING Restarts=2 RunTime=00:01:02 TimeLimit=04:00:00 NodeList=n[1-2]",
         "job 7 (x): running, 00:01:02 of 04:00:00, on n[1-2], requeued 2 times"),
        ("JobState=FAILED ExitCode=75:0", "job 7 (x): stopped with a checkpoint, and not requeued (exit code 75)"),
        ("JobState=FAILED ExitCode=3:0", "job 7 (x): failed: training diverged (exit code 3)"),
        ("JobState=FAILED ExitCode=0:9", "job 7 (x): failed (exit code 137)"),
        ("JobState=NODE_FAIL ExitCode=0:0", "job 7 (x): ended because a node failed"),
        ("JobState=SPECIAL_EXIT", "job 7 (x): special exit"),
    ],
)  # fmt: skip
def test_states_in_words(tmp_path, said, text):
    environ = fake_scontrol(tmp_path, f"JobId=7 {said}")
    (found,) = SLURM.status(Submission("7", tmp_path, "x"), environ=environ).jobs
    assert found.lines() == [text]


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("DependencyNeverSatisfied", "slurm.dependency"),
        ("PartitionConfig", "scontrol show partition"),
        ("PartitionNodeLimit", "slurm.nodes"),
        ("PartitionTimeLimit", "slurm.time"),
        ("BadConstraints", "slurm.constraint"),
        ("InvalidQOS", "slurm.qos"),
        ("InvalidAccount", "slurm.account"),
        ("AccountNotAllowed", "slurm.account"),
        ("AssocMaxWallDurationPerJobLimit", "request less"),
        ("QOSMaxGRESPerNode", "request less"),
        ("QOSMinGRES", "request more"),
        ("ReqNodeNotAvail,_UnavailableNodes:n1", None),
        ("Dependency", None),
        ("QOSMaxJobsPerUserLimit", None),
        ("AssocMaxJobsLimit", None),
        ("AssocGrpCpuLimit", None),
        ("PartitionDown", None),
        ("JobHeldUser", None),
    ],
)
def test_a_job_that_can_never_start(tmp_path, reason, hint):
    environ = fake_scontrol(tmp_path, f"JobId=7 JobState=PENDING Reason={reason} Dependency=(null)")
    (status,) = SLURM.status(Submission("7", tmp_path, "x"), environ=environ).jobs
    if hint is None:
        assert status.lines() == [f"job 7 (x): waiting in the queue ({reason})"]
    else:
        assert status.lines()[0] == f"job 7 (x): cannot start: {reason}" and hint in status.lines()[1]
        assert status.row().failure == f"cannot start: {reason}" and status.document()["reason"] == reason
        assert status.failed


def test_the_newest_submission_counts(tmp_path):
    for name, when in [("b", 1.0), ("a", 2.0)]:
        (tmp_path / "slurm" / name).mkdir(parents=True)
        record = Submission(name, tmp_path / "elsewhere", "x", submitted=when).document()
        (tmp_path / "slurm" / name / "submission.json").write_text(json.dumps(record))
    found = SLURM.find(reference_of(str(tmp_path)), environ={})
    assert (found.job_id, found.folder) == ("a", tmp_path / "slurm" / "a")
    (found.folder / "submission.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a valid record of a submission"):
        SLURM.find(reference_of(str(found.folder)), environ={})


# Logs ----------------------------------------------------------------------------------------------------------


def test_logs_over_requeues(tmp_path):
    (tmp_path / "output.log").write_text("start 0\nstart 1\n")
    for run in (0, 1, 10):
        (tmp_path / f"run-{run}").mkdir()
        (tmp_path / f"run-{run}" / "task-1.log").write_text(f"first {run}\nlast {run}\nhalf")
    assert [path.name for path in runs_of(tmp_path)] == ["run-0", "run-1", "run-10"]
    tasks = ("worker:0", "worker:1")
    assert list(LogReaders(tmp_path, tasks, last=1).read()) == [("script", "start 1"), ("worker:1", "last 10")]
    readers = LogReaders(tmp_path, tasks, wanted="worker:1")
    assert [line for _, line in readers.read()] == [f"{w} {run}" for run in (0, 1, 10) for w in ("first", "last")]
    with open(tmp_path / "run-10" / "task-1.log", "a") as log:
        log.write(" and half\nrest")
    assert list(readers.read()) == [("worker:1", "half and half")]
    assert list(readers.read(whole=False))[-1] == ("worker:1", "rest")


def _append(path, text):
    with open(path, "a") as log:
        log.write(text)


def _truncated(log):
    log.write_text("new\n")
    return ["new"]


def _replaced_by_a_copy(log):
    """By a file of the same content, as an editor or a synchronization does it."""
    shutil.copy(log, log.with_name("copy"))
    log.with_name("copy").rename(log)
    _append(log, " of a line\n")
    return ["half of a line"]


def _removed(log):
    other = log.with_name("other")
    other.write_text("new\n")
    log.unlink()
    other.rename(log)
    return ["new"]


@pytest.mark.parametrize("rotate", [_truncated, _replaced_by_a_copy, _removed])
def test_logs_that_are_truncated_or_replaced_while_they_are_followed(tmp_path, rotate):
    log = tmp_path / "output.log"
    log.write_text("first\nsecond\nhalf")
    readers = LogReaders(tmp_path, ("worker:0",))
    assert [line for _, line in readers.read()] == ["first", "second"]
    rest = rotate(log)
    assert [line for _, line in readers.read()] == rest
    _append(log, "later\n")
    assert list(readers.read()) == [("script", "later")] and list(readers.read(whole=False)) == []


def test_progress_is_that_of_the_newest_run_that_told_any(tmp_path):
    for run, attempt, step in [(0, 1, 900), (1, 9, 20), (1, 10, 30), (2, 1, None)]:
        folder = tmp_path / f"run-{run}" / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        events = [{"event": "start"}, {"event": "checkpoint", "step": step}] if step else [{"event": "start"}]
        (folder / "command.progress.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    assert progress_of(tmp_path) == {"step": 30, "checkpoint": 30}
    assert progress_of(tmp_path / "run-0") == {}


def test_what_the_newest_run_waits_for_is_told_beside_it(tmp_path):
    for run, events in [
        (0, [{"event": "step", "step": 7}]),
        (1, [{"event": "warning", "text": "worker:1 has not come"}, {"event": "warning", "text": "still not"}]),
    ]:
        folder = tmp_path / f"run-{run}" / "attempt-1"
        folder.mkdir(parents=True)
        (folder / "command.progress.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    assert progress_text(progress_of(tmp_path)) == "step 7, still not"
    (tmp_path / "run-0" / "attempt-1" / "command.progress.jsonl").unlink()
    assert progress_text(progress_of(tmp_path)) == "still not"


# What failed ---------------------------------------------------------------------------------------------------

FAILURE = {
    "time": 5.0, "attempt": 2, "event": "failed", "task": "worker:1", "exit_code": 1,
    "what": "worker:1 failed with exit code 1: RuntimeError: no such column 'price'",
    "error": "RuntimeError: no such column 'price'",
}  # fmt: skip
PRICE = "worker:1: RuntimeError: no such column 'price' (run-0/task-1.log)"


def failed_job(folder, *events, last="ended with exit code 1", array=None):
    """A submission whose tasks have failed."""
    (folder / "run-0").mkdir(parents=True)
    (folder / "run-0" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "run-0" / "task-1.log").write_text(
        "I0000 00:00:17 1 port.cc:1] noise\n" + "line\n" * 30 + "KeyError: x\n"
    )
    (folder / "output.log").write_text(f"2026-01-02 03:04:05 job 7: {last}\n")
    submission = Submission("7", folder, "x", tasks=("worker:0", "worker:1"), array=array)
    (folder / "submission.json").write_text(json.dumps(submission.document()))
    return submission


@pytest.mark.parametrize(
    ("said", "event", "last", "text", "failed"),
    [
        ("JobState=FAILED ExitCode=1:0", FAILURE, "ended", f"failed: {PRICE}", True),
        ("JobState=FAILED ExitCode=2:0", FAILURE, "ended", f"failed: bad input: {PRICE}", True),
        ("JobState=OUT_OF_MEMORY ExitCode=0:125", FAILURE, "", f"ended because memory ran out: {PRICE}", True),
        # A task that srun has ended is no cancel, and the exit code alone never was one.
        ("JobState=FAILED ExitCode=143:0", FAILURE, "ended with exit code 143", f"failed: {PRICE}", True),
        ("JobState=FAILED ExitCode=143:0", FAILURE, "ended as asked, exit code 75; the next",
         "stopped as asked; the next submission resumes from the last checkpoint (exit code 143)", False),
        ("JobState=CANCELLED ExitCode=0:15", FAILURE, "ended as asked, exit code 75", "cancelled", False),
        ("JobState=TIMEOUT ExitCode=0:15", FAILURE, "", "ended by its time limit", True),
        ("JobState=COMPLETED ExitCode=0:0", FAILURE, "ended with exit code 0", "done", False),
        # One that had not come to its name, and one of an older submission.
        ("JobState=FAILED ExitCode=137:0",
         {**FAILURE, "task": "rank 1", "error": "", "what": "rank 1 ran out of memory"}, "ended",
         "failed: worker:1 ran out of memory (run-0/task-1.log)", True),
        ("JobState=FAILED ExitCode=137:0", {**FAILURE, "task": "command", "what": "command failed"},
         "ended", "failed (exit code 137)", True),
    ],
)  # fmt: skip
def test_a_failure_is_told_by_its_task(tmp_path, said, event, last, text, failed):
    submission = failed_job(tmp_path, event, {"event": "gave_up"}, last=last)
    (found,) = SLURM.status(submission, environ=fake_scontrol(tmp_path, f"JobId=7 {said}")).jobs
    assert found.lines() == [f"job 7 (x): {text}"] and found.failed == failed
    assert json.loads(json.dumps(found.document()))["failed"] == failed


def test_a_running_job_tells_its_last_failure(tmp_path):
    submission = failed_job(tmp_path, FAILURE, {"event": "restart_in"})
    (found,) = SLURM.status(submission, environ=fake_scontrol(tmp_path, "JobId=7 JobState=RUNNING")).jobs
    assert found.lines() == ["job 7 (x): running, restarted in place 1 time", f"  last failure: {PRICE}"]
    assert not found.failed


def test_a_job_that_slurm_has_forgotten_is_known_by_its_history(tmp_path):
    submission = failed_job(tmp_path, FAILURE, {"event": "gave_up"})
    environ = fake_scontrol(tmp_path, "")
    (found,) = SLURM.status(submission, environ=environ).jobs
    assert found.lines() == [f"job 7 (x): Slurm no longer knows the job; it failed: {PRICE}"] and found.failed
    (tmp_path / "run-0" / "events.jsonl").write_text('{"event": "done"}\n')
    (found,) = SLURM.status(submission, environ=environ).jobs
    assert not found.failed and "the last line of its output: " in found.text


def test_without_a_job_all_of_them_are_listed(tmp_path):
    """Those below the folder, and those of this user that Slurm knows, wherever they are; the newest first."""
    jobs = tmp_path / "jobs"
    failed_job(jobs / "models" / "a" / "slurm" / "one", FAILURE, {"event": "gave_up"})
    running = Submission("9", tmp_path / "elsewhere" / "slurm" / "two", "b", tasks=("worker:0",), submitted=5.0)
    (running.folder / "run-0" / "attempt-1").mkdir(parents=True)
    (running.folder / "submission.json").write_text(json.dumps(running.document()))
    told = [{"event": "start", "max_steps": 1200}, {"event": "step", "step": 300, "steps_per_sec": 10.0}]
    progress = running.folder / "run-0" / "attempt-1" / "command.progress.jsonl"
    progress.write_text("".join(json.dumps(event) + "\n" for event in told))
    known = f"JobState=RUNNING Restarts=1 Command={running.folder}/job.sh"
    others = f"JobId=8 UserId=other(99999) {known}\nJobId=7 UserId=me({os.getuid()}) JobState=RUNNING Command=/x/job.sh"
    environ = fake_scontrol(tmp_path, f"JobId=9 UserId=me({os.getuid()}) {known}\n{others}")
    done = call("status", "--folder", jobs, env=environ)
    assert done.returncode == 0 and [line.split() for line in done.stdout.splitlines()] == [
        ["JOB", "NAME", "STATE", "STEP", "%", "STEPS/S", "LEFT", "RESTARTS", "LAST", "FAILURE"],
        ["9", "b", "RUNNING", "300", "25", "10", "1", "min", "1"],
        ["7", "x", "RUNNING", *PRICE.split()],
    ]
    documents = json.loads(call("status", "--folder", jobs, "--json", env=environ).stdout)
    assert [one["jobs"][0]["progress"].get("max_steps") for one in documents] == [1200, None]
    (tmp_path / "scontrol").unlink()
    done = call("status", "--folder", jobs, env={"PATH": str(tmp_path)})
    assert done.returncode == 1 and done.stdout.splitlines()[1].split()[:3] == ["7", "x", "NO_ANSWER"]
    (jobs / "none").mkdir()
    done = call("status", "--folder", jobs / "none", env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "no jobs\n")
    done = call("status", "--set", "a=1", env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and "requires a job file" in done.stderr


def test_the_list_has_the_model_directories(tmp_path):
    """Of each element; relative to the current folder, if they are below it."""
    models = (str(tmp_path / "runs" / "m"), "/elsewhere/m")
    for name, job_id, model_dirs, array in [("one", "7", models, 2), ("two", "9", ("/elsewhere/n",), None)]:
        folder = tmp_path / name / "slurm" / "one"
        folder.mkdir(parents=True)
        submission = Submission(job_id, folder, "x", model_dirs=model_dirs, array=array, submitted=time.time())
        (folder / "submission.json").write_text(json.dumps(submission.document()))
    known = [f"JobId={i} ArrayJobId=7 ArrayTaskId={i - 7} JobState=RUNNING" for i in (7, 8)]
    done = call("status", "--folder", tmp_path, env=fake_scontrol(tmp_path, "\n".join(known)), cwd=tmp_path)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["JOB", "NAME", "STATE", "STEP", "%", "STEPS/S", "LEFT", "RESTARTS", "MODEL", "DIR", "LAST", "FAILURE"],
        ["9", "x", "UNKNOWN", "/elsewhere/n"],
        ["7_0", "x", "RUNNING", "runs/m"],
        ["7_1", "x", "RUNNING", "/elsewhere/m"],
    ]


def test_jobs_that_ended_long_ago_are_listed_only_on_request(tmp_path):
    month = time.time() - 30 * 86400
    for number, name in enumerate(["old", "quiet", "failed", "new"], 1):
        submission = failed_job(tmp_path / name / "slurm" / "one", FAILURE, {"event": "gave_up"})
        document = {**submission.document(), "job_id": str(number), "submitted": month + number}
        (submission.folder / "submission.json").write_text(json.dumps(document))
        if name != "new":
            os.utime(submission.folder / "output.log", (month, month))
    # The second one has logged nothing for long, but trains.
    environ = fake_scontrol(tmp_path, "JobId=2 JobState=RUNNING\nJobId=3 JobState=FAILED ExitCode=1:0")
    done = call("status", "--folder", tmp_path, env=environ)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["JOB", "4", "2", "2"]
    assert done.stdout.splitlines()[-1] == "2 jobs that ended more than a week ago: --all"
    done = call("status", "--folder", tmp_path, "--json", env=environ)
    listed = [entry["submission"]["job_id"] for entry in json.loads(done.stdout)]
    assert listed == ["4", "2"] and "2 jobs" in done.stderr
    done = call("status", "--folder", tmp_path, "--all", env=environ)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["JOB", "4", "3", "2", "1"]
    # It counts for the exit code only if it is listed.
    (tmp_path / "new" / "slurm" / "one" / "submission.json").unlink()
    codes = [call("status", "--folder", tmp_path, *words, env=environ).returncode for words in ([], ["--all"])]
    assert codes == [0, 1]
    # A controller that does not answer knows none to have ended.
    (tmp_path / "scontrol").unlink()
    assert len(call("status", "--folder", tmp_path, env=environ).stdout.splitlines()) == 4
    done = call("status", tmp_path / "old", "--all", env=environ)
    assert done.returncode == 2 and "--all is for a list of jobs" in done.stderr


def test_a_watch_ends_with_the_job(tmp_path):
    """It has ended at the second look."""
    submission = failed_job(tmp_path / "s", FAILURE)
    environ = fake_scontrol(tmp_path, "")
    said = "[ -e seen ] && state=COMPLETED || state=RUNNING; touch seen; echo JobId=7 JobState=$state"
    (tmp_path / "scontrol").write_text(f"#!{shutil.which('sh')}\ncd {tmp_path}; {said}\n")
    done = call("status", submission.folder, "--watch", "0.01", env=environ)
    shown = [line for line in done.stdout.splitlines() if line.startswith("job 7")]
    assert (done.returncode, shown) == (0, ["job 7 (x): running", "job 7 (x): done"])


def test_where_slurm_does_not_answer_the_last_words_count(tmp_path):
    submission = failed_job(tmp_path, FAILURE, {"event": "restart_in"})
    (tmp_path / "run-0" / "attempt-1").mkdir()
    told = {"event": "step", "step": 7, "time": time.time() - 600}
    (tmp_path / "run-0" / "attempt-1" / "command.progress.jsonl").write_text(json.dumps(told) + "\n")
    environ = fake_scontrol(tmp_path, "")
    (tmp_path / "scontrol").write_text(
        f"#!{shutil.which('sh')}\necho 'slurm_load_jobs error: Unable to contact' >&2\nexit 1\n"
    )
    (found,) = SLURM.status(submission, environ=environ).jobs
    assert (found.state, found.failed, found.ended) == ("NO_ANSWER", True, False)
    assert found.lines()[0].startswith("job 7 (x): Slurm does not answer (slurm_load_jobs error: Unable to contact)")
    assert found.lines()[1:] == ["  step 7, reported 10 min ago", f"  last failure: {PRICE}"]


def test_status_and_logs_of_a_failure(tmp_path):
    failed_job(tmp_path / "s", FAILURE, {"event": "gave_up"})
    environ = fake_scontrol(tmp_path, "JobId=7 JobState=FAILED ExitCode=1:0")
    done = call("status", tmp_path / "s", env=environ)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"job 7 (x): failed: {PRICE}")
    assert (
        json.loads(call("status", tmp_path / "s", "--json", env=environ).stdout)["jobs"][0]["failure"]["attempt"] == 2
    )
    done = call("logs", tmp_path / "s", "--failed", "--lines", "2", env=environ)
    assert (done.returncode, done.stdout.splitlines()) == (0, [PRICE, "line", "KeyError: x"])
    whole = call("logs", tmp_path / "s", "--failed", "--lines", "0", env=environ).stdout.splitlines()
    assert len(whole) == 32 and not any("noise" in line for line in whole)
    (tmp_path / "s" / "run-0" / "events.jsonl").write_text("")
    done = call("logs", tmp_path / "s", "--failed", env=environ)
    assert done.returncode == 2 and done.stderr.startswith("error: no task has failed in the newest run")


@pytest.mark.parametrize(
    ("elements", "first"),
    [
        # The first in time; one that trains all the same, or that may still recover, does not count before it.
        ([(7.0, "gave_up"), (5.0, "gave_up"), (4.0, "done"), (3.0, "restart_in")], 1),
        ([(7.0, "restart_in"), (5.0, "restart_in"), (4.0, "done")], 1),
        ([(4.0, "done"), None], None),
    ],
)
def test_the_element_of_an_array_that_failed_first(tmp_path, elements, first):
    for number, element in enumerate(elements):
        time, end = element or (0.0, "")
        failure = [{**FAILURE, "time": time}, {"event": end}] if element else []
        failed_job(tmp_path / "s" / str(number), *failure)
    submission = Submission("7", tmp_path / "s", "x", tasks=("worker:0", "worker:1"), array=len(elements))
    (tmp_path / "s" / "submission.json").write_text(json.dumps(submission.document()))
    done = call("logs", tmp_path / "s", "--failed", "--lines", "1", env={"PATH": str(tmp_path)})
    if first is None:
        assert done.returncode == 2 and "no task has failed in the newest run of any element" in done.stderr
    else:
        assert done.stdout.splitlines() == [f"element {first}: {PRICE}", "KeyError: x"]
    done = call("logs", tmp_path / "s", "--failed", "--element", "0", "--lines", "1", env={"PATH": str(tmp_path)})
    assert done.stdout.splitlines() == [PRICE, "KeyError: x"]
    # Without --failed, an element has to be named.
    assert "--element 0 to" in call("logs", tmp_path / "s", env={"PATH": str(tmp_path)}).stderr
