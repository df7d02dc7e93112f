"""DeepFM of the deepctr package, as its examples show it: train, evaluate, export. Prints what came of it.

    python deepctr_deepfm.py MODEL_DIR EXPORT_DIR
"""

import sys

import numpy as np
import pandas as pd
import tensorflow as tf
from deepctr.estimator import DeepFMEstimator
from deepctr.estimator.inputs import input_fn_pandas

SPARSE, DENSE = ["site", "device"], ["age", "price"]
BUCKETS = 10


def clicks(count, seed):
    random = np.random.RandomState(seed)
    data = {name: random.randint(0, BUCKETS, count).astype(np.int64) for name in SPARSE}
    data.update({name: random.rand(count).astype(np.float32) for name in DENSE})
    liked = (data["site"] + data["device"]) % 2 == 0
    data["label"] = (liked & (data["age"] < 0.7)).astype(np.float32)
    return pd.DataFrame(data)


def main(model_dir, export_dir):
    linear, dnn = [], []
    for name in SPARSE:
        column = tf.feature_column.categorical_column_with_identity(name, BUCKETS)
        linear.append(column)
        dnn.append(tf.feature_column.embedding_column(column, 4))
    for name in DENSE:
        linear.append(tf.feature_column.numeric_column(name))
        dnn.append(tf.feature_column.numeric_column(name))

    model = DeepFMEstimator(
        linear,
        dnn,
        dnn_hidden_units=(32, 16),
        task="binary",
        model_dir=model_dir,
        config=tf.estimator.RunConfig(tf_random_seed=7, save_summary_steps=50),
        linear_optimizer=tf.compat.v1.train.FtrlOptimizer(0.05),
        dnn_optimizer=tf.compat.v1.train.AdagradOptimizer(0.1),
    )
    names = SPARSE + DENSE
    train = clicks(2048, seed=1)
    test = clicks(512, seed=2)
    model.train(input_fn_pandas(train, names, "label", num_epochs=100, shuffle=True), max_steps=200)
    metrics = model.evaluate(input_fn_pandas(test, names, "label"))
    print("evaluated", metrics["global_step"], metrics["AUC"])

    spec = {name: tf.io.FixedLenFeature([1], tf.int64) for name in SPARSE}
    spec.update({name: tf.io.FixedLenFeature([1], tf.float32) for name in DENSE})
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    print("exported", model.export_saved_model(export_dir, receiver).decode())

    first = next(iter(model.predict(input_fn_pandas(test, names, None))))
    print("predicted", float(first["pred"][0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
