"""Evaluation: kept graphs give what Estimator.evaluate gives, nothing grows, no checkpoint is skipped unasked."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline import inputs
from estimator_pipeline.cluster import from_environ
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.compat.internals.cached_evaluation import RepeatedEvaluation
from estimator_pipeline.compat.internals.data_end.even_batches import even_batches
from estimator_pipeline.engines.core.evaluation import CheckpointEvaluator, follow_training
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.estimator.evaluation import EstimatorEvaluation
from estimator_pipeline.errors import InputError, WaitError
from estimator_pipeline.progress import progress_file as progress_protocol
from tests.support.contexts import task_context
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1 = tf.compat.v1
RNG = np.random.default_rng(5)
PIXELS = RNG.random((34, 4, 4, 1), dtype=np.float32)
COLORS = np.array([b"red", b"green", b"blue", b"none of them"])[np.arange(34) % 4]
LABELS = (np.arange(34) % 3).astype(np.int64)
SESSION, GRAPH, NOTHING = "session", "graph", "nothing"


# -- models, trained once ---------------------------------------------------------------------------------------------


def layers():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(3, 2, input_shape=(4, 4, 1)),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(3),
        ]
    )


keras_model_fn = ep.build_model_fn(layers, loss="sparse_categorical_crossentropy")


def config_for(model_dir, **options):
    options = {"save_checkpoints_steps": 2, "seed": 1, **options}
    return ep.build_run_config(str(model_dir), environ={}, **options)


def keras_estimator(folder, model_fn=keras_model_fn, **options):
    return tf.estimator.Estimator(model_fn, config=config_for(folder / "keras", **options))


def with_own_strategy(folder):
    """As a program makes it, with what patches do around an evaluation."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    config = tf.estimator.RunConfig(str(folder / "keras"), eval_distribute=strategy, tf_random_seed=1)
    return tf.estimator.Estimator(keras_model_fn, config=config)


def canned_estimator(folder, **options):
    column = tf.feature_column.categorical_column_with_vocabulary_file("color", str(folder / "colors.txt"))
    return tf.estimator.DNNClassifier(
        hidden_units=[4],
        feature_columns=[tf.feature_column.indicator_column(column), tf.feature_column.numeric_column("x")],
        n_classes=3,
        label_vocabulary=["zero", "one", "two"],
        dropout=0.3,
        config=config_for(folder / "canned", **options),
    )


def pixels():
    return tf.data.Dataset.from_tensor_slices((PIXELS, LABELS)).batch(8)


def colors():
    features = {"color": COLORS, "x": np.arange(34, dtype=np.float32) / 34}
    return tf.data.Dataset.from_tensor_slices((features, np.array(["zero", "one", "two"])[LABELS])).batch(8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a trained model of each kind, three checkpoints each."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "colors.txt").write_text("red\ngreen\nblue\n")
    for make, input_fn in ((keras_estimator, pixels), (canned_estimator, colors)):
        make(folder).train(lambda input_fn=input_fn: input_fn().repeat(), steps=4)
    return folder


def checkpoints_of(estimator):
    return list(tf.train.get_checkpoint_state(estimator.model_dir).all_model_checkpoint_paths)


# -- inputs and models of every kind ----------------------------------------------------------------------------------


def mirrored(dataset=pixels, batches=2):
    """As many batches as the replicas can share: where the last step of a mirrored evaluation finds data for some of
    them alone, whether those count differs from one `Estimator.evaluate` to the next. Without the thread that tunes
    tf.data, for which a session can wait up to a minute when it closes."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return lambda: dataset().take(batches).with_options(options)


def shuffled():
    return pixels().unbatch().shuffle(34).batch(8)


def one_shot():
    return v1.data.make_one_shot_iterator(pixels()).get_next()


def initializable():
    iterator = v1.data.make_initializable_iterator(pixels())
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def tensors():
    return tf.constant(PIXELS), tf.constant(LABELS)


def augmented():
    return pixels().map(lambda x, y: (x + tf.random.uniform(tf.shape(x)), y))


def generated():
    left = iter(range(3))  # as in a program: a fresh one for each call of the input_fn

    def batches():
        for i in left:
            yield PIXELS[i : i + 5], LABELS[i : i + 5]

    spec = (tf.TensorSpec((5, 4, 4, 1), tf.float32), tf.TensorSpec((5,), tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


queued = v1.estimator.inputs.numpy_input_fn(PIXELS, LABELS, batch_size=8, num_epochs=1, shuffle=False)
by_number = inputs.from_arrays(train=(PIXELS, LABELS), eval=(PIXELS, LABELS), global_batch_size=9).eval_input_fn


def noisy_model_fn(features, labels, mode, params, config):
    if mode == tf.estimator.ModeKeys.EVAL:
        features = features + tf.random.normal(tf.shape(features))
    return keras_model_fn(features, labels, mode, params, config)


def python_metric_model_fn(features, labels, mode, params, config):
    spec = keras_model_fn(features, labels, mode, params, config)
    seen = []
    size = tf.numpy_function(lambda y: np.float32(seen.append(len(y)) or sum(seen)), [labels], tf.float32)
    return spec._replace(eval_metric_ops={**spec.eval_metric_ops, "seen": v1.metrics.mean(size)})


class CountSteps(tf.estimator.SessionRunHook):
    """Keeps what a session's life was to it."""

    def __init__(self):
        self.lives = []

    def begin(self):
        self.lives.append(["begin"])
        self.step = v1.train.get_global_step()

    def after_create_session(self, session, coord):
        self.lives[-1].append("after_create_session")

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs(self.step)

    def after_run(self, run_context, run_values):
        self.lives[-1].append(int(run_values.results))

    def end(self, session):
        self.lives[-1].append("end")


class AddsOperations(CountSteps):
    def begin(self):
        super().begin()
        self.step = v1.train.get_global_step() + 0


class AddsLater(CountSteps):
    def begin(self):
        super().begin()
        if len(self.lives) > 1:
            self.step = v1.train.get_global_step() + 0


class SummaryOfModel(tf.estimator.SessionRunHook):
    pass


def hooked_model_fn(features, labels, mode, params, config):
    return keras_model_fn(features, labels, mode, params, config)._replace(evaluation_hooks=[SummaryOfModel()])


@dataclasses.dataclass
class Case:
    keeps: str
    input_fn: Any = pixels
    make: Callable[..., Any] = keras_estimator
    steps: int | None = None
    hook: type | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def over(devices):
    return {"eval_distribute": "mirrored", "num_devices": devices}


CASES = {
    "keras": Case(SESSION),
    "canned, with a vocabulary": Case(SESSION, colors, canned_estimator),
    "a part of a shuffled input": Case(SESSION, shuffled, steps=2),
    "iterator that its input_fn initializes": Case(SESSION, initializable),
    "the same tensors at each step": Case(SESSION, tensors, steps=2),
    "inputs by number": Case(SESSION, by_number),
    "mirrored": Case(SESSION, mirrored(), options=over(2)),
    "mirrored, canned, a part": Case(SESSION, mirrored(colors, 4), canned_estimator, steps=1, options=over(2)),
    "one-shot iterator": Case(GRAPH, one_shot),
    "random input": Case(GRAPH, augmented),
    "random model": Case(GRAPH, options={"model_fn": noisy_model_fn}),
    "hook": Case(GRAPH, hook=CountSteps, steps=3),
    "mirrored, random, hook": Case(GRAPH, mirrored(augmented, 2), with_own_strategy, hook=CountSteps),
    "generator": Case(NOTHING, generated),
    "queues": Case(NOTHING, queued),
    "metric in Python": Case(NOTHING, options={"model_fn": python_metric_model_fn}),
    "hooks of the model_fn": Case(NOTHING, options={"model_fn": hooked_model_fn}),
    "hook that adds operations": Case(NOTHING, hook=AddsOperations),
    "hook that adds operations later": Case(NOTHING, hook=AddsLater),
}


def same(one, other):
    assert list(one) == list(other)
    for key, value in one.items():
        assert type(value) is type(other[key]), key
        np.testing.assert_array_equal(value, other[key], err_msg=key)


def events(folder):
    """(step, tag, value) of all summaries in a folder."""
    found = []
    for path in sorted(Path(folder).glob("events.*")):
        for event in v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                content = value.simple_value if value.HasField("simple_value") else value.tensor.string_val[0]
                found.append((event.step, value.tag, content))
    return found


@pytest.fixture
def quick():
    """Sessions of mirrored evaluations close at once; it is the same for both ways."""
    with sessions.short_waits():
        yield


@pytest.mark.gate("keras", "a part of a shuffled input", "inputs by number", "mirrored")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_same_as_estimator_evaluate(trained, case, tmp_path):
    """Two checkpoints, one of them twice: metrics and summaries bit by bit, and what is kept for it."""
    estimator = case.make(trained, **case.options)
    hooks = [[case.hook()] if case.hook else [] for _ in range(2)]
    name = tmp_path.name
    first, _, third = checkpoints_of(estimator)
    kept = RepeatedEvaluation(
        estimator,
        case.input_fn,
        steps=case.steps,
        hooks=hooks[0],
        name=f"kept_{name}",
        input_restarts=case.input_fn is by_number,
    )
    results = []
    for path in (third, first):
        results.append(kept.evaluate(path))
        plain = estimator.evaluate(
            case.input_fn, steps=case.steps, hooks=hooks[1], checkpoint_path=path, name=f"plain_{name}"
        )
        same(results[-1], plain)
    assert results[0]["loss"] != results[1]["loss"], "another checkpoint is another model"
    v1.summary.FileWriterCache.clear()
    written = [events(estimator.eval_dir(f"{kind}_{name}")) for kind in ("kept", "plain")]
    assert written[0] == written[1] and {"loss", "checkpoint_path"} <= {tag for _, tag, _ in written[0]}
    if case.hook and case.hook is not AddsLater:
        assert hooks[0][0].lives == hooks[1][0].lives
    same(kept.evaluate(third), results[0])
    assert {"session": (1, 1, True), "graph": (1, 3, False), "nothing": (1, None, False)}[case.keeps] == (
        kept.graphs,
        kept.sessions if case.keeps != NOTHING else None,
        kept.keeps_session,
    )
    assert (kept.rebuilds_because is not None) == (case.keeps == NOTHING)
    kept.close()


def test_nothing_grows(trained):
    """After two evaluations and after six: the same graph with as many operations, and one session."""
    estimator = keras_estimator(trained)
    kept = RepeatedEvaluation(estimator, pixels, name="grows")
    path = checkpoints_of(estimator)[0]
    sizes = []
    for _ in range(6):
        kept.evaluate(path)
        sizes.append((kept.operations, kept.graphs, kept.sessions))
    assert sizes[1] == sizes[5] and sizes[5][1:] == (1, 1) and sizes[5][0] > 100
    kept.close()
    assert kept.operations == 0
    kept.evaluate(path)
    assert (kept.graphs, kept.sessions) == (2, 2), "after close() all is made anew"
    kept.close()


def test_a_failure_leaves_nothing_behind(trained, tmp_path):
    estimator = keras_estimator(trained)
    kept = RepeatedEvaluation(estimator, pixels, name="fails")
    path = checkpoints_of(estimator)[0]
    right = kept.evaluate(path)
    with pytest.raises((ValueError, tf.errors.OpError)):
        kept.evaluate(str(tmp_path / "model.ckpt-77"))
    assert kept.operations == 0
    same(kept.evaluate(path), right)
    kept.close()


def test_vocabulary_file_that_changed(tmp_path, trained):
    """A table does not read its file twice in a session; the evaluation goes on in a new one."""
    (tmp_path / "canned").symlink_to(trained / "canned")
    (tmp_path / "colors.txt").write_text("red\ngreen\nblue\n")
    estimator = canned_estimator(tmp_path)
    path = checkpoints_of(estimator)[0]
    kept = RepeatedEvaluation(estimator, colors, name="changed")
    before = kept.evaluate(path)
    (tmp_path / "colors.txt").write_text("blue\nred\ngreen\n")
    after = kept.evaluate(path)
    same(after, estimator.evaluate(colors, checkpoint_path=path, name="changed_plain"))
    assert after["loss"] != before["loss"] and kept.sessions == 2
    kept.close()


@pytest.mark.gate("True")
@pytest.mark.parametrize("cached", [False, True])
def test_the_input_is_read_again(trained, tmp_path, cached):
    """A file that grows between two evaluations: both ways see what is there now."""
    path = tmp_path / "rows.csv"

    def input_fn():
        rows = tf.data.TextLineDataset(str(path)).map(lambda line: tf.strings.to_number(tf.strings.split(line, ",")))
        rows = rows.cache() if cached else rows
        return rows.map(lambda row: (tf.reshape(row[1:], [4, 4, 1]), tf.cast(row[0], tf.int64))).batch(3)

    estimator = keras_estimator(trained)
    checkpoint = checkpoints_of(estimator)[0]
    kept = RepeatedEvaluation(estimator, input_fn, name="again")
    for count in (7, 12):
        rows = [",".join(map(str, [label, *image.ravel()])) for image, label in zip(PIXELS, LABELS, strict=True)]
        path.write_text("\n".join(rows[:count]) + "\n")
        same(kept.evaluate(checkpoint), estimator.evaluate(input_fn, checkpoint_path=checkpoint, name="again_plain"))
    assert kept.sessions == 1
    kept.close()


def test_unknown_estimators_evaluate_themselves(trained):
    estimator = keras_estimator(trained)
    estimator.evaluate = lambda *args, **kwargs: {"own": 1}
    kept = RepeatedEvaluation(estimator, pixels)
    assert kept.evaluate("anything") == {"own": 1}
    assert kept.rebuilds_because == "EstimatorV2 overrides methods of the evaluation" and kept.graphs == 0


# -- the evaluator ----------------------------------------------------------------------------------------------------


def evaluator_for(estimator, spec, *, progress=None, literal_delays=False, **options):
    progress = progress or progress_protocol.ProgressWriter(None)
    return CheckpointEvaluator(
        spec,
        lambda: EstimatorEvaluation(estimator, spec, progress=progress, **options),
        checkpoint_steps=estimator.config.save_checkpoints_steps,
        progress=progress,
        literal_delays=literal_delays,
    )


def evaluator_of(estimator, **options):
    spec = {k: options.pop(k) for k in ("throttle_secs", "start_delay_secs") if k in options}
    return evaluator_for(estimator, tf.estimator.EvalSpec(pixels, steps=None, name="follow", **spec), **options)


@pytest.mark.parametrize("keep", [True, False])
def test_evaluator_keeps_if_it_may(trained, tmp_path, keep):
    calls = []

    def input_fn():
        calls.append(1)
        return pixels()

    estimator = keras_estimator(trained)
    spec = tf.estimator.EvalSpec(input_fn, steps=None, name=f"keep_{keep}")
    progress = progress_protocol.ProgressWriter(str(tmp_path / "progress"))
    with evaluator_for(estimator, spec, progress=progress, keep=keep) as evaluator:
        found = [evaluator.evaluate(path, final=False).metrics for path in checkpoints_of(estimator)]
        assert not keep or (evaluator._evaluation._kept.keeps_session and evaluator._evaluation._kept.sessions == 1)
    assert len(calls) == (1 if keep else 3)
    # Each reports that it has begun; within a second, no further batch.
    events = [json.loads(line)["event"] for line in (tmp_path / "progress").read_text().splitlines()]
    assert [kind for kind, _ in itertools.groupby(events)] == ["evaluating", "evaluation"] * 3
    assert [m["global_step"] for m in found] == [0, 2, 4]


@pytest.mark.gate("kept-True", "plain-False")
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("input_fn", [lambda: pixels().take(0), lambda: generated().take(0)], ids=["kept", "plain"])
def test_an_evaluation_without_data(trained, logged, keep, input_fn):
    estimator = keras_estimator(trained)
    spec = tf.estimator.EvalSpec(input_fn, steps=None, name="no_data")
    options = {"progress": progress_protocol.from_environ({}), "keep": keep}
    refused = pytest.raises(InputError, match=r"model.ckpt-\d had not a single batch")
    with evaluator_for(estimator, spec, **options) as evaluator, refused:
        evaluator.evaluate(checkpoints_of(estimator)[0], final=False)
    assert not evaluator.evaluations
    with evaluator_for(estimator, spec, **options, needs_data=False) as evaluator:
        assert evaluator.evaluate(checkpoints_of(estimator)[0], final=False).metrics["loss"] == 0.0
    assert "had not a single batch" in logged.text


@pytest.mark.gate("True-3")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("keep", [True, False])
def test_a_mirrored_evaluation_counts_each_record_once(trained, replicas, keep):
    """34 records in five batches, of which two or three replicas cannot all have one; not once, but each time."""

    def of_all(**options):
        estimator = keras_estimator(trained, counting_model_fn, **options)
        spec = tf.estimator.EvalSpec(pixels, steps=None, name=f"all_{replicas}_{keep}")
        options_of = {"progress": progress_protocol.from_environ({}), "keep": keep}
        with evaluator_for(estimator, spec, **options_of) as evaluator:
            path = checkpoints_of(estimator)[-1]
            return [evaluator._evaluation.metrics_of(path) for _ in range(3 if options else 1)]

    (alone,) = of_all()
    assert (alone["records"], alone["seen"]) == (34.0, pytest.approx(LABELS.mean(), rel=1e-6))
    for metrics in of_all(**over(replicas)):
        assert metrics["records"] == 34.0 and metrics["seen"] == pytest.approx(alone["seen"], rel=1e-6)
        for name in ("accuracy", "average_loss"):
            assert metrics[name] == pytest.approx(alone[name], rel=1e-5), name


def counting_model_fn(features, labels, mode, params, config):
    spec = keras_model_fn(features, labels, mode, params, config)
    if mode != tf.estimator.ModeKeys.EVAL:
        return spec
    yes = tf.ones_like(labels)
    own = {"seen": v1.metrics.mean(labels), "records": v1.metrics.true_positives(yes, yes)}
    return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **own})


@pytest.mark.usefixtures("quick")
def test_what_replicas_cannot_share_is_refused(trained):
    def of_one_size():
        return tf.data.Dataset.from_tensor_slices((PIXELS, LABELS)).batch(11, drop_remainder=True)

    estimator = keras_estimator(trained, **over(2))
    spec = tf.estimator.EvalSpec(of_one_size, steps=None, name="one_size")
    with evaluator_for(estimator, spec, progress=progress_protocol.from_environ({})) as evaluator:
        with pytest.raises(InputError, match=r"could not distribute its batches[^$]*drop_remainder"):
            evaluator._evaluation.metrics_of(checkpoints_of(estimator)[0])
        spec = tf.estimator.EvalSpec(lambda: of_one_size().take(2), steps=None, name="one_size")
    with evaluator_for(estimator, spec, progress=progress_protocol.from_environ({})) as evaluator:
        assert evaluator._evaluation.metrics_of(checkpoints_of(estimator)[0])["loss"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("batch", [4, 7])
def test_even_batches(replicas, batch):
    """The same records in the same order, in rounds that are whole; whole ones stay as they are."""

    for count in range(replicas, 40, 3):
        numbers = np.arange(count)
        rows = tf.ragged.constant([[n] * (n % 3) for n in numbers], ragged_rank=1, dtype=tf.int64)
        features = {"x": numbers, "sparse": tf.sparse.from_dense(numbers[:, None] + 1), "ragged": rows}
        batches = tf.data.Dataset.from_tensor_slices((features, numbers)).batch(batch)
        if batches.cardinality() % replicas == 0:  # where nobody knows it, they are looked at
            found = [labels for _, labels in even_batches(batches, replicas)]
            assert [labels.numpy().tolist() for labels in found] == [labels.numpy().tolist() for _, labels in batches]
            batches = batches.filter(lambda *_: True)
        found = list(even_batches(batches, replicas))
        assert len(found) % replicas == 0 and all(len(labels) for _, labels in found)
        assert np.concatenate([labels for _, labels in found]).tolist() == list(range(count))
        for features, labels in found:
            np.testing.assert_array_equal(features["x"], labels)
            np.testing.assert_array_equal(features["sparse"].values, labels + 1)
            assert features["ragged"].to_list() == [[n] * (n % 3) for n in labels.numpy()]
        whole = -(-count // batch) // replicas * replicas
        rounds = whole if whole * batch >= count else max(0, whole - replicas)
        behind, last = -(-count // batch) - whole, count % batch or batch
        if behind and whole and last >= -(-replicas // behind):
            rounds = whole  # the batches behind the whole rounds make one
        assert [len(labels) for _, labels in found[:rounds]] == [len(labels) for _, labels in batches.take(rounds)]


def test_batches_are_counted(trained):
    for input_fn in (pixels, generated):
        kept = RepeatedEvaluation(keras_estimator(trained), input_fn, name="counted")
        for path in checkpoints_of(keras_estimator(trained))[:2]:
            kept.evaluate(path)
            assert kept.batches == {pixels: 5, generated: 3}[input_fn]
        kept.close()


@pytest.mark.parametrize(
    ("spec", "literal", "throttle", "delay", "newest"),
    [
        ({}, False, 0, 0, False),
        ({}, True, 600, 120, True),
        ({"throttle_secs": 30, "start_delay_secs": 5}, False, 30, 5, True),
        ({"throttle_secs": 0, "start_delay_secs": 0}, False, 0, 0, False),
        ({"throttle_secs": 0, "start_delay_secs": 0}, True, 0, 0, True),
    ],
)
def test_delays(trained, spec, literal, throttle, delay, newest):
    evaluator = evaluator_of(keras_estimator(trained), literal_delays=literal, **spec)
    assert (evaluator.throttle_secs, evaluator.start_delay_secs, evaluator.newest_only) == (throttle, delay, newest)
    assert evaluator.seconds_to_wait() == 0
    evaluator.evaluate(checkpoints_of(keras_estimator(trained))[0], final=False)
    assert (evaluator.seconds_to_wait() > 0) == (throttle > 0)


class Kept:
    """Metrics and exports are stubs; an exporter is told each time whether it is the end."""

    def __init__(self, folder, *exports):
        self.asked, self.evaluated = [], []
        exporters = [types.SimpleNamespace(name=name, export=self.export) for name in exports]
        spec = types.SimpleNamespace(exporters=exporters, throttle_secs=0, start_delay_secs=0)
        self.exported = types.SimpleNamespace(model_dir=str(folder))
        progress = progress_protocol.from_environ({})
        self.evaluator = CheckpointEvaluator(spec, lambda: self, checkpoint_steps=None, progress=progress)

    def metrics_of(self, checkpoint):
        self.evaluated.append(checkpoint)
        return {"loss": 1.0, "global_step": 7}

    def write_final(self, checkpoint):
        return []

    def export(self, *, export_path, is_the_final_export, **_):
        name = Path(export_path).name
        self.asked.append((name, is_the_final_export))
        return export_path if name == "latest" or is_the_final_export else None


def test_a_checkpoint_is_evaluated_and_exported_once(tmp_path):
    """Also where it is known afterwards alone that it was the last one; who has waited for that is asked again."""
    kept = Kept(tmp_path, "latest", "final")
    evaluator = kept.evaluator
    for final in (False, True):
        evaluator.evaluate(str(tmp_path / "model.ckpt-7"), final=final)
    assert len(kept.evaluated) == len(evaluator.evaluations) == 1
    assert kept.asked == [("latest", False), ("final", False), ("final", True)]
    assert [Path(path).name for path in evaluator.exports] == ["latest", "final"]


def test_an_evaluation_that_gives_nothing_ends_nothing(tmp_path, warnings):
    """Such as that of a program's own `evaluate`, which gives None."""
    kept = Kept(tmp_path, "latest")
    kept.metrics_of, evaluator = lambda checkpoint: None, kept.evaluator
    evaluation = evaluator.evaluate(str(tmp_path / "model.ckpt-7"), final=True)
    assert evaluation.metrics == {} and evaluation.global_step == 7 and evaluator.exporters
    assert warnings == [f"the evaluation of {tmp_path}/model.ckpt-7 gave no metrics"]


TASK = {"task": {"type": "evaluator", "index": 0}, "cluster": {"chief": ["localhost:1"]}}
CHIEF = {"type": "chief", "index": 0}


class Training:
    """A model directory as the chief of a run leaves it at one moment after another."""

    def __init__(self, estimator, folder):
        self.folder = Path(folder)
        self.trained = Path(estimator.model_dir)
        self.rendezvous, self.chief = (
            Rendezvous(str(folder), tf_config=from_environ(environ), environ=environ)
            for environ in ({"TF_CONFIG": json.dumps({**TASK, "task": task})} for task in (TASK["task"], CHIEF))
        )
        self.rendezvous.report("here")
        self.estimator = tf.estimator.Estimator(keras_model_fn, config=config_for(folder, save_checkpoints_steps=10))

    def has(self, *steps):
        """Makes these the checkpoints that are there: the trained model under other steps."""
        for path in self.folder.glob("model.ckpt-*"):
            path.unlink()
        for step in steps:
            for ending in ("index", "data-00000-of-00001"):
                (self.folder / f"model.ckpt-{step}.{ending}").symlink_to(self.trained / f"model.ckpt-4.{ending}")
        paths = [f"model.ckpt-{step}" for step in steps]
        v1.train.update_checkpoint_state(str(self.folder), paths[-1], all_model_checkpoint_paths=paths)

    def says(self, state, **more):
        self.chief.publish_status(state, **more)

    def ends(self, step):
        self.says("finished", checkpoint=str(self.folder / f"model.ckpt-{step}"), global_step=step)

    def follow(self, happens, **options):
        """The steps that an evaluator evaluates; `happens` are called, one after each of its evaluations."""
        evaluator = evaluator_of(self.estimator, **options)
        left = list(happens)
        evaluate = evaluator.evaluate

        def evaluate_and_go_on(path, *, final):
            found = evaluate(path, final=final)
            left.pop(0)()
            return found

        evaluator.evaluate = evaluate_and_go_on
        with evaluator:
            environ, patient = {"TF_CONFIG": self.rendezvous.tf_config.to_json()}, TrainOptions(checkpoint_timeout=60)
            context = task_context(self.folder, environ=environ, options=patient, rendezvous=self.rendezvous)
            follow_training(context, evaluator)
        return [e.global_step for e in evaluator.evaluations]


@pytest.fixture
def training(trained, tmp_path, unreachable_chief):
    return Training(keras_estimator(trained), tmp_path)


@pytest.fixture
def unreachable_chief(monkeypatch):
    """No chief runs in these tests: nobody answers at its address, and that is not what they are about."""
    monkeypatch.setattr("estimator_pipeline.engines.core.evaluation.PeerWatch.check", lambda self, what: None)


def nothing():
    pass


def test_every_checkpoint_of_the_run(training, warnings):
    """Those written before the evaluator came, and those that came while it was busy; the last is the chief's word."""
    training.says("running", from_step=10)
    training.has(0, 5, 10, 20, 30)

    def more():
        training.has(10, 20, 30, 40, 50, 60)

    def end():
        training.ends(60)

    assert training.follow([nothing, more, nothing, nothing, end]) == [10, 20, 30, 40, 50]
    assert not warnings


def test_a_model_directory_that_is_mounted_elsewhere(training):
    """What is written down are the chief's paths, which nobody else may have."""
    training.says("running", from_step=0)
    training.has(5, 10)
    paths = ["/of/the/chief/model.ckpt-5", "/of/the/chief/model.ckpt-10"]
    v1.train.update_checkpoint_state(str(training.folder), paths[-1], all_model_checkpoint_paths=paths)

    def end():
        training.says("finished", checkpoint=paths[-1], global_step=10)

    assert training.follow([end]) == [5], "the last one is for the end"


def test_without_the_chiefs_word_old_checkpoints_are_an_earlier_runs(training):
    training.has(10, 20, 30)
    assert training.follow([lambda: (training.has(10, 20, 30, 40), training.ends(40))]) == [30]


def test_it_says_which_checkpoints_were_deleted_before_their_turn(training, warnings):
    training.says("running", from_step=0)
    training.has(10, 20, 30, 40)

    def lose():
        training.has(30, 40)  # 20 was seen

    def lose_unseen():
        training.has(70, 80)  # 40 was seen, 50 and 60 never

    assert training.follow([lose, lose_unseen, lambda: training.ends(80)]) == [10, 30, 70]
    assert len(warnings) == 3
    assert "steps [20] were deleted before their evaluation" in warnings[0]
    assert "steps [40] were deleted" in warnings[1]
    assert "no checkpoint between steps 40 and 70, though one is written every 10 steps" in warnings[2]
    assert all("Increase keep_checkpoint_max" in text for text in warnings)


def test_an_evaluator_that_starts_late_does_not_call_evaluation_slow(training, warnings):
    """The launcher may have started it again; what its first start has evaluated is gone."""
    training.says("running", from_step=0)
    training.has(30)
    assert training.follow([lambda: training.ends(40)]) == [30]
    assert len(warnings) == 1
    assert "between steps 0 and 30" in warnings[0] and "an earlier start of it may have evaluated them" in warnings[0]


@pytest.mark.parametrize("options", [{"literal_delays": True, "throttle_secs": 0, "start_delay_secs": 0}])
def test_newest_alone_where_that_is_asked_for(training, warnings, options):
    training.says("running", from_step=0)
    training.has(10, 20, 30)

    def more():
        training.has(30, 40, 50, 60)

    assert training.follow([more, lambda: (training.has(60, 70, 80), training.ends(80))], **options) == [30, 60]
    assert not warnings, "what nobody wants evaluated is not missed"


def test_an_evaluator_whose_chief_never_comes(trained, tmp_path, monkeypatch):
    """It waited for a checkpoint for two hours. One that has been heard of may have no server."""
    monkeypatch.setenv("ESTIMATOR_PIPELINE_START_SECS", "0.5")
    training = Training(keras_estimator(trained), tmp_path)
    with pytest.raises(WaitError, match=r"waited 0 s for the other tasks to join, and chief:0 \(localhost:1\) did not"):
        training.follow([])
    training.says("running", from_step=0)
    training.rendezvous.attend()
    training.has(0, 10)

    def end():
        time.sleep(1.0)
        training.ends(10)

    assert training.follow([end]) == [10]
