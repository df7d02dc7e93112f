"""Trains a dozen representative programs from fixed seeds and prints the loss of each step as JSON.

python seeded_losses.py > FILE
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from estimator_pipeline import compat

tf = compat.install()
v1 = tf.compat.v1
STEPS = 20
BATCH = 16
RNG = np.random.default_rng(12)
X = RNG.normal(size=(64, 4)).astype(np.float32)
CLASSES = (np.abs(X[:, 0]) + X[:, 1] > 0.5).astype(np.int64) + (X[:, 2] > 1)
TARGET = (np.sin(X[:, 0]) + X[:, 1] * X[:, 2]).astype(np.float32)
WORDS = np.array(["low", "middle", "high"])[CLASSES]
TOKENS = RNG.integers(0, 5, (64, 6))
NUMERIC = tf.feature_column.numeric_column("x", shape=[4])
WORD = tf.feature_column.categorical_column_with_vocabulary_list("word", ["low", "middle", "high"])


class Losses(v1.train.SessionRunHook):
    """Keeps the loss of every step: the Estimator puts it into the graph's collection of losses."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def begin(self) -> None:
        self.loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self.loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.found.append(float(run_values.results))


def feed(features: dict[str, np.ndarray], labels: Any = None, *, batch: int = BATCH) -> Callable[[], Any]:
    """Batches in order, for ever."""
    records = features if labels is None else (features, labels)
    return lambda: tf.data.Dataset.from_tensor_slices(records).repeat().batch(batch)


def run_config(folder: str) -> Any:
    """One thread for each operation: sums are made in one order."""
    session = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    return tf.estimator.RunConfig(
        folder, tf_random_seed=5, session_config=session, save_summary_steps=10**9, log_step_count_steps=None
    )


def dnn(config: Any, optimizer: Any, *, api: Any = tf.estimator) -> Any:
    embedding = tf.feature_column.embedding_column(WORD, 2)
    return api.DNNClassifier([8, 4], [NUMERIC, embedding], n_classes=3, optimizer=optimizer, config=config)


def layers(config: Any, optimizer: str, norm: str) -> Any:
    """A model_fn: `norm` layers of Keras or of the V1 layers' kind, with a V1 or a Keras optimizer."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        if norm == "Keras":
            normalize = tf.keras.layers.BatchNormalization()
            hidden = normalize(tf.keras.layers.Dense(8)(features["x"]), training=True)
            logits = tf.keras.layers.Dense(3)(tf.nn.relu(hidden))
            updates = normalize.updates
        else:
            hidden = v1.layers.batch_normalization(v1.layers.dense(features["x"], 8), training=True)
            logits = v1.layers.dense(tf.nn.relu(hidden), 3)
            updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        step = v1.train.get_or_create_global_step()
        if optimizer == "V1":
            train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step)
        else:
            keras = tf.keras.optimizers.legacy.Adam(0.02)
            keras.iterations = step
            (train,) = keras.get_updates(loss, v1.trainable_variables())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.group(train, *updates))

    return tf.estimator.Estimator(model_fn, config=config)


def recurrent(config: Any) -> Any:
    tokens = tf.feature_column.sequence_categorical_column_with_identity("tokens", 5)
    return tf.estimator.experimental.RNNClassifier(
        [tf.feature_column.embedding_column(tokens, 3)], units=[4], cell_type="gru", optimizer="Adam", config=config
    )


def keras_model(config: Any) -> Any:
    model = tf.keras.Sequential(
        [tf.keras.Input([4], name="x"), tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)]
    )
    model.compile(tf.keras.optimizers.legacy.Adam(0.02), "mse")
    return tf.keras.estimator.model_to_estimator(model, config=config)


def kmeans(config: Any) -> Any:
    return v1.estimator.experimental.KMeans(3, initial_clusters=X[:3], use_mini_batch=False, config=config)


def linear(config: Any) -> Any:
    return tf.estimator.LinearRegressor([NUMERIC, WORD], config=config)


def combined(config: Any) -> Any:
    return tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=[WORD],
        dnn_feature_columns=[NUMERIC],
        dnn_hidden_units=[8],
        n_classes=3,
        config=config,
    )


FEATURES = {"x": X, "word": WORDS}
PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    **{
        f"DNNClassifier {name}": (lambda config, name=name: dnn(config, name), feed(FEATURES, CLASSES))
        for name in ("Adam", "Adagrad", "Ftrl", "RMSProp")
    },
    "V1 DNNClassifier Adam": (lambda config: dnn(config, "Adam", api=v1.estimator), feed(FEATURES, CLASSES)),
    "LinearRegressor": (linear, feed(FEATURES, TARGET)),
    "DNNLinearCombinedClassifier": (combined, feed(FEATURES, CLASSES)),
    "model_fn, V1 layers, V1 optimizer": (lambda config: layers(config, "V1", "V1"), feed({"x": X}, CLASSES)),
    "model_fn, Keras layers, V1 optimizer": (lambda config: layers(config, "V1", "Keras"), feed({"x": X}, CLASSES)),
    "model_fn, Keras layers, Keras optimizer": (
        lambda config: layers(config, "Keras", "Keras"),
        feed({"x": X}, CLASSES),
    ),
    "RNNClassifier": (recurrent, feed({"tokens": TOKENS}, (TOKENS == 2).any(1).astype(np.int64))),
    "model_to_estimator": (keras_model, feed({"x": X}, TARGET)),
    "KMeans": (kmeans, feed({"x": X}, batch=64)),
}


def losses(name: str) -> list[float]:
    """The loss of each of the program's steps."""
    make, input_fn = PROGRAMS[name]
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(5)
    hook = Losses()
    with tempfile.TemporaryDirectory() as folder:
        make(run_config(folder)).train(input_fn, steps=STEPS, hooks=[hook])
    return hook.found


if __name__ == "__main__":
    json.dump({name: losses(name) for name in PROGRAMS}, sys.stdout, indent=1)
    print()
