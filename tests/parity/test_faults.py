"""A legacy model_fn against the Keras model that its people made of it: equal, and each planted fault is found.

One pair is trained for the whole file; most faults are planted into what it has recorded. What faults in records have
which name is in test_causes.py.
"""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity import compare_models
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.result import ENGINES
from estimator_pipeline.parity.step_records import read_arrays, write_arrays
from estimator_pipeline.testing import ParityError, assert_parity
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

# tf.compat.v1.layers says that it is old.
pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")

MAPPING = {
    "hidden/kernel": "fc1/kernel",
    "hidden/bias": "fc1/bias",
    "norm/gamma": "bn/gamma",
    "norm/beta": "bn/beta",
    "norm/moving_mean": "bn/moving_mean",
    "norm/moving_variance": "bn/moving_variance",
    "logits/kernel": "fc2/kernel",
    "logits/bias": "fc2/bias",
}
nightly = pytest.mark.nightly
RANDOM = np.random.RandomState(5)
LATE = "estimator has the learning rate of the step before"
X = RANDOM.uniform(0, 1, [192, 12]).astype("float32")
Y = np.argmax(X[:, :4] + RANDOM.normal(0, 0.1, [192, 4]), axis=1).astype("int32")


def rate(tf_keras_schedule=False):
    return tf.keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)


def optimizer(kind, **options):
    legacy = tf.keras.optimizers.legacy
    decayed = kind.startswith("decayed")
    if kind.endswith("adam"):
        return legacy.Adam(rate() if decayed else 0.01, **options)
    momentum = 0.0 if kind in ("sgd", "decayed") else 0.9
    return legacy.SGD(rate() if decayed else 0.1, momentum=momentum, nesterov=kind.endswith("nesterov"), **options)


def model_fn(features, labels, mode, params):
    """As people wrote them, with a fault that `params` asks for. It knows nothing of estimator_pipeline."""
    fault, kind = params.get("fault"), params["optimizer"]
    modes = tf.estimator.ModeKeys
    training = mode == modes.TRAIN or (fault == "evaluates as it trains" and mode == modes.EVAL)
    layers = tf.compat.v1.layers
    found = layers.dense(features, 16, name="fc1")
    if fault == "swapped layer":
        found = tf.nn.relu(layers.batch_normalization(found, training=training, name="bn"))
    else:
        found = layers.batch_normalization(tf.nn.relu(found), training=training, name="bn")
    logits = layers.dense(found, 4, name="fc2")
    if mode == modes.PREDICT and fault == "softmax":
        return tf.estimator.EstimatorSpec(mode, predictions={"logits": tf.nn.softmax(logits)})
    if mode == modes.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"logits": logits})
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(each)
    if mode == modes.EVAL:
        return tf.estimator.EstimatorSpec(
            mode,
            loss=loss,
            eval_metric_ops={
                "average_loss": tf.compat.v1.metrics.mean(each),
                "accuracy": tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, axis=1)),
            },
        )
    step = tf.compat.v1.train.get_or_create_global_step()
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    made = optimizer(kind)
    made.iterations = step
    if fault == "late rate":
        made.learning_rate = tf.convert_to_tensor(rate()(tf.maximum(step - 1, 0)))
    variables = tf.compat.v1.trainable_variables()
    gradients = tf.gradients(loss / (1 if fault == "no loss scaling" else replicas), variables)
    train_op = made.apply_gradients(zip(gradients, variables, strict=True))
    if fault != "dropped updates":
        train_op = tf.group(train_op, *tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS))
    return tf.estimator.EstimatorSpec(mode, loss=loss / replicas, train_op=train_op)


def keras_model(kind, strategy):
    """The same in Keras, under names of its own."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(3)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer(input_shape=(12,)),
                tf.keras.layers.Dense(16, "relu", name="hidden"),
                tf.keras.layers.BatchNormalization(name="norm"),
                tf.keras.layers.Dense(4, name="logits"),
            ]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            optimizer(kind),
            loss,
            [
                tf.keras.metrics.SparseCategoricalAccuracy("accuracy"),
                tf.keras.metrics.SparseCategoricalCrossentropy("average_loss", from_logits=True),
            ],
        )
        model.distribute_reduction_method = "first"
    return model


def data(batch=16, *, twice=False):
    x, y = X.copy(), Y.copy()
    if twice:
        # The 40th record is read again in the place of the 41st: in the third batch of 16.
        x[41], y[41] = x[40], y[40]
    return lambda: tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch)


def eval_data():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(40)


def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())


def compare_pair(folder, fault=None, *, kind="sgd", replicas=1, steps=6, **options):
    """Both trained in a folder; neither is changed by it."""
    strategy = mirrored() if replicas > 1 else tf.distribute.get_strategy()
    model = keras_model(kind, strategy)
    config = tf.estimator.RunConfig(tf_random_seed=1, train_distribute=mirrored() if replicas > 1 else None)
    estimator = tf.estimator.Estimator(model_fn, folder / "theirs", config, params={"fault": fault, "optimizer": kind})
    options = {"input_fn": data(), "eval_input_fn": eval_data, "mapping": MAPPING, **options}
    before = [value.copy() for value in model.get_weights()]
    found = compare_models(estimator, model, steps=steps, folder=folder / "parity", **options)
    assert all(np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True)), (
        "the model is as it was"
    )
    assert not (folder / "theirs").exists() or not list((folder / "theirs").iterdir())
    return found


@pytest.fixture
def compared(tmp_path):
    return functools.partial(compare_pair, tmp_path)


def assert_agreement(found, kind):
    assert found.answers.names == ("predictions logits",) and not any(
        "predictions were" in note for note in found.notes
    )
    assert found.equal, (found.first_fault, found.findings)
    assert not found.findings and len(found.steps) == 6
    assert sorted(found.records) == [1, 2, 3, 4, 5, 6] and not any(r.differences for r in found.records.values())
    assert {"loss", "update_norm"} <= set(found.numbers[1].names)
    assert {"average_loss", "accuracy"} <= set(found.metrics.names)
    assert set(MAPPING) <= set(found.initial.names)
    slots = [name for name in found.initial.names if " @" in name]
    assert len(slots) == {"sgd": 0, "decayed": 0, "momentum": 6, "adam": 12}[kind]
    assert all(step.update_norms[0] > 1e-3 for step in found.steps), "it was trained"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What came of a pair that agrees, and its record."""
    return compare_pair(tmp_path_factory.mktemp("pair"), kind="adam", predictions="logits")


def test_a_legacy_model_fn_and_its_keras_model_agree(pair):
    assert_agreement(pair, "adam")


@nightly
@pytest.mark.parametrize(("kind", "replicas"), [("sgd", 1), ("momentum", 2), ("decayed", 2)])
def test_other_optimizers_and_two_replicas_agree(compared, kind, replicas):
    assert_agreement(compared(kind=kind, replicas=replicas, predictions="logits"), kind)


# Faults that are planted into the record ----------------------------------------------------------------------------


def still(step, values, first):
    return {name: first[name] if "moving" in name else value for name, value in values.items()}


def other_weight(step, values, first):
    return {**values, "logits/bias": values["logits/bias"] + np.float32(0.25 * (step > 2))}


def other_start(step, values, first):
    return {**values, "logits/bias": values["logits/bias"] + np.float32(0.25)}


def other_slot(step, values, first):
    return {**values, "logits/bias @v": values["logits/bias @v"] * np.float32(2)}


def frozen(step, values, first):
    return {name: first[name] if name.startswith("hidden/") else value for name, value in values.items()}


@pytest.mark.parametrize("side", ENGINES)
@pytest.mark.parametrize(
    ("change", "name", "step", "says"),
    [
        (still, "BatchNorm", 1, "does not update 2 of 2 moving means and variances"),
        (other_start, "initial values", 0, "logits/bias"),
        (other_weight, "first difference", 3, "weight logits/bias"),
        (other_slot, "first difference", 1, "slot logits/bias @v"),
        (frozen, "first difference", 1, "weight hidden/"),
    ],
)
def test_faults_in_the_record_of_a_real_training(pair, tmp_path, side, change, name, step, says):
    for engine in ENGINES:
        shutil.copytree(pair.folder / engine / "record", tmp_path / engine / "record")
    record = tmp_path / side / "record"
    first = read_arrays(record / "initial.npz")
    for number, path in enumerate([record / "initial.npz", *sorted(record.glob("step-*.npz"))]):
        write_arrays(path, change(number, read_arrays(path), first))
    found = compare_records(tmp_path, metrics={engine: {} for engine in ENGINES})
    assert [(finding.name, finding.step) for finding in found.findings] == [(name, step)], found.findings
    assert says in found.findings[0].message and found.findings[0].side in (None, side)


# Faults that are trained ----------------------------------------------------------------------------------------------


FAULTS = [
    *(
        pytest.param("no loss scaling", {"replicas": 2, "kind": kind}, "loss scaling", "estimator", "2 replicas",
                     marks=nightly)
        for kind in ("sgd", "adam", "momentum")
    ),
    ("evaluates as it trains", {}, "BatchNorm", "estimator", "estimator evaluates in training mode"),
    pytest.param("dropped updates", {}, "BatchNorm", "estimator", "does not update 2 of 2", marks=nightly),
    pytest.param("swapped layer", {}, "first difference", None, "step 1, loss is ", marks=nightly),
    ("late rate", {"kind": "decayed momentum"}, "learning rate", None, LATE),
    pytest.param("late rate", {"kind": "decayed"}, "learning rate", None, LATE, marks=nightly),
    pytest.param("late rate", {"kind": "decayed nesterov"}, "learning rate", None, LATE, marks=nightly),
    pytest.param("late rate", {"kind": "decayed adam"}, "learning rate", None, LATE, marks=nightly),
    pytest.param("softmax", {"predictions": "logits"}, "first difference", None, "prediction logits", marks=nightly),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "options", "name", "side", "says"), FAULTS)
def test_planted_faults_are_found(compared, fault, options, name, side, says):
    found = compared(fault, **options)
    assert not found.equal and [finding.name for finding in found.findings] == [name], found.findings
    (finding,) = found.findings
    assert finding.side == side and says in finding.message, finding
    assert finding.step == {"evaluates as it trains": 6, "softmax": 6, "late rate": 2}.get(fault, 1)


@nightly
def test_a_record_that_is_read_twice_is_caught(compared):
    found = compared(input_fn=data(twice=True), keras_input_fn=data())
    (finding,) = found.findings
    assert (finding.name, finding.step, finding.side) == ("records", 3, "estimator")
    assert "batch 3: estimator reads 1 record twice; 1 of 16 differ from those of the other side" in finding.message


@nightly
def test_a_wrong_mapping_is_found_out(compared):
    """Two variables of one shape, the wrong way round: nothing tells by name, the first loss does."""
    turned = {**MAPPING, "norm/gamma": "bn/beta", "norm/beta": "bn/gamma"}
    (finding,) = compared(mapping=turned).findings
    assert (finding.name, finding.step, finding.kind) == ("first difference", 1, "loss")


@nightly
def test_assert_parity(tmp_path):
    def pair(fault):
        model = keras_model("sgd", tf.distribute.get_strategy())
        params = {"fault": fault, "optimizer": "sgd"}
        return {"estimator": tf.estimator.Estimator(model_fn, tmp_path / "m", params=params), "model": model}

    options = {"input_fn": data(), "mapping": MAPPING, "steps": 3}
    assert assert_parity(**pair(None), folder=tmp_path / "equal", **options).equal
    with pytest.raises(ParityError, match=r"not equal: they first differ at step 1 of 3(.|\n)*BatchNorm: estimator"):
        assert_parity(**pair("dropped updates"), folder=tmp_path / "fault", **options)


def test_the_fixture_of_pytest(assert_parity, tmp_path):
    """It comes with the package's installation, for any team's tests."""
    with pytest.raises(ConfigError, match="assert_parity needs a job file, or an estimator and a model"):
        assert_parity("job.yaml", estimator=object())
    model = keras_model("sgd", tf.distribute.get_strategy())
    estimator = tf.estimator.Estimator(model_fn, tmp_path / "m", params={"optimizer": "sgd"})
    found = assert_parity(estimator=estimator, model=model, input_fn=data(), mapping=MAPPING, steps=2)
    assert found.equal and found.folder == tmp_path / "parity-2"


def binary_model_fn(features, labels, mode, params):
    logits = tf.compat.v1.layers.dense(features, 1, name="fc2")
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(each)
    if mode == tf.estimator.ModeKeys.EVAL:
        auc = tf.compat.v1.metrics.auc(labels > 0.5, tf.sigmoid(logits), curve="PR", **params)
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"auc": auc})
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


@nightly
@pytest.mark.parametrize("options", [{}, {"summation_method": "careful_interpolation"}], ids=["default", "careful"])
def test_the_area_under_a_precision_recall_curve(tmp_path, options):
    """It differs by nature, the note names the guide, and with the setting of the guide it does not."""
    model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(12,)), tf.keras.layers.Dense(1, name="fc2")])

    def positive(features, labels):
        return features, tf.cast(labels[:, None] > 1, tf.float32)

    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer("sgd"), loss, [tf.keras.metrics.AUC(curve="PR", from_logits=True, name="auc")])
    found = compare_models(
        tf.estimator.Estimator(binary_model_fn, tmp_path / "theirs", params=options), model, steps=3,
        input_fn=lambda: data()().map(positive), eval_input_fn=lambda: eval_data().map(positive),
        folder=tmp_path / "parity",
    )  # fmt: skip
    told = [note for note in found.notes if "docs/guides/parity.md lists them" in note]
    assert "auc" in found.metrics.names and not [f for s in found.steps for f in s.variables.faults]
    assert (found.equal, len(told)) == ((True, 0) if options else (False, 1)), (found.first_fault, found.notes)
    if not options:
        assert found.first_fault[1].name == "auc" and found.findings[0].kind == "metric"
