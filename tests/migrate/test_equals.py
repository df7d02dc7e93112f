"""Every row of docs/reference/migrate-equals.md: the result of a tf.compat.v1 or tf.estimator construct, and Keras's.

A case has both sides as functions: the first is called in a graph, as a model_fn is, and its tensors are run in a
session; the second is called as Keras 2 is. `equal` cases agree; `differs` cases must not, so that a row that warns of
a difference is true as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import tensorflow_with_three_cpus

# That they are deprecated is why they are here.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
tf = tensorflow_with_three_cpus()
v1 = tf.compat.v1
keras = tf.keras
fc = tf.feature_column
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "migrate-equals.md"

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=[6, 5]).astype("float32")
IMAGES = RANDOM.normal(size=[3, 7, 7, 2]).astype("float32")
SEQUENCES = RANDOM.normal(size=[3, 9, 2]).astype("float32")
VOLUMES = RANDOM.normal(size=[3, 5, 5, 5, 2]).astype("float32")
LOGITS = RANDOM.normal(size=[6, 3]).astype("float32")
CLASSES = np.array([0, 2, 1, 1, 0, 2])
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
BINARY = np.array([[0.0], [1], [1], [0], [1], [0]], "float32")
SCORES = RANDOM.normal(size=[6, 1]).astype("float32")
WEIGHTS = np.array([1.0, 0, 2, 1, 0, 0.5], "float32")
STEPS = (0, 1, 9, 10, 11, 24, 25, 99, 100, 101)
EQUAL: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
DIFFERS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}


def in_graph(function: Callable[[], Any]) -> Any:
    """Runs what the function builds in a graph, as an Estimator does."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        found = function()
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()])
        return session.run(found)


def filled(layer: Any, x: Any, **call: Any) -> Any:
    """A Keras layer's answer; its weights are those that `fill` gives to a V1 layer."""
    layer.build(x.shape)
    for weight in layer.weights:
        weight.assign(values_for(weight.shape))
    return layer(x, **call)


def values_for(shape: Any) -> np.ndarray:
    size = int(np.prod(shape))
    return (0.1 + (np.arange(size) % 7) / 10).reshape(shape).astype("float32")


def layer_of_v1(make: Callable[[], Any]) -> Callable[[], Any]:
    """A V1 layer's answer, its variables filled; `make` calls the layer's function."""

    def build():
        result = make()
        variables = v1.global_variables()
        with tf.control_dependencies([v.assign(values_for(v.shape)) for v in variables]):
            done = tf.no_op()
        v1.get_default_session().run(v1.global_variables_initializer())
        v1.get_default_session().run(done)
        return v1.get_default_session().run(result)

    def run():
        with tf.Graph().as_default(), v1.Session():
            return build()

    return run


# Layers --------------------------------------------------------------------------------------------------------

LAYERS = {
    "layer-dense": (
        lambda: v1.layers.dense(X, 4, tf.nn.relu),
        lambda: filled(keras.layers.Dense(4, "relu"), X),
    ),
    "layer-conv2d": (
        lambda: v1.layers.conv2d(IMAGES, 4, 3, strides=2, padding="same"),
        lambda: filled(keras.layers.Conv2D(4, 3, strides=2, padding="same"), IMAGES),
    ),
    "layer-conv1d": (
        lambda: v1.layers.conv1d(SEQUENCES, 4, 3),
        lambda: filled(keras.layers.Conv1D(4, 3), SEQUENCES),
    ),
    "layer-conv3d": (
        lambda: v1.layers.conv3d(VOLUMES, 4, 3),
        lambda: filled(keras.layers.Conv3D(4, 3), VOLUMES),
    ),
    "layer-separable-conv1d": (
        lambda: v1.layers.separable_conv1d(SEQUENCES, 4, 3),
        lambda: filled(keras.layers.SeparableConv1D(4, 3), SEQUENCES),
    ),
    "layer-separable-conv2d": (
        lambda: v1.layers.separable_conv2d(IMAGES, 4, 3),
        lambda: filled(keras.layers.SeparableConv2D(4, 3), IMAGES),
    ),
    "layer-conv2d-transpose": (
        lambda: v1.layers.conv2d_transpose(IMAGES, 4, 3, strides=2),
        lambda: filled(keras.layers.Conv2DTranspose(4, 3, strides=2), IMAGES),
    ),
    "layer-batch-norm-trains": (
        lambda: v1.layers.batch_normalization(X, training=True),
        lambda: filled(keras.layers.BatchNormalization(), X, training=True),
    ),
    "layer-batch-norm-infers": (
        lambda: v1.layers.batch_normalization(IMAGES, training=False),
        lambda: filled(keras.layers.BatchNormalization(), IMAGES, training=False),
    ),
    "layer-max-pooling": (
        lambda: v1.layers.max_pooling2d(IMAGES, 3, 2, padding="same"),
        lambda: keras.layers.MaxPooling2D(3, 2, padding="same")(IMAGES),
    ),
    "layer-average-pooling": (
        lambda: v1.layers.average_pooling2d(IMAGES, 2, 2, padding="same"),
        lambda: keras.layers.AveragePooling2D(2, 2, padding="same")(IMAGES),
    ),
    "layer-max-pooling3d": (
        lambda: v1.layers.max_pooling3d(VOLUMES, 2, 2, padding="same"),
        lambda: keras.layers.MaxPooling3D(2, 2, padding="same")(VOLUMES),
    ),
    "layer-average-pooling3d": (
        lambda: v1.layers.average_pooling3d(VOLUMES, 2, 2),
        lambda: keras.layers.AveragePooling3D(2, 2)(VOLUMES),
    ),
    "layer-flatten": (lambda: v1.layers.flatten(IMAGES), lambda: keras.layers.Flatten()(IMAGES)),
    "layer-dropout-infers": (lambda: v1.layers.dropout(X, 0.5), lambda: keras.layers.Dropout(0.5)(X)),
    "layer-bias-add": (
        lambda: v1.nn.xw_plus_b(X, v1.get_variable("w", [5, 4]), v1.get_variable("b", [4])),
        lambda: filled(keras.layers.Dense(4), X),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    first, second = LAYERS[name]
    np.testing.assert_allclose(layer_of_v1(first)(), second(), rtol=1e-5, atol=1e-6)


def test_batch_norm_moves_its_statistics_alike():
    """layer-batch-norm-updates: a step of 1 - momentum, the variance of images with Bessel's correction (fused)."""
    for given in (X, IMAGES):

        def moved(given=given):
            v1.layers.batch_normalization(given, training=True)
            with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
                done = tf.no_op()
            v1.get_default_session().run(v1.global_variables_initializer())
            v1.get_default_session().run(done)
            variables = [v for v in v1.global_variables() if "moving" in v.name]
            return v1.get_default_session().run(variables)

        with tf.Graph().as_default(), v1.Session():
            first = moved()
        layer = keras.layers.BatchNormalization()
        layer(given, training=True)
        for one, other in zip(first, [layer.moving_mean, layer.moving_variance], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


# Initialisers: the distribution, by its bounds and its spread ---------------------------------------------------

INITIALIZERS = {
    "init-get-variable": (lambda: v1.get_variable("w", [300, 200]), keras.initializers.GlorotUniform),
    "init-dense": (
        lambda: (v1.layers.dense(np.zeros([1, 300], "float32"), 200), v1.global_variables()[0])[1],
        keras.initializers.GlorotUniform,
    ),
    "init-variance-scaling": (
        lambda: v1.get_variable("w", [300, 200], initializer=v1.variance_scaling_initializer(2.0)),
        lambda: keras.initializers.VarianceScaling(2.0),
    ),
    "init-glorot-normal": (
        lambda: v1.get_variable("w", [300, 200], initializer=v1.glorot_normal_initializer()),
        keras.initializers.GlorotNormal,
    ),
    "init-truncated-normal": (
        lambda: v1.get_variable("w", [300, 200], initializer=v1.truncated_normal_initializer(stddev=0.3)),
        lambda: keras.initializers.TruncatedNormal(stddev=0.3),
    ),
    "init-embedding-column": (
        lambda: _embedding_weights(300, 200),
        lambda: keras.initializers.TruncatedNormal(stddev=200**-0.5),
    ),
}
# Where the default of the name that is alike is another one.
OTHER_DEFAULTS = {
    "init-truncated-normal-default": (
        lambda: v1.get_variable("w", [300, 200], initializer=v1.truncated_normal_initializer()),
        keras.initializers.TruncatedNormal,
    ),
    "init-random-normal-default": (
        lambda: v1.get_variable("w", [300, 200], initializer=v1.random_normal_initializer()),
        keras.initializers.RandomNormal,
    ),
    "init-random-uniform-default": (
        lambda: v1.get_variable("w", [300, 200], initializer=v1.random_uniform_initializer()),
        keras.initializers.RandomUniform,
    ),
    "init-keras-embedding-default": (
        lambda: _embedding_weights(300, 200),
        lambda: keras.initializers.get("uniform"),
    ),
}


def _embedding_weights(size: int, dimension: int) -> Any:
    column = fc.embedding_column(fc.categorical_column_with_identity("id", size), dimension)
    v1.feature_column.input_layer({"id": tf.constant([[1]])}, [column])
    return v1.global_variables()[0]


def _shape_of(values: Any) -> np.ndarray:
    values = np.asarray(values)
    return np.array([values.mean(), values.std(), np.abs(values).max(), np.percentile(values, 90)])


@pytest.mark.parametrize("name", {**INITIALIZERS, **OTHER_DEFAULTS})
def test_initializers(name):
    first, second = {**INITIALIZERS, **OTHER_DEFAULTS}[name]
    keras.utils.set_random_seed(1)
    one, other = _shape_of(in_graph(first)), _shape_of(second()([300, 200]))
    alike = np.allclose(one, other, rtol=0.03, atol=0.02 * one[1])
    assert alike == (name in INITIALIZERS), (one, other)


# Losses --------------------------------------------------------------------------------------------------------

MEAN = keras.losses.Reduction.SUM_OVER_BATCH_SIZE
SUM = keras.losses.Reduction.SUM
EQUAL |= {
    "loss-sparse-softmax": (
        lambda: v1.losses.sparse_softmax_cross_entropy(CLASSES, LOGITS),
        lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True)(CLASSES, LOGITS),
    ),
    "loss-softmax-smoothed": (
        lambda: v1.losses.softmax_cross_entropy(ONE_HOT, LOGITS, label_smoothing=0.1),
        lambda: keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)(ONE_HOT, LOGITS),
    ),
    "loss-sigmoid": (
        lambda: v1.losses.sigmoid_cross_entropy(BINARY, SCORES),
        lambda: keras.losses.BinaryCrossentropy(from_logits=True)(BINARY, SCORES),
    ),
    "loss-mean-squared": (
        lambda: v1.losses.mean_squared_error(BINARY, SCORES),
        lambda: keras.losses.MeanSquaredError()(BINARY, SCORES),
    ),
    "loss-absolute": (
        lambda: v1.losses.absolute_difference(BINARY, SCORES),
        lambda: keras.losses.MeanAbsoluteError()(BINARY, SCORES),
    ),
    "loss-huber": (
        lambda: v1.losses.huber_loss(BINARY, SCORES, delta=0.5),
        lambda: keras.losses.Huber(delta=0.5)(BINARY, SCORES),
    ),
    "loss-hinge": (
        lambda: v1.losses.hinge_loss(BINARY, SCORES),
        lambda: keras.losses.Hinge()(BINARY, SCORES),
    ),
    "loss-log": (
        lambda: v1.losses.log_loss(BINARY, tf.sigmoid(SCORES)),
        lambda: keras.losses.BinaryCrossentropy()(BINARY, tf.sigmoid(SCORES)),
    ),
    "loss-sum": (
        lambda: v1.losses.sparse_softmax_cross_entropy(CLASSES, LOGITS, reduction=v1.losses.Reduction.SUM),
        lambda: keras.losses.SparseCategoricalCrossentropy(True, reduction=SUM)(CLASSES, LOGITS),
    ),
    "loss-weights-over-batch": (
        lambda: v1.losses.sparse_softmax_cross_entropy(
            CLASSES, LOGITS, WEIGHTS, reduction=v1.losses.Reduction.SUM_OVER_BATCH_SIZE
        ),
        lambda: keras.losses.SparseCategoricalCrossentropy(True)(CLASSES, LOGITS, WEIGHTS),
    ),
    "loss-weights": (
        lambda: v1.losses.sparse_softmax_cross_entropy(CLASSES, LOGITS, WEIGHTS),
        lambda: (
            keras.losses.SparseCategoricalCrossentropy(True, reduction=SUM)(CLASSES, LOGITS, WEIGHTS)
            / np.count_nonzero(WEIGHTS)
        ),
    ),
    "loss-canned-weights": (
        lambda: _head_loss(tf.estimator.BinaryClassHead(weight_column="w")),
        lambda: keras.losses.BinaryCrossentropy(from_logits=True)(BINARY, SCORES, WEIGHTS[:, None]),
    ),
    "loss-canned": (
        lambda: _head_loss(tf.estimator.BinaryClassHead()),
        lambda: keras.losses.BinaryCrossentropy(from_logits=True)(BINARY, SCORES),
    ),
    "loss-canned-regression": (
        lambda: _head_loss(tf.estimator.RegressionHead(label_dimension=1)),
        lambda: keras.losses.MeanSquaredError()(BINARY, SCORES),
    ),
    "loss-l2-loss": (lambda: 0.02 * tf.nn.l2_loss(X), lambda: keras.regularizers.L2(0.01)(X)),
}
DIFFERS |= {
    "loss-weights-default": (
        lambda: v1.losses.sparse_softmax_cross_entropy(CLASSES, LOGITS, WEIGHTS),
        lambda: keras.losses.SparseCategoricalCrossentropy(True)(CLASSES, LOGITS, WEIGHTS),
    ),
    "loss-l2-loss-same-factor": (lambda: 0.01 * tf.nn.l2_loss(X), lambda: keras.regularizers.L2(0.01)(X)),
}


def _head_loss(head: Any) -> Any:
    labels = tf.constant(BINARY)
    return head.loss(labels, tf.constant(SCORES), {"w": tf.constant(WEIGHTS[:, None])}, tf.estimator.ModeKeys.TRAIN)


# Learning rates: each for the steps STEPS ------------------------------------------------------------------------


def _rates(make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: [make(tf.constant(step, tf.int64)) for step in STEPS]


SCHEDULES = keras.optimizers.schedules
EQUAL |= {
    "rate-exponential": (
        _rates(lambda step: v1.train.exponential_decay(0.1, step, 10, 0.9, staircase=True)),
        _rates(SCHEDULES.ExponentialDecay(0.1, 10, 0.9, staircase=True)),
    ),
    "rate-piecewise": (
        _rates(lambda step: v1.train.piecewise_constant(step, [10, 25], [0.1, 0.01, 0.001])),
        _rates(SCHEDULES.PiecewiseConstantDecay([10, 25], [0.1, 0.01, 0.001])),
    ),
    "rate-polynomial": (
        _rates(lambda step: v1.train.polynomial_decay(0.1, step, 100, 0.01, power=2.0)),
        _rates(SCHEDULES.PolynomialDecay(0.1, 100, 0.01, power=2.0)),
    ),
    "rate-inverse-time": (
        _rates(lambda step: v1.train.inverse_time_decay(0.1, step, 10, 0.5)),
        _rates(SCHEDULES.InverseTimeDecay(0.1, 10, 0.5)),
    ),
    "rate-cosine": (
        _rates(lambda step: v1.train.cosine_decay(0.1, step, 100, alpha=0.1)),
        _rates(SCHEDULES.CosineDecay(0.1, 100, alpha=0.1)),
    ),
    "rate-cosine-restarts": (
        _rates(lambda step: v1.train.cosine_decay_restarts(0.1, step, 24)),
        _rates(SCHEDULES.CosineDecayRestarts(0.1, 24)),
    ),
    "rate-natural-exp": (
        _rates(lambda step: v1.train.natural_exp_decay(0.1, step, 10, 0.5)),
        _rates(SCHEDULES.ExponentialDecay(0.1, 10, float(np.exp(-0.5)))),
    ),
}


# Optimizers: three steps with these gradients -------------------------------------------------------------------

START = np.array([0.5, -0.3, 0.8, 0.1], "float32")
GRADIENTS = RANDOM.normal(size=[3, 4]).astype("float32")


def _steps_of_v1(make: Callable[[], Any], change: Callable[[Any], Any] = lambda pairs: pairs) -> Callable[[], Any]:
    def build():
        variable = v1.get_variable("w", initializer=START)
        optimizer, done = make(), tf.no_op()
        values = []
        for gradient in GRADIENTS:
            with tf.control_dependencies([done]):
                done = optimizer.apply_gradients(change([(tf.constant(gradient), variable)]))
            with tf.control_dependencies([done]):
                values.append(tf.identity(variable.read_value()))
            # The next step waits until this one's value is read.
            done = values[-1]
        return values

    return build


def _steps_of_keras(make: Callable[[], Any]) -> Callable[[], Any]:
    def run():
        variable, optimizer, values = tf.Variable(START), make(), []
        for gradient in GRADIENTS:
            optimizer.apply_gradients([(tf.constant(gradient), variable)])
            values.append(variable.numpy())
        return values

    return run


def _clipped(pairs: Any) -> Any:
    gradients, variables = zip(*pairs, strict=True)
    return zip(tf.clip_by_global_norm(gradients, 0.5)[0], variables, strict=True)


O1, OK = v1.train, keras.optimizers
EQUAL |= {
    "optimizer-sgd": (_steps_of_v1(lambda: O1.GradientDescentOptimizer(0.1)), _steps_of_keras(lambda: OK.SGD(0.1))),
    "optimizer-momentum": (
        _steps_of_v1(lambda: O1.MomentumOptimizer(0.1, 0.9)),
        _steps_of_keras(lambda: OK.SGD(0.1, momentum=0.9)),
    ),
    "optimizer-nesterov": (
        _steps_of_v1(lambda: O1.MomentumOptimizer(0.1, 0.9, use_nesterov=True)),
        _steps_of_keras(lambda: OK.SGD(0.1, momentum=0.9, nesterov=True)),
    ),
    "optimizer-adam": (
        _steps_of_v1(lambda: O1.AdamOptimizer(0.1)),
        _steps_of_keras(lambda: OK.Adam(0.1, epsilon=1e-8)),
    ),
    "optimizer-adagrad": (_steps_of_v1(lambda: O1.AdagradOptimizer(0.1)), _steps_of_keras(lambda: OK.Adagrad(0.1))),
    "optimizer-ftrl": (
        _steps_of_v1(lambda: O1.FtrlOptimizer(0.1, l1_regularization_strength=0.01)),
        _steps_of_keras(lambda: OK.Ftrl(0.1, l1_regularization_strength=0.01)),
    ),
    "optimizer-clip-global-norm": (
        _steps_of_v1(lambda: O1.MomentumOptimizer(0.1, 0.9), _clipped),
        _steps_of_keras(lambda: OK.SGD(0.1, momentum=0.9, global_clipnorm=0.5)),
    ),
    "optimizer-clip-value": (
        _steps_of_v1(
            lambda: O1.GradientDescentOptimizer(0.1),
            lambda pairs: [(tf.clip_by_value(g, -0.3, 0.3), v) for g, v in pairs],
        ),
        _steps_of_keras(lambda: OK.SGD(0.1, clipvalue=0.3)),
    ),
    "optimizer-clip-norm": (
        _steps_of_v1(
            lambda: O1.GradientDescentOptimizer(0.1), lambda pairs: [(tf.clip_by_norm(g, 0.5), v) for g, v in pairs]
        ),
        _steps_of_keras(lambda: OK.SGD(0.1, clipnorm=0.5)),
    ),
}
DIFFERS |= {
    "optimizer-rmsprop": (_steps_of_v1(lambda: O1.RMSPropOptimizer(0.1)), _steps_of_keras(lambda: OK.RMSprop(0.1))),
    "optimizer-momentum-rate-steps": (
        _steps_of_v1(lambda: _stepping_momentum()),
        _steps_of_keras(lambda: OK.SGD(SCHEDULES.PiecewiseConstantDecay([0], [0.1, 0.001]), momentum=0.9)),
    ),
}


def _stepping_momentum() -> Any:
    """V1 momentum whose rate is 0.1 in the first step and 0.001 after it."""

    class Stepping:
        calls = 0

        def __init__(self) -> None:
            self.rate = v1.get_variable("rate", initializer=0.1)
            self.inner = O1.MomentumOptimizer(self.rate, 0.9)

        def apply_gradients(self, pairs: Any) -> Any:
            with tf.control_dependencies([self.inner.apply_gradients(pairs)]):
                return self.rate.assign(0.001)

    return Stepping()


# Recurrent layers: the last state of each sequence ----------------------------------------------------------------

LENGTHS = np.array([9, 4, 6])
UNITS = 3


def _last_state(cell: Callable[[], Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """The last output of each sequence by dynamic_rnn, and the cell's variables by the end of their names."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(3)
        outputs, _ = v1.nn.dynamic_rnn(cell(), SEQUENCES, sequence_length=LENGTHS, dtype=tf.float32)
        last = tf.gather_nd(outputs, np.stack([np.arange(3), LENGTHS - 1], axis=1))
        session.run(v1.global_variables_initializer())
        variables = {v.op.name.partition("_cell/")[2]: v for v in v1.global_variables()}
        return session.run([last, variables])


def _by_keras(layer: Any, *weights: Any) -> np.ndarray:
    """The same by a Keras layer with these weights; what is past a sequence's end is masked."""
    layer.build(SEQUENCES.shape)
    layer.set_weights([np.asarray(weight) for weight in weights])
    return layer(SEQUENCES, mask=tf.sequence_mask(LENGTHS, 9)).numpy()


def _lstm() -> tuple[Any, Any]:
    expected, weights = _last_state(lambda: v1.nn.rnn_cell.LSTMCell(UNITS, forget_bias=1.0))

    def reordered(values):
        i, j, f, o = np.split(values, 4, axis=-1)
        return np.concatenate([i, f, j, o], axis=-1)

    inputs, recurrent = np.split(reordered(weights["kernel"]), [SEQUENCES.shape[2]])
    # The cell adds forget_bias with each step; Keras has it in the bias from the start.
    bias = reordered(weights["bias"]) + np.repeat([0.0, 1.0, 0.0, 0.0], UNITS)
    return expected, _by_keras(keras.layers.LSTM(UNITS), inputs, recurrent, bias)


def _gru() -> tuple[Any, Any]:
    expected, weights = _last_state(lambda: v1.nn.rnn_cell.GRUCell(UNITS))

    def joined(name):
        reset, update = np.split(weights[f"gates/{name}"], 2, axis=-1)
        return np.concatenate([update, reset, weights[f"candidate/{name}"]], axis=-1)

    inputs, recurrent = np.split(joined("kernel"), [SEQUENCES.shape[2]])
    return expected, _by_keras(keras.layers.GRU(UNITS, reset_after=False), inputs, recurrent, joined("bias"))


RECURRENT = {"rnn-lstm": _lstm, "rnn-gru": _gru}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent(name):
    expected, found = RECURRENT[name]()
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(expected, found, rtol=1e-4, atol=1e-6)


# Metrics: two batches, the rows 0 to 4 and 4 to 6 -----------------------------------------------------------------

PARTS = (slice(0, 4), slice(4, 6))


def _metric_of_v1(make: Callable[[Any], Any]) -> Callable[[], Any]:
    def run():
        at = v1.get_variable("at", initializer=0, collections=[v1.GraphKeys.LOCAL_VARIABLES])
        session = v1.get_default_session()
        rows = tf.where(tf.equal(at, 0), tf.range(4), tf.range(4) % 2 + 4)[: tf.where(tf.equal(at, 0), 4, 2)]
        value, update = make(rows)
        session.run(v1.local_variables_initializer())
        session.run(update)
        session.run(at.assign(1))
        session.run(update)
        return session.run(value)

    def in_session():
        with tf.Graph().as_default(), v1.Session():
            return run()

    return in_session


def _metric_of_keras(metric: Callable[[], Any], *of: Any) -> Callable[[], Any]:
    def run():
        made = metric()
        for part in PARTS:
            made.update_state(*(each[part] for each in of))
        return made.result().numpy()

    return run


CHOSEN = LOGITS.argmax(1)
POSITIVE = (SCORES > 0).astype("float32")
SIGMOID = 1 / (1 + np.exp(-SCORES))
METRICS = {
    "metric-accuracy": (
        lambda r: v1.metrics.accuracy(tf.gather(CLASSES, r), tf.gather(CHOSEN, r)),
        (keras.metrics.SparseCategoricalAccuracy, CLASSES, LOGITS),
    ),
    "metric-mean": (lambda r: v1.metrics.mean(tf.gather(SCORES, r)), (keras.metrics.Mean, SCORES)),
    "metric-precision": (
        lambda r: v1.metrics.precision(tf.gather(BINARY, r), tf.gather(POSITIVE, r)),
        (keras.metrics.Precision, BINARY, SIGMOID),
    ),
    "metric-recall": (
        lambda r: v1.metrics.recall(tf.gather(BINARY, r), tf.gather(POSITIVE, r)),
        (keras.metrics.Recall, BINARY, SIGMOID),
    ),
    "metric-rmse": (
        lambda r: v1.metrics.root_mean_squared_error(tf.gather(BINARY, r), tf.gather(SCORES, r)),
        (keras.metrics.RootMeanSquaredError, BINARY, SCORES),
    ),
    "metric-mae": (
        lambda r: v1.metrics.mean_absolute_error(tf.gather(BINARY, r), tf.gather(SCORES, r)),
        (keras.metrics.MeanAbsoluteError, BINARY, SCORES),
    ),
    "metric-auc": (
        lambda r: v1.metrics.auc(tf.gather(BINARY, r), tf.gather(SIGMOID, r)),
        (keras.metrics.AUC, BINARY, SIGMOID),
    ),
    "metric-top-k": (
        lambda r: v1.metrics.mean(tf.cast(tf.nn.in_top_k(tf.gather(CLASSES, r), tf.gather(LOGITS, r), 2), tf.float32)),
        (lambda: keras.metrics.SparseTopKCategoricalAccuracy(2), CLASSES, LOGITS),
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics(name):
    first, second = METRICS[name]
    np.testing.assert_allclose(_metric_of_v1(first)(), _metric_of_keras(*second)(), rtol=1e-5)


# Feature columns: what the network sees ---------------------------------------------------------------------------

WORDS = np.array([["a"], ["c"], ["b"], ["unknown"]])
NUMBERS = np.array([[0.5], [2.0], [-3.0], [7.0]], "float32")
VOCABULARY = ["a", "b", "c"]
EMPTY = np.array([[""], ["a"]])


def _seen(*columns: Any, **features: Any) -> Callable[[], Any]:
    def build():
        given = {name: tf.constant(value) for name, value in features.items()}
        return v1.feature_column.input_layer(given, list(columns))

    return build


def _lookup(**options: Any) -> Any:
    return keras.layers.StringLookup(vocabulary=VOCABULARY, output_mode="one_hot", **options)


_words = fc.categorical_column_with_vocabulary_list("x", VOCABULARY)
_hashed = fc.categorical_column_with_hash_bucket("x", 10)
_buckets = fc.bucketized_column(fc.numeric_column("x"), [0.0, 2.0, 5.0])
EQUAL |= {
    "column-numeric": (
        _seen(fc.numeric_column("x", normalizer_fn=lambda x: (x - 2.0) / 4.0), x=NUMBERS),
        lambda: keras.layers.Normalization(axis=None, mean=2.0, variance=16.0)(NUMBERS),
    ),
    "column-bucketized": (
        _seen(_buckets, x=NUMBERS),
        lambda: keras.layers.Discretization([0.0, 2.0, 5.0], output_mode="one_hot")(NUMBERS),
    ),
    "column-vocabulary": (_seen(fc.indicator_column(_words), x=WORDS), lambda: _lookup()(WORDS)[:, 1:]),
    "column-vocabulary-oov": (
        _seen(
            fc.indicator_column(fc.categorical_column_with_vocabulary_list("x", VOCABULARY, num_oov_buckets=1)), x=WORDS
        ),
        lambda: tf.roll(_lookup()(WORDS), -1, axis=1),
    ),
    "column-identity": (
        _seen(fc.indicator_column(fc.categorical_column_with_identity("x", 4)), x=np.array([[3], [0]])),
        lambda: keras.layers.CategoryEncoding(4, output_mode="one_hot")(np.array([[3], [0]])),
    ),
    "column-hash": (
        _seen(fc.indicator_column(_hashed), x=WORDS),
        lambda: tf.one_hot(keras.layers.Hashing(10)(WORDS)[:, 0], 10),
    ),
    "column-crossed": (
        _seen(fc.indicator_column(fc.crossed_column(["x", "y"], 20)), x=WORDS, y=WORDS[::-1]),
        lambda: tf.one_hot(keras.layers.HashedCrossing(20)((WORDS, WORDS[::-1]))[:, 0], 20),
    ),
    "column-crossed-buckets": (
        _seen(fc.indicator_column(fc.crossed_column([_buckets, "y"], 20)), x=NUMBERS, y=WORDS),
        lambda: tf.one_hot(
            keras.layers.HashedCrossing(20)((keras.layers.Discretization([0.0, 2.0, 5.0])(NUMBERS), WORDS))[:, 0], 20
        ),
    ),
    "column-order": (
        _seen(
            fc.numeric_column("b"), fc.indicator_column(_words), fc.numeric_column("a"), x=WORDS, a=NUMBERS, b=-NUMBERS
        ),
        lambda: tf.concat([NUMBERS, -NUMBERS, _lookup()(WORDS)[:, 1:]], axis=1),
    ),
    "column-several-values": (
        _seen(fc.indicator_column(_words), x=np.array([["a", "a"], ["b", "c"]])),
        lambda: keras.layers.StringLookup(vocabulary=VOCABULARY, output_mode="count")(
            np.array([["a", "a"], ["b", "c"]])
        )[:, 1:],
    ),
    "column-missing-word": (
        _seen(fc.indicator_column(_hashed), x=EMPTY),
        lambda: tf.one_hot(keras.layers.Hashing(10)(EMPTY)[:, 0], 10) * tf.cast(tf.not_equal(EMPTY, ""), tf.float32),
    ),
}
DIFFERS |= {
    "column-hash-missing-word": (
        _seen(fc.indicator_column(_hashed), x=EMPTY),
        lambda: tf.one_hot(keras.layers.Hashing(10)(EMPTY)[:, 0], 10),
    ),
    "column-hash-mask-value": (
        _seen(fc.indicator_column(_hashed), x=WORDS),
        lambda: tf.one_hot(keras.layers.Hashing(10, mask_value="")(WORDS)[:, 0], 10),
    ),
    "column-vocabulary-unknown-first": (
        _seen(
            fc.indicator_column(fc.categorical_column_with_vocabulary_list("x", VOCABULARY, num_oov_buckets=1)), x=WORDS
        ),
        lambda: _lookup()(WORDS),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal(name):
    first, second = EQUAL[name]
    one, other = in_graph(first), second()
    np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", DIFFERS)
def test_differs(name):
    first, second = DIFFERS[name]
    one, other = np.asarray(in_graph(first), float), np.asarray(second(), float)
    assert one.shape == other.shape
    assert not np.allclose(one, other, rtol=1e-3, atol=1e-6)


def test_every_case_is_a_row_of_the_document():
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = set(re.findall(r"\| `([a-z0-9-]+)` \|$", text, re.MULTILINE))
    cases = {
        *LAYERS,
        *RECURRENT,
        "layer-batch-norm-updates",
        *INITIALIZERS,
        *OTHER_DEFAULTS,
        *EQUAL,
        *DIFFERS,
        *METRICS,
    }
    assert rows == cases
