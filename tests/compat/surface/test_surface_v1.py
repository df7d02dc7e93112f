"""What only `tf.compat.v1.estimator` has: KMeans and the logit builders."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.surface_data import FLOAT32, Reference, blobs, config, feed, tf, variables

v1 = tf.compat.v1
KMeans = v1.estimator.experimental.KMeans
X, Y = blobs(3)
KMEANS = pytest.mark.symbols("tf.compat.v1.estimator.experimental.KMeans")


def distances(x, centres, metric="squared_euclidean"):
    if metric == "cosine":
        unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, centres)]
        return 1 - unit[0] @ unit[1].T
    return ((x[:, None] - centres[None]) ** 2).sum(2)


def lloyd(x, centres, steps):
    """The plain algorithm: each centre moves to the mean of the points nearest to it."""
    for _ in range(steps):
        nearest = distances(x, centres).argmin(1)
        centres = np.stack([x[nearest == k].mean(0) for k in range(len(centres))])
    return centres


@pytest.mark.gate("1")
@KMEANS
@pytest.mark.parametrize("steps", [1, 4])
def test_full_batch_is_lloyds_algorithm(tmp_path, steps):
    start = X[[0, 3, 6]] + np.float32(0.1)  # three points of one blob: it takes steps to part
    estimator = KMeans(3, initial_clusters=start, use_mini_batch=False, config=config(tmp_path / "model", v1=True))
    estimator.train(feed({"x": X}, repeat=True), steps=steps)
    centres = lloyd(X.astype(np.float64), start, steps)
    np.testing.assert_allclose(estimator.cluster_centers(), centres, **FLOAT32)
    expected = distances(X, centres)
    np.testing.assert_allclose(estimator.score(feed({"x": X})), expected.min(1).sum(), rtol=1e-4)
    np.testing.assert_allclose(list(estimator.transform(feed({"x": X}))), np.sqrt(expected), rtol=1e-3)
    assert list(estimator.predict_cluster_index(feed({"x": X}))) == expected.argmin(1).tolist()
    if steps == 1:
        return
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.constant(X)})
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export"), receiver).decode())
    served = loaded.signatures["cluster_index"](x=tf.constant(X))
    assert served["output"].numpy().tolist() == expected.argmin(1).tolist()


@pytest.mark.gate("cosine-kmeans_plus_plus")
@KMEANS
@pytest.mark.parametrize("initial", ["random", "kmeans_plus_plus", "own function"])
@pytest.mark.parametrize("metric", ["squared_euclidean", "cosine"])
def test_kmeans_finds_the_blobs(tmp_path, initial, metric):
    """From each kind of start, in mini-batches too: points of one blob share a cluster, and no other's do."""
    assert KMeans.COSINE_DISTANCE == "cosine"
    assert KMeans.KMEANS_PLUS_PLUS_INIT == "kmeans_plus_plus"
    if initial == "own function":

        def initial(inputs, k):
            """Is given a list of tensors, and how many centres are still missing."""
            return inputs[0][: tf.cast(k, tf.int32)]

    estimator = KMeans(3, initial_clusters=initial, distance_metric=metric, seed=3, config=config(tmp_path, v1=True))
    order = np.argsort(np.arange(60) % 20, kind="stable")  # a batch has points of all blobs
    estimator.train(feed({"x": X[order]}, batch=30, repeat=True), steps=30)
    index = np.array(list(estimator.predict_cluster_index(feed({"x": X}))))
    assert len(set(zip(index, Y, strict=True))) == 3
    centres = estimator.cluster_centers()
    assert index.tolist() == distances(X, centres, metric).argmin(1).tolist()


@KMEANS
def test_kmeans_stops_when_nothing_changes(tmp_path):
    estimator = KMeans(
        3, initial_clusters=X[:3], use_mini_batch=False, relative_tolerance=1e-4, config=config(tmp_path, v1=True)
    )
    estimator.train(feed({"x": X}, repeat=True), steps=200)
    assert estimator.get_variable_value("global_step") < 20
    with pytest.raises(ValueError, match="Unsupported distance metric"):
        KMeans(3, distance_metric="manhattan")


@pytest.mark.symbols(
    "tf.compat.v1.estimator.experimental.dnn_logit_fn_builder",
    "tf.compat.v1.estimator.experimental.linear_logit_fn_builder",
    "tf.compat.v1.estimator.Estimator",
)
def test_logit_builders_in_a_model_fn(tmp_path):
    """A model_fn that adds a linear part to a network: its steps are those of the canned arithmetic."""
    columns = [tf.feature_column.numeric_column("x", shape=[2])]
    rate = 0.2

    def model_fn(features, labels, mode):
        with v1.variable_scope("dnn"):
            logits = v1.estimator.experimental.dnn_logit_fn_builder(
                units=3,
                hidden_units=[6],
                feature_columns=columns,
                activation_fn=tf.nn.relu,
                dropout=None,
                input_layer_partitioner=None,
                batch_norm=False,
            )(features, mode)
        with v1.variable_scope("linear"):
            logits += v1.estimator.experimental.linear_logit_fn_builder(units=3, feature_columns=columns)(features)
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        optimizer = v1.train.GradientDescentOptimizer(rate)
        return v1.estimator.EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, v1.train.get_global_step()),
            eval_metric_ops={"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, 1))},
        )

    estimator = v1.estimator.Estimator(model_fn, config=config(tmp_path, v1=True))
    estimator.train(feed({"x": X}, Y, repeat=True), steps=10)
    reference = Reference(variables(str(tmp_path / "model.ckpt-0")), "softmax", summed=False)
    for _ in range(10):
        reference.step(X, Y, rate)
    for name, value in variables(estimator.latest_checkpoint()).items():
        np.testing.assert_allclose(value, reference.weights[name], err_msg=name, **FLOAT32)
    accuracy = (reference.logits(X).argmax(1) == Y).mean()
    np.testing.assert_allclose(estimator.evaluate(feed({"x": X}, Y))["accuracy"], accuracy)
    assert accuracy > 0.9
