"""neural-structured-learning around an Estimator: adversarial and graph regularization. One line of JSON for each.

    python nsl_digits.py WORK_DIR

The first line has the serialized record that the predictions of the other lines are about.
"""

import base64
import json
import os
import sys

import neural_structured_learning as nsl
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

STEPS, TRAINING = 300, 1437
PIXELS, LABELS = load_digits(return_X_y=True)
PIXELS, LABELS = (PIXELS / 16).astype(np.float32), LABELS.astype(np.int32)
SPEC = {"pixels": tf.io.FixedLenFeature([64], tf.float32)}


def read(part, training, more=None):
    def input_fn():
        features = {"pixels": PIXELS[part], **(more or {})}
        data = tf.data.Dataset.from_tensor_slices((features, LABELS[part]))
        return data.shuffle(TRAINING, seed=1).repeat().batch(64) if training else data.batch(64)

    return input_fn


def hidden(features):
    return tf.compat.v1.layers.dense(features["pixels"], 64, tf.nn.relu, name="hidden")


def model_fn(features, labels, mode):
    logits = tf.compat.v1.layers.dense(hidden(features), 10, name="logits")
    predictions = {"class": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        return tf.estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = optimizer().minimize(loss, tf.compat.v1.train.get_global_step())
    metrics = {"accuracy": tf.compat.v1.metrics.accuracy(labels, predictions["class"])}
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, metrics)


def base(work_dir, name):
    # The package calls the model_fn twice and shares the weights by variable scope.
    config = tf.estimator.RunConfig(tf_random_seed=5)
    return tf.estimator.Estimator(model_fn, os.path.join(work_dir, name), config)


def optimizer():
    return tf.compat.v1.train.AdamOptimizer(0.003)


def worst_case(estimator, step):
    """Accuracy on images that were moved by `step` along the sign of a plain linear model's gradient."""
    test = slice(TRAINING, None)
    centres = np.stack([PIXELS[:TRAINING][LABELS[:TRAINING] == digit].mean(0) for digit in range(10)])
    others = centres.mean(0)
    moved = np.clip(PIXELS[test] + step * np.sign(others - centres[LABELS[test]]), 0, 1).astype(np.float32)
    data = tf.compat.v1.estimator.inputs.numpy_input_fn({"pixels": moved}, LABELS[test], shuffle=False)
    return float(estimator.evaluate(data, name="moved")["accuracy"])


def neighbours():
    """For each training image the nearest other one, in the package's names: its pixels, and how alike they are."""
    images = PIXELS[:TRAINING]
    squares = (images**2).sum(1)
    distances = squares[:, None] + squares[None] - 2 * images @ images.T
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argmin(1)
    return {"NL_nbr_0_pixels": images[nearest], "NL_nbr_0_weight": np.ones([TRAINING, 1], np.float32)}


def run(work_dir, name, estimator, input_fn):
    estimator.train(input_fn, max_steps=STEPS)
    metrics = estimator.evaluate(read(slice(TRAINING, None), False))
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(SPEC)
    exported = estimator.export_saved_model(os.path.join(work_dir, name, "export"), receiver).decode()
    first = next(iter(estimator.predict(read(slice(TRAINING, None), False))))
    said = {"what": name, "accuracy": float(metrics["accuracy"]), "step": int(metrics["global_step"])}
    said.update(moved=worst_case(estimator, 0.15), exported=exported, predicted=first["probabilities"].tolist())
    said["weights"] = sorted(each for each in estimator.get_variable_names() if each.endswith(("kernel", "bias")))
    print(json.dumps(said), flush=True)


def main(work_dir):
    train = slice(0, TRAINING)
    pixels = tf.train.Feature(float_list=tf.train.FloatList(value=PIXELS[TRAINING]))
    record = tf.train.Example(features=tf.train.Features(feature={"pixels": pixels})).SerializeToString()
    print(json.dumps({"records": [base64.b64encode(record).decode()]}), flush=True)
    run(work_dir, "plain", base(work_dir, "plain"), read(train, True))
    adversarial = nsl.estimator.add_adversarial_regularization(
        base(work_dir, "adversarial"),
        optimizer_fn=optimizer,
        adv_config=nsl.configs.make_adv_reg_config(multiplier=0.5, adv_step_size=0.15, adv_grad_norm="infinity"),
    )
    run(work_dir, "adversarial", adversarial, read(train, True))
    graph = nsl.estimator.add_graph_regularization(
        base(work_dir, "graph"),
        embedding_fn=lambda features, mode: hidden(features),
        optimizer_fn=optimizer,
        graph_reg_config=nsl.configs.make_graph_reg_config(max_neighbors=1, multiplier=0.5),
    )
    run(work_dir, "graph", graph, read(train, True, neighbours()))


if __name__ == "__main__":
    main(sys.argv[1])
