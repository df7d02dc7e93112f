"""Trains canned estimators with feature columns, from threads that are the first to touch them."""

import sys
import tempfile
import threading

import numpy as np
import tensorflow as tf

results = {}


def input_fn():
    features = {"x": np.linspace(-1, 1, 64).astype(np.float32), "kind": np.array(["a", "b"] * 32)}
    labels = (features["x"] > 0).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(32)


def columns():
    kind = tf.feature_column.categorical_column_with_vocabulary_list("kind", ["a", "b"])
    return [tf.feature_column.numeric_column("x"), tf.feature_column.embedding_column(kind, 2)]


def train(name, make):
    try:
        estimator = make(tempfile.mkdtemp(dir=sys.argv[1]))
        estimator.train(input_fn, steps=20)
        results[name] = estimator.evaluate(input_fn, steps=2)
    except BaseException as error:
        results[name] = error


def v1(model_dir):
    return tf.compat.v1.estimator.DNNClassifier([8], columns(), model_dir=model_dir)


def v2(model_dir):
    return tf.estimator.DNNClassifier([8], columns(), model_dir=model_dir)


threads = [threading.Thread(target=train, args=pair) for pair in [("v1", v1), ("v2", v2)]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

for name, result in sorted(results.items()):
    if isinstance(result, BaseException):
        raise result
    print(name, result["global_step"], sorted(result))
