"""Jobs on a real Slurm: submitted, requeued, cut off, cancelled, crashed; and the weights that they come to."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import ROOT, environment, tensorflow_with_three_cpus
from tests.support.real_slurm import RealSlurm, why_absent
from tests.support.tutorials import FOLDER, Tutorial

tf = tensorflow_with_three_cpus()

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

DEMO = ROOT / "legacy_configs" / "digits_cnn_two_workers.yaml"
EACH = 300
"""Steps between checkpoints; of the undisturbed run all are kept."""
WHOLE = 12000
"""So many that the time limit comes before the last one."""
NODES = tuple(f"n{i}" for i in range(1, 12))


class Client:
    """What a person types, against this Slurm, from a folder of their own."""

    def __init__(self, slurm, folder):
        self.slurm, self.folder = slurm, folder
        self.environ = environment({**slurm.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})

    def cli(self, *words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "estimator_pipeline", *map(str, words)],
            env=self.environ, cwd=self.folder, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, name, *settings, config=DEMO, options=()):
        """A job on three nodes, a task on each; its model directory and its id."""
        model_dir = self.folder / name
        common = [f"run.model_dir={model_dir}", f"run.save_checkpoints_steps={EACH}", "run.keep_checkpoint_max=0"]
        # On one machine the hosts of all nodes are one, and so are their ports; see `tests/support/real_slurm.py`.
        common += ["cluster.ports=agreed"]
        common += ["slurm.tasks_per_node=1", "slurm.signal_seconds=30", f"name={name}"]
        words = [word for change in (*common, *settings) for word in ("--set", change)]
        return model_dir, self.cli("submit", "slurm", config, *words, *options).strip()

    def finished(self, model_dir, job_id, timeout=200):
        """The job's end as Slurm has it; what it wrote, where it is not "COMPLETED"."""
        found = self.slurm.wait_for(job_id, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", timeout=timeout)
        assert found["JobState"] == "COMPLETED", f"{found['JobState']}\n{written(model_dir)}"
        return found

    def wait_for_step(self, model_dir, step, timeout=150):
        path = model_dir / f"model.ckpt-{step}.index"
        try:
            self.slurm.wait(path.exists, f"checkpoint {step}", timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{written(model_dir)}") from None


@pytest.fixture(scope="module")
def slurm():
    """It runs until the last test has ended, and nothing of it is left."""
    if why := why_absent():
        pytest.skip(why)
    # Sockets lie in it: a short path.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = RealSlurm(folder, NODES)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        assert not cluster.processes()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def client(slurm, tmp_path_factory):
    return Client(slurm, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def undisturbed(client):
    """The demo's job, run through on three nodes."""
    model_dir, job_id = client.submit("undisturbed", f"train.max_steps={WHOLE}")
    return model_dir, client.finished(model_dir, job_id)


def written(model_dir):
    logs = sorted((model_dir / "slurm").glob("*/**/*.log"))
    return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-2500:]}" for path in logs)


def script_log(model_dir):
    (path,) = (model_dir / "slurm").glob("*/output.log")
    return path.read_text()


def values(model_dir, step):
    """Every variable of the checkpoint of a step."""
    reader = tf.train.load_checkpoint(str(model_dir / f"model.ckpt-{step}"))
    names = sorted(reader.get_variable_to_shape_map())
    return {name: reader.get_tensor(name) for name in names}


def assert_bit_equal(model_dir, other, step):
    ours, theirs = values(model_dir, step), values(other, step)
    assert ours.keys() == theirs.keys() and len(ours) > 8
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def result_of(model_dir):
    return json.loads((model_dir / "estimator_pipeline" / "result.json").read_text())["result"]


def test_the_demo_on_three_nodes(client, undisturbed):
    model_dir, found = undisturbed
    result = result_of(model_dir)
    assert result["evaluated_by"] == "evaluator:0" and result["global_step"] == WHOLE
    assert result["metrics"]["accuracy"] > 0.96
    assert found["NodeList"] == "n[1-3]" and found["Restarts"] == "0"
    told = client.cli("status", model_dir)
    assert told.startswith(f"job {found['JobId']} (undisturbed): done, 00:") and " on n[1-3]\n" in told
    assert f"step {WHOLE}, loss " in told and "accuracy 0.9" in told
    first = client.cli("logs", model_dir, "--task", "evaluator:0", "--lines", "0").splitlines()[0]
    assert first.startswith(f"environment slurm; job {found['JobId']}.0, rank 2 of 3; evaluator:0")
    assert "worker:1    | " in client.cli("logs", found["JobId"])


def test_a_requeue_is_followed_by_its_logs(client, undisturbed):
    """As an administrator's, or of a preemption with PreemptMode=REQUEUE: the tasks hear SIGTERM."""
    model_dir, job_id = client.submit("requeued", "train.max_steps=900")
    with open(client.folder / "followed.txt", "w") as output:
        follower = subprocess.Popen(
            [sys.executable, "-m", "estimator_pipeline", "logs", "-f", job_id, "--task", "script"],
            env=client.environ,
            cwd=client.folder,
            stdout=output,
            stderr=output,
        )
    try:
        client.wait_for_step(model_dir, 300)
        client.slurm.run("scontrol", "requeue", job_id)
        found = client.finished(model_dir, job_id)
        assert follower.wait(timeout=60) == 0
    finally:
        follower.kill()
        follower.wait()
    assert found["Restarts"] == "1"
    assert_bit_equal(model_dir, undisturbed[0], 900)
    # It went on from a checkpoint of no particular step, written when it was asked to end.
    training = json.loads((model_dir / "estimator_pipeline" / "training.json").read_text())
    assert training["from_step"] > 300, written(model_dir)
    said = (client.folder / "followed.txt").read_text()
    assert said == script_log(model_dir)
    assert f"job {job_id}: start 0 on n[1-3]" in said and f"job {job_id}: start 1 on n[1-3]" in said
    assert "ended as asked, exit code 75" in said and said.endswith("ended with exit code 0\n")
    assert "on n[1-3], requeued 1 time\n" in client.cli("status", job_id)


def test_a_time_limit_with_a_chain_of_resumptions(client, undisturbed):
    """Slurm looks at limits every 30 seconds: it asks 25 to 55 seconds after each start."""
    model_dir, job_id = client.submit("limited", f"train.max_steps={WHOLE}", "slurm.time=2", "slurm.signal_seconds=65")
    found = client.finished(model_dir, job_id, timeout=380)
    assert int(found["Restarts"]) >= 1
    assert_bit_equal(model_dir, undisturbed[0], WHOLE)
    said = script_log(model_dir)
    assert said.count("stopped; requeueing the job") == int(found["Restarts"])
    assert "before training had begun" not in said
    assert result_of(model_dir)["metrics"] == result_of(undisturbed[0])["metrics"]


def test_a_node_crashes(client, undisturbed):
    model_dir, job_id = client.submit("crashed", "train.max_steps=900")
    client.wait_for_step(model_dir, 300)
    client.slurm.crash_node("n2")
    try:
        found = client.finished(model_dir, job_id)
    finally:
        client.slurm.revive_node("n2")
    assert int(found["Restarts"]) == 1
    assert "n2" not in client.slurm.run("scontrol", "show", "hostnames", found["NodeList"]).split()
    assert_bit_equal(model_dir, undisturbed[0], 900)


def test_a_task_that_is_killed_is_started_again_in_place(client, undisturbed):
    model_dir, job_id = client.submit("killed", "train.max_steps=900")
    client.wait_for_step(model_dir, 300)
    (pid,) = (pid for pid in client.slurm.processes_on("n2") if "train" in client.slurm.command_of(pid))
    os.kill(pid, 9)
    found = client.finished(model_dir, job_id)
    assert found["Restarts"] == "0"
    assert_bit_equal(model_dir, undisturbed[0], 900)
    assert "attempt 1: worker:1 failed with signal SIGKILL" in script_log(model_dir)


LAYERS = """\
import json, os
import tensorflow as tf

def layers(params):
    if json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}:
        raise RuntimeError("no such column 'price'")
    return tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
"""


def test_a_task_that_raises_is_named(client):
    """srun ends the other tasks, whose exit codes are higher."""
    (client.folder / "price.py").write_text(LAYERS)
    own = ("model={function: 'price.py:layers', loss: sparse_categorical_crossentropy}", "slurm.max_restarts=1")
    model_dir, job_id = client.submit("price", *own)
    client.slurm.wait_for(job_id, "FAILED")
    said = client.cli("status", model_dir, code=1).splitlines()[0]
    price = "worker:1: RuntimeError: no such column 'price' (run-0/task-1.log)"
    assert said.startswith(f"job {job_id} (price): failed: {price}, 00:") and "restarted in place 1 time" in said
    shown = client.cli("logs", model_dir, "--failed").splitlines()
    assert shown[0] == price and "RuntimeError: no such column 'price'" in shown[-1] + shown[-2]


def test_a_task_that_is_stopped_is_started_again_in_place(client, undisturbed):
    """Its heartbeat misses; the steps of the others would miss long after that."""
    model_dir, job_id = client.submit("stopped", "train.max_steps=900", "slurm.step_timeout=200")
    client.wait_for_step(model_dir, 300)
    (pid,) = (pid for pid in client.slurm.processes_on("n2") if "train" in client.slurm.command_of(pid))
    os.kill(pid, signal.SIGSTOP)
    found = client.finished(model_dir, job_id, timeout=300)
    assert found["Restarts"] == "0"
    assert_bit_equal(model_dir, undisturbed[0], 900)
    said = script_log(model_dir)
    assert re.search(rf"attempt 1: worker:1 sent no heartbeat for [\d.]+ s: process {pid} on n2;", said), said
    assert not Path(f"/proc/{pid}").exists()


def test_cancelled_with_a_checkpoint_and_submitted_again(client, undisturbed):
    model_dir, job_id = client.submit("cancelled", "train.max_steps=900")
    client.wait_for_step(model_dir, 300)
    said = client.cli("cancel", job_id, "--checkpoint")
    assert said == f"job {job_id}: asked to stop with a checkpoint\n"
    training = json.loads((model_dir / "estimator_pipeline" / "training.json").read_text())
    assert training["state"] == "preempted" and training["global_step"] > 300
    told = client.cli("status", model_dir)
    assert "stopped as asked; the next submission resumes from the last checkpoint" in told
    assert client.slurm.job(job_id)["Restarts"] == "0"
    assert client.cli("cancel", job_id) == f"job {job_id} has ended already\n"
    _, again = client.submit("cancelled", "train.max_steps=900")
    client.finished(model_dir, again)
    assert_bit_equal(model_dir, undisturbed[0], 900)


def test_cancelled_at_once(client):
    model_dir, job_id = client.submit("scancelled", "train.max_steps=100000")
    client.wait_for_step(model_dir, 300)
    stands = client.cli("stacks", job_id, "--brief").splitlines()
    told = [re.match(r"(\S+) \(process \d+ on (\S+)\) ", line) for line in stands]
    assert {one[1] for one in told} == {"worker:0", "worker:1", "evaluator:0"} and len({one[2] for one in told}) == 3
    assert client.cli("cancel", model_dir) == f"job {job_id}: cancelled\n"
    client.slurm.wait_for(job_id, "CANCELLED")
    client.slurm.wait(lambda: "ended as asked" in script_log(model_dir), "the script's last words", timeout=60)
    # KillWait is long enough here for the checkpoint.
    assert json.loads((model_dir / "estimator_pipeline" / "training.json").read_text())["state"] == "preempted"
    assert "cancelled" in client.cli("status", job_id)


def test_a_job_that_can_never_start(client):
    first, job_id = client.submit("held", 'slurm.sbatch=["--hold"]')
    client.cli("cancel", first)
    model_dir, after = client.submit("never", f"slurm.dependency=afterok:{job_id}")
    client.slurm.wait(
        lambda: client.slurm.job(after)["Reason"] == "DependencyNeverSatisfied", "the reason is known", timeout=60
    )
    status = client.cli("status", model_dir, code=1)
    assert status.startswith(f"job {after} (never): cannot start: DependencyNeverSatisfied\n")
    client.cli("cancel", model_dir)


def test_a_thread_that_does_not_end_does_not_hold_the_allocation(client, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, threading, time\n"
        "if os.environ.get('SLURM_PROCID') == '1' and 'train' in sys.orig_argv:\n"
        "    threading.Thread(target=lambda: time.sleep(3600)).start()\n"
    )
    settings = (f"slurm.setup=['export PYTHONPATH={tmp_path}:$PYTHONPATH']", "train.max_steps=60")
    model_dir, job_id = client.submit("thread", *settings)
    client.finished(model_dir, job_id)
    assert f"did not exit: it was at {tmp_path}/sitecustomize.py, line 3" in written(model_dir)


def test_asked_to_stop_while_the_lines_of_setup_run(client):
    """It is requeued, and no second job of its model directory is accepted until it is cancelled."""
    copy = ("slurm.setup=['sleep 3600']", "train.max_steps=300")
    model_dir, job_id = client.submit("setup", *copy)
    client.slurm.wait_for(job_id, "RUNNING")
    client.slurm.wait(lambda: "start 0" in written(model_dir), "the script has started", timeout=60)
    client.slurm.run("scancel", "--batch", "--signal=USR1", job_id)
    client.slurm.wait(lambda: client.slurm.job(job_id)["Restarts"] == "1", "it is requeued", timeout=60)
    assert f"job {job_id}: asked to stop during slurm.setup\n" in script_log(model_dir)
    assert "\n  asked to stop during slurm.setup\n" in client.cli("status", model_dir)
    left = [client.slurm.command_of(pid) for pid in client.slurm.processes()]
    assert not [line for line in left if "sleep 3600" in line]
    words = ["submit", "slurm", DEMO, "--set", f"run.model_dir={model_dir}", "--no-checks"]
    client.cli(*words, code=2)
    assert client.cli("cancel", model_dir) == f"job {job_id}: cancelled\n"
    client.slurm.wait_for(job_id, "CANCELLED")
    _, again = client.submit("setup", *copy, "slurm.setup=['moduule load cuda']", "train.max_steps=20")
    client.finished(model_dir, again)
    warning = "warning: a line of slurm.setup failed with exit code 127: moduule load cuda"
    assert "done, 00:" in client.cli("status", model_dir) and warning in client.cli("status", model_dir)


def test_two_jobs_at_once_on_the_same_nodes(client, undisturbed):
    same = ("train.max_steps=300", "slurm.sbatch=['--nodelist=n[1-3]']")
    jobs = [client.submit(name, *same) for name in ("one", "other")]
    client.slurm.wait(
        lambda: [client.slurm.job(job_id)["JobState"] for _, job_id in jobs] == ["RUNNING"] * 2, "both run", timeout=60
    )
    for model_dir, job_id in jobs:
        assert client.finished(model_dir, job_id)["NodeList"] == "n[1-3]"
        assert_bit_equal(model_dir, undisturbed[0], 300)


def test_eleven_nodes_in_the_right_order(client):
    command = f"{sys.executable} {Path(__file__).with_name('print_task.py')}"
    words = ["cluster.ports=derived", "cluster.workers=10", "input.global_batch_size=40", f"slurm.command={command}"]
    model_dir, job_id = client.submit("eleven", *words)
    client.finished(model_dir, job_id)
    (folder,) = (model_dir / "slurm").iterdir()
    # A start whose port another program of this machine has is made again, with other ports, and adds its line.
    said = [json.loads((folder / "run-0" / f"task-{rank}.log").read_text().splitlines()[-1]) for rank in range(11)]
    # n10 comes after n9, not after n1.
    assert [one["node"] for one in said] == [f"n{i}" for i in range(1, 12)]
    assert [one["task"] for one in said] == [*(f"worker:{i}" for i in range(10)), "evaluator:0"]
    hosts = [address.partition(":")[0] for address in said[0]["TF_CONFIG"]["cluster"]["worker"]]
    assert hosts == [f"n{i}" for i in range(1, 11)]
    assert all(one["TF_CONFIG"]["cluster"] == said[0]["TF_CONFIG"]["cluster"] for one in said)


def test_what_is_asked_for_arrives(client, tmp_path):
    """Fields and options whose values have blanks, quotes and `#`; teardown after tasks that failed."""
    asked = {
        "comment": """it's the "night" run # 3 \\ #SBATCH --hold""",
        "sbatch": ["--time-min=1", '--deadline="now+1hour"'],
        "nodelist": "n3",
        "exclude": "n1,n2",
        "env": {"GREETING": "it's # me", "NUMBER": 4, "FLAG": True},
        "setup": ["exec >" + str(tmp_path / "said"), "echo nodes $SLURM_JOB_NODELIST"],
        "teardown": ['echo "torn $GREETING $NUMBER $FLAG $NOT_SET"', "exit 9"],
        "command": "false",
        "max_restarts": 0,
        "metrics_dir": str(tmp_path),
    }
    settings = [f"slurm.{name}={json.dumps(value)}" for name, value in asked.items()]
    model_dir, job_id = client.submit("asked", "cluster={workers: 1}", "run.train_distribute=none", *settings)
    found = client.slurm.wait_for(job_id, "COMPLETED", "FAILED")
    text = client.slurm.run("scontrol", "show", "job", job_id)
    assert f"Comment={asked['comment']}" in text and "Deadline=20" in text, text
    assert (found["NodeList"], found["ExitCode"], found["JobState"]) == ("n3", "1:0", "FAILED"), text
    said = (tmp_path / "said").read_text()
    assert said.startswith("nodes n3\n") and "torn it's # me 4 true \n" in said, said
    assert script_log(model_dir).rstrip().endswith("ended with exit code 1")
    assert "estimator_pipeline_" in (tmp_path / f"slurm-{job_id}.prom").read_text()


def test_a_sweep_is_an_array(client, tmp_path):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("train.max_steps: [20, 30]\n")
    model_dir, job_id = client.submit(
        "sweep", "slurm.max_restarts=0", config=ROOT / "legacy_configs" / "single.yaml", options=("--array", sweep)
    )
    client.slurm.wait(
        lambda: (
            [line.split(": ")[1][:4] for line in client.cli("status", job_id).splitlines() if line[0] == "j"]
            == ["done", "done"]
        ),
        "both elements are done",
        timeout=150,
    )
    assert [result_of(model_dir / str(i))["global_step"] for i in range(2)] == [20, 30]
    assert f"job {job_id}_1 (sweep): done" in client.cli("status", model_dir)
    assert "worker:0 | " in client.cli("logs", model_dir, "--element", "1")


def test_an_evaluator_elsewhere(client, undisturbed):
    """A heterogeneous job: the evaluator is a component with resources of its own."""
    where = "slurm.roles={worker: {sbatch: ['--nodelist=n[10-11]']}, evaluator: {sbatch: ['--nodelist=n2']}}"
    model_dir, job_id = client.submit("elsewhere", "train.max_steps=300", where)
    client.finished(model_dir, job_id)
    assert result_of(model_dir)["evaluated_by"] == "evaluator:0"
    assert_bit_equal(model_dir, undisturbed[0], 300)
    lines = client.slurm.run("scontrol", "show", "job", "--oneliner", job_id).splitlines()
    nodes = [word.partition("=")[2] for line in lines for word in line.split() if word.startswith("NodeList=")]
    assert nodes == ["n[10-11]", "n2"]


def test_what_slurm_refuses_is_told_in_one_message(client):
    done = subprocess.run(
        [sys.executable, "-m", "estimator_pipeline", "submit", "slurm", DEMO, "--set", "slurm.partition=none", "--set",
         f"run.model_dir={client.folder / 'refused'}"],
        env=client.environ, cwd=client.folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert "[scheduler/refused]\n  found: sbatch: error: " in done.stderr
    assert "invalid partition specified: none" in done.stderr
    assert not list((client.folder / "refused" / "slurm").iterdir())


@pytest.mark.parametrize(("page", "count"), [("slurm-cluster.md", 5), ("search.md", 2)])
def test_the_tutorials(client, tmp_path, page, count):
    tutorial = Tutorial(FOLDER / page)
    tutorial.write_files(tmp_path)
    commands = [command for command in tutorial.commands if command.on_slurm]
    assert len(commands) == count
    environ = {name: client.environ[name] for name in ("SLURM_CONF", "OMP_NUM_THREADS", "PYTHONPATH")}
    for command in commands:
        tutorial.run(command, tmp_path, Path(sys.executable).parent, environ)


def test_nothing_of_a_job_is_left(client):
    """After all the jobs above no task is on any node."""
    time.sleep(1)
    left = [client.slurm.command_of(pid) for pid in client.slurm.processes()]
    assert not [line for line in left if "estimator_pipeline" in line]
