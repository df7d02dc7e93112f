"""Weights of records and of classes: the canned heads' numbers, the same from Keras, and what cannot be."""

from __future__ import annotations

import re

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.heads import Head
from estimator_pipeline.models.sample_weights import Weighting, weighting_of
from estimator_pipeline.parity.export_answers import evaluated_losses
from tests.models.test_keras_model import HEADS, ROWS, WIDTH, layers, loss_of, records, single
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

# Zeros among them: such a record changes nothing.
WEIGHTS = np.where(np.arange(ROWS) % 5 == 2, 0.0, np.random.default_rng(3).random(ROWS) * 3).astype(np.float32)


def weighted(kind, units, batch=6):
    features, labels = records(kind, units)
    return tf.data.Dataset.from_tensor_slices((features, {"label": labels, "weight": WEIGHTS[:, None]})).batch(batch)


@pytest.mark.gate("sparse_categorical_crossentropy")
@pytest.mark.parametrize("loss", HEADS)
def test_trained_and_evaluated_as_the_estimator_does(loss, tmp_path):
    """Four steps, then every metric of the head, by two ways of classes' weights: the same numbers from both."""
    kind, units = HEADS[loss]
    by_class = {"multi_class": {2: 4.0, 5: 0.5}, "one_hot": [1, 2, 3, 4, 5, 0.5, 0.25], "binary": [1, 3.0]}.get(kind)
    metrics = [*single(kind), *(f"unweighted_{name}" for name in single(kind))]
    options = {**loss_of(loss), "metrics": metrics, "params": {"units": units}}
    options["optimizer"] = {"name": "momentum", "learning_rate": 0.1}
    weights = {"weight_column": "weight", "class_weights": by_class}

    def batches():
        return ep.keras_batches(weighted(kind, units), **loss_of(loss), **weights)

    model = ep.build_keras_model(layers, **options, **weights)
    model.fit(batches(), verbose=0)
    ep.save_keras_model(model, str(tmp_path / "model.keras"))
    loaded = ep.load_keras_model(str(tmp_path / "model.keras"))
    ours = loaded.evaluate(batches(), return_dict=True, verbose=0)
    # What a comparison of engines holds it against.
    (by_layers, _) = evaluated_losses(loaded, batches())["average_loss"]
    assert by_layers == pytest.approx(ours["average_loss"], rel=1e-5)
    config = tf.estimator.RunConfig(str(tmp_path / "estimator"), tf_random_seed=1)
    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options, **weights), config=config)
    estimator.train(lambda: weighted(kind, units))
    theirs = estimator.evaluate(lambda: weighted(kind, units))
    for name in ("average_loss", *metrics):
        assert ours[name] == pytest.approx(float(theirs[name]), rel=1e-5), name
    kernel = model.layers[-1].kernel.numpy()
    np.testing.assert_allclose(kernel, estimator.get_variable_value("dense/kernel"), rtol=0, atol=1e-6)

    # And they are what the formulas say, of all records at once.
    features, labels = records(kind, units)
    all_weights = WEIGHTS.astype(np.float64)
    if by_class is not None:
        numbers = labels.argmax(1) if kind == "one_hot" else labels.ravel()
        known = by_class if isinstance(by_class, dict) else dict(enumerate(by_class))
        all_weights = all_weights * [known.get(int(number), 1.0) for number in numbers]
    logits = features.astype(np.float64) @ kernel + model.layers[-1].bias.numpy()
    each = Head(kind, loss_of(loss)["loss"]).per_example_loss(labels, tf.constant(logits, tf.float32)).numpy()
    assert ours["average_loss"] == pytest.approx((each * all_weights).sum() / all_weights.sum(), rel=1e-5)
    assert ours["loss"] == pytest.approx((each * all_weights).mean(), rel=1e-5)
    plain = ep.build_model_fn(layers, **options)
    alike = tf.estimator.Estimator(plain, model_dir=str(tmp_path / "estimator"))
    without = alike.evaluate(lambda: tf.data.Dataset.from_tensors(records(kind, units)))
    assert without["average_loss"] != pytest.approx(ours["average_loss"], rel=1e-3), "the weights matter"
    for name in single(kind):
        assert without[name] == pytest.approx(ours[f"unweighted_{name}"], rel=1e-5), name


@pytest.mark.gate("multi_label", "regression")
@pytest.mark.parametrize("kind", ["binary", "multi_class", "multi_label", "regression"])
def test_the_canned_heads_numbers(kind, tmp_path):
    """Loss of a batch and metrics of tf.estimator's own heads, which find the weights among the features."""
    loss = next(loss for loss, (head, _) in HEADS.items() if head == kind)
    units = HEADS[loss][1]
    features, labels = records(kind, units)
    fn = ep.build_model_fn(
        lambda: tf.keras.Sequential([tf.keras.layers.Lambda(lambda x: x["x"]), layers({"units": units})]),
        **loss_of(loss),
        metrics=[name for name in single(kind) if name not in ("auc", "top_5_accuracy")],
        weight_column="weight",
    )

    def data(one):
        given = {"x": features[:one], "weight": WEIGHTS[:one]}
        return tf.data.Dataset.from_tensors((given, labels[:one]))

    estimator = tf.estimator.Estimator(fn, model_dir=str(tmp_path))
    estimator.train(lambda: data(ROWS))
    metrics = estimator.evaluate(lambda: data(ROWS))
    predicted = list(estimator.predict(lambda: tf.data.Dataset.from_tensors({"x": features})))
    logits = tf.constant([one.get("logits", one.get("predictions")) for one in predicted])
    canned = {
        "binary": lambda: tf.estimator.BinaryClassHead("weight"),
        "multi_class": lambda: tf.estimator.MultiClassHead(units, "weight"),
        "multi_label": lambda: tf.estimator.MultiLabelHead(units, "weight", thresholds=[0.5]),
        "regression": lambda: tf.estimator.RegressionHead(units, "weight"),
    }[kind]()
    given = {"weight": tf.constant(WEIGHTS[:, None])}
    theirs = labels[:, None] if kind == "multi_class" else labels
    assert metrics["loss"] == pytest.approx(float(canned.loss(theirs, logits, given)), rel=1e-5)
    found = canned.update_metrics(canned.metrics(), given, logits, theirs)
    names = {"average_loss": "average_loss", "label_mean": "label/mean", "prediction_mean": "prediction/mean"}
    plain = {"accuracy", "precision", "recall"} & set(metrics)
    names |= {n: f"{n}/positive_threshold_0.5" if kind == "multi_label" else n for n in plain}
    told = {ours: name for ours, name in names.items() if ours in metrics and name in found}
    assert {"average_loss", *plain} <= set(told) or (kind == "regression" and "label_mean" in told)
    for ours, name in told.items():
        assert metrics[ours] == pytest.approx(float(found[name].result()), rel=1e-5), ours


def test_two_replicas_make_the_step_of_one(tmp_path):
    """The mean is over records, so that a replica with heavy ones does not weigh less for it."""
    kernels = []
    for replicas in (1, 2):
        strategy = None
        if replicas > 1:
            devices = ["CPU:0", "CPU:1"]
            strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
        config = tf.estimator.RunConfig(str(tmp_path / str(replicas)), train_distribute=strategy)
        fn = ep.build_model_fn(
            layers, loss="sparse_categorical_crossentropy", params={"units": 7},
            weight_column="weight", class_weights={0: 3.0},
        )  # fmt: skip
        estimator = tf.estimator.Estimator(fn, config=config)
        batch = 12 // replicas
        estimator.train(lambda batch=batch: weighted("multi_class", 7, batch=batch), steps=2)
        kernels.append(estimator.get_variable_value("dense/kernel"))
    np.testing.assert_allclose(*kernels, rtol=0, atol=1e-6)


def test_an_own_metric_gets_the_weights_it_asks_for(tmp_path):
    def heaviest(labels, predictions, weights):
        return tf.compat.v1.metrics.mean(tf.reduce_max(weights))

    def count(labels, predictions):
        return tf.compat.v1.metrics.mean(tf.cast(tf.size(labels), tf.float32))

    fn = ep.build_model_fn(
        layers, loss="mse", params={"units": 2}, weight_column="weight", metrics={"heaviest": heaviest, "count": count}
    )
    estimator = tf.estimator.Estimator(fn, model_dir=str(tmp_path))
    estimator.train(lambda: weighted("regression", 2))
    found = estimator.evaluate(lambda: weighted("regression", 2, batch=ROWS))
    assert found["heaviest"] == pytest.approx(WEIGHTS.max()) and found["count"] == 2 * ROWS


def test_labels_stay_a_dictionary_where_several_are_left():
    weighting = weighting_of("regression", weight_column="w")
    features, labels, weights = weighting.split(tf.zeros([2, 3]), {"a": tf.ones([2]), "b": tf.ones([2]), "w": [1, 2]})
    assert sorted(labels) == ["a", "b"] and weights.dtype == tf.float32 and weights.numpy().tolist() == [1, 2]
    assert (
        weighting.features_without_weights({"x": 1, "w": 2}) == {"x": 1}
        and weighting.features_without_weights(features) is features
    )
    assert weighting_of("regression") is None


@pytest.mark.parametrize(
    ("features", "labels", "words"),
    [
        ([[1.0]], [1.0], "the data have no weights named 'w'.*features: one tensor; labels: one tensor"),
        ({"x": [1.0]}, {"y": [1.0], "v": [1.0]}, "features: x; labels: y, v"),
        ([[1.0]], {"w": [1.0]}, "the data have no weights"),
        ([[1.0]], {"y": [1.0], "w": [[1.0, 2.0]]}, "not one number for each record.*shape \\(1, 2\\)"),
        ([[1.0]], {"y": [1.0], "w": 1.0}, "not one number for each record"),
        ([[1.0]], {"y": [1.0], "w": ["a"]}, "the weights 'w' are not numbers.*string"),
    ],
)
def test_data_without_fitting_weights(features, labels, words):
    with pytest.raises(ConfigError) as error:
        Weighting("w").split(features, labels)
    assert re.search(words, str(error.value), re.DOTALL)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight_column": ""}, "weight_column is ''"),
        ({"weight_column": 3}, "weight_column is 3"),
        ({"class_weights": 3}, "class_weights is 3"),
        ({"class_weights": "12"}, "class_weights is '12'"),
        ({"class_weights": [0, 0]}, "at least one weight above 0"),
        ({"class_weights": []}, "at least one weight above 0"),
        ({"class_weights": [1, -1]}, "class 1 has weight -1"),
        ({"class_weights": [1, float("nan")]}, "class 1 has weight nan"),
        ({"class_weights": [1, True]}, "class 1 has weight True"),
        ({"class_weights": {"a": 1}}, "names the class 'a'"),
        ({"class_weights": {"z": 1}, "label_vocabulary": list("abcdefg")}, "'z'[^$]*label_vocabulary: a, b, c"),
        ({"class_weights": {-1: 1}}, "names the class -1"),
        ({"class_weights": [1, 2], "loss": "mse"}, "head 'regression' an example does not have exactly one class"),
        ({"class_weights": [1, 2], "loss": lambda y, x: x}, "a custom loss function without a head"),
        ({"class_weights": [1, 2, 3], "loss": "binary_crossentropy"}, "the head 'binary' has two"),
        (
            {"class_weights": [1, 2], "loss": "binary_crossentropy", "head": "multi_label"},
            "'multi_label' an example does not have exactly one class",
        ),
    ],
)
@pytest.mark.parametrize("build", [ep.build_keras_model, ep.build_model_fn])
def test_weights_that_cannot_be(build, options, words):
    with pytest.raises(ConfigError, match=words):
        build(layers, **{"loss": "sparse_categorical_crossentropy", **options}, params={"units": 7})


@pytest.mark.parametrize("weights", [[1.0] * 6, [1.0] * 8, {7: 2.0}])
def test_weights_of_other_classes_than_the_models(weights, tmp_path):
    options = {"loss": "sparse_categorical_crossentropy", "class_weights": weights, "params": {"units": 7}}
    words = f"weights for {8 if isinstance(weights, dict) else len(weights)} classes, and the model has 7 classes"
    with pytest.raises(ConfigError, match=words):
        ep.build_keras_model(layers, **options)
    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options), model_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        estimator.train(lambda: tf.data.Dataset.from_tensors(records("multi_class", 7)))


def test_keras_cannot_weigh_records_of_several_axes(tmp_path):
    def wide():
        return tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(4, WIDTH)), tf.keras.layers.Dense(3)])

    options = {"loss": "sparse_categorical_crossentropy", "weight_column": "w", "metrics": []}
    with pytest.raises(ConfigError, match="would apply sample weights to its other axes"):
        ep.build_keras_model(wide, **options)
    # An Estimator's loss has a record's weight for each of its values.
    features, weights = np.random.default_rng(1).normal(size=(4, 4, WIDTH)).astype(np.float32), [0.0, 1.0, 2.0, 5.0]
    labels = np.arange(16).reshape(4, 4) % 3

    def data():
        return tf.data.Dataset.from_tensors((features, {"y": labels, "w": np.array(weights)}))

    estimator = tf.estimator.Estimator(ep.build_model_fn(wide, **options), model_dir=str(tmp_path))
    estimator.train(data, steps=1)
    logits = features @ estimator.get_variable_value("dense/kernel") + estimator.get_variable_value("dense/bias")
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy() * np.reshape(weights, [4, 1])
    found = estimator.evaluate(data)
    assert found["loss"] == pytest.approx(each.mean(), rel=1e-5)
    assert found["average_loss"] == pytest.approx(each.sum() / (4 * sum(weights)), rel=1e-5)
