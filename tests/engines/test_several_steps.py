"""Several train steps for each session call: the same bits, and nothing that hooks see is another than step by step."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import estimator_pipeline as ep
import model_fns
from estimator_pipeline import inputs
from estimator_pipeline.engines.core import result as results
from estimator_pipeline.engines.core.multi_step import CallLengthTuner
from estimator_pipeline.errors import ConfigError, DivergedError, PreemptedError
from estimator_pipeline.inputs.ledger import check, read
from estimator_pipeline.models.histograms import HISTOGRAMS
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
RNG = np.random.default_rng(3)
FEATURES = RNG.random((60, 8, 8, 1), dtype=np.float32)
LABELS = (FEATURES.mean(axis=(1, 2, 3)) * 10).astype(np.int64)
TABLE = {"age": RNG.random(60, dtype=np.float32), "job": RNG.integers(0, 7, 60)}
COLUMNS = {"numeric": ["age"], "categorical": {"job": 7}}


def data(**options):
    options = {"global_batch_size": 12, "seed": 4, **options}
    return inputs.from_arrays(train=(FEATURES, LABELS), eval=(FEATURES[:25], LABELS[:25]), **options)


def table():
    labels = (TABLE["age"] > 0.5).astype(np.int64)
    return inputs.from_arrays(train=(TABLE, labels), eval=(TABLE, labels), global_batch_size=12, seed=4)


class Calls:
    """Counts what a session is asked to train: calls of a single step, and calls of several."""

    def __init__(self, monkeypatch):
        self.single, self.several = 0, []
        from estimator_pipeline.compat.internals import graph_step_loop as step_loop

        original = step_loop.StepLoop.run

        def run(loop, session, count):
            self.several.append(count)
            return original(loop, session, count)

        monkeypatch.setattr(step_loop.StepLoop, "run", run)

    @property
    def hook(self):
        calls = self

        class Count(tf.estimator.SessionRunHook):
            def steps_passed(self, count):
                pass

            def after_run(self, run_context, run_values):
                calls.single += 1

        return Count()


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch)


def train(
    folder,
    steps,
    *,
    model="linear",
    params=None,
    max_steps=40,
    hooks=(),
    source=None,
    config=None,
    model_fn=None,
    **more,
):
    source = source or data()
    config = {"save_checkpoints_steps": 15, "save_summary_steps": 10, "log_step_count_steps": 10, "seed": 1,
              "keep_checkpoint_max": 0, **(config or {})}  # fmt: skip
    made = model_fn or model_fns.model_fn(
        model, optimizer={"name": "adam", "ema_momentum": 0.9}, histograms=HISTOGRAMS, params=params or {}
    )
    run = ep.build_run_config(folder, environ={}, **config)
    return ep.train_and_evaluate(
        tf.estimator.Estimator(made, config=run),
        tf.estimator.TrainSpec(source.train_input_fn, max_steps=max_steps, hooks=list(hooks)),
        tf.estimator.EvalSpec(source.eval_input_fn, steps=None),
        environ={},
        steps_per_execution=steps,
        **more,
    )


def checkpoints(folder):
    """Every checkpoint's values, by step and name."""
    found = {}
    for path in sorted(folder.glob("model.ckpt-*.index")):
        reader = tf.train.load_checkpoint(str(path)[: -len(".index")])
        for name in reader.get_variable_to_shape_map():
            found[path.stem, name] = reader.get_tensor(name)
    return found


def same(first, second):
    first, second = checkpoints(first), checkpoints(second)
    assert first and set(first) == set(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=str(name), strict=True)


def summaries(folder):
    """(tag, step, value) of the training's event files, but for the pace."""
    found = []
    for path in sorted(folder.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                told = "" if value.tag == "global_step/sec" else value.simple_value or str(value.histo)
                found.append((value.tag, event.step, told))
    return sorted(found, key=str)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(("linear", None, data), id="linear"),
        pytest.param(("wide_deep", COLUMNS, table), id="wide_deep"),
        # Its moving statistics are updated beside the optimizer's step.
        pytest.param(("resnet", None, data), id="resnet"),
    ],
)
@pytest.mark.parametrize(("steps", "single", "several"), [(7, 11, [6, 2, 3, 4, 6, 1, 6, 1]), (100, 8, [9, 3, 4, 8, 8])])
def test_the_same_run_with_fewer_calls(tmp_path, calls, steps, single, several, model):
    """Weights, slots, checkpoints and their steps, summaries, evaluations: all as step by step."""
    name, params, source = model

    def recorded(steps):
        """A run, again where TensorFlow's SummarySaverHook was one step off: it reads the step beside its update."""
        for attempt in range(4):
            calls.single, calls.several[:] = 0, []
            folder = tmp_path / f"{steps}-{attempt}"
            outcome = train(folder, steps, model=name, params=params, source=source(), hooks=[calls.hook])
            if {step for _, step, _ in summaries(folder)} >= {1, 11, 21, 31}:
                break
        return outcome, folder

    one, first = recorded(1)
    assert (calls.single, calls.several) == (40, [])
    many, second = recorded(steps)
    # Calls end with the steps 1, 11, 21, 31 (log, summaries), 15, 30 (checkpoints), 16, 31 (evaluations), and 40.
    assert (calls.single, calls.several) == (single, several)
    same(first, second)
    assert summaries(first) == summaries(second)
    assert any(tag.startswith("gradients/") for tag, _, _ in summaries(second))
    assert any(name.endswith("/ExponentialMovingAverage") for _, name in checkpoints(second))
    assert {step for _, step, _ in summaries(second)} >= {1, 11, 21, 31}
    assert one.metrics == many.metrics and one.tasks == many.tasks
    assert [e.global_step for e in many.evaluations] == [15, 30, 40] == [e.global_step for e in one.evaluations]


def test_the_log_is_that_of_single_steps(tmp_path, calls, logged):
    def lines(steps):
        logged.clear()
        train(tmp_path / str(steps), steps)
        told = [record.getMessage() for record in logged.records if record.name == "tensorflow"]
        # Without the time that ten steps took.
        return [line.partition(" (")[0] for line in told if line.startswith(("loss = ", "Loss for final step"))]

    one = lines(1)
    assert [line.rpartition(" = ")[2] for line in one if "step = " in line] == ["0", "10", "20", "30"] or len(one) == 5
    assert lines(100) == one and calls.several


@pytest.mark.nightly
def test_mirrored(tmp_path, calls):
    config = {"train_distribute": "mirrored", "num_devices": 2}
    train(tmp_path / "one", 1, config=config)
    assert not calls.several
    train(tmp_path / "many", 100, config=config)
    assert calls.several == [9, 3, 4, 8, 8]
    same(tmp_path / "one", tmp_path / "many")


def test_data_that_end_in_the_middle_of_a_call(tmp_path, calls):
    """25 steps of data, and a call of the steps 22 to 30: it has made those that there were."""
    for steps in (1, 100):
        outcome = train(
            tmp_path / str(steps), steps, max_steps=None, source=data(epochs=5), ledger=tmp_path / f"ledger-{steps}"
        )
        assert (outcome.ended, outcome.global_step) == (results.DATA_ENDED, 25)
        assert outcome.tasks["worker:0"] == results.TaskReport(steps=25, records=25 * 12)
    assert calls.several[-1] == 8
    same(tmp_path / "1", tmp_path / "100")
    same_ledgers(tmp_path / "ledger-1", tmp_path / "ledger-100", steps=25)


def same_ledgers(first, second, *, steps):
    first, second = read(first), read(second)
    assert first.last_step == second.last_step == steps
    assert check(second).well
    for step in range(1, steps + 1):
        (one,), (other,) = first.ids(step).values(), second.ids(step).values()
        np.testing.assert_array_equal(one, other)


class Asks(tf.estimator.SessionRunHook):
    """Sends this process a signal in the call that comes to a step or goes beyond it."""

    def __init__(self, step):
        self.left = step

    def steps_passed(self, count):
        self.left -= count

    def after_run(self, run_context, run_values):
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGTERM)
            self.left = 10**9


def test_asked_to_end_it_goes_on_bit_equal(tmp_path, calls):
    train(tmp_path / "one", 1, ledger=tmp_path / "ledger-1")
    for step in (5, 12):
        with pytest.raises(PreemptedError, match="is saved after step"):
            train(tmp_path / "many", 6, hooks=[Asks(step)], ledger=tmp_path / "ledger-6")
    stood = sorted(int(path.stem.rpartition("-")[2]) for path in (tmp_path / "many").glob("model.ckpt-*.index"))
    # Calls end with the steps 1, 7, 11, and so on; a signal is heard of in the call that it comes in, or in the next.
    assert stood[0] == 0 and stood[1] in (7, 11) and 12 <= stood[-1] - stood[1] <= 21
    train(tmp_path / "many", 6, ledger=tmp_path / "ledger-6")
    assert calls.several
    one, many = checkpoints(tmp_path / "one"), checkpoints(tmp_path / "many")
    for name in (name for name in one if name[0] == "model.ckpt-40"):
        np.testing.assert_array_equal(one[name], many[name], strict=True)
    same_ledgers(tmp_path / "ledger-1", tmp_path / "ledger-6", steps=40)


def test_a_loss_that_is_no_number_ends_the_call_with_its_step(tmp_path, calls):
    """The weights of step 6 are so large that the loss of step 7 is NaN."""

    def wild(features, labels, mode):
        step = tf.compat.v1.train.get_or_create_global_step()
        weight = tf.compat.v1.get_variable("weight", [])
        loss = tf.reduce_mean(features) * weight + tf.where(tf.equal(step, 6), np.nan, 0.0)
        # The loss reads the step that this one begins with: the gradient does not wait for that by itself.
        with tf.control_dependencies([loss]):
            train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    for steps in (1, 100):
        with pytest.raises(DivergedError, match="the loss of step 7 is NaN"):
            train(tmp_path / str(steps), steps, model_fn=wild)
    assert calls.several == [9]


def test_weights_that_are_no_numbers_are_not_saved(tmp_path, calls):
    def wild(features, labels, mode):
        step = tf.compat.v1.train.get_or_create_global_step()
        weight = tf.compat.v1.get_variable("weight", [])
        loss = tf.reduce_mean(features) * 1e-20
        with tf.control_dependencies([weight.assign(tf.where(step < 13, 1.0, np.inf))]):
            return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step.assign_add(1))

    for steps in (1, 100):
        with pytest.raises(DivergedError, match="after step 15 the variable weight is not finite"):
            train(tmp_path / str(steps), steps, model_fn=wild)
    assert calls.several == [9, 3]


def branching(features, labels, mode):
    """A step with functions within functions, and a Python function that is called once for each."""
    step = tf.compat.v1.train.get_or_create_global_step()
    weight = tf.compat.v1.get_variable("weight", [], initializer=tf.compat.v1.ones_initializer())
    mean = tf.reduce_mean(features) * weight
    called = tf.numpy_function(branching.seen.append, [step], [])
    loss = tf.cond(step % 3 > 0, lambda: tf.cond(mean > 0.5, lambda: mean, lambda: 2 * mean), lambda: -mean)
    loss = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 0.9), [0, loss])[1]
    with tf.control_dependencies([called]):
        train_op = tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.nightly
def test_a_step_with_branches_and_loops(tmp_path, calls):
    for steps in (1, 100):
        branching.seen = []
        train(tmp_path / str(steps), steps, model_fn=branching)
        assert branching.seen == list(range(40))
    assert calls.several
    same(tmp_path / "1", tmp_path / "100")


@pytest.mark.nightly
def test_a_canned_estimator_with_a_table(tmp_path, calls):
    """DNNLinearCombined with feature columns of words: Adagrad, FTRL, and a table that both steps look up."""
    words = np.array([["red", "green", "blue", "grey"][i] for i in RNG.integers(0, 4, 60)])
    column = tf.feature_column.categorical_column_with_vocabulary_list(
        "word", ["red", "green", "blue"], default_value=0
    )

    def input_fn():
        pairs = tf.data.Dataset.from_tensor_slices(({"word": words, "age": TABLE["age"]}, LABELS % 2))
        return pairs.repeat().batch(12)

    for steps in (1, 100):
        run = ep.build_run_config(tmp_path / str(steps), environ={}, save_checkpoints_steps=15, seed=1)
        made = tf.compat.v1.estimator.DNNLinearCombinedClassifier(
            linear_feature_columns=[column],
            dnn_feature_columns=[
                tf.feature_column.embedding_column(column, 3),
                tf.feature_column.numeric_column("age"),
            ],
            dnn_hidden_units=[8],
            config=run,
        )
        ep.train_and_evaluate(
            made,
            tf.estimator.TrainSpec(input_fn, max_steps=40),
            tf.estimator.EvalSpec(input_fn, steps=2),
            environ={},
            steps_per_execution=steps,
        )
    assert calls.several == [13, 13, 8]
    same(tmp_path / "1", tmp_path / "100")


# One step a call, and why ------------------------------------------------------------------------------------------


class Looks(tf.estimator.SessionRunHook):
    def after_run(self, run_context, run_values):
        pass


def counts_by_two(features, labels, mode):
    step = tf.compat.v1.train.get_or_create_global_step()
    weight = tf.compat.v1.get_variable("weight", [])
    return tf.estimator.EstimatorSpec(mode, loss=tf.reduce_mean(features) * weight, train_op=step.assign_add(2))


@pytest.mark.gate(
    "auto-options0-the hook Looks may want to see every step",
    "auto-options1-the step has an operation with internal state (RandomUniform)",
    "auto-options2-the global step is 2 after step 1",
)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"hooks": [Looks()]}, "the hook Looks may want to see every step"),
        (
            {"model": "dnn", "params": {"dropout": 0.5}, "config": {"seed": None}},
            "the step has an operation with internal state (RandomUniform)",
        ),
        ({"model_fn": counts_by_two}, "the global step is 2 after step 1"),
    ],
)
@pytest.mark.parametrize("steps", [100, "auto"])
def test_where_it_is_not_certain_it_is_one_step(tmp_path, calls, logged, steps, options, reason):
    train(tmp_path, steps, **options)
    assert calls.several == []
    assert f"One step for each session call: {reason}" in logged.text


def test_hooks_that_see_no_steps_are_no_hindrance(tmp_path, calls):
    class Begins(tf.estimator.SessionRunHook):
        def begin(self):
            self.begun = True

        def end(self, session):
            self.step = int(session.run(tf.compat.v1.train.get_global_step()))

    class Logs(tf.estimator.LoggingTensorHook):
        def __init__(self):
            super().__init__(["global_step"], every_n_iter=4)
            self.seen = []

        def _log_tensors(self, tensor_values):
            self.seen.append(self._iter_count)
            super()._log_tensors(tensor_values)

    begins, logs = Begins(), Logs()
    train(tmp_path, 100, hooks=[begins, logs], max_steps=12)
    assert begins.step == 12 and calls.several == [3, 3, 1]
    assert logs.seen == [0, 4, 8]


@pytest.mark.parametrize("given", [0, -3, 2.5, True, "many"])
def test_what_is_no_number_of_steps(tmp_path, given):
    with pytest.raises(ConfigError, match="allowed: auto, or a number of steps from 1 on"):
        train(tmp_path, given)


# auto --------------------------------------------------------------------------------------------------------------


def test_auto_finds_its_steps(tmp_path, calls, logged, monkeypatch):
    """By times that are told, for those of a machine are luck: calls of 16 are tried, and 8 take what one call may."""
    monkeypatch.setattr(CallLengthTuner, "call_ended", told_times(CallLengthTuner.call_ended))
    quiet = {"save_checkpoints_steps": 1000, "save_summary_steps": 1000, "log_step_count_steps": 1000}
    train(tmp_path / "auto", "auto", max_steps=300, config=quiet)
    assert calls.several == [15, 15, 15, 15, *[31] * 7]
    assert "Up to 32 steps for each session call" in logged.text
    assert f"300 steps in {300 - sum(calls.several) + len(calls.several)} session calls" in logged.text
    train(tmp_path / "one", 1, max_steps=300, config=quiet)
    same(tmp_path / "auto", tmp_path / "one")


def told_times(original):
    return lambda finder, steps, seconds: original(finder, steps, 0.002 + 0.0014 * steps)
