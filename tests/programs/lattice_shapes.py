"""tensorflow-lattice's canned Estimators: monotonic models of two made-up problems. One line of JSON for each.

    python lattice_shapes.py WORK_DIR

The label rises with "up", falls with "down" and is bent by "bend": what a model of calibrators and a lattice can say.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf
import tensorflow_lattice as tfl

NAMES = ("up", "down", "bend")
TRAINING = 2000
RANDOM = np.random.RandomState(1)
FEATURES = {name: RANDOM.rand(3000).astype(np.float32) for name in NAMES}
TARGETS = 8 * FEATURES["up"] * (1 - FEATURES["down"]) + 4 * np.sin(3 * FEATURES["bend"])
LABELS = (TARGETS > np.median(TARGETS)).astype(np.int32)
COLUMNS = [tf.feature_column.numeric_column(name) for name in NAMES]


def read(targets, part, epochs=None):
    def input_fn():
        data = tf.data.Dataset.from_tensor_slices(({name: FEATURES[name][part] for name in NAMES}, targets[part]))
        return data.batch(500) if epochs else data.shuffle(TRAINING, seed=1).repeat().batch(100)

    return input_fn


def shapes():
    return [
        tfl.configs.FeatureConfig("up", monotonicity="increasing", pwl_calibration_num_keypoints=8),
        tfl.configs.FeatureConfig("down", monotonicity="decreasing", pwl_calibration_num_keypoints=8),
        tfl.configs.FeatureConfig("bend", pwl_calibration_num_keypoints=8),
    ]


def rises(estimator, key, name, sign):
    """Whether the prediction goes with `name` everywhere, the others being in the middle."""
    line = {other: np.full(50, 0.5, np.float32) for other in NAMES}
    line[name] = np.linspace(0, 1, 50, dtype=np.float32)
    found = estimator.predict(lambda: tf.data.Dataset.from_tensor_slices(line).batch(50))
    values = np.array([np.ravel(each[key])[0] for each in found])
    return bool(np.all(sign * np.diff(values) >= -1e-5))


def main(work_dir):
    models = {
        "lattice": tfl.configs.CalibratedLatticeConfig(shapes()),
        "linear": tfl.configs.CalibratedLinearConfig(shapes()),
        "crystals": tfl.configs.CalibratedLatticeEnsembleConfig(
            shapes(), lattices="crystals", num_lattices=2, lattice_rank=2
        ),
    }
    training, test = slice(0, TRAINING), slice(TRAINING, None)
    # A configuration of its own: the package writes what it found in the data into it.
    models["regression"] = tfl.configs.CalibratedLatticeConfig(shapes(), output_calibration=True)
    for what, model in models.items():
        targets = TARGETS if what == "regression" else LABELS
        kind = tfl.estimators.CannedRegressor if what == "regression" else tfl.estimators.CannedClassifier
        model_dir = os.path.join(work_dir, what)
        os.makedirs(model_dir)  # the package writes its keypoints there before there is a checkpoint
        estimator = kind(
            model_config=model,
            feature_columns=COLUMNS,
            feature_analysis_input_fn=read(targets, training, epochs=1),
            prefitting_input_fn=read(targets, training),
            prefitting_steps=50,
            optimizer=tf.keras.optimizers.legacy.Adam(0.05),
            config=tf.estimator.RunConfig(model_dir, tf_random_seed=1),
        )
        estimator.train(read(targets, training), steps=500)
        found = estimator.evaluate(read(targets, test, epochs=1))
        key = "predictions" if what == "regression" else "logits"
        said = {
            "what": what,
            "auc": float(found.get("auc", 0)),
            "squared_error": float(found["average_loss"]),
            "variance": float(np.var(TARGETS[test])),
            "monotonic": rises(estimator, key, "up", 1) and rises(estimator, key, "down", -1),
            "step": int(found["global_step"]),
        }
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
