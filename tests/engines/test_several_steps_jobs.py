"""Several train steps for each session call on two workers: the same bits, in fewer calls, also after a signal."""

from __future__ import annotations

import re
import signal
import sys

import numpy as np
import pytest

from estimator_pipeline.inputs.ledger import check, read
from tests.support.launched_jobs import CONFIGS
from tests.support.processes import ROOT, tensorflow_with_three_cpus
from tests.support.tasks_by_hand import Tasks

tf = tensorflow_with_three_cpus()

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

TRAIN = [sys.executable, "-m", "estimator_pipeline", "train"]
FAR = 1_000_000


def two_workers(folder, model_dir, steps, max_steps, *more):
    settings = [f"run.model_dir={model_dir}", f"train.max_steps={max_steps}", f"train.steps_per_execution={steps}",
                "run.save_checkpoints_steps=60", "run.save_summary_steps=50", "run.log_step_count_steps=50",
                "cluster.evaluator=false", "model.name=linear", "run.ledger=true", "run.keep_checkpoint_max=0",
                *more]  # fmt: skip
    command = [*TRAIN, CONFIGS / "digits_cnn_two_workers.yaml"]
    folder.mkdir()
    return Tasks({"worker": 2}, [*command, *(x for s in settings for x in ("--set", s))], folder)


def values(checkpoint):
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def saved(folder, step):
    (index,) = folder.glob(f"*-{step}.index")
    return index.with_suffix("")


def same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)


@pytest.mark.parametrize("steps", [25, "auto"])
def test_two_workers_come_to_the_same_bits(tmp_path, steps):
    """Asked to end at no step in particular, they stop at the same one; what they come to is that of single steps."""
    model_dir = tmp_path / "many"
    with two_workers(tmp_path / "first", model_dir, steps, FAR) as tasks:
        tasks.wait_for((model_dir / "model.ckpt-120.index").exists, "the second checkpoint")
        tasks.processes["worker1"].send_signal(signal.SIGTERM)
        assert set(tasks.wait(timeout=90).values()) == {75}, tasks.tails()
        stops = {int(re.search(r"training is saved after step (\d+)", tasks.log(name))[1]) for name in tasks.processes}
        assert len(stops) == 1
    (stop,) = stops
    end = stop + 70
    with two_workers(tmp_path / "second", model_dir, steps, end) as tasks:
        assert set(tasks.wait().values()) == {0}, tasks.tails()
        for name in tasks.processes:
            made, calls = re.search(r"(\d+) steps in (\d+) session calls", tasks.log(name)).groups()
            # How many `auto` takes is this machine's.
            assert int(made) == 70 and (steps == "auto" or int(calls) <= 12)
    with two_workers(tmp_path / "third", tmp_path / "one", 1, end) as tasks:
        assert set(tasks.wait().values()) == {0}, tasks.tails()
    for step in (60, 120, end):
        same(values(tmp_path / "one" / f"model.ckpt-{step}"), values(model_dir / f"model.ckpt-{step}"))
    one, many = read(tmp_path / "one" / "ledger"), read(model_dir / "ledger")
    assert one.last_step == many.last_step == end and check(many).well
    for step in range(1, end + 1):
        same(one.ids(step), many.ids(step))


def test_two_keras_workers_come_to_the_same_bits(tmp_path):
    """Metrics are summed over the workers at the end of each execution alone, to the same numbers."""
    told = {}
    for steps in (1, 25):
        folder = tmp_path / str(steps)
        with two_workers(tmp_path / f"logs-{steps}", folder, steps, 100, "run.engine=keras") as tasks:
            assert set(tasks.wait().values()) == {0}, tasks.tails()
            log = tasks.log("worker0")
        told[steps] = re.findall(r"loss = ([0-9.e+-]+), step = (\d+)", log)
        # Executions end with the steps 1, 2, 25, 50, 60, 75, 85, 100 or so: each border, and 25 at most.
        found = re.search(r"100 steps in (\d+) executions", log)
        assert (found is None) if steps == 1 else int(found[1]) <= 10
    assert told[1] == told[25] and [step for _, step in told[1]] == ["50", "100"]
    for step in (60, 100):
        one, many = (values(saved(tmp_path / name, step)) for name in ("1", "25"))
        assert one.keys() == many.keys()
        for name in one:
            if "save_counter" not in name and "CHECKPOINTABLE" not in name:
                np.testing.assert_array_equal(many[name], one[name], err_msg=name)


@pytest.mark.parametrize("steps", [1, 20])
def test_a_loss_that_is_nan_on_one_worker_ends_all(tmp_path, steps):
    """In a call of several steps each worker looks at its own loss; they agree on the step, as if they had made one."""
    command = [sys.executable, ROOT / "tests" / "programs" / "nan_on_one_worker.py", tmp_path / "model", steps]
    with Tasks({"worker": 2}, command, tmp_path) as tasks:
        assert tasks.wait() == {"worker0": 3, "worker1": 3}, tasks.tails()
        for name in tasks.processes:
            assert ("they agree" in tasks.log(name)) == (steps > 1)
            of = "of step 7 is NaN" if steps > 1 else r"of worker:1 at step 7 is NaN \(worker:0: -?[0-9]"
            assert re.search(f"diverged: training has diverged: the loss {of}", tasks.log(name)), tasks.tails()
    assert not list((tmp_path / "model").glob("model.ckpt-[1-9]*"))
