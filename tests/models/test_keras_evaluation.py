"""Evaluations, exports and an early end beside `Model.fit`, held against tf.estimator.train_and_evaluate."""

from __future__ import annotations

import json
import os

import pytest

from estimator_pipeline.cluster import parse_tf_config
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation
from estimator_pipeline.models.keras_runtime.evaluation import BestExporter, Evaluation, FinalExporter, LatestExporter
from estimator_pipeline.testing.training_runs import two_replicas
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
WORKER = parse_tf_config(json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}))


def data():
    """Two groups of records that pull the weight to and fro."""
    x = [[1.0], [2.0], [-1.0], [3.0]]
    return tf.data.Dataset.from_tensor_slices((x, [[2.0], [3.0], [5.0], [-9.0]])).repeat().batch(2)


def held_out():
    return tf.data.Dataset.from_tensor_slices(([[1.0], [2.0]], [[0.5], [0.0]])).batch(2)


def linear(rate: float = 0.02):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(tf.keras.optimizers.legacy.SGD(rate), "mse", metrics=["mae"])
    model.build((None, 1))
    return model


def train(model, steps, *callbacks):
    return model.fit(data(), steps_per_epoch=steps, callbacks=list(callbacks), verbose=0)


def quiet(*arguments, **options):
    return Evaluation(*arguments, write=lambda line: None, **{"environ": {}, **options})


def test_as_train_and_evaluate(tmp_path):
    """The same steps are evaluated, to the same losses, and the same ones are the best."""
    asked = []

    def compare(current_eval_result, best_eval_result):
        asked.append((best_eval_result["global_step"], current_eval_result["global_step"]))
        return current_eval_result["loss"] < best_eval_result["loss"]

    def model_fn(features, labels, mode):
        loss = None
        logits = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(features)
        if mode != "infer":
            loss = tf.reduce_mean(tf.keras.losses.mean_squared_error(labels, logits))
        step = tf.compat.v1.train.get_or_create_global_step()
        train_op = tf.compat.v1.train.GradientDescentOptimizer(0.02).minimize(loss, step) if mode == "train" else None
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, predictions={"y": logits})

    serving = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 1])})

    def receiver():
        found = serving()
        return tf.estimator.export.TensorServingInputReceiver(found.features["x"], found.receiver_tensors)

    config = tf.estimator.RunConfig(str(tmp_path / "estimator"), save_checkpoints_steps=4)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    exporter = tf.estimator.BestExporter("best", receiver, compare_fn=compare)
    theirs, told = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(data, max_steps=10),
        tf.estimator.EvalSpec(held_out, steps=None, throttle_secs=0, exporters=[exporter]),
    )
    their_asking = list(asked)
    (events,) = (tmp_path / "estimator" / "eval").glob("*.tfevents.*")
    seen = {event.step: value.simple_value for event in tf.compat.v1.train.summary_iterator(str(events))
            for value in event.summary.value if value.tag == "loss"}  # fmt: skip
    asked.clear()
    model = linear()

    def export(model, folder):
        path = os.path.join(folder, "1")
        tf.io.gfile.makedirs(path)
        return os.fsencode(path)

    best = BestExporter("best", export, compare=compare)
    ours = quiet(held_out, every_steps=4, folder=str(tmp_path / "keras"), exporters=[best])
    train(model, 10, ours)
    assert [one["global_step"] for one in ours.results] == list(seen) == [4, 8, 10]
    assert [one["loss"] for one in ours.results] == pytest.approx(list(seen.values()), rel=1e-6)
    # In both, each best result is held against those behind it.
    assert dict.fromkeys(their_asking) == dict.fromkeys(asked)
    assert len(told) == len(ours.exports) == 1 and told[0] and ours.exports[0]
    assert ours.result["global_step"] == theirs["global_step"] == 10


@pytest.mark.parametrize(("throttle", "steps"), [(0, [2, 4, 5]), (600, [2, 5])])
def test_after_checkpoints(tmp_path, throttle, steps):
    """As a listener: the first checkpoint is of before the first step, and the end is evaluated in any case."""
    model = linear()
    evaluation = quiet(held_out, throttle_secs=throttle, folder=str(tmp_path), options={"steps": 1})
    evaluation.set_model(model)
    evaluation.begin()
    for step in (0, 2, 4):
        evaluation.before_save(None, step)
        assert not evaluation.after_save(None, step)
    evaluation.end(None, 5)
    assert [one["global_step"] for one in evaluation.results] == steps
    assert json.loads((tmp_path / "eval" / "evaluations.json").read_text()) == evaluation.results
    assert not list(tmp_path.glob("eval/events*"))  # they are the model's


def test_training_goes_on_as_if_there_had_been_none():
    """The same weights, and the same means of the training's metrics, to the bit."""
    plain, evaluated = linear(), linear()
    evaluation = quiet(held_out(), every_steps=3)
    alone, beside = train(plain, 8), train(evaluated, 8, evaluation)
    assert alone.history == beside.history
    assert (plain.get_weights()[0] == evaluated.get_weights()[0]).all()
    assert [one["global_step"] for one in evaluation.results] == [3, 6, 8]
    # What the last one found is what evaluate finds, and nothing was evaluated twice.
    assert evaluation.result == evaluated.evaluate(held_out(), return_dict=True, verbose=0) | {"global_step": 8}


def test_one_line_and_one_event_an_evaluation(tmp_path):
    lines: list[str] = []
    evaluation = Evaluation(held_out, every_steps=5, name="test", folder=str(tmp_path), write=lines.append, environ={})
    train(linear(), 5, evaluation)
    (line,) = lines
    assert line.startswith("Evaluation 'test' at step 5: loss = ") and ", mae = " in line
    assert tags_of(tmp_path / "eval_test") == ["loss", "mae"]


def test_events_beside_a_tensorboard_callback(tmp_path):
    """Which records each third step, by a condition that TensorFlow holds against every writer of the thread."""
    evaluation = quiet(held_out, every_steps=5, folder=str(tmp_path))
    train(linear(), 5, tf.keras.callbacks.TensorBoard(str(tmp_path / "board"), update_freq=3), evaluation)
    assert tags_of(tmp_path / "eval") == ["loss", "mae"]


def tags_of(folder) -> list[str]:
    (events,) = folder.glob("*.tfevents.*")
    found = [value.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for value in event.summary.value]
    return sorted(found)


def test_a_job_that_goes_on_knows_what_was_found_before(tmp_path):
    """And one that trains anew forgets it: its steps are another model's."""
    folder, model = str(tmp_path), linear()
    train(model, 6, quiet(held_out, every_steps=2, folder=folder))
    on = quiet(held_out, every_steps=2, folder=folder)
    train(model, 2, on)  # the optimizer counts on
    assert [one["global_step"] for one in on.results] == [2, 4, 6, 8]
    anew = quiet(held_out, every_steps=2, folder=folder)
    train(linear(), 2, anew)
    assert [one["global_step"] for one in anew.results] == [2]


def test_a_killed_job_goes_on_from_its_backup(tmp_path):
    """The steps from its backup on are evaluated again; those before it are known, of the best result as well."""

    class Killed(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 6:
                raise KeyboardInterrupt

    def run(*callbacks):
        backup = tf.keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=4)
        evaluation = quiet(held_out, every_steps=2, folder=str(tmp_path))
        model = linear()
        train(model, 10, evaluation, backup, *callbacks)
        return model, evaluation

    with pytest.raises(KeyboardInterrupt):
        run(Killed())
    model, evaluation = run()
    assert int(model.optimizer.iterations) == 10
    assert [one["global_step"] for one in evaluation.results] == [2, 4, 6, 8, 10]
    alone = quiet(held_out, every_steps=2)
    train(linear(), 10, alone)
    assert [one["loss"] for one in evaluation.results] == pytest.approx([one["loss"] for one in alone.results])


def test_on_two_replicas():
    """What each replica counts goes on too: its share of the sum, so that the order of sums is another one."""
    found = []
    for callbacks in ([], [quiet(held_out, every_steps=2)]):
        with two_replicas().scope():
            model = linear()
        found.append(train(model, 3, *callbacks).history)
    for name, values in found[0].items():
        assert found[1][name] == pytest.approx(values, rel=1e-6)


def written(folder, name):
    return sorted(path.name for path in (folder / "export" / name).iterdir())


def larger_error(best_eval_result, current_eval_result):
    return current_eval_result["mae"] > best_eval_result["mae"]


def test_exporters(tmp_path, monkeypatch):
    """Each evaluation, the best alone, and the end; so many are kept, and two of one second are two."""
    times = iter(range(1000, 2000))
    monkeypatch.setattr(keras_evaluation.time, "time", lambda: next(times) // 3)

    def export(model, folder):
        path = os.path.join(folder, str(int(keras_evaluation.time.time())))
        os.makedirs(path)
        return os.fsencode(path)

    exporters = [
        LatestExporter("latest", export, exports_to_keep=2),
        BestExporter("best", export, compare=larger_error),
        FinalExporter("final", export),
    ]
    evaluation = quiet(held_out, every_steps=2, folder=str(tmp_path), exporters=exporters)
    train(linear(), 7, evaluation)
    maes = [one["mae"] for one in evaluation.results]
    best = [i for i, mae in enumerate(maes) if mae > max(maes[:i], default=-1)]
    assert len(written(tmp_path, "latest")) == 2 and len(written(tmp_path, "best")) == len(best) < len(maes) == 4
    assert len(written(tmp_path, "final")) == 1
    for path, name in zip(evaluation.exports, ("latest", "best", "final"), strict=True):
        assert os.path.basename(path.decode()) == written(tmp_path, name)[-1]


def test_nan_is_never_the_best():
    """Not the first result either; one after it is the best of the numbers."""
    best = BestExporter("best", lambda model, folder: b"")
    losses = [float("nan"), 3.0, float("nan"), 2.0, 2.5]
    results = [{"loss": loss} for loss in losses]
    due = [best.is_due(results[: number + 1]) for number in range(len(results))]
    assert due == [False, True, False, True, False]


def test_a_worker_evaluates_and_keeps_nothing(tmp_path):
    exports = []

    def export(model, folder):
        exports.append(folder)
        os.makedirs(os.path.join(folder, "1"))
        return os.fsencode(folder)

    evaluation = quiet(
        held_out, every_steps=2, folder=str(tmp_path), tf_config=WORKER, exporters=[LatestExporter("a", export)]
    )
    train(linear(), 2, evaluation)
    assert len(evaluation.results) == len(exports) == 1 and evaluation.exports == [None]
    assert not list(tmp_path.rglob("*.json")) and not list((tmp_path / "export" / "a").iterdir())


def results(*losses):
    return [{"loss": loss, "global_step": 100 * (i + 1)} for i, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("rule", "losses", "stops"),
    [
        (keras_evaluation.stop_if_no_decrease("loss", 200), [3, 2, 2], False),
        (keras_evaluation.stop_if_no_decrease("loss", 200), [3, 2, 2, 2], True),
        (keras_evaluation.stop_if_no_decrease("loss", 200), [3, 2, 2, 2, 1], True),  # as the hook, that looks at all
        (keras_evaluation.stop_if_no_decrease("loss", 200, min_steps=200), [0, 3, 2, 2], False),
        (keras_evaluation.stop_if_no_increase("loss", 100), [1, 2, 3], False),
        (keras_evaluation.stop_if_no_increase("loss", 100), [1, 2, 1], True),
        (keras_evaluation.stop_if_higher("loss", 2), [1, 2], False),
        (keras_evaluation.stop_if_higher("loss", 2), [1, 2.5], True),
        (keras_evaluation.stop_if_lower("loss", 2), [3, 1], True),
        (keras_evaluation.stop_if_lower("loss", 2, min_steps=300), [3, 1], False),
    ],
)
def test_when_to_stop(rule, losses, stops):
    assert rule(results(*losses)) is stops


def test_training_stops(tmp_path):
    rule = keras_evaluation.stop_if_lower("mae", 1e9)
    model, evaluation = linear(), quiet(held_out, every_steps=3, stop=[rule])
    train(model, 9, evaluation)
    assert int(model.optimizer.iterations) == 3 and evaluation.result["global_step"] == 3


def test_what_is_refused():
    with pytest.raises(ConfigError, match="every_steps is 0"):
        quiet(held_out, every_steps=0)
    with pytest.raises(ConfigError) as error:
        quiet(held_out, every_steps=1, throttle_secs=0)
    assert error.value.code == "argument/conflict"
    with pytest.raises(ConfigError, match="has exporters, and no folder"):
        quiet(held_out, every_steps=1, exporters=[FinalExporter("a", lambda model, folder: b"")])
    with pytest.raises(ConfigError, match="the metric 'auc', and the evaluation has no metric of that name"):
        keras_evaluation.stop_if_lower("auc", 1)(results(1, 2))
