"""Models of several outputs: their losses, metrics, predictions and exports, in both engines, and by one alone."""

from __future__ import annotations

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.errors import ConfigError
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

ROWS, WIDTH, BATCH, SHARES = 24, 5, 6, {"kind": 0.5, "sign": 2.0, "size": 1.0}
RANDOM = np.random.default_rng(11)
FEATURES = RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32)
ANIMALS = np.array(["cat", "dog", "owl"])
LABELS = {
    "kind": ANIMALS[RANDOM.integers(3, size=ROWS)],
    "sign": RANDOM.integers(2, size=ROWS),
    "size": RANDOM.normal(size=(ROWS, 2)).astype(np.float32),
    "unused": np.zeros(ROWS, np.float32),
}
WEIGHT = RANDOM.random(ROWS).astype(np.float32) * 2
OUTPUTS = {
    "kind": {"loss": "sparse_categorical_crossentropy", "label_vocabulary": list(ANIMALS), "loss_weight": 0.5,
             "metrics": ["accuracy"]},
    "sign": ep.Output("binary_crossentropy", metrics=["accuracy", "auc"], label_smoothing=0.1, loss_weight=2.0),
    "size": {"loss": "mean_squared_error", "metrics": ["mean_absolute_error"]},
}  # fmt: skip
UNITS = {"kind": 3, "sign": 1, "size": 2}
ADAM = {"name": "adam", "learning_rate": 0.1}
# Its steps follow the gradient's scale, so that a loss weight which one engine leaves out is seen in the metrics.
SGD = {"name": "sgd", "learning_rate": 0.1}


def ends(named):
    """A layer for each output; unnamed ones are not called as their outputs are."""
    return {
        name: tf.keras.layers.Dense(
            units, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=units), name=name if named else None
        )
        for name, units in UNITS.items()
    }


def functional(params):
    given = tf.keras.Input([WIDTH])
    return tf.keras.Model(given, {name: end(given) for name, end in ends(params.get("named", True)).items()})


def listed(params):
    given = tf.keras.Input([WIDTH])
    return tf.keras.Model(given, [end(given) for end in ends(True).values()])


def subclassed(params):
    class Several(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.ends = ends(True)

        def call(self, given, training=False):
            return {name: end(given) for name, end in self.ends.items()}

    return Several()


def one_of(name):
    """The layers of one output alone."""

    def layers():
        given = tf.keras.Input([WIDTH])
        return tf.keras.Model(given, ends(True)[name](given))

    return layers


def data(names=None, *, weighted=False, batch=BATCH):
    labels = {name: LABELS[name] for name in LABELS} if names is None else {name: LABELS[name] for name in names}
    if weighted:
        labels = {**labels, "weight": WEIGHT}
    if len(labels) == 1:
        (labels,) = labels.values()
    return tf.data.Dataset.from_tensor_slices((FEATURES, labels)).batch(batch)


def mirrored(count):
    devices = [f"CPU:{i}" for i in range(count)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def estimator_of(folder, layers, replicas=1, optimizer=ADAM, **options):
    strategy = mirrored(replicas) if replicas > 1 else None
    config = tf.estimator.RunConfig(
        str(folder), tf_random_seed=1, train_distribute=strategy, eval_distribute=strategy, save_checkpoints_steps=100
    )
    return tf.estimator.Estimator(ep.build_model_fn(layers, optimizer=optimizer, **options), config=config)


def alone(name):
    """The fields of one output, as the arguments of a model with this one."""
    given = OUTPUTS[name]
    if not isinstance(given, dict):
        given = {"loss": given.loss, "metrics": given.metrics, "label_smoothing": given.label_smoothing}
    return {key: value for key, value in given.items() if key != "loss_weight"}


WEIGHTS = {
    "plain": {},
    "weighted": {"weight_column": "weight"},
    "classes": {"weight_column": "weight", "outputs": {**OUTPUTS, "kind": {**OUTPUTS["kind"],
                                                                           "class_weights": {"owl": 5.0}}}},
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("layers", [functional, subclassed])
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("replicas", [1, 2])
def test_both_engines_come_to_the_same(layers, kind, replicas, tmp_path):
    """Four steps, then every metric: by an Estimator and by Keras, on one replica and two, with weights."""
    options = {"outputs": OUTPUTS, **WEIGHTS[kind]}
    weighted = "weight_column" in options
    estimator = estimator_of(tmp_path, layers, replicas, SGD, params={}, **options)
    estimator.train(lambda: data(weighted=weighted, batch=BATCH // replicas))
    theirs = estimator.evaluate(lambda: data(weighted=weighted, batch=BATCH // replicas))
    with mirrored(replicas).scope() if replicas > 1 else tf.distribute.get_strategy().scope():
        model = ep.build_keras_model(layers, optimizer=SGD, params={}, **options)
    batches = ep.keras_batches(data(weighted=weighted), **options)
    model.fit(batches, verbose=0)
    ours = model.evaluate(batches, return_dict=True, verbose=0)
    wanted = {f"{name}_{metric}" for name, metrics in {"kind": ["accuracy"], "sign": ["accuracy", "auc"],
              "size": ["mean_absolute_error"]}.items() for metric in ["average_loss", *metrics]}  # fmt: skip
    assert wanted | {"average_loss", "loss", "global_step"} == set(theirs)
    for name in wanted:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    total = sum(share * theirs[f"{name}_average_loss"] for name, share in SHARES.items())
    assert theirs["average_loss"] == pytest.approx(total, rel=1e-5)


def test_an_output_is_what_it_is_alone(tmp_path):
    """With layers of its own, an output of a loss weight of 1 trains as a model of it alone; and is weighed by it."""
    several = estimator_of(tmp_path / "several", functional, params={}, outputs=OUTPUTS)
    several.train(data)
    found = several.evaluate(data)
    for name in UNITS:
        single = ep.build_keras_model(one_of(name), optimizer=ADAM, **alone(name))
        of_labels = {key: alone(name)[key] for key in ("loss", "label_vocabulary") if key in alone(name)}
        batches = ep.keras_batches(data([name]), **of_labels)
        single.fit(batches, verbose=0)
        wanted = single.evaluate(batches, return_dict=True, verbose=0)
        # Adam's step does not change with the gradient's scale, but for its epsilon.
        for metric in {"average_loss", *alone(name)["metrics"]}:
            assert found[f"{name}_{metric}"] == pytest.approx(wanted[metric], rel=1e-4), f"{name}_{metric}"
    values = next(iter(several.predict(lambda: data(), yield_single_examples=False)))
    assert {"kind/probabilities", "kind/classes", "sign/logistic", "size/predictions"} <= set(values)
    assert set(values["kind/classes"][:, 0]) <= {name.encode() for name in ANIMALS}


def test_exports_answer_for_each_output(tmp_path):
    """All of them by `serving_default`, and each by signatures of its own."""
    estimator = estimator_of(
        tmp_path / "m", functional, params={}, outputs=OUTPUTS, signatures=["predict", "classify", "regress"]
    )
    estimator.train(data)

    def serving():
        examples = tf.compat.v1.placeholder(tf.string, [None])
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([WIDTH], tf.float32)})
        return tf.estimator.export.TensorServingInputReceiver(parsed["x"], {"examples": examples})

    served = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export"), serving)).signatures
    own = {"kind/predict", "kind/classification", "sign/predict", "sign/classification", "sign/regression",
           "size/predict", "size/regression"}  # fmt: skip
    assert set(served) == {"serving_default", "predict", *own}
    records = tf.constant([tf.train.Example(features=tf.train.Features(feature={"x": tf.train.Feature(
        float_list=tf.train.FloatList(value=row))})).SerializeToString() for row in FEATURES])  # fmt: skip
    answers = served["predict"](examples=records)
    wanted = next(iter(estimator.predict(lambda: data(batch=ROWS), yield_single_examples=False)))
    assert set(answers) == set(wanted)
    for name in ("kind/probabilities", "sign/logistic", "size/predictions"):
        np.testing.assert_allclose(answers[name], wanted[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(served["kind/predict"](examples=records)["probabilities"], wanted["kind/probabilities"],
                               rtol=1e-5)  # fmt: skip
    np.testing.assert_allclose(served["size/regression"](inputs=records)["outputs"], wanted["size/predictions"],
                               rtol=1e-5, atol=1e-6)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("layers", [functional, subclassed])
@pytest.mark.parametrize("named", [True, False])
def test_in_sixteen_bits_the_losses_are_in_32(layers, named, tmp_path):
    if layers is subclassed and not named:
        pytest.skip("its outputs are called as its call calls them")
    options = {"outputs": OUTPUTS, "params": {"named": named}, "optimizer": ADAM}
    model = ep.build_keras_model(layers, mixed_precision=True, **options)
    batches = ep.keras_batches(data(), outputs=OUTPUTS)
    model.fit(batches, verbose=0)
    assert {value.dtype for value in model(FEATURES).values()} == {tf.float32}
    full = ep.build_keras_model(layers, **options)
    full.fit(batches, verbose=0)
    ours, theirs = (one.evaluate(batches, return_dict=True, verbose=0) for one in (model, full))
    assert set(ours) == set(theirs) and "kind_accuracy" in ours
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=5e-2) and ours["loss"] != theirs["loss"]
    if layers is functional:
        ep.save_keras_model(full, str(tmp_path / "m.keras"))
        again = ep.load_keras_model(str(tmp_path / "m.keras"))
        assert again.evaluate(batches, return_dict=True, verbose=0) == pytest.approx(theirs, rel=1e-5)


BAD = {
    "loss and outputs are both set": {"loss": "mse"},
    "label_vocabulary and outputs are both set": {"label_vocabulary": ["a", "b"]},
    "the output 'kind' has no field 'los'": {"outputs": {"kind": {"los": "mse"}}},
    "the output 'kind' has no loss": {"outputs": {"kind": {"metrics": []}}},
    "the output 'kind' is a str": {"outputs": {"kind": "mse"}},
    "the output 'kind' has the loss_weight -1": {"outputs": {"kind": {"loss": "mse", "loss_weight": -1}}},
    "the output 'kind': the loss 'no' is not known": {"outputs": {"kind": {"loss": "no"}}},
    r"outputs is \{\}": {"outputs": {}},
    "the model has no loss": {"outputs": None},
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be(message):
    for build in (ep.build_model_fn, ep.build_keras_model):
        with pytest.raises(ConfigError, match=message):
            build(functional, **{"outputs": OUTPUTS, "params": {}, **BAD[message]})


@pytest.mark.parametrize(
    ("layers", "outputs", "message"),
    [
        (one_of("size"), OUTPUTS, "the model returns one tensor, and the outputs are kind, sign, size"),
        (functional, {"kind": OUTPUTS["kind"]}, "the model returns kind, sign, size, and the outputs are kind"),
        (functional, None, "the model returns several values: kind, sign, size"),
        (listed, None, "the model returns several values: a list of 3"),
        (
            lambda: tf.keras.Sequential([tf.keras.Input([WIDTH]), tf.keras.layers.Dense(2)]),
            OUTPUTS,
            "the model returns one tensor, and the outputs are kind, sign, size",
        ),
    ],
)
def test_a_model_that_gives_something_else(layers, outputs, message, tmp_path):
    options = {"outputs": outputs} if outputs else {"loss": "mse"}
    with pytest.raises(ConfigError, match=message):
        ep.build_keras_model(layers, params={}, **options)
    with pytest.raises(ConfigError, match=message):
        estimator_of(tmp_path, layers, params={}, **options).train(data if outputs else lambda: data(["size"]))


def test_labels_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match="the data have no labels for the output 'size'") as told:
        estimator_of(tmp_path, functional, params={}, outputs=OUTPUTS).train(lambda: data(["kind", "sign"]))
    assert "labels: kind, sign" in str(told.value) and "{'kind': …, 'sign': …, 'size': …}" in str(told.value)
    with pytest.raises(ConfigError, match="the data have no labels for the output 'kind'"):
        ep.keras_batches(data(["sign"]), outputs=OUTPUTS)
