"""Programs whose two sides have the same in another form: records, slots, metrics, batches of several replicas."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.parity import compare_models, document, summary
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.jobs import run
from estimator_pipeline.parity.models.record_formats import common_formats
from estimator_pipeline.parity.optimizer_slots import kept_by_keras, kept_in_graph
from estimator_pipeline.parity.report.html import write_report
from estimator_pipeline.parity.result import ENGINES
from estimator_pipeline.parity.step_records import BatchWriter, StepReader, StepWriter
from estimator_pipeline.utils.variable_names import canonical
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1, keras = tf.compat.v1, tf.keras
legacy, newer = keras.optimizers.legacy, keras.optimizers

pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")

RANDOM = np.random.RandomState(5)
X = RANDOM.uniform(0, 1, [48, 6]).astype("float32")
Y = (X.sum(1, keepdims=True) > 3).astype("float32")
nightly = pytest.mark.nightly
MAPPING = {"one/kernel": "fc1/kernel", "one/bias": "fc1/bias"}


def data(x=X, y=Y, *more, batch=16):
    return lambda: tf.data.Dataset.from_tensor_slices((x, y, *more)).repeat().batch(batch)


def evaluated(*parts, batch=20):
    return lambda: tf.data.Dataset.from_tensor_slices(parts or (X, Y)).batch(batch)


def one(features):
    return features


def estimator(make=None, *, pick=one, grads=None, before=None, metrics=None, loss_of=None, config=None):
    def model_fn(features, labels, mode):
        if before is not None:
            before()
        logits = v1.layers.dense(pick(features), 1, name="fc1")
        each = v1.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(labels, tf.float32), logits=logits)
        loss = tf.reduce_mean(each)
        if mode == tf.estimator.ModeKeys.EVAL:
            found = {} if metrics is None else metrics(labels, tf.sigmoid(logits), each)
            return tf.estimator.EstimatorSpec(
                mode, loss=loss if loss_of is None else loss_of(each), eval_metric_ops=found
            )
        step = v1.train.get_or_create_global_step()
        optimizer = v1.train.GradientDescentOptimizer(0.1) if make is None else make()
        train_op = optimizer.minimize(loss, step) if grads is None else grads(optimizer, loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return tf.estimator.Estimator(model_fn, config=config)


def model(optimizer=None, *, layers=(), metrics=(), strategy=None, **options):
    keras.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        made = keras.Sequential([keras.layers.InputLayer((6,)), *layers, keras.layers.Dense(1, "sigmoid", name="one")])
        chosen = legacy.SGD(0.1) if optimizer is None else optimizer()
        made.compile(chosen, "binary_crossentropy", list(metrics), **options)
    return made


def compared(theirs, ours, folder, **options):
    given = {"input_fn": data(), "mapping": MAPPING, "steps": 2, "folder": folder, **options}
    return compare_models(theirs, ours, **given)


def about_records(found):
    return [note for note in found.notes if "records" in note]


# Records ----------------------------------------------------------------------------------------------------------

PARTS = {"z": X[:, :2], "b": X[:, 2:]}


def joined(features):
    return tf.concat([features["z"], features["b"]], 1)


@pytest.mark.parametrize(
    ("given", "pick", "theirs", "ours", "says"),
    [
        pytest.param("by the only name", lambda f: f["x"], data({"x": X}), data(), None, marks=nightly),
        pytest.param("float64", one, data(), data(X.astype("float64")), None, marks=nightly),
        pytest.param("whole numbers as labels", one, data(y=Y.astype("int64")), data(), None, marks=nightly),
        pytest.param("labels without a dimension", one, data(), data(y=Y[:, 0]), None, marks=nightly),
        (
            "parts",
            joined,
            data(PARTS),
            data(),
            "of the records only labels were compared: Keras reads the features in a different format (b: float32 [4], "
            "z: float32 [2] in the Estimator; features: float32 [6] in Keras)",
        ),
        (
            "weights",
            one,
            data(),
            data(X, Y, np.ones([48], "float32")),
            "of the records only features, labels were compared: only Keras reads weights: float32 []",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) and len(given) < 30 else "",
)
def test_records_in_another_form_are_the_same(tmp_path, given, pick, theirs, ours, says):
    found = compared(estimator(pick=pick), model(), tmp_path / "same", input_fn=theirs, keras_input_fn=ours)
    assert found.equal and len(found.records) == 2, given
    assert about_records(found) == ([] if says is None else [says])
    assert ("the same records (compared in part)" in summary(found)) == (says is not None)
    batches = StepReader(found.folder / "keras" / "record").batches()["worker-0"]
    assert len(batches[0]) == 16 and len({*batches[0]}) > 1, "a checksum for each record, of what it holds"


def test_other_records_in_another_form_are_found(tmp_path):
    others = data(X.astype("float64") * 2, Y)
    found = compared(estimator(), model(), tmp_path, keras_input_fn=others)
    assert [finding.name for finding in found.findings] == ["records"]
    assert "16 of 16 differ from those of the other side" in found.findings[0].message
    # The labels alone tell, where they are all that is in common.
    turned = {name: values[::-1].copy() for name, values in PARTS.items()}
    found = compared(
        estimator(pick=joined),
        model(),
        tmp_path / "labels",
        input_fn=data(turned, Y[::-1].copy()),
        keras_input_fn=data(),
    )
    assert [finding.name for finding in found.findings] == ["records"]


def test_nothing_in_the_same_form():
    def hot(labels):
        return np.concatenate([1 - labels, labels], 1)

    found = common_formats(
        tf.data.Dataset.from_tensor_slices((PARTS, Y)).batch(4).element_spec,
        tf.data.Dataset.from_tensor_slices((X, hot(Y))).batch(4).element_spec,
    )
    assert not found.compared
    assert found.notes == (
        "the records that were read were not compared, because no part has the same format in both: Keras reads the "
        "rest in a different format (b: float32 [4], z: float32 [2], labels: float32 [1] in the Estimator; "
        "features: float32 [6], labels: float32 [2] in Keras)",
    )
    texts = common_formats((tf.TensorSpec([None], tf.string),), (tf.TensorSpec([None], tf.float32),))
    assert not texts.compared
    assert "features: string [] in the Estimator; features: float32 [] in Keras" in texts.notes[0]
    # What is not known beforehand is taken for the same.
    shapeless = common_formats((tf.TensorSpec(None),), (tf.TensorSpec([None, 3], tf.int32),))
    assert shapeless.compared and not shapeless.notes


def test_the_same_form_is_told_as_it_is():
    spec = data()().element_spec
    assert common_formats(spec, spec).chosen == (None, None) == common_formats(None, spec).chosen


# Replicas ---------------------------------------------------------------------------------------------------------


@nightly
def test_replicas_on_one_side_alone(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())
    config = tf.estimator.RunConfig(train_distribute=strategy)
    found = compared(
        estimator(config=config), model(), tmp_path / "same", input_fn=data(batch=8), keras_input_fn=data(batch=16)
    )
    assert found.equal and len(found.records) == 2 and not about_records(found)
    found = compared(estimator(config=config), model(), tmp_path / "other")
    assert found.findings[0].message == (
        "step 1: estimator reads 32 records for the step, keras 16, and each replica reads its own batches"
    )


def test_batches_of_replicas_are_joined(tmp_path):
    from estimator_pipeline.parity.diagnosis.diagnose import Facts

    for engine, size in (("estimator", 2), ("keras", 4)):
        writer = StepWriter(tmp_path / engine / "record")
        batches = BatchWriter(writer.folder, "worker:0")
        writer.initial({"w": np.zeros(1, np.float32), "global_step": np.int64(0)})
        for step in (1, 2):
            writer.step(step, loss=1.0, variables={"w": np.zeros(1, np.float32), "global_step": np.int64(step)})
        # The last step's of the first one lacks a batch.
        for start in range(0, 6 if size == 2 else 8, size):
            batches.batch([*range(start, start + size)])
    none = {engine: {} for engine in ENGINES}
    found = compare_records(tmp_path, metrics=none, facts=Facts(batches_per_step=(2, 1)))
    assert {step: read.names for step, read in found.records.items()} == {1: ("records of worker-0, batch 1",)}
    assert found.equal
    assert not compare_records(tmp_path, metrics=none, facts=Facts(batches_per_step=1)).equal


# Slots ------------------------------------------------------------------------------------------------------------


def nested(optimizer, loss, step):
    with v1.variable_scope("train"), v1.variable_scope("inner"):
        return optimizer.minimize(loss, step)


V1_OPTIMIZERS = {
    "adam": (lambda: v1.train.AdamOptimizer(0.1, name="opt"), ["m", "v"]),
    "momentum": (lambda: v1.train.MomentumOptimizer(0.1, 0.9, name="opt"), ["momentum"]),
    "adagrad": (lambda: v1.train.AdagradOptimizer(0.1, name="opt"), ["accumulator"]),
    "rmsprop": (lambda: v1.train.RMSPropOptimizer(0.1, name="opt"), ["rms", "momentum"]),
    "centered": (lambda: v1.train.RMSPropOptimizer(0.1, centered=True, name="opt"), ["rms", "mg", "momentum"]),
    "ftrl": (lambda: v1.train.FtrlOptimizer(0.1, name="opt"), ["accumulator", "linear"]),
    "adadelta": (lambda: v1.train.AdadeltaOptimizer(0.1), ["accum_grad", "accum_var"]),
    "proximal": (lambda: v1.train.ProximalAdagradOptimizer(0.1), ["accumulator"]),
    "adagrad_da": (
        lambda: v1.train.AdagradDAOptimizer(0.1, v1.train.get_or_create_global_step()),
        ["gradient_accumulator", "gradient_squared_accumulator"],
    ),
}


@pytest.mark.parametrize("resources", [True, False])
@pytest.mark.parametrize("name", V1_OPTIMIZERS)
def test_slots_of_a_graph(name, resources):
    """Told by the operations, whatever they are called, and in whatever scope."""
    make, slots = V1_OPTIMIZERS[name]
    with tf.Graph().as_default() as graph:
        weights = v1.get_variable("fc/weights", [3, 2], use_resource=resources)
        rows = v1.get_variable("rows", [5, 2], use_resource=resources)
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(weights**2) + tf.reduce_sum(tf.nn.embedding_lookup(rows, [1, 3]) ** 2)
        nested(make(), loss, step)
        names = [variable.name for variable in v1.global_variables()]
        kept = kept_in_graph(graph)
    both = {f"{weight} @{slot}" for weight in ("fc/weights", "rows") for slot in slots}
    assert set(canonical(names, kept.names)) == {"fc/weights", "rows", "global_step", *both}


KERAS_OPTIMIZERS = {
    "adam": (lambda: legacy.Adam(amsgrad=True), ["m", "v", "vhat"]),
    "adadelta": (legacy.Adadelta, ["accum_grad", "accum_var"]),
    "adamax": (legacy.Adamax, ["m", "v"]),
    "nadam": (legacy.Nadam, ["m", "v"]),
    "newer adam": (lambda: newer.Adam(amsgrad=True), ["m", "v", "vhat"]),
    "newer adadelta": (newer.Adadelta, ["accum_grad", "accum_var"]),
    "newer adamax": (newer.Adamax, ["m", "v"]),
    "newer nadam": (newer.Nadam, ["m", "v"]),
    "newer momentum": (lambda: newer.SGD(momentum=0.9, use_ema=True), ["momentum", "average"]),
    "newer rmsprop": (lambda: newer.RMSprop(centered=True, momentum=0.5), ["rms", "mg", "momentum"]),
}


@pytest.mark.parametrize("name", [*KERAS_OPTIMIZERS, "newer adafactor"])
def test_slots_of_keras(name):
    from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

    make, slots = KERAS_OPTIMIZERS.get(name, (newer.Adafactor, ["v"]))
    made = model(make)
    keras_optimizers.create_slots(made)
    names = [one.name for one in (*made.variables, *keras_optimizers.variables_of(made.optimizer))]
    expected = {"one/kernel", "one/bias", "global_step"}
    expected |= {f"{weight} @{slot}" for weight in ("one/kernel", "one/bias") for slot in slots}
    expected |= {"one/kernel @r", "one/kernel @c"} if name == "newer adafactor" else set()
    assert set(canonical(names, kept_by_keras(made).names)) == expected


@pytest.mark.parametrize(
    ("theirs", "ours", "with_slots"),
    [
        pytest.param(
            lambda: v1.train.AdamOptimizer(0.01, name="opt"),
            lambda: legacy.Adam(0.01, epsilon=1e-8),
            True,
            marks=nightly,
        ),
        (lambda: v1.train.AdamOptimizer(0.01, name="opt"), lambda: newer.Adam(0.01, epsilon=1e-8), True),
        # The velocity means something else there, whatever the optimizer is called.
        (lambda: v1.train.MomentumOptimizer(0.1, 0.9, name="opt"), lambda: legacy.SGD(0.1, momentum=0.9), False),
        pytest.param(None, lambda: newer.SGD(0.1, use_ema=True), False, marks=nightly),
    ],
    ids=["adam", "newer adam", "momentum", "average"],
)
def test_optimizers_by_another_name_are_compared(tmp_path, theirs, ours, with_slots):
    found = compared(estimator(theirs, grads=nested if theirs else None), model(ours), tmp_path)
    if theirs is not None:
        assert found.equal
    assert any(" @" in name for name in found.steps[0].variables.names) == with_slots
    assert found.slots_kept


def averaged(optimizer, loss, step):
    with tf.control_dependencies([optimizer.minimize(loss, step)]):
        return v1.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())


def test_variables_that_nobody_trains_are_left_out(tmp_path):
    def counter():
        v1.get_variable("seen", [], trainable=False, initializer=v1.zeros_initializer())

    plain = keras.layers.Normalization(mean=0.0, variance=1.0, name="plain")
    adapted = keras.layers.Normalization(name="adapted")
    adapted.adapt(np.array([[-1.0] * 6, [1.0] * 6], "float32"))
    found = compared(estimator(before=counter, grads=averaged), model(layers=[plain, adapted]), tmp_path / "equal")
    assert found.equal and set(found.initial.names) == {"one/kernel", "one/bias", "global_step"}
    (note,) = [note for note in found.notes if note.startswith("non-trainable variables of only one side")]
    theirs, _, ours = note.partition("(only the Estimator)")
    assert all(name in theirs for name in ("seen", "fc1/kernel/ExponentialMovingAverage"))
    assert all(name in ours for name in ("mean", "variance", "(only the Keras model)", "`mapping` (--mapping)"))
    # What the mapping names is compared.
    with pytest.raises(ConfigError, match="have different shapes: mean"):
        compared(
            estimator(before=counter), model(layers=[adapted]), tmp_path / "m", mapping={**MAPPING, "mean": "seen"}
        )


def test_moving_statistics_and_frozen_weights_need_their_counterpart(tmp_path):
    normalised = [keras.layers.BatchNormalization(name="norm", center=False, scale=False)]
    with pytest.raises(ConfigError, match=r"norm/moving_mean \[6\], norm/moving_variance"):
        compared(estimator(), model(layers=normalised), tmp_path)
    frozen = [keras.layers.Dense(6, name="frozen", trainable=False, use_bias=False)]
    with pytest.raises(ConfigError, match=r"only in Keras: frozen/kernel \[6, 6\]"):
        compared(estimator(), model(layers=frozen), tmp_path)


# Metrics ----------------------------------------------------------------------------------------------------------


def precisions(*thresholds):
    return lambda labels, found, each: {"precision": v1.metrics.precision_at_thresholds(labels, found, thresholds)}


@pytest.mark.parametrize(
    ("theirs", "ours", "outcome"),
    [
        ([0.4], 0.4, "equal"),
        pytest.param([0.4, 0.5], [0.4, 0.5], "equal", marks=nightly),
        pytest.param([0.45, 0.5], [0.5, 0.5], "not equal", marks=nightly),
        pytest.param([0.4, 0.5], [0.4, 0.5, 0.6], "precision [2] in the Estimator, [3] in Keras", marks=nightly),
    ],
)
def test_metrics_that_are_arrays(tmp_path, theirs, ours, outcome):
    found = compared(
        estimator(metrics=precisions(*theirs)), model(metrics=[keras.metrics.Precision(ours, name="precision")]),
        tmp_path / "runs", eval_input_fn=evaluated(),
    )  # fmt: skip
    assert found.equal == (outcome != "not equal"), summary(found)
    if "in Keras" in outcome:
        assert f"metrics of different shapes are not compared: {outcome}" in found.notes
    else:
        assert "precision" in found.metrics.names
        told = json.loads(json.dumps(document(found)))["finals"]["keras"]["precision"]
        assert np.shape(told) == (() if len(theirs) == 1 else (2,))
    assert summary(found)
    write_report(found, tmp_path / "report")
    assert "precision" in (tmp_path / "report" / "report.html").read_text()


@nightly
def test_the_loss_of_the_evaluation_beside_average_loss(tmp_path):
    def average(labels, found, each):
        return {"average_loss": v1.metrics.mean(each)}

    metrics = [keras.metrics.BinaryCrossentropy("average_loss")]
    weighed = evaluated(X, Y, (1 + 2 * Y)[:, 0])
    options = {"eval_input_fn": evaluated()}
    found = compared(estimator(metrics=average), model(metrics=metrics), tmp_path / "same", **options)
    assert found.equal and {"loss", "average_loss"} == set(found.metrics.names)
    found = compared(
        estimator(metrics=average), model(metrics=metrics), tmp_path / "1", keras_eval_input_fn=weighed, **options
    )
    assert [difference.name for difference in found.metrics.faults] == ["loss"]
    found = compared(
        estimator(metrics=average, loss_of=tf.reduce_sum), model(metrics=metrics), tmp_path / "2", **options
    )
    assert [finding.kind for finding in found.findings] == ["metric"]
    # The same records in other batches have another mean of batch means.
    found = compared(
        estimator(metrics=average), model(metrics=metrics), tmp_path / "3", keras_eval_input_fn=evaluated(batch=48),
        **options,
    )  # fmt: skip
    assert found.equal and set(found.metrics.names) == {"average_loss"}
    assert (
        "the loss of the evaluation was not compared: the Estimator's is a mean of batch means, and the same records "
        "are read in different batches (3 in the Estimator, 1 in Keras); average_loss was" in found.notes
    )


def test_a_jobs_two_losses_mean_something_else():
    """Keras's loss is a mean over records there, as average_loss is; without that one, the losses are compared."""
    both = {"estimator": {"loss": 0.7, "average_loss": 0.6}, "keras": {"loss": 0.6, "average_loss": 0.6}}
    assert run.weighed_alike(both) == {"estimator": {"average_loss": 0.6}, "keras": {"average_loss": 0.6}}
    one_alone = {"estimator": {"loss": 0.7}, "keras": {"loss": 0.6, "average_loss": 0.6}}
    assert run.weighed_alike(one_alone) == one_alone


# What ends a comparison -------------------------------------------------------------------------------------------


def test_steps_that_are_made_in_one_go(tmp_path):
    for many in (3, "auto"):
        with pytest.raises(ConfigError, match=f"compiled with steps_per_execution={many!r}"):
            compared(estimator(), model(steps_per_execution=many), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def failing(after):
    def batches():
        for _ in range(after):
            yield X[:16], Y[:16]
        raise ValueError("bad row")

    spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))
    return lambda: tf.data.Dataset.from_generator(batches, output_signature=spec)


def test_data_that_raise(tmp_path):
    with pytest.raises(ConfigError) as raised:
        compared(estimator(), model(), tmp_path / "first", input_fn=failing(0))
    assert raised.value.what == "input_fn (<lambda>) fails while its first batch is read: ValueError: bad row"
    assert raised.value.found.startswith(f"{__file__}, line ")
    for side, options in (
        ("Keras model", {"input_fn": failing(2)}),
        ("Estimator", {"input_fn": failing(2), "keras_input_fn": data()}),
    ):
        with pytest.raises(TaskFailedError) as raised:
            compared(estimator(), model(), tmp_path / side, steps=4, **options)
        assert raised.value.what == f"the training of the {side} failed after step 2: ValueError: bad row"
        assert raised.value.exit_code == 1
    with pytest.raises(TaskFailedError, match="the evaluation of the Keras model failed: ValueError: bad row"):
        compared(estimator(), model(), tmp_path / "evaluation", eval_input_fn=failing(2))


def read_no_more_than(most):
    """Of the evaluation's data, which raise where they are read to their end once more."""
    ends = []

    def batches():
        yield X[:20], Y[:20]
        if len(ends) == most:
            raise ValueError("read too often")
        yield X[20:], Y[20:]
        ends.append(1)

    spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))
    return lambda: tf.data.Dataset.from_generator(batches, output_signature=spec)


@nightly
def test_an_evaluation_is_read_twice_by_keras(tmp_path):
    """And what comes up in any reading is told as what comes up in the first."""
    split = evaluated(batch=20)
    options = {"eval_input_fn": lambda: split().take(1).concatenate(split().skip(1).unbatch().batch(28))}
    found = compared(estimator(), model(), tmp_path / "2", keras_eval_input_fn=read_no_more_than(2), **options)
    assert found.equal and found.metrics.names == ("loss",)
    for most in (0, 1):
        with pytest.raises(TaskFailedError) as raised:
            compared(estimator(), model(), tmp_path / str(most), keras_eval_input_fn=read_no_more_than(most), **options)
        assert raised.value.what == "the evaluation of the Keras model failed: ValueError: read too often"
        assert raised.value.found.startswith(f"{__file__}, line ")


def test_the_first_batch_is_read_once(tmp_path):
    """For the look, the trace of what draws random numbers, and the prediction."""
    begun = []

    def batches():
        begun.append(1)
        while True:
            yield X[:16], Y[:16]

    spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))
    found = compared(
        estimator(), model(), tmp_path,
        keras_input_fn=lambda: tf.data.Dataset.from_generator(batches, output_signature=spec),
    )  # fmt: skip
    assert len(found.steps) == 2 and len(begun) == 2, "and for the training"


def without_end():
    def batches():
        while True:
            yield X[:20], Y[:20]
            yield X[20:], Y[20:]

    spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(without_end, marks=nightly),
        data(batch=16),
        pytest.param(
            v1.estimator.inputs.numpy_input_fn(X, Y, batch_size=20, num_epochs=None, shuffle=False), marks=nightly
        ),
    ],
    ids=["a generator", "a dataset", "tensors"],
)
def test_as_many_batches_of_an_evaluation_without_end(tmp_path, given):
    ours = model(metrics=[keras.metrics.MeanSquaredError(name="mse")])

    def errors(labels, found, each):
        return {"mse": v1.metrics.mean_squared_error(labels, found)}

    found = compared(estimator(metrics=errors), ours, tmp_path, eval_input_fn=given, eval_steps=3)
    assert found.equal and set(found.metrics.names) == {"loss", "mse"}, summary(found)
    assert found.about["eval_steps"] == 3


@nightly
def test_as_many_batches_on_several_replicas(tmp_path):
    """They are those of the data, and not those of each replica."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())
    config = tf.estimator.RunConfig(eval_distribute=strategy)

    def errors(labels, found, each):
        return {"mse": v1.metrics.mean_squared_error(labels, found)}

    found = compared(
        estimator(metrics=errors, config=config), model(metrics=[keras.metrics.MeanSquaredError(name="mse")]),
        tmp_path, eval_input_fn=evaluated(batch=8), eval_steps=4,
    )  # fmt: skip
    assert "mse" in found.metrics.names and "mse" not in [fault.name for fault in found.metrics.faults], summary(found)


@nightly
def test_as_many_batches_of_other_sizes_are_other_records(tmp_path):
    found = compared(
        estimator(), model(), tmp_path, eval_input_fn=evaluated(batch=20), keras_eval_input_fn=evaluated(batch=16),
        eval_steps=2,
    )  # fmt: skip
    assert not found.equal
    assert (
        "the evaluations read different numbers of records: 40 in 2 batches in the Estimator, 32 in 2 batches in Keras"
        in found.notes
    )


@pytest.mark.parametrize("argument", ["eval_input_fn", "keras_eval_input_fn"])
def test_an_evaluation_without_end(tmp_path, argument):
    given = {"eval_input_fn": evaluated(), "keras_eval_input_fn": evaluated(), argument: data()}
    with pytest.raises(ConfigError, match=rf"^{argument} .* endless dataset, .*\n.*\(--eval-steps N\)"):
        compared(estimator(), model(), tmp_path / "folder", **given)
    assert not (tmp_path / "folder").exists()


# Notes ------------------------------------------------------------------------------------------------------------


@nightly
def test_options_that_did_not_show(tmp_path):
    found = compared(
        estimator(lambda: v1.train.AdamOptimizer(0.01)),
        model(lambda: legacy.Adam(0.01, epsilon=2e-8)),
        tmp_path,
        steps=1,
    )
    assert found.equal
    assert (
        "the optimizer options differ (epsilon 1e-08 in estimator, 2e-08 in keras), which had no effect in "
        "1 step" in found.notes
    )
    found = compared(estimator(), model(), tmp_path / "same")
    assert not [note for note in found.notes if "which had no effect" in note]


@nightly
def test_notes_that_explain_another_difference_are_left_out(tmp_path):
    """Of metrics where training was the same."""

    def of_batches(labels, found, each):
        return {"average_loss": v1.metrics.mean(tf.reduce_mean(each))}

    def notes(rate):
        found = compared(
            estimator(metrics=of_batches),
            model(lambda: legacy.SGD(rate), metrics=[keras.metrics.BinaryCrossentropy("average_loss")]),
            tmp_path / str(rate),
            eval_input_fn=evaluated(),
        )
        return not found.equal, any(note.startswith("the training is equal, and metrics") for note in found.notes)

    assert notes(0.1) == (True, True)
    assert notes(0.2) == (True, False)
