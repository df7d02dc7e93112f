"""The Keras engine on real clusters: the same job files, through `Model.fit`."""

from __future__ import annotations

import collections
import json
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.inputs.sampler import IndexSampler, record_ids
from tests.repository.test_docs import program
from tests.support.launched_jobs import CONFIGS, SMALL, check
from tests.support.processes import ROOT, tensorflow_with_three_cpus
from tests.support.tasks_by_hand import Tasks

tf = tensorflow_with_three_cpus()

pytestmark = pytest.mark.cluster

KERAS = ["--engine", "keras"]
TRAIN = [sys.executable, "-m", "estimator_pipeline", "train"]
SHAPES = [
    # (job file, options, settings, the task that evaluates)
    pytest.param("multi_worker_estimator", ["--no-evaluator"], [], "worker:0", id="k1_k2_k10_two_workers"),
    pytest.param(
        "multi_worker_estimator",
        ["--no-evaluator"],
        [
            "eval.during_training=true",
            "model.name=resnet",
            "keras.callbacks=['tests/programs/counts_validation.py:callback']",
        ],
        "worker:0",
        id="k4_validation_over_the_workers",
    ),
    pytest.param(
        "chief_workers",
        ["--workers", "1", "--evaluator"],
        ["run.communication.implementation=ring", "eval.during_training=false"],
        "evaluator:0",
        id="k5_k6_k10_chief_worker_evaluator",
    ),
]


@pytest.mark.gate("k5_k6_k10_chief_worker_evaluator")
@pytest.mark.parametrize(("job", "options", "settings", "evaluated_by"), SHAPES)
def test_shape(launch, job, options, settings, evaluated_by):
    document = launch(CONFIGS / f"{job}.yaml", *options, *KERAS, settings=[*SMALL, *settings])
    result = check(document, evaluated_by=evaluated_by)
    model_dir = document["model_dir"]
    assert [path.name for path in sorted(model_dir.glob("ckpt-*.index"))] == ["ckpt-12.index", "ckpt-24.index"]
    assert (model_dir / "model.keras").is_file(), result["exports"]
    steps = [e["global_step"] for e in result["evaluations"]]
    assert steps == ([24] if options == ["--no-evaluator"] and not settings else [12, 24])
    logs = {task["task"]: Path(task["log"]).read_text() for task in document["tasks"]}
    chief = next(iter(logs))
    for task, log in logs.items():
        # D4: the chief alone logs the progress, and each line once.
        assert log.count("Epoch 1 ends with step 12") == (task == chief), task
    if "eval.during_training=true" in settings:
        check_validation(list(logs.values()), evaluations=len(steps))


def check_validation(logs: list[str], *, evaluations: int) -> None:
    """K4: in each evaluation every record is read once, by one of the workers; each has its share."""
    read = [[line.split()[1:] for line in log.splitlines() if line.startswith("validated: ")] for log in logs]
    counts = [sum(map(len, batches)) for batches in read]
    assert sum(counts) == evaluations * 360 and max(counts) - min(counts) <= evaluations * 64, counts
    seen = collections.Counter(record for batches in read for batch in batches for record in batch)
    mine, others = ({record for batch in batches for record in batch} for batches in read)
    # Two digits of the set may be the same picture.
    assert all(count % evaluations == 0 for count in seen.values()) and len(seen) > 350
    assert not mine & others, "one record, two workers"


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["auto", "hint"])
def test_two_workers_come_to_what_one_process_comes_to(launch, run_python, tmp_path, policy):
    """K14, K3: the global batch is shared out, by the inputs or by TensorFlow; the same weights at the end."""
    small = [*SMALL, f"input.shard_policy={policy}"]
    two = launch(CONFIGS / "digits_cnn_two_workers.yaml", "--no-evaluator", *KERAS, settings=small)
    alone = tmp_path / "alone"
    changes = [x for s in [*small, "run.train_distribute=none", "cluster.workers=1", "cluster.evaluator=false",
                           f"run.model_dir={alone}"] for x in ("--set", s)]  # fmt: skip
    command = ["-m", "estimator_pipeline", "train", CONFIGS / "digits_cnn_two_workers.yaml", "--json", *KERAS, *changes]
    done = run_python(command)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["global_step"] == 24
    chief = Path(two["tasks"][0]["log"]).read_text()
    assert losses(chief) == pytest.approx(losses(done.stderr), rel=1e-4)
    ours, theirs = (trainable(Path(folder)) for folder in (two["model_dir"], alone))
    assert ours.keys() == theirs.keys() and len(ours) >= 6
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=2e-5, err_msg=name)


def losses(log: str) -> list[float]:
    """What was logged at the steps 12 and 24: the loss of all workers' batches together."""
    found = [float(value) for value in re.findall(r"loss = ([\d.e-]+), step = ", log)]
    assert len(found) == 2, log[-2000:]
    return found


def trainable(model_dir: Path) -> dict[str, np.ndarray]:
    """Name -> value of the weights in the latest checkpoint, without slots."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("model/")]
    names = [name for name in names if not any(part in name for part in ("OPTIMIZER_SLOT", "keras_api"))]
    return {name: reader.get_tensor(name) for name in names if reader.get_tensor(name).ndim}


@pytest.mark.nightly
def test_a_killed_job_goes_on(launch):
    """K8, K11, K12: the second run restores the latest checkpoint and trains on to the same end."""
    job = CONFIGS / "multi_worker_estimator.yaml"
    launch(job, "--no-evaluator", *KERAS, settings=[*SMALL, "train.max_steps=12"])
    again = launch(job, "--no-evaluator", *KERAS)
    assert [t["steps"] for t in again["result"]["tasks"].values()] == [12, 12]
    assert again["result"]["global_step"] == 24


# One thread for an operation: with several the last bits of a convolution depend on who shares the machine.
CALLBACKS = ["run.engine=keras", "cluster.evaluator=false", "run.threads.intra_op=1", "model.name=resnet",
             "model.optimizer.name=momentum", "keras.backup={every: 5}", "keras.model_checkpoint={}",
             "keras.chief_checkpoint={every: 9}", "keras.print_learning_rate=true",
             "keras.learning_rate_by_epoch={boundaries: [1], values: [0.05, 0.01]}",
             "keras.callbacks=['tests/programs/dies_once.py:callback']"]  # fmt: skip


@pytest.mark.nightly
def test_k8_k9_d3_m3_a_worker_is_killed_and_the_job_started_again(tmp_path):
    """kill -9 in the middle of an epoch; the restarted job goes on from the backup and ends with the same bits."""

    def tasks(folder: str, dies: str) -> Tasks:
        settings = [*SMALL, *CALLBACKS, f"run.model_dir={tmp_path / folder / 'model'}"]
        command = [*TRAIN, CONFIGS / "multi_worker_estimator.yaml", *(x for s in settings for x in ("--set", s))]
        (tmp_path / folder).mkdir()
        return Tasks(
            {"worker": 2}, command, tmp_path / folder, env={"ESTIMATOR_PIPELINE_PEER_SECS": "6", "DIES_ONCE": dies}
        )

    with tasks("whole", "nobody 0 -") as running:
        assert set(running.wait(timeout=120).values()) == {0}, running.tails()
        assert "backup" not in running.log("worker0")
        check_callbacks(tmp_path / "whole" / "model", *(running.log(name) for name in running.processes))

    parts = tmp_path / "parts" / "model"
    with tasks("parts", f"worker:1 18 {tmp_path}/died") as running:
        assert running.wait(timeout=150) == {"worker0": 1, "worker1": -signal.SIGKILL}, running.tails()
        # 18 steps were made: one epoch of 12 with its checkpoint, and a backup after each fifth step.
        assert [path.name for path in parts.glob("ckpt-*.index")] == ["ckpt-12.index"]
        for index in range(2):
            running.start("worker", index)
        assert set(running.wait(timeout=150).values()) == {0}, running.tails()
        for name in running.processes:
            assert "Training resumes from the backup of step 15" in running.log(name), running.tails()
        check_callbacks(parts, *(running.log(name) for name in running.processes))
    result = json.loads((parts / "estimator_pipeline" / "result.json").read_text())["result"]
    assert result["tasks"] == {f"worker:{index}": {"steps": 9, "records": 288} for index in range(2)}
    ours, theirs = everything(parts), everything(tmp_path / "whole" / "model")
    assert ours.keys() == theirs.keys() and any("OPTIMIZER_SLOT" in name for name in ours)
    for name, value in theirs.items():
        # Each replica has moving statistics of its own. A backup holds their mean, from which all of them go on: the
        # same but for when it is rounded.
        ulps = 8 if "/moving_" in name else 0
        np.testing.assert_allclose(ours[name], value, rtol=ulps * 2**-23, atol=ulps * 2**-24, err_msg=name)


def check_callbacks(model_dir: Path, chief: str, other: str) -> None:
    """What the callbacks leave behind: the chief's files and lines, and nothing of the other worker's."""
    assert [p.name for p in sorted(model_dir.glob("ckpt-*.index"))] == ["ckpt-12.index", "ckpt-24.index"]
    assert [p.name for p in sorted((model_dir / "model_checkpoints").glob("*.index"))] == [
        "ckpt_1.index",
        "ckpt_2.index",
    ]
    assert [p.name for p in sorted((model_dir / "chief_checkpoints").glob("*.index"))] == [
        "ckpt_18.index",
        "ckpt_9.index",
    ]
    left = [str(path) for path in model_dir.rglob("*") if "tmp" in path.name or "temp" in path.name]
    assert not left and not list((model_dir / "backup").glob("*"))
    for epoch, rate in ((1, "0.05"), (2, "0.01")):
        line = f"Learning rate for epoch {epoch} is {rate}\n"
        assert chief.count(line) == 1 and line not in other


def everything(model_dir: Path) -> dict[str, np.ndarray]:
    """Name -> value of all that is in the latest checkpoint."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    return {name: reader.get_tensor(name) for name, shape in reader.get_variable_to_shape_map().items() if shape}


@pytest.mark.nightly
@pytest.mark.parametrize("start", [0, 7])
def test_k3_by_the_hint_each_worker_reads_its_half(tmp_path, start):
    """HINT on two workers: nothing is read twice, and a step reads the records that the stream has there."""
    command = [sys.executable, ROOT / "tests" / "programs" / "hinted.py", 20, start]
    with Tasks({"worker": 2}, command, tmp_path) as running:
        assert set(running.wait(timeout=100).values()) == {0}, running.tails()
        logs = [running.log(name) for name in ("worker0", "worker1")]
    assert all("policy HINT" in log for log in logs)
    read = [[list(map(int, line.split()[1:])) for line in log.splitlines() if line.startswith("read ")] for log in logs]
    stream = record_ids(IndexSampler(100, seed=3), start * 12, (start + 20) * 12).tolist()
    assert [len(one) for one in read] == [20, 20]
    for step in range(20):
        together = stream[step * 12 : (step + 1) * 12]
        assert read[0][step] == together[0::2] and read[1][step] == together[1::2], step


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras", "estimator"])
def test_d5_a_job_of_two_workers_reads_a_part_each(launch, tmp_path, engine):
    """Parts of 40 records, of which a step of 16 reads 8 from each: 24 steps are almost five passes."""
    numbers = np.arange(80, dtype=np.float32)
    source = ep.inputs.from_arrays(
        (numbers[:, None] / 80, numbers), (numbers[:8, None], numbers[:8]), global_batch_size=16
    )
    ep.inputs.partition(source, tmp_path / "parts", parts=2)
    (tmp_path / "seen").mkdir()
    own = "tests/programs/parts_input.py"
    settings = [
        f"model={{function: '{own}:layers', loss: mse}}",
        f"input={{source: function, train: '{own}:read', eval: '{own}:evaluate', global_batch_size: 16, "
        f"params: {{folder: '{tmp_path}/parts', seen: '{tmp_path}/seen'}}}}",
    ]
    document = launch(
        CONFIGS / "multi_worker_estimator.yaml", "--no-evaluator", "--engine", engine, settings=[*SMALL, *settings]
    )
    assert document["result"]["global_step"] == 24
    read = [set(map(int, (tmp_path / "seen" / f"pipeline-{i}").read_text().split())) for i in (0, 1)]
    assert read == [set(range(0, 80, 2)), set(range(1, 80, 2))]


LOOP_STEPS = 400
LOOP_LEAVES = ["ckpt-400.data-00000-of-00001", "ckpt-400.index", "checkpoint"]


@pytest.mark.nightly
def test_k13_a2_a_loop_of_ones_own(launch, tmp_path):
    """The program of docs/guides/keras.md on two workers: the engine's losses at every step; killed, it goes on."""
    (tmp_path / "loop.py").write_text(program("loop"))

    def tasks(folder: str) -> Tasks:
        (tmp_path / folder).mkdir()
        command = [sys.executable, tmp_path / "loop.py", tmp_path / folder / "model", LOOP_STEPS]
        return Tasks({"worker": 2}, command, tmp_path / folder)

    with tasks("whole") as running:
        assert set(running.wait(timeout=100).values()) == {0}, running.tails()
        whole = step_losses(running.log("worker0"))
        assert not step_losses(running.log("worker1"))
    assert list(whole) == list(range(1, LOOP_STEPS + 1)) and whole[LOOP_STEPS] < whole[1] / 5
    assert left_in(tmp_path / "whole" / "model") == LOOP_LEAVES

    # The same by the engine; what it says of each step is the mean of that one alone.
    settings = [
        f"model={{function: '{tmp_path}/loop.py:layers', loss: sparse_categorical_crossentropy, optimizer: {{name: "
        "momentum, api: keras, learning_rate: 0.05, options: {momentum: 0.9}}}",
        "keras.callbacks=['tests/programs/step_losses.py:callback']",
        f"train.max_steps={LOOP_STEPS}", "run.save_checkpoints_steps=100", "run.seed=1",
    ]  # fmt: skip
    document = launch(CONFIGS / "multi_worker_estimator.yaml", "--no-evaluator", *KERAS, settings=settings)
    engine = step_losses(Path(document["tasks"][0]["log"]).read_text())
    assert list(engine) == list(whole)
    # The order of a sum; it grows with the steps, as each begins with the weights of the one before.
    assert [engine[n] for n in range(1, 11)] == pytest.approx([whole[n] for n in range(1, 11)], rel=1e-6)
    assert [engine[n] for n in range(1, 201)] == pytest.approx([whole[n] for n in range(1, 201)], rel=1e-3)

    with tasks("parts") as running:
        running.wait_for(lambda: "step 30 " in running.log("worker0"), "training to begin")
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none notices that the other is gone
            for process in running.processes.values():
                process.send_signal(number)
        assert set(running.wait().values()) == {-signal.SIGKILL}
        first = step_losses(running.log("worker0"))
        assert 30 <= len(first) < LOOP_STEPS
        begun = len(running.log("worker0"))
        for index in range(2):
            running.start("worker", index)
        assert set(running.wait(timeout=100).values()) == {0}, running.tails()
        rest = step_losses(running.log("worker0")[begun:])
    assert list(rest) == list(range(min(rest), LOOP_STEPS + 1))
    assert min(rest) % 10 == 1 and 11 <= min(rest) <= len(first) + 1
    assert list({**first, **rest}.values()) == pytest.approx(list(whole.values()), rel=1e-3)
    assert [rest[n] for n in list(rest)[:10]] == pytest.approx([whole[n] for n in list(rest)[:10]], rel=1e-5)
    assert left_in(tmp_path / "parts" / "model") == LOOP_LEAVES


def step_losses(log: str) -> dict[int, float]:
    """Step -> loss, of lines "step N loss X"."""
    return {int(n): float(loss) for n, loss in re.findall(r"^step (\d+) loss (\S+)$", log, re.MULTILINE)}


def left_in(folder: Path) -> list[str]:
    return sorted((path.name for path in folder.iterdir()), key=lambda name: (name == "checkpoint", name))


@pytest.mark.nightly
def test_a_worker_that_is_killed_ends_the_others(tmp_path):
    """Without a launcher: the other worker does not wait for it for ever, and says whom it lost."""
    settings = ["run.engine=keras", "train.max_steps=1000000", f"run.model_dir={tmp_path}/model"]
    command = [*TRAIN, CONFIGS / "multi_worker_estimator.yaml", *(x for s in settings for x in ("--set", s))]
    with Tasks({"worker": 2}, command, tmp_path, env={"ESTIMATOR_PIPELINE_PEER_SECS": "6"}) as running:
        running.wait_for(lambda: "step = 100" in running.log("worker0"), "training to begin")
        running.processes["worker1"].kill()
        ended = running.wait(timeout=100)
        assert ended == {"worker0": 1, "worker1": -signal.SIGKILL}, running.tails()
        assert f"worker:1 at {running.cluster['worker'][1]} is gone" in running.log("worker0"), running.tails()
