"""How clusters end: data at an end, early stop, failure, unequal devices, without a launcher, twice in one place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.support.launched_jobs import wait_for_first_words
from tests.support.processes import environment, free_ports

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
TWO_WORKERS = ROOT / "legacy_configs" / "multi_worker_estimator.yaml"

# A program on the public API, as the README shows it; what differs between the tests comes by its arguments.
PROGRAM = """
import os, pathlib, sys, time
import estimator_pipeline as ep
import model_fns

case, model_dir = sys.argv[1], sys.argv[2]
word = pathlib.Path(model_dir, "estimator_pipeline", "training.json")
tf = ep.compat.install()
task = ep.cluster.from_environ(os.environ)
config = ep.build_run_config(
    model_dir,
    train_distribute="multi_worker_mirrored",
    num_devices=2 if case == "devices" and task.rank == 1 else None,
    save_checkpoints_steps=8,
    seed=1,
)
epochs = 1 if case == "data_end" else None
data = ep.inputs.from_tfds("digits", global_batch_size=64, scale=1 / 16, epochs=epochs)

class Stop(tf.estimator.SessionRunHook):
    # Synchronous training: every worker counts the same steps and asks at the same one.
    steps = 0
    def after_run(self, run_context, run_values):
        self.steps += 1
        if case == "early_stop" and self.steps == 11:
            run_context.request_stop()
        if case == "failure" and self.steps == 5 and task.rank == 1:
            raise ArithmeticError("planted failure")
        if case == "killed" and self.steps == 5 and task.rank == 1:
            os.kill(os.getpid(), 9)
        if case == "left" and self.steps == 5 and task.rank == 1:
            os._exit(0)

if case == "early_stop" and task.is_evaluator:
    # It comes when training is over: who brings the result must not depend upon who is first.
    deadline = time.monotonic() + 300
    while '"finished"' not in (word.read_text() if word.exists() else ""):
        assert time.monotonic() < deadline, "training has not ended"
        time.sleep(0.2)

estimator = tf.estimator.Estimator(model_fns.model_fn("linear"), config=config)
train_spec = tf.estimator.TrainSpec(data.train_input_fn, max_steps=None if epochs else 40, hooks=[Stop()])
print(ep.train_and_evaluate(estimator, train_spec, tf.estimator.EvalSpec(data.eval_input_fn, steps=None)))
"""


@pytest.fixture
def launch(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))

    def run(case, *options):
        return run_python(
            ["-m", "estimator_pipeline", "launch", "--json", "--timeout", 200, *options, "--", sys.executable,
             program, case, tmp_path / "model"],
            timeout=240,
        )  # fmt: skip

    return run


def rendezvous(tmp_path):
    return json.loads((tmp_path / "model" / "estimator_pipeline" / "result.json").read_text())["result"]


@pytest.mark.nightly
@pytest.mark.parametrize("evaluator", ["--evaluator", "--no-evaluator"])
@pytest.mark.parametrize(("case", "step", "ended"), [("data_end", 22, "data ended"), ("early_stop", 11, "stopped")])
def test_the_evaluator_ends_however_training_ended(launch, tmp_path, evaluator, case, step, ended):
    """1437 records in batches of 64 are 22 steps; a hook stops at 11. max_steps is None, or far away."""
    done = launch(case, evaluator)
    assert done.returncode == 0, done.stderr[-4000:]
    result = rendezvous(tmp_path)
    assert (result["global_step"], result["ended"]) == (step, ended)
    assert result["evaluations"][-1]["global_step"] == step
    assert result["evaluated_by"] == ("evaluator:0" if evaluator == "--evaluator" else "worker:0")
    logs = [Path(t["log"]).read_text() for t in json.loads(done.stdout)["tasks"]]
    assert all(f"step {step} ({ended})" in log for log in logs), "every task printed the result"


@pytest.mark.nightly
@pytest.mark.parametrize(("case", "says"), [("failure", "planted failure"), ("killed", "SIGKILL")])
def test_the_first_failure_is_shown_and_everything_ends(launch, case, says):
    done = launch(case, "--evaluator")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["failure"]["task"] == "worker:1"
    assert says in done.stderr
    assert not any(psutil.pid_exists(t["pid"]) for t in document["tasks"])


@pytest.mark.nightly
def test_one_that_leaves_with_exit_code_0_has_failed(launch, tmp_path):
    done = launch("left", "--no-evaluator")
    assert done.returncode == 1, done.stderr[-3000:]
    document = json.loads(done.stdout)
    assert (document["reason"], document["failure"]["task"]) == ("failed", "worker:1")
    assert document["failure"]["what"].endswith("before the end of training")
    assert next(task for task in document["tasks"] if task["task"] == "worker:1")["exit_code"] == 0


@pytest.mark.nightly
def test_a4_unequal_device_counts_are_refused_before_training(launch, tmp_path):
    done = launch("devices", "--no-evaluator")
    assert done.returncode == 1, done.stderr[-3000:]
    logs = "".join(Path(t["log"]).read_text() for t in json.loads(done.stdout)["tasks"])
    assert "the workers have different numbers of devices" in logs
    assert "worker:0: 1, worker:1: 2" in logs
    assert not list((tmp_path / "model").glob("model.ckpt-*")), "no step was trained"


@pytest.mark.nightly
def test_a4_on_the_keras_engine(tmp_path):
    """The same from a job file; every worker ends by itself, with the code for bad input."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    logs = [tmp_path / f"{index}.err" for index in (0, 1)]
    processes = []
    try:
        for index, log in enumerate(logs):
            more = ["run.engine=keras", f"run.num_devices={index + 1}"]
            task = {"type": "worker", "index": index}
            processes.append(start(task, cluster, tmp_path / "model", log, steps=20, more=more))
        for process in processes:
            process.communicate(timeout=300)
    finally:
        kill(processes)
    told = [log.read_text() for log in logs]
    assert [process.returncode for process in processes] == [2, 2], told
    assert all("different numbers of devices" in text and "worker:0: 1, worker:1: 2" in text for text in told)
    assert not list((tmp_path / "model").glob("ckpt-*")), "no step was trained"


def start(task, cluster, model_dir, log, *, steps, environ=(), more=()):
    """One task by hand: TF_CONFIG alone, no launcher, no run id, and a job file that knows of no evaluator."""
    document = {"cluster": cluster, "task": task} if cluster else {"task": task}
    settings = [f"run.model_dir={model_dir}", f"train.max_steps={steps}", "run.save_checkpoints_steps=10",
                "cluster.evaluator=false", *more]  # fmt: skip
    command = [sys.executable, "-m", "estimator_pipeline", "train", TWO_WORKERS, "--json", "--quiet"]
    command += [x for s in settings for x in ("--set", s)]
    with open(log, "w") as err:
        return subprocess.Popen(
            [*map(str, command)],
            env=environment({"TF_CONFIG": json.dumps(document), **dict(environ)}),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )


def greeting(folder):
    """What an evaluator says of itself on the rendezvous of a model directory, if it has."""
    file = folder / "estimator_pipeline" / "tasks" / "evaluator-0.json"
    return json.loads(file.read_text())["nonce"] if file.exists() else None


def wait_until(condition, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, "the process ended, or it takes too long"
        time.sleep(0.1)


def ended(processes, logs):
    """What each has printed; all have ended well."""
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
        errors = "".join(log.read_text()[-2000:] for log in logs)
        assert [p.returncode for p in processes] == [0] * len(processes), errors
        return [json.loads(text) for text in outputs]
    finally:
        kill(processes)


def kill(processes):
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def by_hand(tmp_path, ports, *, steps, late_evaluator=False):
    """Two workers and an evaluator: it is there before them, or comes when they have ended."""
    cluster, model_dir = {"worker": [f"localhost:{port}" for port in ports]}, tmp_path / "model"
    tasks = [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}, {"type": "evaluator", "index": 0}]
    logs = [tmp_path / f"{steps}-{i}.err" for i in range(3)]
    before = greeting(model_dir)
    processes = {}
    try:
        for i in (0, 1, 2) if late_evaluator else (2, 0, 1):
            if i == 2:
                for process in processes.values():
                    process.wait(300)
            processes[i] = start(tasks[i], cluster, model_dir, logs[i], steps=steps)
            if i == 2 and not late_evaluator:
                wait_until(lambda: greeting(model_dir) not in (None, before), processes[2])
    except BaseException:
        kill(processes.values())
        raise
    return ended([processes[i] for i in range(3)], logs)


@pytest.mark.nightly
def test_e3_without_a_launcher_and_again_in_the_same_place(tmp_path):
    """Three processes with a TF_CONFIG each. The chief learns of the evaluator outside the cluster by itself; a second
    run on the same addresses and directory, with the first run's files there, goes on and ends with its own result."""
    ports = free_ports(2)
    first = by_hand(tmp_path, ports, steps=20)
    assert first[0] == first[1] == first[2], "the same on every task"
    assert (first[0]["global_step"], first[0]["evaluated_by"]) == (20, "evaluator:0")
    second = by_hand(tmp_path, ports, steps=40)
    assert second[0] == second[1] == second[2]
    assert second[0]["global_step"] == 40
    assert [e["global_step"] for e in second[2]["evaluations"]][-1] == 40
    assert second[0]["tasks"]["worker:0"]["steps"] == 20


TWICE = """
import json, os, sys
import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.run import run_job

path, folder = sys.argv[1:]
# The same directory again, which goes on, and another one, which begins anew with another model.
for name, steps, model in (("one", 10, "cnn"), ("one", 20, "cnn"), ("two", 10, "dnn")):
    settings = [f"run.model_dir={folder}/{name}", f"train.max_steps={steps}", "run.save_checkpoints_steps=10"]
    settings.append(f"model.name={model}")
    done = run_job(load_job(path, overrides=[*settings, "cluster.evaluator=false"])).to_dict()
    print(json.dumps({name: done[name] for name in ("global_step", "metrics", "tasks")}))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("document", ["chief_workers_ps", "multi_worker_estimator"])
def test_several_trainings_in_one_process(tmp_path, document):
    """A process's server and collectives keep their port until the process ends: later trainings go on with them."""
    kinds = ["chief", "worker", *(["ps"] if document == "chief_workers_ps" else [])]
    cluster = {kind: [f"localhost:{port}"] for kind, port in zip(kinds, free_ports(len(kinds)), strict=True)}
    logs = [tmp_path / f"{kind}.err" for kind in kinds]
    job = ROOT / "legacy_configs" / f"{document}.yaml"
    processes = []
    try:
        for kind, log in zip(kinds, logs, strict=True):
            config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})
            with open(log, "w") as err:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", TWICE, str(job), str(tmp_path)], env=environment({"TF_CONFIG": config}),
                        stdout=subprocess.PIPE, stderr=err, text=True, cwd=ROOT, start_new_session=True,
                    )
                )  # fmt: skip
        outputs = [process.communicate(timeout=300)[0] for process in processes]
        assert [p.returncode for p in processes] == [0] * len(kinds), "".join(log.read_text()[-2000:] for log in logs)
    finally:
        kill(processes)
    found = [[json.loads(line) for line in text.splitlines()] for text in outputs]
    assert found[0] == found[1] == found[-1], "the same on every task"
    # Asynchronous training may end a step or two later.
    assert [one["global_step"] // 10 for one in found[0]] == [1, 2, 1]
    again = found[0][1]["tasks"]["chief:0"]["steps"]
    assert again + found[0][1]["tasks"]["worker:0"]["steps"] >= 8 and again <= 11, "it went on"


@pytest.mark.nightly
def test_an_evaluator_that_comes_too_late_gives_the_result_that_stands(tmp_path):
    outcomes = by_hand(tmp_path, free_ports(2), steps=12, late_evaluator=True)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert outcomes[2]["evaluated_by"] == "worker:0"


@pytest.mark.nightly
def test_the_chief_evaluates_where_the_evaluator_cannot(tmp_path):
    """The chief is told that there is an evaluator, and would wait half an hour for its result."""
    alone = ["cluster.workers=1", "run.train_distribute=none"]
    told = {"ESTIMATOR_PIPELINE_EVALUATOR": "1"}
    processes, logs = [], [tmp_path / "chief.err", tmp_path / "evaluator.err"]
    model_dir = tmp_path / "model"
    try:
        task = {"type": "evaluator", "index": 0}
        broken = [*alone, "model.name=linear"]  # has other variables than the checkpoint
        evaluator = start(task, None, model_dir, logs[1], steps=20, environ=told, more=broken)
        processes.append(evaluator)
        wait_until(lambda: greeting(model_dir) is not None, evaluator)
        chief = start({"type": "worker", "index": 0}, None, model_dir, logs[0], steps=20, environ=told, more=alone)
        processes.append(chief)
    except BaseException:
        kill(processes)
        raise
    (result,) = ended([chief], logs)
    assert result["evaluated_by"] == "worker:0"
    assert evaluator.wait(300) == 2  # a checkpoint of another model is bad input
    assert "evaluator:0 failed" in logs[0].read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_every_process(tmp_path, kind, code):
    """A person's Ctrl-C and a scheduler's SIGTERM: both stop training with a checkpoint."""
    # A script's background processes ignore SIGINT, which the launcher respects.
    hears = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    hears += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", hears, "-m", "estimator_pipeline", "launch", str(TWO_WORKERS), "--evaluator"]
    command += ["--log-dir", str(tmp_path / "logs")]
    for setting in (f"run.model_dir={tmp_path}/model", "train.max_steps=1000000", "eval.during_training=false"):
        command += ["--set", setting]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    seen = []
    try:
        deadline = time.monotonic() + 120
        for line in process.stdout:
            seen.append(line)
            if "worker:0 step" in line or time.monotonic() > deadline:
                break
        wait_for_first_words(tmp_path / "logs", 3)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3
        process.send_signal(kind)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, "".join(seen) + rest
    assert "training is saved after step" in (tmp_path / "logs" / "worker-0.log").read_text()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
