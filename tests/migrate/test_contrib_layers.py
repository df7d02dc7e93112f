"""Layers, training steps and tables of tf.contrib on the way to Keras by layers, and what public programs do beside."""

from __future__ import annotations

import json
import re

import pytest

from estimator_pipeline import compat
from estimator_pipeline.migrate.code import convert
from estimator_pipeline.migrate.code.to_keras import convert_file as conversion
from tests.migrate.test_convert import run

PROGRAM = """\
import tensorflow as tf
IMPORTS

def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    net = NET
    logits = tf.layers.dense(net, 3, name='logits')
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'logits': logits})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits) + tf.losses.get_regularization_loss()
    accuracy = tf.metrics.accuracy(labels, tf.argmax(logits, 1))
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': accuracy})
    optimizer = tf.train.AdamOptimizer(params['rate'])
    train_op = TRAIN_OP
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train(data, steps):
    estimator = tf.estimator.Estimator(model_fn, 'model', params={'rate': 0.01})
    estimator.train(lambda: data(True), max_steps=steps)
    return estimator.evaluate(lambda: data(False))
"""
X = "features['x']"
STEP = "optimizer.minimize(loss, tf.train.get_global_step())"


@pytest.fixture(autouse=True)
def defects_are_raised(monkeypatch):
    monkeypatch.setattr(conversion, "DEFECTS", ())


@pytest.fixture
def made(tmp_path):
    """`made(net, train_op, imports)`: the program's conversion."""

    def made(net=f"tf.layers.dense({X}, 4)", train_op=STEP, imports="", to="keras-layers", change=None):
        source = tmp_path / "program.py"
        text = (
            PROGRAM if re.search(r"\boptimizer\b(?!=['t])", train_op) else PROGRAM.replace("    optimizer = ", "    # ")
        )
        for old, new in (change or {}).items():
            text = text.replace(old, new)
        source.write_text(text.replace("IMPORTS", imports).replace("NET", net).replace("TRAIN_OP", train_op))
        (found,) = convert(source, to=to).files
        return found

    return made


def layers(text: str) -> str:
    """What makes the network, without its line breaks."""
    return " ".join(text.split("def make_model(")[1].split('"""')[2].split("logits =")[0].split()).replace("( ", "(")


DENSE = "net = tf.keras.layers.Dense("
RELU = "activation=tf.nn.relu"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"tf.contrib.layers.fully_connected({X}, 4)", f"{DENSE}4, {RELU})({X})"),
        (f"tf.contrib.layers.fully_connected(inputs={X}, num_outputs=4, activation_fn=None, scope='a')",
         f"{DENSE}units=4, activation=None, name='a')({X})"),
        (f"tf.contrib.layers.fully_connected({X}, 4, tf.nn.tanh, biases_initializer=None)",
         f"{DENSE}4, tf.nn.tanh, use_bias=False)({X})"),
        (f"tf.contrib.layers.fully_connected({X}, 4, normalizer_fn=None, trainable=False)",
         f"{DENSE}4, trainable=False, {RELU})({X})"),
        (f"tf.contrib.layers.linear({X}, 4)", f"{DENSE}4)({X})"),
        (f"tf.contrib.layers.fully_connected({X}, 4, weights_regularizer=tf.contrib.layers.l2_regularizer(scale=0.1))",
         f"{DENSE}4, kernel_regularizer=tf.keras.regularizers.l2(0.5 * 0.1), {RELU})({X})"),
        (f"tf.contrib.layers.linear({X}, 4, biases_regularizer=tf.contrib.layers.l1_regularizer(scale=0.1))",
         f"{DENSE}4, bias_regularizer=tf.keras.regularizers.l1(0.1))({X})"),
        (f"tf.contrib.layers.linear({X}, 4, weights_regularizer=tf.contrib.layers.l1_l2_regularizer(0.1, 0.2 + 0.1))",
         f"{DENSE}4, kernel_regularizer=tf.keras.regularizers.l1_l2(l1=0.1, l2=0.5 * (0.2 + 0.1)))({X})"),
        (f"tf.contrib.layers.linear({X}, 4, weights_initializer=tf.contrib.layers.xavier_initializer(True))",
         f"{DENSE}4, kernel_initializer=tf.keras.initializers.GlorotUniform())({X})"),
        (f"tf.contrib.layers.linear({X}, 4, weights_initializer=tf.contrib.layers.variance_scaling_initializer("
         "factor=1.0, mode='FAN_OUT', uniform=True))",
         f"{DENSE}4, kernel_initializer=tf.keras.initializers.VarianceScaling(scale=1.0, mode='fan_out', "
         f"distribution='uniform'))({X})"),
        (f"tf.contrib.layers.conv2d({X}, 4, [3, 3])",
         f"net = tf.keras.layers.Conv2D(4, [3, 3], padding='same', {RELU})({X})"),
        (f"tf.contrib.layers.convolution2d({X}, 4, 3, 2, 'VALID', rate=1)",
         f"net = tf.keras.layers.Conv2D(4, 3, 2, 'valid', dilation_rate=1, {RELU})({X})"),
        (f"tf.contrib.layers.max_pool2d({X}, [2, 2])", f"net = tf.keras.layers.MaxPooling2D([2, 2], strides=2)({X})"),
        (f"tf.contrib.layers.avg_pool2d({X}, 2, stride=1, data_format='NHWC')",
         f"net = tf.keras.layers.AveragePooling2D(2, strides=1)({X})"),
        (f"tf.contrib.layers.flatten({X}, scope='flat')", f"net = tf.keras.layers.Flatten(name='flat')({X})"),
        (f"tf.contrib.layers.dropout(tf.contrib.layers.linear({X}, 4), 0.9, is_training=training)",
         f"net = tf.keras.layers.Dropout(rate=1 - 0.9)(tf.keras.layers.Dense(4)({X}))"),
        (f"tf.contrib.layers.dropout(tf.contrib.layers.linear({X}, 4))",
         f"net = tf.keras.layers.Dropout(rate=0.5)(tf.keras.layers.Dense(4)({X}), training=True)"),
    ],
)  # fmt: skip
def test_layers(made, before, after):
    found = made(before)
    assert found.keras and not found.left, found.kept_as_estimator
    assert layers(found.after) == after
    assert "slim" not in found.after and "contrib" not in found.after


@pytest.mark.parametrize(
    ("imports", "net"),
    [
        ("slim = tf.contrib.slim", f"slim.flatten(slim.fully_connected({X}, 4))"),
        ("import tensorflow.contrib.slim as slim", f"slim.flatten(slim.fully_connected({X}, 4))"),
        ("from tensorflow.contrib import layers", f"layers.flatten(layers.fully_connected({X}, 4))"),
        ("from tensorflow.contrib import layers as tfl", f"tfl.flatten(tfl.fully_connected({X}, 4))"),
        ("from tensorflow.contrib.layers import flatten, fully_connected as fc", f"flatten(fc({X}, 4))"),
        ("layers = tf.contrib.layers", f"layers.flatten(layers.fully_connected({X}, 4))"),
        ("import tf_slim as slim", f"slim.flatten(slim.layers.fully_connected({X}, 4))"),
    ],
)
def test_by_other_names(made, imports, net):
    """Neither is left of the import."""
    found = made(net, imports=imports)
    assert found.keras, found.kept_as_estimator
    assert layers(found.after) == f"net = tf.keras.layers.Flatten()(tf.keras.layers.Dense(4, {RELU})({X}))"
    assert "slim" not in found.after and "import layers" not in found.after and "layers = " not in found.after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tf.contrib.training.create_train_op(loss, optimizer)", "Adam(params['rate'], epsilon=1e-8)"),
        ("tf.contrib.slim.learning.create_train_op(total_loss=loss, optimizer=optimizer, summarize_gradients=True)",
         "Adam(params['rate'], epsilon=1e-8)"),
        ("tf.contrib.layers.optimize_loss(loss, tf.train.get_global_step(), 0.1, 'SGD')", "SGD(0.1)"),
        ("tf.contrib.layers.optimize_loss(\n        loss=loss, global_step=None, learning_rate=0.1,\n"
         "        optimizer=tf.train.AdamOptimizer, name='a', summaries=['loss'])", "Adam(0.1, epsilon=1e-8)"),
        ("tf.contrib.layers.optimize_loss(loss, None, None, optimizer)", "Adam(params['rate'], epsilon=1e-8)"),
        ("tf.contrib.layers.optimize_loss(loss, None, 0.1, optimizer='Momentum', clip_gradients=2.0)",
         "SGD(0.1, momentum=0.9, global_clipnorm=2.0)"),
    ],
)  # fmt: skip
def test_training_steps(made, before, after):
    found = made(train_op=before)
    assert found.keras, found.kept_as_estimator
    assert f"optimizer=tf.keras.optimizers.{after}" in found.after


def test_a_training_step_moves_the_statistics(made):
    """create_train_op and optimize_loss run what is in UPDATE_OPS: a program need not name it."""
    net = f"tf.layers.batch_normalization(tf.layers.dense({X}, 4), training=training)"
    found = made(net, "tf.contrib.layers.optimize_loss(loss, None, 0.1, 'Adam')")
    assert found.keras and "BatchNormalization()(" in found.after
    assert not made(net).keras


@pytest.mark.parametrize(
    ("net", "train_op", "construct"),
    [
        (f"tf.contrib.layers.batch_norm({X})", STEP, "tf.contrib.layers.batch_norm"),
        (f"tf.contrib.layers.fully_connected({X}, 4, normalizer_fn=tf.contrib.layers.layer_norm)", STEP,
         "tf.contrib.layers.fully_connected"),
        (f"tf.contrib.layers.stack({X}, tf.contrib.layers.fully_connected, [4])", STEP, "tf.contrib.layers.stack"),
        (f"tf.contrib.layers.conv2d({X}, 4, 3, data_format='NCHW')", STEP, "tf.contrib.layers.conv2d"),
        (f"tf.contrib.layers.fully_connected({X}, 4, **params)", STEP, "tf.contrib.layers.fully_connected"),
        (f"tf.layers.dense({X}, 4)", "tf.contrib.layers.optimize_loss(loss, None, 0.1, 'Adam', 0.5)",
         "tf.contrib.layers.optimize_loss"),
        (f"tf.layers.dense({X}, 4)", "tf.contrib.layers.optimize_loss(loss, None, 0.1, 'Adam', "
         "learning_rate_decay_fn=decay)", "tf.contrib.layers.optimize_loss"),
        (f"tf.layers.dense({X}, 4)", "tf.contrib.training.create_train_op(loss, optimizer, global_step=None)",
         "tf.contrib.training.create_train_op"),
    ],
)  # fmt: skip
def test_what_the_core_does_not_do_is_declined_by_its_name(made, net, train_op, construct):
    found = made(net, train_op)
    line = 6 if construct in net else 15
    assert found.kept_as_estimator == f"line {line}: {construct}, which Keras does not have"
    assert construct.rpartition(".")[2] in found.after and "layers.dense" in found.after


def test_lines_and_comments_stay(made):
    found = made(f"tf.contrib.layers.fully_connected(\n        {X},  # what is given\n        4)")
    assert found.keras and "# what is given" in found.after
    late = made(f"tf.contrib.layers.fully_connected({X}, 4,\n        normalizer_fn=None,\n        scope='a')",
                "tf.contrib.opt.LazyAdamOptimizer(0.1).minimize(loss)")  # fmt: skip
    assert late.kept_as_estimator.startswith("line 17: ")


def test_tables_of_words(made):
    """In an input function: as StaticHashTable, or by buckets as StaticVocabularyTable."""
    words = "table = tf.contrib.lookup.index_table_from_tensor(tf.constant(['a', 'b']))"
    found = made(imports=f"\n\ndef numbers(text):\n    {words}\n    return table.lookup(text)\n")
    assert found.keras, found.kept_as_estimator
    assert (
        "    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.constant(['a', 'b'])"
        in found.after
    )
    file = words.replace("tensor(tf.constant(['a', 'b'])", "file('words', num_oov_buckets=2")
    found = made(imports=f"\n\ndef numbers(text):\n    {file}\n    return table.lookup(text)\n")
    assert "tf.lookup.StaticVocabularyTable(tf.lookup.TextFileInitializer('words', tf.string, " in found.after
    odd = words.replace("'b'])", "'b']), dtype=tf.int64")
    assert not made(imports=f"\n\ndef numbers(text):\n    {odd}\n    return table.lookup(text)\n").keras


# What public programs do beside


def test_a_name_for_several_estimators_in_turn(made, tmp_path):
    """As the cells of a notebook have it; not within functions, nor where a function reads the name."""
    head = made().before.split("def train(")[0] + "data = print\n"
    part = "estimator = tf.estimator.Estimator(model_fn, 'FOLDER', params={'rate': 0.01})\n" \
           "estimator.train(lambda: data(True), steps=3)\nprint(estimator.evaluate(lambda: data(False)))\n"  # fmt: skip
    source = tmp_path / "program.py"
    source.write_text(head + part.replace("FOLDER", "first") + part.replace("FOLDER", "second"))
    (found,) = convert(source, to="keras-layers").files
    assert found.keras, found.kept_as_estimator
    first, second = found.after.split("data = print\n")[1].split("'first', 'weights'")
    assert "'second'" in second and "'first'" not in second and "'second'" not in first
    assert first.count("make_model(") == second.count("make_model(") == 1
    source.write_text(source.read_text() + "\n\ndef again():\n    estimator.train(lambda: data(True), steps=3)\n")
    assert (
        "estimator is also used for something other than the Estimator"
        in convert(source, to="keras-layers").files[0].kept_as_estimator
    )


def test_a_spec_that_is_returned_behind_a_branch(tmp_path):
    text = PROGRAM.replace("IMPORTS", "").replace("NET", f"tf.layers.dense({X}, 4)").replace("TRAIN_OP", STEP)
    head, rest = text.split("    if mode == tf.estimator.ModeKeys.PREDICT:\n")
    rest, tail = rest.split("\n\ndef train(")
    rest = (
        rest.split("\n", 1)[1]
        .replace("    if mode == tf.estimator.ModeKeys.EVAL:\n", "")
        .replace("        return", "    eval_spec =")
    )
    lines = [f"    {line}" for line in rest.replace("    return tf", "    spec = tf").splitlines()
             if "eval_spec" not in line]  # fmt: skip
    lines[-1] = lines[-1].replace("train_op=train_op", "train_op=train_op, eval_metric_ops={'accuracy': accuracy}")
    source = tmp_path / "program.py"
    source.write_text(
        f"{head}    if mode == tf.estimator.ModeKeys.PREDICT:\n"
        "        spec = tf.estimator.EstimatorSpec(mode, predictions={'logits': logits})\n    else:\n"
        + "\n".join(lines) + f"\n    return spec\n\n\ndef train({tail}"
    )  # fmt: skip
    (found,) = convert(source, to="keras-layers").files
    assert found.keras, found.kept_as_estimator
    assert "return {'logits': logits}" in found.after and "self.accuracy_metric.update_state(" in found.after


CANNED = """\
import tensorflow as tf

COLUMNS = [tf.feature_column.numeric_column('x')]


def build(kind):
    if kind == 'wide':
        made = tf.estimator.LinearClassifier(COLUMNS, model_dir='model')
    else:
        made = tf.estimator.DNNClassifier([8], COLUMNS, model_dir='model')
    return made


def main(kind, data):
    model = build(kind)
    if data:
        model.train(data, steps=3)
    REST
"""


def test_a_function_that_returns_one_of_several(tmp_path):
    source = tmp_path / "program.py"
    source.write_text(
        CANNED.replace("    if data:\n    ", "")
        .replace("REST", "print(model.evaluate(data))")
        .replace("(data", "(lambda: data()")
    )
    (found,) = convert(source, to="keras-layers").files
    assert found.keras, found.kept_as_estimator
    assert "        made = keras_canned.LinearClassifier(" in found.after and "    return made\n" in found.after


def test_a_model_that_was_trained_in_another_branch(tmp_path):
    """An Estimator loads its checkpoint there."""
    source = tmp_path / "program.py"
    source.write_text(CANNED.replace("REST", "else:\n        print(list(model.predict(data)))"))
    assert "may not have been trained" in convert(source, to="keras-layers").files[0].kept_as_estimator


KERAS = f"keras.layers.Dropout(0.5)(keras.layers.Dense(4)({X}))"


@pytest.mark.parametrize(
    ("imports", "net"),
    [
        ("keras = tf.keras", KERAS),
        ("from tensorflow import keras", KERAS),
        ("from tensorflow.python import keras", KERAS),
        ("from tensorflow.python.keras.layers import Dense, Dropout", KERAS.replace("keras.layers.", "")),
    ],
)
def test_layers_of_keras_as_tensorflow_1_had_it(made, imports, net):
    """The graph of an Estimator does not tell them that it trains."""
    found = made(net, imports=imports)
    assert found.keras, found.kept_as_estimator
    written = f"tf.keras.layers.Dropout(0.5)(tf.keras.layers.Dense(4)({X}), training=False)"
    assert layers(found.after) in (f"net = {written}", f"net = {written.replace('tf.keras', 'keras')}")
    assert "python" not in found.after


def test_a_learning_phase_that_is_set_by_the_mode(made):
    phase = "if training:\n        tf.keras.backend.set_learning_phase(1)\n    else:\n" \
            "        tf.keras.backend.set_learning_phase(0)\n    net = "  # fmt: skip
    found = made(f"0\n    {phase}{KERAS.replace('keras', 'tf.keras')}")
    assert found.keras, found.kept_as_estimator
    assert (
        "Dropout(0.5)(tf.keras.layers.Dense(4)" in layers(found.after)
        and "training=False)\n" not in found.after.split("def make")[1]
    )
    assert "set_learning_phase" not in found.after
    odd = made(f"0\n    {phase.replace('phase(0)', 'phase(1)')}{KERAS.replace('keras', 'tf.keras')}")
    assert "a learning phase that does not follow the mode" in odd.kept_as_estimator


def test_functions_of_v1_by_the_names_of_their_arguments(made):
    """TensorFlow 2 has them so, and Keras 3 a counterpart."""
    loss = "tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))"
    change = {
        "tf.losses.sparse_softmax_cross_entropy(labels, logits)": loss,
        "{'logits': logits}": "{'share': tf.nn.softmax(logits=logits)}",
    }
    text = made(change=change).after
    assert f"loss = {loss} + sum(self.losses)" in text and "tf.nn.softmax(logits=logits)" in text
    text = made(change=change, to="keras3").after
    assert "keras.ops.sparse_categorical_crossentropy(" in text and "keras.ops.softmax(" in text


def test_a_layer_with_other_defaults_in_tensorflow_1(made):
    found = made(f"tf.compat.v1.keras.layers.LSTM(4)({X})")
    assert "whose defaults differ" in found.kept_as_estimator


PROOF = """
import numpy as np
import tensorflow as tf

def data():
    random = np.random.default_rng(1)
    x = random.normal(size=(60, 8, 8, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({'x': x}, random.integers(0, 3, 60))).batch(20)

def estimator(program):
    return tf.compat.v1.estimator.Estimator(program.model_fn, params={"rate": 0.01})

def model(made):
    return made.make_model(made.model_inputs(data()), {"rate": 0.01})

def input_fn(program):
    return data().repeat()

def eval_input_fn(program):
    return data()
"""
NETWORK = f"""slim.conv2d({X}, 4, [3, 3], scope='conv1')
    net = slim.flatten(slim.avg_pool2d(slim.max_pool2d(net, 2), [2, 2], stride=1, padding='SAME'))
    net = slim.fully_connected(net, 8, weights_regularizer=slim.l2_regularizer(scale=0.05), biases_initializer=None)
    net = slim.dropout(net, 1.0, is_training=training)
    net = slim.fully_connected(net, 5, tf.nn.tanh, weights_initializer=slim.variance_scaling_initializer())"""


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["keras-layers", pytest.param("keras3", marks=pytest.mark.keras_3)])
@pytest.mark.parametrize(
    "train_op",
    [
        "tf.contrib.layers.optimize_loss(loss, tf.train.get_global_step(), 0.01, 'Adam', clip_gradients=1.0)",
        "slim.learning.create_train_op(loss, optimizer)",
    ],
)
def test_it_trains_as_the_estimator_did(target, train_op, made, tmp_path, capsys):
    """Every kind of layer with weights, the regularization loss, either training step; weights matched by names."""
    tf = compat.tensorflow()
    import keras

    for one in (keras, tf.keras):  # layers without names have numbers
        one.backend.clear_session()
    made(NETWORK, train_op, "slim = tf.contrib.slim")
    proof, out = tmp_path / "proof.py", tmp_path / "out"
    proof.write_text(PROOF)
    command = ["migrate", "convert", tmp_path / "program.py", "--target", target, "--parity", proof, "--steps", "8"]
    code, told, wrong = run([*command, "--output", out], capsys)
    assert code == 0 and "program.py: converted to Keras" in told, wrong
    assert json.loads((out / "parity.json").read_text())["equal"] is True


@pytest.mark.nightly
def test_initial_values_are_those_of_contrib():
    """Of a truncated normal the largest of many values is where it is cut."""
    import numpy as np

    tf = compat.tensorflow()
    import tf_slim

    for mode in ("FAN_IN", "FAN_AVG"):
        theirs = tf_slim.variance_scaling_initializer(factor=2.0, mode=mode)((1000, 500), dtype=tf.float32)
        ours = tf.keras.initializers.VarianceScaling(1.3 * 0.8796256610342398**2 * 2.0, mode.lower())((1000, 500))
        assert np.isclose(np.abs(theirs).max(), np.abs(ours).max(), rtol=1e-4)
        assert np.isclose(np.std(theirs), np.std(ours), rtol=5e-3)
