"""Baseline estimators with more than one feature."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat

tf = compat.install()
LABELS = np.array([0, 1, 1, 1], np.int64)


def input_fn(**sizes):
    """Features of so many records; only the data know how many."""
    kinds = {name: tf.TensorSpec([None, 1]) for name in sizes}

    def make():
        features = {name: np.ones([size, 1], np.float32) for name, size in sizes.items()}
        data = tf.data.Dataset.from_generator(lambda: [features], output_signature=kinds)
        return data.map(lambda features: (features, LABELS)).repeat(300)

    return make


@pytest.mark.parametrize(
    ("api", "sizes"), [(tf.estimator, {"a": 4}), (tf.estimator, {"a": 4, "b": 4, "c": 4}),
                       (tf.compat.v1.estimator, {"a": 4, "b": 4})]
)  # fmt: skip
def test_it_learns_the_frequencies(tmp_path, api, sizes):
    """With two or more: "GetNext() failed because the iterator has not been initialized"."""
    estimator = api.BaselineClassifier(str(tmp_path))
    estimator.train(input_fn(**sizes))
    metrics = estimator.evaluate(input_fn(**sizes), steps=1)
    assert metrics["accuracy"] == 0.75 and metrics["prediction/mean"] == pytest.approx(0.75, abs=0.05)


@pytest.mark.nightly
def test_a_regressor(tmp_path):
    estimator = tf.estimator.BaselineRegressor(str(tmp_path))
    estimator.train(input_fn(a=4, b=4))
    assert estimator.evaluate(input_fn(a=4, b=4), steps=1)["prediction/mean"] == pytest.approx(0.75, abs=0.05)


def test_features_of_different_sizes_are_found(tmp_path):
    estimator = tf.estimator.BaselineClassifier(str(tmp_path))
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        estimator.train(input_fn(a=4, b=3), steps=1)
