"""`inspect`: who would read what as a table and as JSON; ledgers checked; bad input refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from estimator_pipeline.inputs import ledger
from estimator_pipeline.inputs.ledger.layout import planned
from estimator_pipeline.job import dump_job, load_job
from tests.inputs.ledger.test_ledger import facts, train
from tests.support.command_line import call
from tests.support.processes import ROOT

JOB = """
name: small
model: {name: linear}
input: {source: arrays, train: train.npz, eval: train.npz, label_key: y, global_batch_size: 12, seed: 3}
train: {max_steps: 10}
run: {model_dir: model, train_distribute: multi_worker_mirrored}
cluster: {workers: 2}
"""
PROGRAM = """
import numpy as np
import tensorflow as tf
X = np.arange(40, dtype=np.float32).reshape(20, 2)

def input_fn(input_context=None):
    data = tf.data.Dataset.from_tensor_slices((X, np.arange(20)))
    if input_context is not None:
        data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return data.batch(4)

def endless():
    return tf.data.Dataset.from_tensor_slices(X).repeat().batch(4)

def tensors():
    return tf.constant(X)
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "program.py").write_text(PROGRAM)
    np.savez(tmp_path / "train.npz", x=np.zeros((50, 2), np.float32), y=np.arange(50))
    return tmp_path


@pytest.fixture
def inspect(place):
    return lambda *arguments: call("inspect", *arguments, cwd=place)


def layout_of(workers, steps, **data):
    tasks = [f"worker:{w}" for w in range(workers)]
    return planned([facts(workers, w, **data)[1] for w in range(workers)], tasks, steps)


# What would be read -------------------------------------------------------------------------------------------------


def test_table():
    text = layout_of(2, range(3, 7), shuffle=False).text()
    assert text.splitlines() == [
        "step  epoch  worker:0   worker:1",
        "   3      1  24-29      30-35",
        "   4      1  36-41      42-47",
        "   5      1  48-49 0-3  4-9",
        "   6      2  10-15      16-21",
        "worker:0: 24 records of these steps (50.0%), 24 different ones",
        "worker:1: 24 records of these steps (50.0%), 24 different ones",
    ]


def test_table_of_shuffled_files_and_of_a_stream_that_ends():
    layout = layout_of(3, range(1, 3), policy="file")
    assert layout.text().startswith("step  worker:0") and "… (4)" not in layout.text()
    assert layout.document()["steps"][0]["read"]["worker:0"] == layout.steps[1]["worker:0"].tolist()
    ends = layout_of(2, range(1, 100), epochs=1, drop_remainder=False)
    assert list(ends.steps) == [1, 2, 3, 4, 5]
    assert sum(reads for reads, _ in ends.shares().values()) == 50


def test_by_the_command_line(inspect, place):
    done = inspect("job.yaml", "--steps", "1:2", "--set", "input.shuffle=false")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[0].startswith("training: training arrays, 50 records")
    assert "guaranteed: the records of a step depend only on the seed and the step" in done.stdout
    assert "   2      1  12-17     18-23" in done.stdout
    done = inspect("job.yaml", "--workers", "3", "--steps", "7", "--json")
    document = json.loads(done.stdout)
    plan = facts(3, 2)[0]
    assert document["tasks"] == ["worker:0", "worker:1", "worker:2"] and document["records"] == 50
    assert document["steps"][0]["read"]["worker:2"] == plan.ids(6).ravel().tolist()


@pytest.mark.nightly
def test_an_input_function_of_a_program(inspect):
    done = inspect("--input-fn", "program.py:input_fn", "--steps", "1:4")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "worker:0: 10 records of these steps (50.0%), 10 different ones" in done.stdout


# Ledgers ------------------------------------------------------------------------------------------------------------


def test_a_ledger_without_a_job_needs_no_tensorflow(inspect, place):
    train(place / "ledger", 12, end=False)
    train(place / "ledger", 20, start=10)
    done = inspect("--ledger", "ledger", "--steps", "10:11")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[:6] == [
        "ledger: 2 run(s), 4 file(s); steps 1 to 20 count",
        "run 1: 2 worker(s), steps 1 to 12, interrupted, or still running; up to 10 count",
        "run 2: 2 worker(s), steps 11 to 20, completed; all count",
        "worker:0: 20 steps, 120 records (50.0%), 2 attempt(s); 2 further steps were done again",
        "worker:1: 20 steps, 120 records (50.0%), 2 attempt(s); 2 further steps were done again",
        "all is well",
    ]
    code = "import sys; from estimator_pipeline.cli.main import main\n"
    code += "sys.argv[1:] = ['inspect', '--ledger', 'ledger', '--json']\n"
    code += "try: main()\nfinally: print('tensorflow' in sys.modules, file=sys.stderr)"
    from tests.support.processes import run_python_process

    done = run_python_process(["-c", code], cwd=place, env={"PYTHONPATH": str(ROOT)})
    assert done.stderr.strip() == "False" and json.loads(done.stdout)["check"]["well"] is True


def test_a_ledger_that_is_not_well(inspect, place):
    train(place / "ledger", 12, spoil=lambda worker, step, ids: facts(2, 0)[0].ids(step - 1))
    done = inspect("--ledger", "ledger")
    assert done.returncode == 1 and done.stderr == ""
    assert "found: worker:1 did not read its records at the steps 1 to 12" in done.stdout
    assert done.stdout.rstrip().endswith("finding(s)")


@pytest.mark.nightly
def test_a_ledger_of_another_job(inspect, place):
    train(place / "ledger", 12, seed=4)
    done = inspect("job.yaml", "--ledger", "ledger", "--json")
    assert done.returncode == 1, done.stderr[-3000:]
    found = json.loads(done.stdout)["check"]["findings"]
    texts = [finding["text"] for finding in found if finding["kind"] == "data"]
    assert "the ledger was written with seed 4, but the job has 3" in texts


@pytest.mark.nightly
def test_data_of_a_program_are_counted(inspect, place):
    """A half of the data was never read."""
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    prints = ledger.fingerprints([x, np.arange(20)])
    writer = ledger.LedgerWriter(place / "ledger", task="worker:0", tasks=["worker:0"])
    stream = writer.stream({"kind": "fingerprints", "pipelines": None, "pipeline": None, "batches_per_step": 1})
    writer.begin(0)
    for step in range(6):
        stream(step == 0, [prints[:4] if step % 2 else prints[4:8]])
        writer.step()
    writer.end()
    assert inspect("--ledger", "ledger").returncode == 0, "missing records cannot be detected"
    done = inspect("--ledger", "ledger", "--input-fn", "program.py:input_fn")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "12 record(s) were never read, in 1.20 epochs" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "inspect needs a job file, an input function or a ledger"),
        (["job.yaml", "--input-fn", "program.py:input_fn"], "cannot combine the job file job.yaml with --input-fn"),
        (["job.yaml", "--steps", "9:3"], "--steps '9:3' is not a range of steps"),
        (["job.yaml", "--count-data"], "--count-data requires a ledger"),
        (["--ledger", "nowhere"], "there is no ledger in nowhere"),
        (["--ledger", "ledger", "--set", "input.seed=3"], "--set input.seed=3 requires a job file"),
        (["--input-fn", "program.py:tensors"], "the input function returns no dataset"),
        (["--input-fn", "program.py:nothing"], "has no function 'nothing'"),
    ],
)
def test_bad_input(inspect, place, arguments, says):
    train(place / "ledger", 3)
    done = inspect(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr[-3000:]
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.nightly
def test_the_table_that_is_shown_in_the_documents(run_python):
    text = (ROOT / "docs" / "guides" / "ledger.md").read_text(encoding="utf-8")
    mark, shown = re.search(r"<!-- shows: estimator-pipeline (.*?) -->\n```text\n(.*?)```", text, re.DOTALL).groups()
    done = run_python(["-m", "estimator_pipeline", *mark.split()])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == shown


# How it is asked for ------------------------------------------------------------------------------------------------


def test_launch_hands_it_on(place):
    def launch(*arguments):
        return call("launch", "--dry-run", *arguments, cwd=place)

    assert "ledger: true" in launch("--ledger", "job.yaml").stdout
    named = launch("--ledger", "--set", "run.ledger=here", "job.yaml").stdout
    assert "ledger: here" in named and "ledger: true" not in named
    assert "ledger" not in launch("job.yaml").stdout
    with_ledger = load_job(place / "job.yaml", overrides=["run.ledger=true"])
    (place / "with_ledger.yaml").write_text(dump_job(with_ledger))
    assert "ledger: true" in launch("with_ledger.yaml").stdout
    assert "ledger: true" not in launch("--no-ledger", "with_ledger.yaml").stdout
    done = launch("--ledger", "--", "true")
    assert done.returncode == 2 and "launch -- estimator-pipeline exec --ledger DIR PROGRAM" in done.stderr


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_program_runs(place):
    (place / "file").touch()
    (place / "train.py").write_text("print('it runs')")
    done = call("exec", "--ledger", "file/ledger", "train.py", cwd=place)
    assert done.returncode == 2 and "the ledger cannot be written to file/ledger: Not a directory" in done.stderr
    assert "it runs" not in done.stdout and "Traceback" not in done.stderr


def test_a_folder(place, inspect):
    """Of a ledger, or a model directory, with and without a ledger."""
    train(place / "model" / "ledger", 12)
    (place / "model" / "model.ckpt-12.index").touch()
    done = inspect("model")
    assert done.returncode == 0 and "all is well" in done.stdout, done
    assert done.stdout.startswith("checkpoints: of the steps 12\nmodel/ledger: ")
    assert inspect(place / "model" / "ledger").stdout == inspect("--ledger", place / "model" / "ledger").stdout
    (place / "other").mkdir()
    with_none = inspect("other")
    assert with_none.returncode == 2 and "neither a model directory nor the folder of a ledger" in with_none.stderr
    (place / "other" / "model.ckpt-0.index").touch()
    (place / "other" / "model.ckpt-300.index").touch()
    assert inspect("other").stdout.splitlines()[0] == "checkpoints: of the steps 0, 300"
    assert json.loads(inspect("other", "--json").stdout) == {"checkpoints": [0, 300]}
