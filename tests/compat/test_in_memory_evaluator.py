"""InMemoryEvaluatorHook and inputs that are fed by Python functions."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.patches import in_memory_evaluator

tf = compat.install()
v1 = tf.compat.v1
X = np.arange(12, dtype=np.float32)


def model_fn(features, labels, mode):
    """One weight, which is the number of steps that were made."""
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    train_op = tf.group(v1.assign_add(weight, 1.0), v1.assign_add(v1.train.get_or_create_global_step(), 1))
    loss = weight + 0 * tf.reduce_sum(features["x"])
    metrics = {"mean": v1.metrics.mean(features["x"] * weight)}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def from_dataset():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, X)).batch(5)


def from_numpy():
    make = tf.compat.v1.estimator.inputs.numpy_input_fn
    return make({"x": X}, X, batch_size=5, num_epochs=1, shuffle=False)()


def from_pandas():
    pandas = pytest.importorskip("pandas")
    make = tf.compat.v1.estimator.inputs.pandas_input_fn
    return make(pandas.DataFrame({"x": X}), pandas.Series(X), batch_size=5, num_epochs=1, shuffle=False)()


@pytest.mark.parametrize("input_fn", [from_dataset, from_numpy, from_pandas])
def test_every_evaluation_sees_all_data(tmp_path, input_fn):
    """tensorflow/tensorflow#21590: from the second on each metric was 0.0."""
    built = []

    def counted():
        built.append(input_fn)
        return input_fn()

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    hook = tf.estimator.experimental.InMemoryEvaluatorHook(estimator, counted, every_n_iter=2)
    estimator.train(lambda: from_dataset().repeat(), hooks=[hook], steps=5)
    (events,) = (tmp_path / "eval").glob("*.tfevents.*")
    found = {event.step: value.simple_value for event in v1.train.summary_iterator(str(events))
             for value in event.summary.value if value.tag == "mean"}  # fmt: skip
    assert found == {step: pytest.approx(step * X.mean()) for step in (0, 2, 4, 5)}
    assert len(built) == (1 if input_fn is from_dataset else 4), "a graph is built anew only where it has to be"


def test_the_name():
    assert in_memory_evaluator.NAME in compat.patches.NAMES and "\n" not in in_memory_evaluator.WHAT
