"""build_keras_model: the losses, metrics and steps of build_model_fn, as plain Keras."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.heads import Head
from estimator_pipeline.models.keras3_variables import built_as_in_a_new_process
from estimator_pipeline.models.metrics import METRICS
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

ROWS, WIDTH = 24, 5
HEADS = {
    "sparse_categorical_crossentropy": ("multi_class", 7),
    "categorical_crossentropy": ("one_hot", 7),
    "binary_crossentropy": ("binary", 1),
    "mean_squared_error": ("regression", 2),
    "mean_absolute_error": ("regression", 2),
    "huber": ("regression", 2),
    "multi_label": ("multi_label", 5),
}


def loss_of(name):
    """The arguments for a key of HEADS: a loss, or a head that is named beside one."""
    return {"loss": "binary_crossentropy", "head": name} if name == "multi_label" else {"loss": name}


def single(kind):
    """The metrics of a head that are one value each; tests/engines/test_job_metrics.py has the others."""
    return [name for name in METRICS[kind] if not name.endswith(("_per_class", "_X"))]


def layers(params):
    return tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(WIDTH,)),
            tf.keras.layers.Dense(params["units"], kernel_initializer=Fixed(), kernel_regularizer=params.get("l2")),
        ]
    )


@tf.keras.saving.register_keras_serializable(package="tests")
class Fixed(tf.keras.initializers.Initializer):
    def __call__(self, shape, dtype=None, **kwargs):
        return tf.constant(np.random.default_rng(5).normal(size=shape), dtype or tf.float32)


fixed = Fixed()


def records(kind, units):
    random = np.random.default_rng(11)
    features = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    if kind == "multi_class":
        return features, random.integers(units, size=ROWS)
    if kind == "one_hot":
        return features, np.eye(units, dtype=np.float32)[random.integers(units, size=ROWS)]
    if kind in ("binary", "multi_label"):
        return features, random.integers(2, size=(ROWS, units))
    return features, (random.normal(size=(ROWS, units)) * 2).astype(np.float32)


def dataset(kind, units, batch=6):
    return tf.data.Dataset.from_tensor_slices(records(kind, units)).batch(batch)


@pytest.mark.gate("sparse_categorical_crossentropy", "binary_crossentropy")
@pytest.mark.parametrize("loss", HEADS)
def test_trained_and_evaluated_as_the_estimator_does(loss, tmp_path):
    """Four steps, then every metric of the head: the same numbers from both."""
    kind, units = HEADS[loss]
    options = {**loss_of(loss), "metrics": single(kind), "params": {"units": units}}
    options["optimizer"] = {"name": "momentum", "learning_rate": 0.1}
    model = ep.build_keras_model(layers, **options)
    model.fit(dataset(kind, units), verbose=0)
    ours = model.evaluate(dataset(kind, units), return_dict=True, verbose=0)
    config = tf.estimator.RunConfig(str(tmp_path), tf_random_seed=1)
    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options), config=config)
    estimator.train(lambda: dataset(kind, units))
    theirs = estimator.evaluate(lambda: dataset(kind, units))
    for name in ("average_loss", *single(kind)):
        assert ours[name] == pytest.approx(float(theirs[name]), rel=1e-5), name
    kernel = model.layers[-1].kernel.numpy()
    np.testing.assert_allclose(kernel, estimator.get_variable_value("dense/kernel"), rtol=0, atol=1e-6)
    assert np.abs(kernel - fixed((WIDTH, units)).numpy()).max() > 1e-3, "it was trained"


def smoothed(loss):
    """The options of a model, and the model."""
    options = {**loss_of(loss), "params": {"units": HEADS[loss][1]}, "label_smoothing": 0.2, "optimizer": "momentum"}
    return options, ep.build_keras_model(layers, **options)


SMOOTHED = [loss for loss, (kind, _) in HEADS.items() if kind != "regression"]


@pytest.mark.parametrize("loss", SMOOTHED)
def test_label_smoothing_is_the_arithmetic_of_the_paper(loss):
    kind, units = HEADS[loss]
    _, model = smoothed(loss)
    features, labels = records(kind, units)
    logits = model(features).numpy().astype(np.float64)
    if kind in ("multi_class", "one_hot"):
        wanted = np.eye(units)[labels] if kind == "multi_class" else labels
        wanted = 0.8 * wanted + 0.2 / units
        each = -(wanted * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))).sum(1)
    else:
        wanted = 0.8 * labels + 0.1
        each = (np.log1p(np.exp(logits)) - wanted * logits).mean(1)
    found = model.evaluate(dataset(kind, units), return_dict=True, verbose=0)
    assert found["average_loss"] == pytest.approx(each.mean(), rel=1e-5)
    of_estimator = Head(kind, loss_of(loss)["loss"], label_smoothing=0.2).per_example_loss(labels, tf.constant(logits))
    np.testing.assert_allclose(of_estimator, each, rtol=1e-5)


@pytest.mark.gate("sparse_categorical_crossentropy")
@pytest.mark.parametrize("loss", SMOOTHED)
def test_label_smoothing(loss, tmp_path):
    """The same in both; loaded from a file too."""
    kind, units = HEADS[loss]
    options, model = smoothed(loss)
    model.fit(dataset(kind, units), verbose=0)
    path = str(tmp_path / "model.keras")
    ep.save_keras_model(model, path)
    ours = ep.load_keras_model(path).evaluate(dataset(kind, units), return_dict=True, verbose=0)
    config = tf.estimator.RunConfig(str(tmp_path / "estimator"), tf_random_seed=1)
    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options), config=config)
    estimator.train(lambda: dataset(kind, units))
    theirs = estimator.evaluate(lambda: dataset(kind, units))
    for name in ("average_loss", "accuracy"):
        assert ours[name] == pytest.approx(float(theirs[name]), rel=1e-5), name
    np.testing.assert_allclose(model.layers[-1].kernel, estimator.get_variable_value("dense/kernel"), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "share", "words"),
    [
        ("mse", 0.1, "the loss 'mse' has no classes to smooth"),
        (lambda labels, logits: logits, 0.1, "a custom loss function has no classes"),
        ("binary_crossentropy", 1.0, "label_smoothing is 1.0"),
        ("binary_crossentropy", -0.1, "label_smoothing is -0.1"),
    ],
)
@pytest.mark.parametrize("build", [ep.build_keras_model, ep.build_model_fn])
def test_label_smoothing_that_cannot_be(build, loss, share, words):
    with pytest.raises(ConfigError, match=words):
        build(layers, loss=loss, label_smoothing=share)


@pytest.mark.nightly
@pytest.mark.parametrize("api", ["v1", "keras"])
def test_weight_decay_of_an_estimator_and_of_keras_on_one_replica_and_two(api, tmp_path):
    """All four come to the same weights, to others than without, and a bias that is left alone to another yet."""
    given = {"name": "momentum", "api": api, "learning_rate": 0.1, "weight_decay": 0.5}
    found = {}
    for name, optimizer in {
        "plain": {**given, "weight_decay": 0.0},
        "all": given,
        "but biases": {**given, "exclude_from_weight_decay": ["bias"]},
    }.items():
        options = {"loss": "mse", "params": {"units": 2}, "optimizer": optimizer}
        weights = []
        for replicas in (1, 2):
            strategy = mirrored(replicas)
            with strategy.scope():
                model = ep.build_keras_model(layers, **options)
            batches = dataset("regression", 2, batch=6 // replicas)
            model.fit(strategy.distribute_datasets_from_function(lambda _: batches), steps_per_epoch=4, verbose=0)  # noqa: B023
            weights.append([model.layers[-1].kernel.numpy(), model.layers[-1].bias.numpy()])
            folder = str(tmp_path / f"{name} {replicas}")
            config = tf.estimator.RunConfig(folder, train_distribute=mirrored(replicas))
            estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options), config=config)
            estimator.train(lambda batch=6 // replicas: dataset("regression", 2, batch=batch), steps=4)
            weights.append([estimator.get_variable_value(f"dense/{part}") for part in ("kernel", "bias")])
        for one in weights[1:]:
            np.testing.assert_allclose(one[0], weights[0][0], rtol=0, atol=1e-6, err_msg=name)
            np.testing.assert_allclose(one[1], weights[0][1], rtol=0, atol=1e-6, err_msg=name)
        found[name] = weights[0]
    assert np.abs(found["all"][0]).sum() < 0.95 * np.abs(found["plain"][0]).sum(), "kernels decay"
    np.testing.assert_allclose(found["but biases"][0], found["all"][0], rtol=0, atol=0.1)
    assert np.abs(found["but biases"][1] - found["all"][1]).max() > 1e-4, "biases do where they are not left out"


@pytest.mark.gate("clip_norm-0.05")
@pytest.mark.parametrize(("option", "value"), [("clip_norm", 0.05), ("clip_value", 0.01)])
def test_clipping_comes_after_the_sum_over_replicas(option, value):
    """Two replicas clip what one clips: the gradient of the whole batch."""
    after = []
    for strategy in (None, mirrored(2)):
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = ep.build_keras_model(
                layers,
                loss="mean_squared_error",
                params={"units": 2},
                optimizer={"name": "sgd", "learning_rate": 1.0},
                **{option: value},
            )
        batches = dataset("regression", 2, batch=ROWS)
        model.fit(batches, verbose=0)
        after.append(model.layers[-1].kernel.numpy())
    np.testing.assert_allclose(after[0], after[1], rtol=0, atol=1e-6)
    moved = after[0] - fixed((WIDTH, 2)).numpy()
    if option == "clip_value":
        assert np.abs(moved).max() == pytest.approx(value, rel=1e-4)
    else:
        assert 0.5 * value < np.linalg.norm(moved) <= value * 1.0001


def mirrored(count):
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(count)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


@pytest.mark.gate("adamw-sparse_categorical_crossentropy")
@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "binary_crossentropy", "huber", "multi_label"])
@pytest.mark.parametrize(
    "optimizer",
    ["momentum", {"name": "adamw", "warmup_steps": 6, "warmup_from": 0.001, "exclude_from_weight_decay": ["bias"]}],
    ids=["momentum", "adamw"],
)
def test_m5_a_keras_file_is_loaded_in_a_scope_and_outside(loss, optimizer, tmp_path):
    """The same evaluation from both; without this package the layers and weights are read."""
    kind, units = HEADS[loss]
    options = {**loss_of(loss), "metrics": single(kind), "params": {"units": units}, "optimizer": optimizer}
    model = ep.build_keras_model(layers, **options)
    model.fit(dataset(kind, units), verbose=0)
    path = str(tmp_path / "model.keras")
    ep.save_keras_model(model, path)
    expected = model.evaluate(dataset(kind, units), return_dict=True, verbose=0)
    outside = ep.load_keras_model(path)
    assert outside.evaluate(dataset(kind, units), return_dict=True, verbose=0) == expected
    with mirrored(2).scope():
        inside = ep.load_keras_model(path)
    found = inside.evaluate(dataset(kind, units), return_dict=True, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)
    assert int(outside.optimizer.iterations) == 4
    outside.fit(dataset(kind, units), verbose=0)
    model.fit(dataset(kind, units), verbose=0)
    for one, other in zip(outside.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    plain = tf.keras.models.load_model(path, compile=False)
    assert plain.count_params() == model.count_params()


@pytest.mark.gate("mixed_float16")
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_k7_16_bits(policy):
    """Variables and logits stay in 32 bits, the layers compute in 16; the loss scale leaves no trace."""
    model = ep.build_keras_model(
        layers, loss="mean_squared_error", params={"units": 2}, optimizer={"learning_rate": 0.1}, mixed_precision=policy
    )
    full = ep.build_keras_model(
        layers, loss="mean_squared_error", params={"units": 2}, optimizer={"learning_rate": 0.1}
    )
    kind = records("regression", 2)
    assert model(kind[0]).dtype == tf.float32
    assert model.layers[0].compute_dtype == policy.removeprefix("mixed_")
    assert all(weight.dtype == tf.float32 for weight in model.trainable_weights)
    for one in (model, full):
        one.fit(dataset("regression", 2), verbose=0)
    apart = np.abs(model.get_weights()[0] - full.get_weights()[0]).max()
    assert 0 < apart < 0.02
    assert tf.keras.mixed_precision.global_policy().name == "float32"


def test_a_loss_of_ones_own():
    def loss(labels, logits):
        return tf.reduce_sum(tf.square(labels - logits), axis=-1)

    model = ep.build_keras_model(layers, loss=loss, head="regression", params={"units": 2})
    found = model.evaluate(dataset("regression", 2), return_dict=True, verbose=0)
    features, labels = records("regression", 2)
    expected = np.mean(np.sum((labels - features @ fixed((WIDTH, 2)).numpy()) ** 2, axis=1))
    assert found["loss"] == pytest.approx(expected, rel=1e-5) == found["average_loss"]


def test_regularisation_is_in_the_loss_and_not_in_the_average():
    model = ep.build_keras_model(
        layers, loss="mean_squared_error", params={"units": 2, "l2": tf.keras.regularizers.L2(0.1)}
    )
    found = model.evaluate(dataset("regression", 2), return_dict=True, verbose=0)
    extra = 0.1 * np.sum(fixed((WIDTH, 2)).numpy() ** 2)
    assert found["loss"] - found["average_loss"] == pytest.approx(extra, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "the loss 'hinge' is not known"),
        ({"metrics": ["auc"]}, "the metric 'auc' is not known for the head 'multi_class'"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "both set"),
        ({"optimizer": 3}, "the optimizer is a int"),
        ({"optimizer": {"rate": 3}}, "cannot be read"),
    ],
)
def test_what_cannot_work(options, message):
    with pytest.raises(ConfigError, match=message):
        ep.build_keras_model(layers, **{"loss": "sparse_categorical_crossentropy", "params": {"units": 3}, **options})


def test_a_model_that_does_not_declare_its_input():
    """Its variables come from the data: dense, sparse and ragged features, in batches of any size."""

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.last = tf.keras.layers.Dense(1)

        def call(self, features):
            rows = tf.reduce_sum(features["ragged"], axis=1, keepdims=True)
            sparse = tf.reshape(tf.sparse.to_dense(features["sparse"]), [-1, 2])
            return self.last(tf.concat([features["dense"], sparse, rows], axis=1))

    def data(rows):
        numbers = np.ones([rows, 2], np.float32)
        ragged = tf.RaggedTensor.from_row_lengths(np.ones([2 * rows], np.float32), [2] * rows)
        features = {"dense": numbers, "sparse": tf.sparse.from_dense(numbers), "ragged": ragged}
        return tf.data.Dataset.from_tensor_slices((features, numbers[:, :1])).batch(rows)

    def build():
        return ep.build_keras_model(Model, loss="mse", optimizer="sgd")

    model = built_as_in_a_new_process(build, lambda: data(3))
    assert [variable.shape.as_list() for variable in model.variables] == [[5, 1], [1]]
    assert model.predict(data(3), verbose=0).shape == (3, 1) and model.predict(data(4), verbose=0).shape == (4, 1)
