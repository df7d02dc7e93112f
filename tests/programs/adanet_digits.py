"""adanet's AutoEnsembleEstimator over two canned Estimators, on digits. One line of JSON.

    python adanet_digits.py WORK_DIR

It builds each iteration's ensemble into a graph of its own and moves the weights from one to the next.
"""

import base64
import json
import os
import sys

import adanet
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

TRAINING = 1437
PIXELS, LABELS = load_digits(return_X_y=True)
PIXELS, LABELS = (PIXELS / 16).astype(np.float32), LABELS.astype(np.int32)
COLUMNS = [tf.feature_column.numeric_column("pixels", shape=(64,))]
SPEC = tf.feature_column.make_parse_example_spec(COLUMNS)


def read(part, training):
    def input_fn():
        data = tf.data.Dataset.from_tensor_slices(({"pixels": PIXELS[part]}, LABELS[part]))
        return data.shuffle(TRAINING, seed=1).repeat().batch(64) if training else data.batch(90)

    return input_fn


def main(work_dir):
    head = tf.estimator.MultiClassHead(10)
    pool = {
        "linear": tf.estimator.LinearEstimator(
            head, COLUMNS, optimizer=lambda: tf.keras.optimizers.legacy.Adam(0.01)
        ),
        "dnn": tf.estimator.DNNEstimator(
            head, [32], COLUMNS, optimizer=lambda: tf.keras.optimizers.legacy.Adam(0.01)
        ),
    }
    config = tf.estimator.RunConfig(os.path.join(work_dir, "adanet"), tf_random_seed=1)
    estimator = adanet.AutoEnsembleEstimator(head=head, candidate_pool=pool, max_iteration_steps=100, config=config)
    training, test = slice(0, TRAINING), slice(TRAINING, None)
    estimator.train(read(training, True), max_steps=200)
    found = estimator.evaluate(read(test, False))
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(SPEC)
    first = tf.train.Example()
    first.features.feature["pixels"].float_list.value.extend(PIXELS[TRAINING])
    predicted = next(iter(estimator.predict(read(test, False))))
    said = {
        "accuracy": float(found["accuracy"]),
        "step": int(found["global_step"]),
        "architecture": found["architecture/adanet/ensembles"].decode("utf-8", "replace"),
        "exported": estimator.export_saved_model(os.path.join(work_dir, "export"), receiver).decode(),
        "records": [base64.b64encode(first.SerializeToString()).decode()],
        "predicted": predicted["probabilities"].tolist(),
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
