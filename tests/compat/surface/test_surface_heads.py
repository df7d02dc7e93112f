"""Heads: losses, gradients, metrics and predictions against NumPy; each mode's specification; heads in Estimators."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.surface_data import (
    FLOAT32,
    blobs,
    config,
    feed,
    line,
    predictions,
    sigmoid,
    sigmoid_loss,
    softmax,
    softmax_loss,
    tf,
)

ESTIMATORS = (tf.estimator, tf.compat.v1.estimator)
Modes = tf.estimator.ModeKeys
RNG = np.random.default_rng(6)
N = 6
ONE = RNG.normal(size=(N, 1)).astype(np.float32)
TWO = RNG.normal(size=(N, 2)).astype(np.float32)
THREE = RNG.normal(size=(N, 3)).astype(np.float32)
BINARY = np.array([[0], [1], [1], [0], [1], [0]])
CLASSES = np.array([[0], [2], [1], [2], [0], [2]])
MANY = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
WEIGHT = np.array([[1.0], [0.5], [2], [0], [1], [3]], np.float32)
COUNTS = np.array([[0], [1], [2], [3], [4], [7]], np.float32)
SUM = tf.losses.Reduction.SUM


class Case(NamedTuple):
    name: str
    options: dict[str, Any]
    logits: np.ndarray
    labels: Any
    loss: Any  # the arithmetic: logits -> the scalar
    predictions: Any  # logits -> {key: value}
    outputs: set[str]  # the names of the exported signatures


def classes(logits):
    logits = np.concatenate([np.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits
    return {"probabilities": softmax(logits), "class_ids": logits.argmax(1)[:, None]}


def stirling(z):
    """What the logarithm of z! adds for z > 1."""
    z = np.maximum(z, 1.0)
    return np.where(z > 1, z * np.log(z) - z + 0.5 * np.log(2 * math.pi * z), 0)


def absolute(labels, logits):
    return tf.abs(tf.cast(labels, tf.float32) - logits)


CLASSIFIES = {"serving_default", "classification", "predict"}
REGRESSES = {"serving_default", "regression", "predict"}
WORDS = {0: "no", 1: "yes"}
CASES = [
    Case(
        "BinaryClassHead",
        {},
        ONE,
        BINARY,
        lambda x: sigmoid_loss(x, BINARY).mean(),
        classes,
        CLASSIFIES | {"regression"},
    ),
    Case(
        "BinaryClassHead",
        {"weight_column": "w", "label_vocabulary": ["no", "yes"], "loss_reduction": SUM},
        ONE,
        np.vectorize(WORDS.get)(BINARY),
        lambda x: (sigmoid_loss(x, BINARY) * WEIGHT).sum(),
        lambda x: classes(x) | {"classes": np.where(x > 0, b"yes", b"no")},
        CLASSIFIES | {"regression"},
    ),
    Case(
        "MultiClassHead",
        {"n_classes": 3},
        THREE,
        CLASSES,
        lambda x: softmax_loss(x, CLASSES).mean(),
        classes,
        CLASSIFIES,
    ),
    Case(
        "MultiClassHead",
        {"n_classes": 3, "weight_column": "w", "label_vocabulary": ["a", "b", "c"]},
        THREE,
        np.array(["a", "b", "c"])[CLASSES],
        # Weighted, and divided by the batch's size, not by the weights' sum.
        lambda x: (softmax_loss(x, CLASSES) * WEIGHT[:, 0]).sum() / N,
        lambda x: {"classes": np.array([b"a", b"b", b"c"])[x.argmax(1)][:, None]},
        CLASSIFIES,
    ),
    Case(
        "MultiLabelHead",
        {"n_classes": 3},
        THREE,
        MANY,
        lambda x: sigmoid_loss(x, MANY).mean(),
        lambda x: {"probabilities": sigmoid(x)},
        CLASSIFIES,
    ),
    Case(
        "RegressionHead",
        {"label_dimension": 2, "weight_column": "w"},
        TWO,
        TWO[::-1].copy(),
        lambda x: ((x - TWO[::-1]) ** 2 * WEIGHT).sum() / (2 * N),
        lambda x: {"predictions": x},
        REGRESSES,
    ),
    Case(
        "RegressionHead",
        {"loss_fn": absolute, "inverse_link_fn": tf.exp},
        ONE,
        COUNTS,
        lambda x: np.abs(x - COUNTS).mean(),
        lambda x: {"predictions": np.exp(x), "logits": x},
        REGRESSES,
    ),
    Case(
        "PoissonRegressionHead",
        {},
        ONE,
        COUNTS,
        lambda x: (np.exp(x) - COUNTS * x + stirling(COUNTS)).mean(),
        lambda x: {"predictions": np.exp(x)},
        REGRESSES,
    ),
    Case(
        "LogisticRegressionHead",
        {},
        ONE,
        (COUNTS / 7).astype(np.float32),
        lambda x: sigmoid_loss(x, COUNTS / 7).mean(),
        lambda x: {"predictions": sigmoid(x), "logits": x},
        REGRESSES,
    ),
]
PARAMETERS = [
    pytest.param(
        case,
        id=f"{case.name}-{'-'.join(case.options) or 'plain'}",
        marks=pytest.mark.symbols(f"tf.estimator.{case.name}", f"tf.compat.v1.estimator.{case.name}"),
    )
    for case in CASES
]


def gradient(function, at):
    """By central differences, in float64."""
    found = np.zeros(at.shape)
    for index in np.ndindex(*at.shape):
        step = np.zeros(at.shape)
        step[index] = 1e-5
        found[index] = (function(at + step) - function(at - step)) / 2e-5
    return found


@pytest.mark.gate(
    "BinaryClassHead-weight_column-label_vocabulary-loss_reduction",
    "MultiClassHead-n_classes-weight_column-label_vocabulary",
    "MultiLabelHead-n_classes",
    "RegressionHead-label_dimension-weight_column",
    "PoissonRegressionHead-plain",
    "LogisticRegressionHead-plain",
)
@pytest.mark.parametrize("case", PARAMETERS)
def test_each_mode(case):
    """Loss, one step of gradient descent on the logits, the predictions and the signatures of each specification."""
    assert len({getattr(api, case.name) for api in ESTIMATORS}) == 1
    head = getattr(tf.estimator, case.name)(**case.options)
    assert head.logits_dimension == case.logits.shape[1]
    exact = case.logits.astype(np.float64)
    features = {"w": WEIGHT}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.create_global_step()
        variable = tf.Variable(case.logits, name="logits")
        logits = tf.identity(variable)
        train = head.create_estimator_spec(
            features,
            Modes.TRAIN,
            logits,
            labels=tf.constant(case.labels),
            optimizer=tf.keras.optimizers.legacy.SGD(0.5),
            trainable_variables=[variable],
            regularization_losses=[tf.constant(2.5)],
        )
        evaluate = head.create_estimator_spec(features, Modes.EVAL, logits, labels=tf.constant(case.labels))
        predict = head.create_estimator_spec(features, Modes.PREDICT, logits)
        session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.tables_initializer()])

        assert (train.mode, evaluate.mode, predict.mode) == (Modes.TRAIN, Modes.EVAL, Modes.PREDICT)
        np.testing.assert_allclose(session.run(train.loss), case.loss(exact) + 2.5, rtol=1e-5)
        np.testing.assert_allclose(session.run(evaluate.loss), case.loss(exact), rtol=1e-5)
        assert evaluate.eval_metric_ops.keys() >= {"average_loss"}
        found = session.run(predict.predictions)
        for key, value in case.predictions(case.logits).items():
            assert found[key].shape == value.shape
            if value.dtype.kind == "S":
                assert found[key].tolist() == value.tolist()
            else:
                np.testing.assert_allclose(found[key], value, err_msg=key, rtol=1e-5)
        assert predict.export_outputs.keys() == case.outputs
        session.run(train.train_op)
        np.testing.assert_allclose(session.run(variable), exact - 0.5 * gradient(case.loss, exact), **FLOAT32)


def updated(head, logits, labels, **features):
    """The head's metrics after one batch, eagerly."""
    found = head.update_metrics(head.metrics(), features, tf.constant(logits), tf.constant(labels))
    return {name: metric.result().numpy() for name, metric in found.items()}


@pytest.mark.symbols("tf.estimator.BinaryClassHead")
def test_binary_metrics():
    found = updated(tf.estimator.BinaryClassHead(thresholds=[0.3], weight_column="w"), ONE, BINARY, w=WEIGHT)
    p, w, y = sigmoid(ONE[:, 0]), WEIGHT[:, 0], BINARY[:, 0]

    def share(mask, of):
        return (w * mask * of).sum() / (w * of).sum()

    expected = {
        "accuracy": share((p > 0.5) == y, np.ones(N)),
        "precision": share(y, p > 0.5),
        "recall": share(p > 0.5, y),
        "average_loss": share(sigmoid_loss(ONE[:, 0], y), np.ones(N)),
        "prediction/mean": share(p, np.ones(N)),
        "label/mean": share(y, np.ones(N)),
        "accuracy_baseline": max(share(y, np.ones(N)), 1 - share(y, np.ones(N))),
        "accuracy/positive_threshold_0.3": share((p > 0.3) == y, np.ones(N)),
        "precision/positive_threshold_0.3": share(y, p > 0.3),
        "recall/positive_threshold_0.3": share(p > 0.3, y),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, rtol=1e-5)
    # The area under the curve is the share of pairs in the right order, by weight; the metric has 200 thresholds.
    positive, negative = np.where(y == 1)[0], np.where(y == 0)[0]
    pairs = [(w[i] * w[j], p[i] > p[j]) for i in positive for j in negative]
    area = sum(weight for weight, right in pairs if right) / sum(weight for weight, _ in pairs)
    np.testing.assert_allclose(found["auc"], area, atol=0.01)


@pytest.mark.symbols("tf.estimator.MultiLabelHead")
def test_multi_label_metrics():
    """By class where asked, under the classes' names; labels may be words, as many as a record has."""
    names = ["p", "q", "r"]
    head = tf.estimator.MultiLabelHead(
        3, label_vocabulary=names, classes_for_class_based_metrics=["q"], thresholds=[0.4]
    )
    words = tf.sparse.from_dense([["p", "r"], ["", ""], ["q", "r"], ["q", ""], ["r", ""], ["p", "q"]])
    hot = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
    found = head.update_metrics(head.metrics(), {}, tf.constant(THREE), words)
    found = {name: metric.result().numpy() for name, metric in found.items()}
    p = sigmoid(THREE)
    np.testing.assert_allclose(found["average_loss"], sigmoid_loss(THREE, hot).mean(), rtol=1e-5)
    np.testing.assert_allclose(found["accuracy/positive_threshold_0.4"], ((p > 0.4) == hot).mean(), rtol=1e-5)
    np.testing.assert_allclose(found["recall/positive_threshold_0.4"], (p > 0.4)[hot == 1].mean(), rtol=1e-5)
    np.testing.assert_allclose(found["probability_mean/q"], p[:, 1].mean(), rtol=1e-5)
    loss = head.loss(words, tf.constant(THREE), {}, Modes.EVAL)
    np.testing.assert_allclose(loss.numpy(), sigmoid_loss(THREE, hot).mean(), rtol=1e-5)


@pytest.mark.symbols("tf.estimator.RegressionHead", "tf.estimator.MultiClassHead")
def test_metrics_are_weighted():
    found = updated(tf.estimator.RegressionHead(weight_column="w"), ONE, COUNTS, w=WEIGHT)
    np.testing.assert_allclose(found["average_loss"], np.average((ONE - COUNTS) ** 2, weights=WEIGHT), rtol=1e-5)
    np.testing.assert_allclose(found["label/mean"], np.average(COUNTS, weights=WEIGHT), rtol=1e-5)
    np.testing.assert_allclose(found["prediction/mean"], np.average(ONE, weights=WEIGHT), rtol=1e-5)
    found = updated(tf.estimator.MultiClassHead(3, weight_column="w"), THREE, CLASSES, w=WEIGHT)
    right = THREE.argmax(1) == CLASSES[:, 0]
    np.testing.assert_allclose(found["accuracy"], np.average(right, weights=WEIGHT[:, 0]), rtol=1e-5)


@pytest.mark.symbols("tf.estimator.MultiHead", "tf.compat.v1.estimator.MultiHead", "tf.estimator.DNNEstimator")
def test_multi_head(tmp_path):
    """Two heads on one network: the loss is the weighted sum, each head has its metrics, predictions and signature."""
    assert tf.compat.v1.estimator.MultiHead is tf.estimator.MultiHead
    x, y = blobs(3)
    labels = {"kind": y, "size": x.sum(1).astype(np.float32)}
    heads = [tf.estimator.MultiClassHead(3, name="kind"), tf.estimator.RegressionHead(name="size")]
    estimator = tf.estimator.DNNEstimator(
        tf.estimator.MultiHead(heads, head_weights=[2.0, 0.5]),
        hidden_units=[12],
        feature_columns=[tf.feature_column.numeric_column("x", shape=[2])],
        optimizer=tf.keras.optimizers.legacy.Adam(0.05),
        config=config(tmp_path),
    )
    estimator.train(feed({"x": x}, labels, repeat=True), steps=80)
    answers = list(estimator.predict(feed({"x": x})))
    logits = np.stack([row["kind", "logits"] for row in answers])
    sizes = np.stack([row["size", "predictions"] for row in answers])[:, 0]
    metrics = estimator.evaluate(feed({"x": x}, labels))
    kind, size = softmax_loss(logits, y).mean(), ((sizes - labels["size"]) ** 2).mean()
    np.testing.assert_allclose(metrics["average_loss/kind"], kind, **FLOAT32)
    np.testing.assert_allclose(metrics["average_loss/size"], size, **FLOAT32)
    np.testing.assert_allclose(metrics["loss"], 2 * kind + 0.5 * size, **FLOAT32)
    np.testing.assert_allclose(metrics["accuracy/kind"], (logits.argmax(1) == y).mean())
    assert metrics["accuracy/kind"] > 0.95
    assert size < labels["size"].var() / 10
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.constant(x[:1])})
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export"), receiver).decode())
    # The others, such as "kind/classification", take Examples only.
    assert set(loaded.signatures) == {"predict", "kind/predict", "size/predict"}
    served = loaded.signatures["predict"](x=tf.constant(x[:1]))
    np.testing.assert_allclose(served["size/predictions"].numpy()[0, 0], sizes[0], rtol=1e-5)


@pytest.mark.symbols("tf.estimator.PoissonRegressionHead", "tf.estimator.LinearEstimator")
def test_poisson_regression_finds_the_rate(tmp_path):
    """Labels that are the rate itself: the optimum is `exp` of the line that made them."""
    x, y = line()
    rate = np.exp(y / 4)
    estimator = tf.estimator.LinearEstimator(
        head=tf.estimator.PoissonRegressionHead(),
        feature_columns=[tf.feature_column.numeric_column("x", shape=[2])],
        optimizer=tf.keras.optimizers.legacy.SGD(0.4),
        config=config(tmp_path),
    )
    estimator.train(feed({"x": x}, rate, repeat=True), steps=300)
    weights = estimator.get_variable_value("linear/linear_model/x/weights")[:, 0]
    np.testing.assert_allclose(weights, [2 / 4, -3 / 4], rtol=1e-3)
    np.testing.assert_allclose(predictions(estimator, feed({"x": x}))["predictions"][:, 0], rate, rtol=1e-3)


class MedianHead(tf.estimator.Head):
    """A head of one's own: the mean absolute error, whose best constant is the median."""

    @property
    def name(self):
        return "median"

    @property
    def logits_dimension(self):
        return 1

    @property
    def loss_reduction(self):
        return tf.losses.Reduction.SUM_OVER_BATCH_SIZE

    def loss(self, labels, logits, features=None, mode=None, regularization_losses=None):
        return tf.reduce_mean(tf.abs(tf.reshape(labels, [-1, 1]) - logits))

    def predictions(self, logits, keys=None):
        return {"median": logits}

    def metrics(self, regularization_losses=None):
        return {"error": tf.keras.metrics.MeanAbsoluteError()}

    def update_metrics(self, eval_metrics, features, logits, labels, mode=None, regularization_losses=None):
        eval_metrics["error"].update_state(tf.reshape(labels, [-1, 1]), logits)
        return eval_metrics

    def create_estimator_spec(self, features, mode, logits, labels=None, train_op_fn=None, **_):
        answers = self.predictions(logits)
        if mode == Modes.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions=answers)
        loss = self.loss(labels, logits)
        if mode == Modes.EVAL:
            metrics = self.update_metrics(self.metrics(), features, logits, labels)
            return tf.estimator.EstimatorSpec(mode, predictions=answers, loss=loss, eval_metric_ops=metrics)
        return tf.estimator.EstimatorSpec(mode, predictions=answers, loss=loss, train_op=train_op_fn(loss))


@pytest.mark.symbols("tf.estimator.Head", "tf.compat.v1.estimator.Head", "tf.estimator.BaselineEstimator")
def test_own_head(tmp_path):
    assert tf.compat.v1.estimator.Head is tf.estimator.Head
    y = np.array([1.0, 2, 3, 10, 50], np.float32)
    x = {"x": np.zeros((5, 1), np.float32)}
    estimator = tf.estimator.BaselineEstimator(
        head=MedianHead(), optimizer=tf.keras.optimizers.legacy.SGD(0.1), config=config(tmp_path)
    )
    estimator.train(feed(x, y, repeat=True), steps=400)
    (median,) = set(predictions(estimator, feed(x))["median"][:, 0])
    assert abs(median - 3) < 0.11  # a step at the optimum is 0.1 times a fifth at most
    np.testing.assert_allclose(estimator.evaluate(feed(x, y))["error"], np.abs(y - median).mean(), rtol=1e-5)


@pytest.mark.gate("v2")
@pytest.mark.symbols("tf.estimator.add_metrics", "tf.compat.v1.estimator.add_metrics")
@pytest.mark.parametrize("api", ESTIMATORS, ids=["v2", "v1"])
def test_add_metrics(tmp_path, api):
    """What is added sees labels, predictions, features and config, and stands beside or above the head's own."""
    x, y = line()
    rate = 0.3 if api is tf.estimator else 0.3 / len(x)
    optimizer = tf.keras.optimizers.legacy.SGD if api is tf.estimator else tf.compat.v1.train.GradientDescentOptimizer
    estimator = api.LinearRegressor(
        [tf.feature_column.numeric_column("x", shape=[2])], optimizer=optimizer(rate), config=config(tmp_path)
    )

    def more(labels, predictions, features, config):
        error = tf.keras.metrics.Mean()
        error.update_state(tf.abs(labels - predictions["predictions"][:, 0]), sample_weight=features["x"][:, 0] > 0)
        steps = tf.compat.v1.metrics.mean(tf.constant(float(config.tf_random_seed)))
        return {"error where x0 > 0": error, "average_loss": steps}

    estimator = api.add_metrics(estimator, more)
    estimator.train(feed({"x": x}, y, repeat=True), steps=5)
    metrics = estimator.evaluate(feed({"x": x}, y))
    answers = predictions(estimator, feed({"x": x}))["predictions"][:, 0]
    np.testing.assert_allclose(metrics["error where x0 > 0"], np.abs(y - answers)[x[:, 0] > 0].mean(), **FLOAT32)
    assert metrics["average_loss"] == 11  # the same name: the added one is it
    np.testing.assert_allclose(metrics["prediction/mean"], answers.mean(), **FLOAT32)
    with pytest.raises(ValueError, match="not expected args"):
        api.add_metrics(estimator, lambda labels, nothing: {})


@pytest.mark.symbols(
    "tf.estimator.classifier_parse_example_spec",
    "tf.estimator.regressor_parse_example_spec",
    "tf.compat.v1.estimator.classifier_parse_example_spec",
    "tf.compat.v1.estimator.regressor_parse_example_spec",
)
@pytest.mark.parametrize("api", ESTIMATORS, ids=["v2", "v1"])
def test_parse_example_specs(api):
    """Columns, label and weight in one specification, with which Examples are read."""
    columns = [
        tf.feature_column.numeric_column("n", shape=[2]),
        tf.feature_column.categorical_column_with_identity("c", 3),
    ]
    found = api.classifier_parse_example_spec(columns, "y", label_dtype=tf.string, weight_column="w")
    assert found == {
        "n": tf.io.FixedLenFeature((2,), tf.float32),
        "c": tf.io.VarLenFeature(tf.int64),
        "y": tf.io.FixedLenFeature((1,), tf.string),
        "w": tf.io.FixedLenFeature((1,), tf.float32),
    }
    assert api.classifier_parse_example_spec(columns, "y")["y"] == tf.io.FixedLenFeature((1,), tf.int64)
    found = api.regressor_parse_example_spec(columns, "y", label_default=0.0, label_dimension=1)
    assert found["y"] == tf.io.FixedLenFeature((1,), tf.float32, 0.0)
    record = tf.train.Example()
    record.features.feature["n"].float_list.value.extend([1, 2])
    record.features.feature["c"].int64_list.value.extend([2])
    parsed = tf.io.parse_example(tf.constant([record.SerializeToString()]), found)
    assert parsed["n"].numpy().tolist() == [[1, 2]]
    assert parsed["y"].numpy().tolist() == [[0]]
    assert tf.sparse.to_dense(parsed["c"]).numpy().tolist() == [[2]]
    for refused, message in (
        ({"label_key": "n"}, "label should not be used as feature"),
        ({"label_key": "y", "weight_column": 7}, "weight_column should be an instance"),
        ({"label_key": "y", "weight_column": "n"}, "weight_column should not be used as feature"),
    ):
        with pytest.raises(ValueError, match=message):
            api.classifier_parse_example_spec(columns, **refused)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tf.estimator.BinaryClassHead(thresholds=[1.0]), "thresholds not in"),
        (lambda: tf.estimator.MultiClassHead(2), "n_classes must be > 2"),
        (lambda: tf.estimator.MultiClassHead(3, label_vocabulary=["a"]), "vocabulary"),
        (lambda: tf.estimator.MultiLabelHead(1), "n_classes must be > 1"),
        (lambda: tf.estimator.RegressionHead(label_dimension=0), "Invalid label_dimension"),
        (lambda: tf.estimator.MultiHead([tf.estimator.RegressionHead()]), "must have name"),
    ],
)
@pytest.mark.symbols("tf.estimator.BinaryClassHead", "tf.estimator.MultiClassHead", "tf.estimator.MultiHead")
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
