"""A program of 2016: a canned Estimator of tf.contrib.learn over feature columns of tf.contrib.layers.

    learn_columns.py MODEL_DIR
"""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow.contrib import layers, learn

JOBS = ["cook", "clerk", "pilot"]


def input_fn(seed, count):
    random = np.random.RandomState(seed)
    hours, job = random.uniform(0, 60, count), random.choice(JOBS, count)
    rich = (hours + 25 * (job == "pilot") - 10 * (job == "cook") > 40).astype("int64")
    indices = [[row, 0] for row in range(count)]
    features = {
        "hours": tf.constant(hours.reshape(-1, 1) / 60, tf.float32),
        "job": tf.SparseTensor(indices=indices, values=list(job), dense_shape=[count, 1]),
    }
    return features, tf.constant(rich.reshape(-1, 1))


hours = layers.real_valued_column("hours")
job = layers.sparse_column_with_keys("job", keys=JOBS)
estimator = learn.DNNLinearCombinedClassifier(
    model_dir=sys.argv[1],
    linear_feature_columns=[job, layers.bucketized_column(hours, [0.3, 0.6])],
    dnn_feature_columns=[hours, layers.embedding_column(job, dimension=3), layers.one_hot_column(job)],
    dnn_hidden_units=[16, 8],
    config=learn.RunConfig(tf_random_seed=1),
)
estimator.fit(input_fn=lambda: input_fn(1, 500), steps=200)
found = estimator.evaluate(
    input_fn=lambda: input_fn(2, 300),
    steps=1,
    metrics={"precision": learn.MetricSpec(tf.contrib.metrics.streaming_precision, prediction_key="classes")},
)
classes = list(estimator.predict_classes(input_fn=lambda: input_fn(3, 10)))
print(
    json.dumps(
        {
            "accuracy": float(found["accuracy"]),
            "precision": float(found["precision"]),
            "step": int(found["global_step"]),
            "classes": len(classes),
        }
    )
)
