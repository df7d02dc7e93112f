"""An Estimator against the Keras model that calls its model_fn."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn
from estimator_pipeline.parity import compare_models

tf = compat.install()
v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
X = np.random.RandomState(0).rand(40, 3).astype("float32")
Y = (X.sum(1) > 1.5).astype("int64")


def program(spec):
    def model_fn(features, labels, mode, params):
        net = v1.layers.dense(features["x"], 4, activation=tf.nn.relu)
        net = v1.layers.dropout(net, params["dropout"], training=mode == "train")
        logits = v1.layers.dense(net, 2)
        predictions = {"logits": logits, "names": tf.gather(["no", "yes"], tf.argmax(logits, 1))}
        if mode == "infer":
            return spec(mode, predictions=predictions)
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        train_op = v1.train.AdamOptimizer(params["rate"]).minimize(loss, v1.train.get_global_step())
        metrics = {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, 1))}
        return spec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)

    return model_fn


def input_fn():
    """Tensors of a graph, as programs of TensorFlow 1 give them."""
    return v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(8)).get_next()


def compared(theirs=(), ours=(), **options):
    params = {"rate": 0.01, "dropout": 0.0}
    estimator = v1.estimator.Estimator(program(tf.estimator.EstimatorSpec), params=params | dict(theirs))
    model = keras_model_fn.ModelFnModel(program(keras_model_fn.ModelFnSpec), params=params | dict(ours))
    return compare_models(estimator, model, input_fn=input_fn, steps=3, **options)


def test_they_are_equal():
    found = compared(eval_input_fn=input_fn, eval_steps=2)
    assert found.equal and len(found.steps) == 3
    assert not any(step.variables.differences for step in found.steps)
    assert found.metrics.names and set(found.answers.names) == {"predictions logits"}
    assert any("@m" in name for name in found.steps[0].variables.names)


def test_what_differs_is_named():
    found = compared(ours={"rate": 0.02})
    assert not found.equal and "every weight's change in estimator is 0.5 times" in str(found.findings[0])
    found = compared({"dropout": 0.5}, {"dropout": 0.5})
    assert not found.equal and any("dropout" in note for note in found.notes)


def test_canned_estimators_of_tensorflow_1():
    """Their variables are parts of one; a checkpoint's names are without the part."""
    columns = [tf.feature_column.numeric_column("x", shape=(3,))]
    found = compare_models(
        v1.estimator.LinearClassifier(columns), keras_model_fn.LinearClassifier(columns), input_fn=input_fn, steps=2
    )
    assert found.equal and "linear/linear_model/x/weights/part_0 @linear" in found.steps[0].variables.names
    assert not any(step.variables.differences for step in found.steps)


def test_names_are_the_estimators():
    with pytest.raises(ConfigError) as refused:
        compared(mapping={"a": "b"})
    assert refused.value.code == "argument/not-applicable"
