"""tensorflow-privacy's Estimators on digits: the same model with little and with much noise. One line of JSON for each.

    python privacy_digits.py WORK_DIR
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf
import tensorflow_privacy
from sklearn.datasets import load_digits
from tensorflow_privacy import v1

TRAINING, BATCH = 1437, 64
PIXELS, LABELS = load_digits(return_X_y=True)
PIXELS, LABELS = (PIXELS / 16).astype(np.float32), LABELS.astype(np.int32)
COLUMNS = [tf.feature_column.numeric_column("pixels", shape=(64,))]


def train():
    data = tf.data.Dataset.from_tensor_slices(({"pixels": PIXELS[:TRAINING]}, LABELS[:TRAINING]))
    return data.shuffle(TRAINING, seed=1).repeat().batch(BATCH, drop_remainder=True)


def test():
    return tf.data.Dataset.from_tensor_slices(({"pixels": PIXELS[TRAINING:]}, LABELS[TRAINING:])).batch(90)


def estimator(what, noise, work_dir):
    options = {"l2_norm_clip": 1.0, "noise_multiplier": noise, "num_microbatches": BATCH}
    config = tf.estimator.RunConfig(os.path.join(work_dir, f"{what}-{noise}"), tf_random_seed=1)
    if what == "keras":
        kind = tensorflow_privacy.DNNClassifier
        optimizer = tensorflow_privacy.DPKerasAdamOptimizer(learning_rate=0.01, **options)
    else:
        kind = v1.DNNClassifierV1
        # The Estimator makes its optimizer in each graph anew.
        optimizer = lambda: v1.DPAdamGaussianOptimizer(learning_rate=0.01, **options)  # noqa: E731
    return kind(hidden_units=[32], feature_columns=COLUMNS, n_classes=10, optimizer=optimizer, config=config)


def main(work_dir):
    for what in ("keras", "v1"):
        for noise in (0.5, 20.0):
            model = estimator(what, noise, work_dir)
            model.train(train, steps=150)
            found = model.evaluate(test)
            said = {"what": what, "noise": noise, "step": int(found["global_step"])}
            print(json.dumps({**said, "accuracy": float(found["accuracy"])}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
