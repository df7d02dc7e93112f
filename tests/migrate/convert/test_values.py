"""Names that a model_fn assigns again, changes or hides: each part of the model computes with the same values."""

from __future__ import annotations

import pytest

from tests.migrate.convert.programs import program

DENSE = 'logits = tf.layers.dense(features["x"], 3)'
LOSS = "loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)"
MINIMIZE = "train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())"
CONVERTS = [
    # Parts of the program -> texts of the conversion.
    ({"LOSS": f"logits = logits * 2.0\n{LOSS}"}, ["logits = logits * 2.0\n        loss = "]),
    ({"NETWORK": 'net = tf.layers.dense(features["x"], 4)\nlength = tf.nn.l2_normalize(net, 1)\n'
                 "net = tf.layers.dense(net, 2)\nlogits = tf.layers.dense(net, 3)",
      "LOSS": f"{LOSS}\nloss = loss + tf.reduce_mean(length)"},
     ["length = operation('nn.l2_normalize', net, 1)", "{'length': length, 'logits': logits}"]),
    ({"NETWORK": f'features["x"] = features["x"] * 2.0\n{DENSE}'},
     ["def make_model(inputs, params):", "    features = dict(inputs)\n", "Model(tf.nest.flatten(inputs), logits)"]),
    ({"NETWORK": f'weights = features.pop("x")\n{DENSE.replace("features[", "dict(x=weights)[")}'},
     ["    features = dict(inputs)\n    weights = features.pop("]),
    ({"NETWORK": 'noise = tf.random_normal(tf.shape(features["x"]))\nlogits = tf.layers.dense(noise, 3)',
      "LOSS": f"{LOSS}\nloss = loss + tf.reduce_mean(noise)"}, ["{'noise': noise, 'logits': logits}"]),
    ({"NETWORK": 'model = 2.0\nlogits = tf.layers.dense(features["x"] * model, 3)'},
     ["    keras_model = tf.keras.Model([features[\"x\"]], logits)"]),
    ({"NETWORK": 'logits = tf.layers.dense(features["x"], 3, None, True, None, None, REG)'},
     ["class ProgramModel(tf.keras.Model):"]),
    ({"METRICS": '{"mean": old}', "LOSS": f"old = tf.metrics.mean(logits)\nlogits = logits * 2.0\n{LOSS}"},
     ["logits = y_pred\n        self.mean_metric.update_state(logits)\n"]),
    ({"TRAIN_OP": f"rate = 0.5\n{MINIMIZE.replace('0.1', 'rate')}\nrate = 0.1"},
     ["    rate = 0.5\n    model.compile("]),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "texts"), CONVERTS)
def test_the_same_values(convert_text, parts, texts):
    text = program(**parts).replace("\n\ndef model_fn", "REG = tf.keras.regularizers.l2(0.1)\n\n\ndef model_fn", 1)
    file = convert_text(text)
    assert file.keras, file.kept_as_estimator
    assert not [part for part in texts if part not in file.after], file.after


BATCH_NORM = f"{DENSE}\nlogits = tf.layers.batch_normalization(logits, training=mode == tf.estimator.ModeKeys.TRAIN)"
UPDATES = "updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)\n"
STAYS = [
    ({"LOSS": f"step = tf.train.get_global_step()\n{LOSS}\nloss = loss * tf.minimum(1.0, tf.cast(step, tf.float32))",
      "TRAIN_OP": "train_op = tf.train.AdamOptimizer(0.1).minimize(loss, step)"}, "step, of the train_op, in the loss"),
    ({"TRAIN_OP": f"{MINIMIZE}\nloss = loss * 2.0"}, "computed otherwise"),
    ({"NETWORK": 'net = tf.layers.dense(features["x"], 4)\nkeep = None if labels is None else net * labels\n'
                 "net = tf.layers.dense(net, 2)\nlogits = tf.layers.dense(net, 3)",
      "LOSS": f"{LOSS}\nloss = loss + tf.reduce_mean(keep)"}, "net, which is assigned again between its uses"),
    ({"NETWORK": f'params["rate"] *= 0.5\n{DENSE}'}, "a model_fn that changes its params"),
    ({"NETWORK": f"units = params.pop('units')\n{DENSE}"}, "a model_fn that changes its params"),
    ({"NETWORK": f"_ = SIZES.append(8)\n{DENSE}"}, "_, which nothing uses"),
    ({"NETWORK": f"{DENSE}\nlogits = logits + tf.random_normal([3])"}, "drawn once"),
    ({"NETWORK": f"double = lambda x: tf.square(x)\n{DENSE}\nlogits = double(logits)"},
     "a lambda that calls TensorFlow"),
    ({"LOSS": f"{LOSS}\nloss = loss * x"}, "x, a name that a method of Keras has for something else"),
    ({"LOSS": f"{LOSS}\nloss += tf.losses.get_regularization_loss('a')"}, "scope of tf.losses.get_regularization_loss"),
    ({"NETWORK": f"{DENSE}\nunused = tf.layers.dense(logits, 2)",
      "LOSS": f"{LOSS}\nloss += tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])"},
     "a layer that leads to no output"),
    ({"NETWORK": f"{DENSE}\nlogits = tf.layers.batch_normalization(logits, trainable=False)",
      "TRAIN_OP": f"{UPDATES}with tf.control_dependencies(updates):\n    {MINIMIZE}"}, "trainable of"),
    ({"NETWORK": f"{UPDATES}{BATCH_NORM}",
      "TRAIN_OP": f"with tf.control_dependencies(updates):\n    {MINIMIZE}"}, "never move"),
    ({"NETWORK": BATCH_NORM, "TRAIN_OP": f"{UPDATES}with tf.control_dependencies(updates):\n"
      "    optimizer = tf.train.AdamOptimizer(0.1)\n"
      "train_op = optimizer.minimize(loss, tf.train.get_global_step())"}, "never move"),
    ({"NETWORK": f'with tf.variable_scope("a", None, None):\n    {DENSE}', "METRICS": "{}"}, ""),
    ({"NETWORK": f'with tf.variable_scope("a", None, None, None, None, None, None, None, True):\n    {DENSE}'},
     "a variable_scope with options"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "reason"), STAYS)
def test_values_that_would_be_others(convert_text, parts, reason):
    file = convert_text(program(**parts).replace("\n\ndef model_fn", "SIZES = []\nx = 2.0\n\n\ndef model_fn", 1))
    assert reason in file.kept_as_estimator and file.keras is not bool(reason), file.after


def test_a_model_fn_with_a_decorator_stays(convert_text):
    text = program().replace("def model_fn", "def log(f):\n    return f\n\n\n@log\ndef model_fn")
    assert "decorators" in convert_text(text).kept_as_estimator


def test_a_helper_keeps_its_decorators(convert_text):
    helper = "def log(f):\n    return f\n\n\n@log\ndef block(x):\n    return tf.layers.dense(x, 3)\n\n\ndef model_fn"
    text = program(NETWORK='logits = block(features["x"])').replace("def model_fn", helper)
    assert convert_text(text).after.count("@log") == 1
