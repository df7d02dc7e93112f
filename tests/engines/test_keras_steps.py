"""Several train steps for each call of a Keras engine's compiled function: the same bits, and every border kept."""

from __future__ import annotations

import re

import numpy as np
import pytest

from estimator_pipeline.compat.internals import keras_steps_per_execution as steps_of_keras
from estimator_pipeline.engines.core.multi_step import StepInterval
from estimator_pipeline.engines.keras_common import callbacks as keras_steps
from estimator_pipeline.inputs.ledger import check, read
from estimator_pipeline.testing.training_runs import two_replicas
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
JOB = ROOT / "legacy_configs" / "single.yaml"


@pytest.fixture
def train(run_python, tmp_path):
    """`train(engine, steps, *settings)`: the model directory and the log of a job in a process of its own."""

    def train(engine, steps, *settings):
        model_dir = tmp_path / str(steps)
        changes = [f"run.engine={engine}", f"train.steps_per_execution={steps}", f"run.model_dir={model_dir}",
                   f"input.data_dir={tmp_path}/tfds", "train.max_steps=40", "run.save_checkpoints_steps=15",
                   "run.save_summary_steps=10", "run.log_step_count_steps=10", "run.ledger=true",
                   "run.keep_checkpoint_max=0", *settings]  # fmt: skip
        args = ["-m", "estimator_pipeline", "train", str(JOB), *(x for c in changes for x in ("--set", c))]
        done = run_python(args, timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
        return model_dir, done.stderr

    return train


def checkpoints(folder):
    """Every checkpoint's values; but how often Keras has saved, and the graph of objects."""
    found = {}
    for path in sorted(folder.glob("*-*.index")):
        reader = tf.train.load_checkpoint(str(path)[: -len(".index")])
        for name in reader.get_variable_to_shape_map():
            if "save_counter" not in name and "CHECKPOINTABLE" not in name:
                found[path.stem, name] = reader.get_tensor(name)
    return found


def summaries(folder):
    found = []
    for path in sorted((folder / "train").glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if "steps_per_second" not in value.tag:
                    found.append((value.tag, event.step, tf.make_ndarray(value.tensor).tolist()))
    return sorted(found, key=str)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", [[], ["run.train_distribute=mirrored", "run.num_devices=2"]], ids=["one", "two"])
@pytest.mark.parametrize("engine", ["keras", pytest.param("keras3", marks=pytest.mark.keras_3)])
def test_the_same_run_with_fewer_executions(train, engine, strategy):
    strategy = [*strategy, "model.optimizer.ema_momentum=0.9", "run.histograms=[weights, gradients]"]
    one, told = train(engine, 1, *strategy)
    assert "executions" not in told
    many, log = train(engine, 100, *strategy)
    # They end with the steps 1, 10, 15, 20, 30 and 40: the first is single.
    assert re.search(r"40 steps in 6 executions", log), log[-2000:]
    first, second = checkpoints(one), checkpoints(many)
    assert {name.rpartition("-")[2] for name, _ in first} == {"15", "30", "40"}
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=str(name), strict=True)
    steps = re.compile(r"loss = [0-9.e+-]+, step = \d+")
    assert steps.findall(log) == steps.findall(told) and len(steps.findall(log)) == 4
    assert summaries(one) == summaries(many) != []
    assert any(tag.startswith("gradients/") for tag, _, _ in summaries(many))
    assert any("ExponentialMovingAverage" in name for _, name in second)
    ours, theirs = read(many / "ledger"), read(one / "ledger")
    assert ours.last_step == theirs.last_step == 40 and check(ours).well
    for step in range(1, 41):
        (a,), (b,) = ours.ids(step).values(), theirs.ids(step).values()
        np.testing.assert_array_equal(a, b)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            ["model.name=dnn", "model.params={dropout: 0.5}", "run.seed=null"],
            "draws random numbers from a stateful generator",
        ),
        (["keras.model_checkpoint={every: 7}"], "the callback .* may want to see every step"),
        (["keras.backup={every: epoch}"], "a backup is kept"),
    ],
)
def test_where_it_is_not_certain_it_is_one_step(train, settings, reason):
    _, log = train("keras", 100, *settings)
    assert re.search(f"One step for each execution: .*{reason}", log), log[-2000:]


def test_callbacks_that_see_no_steps_are_no_hindrance():
    class Epochs(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            pass

    class Batches(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    class Some(Batches):
        def wanted_steps(self, start):
            return [(50, start + 20), (0, 7)]

    assert keras_steps.wanted_by([Epochs()], 3) == ([], "")
    assert keras_steps.wanted_by([Epochs(), Some()], 3) == ([StepInterval(50, 23), StepInterval(0, 7)], "")
    assert keras_steps.wanted_by([Some(), Batches()], 3) == ([], "the callback Batches may want to see every step")


ASKED = set()


class Watched(tf.keras.metrics.MeanSquaredError):
    """Notes in which graphs its result is computed."""

    def result(self):
        ASKED.add(type(tf.compat.v1.get_default_graph()).__name__)
        return super().result()


@pytest.mark.gate("True")
@pytest.mark.parametrize("own_step", [False, True])
def test_metrics_are_summed_once_for_each_execution(own_step):
    """Not in each step; a model with a train_step of its own keeps Keras's function."""

    class Model(tf.keras.Model):
        def train_step(self, data):
            return {**super().train_step(data), "one": 1.0}

    made = {}
    for prepared in (False, True):
        with two_replicas().scope():
            inputs = tf.keras.Input([3])
            outputs = tf.keras.layers.Dense(1, kernel_initializer="ones")(inputs)
            model = (Model if own_step else tf.keras.Model)(inputs, outputs)
            model.compile("sgd", "mse", metrics=[Watched()], steps_per_execution=4)
        if prepared:
            steps_of_keras.prepare(model)
            steps_of_keras.set_steps(model, 4)
        x = np.arange(96, dtype=np.float32).reshape(32, 3) / 96
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] ** 2)).batch(4).repeat()
        ASKED.clear()
        history = model.fit(data, steps_per_epoch=8, epochs=2, verbose=0).history
        made[prepared] = (history, [w.numpy().tolist() for w in model.weights], int(model._train_counter.numpy()))
        assert len(history["loss"]) == 2 and ("one" in history) == own_step
        assert ("WhileBodyFuncGraph" in ASKED) == (own_step or not prepared), ASKED
    assert made[False] == made[True] and made[True][2] == 16
