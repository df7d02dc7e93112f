"""What each rule writes, and what stays an Estimator program, with the line."""

from __future__ import annotations

import re

import pytest

from estimator_pipeline.migrate.code import convert, scan
from tests.migrate.convert.programs import PARTS, program

NETWORKS = [
    ('logits = tf.layers.dense(features["x"], 3, tf.nn.relu, name="a")',
     "logits = tf.keras.layers.Dense(3, activation='relu', name=\"a\")(features[\"x\"])"),
    ('net = tf.reshape(features["x"], [-1, 2, 1])\nlogits = tf.layers.dense(tf.layers.flatten(net), 3)',
     'net = tf.keras.layers.Reshape((2, 1))(features["x"])'),
    ('net = tf.nn.relu(features["x"])\nlogits = tf.layers.dense(net, 3)',
     'net = tf.keras.layers.Activation("relu")(features["x"])'),
    ('act = tf.nn.leaky_relu\nlogits = tf.layers.dense(tf.nn.leaky_relu(features["x"], 0.1), 3, act)',
     "logits = tf.keras.layers.Dense(3, activation=act)(operation('nn.leaky_relu', features[\"x\"], 0.1))"),
    ('logits = tf.keras.layers.Dense(3, activation=tf.nn.leaky_relu)(features["x"])',
     "activation=leaky_relu)(features"),
    ('net = tf.layers.dense(features["x"], 4)\nlogits = tf.layers.dense(net[:, 1:] * 2.0, 3)',
     "tf.keras.layers.Dense(3)(operation('multiply', net[:, 1:], 2.0))"),
    ('net = tf.concat([features["x"], features["x"]], 1)\nlogits = tf.layers.dense(net, 3)',
     'net = tf.keras.layers.Concatenate(axis=1)([features["x"], features["x"]])'),
    ('net = tf.square(features["x"])\nlogits = tf.layers.dense(net, 3)',
     "net = operation('square', features[\"x\"])"),
    ('net = features["x"]\nfor units in (8, 4):\n    net = tf.layers.dense(net, units)  # each\n'
     "    if mode == tf.estimator.ModeKeys.TRAIN:\n        net = tf.nn.dropout(net, keep_prob=0.9)\n"
     "logits = tf.layers.dense(net, 3)",
     "        net = tf.keras.layers.Dense(units)(net)  # each\n        net = tf.keras.layers.Dropout(1 - 0.9)(net)"),
    ('net = tf.layers.dropout(features["x"], 0.4, training=mode == tf.estimator.ModeKeys.TRAIN)\n'
     "logits = tf.layers.dense(net, 3)", 'net = tf.keras.layers.Dropout(0.4)(features["x"])'),
    ('net = tf.layers.dropout(features["x"], 0.4)\nlogits = tf.layers.dense(net, 3)',
     'net = ConstantTraining(tf.keras.layers.Dropout(0.4), False)(features["x"])'),
    ('logits = tf.layers.dense(features["x"], 3, kernel_initializer=tf.truncated_normal_initializer())',
     "kernel_initializer=tf.keras.initializers.TruncatedNormal(stddev=1.0)"),
    ('net = tf.reshape(features["x"], [-1, 2, 1])\nnet = tf.layers.conv1d(net, kernel_size=1, filters=4)\n'
     "logits = tf.layers.dense(tf.layers.flatten(net), 3)", "tf.keras.layers.Conv1D(kernel_size=1, filters=4)(net)"),
    ('net = tf.reshape(features["x"], [-1, 2, 1, 1])\nnet = tf.layers.separable_conv2d(net, 4, 1, depth_multiplier=2)\n'
     "logits = tf.layers.dense(tf.layers.flatten(net), 3)",
     "net = tf.keras.layers.SeparableConv2D(4, 1, depth_multiplier=2)(net)"),
    ('net = tf.reshape(features["x"], [-1, 2, 1, 1, 1])\nnet = tf.layers.average_pooling3d(net, 2, 1, "VALID")\n'
     "logits = tf.layers.dense(tf.layers.flatten(net), 3)",
     "net = tf.keras.layers.AveragePooling3D(2, 1, padding=\"valid\")(net)"),
    ('net = features["x"]\nfor scope in ("a", "b"):\n    net = tf.layers.dense(net, 4, name="same")\n'
     "logits = tf.layers.dense(net, 3)", "    net = tf.keras.layers.Dense(4)(net)"),
    ('with tf.variable_scope("a"):\n    net = tf.layers.dense(features["x"], 4, name="same")\n'
     'with tf.variable_scope("b"):\n    logits = tf.layers.dense(net, 3, name="same")',
     "logits = tf.keras.layers.Dense(3)(net)"),
    ('net = tf.contrib.layers.fully_connected(features["x"], 8, scope="a")\nlogits = tf.contrib.layers.linear(net, 3)',
     "    net = tf.keras.layers.Dense(8, activation='relu')(features"),
    ('x = tf.reshape(features["x"], [-1, 2, 1, 1])\nnet = tf.contrib.layers.conv2d(x, 4, 3, biases_initializer=None)\n'
     "net = tf.contrib.layers.max_pool2d(net, 2)\nlogits = tf.layers.dense(tf.contrib.layers.flatten(net), 3)",
     "    net = tf.keras.layers.Conv2D(4, 3, padding='same', activation='relu', use_bias=False)(x)\n"
     "    net = tf.keras.layers.MaxPooling2D(2, strides=2)(net)"),
    ('net = tf.contrib.layers.dropout(features["x"], 0.3, is_training=mode == tf.estimator.ModeKeys.TRAIN)\n'
     "logits = tf.layers.dense(net, 3)", "net = tf.keras.layers.Dropout(1 - 0.3)(features"),
    ('net = tf.contrib.layers.dropout(features["x"], 1.0 - params["rate"])\nlogits = tf.layers.dense(net, 3)',
     'tf.keras.layers.Dropout(1 - (1.0 - params["rate"]))'),
    ('net = tf.nn.dropout(features["x"], keep_prob=1 - params["rate"])\nlogits = tf.layers.dense(net, 3)',
     'tf.keras.layers.Dropout(1 - (1 - params["rate"]))'),
    ('scale = tf.contrib.slim.l2_regularizer(scale=params["rate"] + 1)\n'
     'logits = tf.layers.dense(features["x"], 3, kernel_regularizer=scale)',
     'scale = tf.keras.regularizers.L2(0.5 * (params["rate"] + 1))\n'),
    ('outputs = {}\nfor k in "ab":\n    outputs[k] = tf.layers.dense(features["x"], 3)\nlogits = outputs["a"]',
     '    for k in "ab":\n        outputs[k] = tf.keras.layers.Dense(3)(features["x"])\n'),
    ('net = tf.contrib.layers.embed_sequence(features["x"], 9, 4)\nlogits = tf.layers.dense(tf.layers.flatten(net), 3)',
     'net = DenseEmbedding(9, 4, embeddings_initializer="glorot_uniform")(features["x"])'),
    ('table = tf.get_variable("t", [9, 4])\nnet = tf.nn.embedding_lookup(table, features["x"])\n'
     "logits = tf.layers.dense(tf.layers.flatten(net), 3)", 'net = table(features["x"])'),
    ('net = tf.keras.layers.Dropout(0.5)(features["x"])\nlogits = tf.keras.layers.Dense(3).apply(net)',
     '    net = ConstantTraining(tf.keras.layers.Dropout(0.5), False)(features["x"])\n'
     "    logits = tf.keras.layers.Dense(3)(net)"),
    ('net = tf.keras.layers.Dropout(0.5).apply(features["x"])\nlogits = tf.layers.dense(net, 3)',
     'net = ConstantTraining(tf.keras.layers.Dropout(0.5), False)(features["x"])'),
    ('net = tf.keras.layers.Dropout(0.5)(features["x"], training=True)\nlogits = tf.layers.dense(net, 3)',
     'net = ConstantTraining(tf.keras.layers.Dropout(0.5), True)(features["x"])'),
    ('net = tf.nn.dropout(features["x"], rate=0.5)\nlogits = tf.layers.dense(net, 3)',
     'net = ConstantTraining(tf.keras.layers.Dropout(0.5), True)(features["x"])'),
    ('net = tf.keras.layers.Embedding(9, 4,\n    name="e")(features["x"])\n'
     "logits = tf.layers.dense(tf.layers.flatten(net), 3)",
     'net = DenseEmbedding(9, 4,\n        name="e")(features["x"])'),
    ('net = tf.keras.layers.Dropout(0.5)(features["x"], training=mode == tf.estimator.ModeKeys.TRAIN)\n'
     "logits = tf.layers.dense(net, 3)", '    net = tf.keras.layers.Dropout(0.5)(features["x"])\n'),
    ('net = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dropout(0.5)])\n'
     'logits = tf.layers.dense(net(features["x"]), 3)', 'Dense(3)(ConstantTraining(net, False)(features["x"]))'),
    ("if mode == tf.estimator.ModeKeys.TRAIN:\n    tf.keras.backend.set_learning_phase(True)\nelse:\n"
     "    tf.keras.backend.set_learning_phase(False)\n"
     'net = tf.keras.layers.Dropout(0.5)(features["x"])\nlogits = tf.layers.dense(net, 3)',
     '    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""\n'
     '    net = tf.keras.layers.Dropout(0.5)(features["x"])\n'),
    ('assert params["rate"] > 0, "rate"\nlogits = tf.layers.dense(features["x"], 3)',
     '    assert params["rate"] > 0, "rate"'),
    ('print("x", features["x"].shape)\nlogits = tf.layers.dense(features["x"], 3)', 'print("x", features["x"].shape)'),
    ('tf.logging.info("x")\nlogits = tf.layers.dense(features["x"], 3)', 'tf.get_logger().info("x")'),
    ('net = tf.expand_dims(features["x"], dim=1)\nnet = tf.reduce_sum(net, 1, keep_dims=True)\n'
     "logits = tf.layers.dense(tf.layers.flatten(tf.to_float(net)), 3)",
     "    net = operation('expand_dims', features[\"x\"], 1)\n"
     "    net = operation('reduce_sum', net, axis=1, keepdims=True)\n"
     "    logits = tf.keras.layers.Dense(3)(tf.keras.layers.Flatten()(operation('cast', net, tf.float32)))"),
    ('import math\nfrom math import sqrt as root\nlogits = tf.layers.dense(features["x"], int(root(math.pi)))',
     "    import math\n    from math import sqrt as root\n    logits = "),
    ('if params["rate"] < 0:\n    raise ValueError("rate")\nlogits = tf.layers.dense(features["x"], 3)',
     '    if params["rate"] < 0:\n        raise ValueError("rate")\n'),
    ('def block(x, mode):\n    training = mode == tf.estimator.ModeKeys.TRAIN  # both\n'
     "    return tf.layers.dropout(x, 0.5, training=training)\n"
     'logits = tf.layers.dense(block(features["x"], mode), 3)',
     "    def block(x):\n        # both\n        return tf.keras.layers.Dropout(0.5)(x)\n"),
    ('def block(x, training, act=tf.nn.relu):  # local\n    x = tf.layers.dropout(x, training=training)\n'
     "    return tf.layers.dense(x, 3, act)\nlogits = block(features['x'], mode == tf.estimator.ModeKeys.TRAIN)",
     "    def block(x, act=tf.keras.activations.relu):  # local\n        x = tf.keras.layers.Dropout(0.5)(x)\n"
     "        return tf.keras.layers.Dense(3, activation=act)(x)\n    logits = block(features['x'])\n"),
    ("training = False\nif mode == tf.estimator.ModeKeys.TRAIN:\n    training = True\n"
     'net = tf.layers.dropout(features["x"], 0.4, training=training)\nlogits = tf.layers.dense(net, 3)',
     '    net = tf.keras.layers.Dropout(0.4)(features["x"])\n'),
    ('units = features["x"].get_shape().as_list()[1]\nlogits = tf.layers.dense(features["x"], units)',
     'units = list(features["x"].shape)[1]'),
]  # fmt: skip


@pytest.mark.parametrize(("network", "line"), NETWORKS)
def test_a_network(convert_text, network, line):
    file = convert_text(program(NETWORK=network))
    assert line in file.after, file.kept_as_estimator or file.after
    for word in ("estimator", "compat", "layers.dense"):
        assert word not in file.after


def test_a_model_that_compile_describes(convert_text):
    """Functional, with a loss and a metric of Keras: nothing that a load would have to find."""
    text = convert_text(program()).after
    assert "class " not in text and 'model = tf.keras.Model([features["x"]], logits)' in text
    assert "loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)," in text
    assert "metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name='accuracy')]," in text
    assert "model.fit(training, steps_per_epoch=4, verbose=2)" in text


LOSSES = [
    "loss = tf.losses.sparse_softmax_cross_entropy(labels, logits) * 2.0",
    'loss = tf.reduce_mean(features["x"]) * tf.losses.sparse_softmax_cross_entropy(labels, logits)',
    "loss = tf.losses.sparse_softmax_cross_entropy(labels - 1, logits)",
]


@pytest.mark.parametrize("loss", LOSSES)
def test_any_other_loss_is_a_method(convert_text, loss):
    text = convert_text(program(LOSS=loss)).after
    assert (
        "    def compute_loss(self, x=None, y=None, y_pred=None" in text and "self.mean_loss.update_state(loss)" in text
    )
    assert "register_keras_serializable" in text and "def from_config(cls, config):" in text
    assert re.search(r"Crossentropy\(from_logits=True\)\(labels( - 1)?, logits\)", text)


def test_classes_of_another_integer_type_are_the_labels(convert_text):
    text = convert_text(
        program(LOSS="loss = tf.losses.sparse_softmax_cross_entropy(tf.cast(labels, tf.int64), logits)")
    )
    assert "loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)," in text.after


SPECS = [
    ("return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)",
     "spec = tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)\n    return spec"),
    ("    if mode == tf.estimator.ModeKeys.PREDICT:\n        return tf", "    spec = None\n"
     "    if mode == tf.estimator.ModeKeys.PREDICT:\n        spec = tf.estimator.EstimatorSpec(mode, loss=None)\n"
     "        spec = tf"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), SPECS)
def test_a_spec_by_a_name(convert_text, old, new):
    text = program()
    assert old in text
    text = text.replace(old, new)
    if "spec = None" in text:
        text = text.replace("    loss = tf", "        return spec\n    loss = tf")
    file = convert_text(text)
    assert "def make_predictions(features, logits):" in file.after, file.kept_as_estimator


OPTIMIZERS = [
    ("tf.train.GradientDescentOptimizer(0.1)", "tf.keras.optimizers.SGD(0.1)"),
    ("tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True)",
     "tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)"),
    ("tf.train.AdamOptimizer()", "tf.keras.optimizers.Adam(0.001, epsilon=1e-8)"),
    ("tf.train.AdamOptimizer(0.1, beta1=0.5, epsilon=1e-4)", "tf.keras.optimizers.Adam(0.1, beta_1=0.5, epsilon=1e-4)"),
    ("tf.train.AdamOptimizer(tf.train.exponential_decay(0.1, tf.train.get_global_step(), 10, 0.9))",
     "ExponentialDecay(initial_learning_rate=0.1, decay_steps=10, decay_rate=0.9), epsilon=1e-8)"),
    ("tf.train.AdagradOptimizer(0.1)", "tf.keras.optimizers.Adagrad(0.1)"),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "written"), OPTIMIZERS)
def test_an_optimizer(convert_text, optimizer, written):
    train_op = f"train_op = {optimizer}.minimize(loss, tf.train.get_global_step())"
    file = convert_text(program(TRAIN_OP=train_op))
    assert written in file.after, file.kept_as_estimator


UPDATE_OPS = (
    "update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)\nwith tf.control_dependencies(update_ops):\n"
    "    train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())"
)
NORMALIZED = (
    'net = tf.layers.batch_normalization(features["x"], training=mode == tf.estimator.ModeKeys.TRAIN)\n'
    "logits = tf.layers.dense(net, 3)"
)


def test_statistics_that_move(convert_text):
    assert "BatchNormalization()(features" in convert_text(program(NETWORK=NORMALIZED, TRAIN_OP=UPDATE_OPS)).after


# Part of the program -> the line that is named, and the reason.
STAYS = [
    ({"NETWORK": NORMALIZED}, 5, "whose statistics never move"),
    ({"NETWORK": NORMALIZED, "TRAIN_OP": UPDATE_OPS.replace("OPS)", "OPS, scope='a')")}, 12, "UPDATE_OPS of one scope"),
    ({"TRAIN_OP": "step = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())\n"
      "with tf.control_dependencies([step]):\n    train_op = tf.group(*[v.assign(v) for v in variables])"},
     12, "control_dependencies"),
    ({"TRAIN_OP": "train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step(), "
      "var_list=tf.trainable_variables('a'))"}, 11, "minimize with var_list"),
    ({"TRAIN_OP": "train_op = tf.train.AdamOptimizer(0.1).minimize(loss)"}, 11, "without the global step"),
    ({"NETWORK": 'logits = tf.layers.dense(features["x"], 3)\nfor v in tf.trainable_variables():\n'
      "    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.nn.l2_loss(v))"}, 6, "neither of the network"),
    ({"NETWORK": 'logits = tf.layers.dense(features["x"], 3)\nif params.get("start"):\n'
      '    tf.train.init_from_checkpoint(params["start"], {"a/": "a/"})'}, 6, "neither of the network"),
    ({"NETWORK": 'table = tf.get_variable("t", [3, 2])\nlogits = tf.layers.dense(features["x"] @ table, 3)'},
     5, "a variable outside of a layer"),
    ({"NETWORK": 'tf.keras.backend.set_learning_phase(True)\nlogits = tf.layers.dense(features["x"], 3)'}, 5,
     "a learning phase that is not the mode"),
    ({"NETWORK": 'table = tf.get_variable("t", [3, 2])\nx = tf.nn.embedding_lookup(table, features["x"])\n'
      "logits = tf.layers.dense(x, 3) + tf.reduce_sum(table)"}, 5, "a variable outside of a layer"),
    ({"NETWORK": 'logits = tf.contrib.layers.linear(features["x"], 3, normalizer_fn=tf.contrib.layers.batch_norm)'},
     5, "normalizer_fn"),
    ({"NETWORK": 'net = tf.contrib.layers.batch_norm(features["x"])\nlogits = tf.layers.dense(net, 3)'}, 5,
     "whose statistics never move"),
    ({"NETWORK": 'x = tf.py_func(print, [features["x"]], tf.float32)\nlogits = tf.layers.dense(x, 3)'}, 5, "py_func"),
    ({"NETWORK": 'with tf.variable_scope("a", reuse=tf.AUTO_REUSE):\n    logits = tf.layers.dense(features["x"], 3)'},
     5, "variable_scope with options"),
    ({"NETWORK": 'if mode == tf.estimator.ModeKeys.TRAIN:\n    net = tf.layers.dense(features["x"], 2)\nelse:\n'
      '    net = features["x"]\nlogits = tf.layers.dense(net, 3)'}, 8, "not in every mode"),
    ({"NETWORK": "logits = tf.layers.dense(tf.concat([features['x'], labels], 1), 3)"}, 5, "takes the labels"),
    ({"NETWORK": 'act = tf.nn.relu if params["a"] else tf.nn.leaky_relu\nnet = act(features["x"])\n'
      "logits = tf.layers.dense(net, 3)"}, 6, "a call of act"),
    ({"NETWORK": 'build = tf.layers.dense if params["a"] else tf.layers.conv1d\nlogits = build(features["x"], 3)'}, 4,
     "a model_fn that calls no layer"),
    ({"NETWORK": 'head = tf.keras.layers.Dense(3)\nlogits = head(features["x"])',
      "LOSS": f"{PARTS['LOSS']}\nloss += tf.nn.l2_loss(head.kernel)"}, 10, "head, a layer or model, in the loss"),
    ({"LOSS": "weighted_mean = tf.losses.mean_squared_error(labels, logits, features['w'])\nloss = weighted_mean"}, 8,
     "the name weighted_mean, which the conversion defines"),
    ({"LOSS": "tf.Print(labels, [labels])\nloss = tf.losses.sparse_softmax_cross_entropy(labels, logits)"}, 8,
     "neither of the network"),
    ({"NETWORK": 'if params["a"]:\n    net, scale = tf.layers.dense(features["x"], 4), 0.5\nelse:\n'
      '    net = features["x"]\n    scale = 1.0\nlogits = tf.layers.dense(net, 3)',
      "LOSS": "loss = scale * tf.losses.sparse_softmax_cross_entropy(labels, logits)"}, 9,
     "scale, which the network sets to something else than a tensor"),
    ({"NETWORK": "training = False\nif params['a']:\n    training = True\n"
      'net = tf.layers.dropout(features["x"], 0.4, training=training)\nlogits = tf.layers.dense(net, 3)'}, 8,
     "which is not true in training only"),
    ({"NETWORK": "training = True\n"
      'net = tf.layers.dropout(features["x"], 0.4, training=training)\nlogits = tf.layers.dense(net, 3)\n'
      "if mode != tf.estimator.ModeKeys.TRAIN:\n    training = False"}, 6, "which is not true in training only"),
    ({"NETWORK": 'def block(x, mode):\n    training = mode == tf.estimator.ModeKeys.TRAIN\n'
      "    return tf.layers.dropout(x, training=training)\n"
      'logits = tf.layers.dense(block(features["x"], "train"), 3)'}, 8,
     "mode, a mode that is not that of the model_fn"),
    ({"NETWORK": 'n = 3\ndef block(x):\n    return tf.layers.dense(x, n)\nn = 4\nlogits = block(features["x"])'}, 6,
     "n, which is assigned behind a function"),
    ({"NETWORK": 'import tensorflow.contrib\nlogits = tf.layers.dense(features["x"], 3)'}, 5,
     "an import in a model_fn"),
    ({"LOSS": "if mode == tf.estimator.ModeKeys.EVAL:\n    print(show(labels))\n" + PARTS["LOSS"]}, 9,
     "a call of show"),
    ({"LOSS": "if mode == tf.estimator.ModeKeys.TRAIN:\n    assert params['rate'] > 0\n" + PARTS["LOSS"]}, 9,
     "neither of the network"),
    ({"NETWORK": 'logits = tf.layers.dense(features["x"], 3, lambda x: tf.nn.relu(x) * 0.5)'}, 5,
     "a function in a layer"),
    ({"NETWORK": 'net = tf.keras.layers.Lambda(tf.nn.relu6)(features["x"])\nlogits = tf.layers.dense(net, 3)'}, 5,
     "tf.nn.relu6"),
    ({"NETWORK": 'def half(x):\n    return x * 0.5\nlogits = tf.layers.dense(tf.keras.layers.Lambda(half)'
      '(features["x"]), 3)'}, 7, "a function in a layer"),
    ({"NETWORK": 'def half(x):\n    return x * 0.5\nlogits = tf.layers.dense(features["x"], 3, half)'}, 7,
     "a function in a layer"),
    ({"NETWORK": 'def half(x):\n    return x * 0.5\nx = tf.map_fn(half, features["x"])\n'
      "logits = tf.layers.dense(x, 3)"}, 7, "a function in a layer"),
    ({"NETWORK": 'logits = tf.layers.dense(features["x"], 3, activation=params["act"])',
      "LOSS": "loss = 2.0 * tf.losses.sparse_softmax_cross_entropy(labels, logits)"}, 5, "an activation of params"),
    ({"NETWORK": 'acts = [tf.nn.relu6]\nlogits = tf.layers.dense(features["x"], 3, acts[0])'}, 5, "tf.nn.relu6"),
    ({"METRICS": '{"f": tf.metrics.precision_at_k(labels, logits, 3)}'}, 10, "the metric"),
    ({"METRICS": '{"f": tf.metrics.mean_iou(labels, tf.argmax(logits, 1), 3, features["w"])}'}, 10, "weights of"),
    ({"METRICS": '{"f": tf.metrics.accuracy(labels, tf.argmax(logits, 1), weights=0.5)}'}, 10, "weights of"),
    ({"METRICS": '{"f": tf.metrics.accuracy(labels, tf.argmax(logits, 1), params["rate"])}'}, 10, "weights of"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "line", "reason"), STAYS)
def test_what_stays_an_estimator(convert_text, parts, line, reason):
    """Never a third thing: a statement that no rule knows is named, and nothing else is converted either."""
    file = convert_text(program(**parts))
    assert not file.keras and "tf.estimator.EstimatorSpec" in file.after
    assert file.verdict.line == line and reason in file.kept_as_estimator, file.kept_as_estimator


def test_hooks_that_do_more_than_log_stay(convert_text):
    text = program().replace("train_op=train_op)", "train_op=train_op, training_hooks=[HOOK])")
    logs = convert_text(text.replace("HOOK", 'tf.train.LoggingTensorHook({"loss": loss}, 10)'))
    assert logs.keras and '#     training_hooks=[tf.train.LoggingTensorHook({"loss": loss}, 10)]' in logs.after.replace(
        "tf.estimator.", "tf.train."
    )
    assert "training_hooks: Mine()" in convert_text(text.replace("HOOK", "Mine()")).kept_as_estimator


JOBS = [
    ("def main():", "class Hook(tf.estimator.SessionRunHook):\n    pass\n\n\ndef main():", "SessionRunHook"),
    ("    print(", "    model_inputs = 1\n    print(", "the name model_inputs"),
    ("estimator.train(input_fn, steps=4)", "estimator.train(input_fn, steps=4, hooks=[Mine()])", "hooks of train"),
    ("tf.estimator.Estimator(model_fn,", "tf.estimator.Estimator(model_fn, warm_start_from='x',",
     "warm_start_from of Estimator"),
    ("print(estimator", "estimator.get_variable_names()\n    print(estimator", "Estimator.get_variable_names"),
    ("    estimator = ", "    print(1); estimator = ", "several statements in one line"),
    ("print(estimator", "show(estimator)\n    print(estimator", "used in another way"),
    ("estimator.train(", "for input_fn in (input_fn,):\n        estimator.train(", "depends on the loop"),
    ("    estimator.train(input_fn, steps=4)\n", "", "its checkpoint is of another program"),
    ('return tf.data.Dataset.from_tensor_slices(({"x": [[1.0, 2.0]]}, [1])).repeat().batch(2)',
     'return {"x": tf.random_uniform([1, 2])}, [1]', "returns tensors, not a dataset"),
    (".batch(2)", ".batch(2).make_initializable_iterator().get_next()", "tensors of an iterator"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), JOBS)
def test_a_job_that_stays(convert_text, old, new, reason):
    text = program()
    assert old in text
    assert reason in convert_text(text.replace(old, new)).kept_as_estimator


DATA = 'tf.data.Dataset.from_tensor_slices(({"x": [[1.0, 2.0]]}, [1])).repeat().batch(2)'
ITERATORS = [
    (f"    return {DATA}.make_one_shot_iterator().get_next()\n", f"    return {DATA}\n"),
    (f"    data = {DATA}\n    iterator = data.make_one_shot_iterator()  # once\n    x, y = iterator.get_next()\n"
     "    return x, y\n", f"    data = {DATA}\n    # once\n    return data\n"),
    (f"    data = {DATA}\n    return tf.compat.v1.data.make_one_shot_iterator(data).get_next()\n",
     f"    data = {DATA}\n    return data\n"),
    (f"    x, y = {DATA}.make_one_shot_iterator().get_next()\n    # twice\n    x['x'] *= 2.0\n    return x, y\n",
     "    def prepare(x, y):\n        # twice\n        x['x'] *= 2.0\n        return x, y\n\n"
     f"    return {DATA}.map(prepare)\n"),
    (f"    def parse(x, y):\n        return x, y\n\n    data = {DATA}.map(parse)\n"
     "    x, y = data.make_one_shot_iterator().get_next()\n    return x, y\n",
     f"    def parse(x, y):\n        return x, y\n\n    data = {DATA}.map(parse)\n    return data\n"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), ITERATORS)
def test_an_iterator(convert_text, old, new):
    file = convert_text(program().replace(f"    return {DATA}\n", old))
    assert f"def input_fn():\n{new}" in file.after, file.kept_as_estimator or file.after


def test_tensors_that_change_a_name_from_before_stay(convert_text):
    changed = f"    n = 2.0\n    x, y = {DATA}.make_one_shot_iterator().get_next()\n    n += x['x']\n    return n, y\n"
    file = convert_text(program().replace(f"    return {DATA}\n", changed))
    assert "tensors of an iterator" in file.kept_as_estimator


KEPT = [
    # An annotation, a name that nothing reaches, an Estimator without a name, a comment.
    ("def main():", "def pick() -> tf.distribute.MultiWorkerMirroredStrategy:\n    return None\n\n\ndef main():"),
    ("def main():", "def never():\n    tf.contrib.quantize.create_eval_graph()\n\n\ndef main():"),
    ('    estimator = tf.estimator.Estimator(model_fn, params={"rate": 0.1})\n    estimator.train(input_fn, steps=4)\n'
     "    print(estimator.evaluate(input_fn, steps=2))",
     '    tf.estimator.Estimator(model_fn, params={"rate": 0.1}).train(input_fn, steps=4)'),
    ("    logits = tf.layers", "    # See keras_heads.md: later we distribute.\n    logits = tf.layers"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), KEPT)
def test_what_declines_nothing(convert_text, old, new):
    text = program()
    assert old in text
    file = convert_text(text.replace(old, new))
    assert file.keras, file.kept_as_estimator


def test_what_the_network_and_the_loss_share(convert_text):
    network = 'n = params["n"]\nx = tf.square(features["x"])\nlogits = tf.layers.dense(x, n)'
    loss = "loss = tf.losses.sparse_softmax_cross_entropy(labels, logits) * n + tf.reduce_mean(x)"
    text = convert_text(program(NETWORK=network, LOSS=loss)).after
    method = text[text.index("def compute_loss") : text.index("def compute_metrics")]
    assert "n = params[" in method and "x = tf.square(features[" in method
    assert "x = operation('square', features[" in text[text.index("def make_model") :]


def test_settings_without_a_counterpart_are_comments(convert_text):
    config = 'params={"rate": 0.1}, config=tf.estimator.RunConfig(save_summary_steps=7), model_dir=print("x"))'
    text = convert_text(program().replace('params={"rate": 0.1})', config)).after
    assert "    # Without a counterpart in fit: save_summary_steps=7\n" in text
    assert text.count('print("x")') == 1 and 'os.path.join(model_dir, "keras")' in text


LINES = [
    (
        "    if True: estimator.train(input_fn, steps=4)\n",
        "    if True: model.fit(training, steps_per_epoch=4, verbose=2)\n",
    ),
    (
        "    print(1); estimator.train(input_fn, steps=4)\n",
        "    print(1); model.fit(training, steps_per_epoch=4, verbose=2)\n",
    ),
]


@pytest.mark.parametrize(("old", "new"), LINES)
def test_a_statement_that_shares_its_line(convert_text, old, new):
    file = convert_text(program().replace("    estimator.train(input_fn, steps=4)\n", old))
    assert new in file.after, file.kept_as_estimator


def test_models_of_several_estimators_keep_their_names(convert_text):
    more = '    other = tf.estimator.Estimator(model_fn, params={"rate": 0.2})\n    other.train(input_fn, steps=3)\n'
    text = convert_text(program().replace("    print(", f"{more}    print(")).after
    assert "estimator = make_model(model_inputs(estimator_training), {" in text
    assert (
        "other.fit(other_training, steps_per_epoch=3, verbose=2)" in text and "print(dict(estimator.evaluate(" in text
    )


def test_an_annotation_that_python_evaluates(convert_text):
    text = program().replace("def main():", "def spec() -> tf.estimator.EstimatorSpec:\n    pass\n\n\ndef main():")
    assert "def spec() -> 'tf.estimator.EstimatorSpec':" in convert_text(text).after


def test_a_layer_inside_the_loss(convert_text):
    loss = "loss = tf.losses.mean_squared_error(labels, tf.layers.dense(net, 1))"
    text = program(NETWORK='net = tf.layers.dense(features["x"], 3)', LOSS=loss, METRICS="None")
    file = convert_text(text.replace('predictions={"logits": logits}', 'predictions={"net": net}'))
    assert "outputs = tf.keras.layers.Dense(1)(net)" in file.after, file.kept_as_estimator


def test_aliases_strings_and_statements_of_the_same_name(convert_text):
    text = program(LOSS="loss = losses.sparse_softmax_cross_entropy(labels, logits)")
    more = 'losses = tf.losses\nTEXT = """one\n\n\n\n\nfive"""\n\n\ndef prepare():\n    losses = print("ready")\n'
    file = convert_text(text.replace("\n\ndef model_fn", f"\n{more}\n\ndef model_fn", 1))
    assert file.keras and more.removeprefix("losses = tf.losses\n") in file.after, file.kept_as_estimator
    assert "losses = tf." not in file.after


def test_an_alias_that_a_function_still_reads(convert_text):
    text = program(LOSS="loss = losses.sparse_softmax_cross_entropy(labels, logits)")
    never = "losses = tf.losses\n\n\ndef never(x):\n    return losses.get_losses(x)\n"
    file = convert_text(text.replace("\n\ndef model_fn", f"\n{never}\n\ndef model_fn", 1))
    assert file.kept_as_estimator == "line 3: tf.losses" and "losses = tf.compat.v1.losses\n" in file.after


def test_scopes_in_a_function_that_the_model_fn_calls(convert_text):
    """They only name what is in them; their comments stay."""
    helper = (
        "def net_of(x):\n    # first\n    with tf.name_scope('a'):  # a scope\n"
        "        x = tf.layers.dense(x, 4)  # a layer\n"
        "    for i in range(2):\n        with tf.variable_scope('b%d' % i):\n            x = tf.layers.dense(x, 4)\n"
        "    return x\n\n\ndef model_fn"
    )
    text = program(NETWORK='logits = tf.layers.dense(net_of(features["x"]), 3)').replace("def model_fn", helper, 1)
    written = convert_text(text).after
    assert "    # first\n    # a scope\n    x = tf.keras.layers.Dense(4)(x)  # a layer\n" in written
    assert "    for i in range(2):\n        x = tf.keras.layers.Dense(4)(x)\n    return x\n" in written
    assert "with options" in convert_text(text.replace("'b%d' % i", "'b', reuse=True")).kept_as_estimator


def test_texts_of_a_model_fn_stay(convert_text):
    """Its docstring describes the network; another text stays where it is, and a comment with its statement."""
    network = '"""Two layers.\n\nOf any size.\n"""\n"a note"\n'
    network += 'x = features["x"]; y = x  # both\nlogits = tf.layers.dense(y, 3)'
    written = convert_text(program(NETWORK=network)).after
    lines = ["# Two layers.", "#", "# Of any size.", '"a note"', 'x = features["x"]', "y = x  # both", "logits = "]
    assert "".join(f"    {line}\n" for line in lines).removesuffix("\n") in written


MESSAGES = ['print("step", 1)', 'tf.logging.info("step")', 'tf.identity(loss, name="shown")', "import logging"]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_one_mode(convert_text, message):
    text = f"{PARTS['LOSS']}\nif mode == tf.estimator.ModeKeys.TRAIN:\n    {message}"
    written = convert_text(program(LOSS=text)).after
    assert f"    #     {message.replace('tf.logging', 'tf.compat.v1.logging')}\n    model = " in written


LOGGED = [
    "for v in tf.trainable_variables():\n    tf.summary.histogram(v.op.name, v)",
    "for g, v in optimizer.compute_gradients(loss):\n    if g is not None:\n        tf.summary.histogram(v.op.name, g)",
    'if params["rate"] > 0: tf.summary.scalar("loss", loss)',
]


@pytest.mark.parametrize("statement", LOGGED)
def test_summaries_in_loops_and_conditions(convert_text, statement):
    text = f"{PARTS['LOSS']}\noptimizer = tf.train.AdamOptimizer(0.1)\n"
    train_op = "train_op = optimizer.minimize(loss, tf.train.get_global_step())"
    file = convert_text(program(LOSS=text + statement, TRAIN_OP=train_op))
    first = statement.partition("\n")[0].replace("tf.tr", "tf.compat.v1.tr").replace("tf.su", "tf.compat.v1.su")
    assert f"    #     {first}\n" in file.after, file.kept_as_estimator
    for other in (statement.replace("tf.summary.", "write"), f"{statement}\nelse:\n    write(loss)"):
        assert "neither of the network" in convert_text(program(LOSS=text + other, TRAIN_OP=train_op)).kept_as_estimator


def test_metrics_of_vectors(convert_text):
    """Keras takes the mean of a vector as one number of the batch, and rejects weights of another rank."""
    network = 'logits = tf.squeeze(tf.layers.dense(features["x"], 1), 1)'
    parts = {"NETWORK": network, "LOSS": "loss = tf.losses.mean_squared_error(labels, logits)"}
    mae = '{"mae": tf.metrics.mean_absolute_error(labels, logits)}'
    assert "update_state(as_rows(labels), as_rows(logits))" in convert_text(program(**parts, METRICS=mae)).after
    matrix = convert_text(program(**{**parts, "NETWORK": PARTS["NETWORK"]}, METRICS=mae)).after
    assert "metrics=[tf.keras.metrics.MeanAbsoluteError(name='mae')]," in matrix and "as_rows" not in matrix
    auc = '{"auc": tf.metrics.auc(labels, logits, features["w"])}'
    assert "as_rows(labels), as_rows(logits), sample_weight=" in convert_text(program(**parts, METRICS=auc)).after


def test_a_name_that_is_none_before(convert_text):
    metrics = f"metrics = {PARTS['METRICS']}"
    text = program(LOSS=f"metrics = None\n{PARTS['LOSS']}\nif labels is not None:\n    {metrics}", METRICS="metrics")
    assert "metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name='accuracy')]," in convert_text(text).after


def test_a_mode_that_ends_in_an_error(convert_text):
    spec = 'return tf.estimator.EstimatorSpec(mode, predictions={"logits": logits})'
    written = convert_text(program().replace(spec, 'raise ValueError("no predictions")')).after
    assert '    #     raise ValueError("no predictions")\n' in written and "make_predictions" not in written
    spec = "return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)"
    assert "returns nothing in the modes train" in convert_text(
        program().replace(spec, "raise ValueError()")).kept_as_estimator  # fmt: skip


def test_tensors_that_nothing_uses(convert_text):
    """They have no effect in a graph and become comments; a function of the program may add one to a collection."""
    network = 'logits = tf.layers.dense(features["x"], 3)\nprobabilities = tf.nn.softmax(logits)'
    text = program(NETWORK=network)
    assert "    #     probabilities = tf.nn.softmax(logits)\n" in convert_text(text).after
    helper = "def soft(x):\n    return tf.nn.softmax(x)\n\n\ndef model_fn"
    other = text.replace("tf.nn.softmax(logits)", "soft(logits)").replace("def model_fn", helper, 1)
    assert "probabilities, which nothing uses" in convert_text(other).kept_as_estimator


BLOCK = """\
def half(x):
    return tf.nn.relu(x) * 0.5


def block(x, units, act=tf.nn.relu, kernel_initializer=None):
    return tf.layers.dense(x, units, activation=act, kernel_initializer=kernel_initializer)


def model_fn"""


def test_an_argument_with_a_default(convert_text):
    """It is what the call passes, and its default a function of Keras; a saved model finds a function by its name."""
    text = program(NETWORK='logits = block(block(features["x"], 3), 3, half)').replace("def model_fn", BLOCK, 1)
    written = convert_text(text).after
    assert "@tf.keras.utils.register_keras_serializable()\ndef half(x):\n    return tf.nn.relu(x) * 0.5\n" in written
    assert "def block(x, units, act=tf.keras.activations.relu, kernel_initializer=None):\n" in written
    assert "Dense(units, activation=act, kernel_initializer=kernel_initializer)(x)" in written
    trains = text.replace("act=tf", "training=None, act=tf").replace("(x, units, activation", "(\n        "
                          "tf.layers.dropout(x, training=training), units, activation")  # fmt: skip
    for mode, converts in (("'train'", True), ("'eval'", False)):
        other = trains.replace("], 3)", "], 3, mode == 'train')").replace("3, half", f"3, mode == {mode}")
        assert convert_text(other).keras is converts
    other = text.replace("3, half)", "3, lambda x: x)")
    assert "a function in a layer" in convert_text(other).kept_as_estimator
    other = text.replace("activation=act", "activation=act, bias_initializer=half")
    assert "line 9: a function in a layer" in convert_text(other).kept_as_estimator


def test_flags_in_a_model_fn(convert_text):
    flags = "FLAGS = tf.flags.FLAGS\ntf.flags.DEFINE_integer('units', 4, 'units')\n\n\ndef model_fn"
    text = program(NETWORK='logits = tf.layers.dense(features["x"], FLAGS.units)').replace("def model_fn", flags, 1)
    text = text.replace("    main()", "    tf.app.run()").replace("def main():", "def main(_):")
    written = convert_text(text)
    assert "Dense(FLAGS.units)(features" in written.after and "FLAGS = flags.FLAGS" in written.after


def test_two_estimators_of_one_name(convert_text):
    more = "    estimator = tf.estimator.Estimator(model_fn, params={})\n    estimator.train(input_fn, steps=9)\n"
    text = convert_text(program().replace("\n\nif __name__", f"{more}\n\nif __name__")).after
    assert text.count("    estimator = make_model(model_inputs(estimator_training), {") == 2
    assert text.index("steps_per_epoch=4") < text.index("model_inputs(estimator_training), {})") < text.index("epoch=9")
    loop = more.replace(
        "    estimator.train", "    for _ in range(2):\n        estimator = None\n        estimator.train"
    )
    file = convert_text(program().replace("\n\nif __name__", f"{loop}\n\nif __name__"))
    assert "estimator, which is assigned at several places" in file.kept_as_estimator


def test_two_canned_estimators_of_one_name(convert_text):
    """A function for each, which the lines of each call."""
    column = "[tf.feature_column.numeric_column('x', 2)]"
    lines = "".join(
        f"    estimator = tf.estimator.{kind}\n    estimator.train(input_fn, steps=4)\n"
        for kind in (f"LinearClassifier({column}, n_classes=3)", f"DNNClassifier([4], {column}, n_classes=3)")
    )
    text = program()
    file = convert_text(text[: text.index("def model_fn")] + text[text.index("def input_fn") :].replace(
        text[text.index("    estimator = ") : text.index("\n\nif __name__")], lines))  # fmt: skip
    assert file.keras, file.kept_as_estimator
    calls = [line.strip() for line in file.after.splitlines() if "make_model(" in line]
    assert calls == [
        "def estimator_make_model(features, feature_columns):",
        "def estimator_2_make_model(features, feature_columns):",
        "estimator = estimator_make_model(model_inputs(estimator_training), [NumericColumn('x', 2)])",
        "estimator = estimator_2_make_model(model_inputs(estimator_training), [NumericColumn('x', 2)])",
    ]


def test_the_name_of_a_class_is_a_scope_of_tensorflow(tmp_path):
    path = tmp_path / "9. Estimator-\u81ea\u5b9a.py"
    path.write_text(program(LOSS=LOSSES[0]), encoding="utf-8")
    (file,) = convert(path).files
    assert "class EstimatorModel(tf.keras.Model):" in file.after, file.kept_as_estimator


FILES = [  # a name of TensorFlow 1 in `main`, and what it becomes; nothing where the file remains as it is
    ('tf.gfile.Exists("m")', 'tf.io.gfile.exists("m")'),
    ('tf.gfile.MakeDirs("m")', 'tf.io.gfile.makedirs("m")'),
    ('tf.gfile.DeleteRecursively("m")', 'tf.io.gfile.rmtree("m")'),
    ('tf.gfile.FastGFile("m", mode="rb").read()', 'tf.io.gfile.GFile("m", mode="rb").read()'),
    ('tf.gfile.Glob(filename="m*")', 'tf.io.gfile.glob(pattern="m*")'),
    ('tf.gfile.Rename(oldname="m", newname="n")', 'tf.io.gfile.rename(src="m", dst="n")'),
    ('tf.gfile.Exists(**{"filename": "m"})', ""),
    ("print(input_fn().make_one_shot_iterator().get_next())", "print(iter(input_fn()).get_next())"),
    ("print(input_fn().make_initializable_iterator())", ""),
]


@pytest.mark.parametrize(("line", "written"), FILES)
def test_a_name_that_only_tensorflow_1_has(convert_text, line, written):
    file = convert_text(program().replace("def main():\n", f"def main():\n    {line}\n"))
    assert f"def main():\n    {written}\n" in file.after if written else file.kept_as_estimator, file.after


def test_a_variable_that_holds_a_mode(convert_text):
    more = (
        "def choose(training):\n    mode = tf.estimator.ModeKeys.EVAL\n    if training:\n"
        "        mode = tf.estimator.ModeKeys.TRAIN\n    return mode\n\n\n"
    )
    file = convert_text(program().replace("def main():", f"{more}def main():\n    print(choose(True))"))
    written = more.replace("tf.estimator.ModeKeys.EVAL", "'eval'").replace("tf.estimator.ModeKeys.TRAIN", "'train'")
    assert written in file.after, file.kept_as_estimator


def test_a_file_that_imports_the_model_keeps_the_behavior_of_tensorflow_2(tmp_path):
    (tmp_path / "model.py").write_text(program())
    task = "import tensorflow as tf\n\nimport model\n\ntf.logging.info('x')\nmodel.main()\n"
    (tmp_path / "task.py").write_text(task)
    files = {file.path: file for file in convert(tmp_path).files}
    assert files["model.py"].keras and "disable_v2_behavior" not in files["task.py"].after


def test_the_scan_agrees_with_the_conversion(tmp_path):
    (tmp_path / "program.py").write_text(program())
    scanned = scan(tmp_path / "program.py")
    assert scanned.findings and scanned.count("automatic") == len(scanned.findings)
    assert scanned.verdicts["program.py"].verdict == "keras"


def test_a_name_that_another_file_takes(tmp_path):
    (tmp_path / "program.py").write_text(program())
    (tmp_path / "other.py").write_text("from program import model_fn\n\nprint(model_fn)\n")
    files = {file.path: file for file in convert(tmp_path).files}
    assert not files["program.py"].keras and "model_fn" in files["program.py"].kept_as_estimator


V1_IMPORTS = [
    ("import tensorflow.compat.v1 as tf", "import tensorflow as tf"),
    ("from tensorflow.compat import v1 as tf", "import tensorflow as tf"),
    ("import os, tensorflow.compat.v1 as tf", "import os, tensorflow as tf"),
]


@pytest.mark.parametrize(("statement", "written"), V1_IMPORTS)
def test_an_import_of_v1(convert_text, statement, written):
    """`tf` becomes TensorFlow 2: what has a name there gets it, and code that nothing reaches keeps V1's."""
    text = program(NETWORK='logits = tf.layers.dense(tf.cast(features["x"], tf.float32), 3)')
    more = "def never(x):\n    tf.Session().run(tf.to_float(x))\n\n\ndef main():\n    tf.disable_v2_behavior()\n"
    file = convert_text(text.replace("import tensorflow as tf", statement, 1).replace("def main():\n", more))
    assert file.after.count(f"{written}\n") == 1 and "disable" not in file.after, file.kept_as_estimator
    assert "operation('cast', features[\"x\"], tf.float32)" in file.after and "tf.data.Dataset" in file.after
    assert "    tf.compat.v1.Session().run(tf.cast(x, tf.float32))\n" in file.after


def test_line_endings_and_comments_stay(convert_text, tmp_path):
    text = program().replace("    main()", "    main()  # the end").replace("def main():", "def main():  # it starts")
    (tmp_path / "program.py").write_bytes(text.replace("\n", "\r\n").encode())
    (file,) = convert(tmp_path / "program.py").files
    assert file.keras and "\r\n" in file.after and "\n" not in file.after.replace("\r\n", "")
    assert "# the end" in file.after and "# it starts" in file.after
