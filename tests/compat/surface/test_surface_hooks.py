"""Session hooks of tf.estimator: when each acts and with which values, against gradient descent in NumPy."""

from __future__ import annotations

import json
import os
import time
from operator import attrgetter

import numpy as np
import pytest

from tests.support.surface_models import (
    X,
    Y,
    checkpoint_steps,
    eval_input_fn,
    input_fn,
    linear,
    loss_with,
    scalars,
    tf,
    weights_by_step,
)

v1 = tf.compat.v1
close = {"rtol": 1e-5, "atol": 1e-6}  # float32 against float64
RECORDED = os.path.join(os.path.dirname(__file__), "..", "..", "records", "export_names.json")


# Canned Estimators have a first and a second form, after the optimizers that they take.
TWO_FORMS = {f"{kind}{what}" for kind in ("Baseline", "DNN", "Linear", "DNNLinearCombined") for what in (
    "Classifier", "Regressor", "Estimator"
)}  # fmt: skip
TWO_FORMS |= {"Estimator", "classifier_parse_example_spec", "regressor_parse_example_spec"}


def test_all_other_names_are_one_object_in_both_families():
    """What is proven here under one name holds under the other."""
    with open(RECORDED) as file:
        recorded = json.load(file)
    first, second = "tf.compat.v1.estimator.", "tf.estimator."
    names = {name.removeprefix(first) for name in recorded if name.startswith(first)}
    names &= {name.removeprefix(second) for name in recorded if name.startswith(second)}
    different = {n for n in names if attrgetter(n)(v1.estimator) is not attrgetter(n)(tf.estimator)}
    assert different == TWO_FORMS
    assert len(names) > 70


@pytest.mark.symbols("tf.estimator.LoggingTensorHook", "tf.compat.v1.estimator.LoggingTensorHook")
@pytest.mark.parametrize("at_end", [False, True])
def test_logging_tensor_hook(tmp_path, at_end):
    seen = []
    when = {"at_end": True} if at_end else {"every_n_iter": 2}
    hook = tf.estimator.LoggingTensorHook(
        {"now": "weight_read:0"}, **when, formatter=lambda values: str(seen.append(values["now"]))
    )
    linear(tmp_path).train(input_fn, hooks=[hook], steps=5)
    after = weights_by_step(5)
    np.testing.assert_allclose(seen, [after[5]] if at_end else [after[0], after[2], after[4]], **close)


@pytest.mark.symbols("tf.estimator.LoggingTensorHook", "tf.compat.v1.estimator.LoggingTensorHook")
def test_logging_tensor_hook_writes_to_the_log(tmp_path, logged):
    hook = tf.estimator.LoggingTensorHook(["mean_loss"], every_n_iter=10)
    linear(tmp_path).train(input_fn, hooks=[hook], steps=1)
    (line,) = [record.getMessage() for record in logged.records if record.getMessage().startswith("mean_loss = ")]
    assert float(line.split()[2]) == pytest.approx(loss_with([0, 0]), rel=1e-5)


@pytest.mark.symbols("tf.estimator.StepCounterHook", "tf.compat.v1.estimator.StepCounterHook")
def test_step_counter_hook(tmp_path):
    hook = tf.estimator.StepCounterHook(every_n_steps=2, output_dir=str(tmp_path / "speed"))
    linear(tmp_path / "model", log_step_count_steps=None).train(input_fn, hooks=[hook], steps=7)
    v1.summary.FileWriterCache.get(str(tmp_path / "speed")).flush()  # the hook leaves that to a thread
    speeds = scalars(tmp_path / "speed", "global_step/sec")
    assert sorted(speeds) == [3, 5, 7]
    assert min(speeds.values()) > 0


class Listener(tf.estimator.CheckpointSaverListener):
    def __init__(self, name, log, stop_at=None):
        self.name, self.log, self.stop_at = name, log, stop_at

    def begin(self):
        self.log.append((self.name, "begin"))

    def before_save(self, session, global_step_value):
        self.log.append((self.name, "before", int(global_step_value)))

    def after_save(self, session, global_step_value):
        self.log.append((self.name, "after", int(global_step_value)))
        return self.stop_at is not None and global_step_value >= self.stop_at

    def end(self, session, global_step_value):
        self.log.append((self.name, "end", int(global_step_value)))


@pytest.mark.symbols(
    "tf.estimator.CheckpointSaverHook",
    "tf.estimator.CheckpointSaverListener",
    "tf.compat.v1.estimator.CheckpointSaverHook",
    "tf.compat.v1.estimator.CheckpointSaverListener",
)
def test_checkpoint_saver_hook_and_the_order_of_its_listeners(tmp_path):
    log = []
    hook = tf.estimator.CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[Listener("a", log)])
    estimator = linear(tmp_path, keep_checkpoint_max=None)
    estimator.train(input_fn, hooks=[hook], steps=5, saving_listeners=[Listener("b", log)])
    expected = [("a", "begin"), ("b", "begin")]
    for step in (0, 2, 4, 5):
        expected += [(name, when, step) for when in ("before", "after") for name in "ab"]
    assert log == [*expected, ("a", "end", 5), ("b", "end", 5)]
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 5]
    for step in (0, 2, 4, 5):
        weight = tf.train.load_variable(str(tmp_path / f"model.ckpt-{step}"), "w")
        np.testing.assert_allclose(weight, weights_by_step(5)[step], **close)


@pytest.mark.symbols("tf.estimator.CheckpointSaverListener", "tf.compat.v1.estimator.CheckpointSaverListener")
def test_a_listener_can_stop_the_training(tmp_path):
    estimator = linear(tmp_path, save_checkpoints_steps=2)
    estimator.train(input_fn, steps=9, saving_listeners=[Listener("a", [], stop_at=4)])
    assert estimator.get_variable_value("global_step") == 4


@pytest.mark.symbols("tf.estimator.SummarySaverHook", "tf.compat.v1.estimator.SummarySaverHook")
def test_summary_saver_hook(tmp_path):
    def extra(mode, read=None, **_):
        if mode != tf.estimator.ModeKeys.TRAIN:
            return {}
        summary = v1.summary.scalar("first weight", read[0], collections=["mine"])
        hook = tf.estimator.SummarySaverHook(save_steps=2, output_dir=str(tmp_path / "mine"), summary_op=summary)
        return {"training_hooks": [hook]}

    linear(tmp_path / "model", extra=extra).train(input_fn, steps=5)
    found = scalars(tmp_path / "mine", "first_weight")
    # A value is written under the step that it leads to.
    assert sorted(found) == [1, 3, 5]
    np.testing.assert_allclose([found[s] for s in (1, 3, 5)], [w[0] for w in weights_by_step(4)[::2]], **close)


@pytest.mark.parametrize("second", [False, True], ids=["tf.compat.v1.summary", "tf.summary"])
def test_summaries_of_a_model_fn(tmp_path, second):
    """Without an edit on any version, whatever part of TensorBoard TensorFlow itself brings."""

    def extra(mode, loss=None, train_op=None, **_):
        if mode != tf.estimator.ModeKeys.TRAIN:
            return {}
        if not second:
            v1.summary.scalar("squares", loss * 2)
            return {}
        writer = tf.summary.create_file_writer(str(tmp_path))
        # The step is read after the train op: nothing else orders the reading and the counting.
        with writer.as_default(), tf.control_dependencies([train_op]):
            tf.summary.scalar("squares", loss * 2, step=v1.train.get_global_step())
        with tf.control_dependencies([train_op, *v1.summary.all_v2_summary_ops()]):
            flushed = writer.flush()
        scaffold = v1.train.Scaffold(local_init_op=tf.group(v1.train.Scaffold.default_local_init_op(), writer.init()))
        return {"train_op": flushed, "scaffold": scaffold}

    linear(tmp_path, extra=extra, save_summary_steps=1).train(input_fn, steps=3)
    found = scalars(tmp_path, "squares")
    assert len(found) == 3
    values = [found[step] for step in sorted(found)]
    np.testing.assert_allclose(values, [2 * loss_with(w) for w in weights_by_step(2)], rtol=1e-5)


@pytest.mark.symbols("tf.estimator.ProfilerHook", "tf.compat.v1.estimator.ProfilerHook")
def test_profiler_hook(tmp_path):
    def extra(mode, **_):  # its writer of events wants a graph
        return {"training_hooks": [tf.estimator.ProfilerHook(save_steps=2, output_dir=str(tmp_path / "profile"))]}

    linear(tmp_path / "model", extra=extra).train(input_fn, steps=5)
    files = sorted(name for name in os.listdir(tmp_path / "profile") if name.startswith("timeline-"))
    assert len(files) == 2
    for name in files:
        trace = json.loads((tmp_path / "profile" / name).read_text())
        assert any("weight_read" in str(event.get("args", {}).get("name", "")) for event in trace["traceEvents"])


def nan_at_step_two(mode, loss=None, train_op=None, **_):
    if mode != tf.estimator.ModeKeys.TRAIN:
        return {}
    with tf.control_dependencies([loss]):
        late = v1.train.get_global_step().read_value() >= 2
    return {"loss": tf.where(late, np.float32(np.nan), loss)}


@pytest.mark.symbols(
    "tf.estimator.NanTensorHook",
    "tf.estimator.NanLossDuringTrainingError",
    "tf.compat.v1.estimator.NanTensorHook",
    "tf.compat.v1.estimator.NanLossDuringTrainingError",
)
def test_a_loss_that_is_not_a_number_ends_the_training(tmp_path):
    """The Estimator has the hook by itself."""
    estimator = linear(tmp_path, extra=nan_at_step_two, save_checkpoints_steps=1)
    with pytest.raises(tf.estimator.NanLossDuringTrainingError):
        estimator.train(input_fn, steps=9)
    assert estimator.get_variable_value("global_step") <= 3


@pytest.mark.symbols("tf.estimator.NanTensorHook", "tf.compat.v1.estimator.NanTensorHook")
@pytest.mark.parametrize("fail", [True, False])
def test_nan_tensor_hook_raises_or_stops(fail):
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        count = step.assign_add(1)
        loss = tf.where(count >= 3, np.float32(np.nan), 1.0)
        hook = tf.estimator.NanTensorHook(loss, fail_on_nan_loss=fail)
        seen = []
        with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            try:
                while not session.should_stop() and len(seen) < 9:
                    seen.append(int(session.run(count)))
            except tf.estimator.NanLossDuringTrainingError:
                seen.append("raised")
    assert seen == ([1, 2, "raised"] if fail else [1, 2, 3])


@pytest.mark.symbols("tf.estimator.FeedFnHook", "tf.compat.v1.estimator.FeedFnHook")
def test_feed_fn_hook(tmp_path):
    """The data comes from Python, one example a step."""
    fed = []

    def placeholders():
        return {"x": v1.placeholder(tf.float32, [1, 2], "fed_x")}, v1.placeholder(tf.float32, [1], "fed_y")

    def feed():
        fed.append(len(fed))
        return {"fed_x:0": X[fed[-1]][None], "fed_y:0": Y[fed[-1]][None]}

    estimator = linear(tmp_path)
    estimator.train(placeholders, hooks=[tf.estimator.FeedFnHook(feed)], steps=3)
    weight = np.zeros(2)
    for x, y in zip(X[:3], Y[:3], strict=True):
        weight -= 0.1 * 2 * (x @ weight - y) * x
    assert fed == [0, 1, 2]
    np.testing.assert_allclose(estimator.get_variable_value("w"), weight, **close)


@pytest.mark.symbols("tf.estimator.FinalOpsHook", "tf.compat.v1.estimator.FinalOpsHook")
def test_final_ops_hook(tmp_path):
    hooks = []

    def extra(mode, **_):
        if mode != tf.estimator.ModeKeys.TRAIN:
            return {}
        factor = v1.placeholder(tf.float32, [])
        weight = v1.trainable_variables()[0]
        hooks.append(tf.estimator.FinalOpsHook({"scaled": weight * factor}, {factor: 10.0}))
        return {"training_hooks": hooks}

    linear(tmp_path, extra=extra).train(input_fn, steps=3)
    np.testing.assert_allclose(hooks[0].final_ops_values["scaled"], 10 * weights_by_step(3)[3], **close)


@pytest.mark.symbols("tf.estimator.GlobalStepWaiterHook", "tf.compat.v1.estimator.GlobalStepWaiterHook")
def test_global_step_waiter_hook(monkeypatch):
    """The step moves only while the hook sleeps, so the run begins after exactly as many naps as steps."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        advance = step.assign_add(1)
        value = tf.identity(step)
        with v1.train.SingularMonitoredSession(hooks=[tf.estimator.GlobalStepWaiterHook(3)]) as session:
            naps = []

            def nap(seconds):
                naps.append(seconds)
                session.raw_session().run(advance)

            monkeypatch.setattr(time, "sleep", nap)
            assert session.run(value) == 3
            assert len(naps) == 3
            assert session.run(value) == 3
            assert len(naps) == 3  # it waits once


@pytest.mark.symbols("tf.estimator.StopAtStepHook", "tf.compat.v1.estimator.StopAtStepHook")
def test_stop_at_step_hook_counts_from_here_or_from_the_beginning(tmp_path):
    estimator = linear(tmp_path)
    estimator.train(input_fn, hooks=[tf.estimator.StopAtStepHook(num_steps=3)])
    assert estimator.get_variable_value("global_step") == 3
    estimator.train(input_fn, hooks=[tf.estimator.StopAtStepHook(num_steps=2)])
    assert estimator.get_variable_value("global_step") == 5
    estimator.train(input_fn, hooks=[tf.estimator.StopAtStepHook(last_step=7)], steps=50)
    assert estimator.get_variable_value("global_step") == 7
    np.testing.assert_allclose(estimator.get_variable_value("w"), weights_by_step(7)[7], **close)
    with pytest.raises(ValueError, match="Only one of"):
        tf.estimator.StopAtStepHook(num_steps=1, last_step=1)


@pytest.mark.symbols("tf.estimator.SecondOrStepTimer", "tf.compat.v1.estimator.SecondOrStepTimer")
def test_second_or_step_timer(monkeypatch):
    timer = tf.estimator.SecondOrStepTimer(every_steps=3)
    fired = []
    for step in range(9):
        if timer.should_trigger_for_step(step):
            fired.append((step, timer.update_last_triggered_step(step)[1]))
    assert fired == [(0, None), (3, 3), (6, 3)]
    assert timer.last_triggered_step() == 6
    timer.reset()
    assert timer.last_triggered_step() is None
    now = [100.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    timer = tf.estimator.SecondOrStepTimer(every_secs=5)
    assert timer.should_trigger_for_step(1)
    timer.update_last_triggered_step(1)
    now[0] = 104.0
    assert not timer.should_trigger_for_step(2)
    now[0] = 106.0
    assert timer.should_trigger_for_step(2)
    assert timer.update_last_triggered_step(2) == (6.0, 1)
    with pytest.raises(ValueError, match="not provide both"):
        tf.estimator.SecondOrStepTimer(every_secs=1, every_steps=1)


@pytest.mark.symbols(
    "tf.estimator.SessionRunHook",
    "tf.estimator.SessionRunArgs",
    "tf.estimator.SessionRunContext",
    "tf.estimator.SessionRunValues",
    "tf.compat.v1.estimator.SessionRunHook",
    "tf.compat.v1.estimator.SessionRunArgs",
    "tf.compat.v1.estimator.SessionRunContext",
    "tf.compat.v1.estimator.SessionRunValues",
)
def test_a_hook_of_ones_own(tmp_path):
    """Each method in its turn; fetches, feeds, options, results, metadata; a stop that is asked for."""
    log = []

    class Own(tf.estimator.SessionRunHook):
        def begin(self):
            log.append("begin")
            self.number = v1.placeholder_with_default(1.0, [])
            self.twice = 2 * self.number

        def after_create_session(self, session, coord):
            log.append(("created", float(session.run(self.twice)), coord.should_stop()))

        def before_run(self, run_context):
            assert isinstance(run_context, tf.estimator.SessionRunContext)
            assert not run_context.stop_requested
            log.append(("before", len(run_context.original_args.fetches)))
            self.options = v1.RunOptions(trace_level=v1.RunOptions.SOFTWARE_TRACE)
            fetches = {"twice": self.twice, "weight": "weight_read:0"}
            return tf.estimator.SessionRunArgs(fetches, feed_dict={self.number: 21.0}, options=self.options)

        def after_run(self, run_context, run_values):
            assert isinstance(run_values, tf.estimator.SessionRunValues)
            assert run_values.options.trace_level == self.options.trace_level
            assert run_values.run_metadata.step_stats.dev_stats
            log.append(("after", float(run_values.results["twice"]), run_values.results["weight"].round(4).tolist()))
            if run_context.session.run(v1.train.get_global_step()) == 2:
                run_context.request_stop()

        def end(self, session):
            log.append(("end", float(session.run(self.twice))))

    estimator = linear(tmp_path)
    estimator.train(input_fn, hooks=[Own()], steps=9)
    fetches = log[2][1]
    steps = []
    for step in range(2):
        steps += [("before", fetches), ("after", 42.0, pytest.approx(weights_by_step(2)[step], abs=1e-3))]
    assert log == ["begin", ("created", 2.0, False), *steps, ("end", 2.0)]
    assert estimator.get_variable_value("global_step") == 2


@pytest.mark.gate("held_out")
@pytest.mark.symbols(
    "tf.estimator.experimental.InMemoryEvaluatorHook", "tf.compat.v1.estimator.experimental.InMemoryEvaluatorHook"
)
@pytest.mark.parametrize("name", [None, "held_out"])
def test_in_memory_evaluator_hook(tmp_path, name):
    """It evaluates at the beginning, every two steps and at the end, with the weights of that moment."""
    estimator = linear(tmp_path)
    hook = tf.estimator.experimental.InMemoryEvaluatorHook(estimator, eval_input_fn, name=name, every_n_iter=2)
    estimator.train(input_fn, hooks=[hook], steps=5)
    found = scalars(tmp_path / ("eval_held_out" if name else "eval"), "mae")
    assert sorted(found) == [0, 2, 4, 5]
    for step, value in found.items():
        expected = np.mean(np.abs(X @ weights_by_step(5)[step] - Y))
        assert value == pytest.approx(expected, rel=1e-5)


@pytest.mark.symbols(
    "tf.estimator.experimental.make_stop_at_checkpoint_step_hook",
    "tf.compat.v1.estimator.experimental.make_stop_at_checkpoint_step_hook",
)
def test_make_stop_at_checkpoint_step_hook(tmp_path, monkeypatch):
    make = tf.estimator.experimental.make_stop_at_checkpoint_step_hook
    chief = linear(tmp_path)
    chief.train(input_fn, hooks=[make(chief, last_step=4)])
    assert chief.get_variable_value("global_step") == 4
    # Another worker goes on until a checkpoint of that step is on disk: here it is at once.
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    worker = linear(tmp_path)
    assert not worker.config.is_chief
    hook = make(worker, last_step=4, wait_after_file_check_secs=0)
    with tf.Graph().as_default():
        advance = v1.train.get_or_create_global_step().assign_add(1)
        with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            steps = []
            while not session.should_stop() and len(steps) < 9:
                steps.append(int(session.run(advance)))
    # TensorFlow's hook adds 1 to the step that it reads in the same call, before the step advances or after it.
    assert steps[-1] in (3, 4) and steps == list(range(1, steps[-1] + 1))
