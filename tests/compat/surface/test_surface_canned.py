"""Canned Estimators: every training step, prediction, metric and export against the same arithmetic in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.surface_data import (
    APIS,
    FLOAT32,
    Reference,
    blobs,
    config,
    exported,
    feed,
    line,
    predictions,
    sigmoid,
    softmax,
    tf,
    variables,
)

STEPS = 12
HIDDEN = 6
COLUMNS = [tf.feature_column.numeric_column("x", shape=[2])]
# What each family is given beside its head or its classes.
FAMILIES = {
    "Baseline": {},
    "Linear": {"feature_columns": COLUMNS},
    "DNN": {"feature_columns": COLUMNS, "hidden_units": [HIDDEN]},
    "DNNLinearCombined": {
        "linear_feature_columns": COLUMNS,
        "dnn_feature_columns": COLUMNS,
        "dnn_hidden_units": [HIDDEN],
    },
}
CASES = [
    (family, kind, loss)
    for family in FAMILIES
    for kind, loss in (("Classifier", "softmax"), ("Regressor", "identity"), ("Estimator", "softmax"))
] + [("DNN", "Classifier", "sigmoid")]


class V1OptimizerHead(tf.estimator.MultiClassHead):
    """The heads of the public API take Keras optimizers; V1's LinearEstimator and DNNEstimator give them V1 ones.

    Programs of TensorFlow 1 gave them tf.contrib's heads. This is the way with today's public API.
    """

    def create_estimator_spec(self, features, mode, logits, labels=None, optimizer=None, **options):
        if optimizer is not None:
            step = tf.compat.v1.train.get_or_create_global_step()
            options["train_op_fn"] = lambda loss: optimizer.minimize(loss, global_step=step)
        return super().create_estimator_spec(features, mode, logits, labels=labels, **options)


CANNED = [
    pytest.param(
        api,
        family,
        kind,
        loss,
        id=f"{api}-{family}{kind}-{loss}",
        marks=pytest.mark.symbols(f"tf.{'compat.v1.' if api == 'v1' else ''}estimator.{family}{kind}"),
    )
    for api in APIS
    for family, kind, loss in CASES
    if (api, loss) != ("v1", "sigmoid")  # test_surface_columns.py has it
]


def data(loss):
    return line() if loss == "identity" else blobs(2 if loss == "sigmoid" else 3)


def sgd(api, rate):
    return {"v1": tf.compat.v1.train.GradientDescentOptimizer, "v2": tf.keras.optimizers.legacy.SGD}[api](rate)


def canned(api, family, kind, loss, model_dir, rate):
    options = dict(FAMILIES[family])
    if kind == "Classifier":
        options["n_classes"] = 2 if loss == "sigmoid" else 3
    elif kind == "Estimator":
        ours = api == "v1" and family in ("Linear", "DNN")
        options["head"] = V1OptimizerHead(3) if ours else tf.estimator.MultiClassHead(3)
    if family == "DNNLinearCombined":
        options |= {"linear_optimizer": sgd(api, rate), "dnn_optimizer": sgd(api, rate)}
    else:
        options["optimizer"] = sgd(api, rate)
    return getattr(APIS[api], family + kind)(config=config(model_dir), **options)


@pytest.mark.gate(
    "v1-DNNLinearCombinedClassifier-softmax",
    "v2-DNNLinearCombinedRegressor-identity",
    "v2-DNNLinearCombinedEstimator-softmax",
    "v2-LinearClassifier-softmax",
)
@pytest.mark.parametrize("api, family, kind, loss", CANNED)
def test_canned_is_the_arithmetic(tmp_path, api, family, kind, loss):
    """From the checkpoint of step 0, NumPy walks the same steps to the same weights, metrics, predictions, exports."""
    x, y = data(loss)
    # The V1 canned Estimators sum the loss over the batch, the others, and the heads, take its mean.
    summed = api == "v1" and kind != "Estimator"
    rate = 0.2 / len(x) if summed else 0.2
    estimator = canned(api, family, kind, loss, tmp_path / "model", rate)
    estimator.train(feed({"x": x}, y, repeat=True), steps=STEPS)

    reference = Reference(variables(str(tmp_path / "model" / "model.ckpt-0")), loss, summed=summed)
    before = reference.losses(x, y).mean()
    for _ in range(STEPS):
        reference.step(x, y, rate)
    found = variables(estimator.latest_checkpoint())
    assert found.keys() == reference.weights.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, reference.weights[name], err_msg=name, **FLOAT32)

    losses, logits = reference.losses(x, y), reference.logits(x)
    metrics = estimator.evaluate(feed({"x": x}, y))
    assert metrics["global_step"] == STEPS
    np.testing.assert_allclose(metrics["average_loss"], losses.mean(), **FLOAT32)
    np.testing.assert_allclose(metrics["loss"], losses.sum() if summed else losses.mean(), **FLOAT32)

    answers = predictions(estimator, feed({"x": x}))
    signatures = exported(estimator, COLUMNS if family != "Baseline" else None, tmp_path / "export")
    served = signatures["serving_default"]({"x": x})
    if loss == "identity":
        np.testing.assert_allclose(answers["predictions"], logits, **FLOAT32)
        np.testing.assert_allclose(metrics["prediction/mean"], logits.mean(), **FLOAT32)
        np.testing.assert_allclose(metrics["label/mean"], y.mean(), **FLOAT32)
        np.testing.assert_allclose(served["outputs"], answers["predictions"], rtol=1e-6)
        assert signatures.keys() == {"serving_default", "predict", "regression"}
    else:
        p = softmax(logits if loss == "softmax" else np.concatenate([np.zeros_like(logits), logits], 1))
        np.testing.assert_allclose(answers["logits"], logits, **FLOAT32)
        np.testing.assert_allclose(answers["probabilities"], p, **FLOAT32)
        assert (answers["class_ids"][:, 0] == p.argmax(1)).all()
        np.testing.assert_allclose(metrics["accuracy"], (p.argmax(1) == y).mean())
        np.testing.assert_allclose(served["scores"], answers["probabilities"], rtol=1e-6)
        assert served["classes"].tolist() == [[str(i).encode() for i in range(p.shape[1])]] * len(x)
        assert signatures.keys() >= {"serving_default", "predict", "classification"}
        np.testing.assert_allclose(signatures["predict"]({"x": x})["logits"], answers["logits"], rtol=1e-6)
    if family == "Baseline":  # no features: it learns the labels' frequencies and nothing else
        assert np.ptp(logits, axis=0).max() == 0
    else:
        assert losses.mean() < before / 2
        assert loss == "identity" or metrics["accuracy"] > 0.9
    if loss == "sigmoid":
        np.testing.assert_allclose(metrics["prediction/mean"], sigmoid(logits).mean(), **FLOAT32)
        assert metrics["auc"] > 0.99
        np.testing.assert_allclose(metrics["accuracy_baseline"], max(y.mean(), 1 - y.mean()))


@pytest.mark.gate("v2")
@pytest.mark.symbols("tf.estimator.BaselineClassifier", "tf.compat.v1.estimator.BaselineClassifier")
@pytest.mark.parametrize("api", APIS)
def test_baseline_learns_weighted_frequencies(tmp_path, api):
    """The optimum of cross entropy without features is the labels' weighted frequency; words as labels."""
    words = np.array(["a", "b", "b", "c", "c", "c"])
    weight = np.array([[2.0], [1], [1], [1], [2], [1]], np.float32)
    estimator = APIS[api].BaselineClassifier(
        n_classes=3,
        label_vocabulary=["a", "b", "c"],
        weight_column="w",
        optimizer=sgd(api, 1.0 if api == "v2" else 1 / 6),
        config=config(tmp_path),
    )
    features = {"w": weight, "x": np.zeros((6, 1), np.float32)}
    estimator.train(feed(features, words, repeat=True), steps=100)
    answers = predictions(estimator, feed(features))
    np.testing.assert_allclose(answers["probabilities"], [[2 / 8, 2 / 8, 4 / 8]] * 6, atol=1e-3)
    assert answers["classes"].tolist() == [[b"c"]] * 6


@pytest.mark.nightly
@pytest.mark.parametrize("api", APIS)
@pytest.mark.symbols("tf.estimator.experimental.LinearSDCA", "tf.compat.v1.estimator.experimental.LinearSDCA")
def test_sdca_finds_ridge_regression(tmp_path, api):
    """SDCA minimises `mean(error²)/2 + l2/(2 n) |w|²`, bias included: the closed form of ridge regression."""
    x, y = line()
    l2 = 6.0
    ids = np.array([str(i) for i in range(len(x))])
    estimator = APIS[api].LinearRegressor(
        feature_columns=COLUMNS,
        optimizer=tf.estimator.experimental.LinearSDCA(example_id_column="id", symmetric_l2_regularization=l2),
        config=config(tmp_path),
    )
    estimator.train(feed({"x": x, "id": ids}, y, repeat=True), steps=30)
    one = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    expected = np.linalg.solve(one.T @ one + l2 * np.eye(3), one.T @ y)
    found = variables(estimator.latest_checkpoint())
    np.testing.assert_allclose(found["linear/linear_model/x/weights"][:, 0], expected[:2], rtol=1e-3)
    np.testing.assert_allclose(found["linear/linear_model/bias_weights"], expected[2:], rtol=1e-3)


@pytest.mark.symbols("tf.estimator.experimental.LinearSDCA")
def test_sdca_classifies(tmp_path):
    x, y = blobs(2)
    ids = np.array([str(i) for i in range(len(x))])
    estimator = tf.estimator.LinearClassifier(
        feature_columns=COLUMNS,
        optimizer=tf.estimator.experimental.LinearSDCA("id", symmetric_l2_regularization=0.1),
        config=config(tmp_path),
    )
    estimator.train(feed({"x": x, "id": ids}, y, repeat=True), steps=20)
    w = variables(estimator.latest_checkpoint())
    logits = x @ w["linear/linear_model/x/weights"] + w["linear/linear_model/bias_weights"]
    assert ((logits[:, 0] > 0) == y).mean() == 1.0
    # At the optimum the gradient of the regularised loss is zero.
    slope = x.T @ (sigmoid(logits) - y[:, None]) + 0.1 * w["linear/linear_model/x/weights"]
    np.testing.assert_allclose(slope, 0, atol=0.02)
