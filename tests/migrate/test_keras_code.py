"""`migrate convert` to Keras: what is written, what is declined and why, and that the scan promises no more."""

from __future__ import annotations

import ast
import functools
import json
import math
import re
import types
from pathlib import Path
from unittest import mock

import pytest

from estimator_pipeline.migrate.code import convert, scan, summary
from estimator_pipeline.migrate.code.to_keras import convert_file as conversion
from estimator_pipeline.migrate.code.to_keras.convert_file import DEFECTS
from estimator_pipeline.migrate.code.to_keras.helpers import HELPERS
from estimator_pipeline.migrate.code.to_keras3.support import PARTS as PARTS_OF_KERAS_3
from tests.migrate.test_convert import run
from tests.migrate.test_corpus import PROGRAMS

# What becomes Keras as a whole, and what declines a file.

HERE = Path(__file__).resolve().parent
# Of the corpus: they are Keras after conversion. How many of their constructs are left, and are none of Estimators.
KERAS = {
    "ads_parameter_server": 2,  # TF_CONFIG
    "ads_v1_canned": 0,
    "anomaly_vae": 0,
    "census_wide_deep": 0,
    "churn_exporters": 0,
    "demand_rnn": 0,
    "demand_model_to_estimator": 0,
    "digit_convnet": 0,
    "digit_gan": 0,
    "house_prices": 0,
    "movie_deepfm": 0,
    "mnist_multiworker": 2,  # TF_CONFIG
    "mnist_tf1": 0,
    "order_heads": 0,
    "review_sentiment": 0,
    "tumour_linear": 0,
    "turbine_hooks": 0,
    "warm_start_transfer": 0,
    "wine_keras_layers": 0,
}
# The other one stays an Estimator program, for this.


@pytest.fixture(autouse=True)
def defects_are_raised(monkeypatch):
    monkeypatch.setattr(conversion, "DEFECTS", ())


@functools.cache
def made_of(name: str):
    (made,) = convert(HERE / "corpus" / f"{name}.py", to="keras-layers").files
    return made


@pytest.mark.parametrize("name", KERAS)
def test_golden(name):
    """To accept a change: estimator-pipeline migrate convert the program, and copy it to keras/."""
    made = made_of(name)
    assert made.keras and not made.kept_as_estimator and not made.left
    assert made.after == (HERE / "keras" / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.parametrize("name", KERAS)
def test_nothing_of_an_estimator_is_left(name, tmp_path):
    """The scan of what was written finds none, and what the scan of the program promised is what is gone."""
    program = HERE / "corpus" / f"{name}.py"
    (tmp_path / "made.py").write_text(made_of(name).after)
    before, after = scan(program), scan(tmp_path / "made.py")
    assert not re.search(r"\btf\.(estimator|compat\.v1|feature_column)\b", _code(tmp_path / "made.py"))
    promised = {one.name for one in before.findings if one.treatment == "automatic"}
    kinds = {one.kind for one in after.findings}
    assert not promised & {one.name for one in after.findings if one.kind not in ("input_fn", "serving input")}
    # Functions that are called as such ones are by name.
    assert kinds <= {"input_fn", "serving input", "tf_config", "strategy"}
    assert before.count("unchanged") == KERAS[name] and before.count("manual") == 0


def _code(path: Path) -> str:
    """A module's text without comments and its docstring."""
    module = ast.parse(path.read_text())
    if ast.get_docstring(module) is not None:
        del module.body[0]
    return ast.unparse(module)


def test_line_ends_are_kept(tmp_path):
    text = (HERE / "corpus" / "ads_v1_canned.py").read_text()
    (tmp_path / "ads_v1_canned.py").write_bytes(text.replace("\n", "\r\n").encode())
    (file,) = convert(tmp_path, to="keras-layers").files
    assert set(re.findall(r"\r\n|\r|\n", file.after)) == {"\r\n"}
    assert file.after.replace("\r\n", "\n") == made_of("ads_v1_canned").after


def test_what_stays_says_why():
    """Not a byte of it changes."""
    files = convert(HERE / "corpus" / "digit_service", to="keras-layers").files
    assert not any(made.keras or made.before != made.after for made in files)
    said = {made.path: made.kept_as_estimator for made in files if made.kept_as_estimator}
    assert said["train.py"] == "line 9: tf, a part of TensorFlow that is imported from another file"


def test_to_estimator(tmp_path, capsys):
    program = HERE / "corpus" / "digit_convnet.py"
    (made,) = convert(program, to="estimator").files
    assert made.before == made.after and not made.keras
    code, _, err = run(["migrate", "convert", program, "--output", tmp_path / "out", "--to", "pytorch"], capsys)
    assert code == 2 and "to 'pytorch': unknown value" in err


def test_the_summary_and_the_document(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "wine_keras_layers.py").write_text((HERE / "corpus" / "wine_keras_layers.py").read_text())
    (folder / "alone.py").write_text("import tensorflow as tf\n\nspec = tf.estimator.EstimatorSpec('infer')\n")
    told, why = summary(convert(folder, to="keras-layers")), "line 3: no Estimator is created in this file"
    assert "To Keras: 1 of 2 files with Estimators; converted, not run\n" in told
    assert "  wine_keras_layers.py: converted to Keras" in told
    assert f"  alone.py: remains an Estimator program: {why}" in told
    arguments = [
        "migrate",
        "convert",
        folder,
        "--output",
        tmp_path / "out",
        "--json",
        "--to",
        "keras-layers",
    ]  # its name in 0.1.0
    code, out, _ = run(arguments, capsys)
    document = json.loads(out)
    assert code == 0 and document["keras"] == ["wine_keras_layers.py"]
    assert [one["kept_as_estimator"] for one in document["files"]] == [why, None]


OLD = """import tensorflow as tf

def model_fn(features, labels, mode, params):
    # Two layers.
    net = tf.layers.dense(features['x'], 16, tf.nn.relu, name='hidden')  # wide
    net = tf.layers.dropout(net, 0.2, training=mode == tf.estimator.ModeKeys.TRAIN)
    logits = tf.layers.dense(net, 3, name='logits')
    predicted = tf.argmax(logits, axis=1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'class': predicted})
    loss = LOSS
    tf.summary.scalar('loss', loss)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': METRIC})
    train_op = OPTIMIZER.minimize(loss, tf.train.get_global_step())
    hook = tf.train.LoggingTensorHook({'loss': loss}, every_n_iter=10)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[hook])


def input_fn():
    data = tf.data.Dataset.from_tensor_slices(({'x': [[1., 2.], [2., 1.]]}, [0, 1]))
    return data.batch(2).make_one_shot_iterator().get_next()


if __name__ == '__main__':
    estimator = tf.estimator.Estimator(model_fn, 'model', params={'rate': 0.01})
    estimator.train(input_fn, steps=100)
    print(estimator.evaluate(input_fn))
"""
PARTS = {
    "LOSS": "tf.losses.sparse_softmax_cross_entropy(labels, logits)",
    "METRIC": "tf.metrics.accuracy(labels, predicted)",
    "OPTIMIZER": "tf.train.AdamOptimizer(params['rate'])",
}


def old(tmp_path, **parts: str):
    text = OLD
    for name, part in {**PARTS, **parts}.items():
        text = text.replace(name, part)
    (tmp_path / "old.py").write_text(text)
    (made,) = convert(tmp_path / "old.py", to="keras-layers").files
    ast.parse(made.after)
    return made


READS = "    return data.batch(2).make_one_shot_iterator().get_next()\n"
BATCHES = [
    (
        "    data = data.batch(2)\n    iterator = data.make_one_shot_iterator()\n"
        "    features, labels = iterator.get_next()  # a batch\n    # Twice.\n"
        "    features = {'x': features['x'] * 2}\n\n    return features, labels\n",
        "    data = data.batch(2)\n\n    def prepare_batch(features, labels):  # a batch\n        # Twice.\n"
        "        features = {'x': features['x'] * 2}\n\n        return features, labels\n\n"
        "    return data.map(prepare_batch)\n",
    ),
    (
        "    batch = data.batch(2).make_one_shot_iterator().get_next()\n    return batch[0], batch[1]\n",
        "\n    def prepare_batch(*batch):\n        return batch[0], batch[1]\n\n"
        "    return data.batch(2).map(prepare_batch)\n",
    ),
    (
        "    x, y = data.batch(2).make_one_shot_iterator().get_next()\n    if y is None:\n        return x\n"
        "    return x, y\n",
        "\n    def prepare_batch(x, y):\n        if y is None:\n            return x\n        return x, y\n\n"
        "    return data.batch(2).map(prepare_batch)\n",
    ),
    (
        "    x = data.batch(2).make_one_shot_iterator().get_next()\n    return x, None\n",
        "    return data.batch(2)\n",
    ),
]


@pytest.mark.parametrize(("reads", "written"), BATCHES)
def test_what_is_done_with_a_batch_is_a_function_of_the_data_set(tmp_path, reads, written):
    source = tmp_path / "reads.py"
    text = functools.reduce(lambda text, one: text.replace(*one), PARTS.items(), OLD)
    source.write_text(text.replace(READS, reads))
    (made,) = convert(source, to="keras-layers").files
    assert f"[0, 1]))\n{written}" in made.after and not made.left


@pytest.mark.parametrize(
    "reads",
    [
        "    with tf.device('/cpu:0'):\n        x, y = data.make_one_shot_iterator().get_next()\n        return x, y\n",
        "    if not data:\n        return None\n    x, y = data.make_one_shot_iterator().get_next()\n    return x, y\n",
        "    x, y = data.make_one_shot_iterator().get_next()\n    x = f(x, '''a\nb''')\n    return x, y\n",
    ],
)
def test_a_batch_that_is_no_function_of_the_data_set(tmp_path, reads):
    """Another return before it, a block around it, a string of several lines, which an indentation would change."""
    source = tmp_path / "reads.py"
    text = functools.reduce(lambda text, one: text.replace(*one), PARTS.items(), OLD)
    source.write_text(text.replace(READS, reads))
    (made,) = convert(source, to="keras-layers").files
    assert not made.keras and re.search("batch|a string of several lines", made.kept_as_estimator)


def test_what_all_modes_do_with_the_output_is_done_once(tmp_path):
    """`logits = tf.squeeze(logits)` is part of the network: neither the loss nor the predictions do it again."""
    source = tmp_path / "once.py"
    text = functools.reduce(lambda text, one: text.replace(*one), PARTS.items(), OLD)
    last = "    logits = tf.layers.dense(net, 3, name='logits')\n"
    source.write_text(text.replace(last, f"{last}    logits = tf.identity(logits * 2)\n"))
    (made,) = convert(source, to="keras-layers").files
    assert made.keras and made.after.count("logits = tf.identity(logits * 2)\n") == 1
    assert made.after.index("tf.identity(") > made.after.index("def make_model(")


@pytest.mark.parametrize(
    ("line", "layer"),
    [
        ("from tensorflow import keras", "keras.layers.Dense"),
        ("from tensorflow.keras import layers", "layers.Dense"),
        ("from tensorflow.keras.layers import Dense", "Dense"),
        ("import tensorflow.keras as K", "K.layers.Dense"),
    ],
)
def test_layers_of_keras_in_a_model_fn_of_tensorflow_1(tmp_path, line, layer):
    """The module of TensorFlow 1 is another one, but what is asked of it here is the same thing."""
    source = tmp_path / "layers.py"
    text = functools.reduce(lambda text, one: text.replace(*one), PARTS.items(), OLD)
    text = text.replace("tf.layers.dense(net, 3, name='logits')", f"{layer}(3, name='logits')(net)")
    source.write_text(text.replace("import tensorflow as tf\n", f"import tensorflow as tf\n{line}\n"))
    (made,) = convert(source, to="keras-layers").files
    assert made.keras and line in made.after, made.kept_as_estimator


BRANCHES = """import tensorflow as tf


def network():
    l = tf.keras.layers
    return tf.keras.Sequential([l.Dense(8), l.Dropout(0.4), l.Dense(3)])


def model_fn(features, labels, mode):
    model = network()
    x = features
    if isinstance(x, dict):
        x = features['x']
    if mode == tf.estimator.ModeKeys.PREDICT:
        logits = model(x, training=False)
        return tf.estimator.EstimatorSpec(mode=mode, predictions={'class': tf.argmax(logits, 1)})
    if mode == tf.estimator.ModeKeys.TRAIN:
        logits = model(x, training=TRAINING)
        loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
        train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)
    if mode == tf.estimator.ModeKeys.EVAL:
        logits = model(GIVEN, training=False)
        loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss)


estimator = tf.estimator.Estimator(model_fn, 'model')
estimator.train(lambda: tf.data.Dataset.from_tensor_slices(([[1., 2.]], [0])).batch(1))
"""


@pytest.mark.parametrize(
    ("training", "given", "keras"),
    [
        ("True", "x", True),
        ("mode == tf.estimator.ModeKeys.TRAIN", "x", True),
        ("False", "x", False),
        ("True", "x * 2", False),
    ],
)
def test_a_model_that_each_branch_calls(tmp_path, training, given, keras):
    """As it trains in the one and does not in the others: Keras says so by itself. Otherwise it is another network."""
    source = tmp_path / "branches.py"
    source.write_text(BRANCHES.replace("TRAINING", training).replace("GIVEN", given))
    (made,) = convert(source, to="keras-layers").files
    assert made.keras is keras, made.kept_as_estimator
    assert not keras or (made.after.count("logits = model(x)\n") == 1 and "    l = tf.keras.layers\n" in made.after)


@pytest.mark.parametrize(("dropout", "call"), [("l.Dropout(0.4), ", "model(x, training=False)"), ("", "model(x)")])
def test_a_model_that_is_not_told_whether_it_trains(tmp_path, dropout, call):
    """In the graph of an Estimator it drops nothing, in `fit` of Keras it would."""
    source = tmp_path / "untold.py"
    text = re.sub(r", training=\w+\)", ")", BRANCHES).replace("GIVEN", "x").replace("l.Dropout(0.4), ", dropout)
    source.write_text(text)
    (made,) = convert(source, to="keras-layers").files
    assert made.keras and f"    logits = {call}\n" in made.after, made.kept_as_estimator


def test_functions_that_are_written_come_before_what_calls_them(tmp_path):
    """A script reads its data before its model_fn, as notebooks do."""
    source = tmp_path / "reads.py"
    text = functools.reduce(lambda text, one: text.replace(*one), PARTS.items(), OLD)
    reads = "read = tf.estimator.inputs.numpy_input_fn({'x': X}, Y, shuffle=False)\nprint(read())\n\ndef model_fn("
    text = text.replace("\ndef model_fn(", f"X = Y = [1]\n{reads}", 1)
    source.write_text(text.replace("estimator.train(input_fn", "estimator.train(read"))
    (made,) = convert(source, to="keras-layers").files
    assert made.keras and made.after.index("def batches(") < made.after.index("read = batches("), made.kept_as_estimator
    assert "\nprint(read)\n" in made.after  # a data set, and no function any more


def test_predictions_that_are_no_dict(tmp_path):
    """An Estimator gives them one by one, without a key."""
    source = tmp_path / "alone.py"
    text = functools.reduce(lambda text, one: text.replace(*one), PARTS.items(), OLD)
    text = text.replace("predictions={'class': predicted}", "predictions=predicted")
    source.write_text(f"{text}    print(list(estimator.predict(input_fn)))\n")
    (made,) = convert(source, to="keras-layers").files
    assert "print(list((prediction['output'] for prediction in examples(model, input_fn()))))" in made.after


OUTPUTS = """    outputs = tf.estimator.export.PredictOutput({'class': GIVEN})
    if mode == tf.estimator.ModeKeys.PREDICT:
        export = {tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: outputs}
        return tf.estimator.EstimatorSpec(mode, predictions={'class': predicted}, export_outputs=export)
"""
SERVED = """

def serving():
    x = tf.placeholder(tf.float32, [None, 2])
    return tf.estimator.export.ServingInputReceiver({'x': x}, {'x': x})


estimator.export_savedmodel('out', serving)
"""


@pytest.mark.parametrize(("given", "keras"), [("predicted", True), ("predicted + 1", False)])
def test_outputs_of_an_export_by_names(tmp_path, given, keras):
    """An output that is all predictions in other words; others are declined."""
    source = tmp_path / "export.py"
    text = functools.reduce(lambda text, one: text.replace(*one), PARTS.items(), OLD).replace(
        "if __name__ == '__main__':\n    estimator", "estimator"
    )
    first = text.index("    if mode == tf.estimator.ModeKeys.PREDICT")
    text = text[:first] + OUTPUTS.replace("GIVEN", given) + text[text.index("    loss = ") :]
    text = text[: text.index("    estimator.train")]
    source.write_text(f"{text}estimator.train(input_fn, steps=2){SERVED}")
    (made,) = convert(source, to="keras-layers").files
    assert made.keras is keras, made.kept_as_estimator
    assert keras == ("signatures={'serving_default': predict, 'predict': predict}" in made.after)


def test_a_model_fn_that_asks_for_params_of_an_estimator_without(tmp_path):
    """An Estimator hands it an empty dict."""
    source = tmp_path / "without.py"
    text = functools.reduce(lambda text, one: text.replace(*one), PARTS.items(), OLD)
    source.write_text(text.replace(", params={'rate': 0.01}", "").replace("params['rate']", "params.get('rate', 1)"))
    (made,) = convert(source, to="keras-layers").files
    assert "make_model(model_inputs(training), {})" in made.after


def test_a_program_of_tensorflow_1(tmp_path):
    """Its names first, then all of it to Keras: nothing is left, and comments are kept."""
    made = old(tmp_path)
    assert made.keras and not made.left and not made.unchanged and "compat" not in re.sub("#.*", "", made.after)
    for line in (
        "    # Two layers.\n    net = tf.keras.layers.Dense(16, tf.nn.relu, name='hidden')(features['x'])  # wide\n",
        "    net = tf.keras.layers.Dropout(0.2)(net)\n",
        "    model.compile(optimizer=tf.keras.optimizers.Adam(params['rate'], epsilon=1e-8))\n",
        "    return data.batch(2)\n",
        "    # Was tf.compat.v1.summary.scalar('loss', loss)\n",
    ):
        assert line in made.after


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        ({"OPTIMIZER": "tf.train.GradientDescentOptimizer(0.1)"}, "tf.keras.optimizers.SGD(0.1)"),
        ({"OPTIMIZER": "tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True)"},
         "tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)"),
        ({"OPTIMIZER": "tf.train.AdamOptimizer(0.1, beta1=0.5, epsilon=1e-4)"},
         "tf.keras.optimizers.Adam(0.1, beta_1=0.5, epsilon=1e-4)"),
        ({"OPTIMIZER": "tf.train.RMSPropOptimizer(0.1, decay=0.8)"},
         "keras_optimizers.make(Optimizer(name='rmsprop', learning_rate=0.1, options={'decay': 0.8}))"),
        ({"OPTIMIZER": "tf.train.AdagradOptimizer(tf.train.exponential_decay("
                       "0.1, tf.train.get_global_step(), 10, 0.9, staircase=True))"},
         "tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9, staircase=True)"),
        ({"OPTIMIZER": "tf.train.ProximalAdagradOptimizer(0.1, l1_regularization_strength=0.2)"},
         "optimizer=keras_optimizers.proximal_adagrad(0.1, l1_regularization_strength=0.2)"),
        ({"LOSS": "tf.losses.mean_squared_error(labels, logits)"},
         "loss = tf.reduce_mean(tf.keras.losses.mean_squared_error(labels, logits))"),
        ({"LOSS": "tf.losses.softmax_cross_entropy(tf.one_hot(labels, 3), logits, label_smoothing=0.1)"},
         "categorical_crossentropy(tf.one_hot(labels, 3), logits, from_logits=True, label_smoothing=0.1)"),
        ({"METRIC": "tf.metrics.recall(labels, predicted)"},
         "self.accuracy_metric.update_state(tf.cast(labels, tf.bool), tf.cast(predicted, tf.bool))"),
    ],
)  # fmt: skip
def test_arithmetic(tmp_path, parts, written):
    made = old(tmp_path, **parts)
    assert made.keras and written in made.after, made.kept_as_estimator


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"LOSS": "tf.losses.mean_squared_error(labels, logits, weights=features['w'])"},
         "weights of mean_squared_error: its mean differs from that of Keras"),
        ({"METRIC": "tf.metrics.mean_per_class_accuracy(labels, predicted, 3)"}, "has no equal in Keras"),
        ({"OPTIMIZER": "tf.train.AdagradDAOptimizer(0.1, None)"}, "has no equal in Keras"),
        ({"OPTIMIZER": "tf.train.AdamOptimizer(0.1, use_locking=False, amsgrad=1)"}, "amsgrad of AdamOptimizer"),
        ({"LOSS": "tf.reduce_mean(tf.get_variable('w', [1]))"}, ""),
    ],
)  # fmt: skip
def test_what_would_not_be_equal_is_declined(tmp_path, parts, reason):
    made = old(tmp_path, **parts)
    assert not made.keras and reason in made.kept_as_estimator
    # It is a program of TensorFlow 2 all the same.
    assert "tf.compat.v1.layers.dense" in made.after


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("    estimator.train(input_fn, steps=100)", "    estimator.train(input_fn, hooks=[Mine()])", "a hook without"),
        ("    estimator.train(input_fn, steps=100)", "    other(estimator)", "the Estimator estimator is passed on"),
        ("    estimator.train(input_fn, steps=100)", "    pass", "an Estimator that is not trained in this file"),
        ("    estimator.train(input_fn, steps=100)", "    while True:\n        estimator.train(input_fn, steps=100)\n"
         "        estimator.evaluate(input_fn)\n        break", "used where it may not have been trained"),
        ("    print(estimator.evaluate(input_fn))", "    estimator.evaluate(input_fn, checkpoint_path='a')",
         "an evaluation of a different checkpoint"),
        ("    print(estimator.evaluate(input_fn))", "    print(estimator.get_variable_value('a'))", ""),
        ("params={'rate': 0.01})", "params={'rate': 0.01}, warm_start_from='b')", ""),
        ("params={'rate': 0.01})", "params={'rate': 0.01}, warm_start_from=tf.estimator.WarmStartSettings('b', "
         "var_name_to_vocab_info={'w': None}))", "a warm start with var_name_to_vocab_info"),
        ("    estimator.train(input_fn, steps=100)", "    if OLD:\n        estimator.train(input_fn, steps=100)", ""),
        ("    estimator.train(input_fn, steps=100)", "    if input_fn():\n        estimator.train(input_fn, steps=1)",
         "an Estimator that is used where it may not have been trained"),
        ("    estimator.train(input_fn, steps=100)", "    if OLD:\n        pass\n    else:\n"
         "        estimator.train(input_fn, steps=1)", "an Estimator that is used where it may not have been trained"),
        ("params={'rate': 0.01})", "params={'rate': 0.01}, config=made_elsewhere())", "RunConfig that is not created"),
        ("    logits =", "    tf.debugging.check_numerics(net, 'a')\n    logits =", "with a side effect"),
        ("0.2, training=mode == tf.estimator.ModeKeys.TRAIN", "0.2, training=params['t']", "cannot determine whether"),
        ("    predicted =", "    if mode == tf.estimator.ModeKeys.TRAIN:\n        logits = logits * 2\n    predicted =",
         "a branch on the mode that is not part of the network"),
        ("    logits =", "    net = tf.layers.batch_normalization(net, training=mode == tf.estimator.ModeKeys.TRAIN)\n"
                         "    logits =", "does not update the moving statistics of batch normalization"),
        ("    net = tf.layers.dense(", "    features = other(features)\n    net = tf.layers.dense(", ""),
        ("{'class': predicted}", "{'class': predicted, 'x': features['x']}", ""),
        ("    logits =", "    with tf.variable_scope('a', reuse=params['again']):\n"
                         "        net = tf.layers.dense(net, 3)\n    logits =", "reused by name"),
        ("    predicted =", "    if mode == tf.estimator.ModeKeys.TRAIN:\n"
                            "        logits = tf.layers.dense(logits, 3)\n    predicted =",
         "a branch on the mode that does not return"),
        ("    logits =", "    if mode == tf.estimator.ModeKeys.TRAIN:\n"
                         "        net = tf.layers.dropout(net, 0.5, training=True)\n    logits =", ""),
        ("    logits =", "    w = tf.get_variable('w', [2, 16])\n    net += tf.nn.embedding_lookup(w, labels)\n"
                         "    logits =", "a network that takes the labels as input"),
        ("    logits =", "    w = tf.get_variable('w', [9, 16])\n"
                         "    net += tf.nn.embedding_lookup(w, features['i'])\n    logits =", ""),
        ("    logits =", "    w = tf.get_variable('w', [9, 16], trainable=False)\n"
                         "    net += tf.nn.embedding_lookup(w, features['i'])\n    logits =",
         "trainable of get_variable has no counterpart in an Embedding"),
        ("    logits =", "    w = tf.get_variable('w', [9, 16])\n    net += w[0]\n"
                         "    net += tf.nn.embedding_lookup(w, features['i'])\n    logits =",
         ""),
        ("    logits =", "    w = tf.get_variable('w', [16], collections=['a'])\n    net += w\n    logits =",
         "a variable in collections that cannot be determined, or that is not saved"),
        ("    logits =", "    w = tf.get_variable('w', initializer=[1.])\n    net += w\n    logits =",
         "a variable without an explicit name and shape"),
        ("    logits =", "    p = tf.fixed_size_partitioner(2)\n    with tf.variable_scope('a', partitioner=p):\n"
                         "        w = tf.get_variable('w', [9, 16])\n        v = 2. * w\n"
                         "    net += tf.nn.embedding_lookup(v, features['i'])\n    logits =",
         "rows of a partitioned variable, which are numbered in a different order"),
        ("OPTIMIZER.minimize(loss, tf.train.get_global_step())",
         "OPTIMIZER.apply_gradients([(2. * g, v) for g, v in OPTIMIZER.compute_gradients(loss)])",
         "several optimizers"),
        ("    train_op = OPTIMIZER.minimize(loss, tf.train.get_global_step())",
         "    optimizer = OPTIMIZER\n    grads = optimizer.compute_gradients(loss)\n"
         "    train_op = optimizer.apply_gradients([(2. * g, v) for g, v in grads])", "changed other than by clipping"),
        ("    train_op = OPTIMIZER.minimize(loss, tf.train.get_global_step())",
         "    optimizer = OPTIMIZER\n    grads, v = zip(*optimizer.compute_gradients(loss))\n"
         "    grads = [tf.sign(g) for g in grads]\n"
         "    train_op = optimizer.apply_gradients(zip(grads, v))", "changed other than by clipping"),
        ("    train_op = OPTIMIZER.minimize(loss, tf.train.get_global_step())",
         "    optimizer = OPTIMIZER\n    grads, v = zip(*optimizer.compute_gradients(loss))\n"
         "    grads = [tf.clip_by_norm(g, 1.) for g in grads]\n"
         "    train_op = optimizer.apply_gradients(zip(grads, v))", ""),
        ("    logits =", "    cell = tf.nn.rnn_cell.GRUCell(4)\n"
                         "    net, _ = tf.nn.dynamic_rnn(cell, net, dtype=tf.float32)\n    logits =", ""),
        ("    logits =", "    cell = tf.nn.rnn_cell.GRUCell(4)\n"
                         "    net, s = tf.nn.dynamic_rnn(cell, net, dtype=tf.float32)\n    logits =",
         "the last state of dynamic_rnn"),
        ("    logits =", "    net, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(4, use_peepholes=True), net,\n"
                         "                               dtype=tf.float32)\n    logits =",
         "use_peepholes of LSTMCell has no counterpart"),
        ("    logits =", "    cell = tf.nn.rnn_cell.DropoutWrapper(tf.nn.rnn_cell.GRUCell(4), output_keep_prob=0.5)\n"
                         "    net, _ = tf.nn.dynamic_rnn(cell, net, dtype=tf.float32)\n    logits =",
         "a DropoutWrapper whose keep probability may differ from 1"),
        ("    logits =", "    with tf.variable_scope('a', initializer=tf.zeros_initializer()):\n"
                         "        net = tf.layers.dense(net, 3)\n    logits =", "for all variables of a scope"),
        ("    logits =", "    w = tf.Variable([1.])\n    logits =", "tf.Variable creates a variable outside"),
        ("    return data", "    data = data.shuffle(int(tf.train.get_global_step()))\n    return data",
         "a read of the global step"),
        ("    print(", "    print(tf.trainable_variables());  print(", "compat.v1.trainable_variables would remain"),
        ("    print(", "    print(config.mode);  print(", None),
    ],
)  # fmt: skip
def test_what_is_declined(tmp_path, monkeypatch, before, after, reason):
    changed = OLD.replace(before, after)
    assert changed != OLD
    monkeypatch.setitem(globals(), "OLD", changed)
    made = old(tmp_path)
    if not reason:  # what is near it, and can be converted
        assert made.keras, made.kept_as_estimator
        return
    assert not made.keras and reason in made.kept_as_estimator
    line = int(re.match(r"line (\d+): ", made.kept_as_estimator)[1])
    assert 1 <= line <= made.after.count("\n")


@pytest.mark.parametrize("source", [HELPERS["examples"], PARTS_OF_KERAS_3["examples"]], ids=["keras", "keras3"])
def test_predict_keys_as_an_estimator_reads_them(source):
    """Unknown keys are ignored, unless all are unknown."""
    numpy = types.SimpleNamespace(convert_to_numpy=lambda value: value)
    names = {"keras": types.SimpleNamespace(ops=numpy)}
    exec(source, names)
    data = mock.MagicMock(__iter__=lambda _: iter([1]), as_numpy_iterator=lambda: iter([1]))
    model = types.SimpleNamespace(predict_on_batch=lambda _: {"a": [1, 2], "b": [3, 4]}, predictions=lambda _, of: of)
    for keys in (["b", "c"], ("b",)):
        assert list(names["examples"](model, data, keys)) == [{"b": 3}, {"b": 4}]
    assert list(names["examples"](model, data)) == list(names["examples"](model, data, [])) == [
        {"a": 1, "b": 3}, {"a": 2, "b": 4},
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"no predictions \['c'\]: there are \['a', 'b'\]"):
        list(names["examples"](model, data, ["c"]))


def test_what_has_no_line_of_its_own_is_declined_at_the_first_construct(tmp_path):
    (tmp_path / "one.py").write_text("import tensorflow as tf\n\n\ndef f(m, l):\n"
                                     "    return tf.estimator.EstimatorSpec(m, loss=l)\n")  # fmt: skip
    (made,) = convert(tmp_path / "one.py", to="keras-layers").files
    assert made.kept_as_estimator == "line 5: no Estimator is created in this file"


AVERAGED = """    average = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([train_op]):
        train_op = average.apply(tf.trainable_variables())
    hook ="""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"(tf.trainable_variables())": "()"}, ""),
        ({"Average(0.9)": "Average(params['decay'], tf.train.get_global_step())"}, ""),
        ({"(tf.trainable_variables())": "(tf.trainable_variables()[:2])"}, "averages of only some of the weights"),
        ({"    with tf.control_dependencies([train_op]):\n        train_op = average":
          "    train_op = tf.group(train_op, average", "s())": "s()))"}, "are not updated after the step"),
        ({"Average(0.9)": "Average(0.9, zero_debias=True)"}, "averages of the weights whose decay"),
        ({"    hook =": "    tf.summary.scalar('a', average.average(loss))\n    hook ="}, "average of the averages"),
    ],
)  # fmt: skip
def test_averages(tmp_path, monkeypatch, change, reason):
    text = AVERAGED
    for before, after in change.items():
        assert before in text
        text = text.replace(before, after)
    monkeypatch.setitem(globals(), "OLD", OLD.replace("    hook =", text))
    made = old(tmp_path)
    assert reason in made.kept_as_estimator if reason else made.keras, made.kept_as_estimator
    if made.keras:
        assert "self.averages = keras_averages.Averages(self.trainable_variables, " in made.after


HELPED = OLD.replace(
    "    predicted = tf.argmax",
    """    if mode == tf.estimator.ModeKeys.TRAIN:
        tf.logging.info('training')
    return spec_of(mode, logits, labels, rate=params['rate'])


def spec_of(mode, logits, labels, rate, variables=None):
    predicted = tf.argmax""",
).replace("params['rate'])", "rate)").replace("rate=rate", "rate=params['rate']")  # fmt: skip
HELPED = HELPED.replace("get_global_step())", "get_global_step(), var_list=variables)")
HELPED_PARTS = {"OPTIMIZER": "tf.train.AdamOptimizer(rate)"}


def test_a_function_that_makes_the_specs(tmp_path, monkeypatch):
    """What it does is in the model, by its own names; the function goes."""
    plain = old(tmp_path).after
    monkeypatch.setitem(globals(), "OLD", HELPED)
    made = old(tmp_path, **HELPED_PARTS)
    assert made.keras, made.kept_as_estimator
    assert "spec_of" not in made.after and "    rate = params['rate']\n    model.compile(" in made.after
    new = made.after.replace("    rate = params['rate']\n", "").replace("Adam(rate,", "Adam(params['rate'],")
    assert new.split() == plain.split()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("rate=params['rate'])", "rate=params['rate'], variables=tf.trainable_variables())", ""),
        ("rate=params['rate'])", "rate=params['rate'], variables=tf.trainable_variables()[1:])", "var_list of"),
        ("rate=params['rate'])", "params['rate'], variables=tf.get_collection(\n        "
         "tf.GraphKeys.TRAINABLE_VARIABLES, scope='b'))", "var_list of minimize"),
        ("rate=params['rate'])", "*[params['rate']])", "something other than its EstimatorSpec"),
        ("    predicted = tf", "    return spec_of(mode, logits, labels, rate)\n    predicted = tf", "a recursive"),
        ("if __name__", "print(spec_of('train', 1, 2, 3))\nif __name__", "also used elsewhere"),
        ("        tf.logging.info('training')", "        logits = tf.layers.dense(logits, 3)",
         "a branch on the mode that does not return"),
        ("        tf.logging.info('training')", "        logits = 2. * logits\n        labels = labels + 0",
         "training and evaluation have different losses"),
    ],
)  # fmt: skip
def test_functions_that_make_specs_and_are_declined(tmp_path, monkeypatch, before, after, reason):
    changed = HELPED.replace(before, after)
    assert changed != HELPED
    monkeypatch.setitem(globals(), "OLD", changed)
    made = old(tmp_path, **HELPED_PARTS)
    assert reason in made.kept_as_estimator if reason else made.keras, made.kept_as_estimator


HEADED = OLD[: OLD.index("    predicted =")] + """    optimizer = tf.train.AdagradOptimizer(0.1)
    head = tf.estimator.MultiClassHead(3, name='which')
    return head.create_estimator_spec(
        features, mode, logits, labels, train_op_fn=lambda loss: optimizer.minimize(loss, tf.train.get_global_step()))


""" + OLD[OLD.index("def input_fn"):]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("3, name", "3, name", ""),
        ("3, name='which'", "3, loss_fn=print", "loss_fn of MultiClassHead has no counterpart"),
        ("loss: optimizer.minimize(loss", "loss: optimizer.minimize(2. * loss", "does not minimize the loss"),
        ("features, mode, logits, labels,", "features, mode, labels=labels,", "a head without the argument logits"),
        ("train_op_fn=", "regularization_losses=[tf.nn.l2_loss(net)], train_op_fn=", "regularization_losses of a head"),
        ("train_op_fn=lambda loss: optimizer.minimize(loss, tf.train.get_global_step())", "train_op_fn=other",
         "a head whose train_op cannot be determined"),
        ("(3, name", "(logits.shape[1], name", "a head that depends on local names of the model_fn"),
        ("    return head", "    if mode == 'train':\n        return None\n    return head", "something other than"),
    ],
)  # fmt: skip
def test_heads(tmp_path, monkeypatch, before, after, reason):
    changed = HEADED.replace(before, after)
    monkeypatch.setitem(globals(), "OLD", changed)
    made = old(tmp_path)
    if reason:
        assert not made.keras and reason in made.kept_as_estimator, made.kept_as_estimator
        return
    assert made.keras, made.kept_as_estimator
    for line in ("self.head = keras_heads.MultiClassHead(3, name='which')", "self.head.loss(labels, logits)",
                 "optimizer=tf.keras.optimizers.Adagrad(0.1)"):  # fmt: skip
        assert line in made.after


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({", tf.no_op)": ", lambda: tf.print(even))"}, "tf.cond in the train_op that does more than one step"),
        ({"lambda: g_optimizer.apply_gradients(grads)": "lambda: tf.group(g_optimizer.apply_gradients(grads))"},
         "tf.cond in the train_op that does more than one step"),
        ({"trainable_variables(scope='generator')": "trainable_variables()"}, "not selected by a scope"),
        ({"with tf.control_dependencies([g_train]):": "with tf.control_dependencies([d_train]):"},
         "the step g_train, which the train_op does not run"),
        ({"assign_add(global_step, 1)": "assign_add(global_step, 2)"}, "several optimizers whose steps"),
        ({"minimize(d_loss, var_list=d_vars)": "minimize(d_loss, global_step, var_list=d_vars)"},
         "several optimizers that do not increment the global step exactly once"),
        ({"minimize(d_loss, var_list=d_vars)": "minimize(d_loss)"},
         "several optimizers whose variables cannot be determined"),
        ({"minimize(d_loss,": "minimize(2. * d_loss,"}, "several optimizers whose losses or variables"),
        ({"apply_gradients(grads)": "apply_gradients(grads[1:])"}, "gradients of several optimizers that are changed"),
        ({"GraphKeys.UPDATE_OPS, scope='generator'": "GraphKeys.UPDATE_OPS, scope='discriminator'"},
         "a train_op that does not update the moving statistics of batch normalization"),
        ({"with tf.control_dependencies(update_ops):": "with tf.control_dependencies([]):"},
         "a train_op that does not update the moving statistics of batch normalization"),
        ({"tf.equal(global_step %": "tf.equal(tf.shape(real)[0] %"}, "an optimizer whose condition reads real"),
        ({"AdamOptimizer(params['g_rate']":
          "AdamOptimizer(tf.compat.v1.train.exponential_decay(0.1, global_step, 10, 0.5)"},
         "of an optimizer that does not run in every step"),
        ({"tf_random_seed=71": "tf_random_seed=71, train_distribute=tf.distribute.MirroredStrategy()"},
         "several optimizers on several replicas"),
        ({", name='fc2')\n        return tf.compat.v1.layers.dense(net, 64":
          ")\n        return tf.compat.v1.layers.dense(net, 64"},
         "a layer without a name, where"),
        ({"return tf.compat.v1.layers.dense(net, 64, tf.sigmoid, name='pixels')":
          "return tf.keras.layers.Dense(64, tf.sigmoid)(net)"},
         "a different network for PREDICT, whose layers cannot be matched by variable names"),
        ({"generator(features['noise'], False)": "generator(features['noise'], True)"},
         "the network differs in TRAIN"),
        ({"EstimatorSpec(mode, predictions={'images': generator(features['noise'], False)})":
          "EstimatorSpec(mode, predictions={'images': discriminator(labels)})"},
         "a different network for PREDICT that needs more than features"),
    ],
)  # fmt: skip
def test_several_optimizers_that_are_declined(tmp_path, change, reason):
    text = (HERE / "corpus" / "digit_gan.py").read_text()
    for before, after in change.items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "gan.py").write_text(text)
    (made,) = convert(tmp_path / "gan.py", to="keras-layers").files
    assert not made.keras and reason in made.kept_as_estimator, made.kept_as_estimator


CLUSTER = """import tensorflow.compat.v1 as tf

def model_fn(features, labels, mode, config):
    with tf.variable_scope('net', partitioner=tf.fixed_size_partitioner(max(config.num_ps_replicas, 1))):
        logits = tf.get_variable('x', [3, 1], collections=[tf.GraphKeys.GLOBAL_VARIABLES, 'own'])
    logits = tf.matmul(features, logits)
    loss = tf.losses.mean_squared_error(labels, logits)
    train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def data(config):
    files = ['a', 'b']
    if config is not None:
        files = files[config.global_id_in_cluster::config.num_worker_replicas]
    return read(files)

def main(with_servers, jobs):
    session_config = tf.ConfigProto()
    alone = not jobs
    if not alone:
        filters = ['/job:ps']
        session_config.device_filters.extend(filters)
        session_config.gpu_options.allow_growth = True
    strategy = None
    if with_servers:
        strategy = tf.distribute.experimental.ParameterServerStrategy()
    config = tf.estimator.RunConfig('model', session_config=session_config, train_distribute=strategy)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    estimator.train(lambda: data(config), steps=10)
    print(config.is_chief)

if __name__ == '__main__':
    main(True, ['ps'])
"""


def cluster(tmp_path, change: dict[str, str]):
    text = CLUSTER
    for before, after in change.items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "old.py").write_text(text)
    (made,) = convert(tmp_path / "old.py", to="keras-layers").files
    return made


def test_a_program_of_parameter_servers(tmp_path):
    """It refuses them; what was done for sessions and servers alone is gone, and what else a name is for is not."""
    made = cluster(tmp_path, {})
    assert made.keras, made.kept_as_estimator
    assert made.after.partition("def main")[2].startswith("""(with_servers, jobs):
    # Training is synchronous: a cluster with parameter servers is rejected.
    config = keras_cluster.of_workers()
    strategy = config.strategy()
    # Was session_config=tf.ConfigProto(): there is no session; tf.config has settings of devices and threads
    callbacks = [
"""), made.after
    for line in (
        "    training = data(config)\n    with strategy.scope():\n        model = make_model(model_inputs(training))\n",
        "        strategy.distribute_datasets_from_function(lambda _: data(config)), steps_per_epoch=10,\n",
        "    keras_cluster.save_weights(model, os.path.join('model', 'weights'))\n    print(config.is_chief)\n",
        "        return loss / self.distribute_strategy.num_replicas_in_sync\n",
    ):
        assert line in made.after, made.after
    made_there = "        strategy = tf.distribute.experimental.ParameterServerStrategy()\n"
    inline = {"train_distribute=strategy": "train_distribute=tf.distribute.experimental.ParameterServerStrategy()",
              "(lambda: data(config)": "(lambda: data(None)", "    print(config.is_chief)\n": "",
              made_there: "        print(1)\n"}  # fmt: skip
    assert "    strategy = keras_cluster.of_workers().strategy()\n" in cluster(tmp_path, inline).after
    alone = cluster(
        tmp_path, {", train_distribute=strategy": "", "strategy = tf.d": "print(alone, filters)\n        tf.d"}
    )
    assert not alone.keras and "also used outside of the RunConfig" in alone.kept_as_estimator
    kept = cluster(tmp_path, {"    print(config": "    print(alone)\n    print(config"}).after
    assert "    alone = not jobs\n    # Training" in kept
    kept = cluster(tmp_path, {"        filters = ['/job:ps']\n": "        filters = ask()\n"}).after
    assert "    if not alone:\n        filters = ask()\n    # Training" in kept
    kept = cluster(tmp_path, {"    strategy = None\n": "    else:\n        print(1)\n    strategy = None\n"}).after
    assert "    if not alone:\n        pass\n    else:\n        print(1)\n    # Training" in kept, kept


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config.is_chief": "config.master"}, "config is also used outside of the Estimator"),
        ({"config.is_chief": "config"}, "config is also used outside of the Estimator"),
        ({"files[config.global_id_in_cluster": "files[config.save_summary_steps"}, "config is also used"),
        ({"config.is_chief": "strategy.extended"}, "a parameter server strategy that is also used"),
        ({"max(config.num_ps_replicas, 1)": "1", "(features, logits)": "(features, logits) * config.task_id"},
         "config would be undefined after the conversion"),
        ({"[tf.GraphKeys.GLOBAL_VARIABLES, 'own']": "['own']"}, "a variable in collections that cannot be determined"),
        ({"features, logits)\n": "features, logits) + tf.get_collection('own')[0]\n"},
         "a custom collection of variables, which is read"),
    ],
)  # fmt: skip
def test_clusters_that_are_declined(tmp_path, change, reason):
    made = cluster(tmp_path, change)
    assert not made.keras and reason in made.kept_as_estimator, made.kept_as_estimator


FACTORY = """import functools
import tensorflow.compat.v1 as tf

flags = tf.flags
flags.DEFINE_string('dir', '/tmp/a', '')


def model_fn(features, labels, mode, units):
    logits = tf.layers.dense(features['x'], units)
    loss = tf.losses.mean_squared_error(labels, logits)
    train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def told(labels, predictions):
    return {'further': tf.metrics.mean(predictions['logits'])}


def make(deep=True):
    if deep:
        columns = [tf.feature_column.numeric_column('x')]
        estimator = tf.estimator.DNNClassifier([3], columns, model_dir=flags.FLAGS.dir)
        return tf.estimator.add_metrics(estimator, told)
    return tf.estimator.Estimator(functools.partial(model_fn, units=2), flags.FLAGS.dir)


def input_fn():
    return tf.data.Dataset.from_tensors(({'x': [[1.]]}, [1]))


def main(_):
    estimator = make()
    hook = tf.train.StepCounterHook()
    estimator.train(input_fn, steps=2, hooks=[hook])


if __name__ == '__main__':
    tf.app.run(main)
"""


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("", "", ""),
        ("units=2)", "2)", "positional arguments bound to a model_fn"),
        ("make()\n", "make()\n    make()\n", "an Estimator that is passed on where it is created"),
        ("[3], columns,", "[3], columns, loss_reduction=tf.losses.Reduction.SUM,", "a different meaning in Keras"),
        ("[3], columns,", "[3], columns, optimizer='Adam',", "a different meaning in Keras"),
        ("Estimator(functools", "Estimator(model_dir='a', model_fn=functools", ""),
        ("def told(labels", "def told(config, labels", "or has other parameters"),
        ("flags.FLAGS.dir)\n\n", "columns[0].name)\n\n", ""),
        ("tf.metrics.mean(", "tf.metrics.mean_tensor(", "has no equal in Keras"),
    ],
)  # fmt: skip
def test_functions_that_make_estimators(tmp_path, before, after, reason):
    """They get the model's inputs; canned ones of V1 keep their sums and rates."""
    text = FACTORY.replace(before, after) if before else FACTORY
    (tmp_path / "old.py").write_text(text)
    (made,) = convert(tmp_path / "old.py", to="keras-layers").files
    if reason:
        assert reason in made.kept_as_estimator, made.kept_as_estimator
        return
    if "columns[0]" in text or "model_dir='a'" in text:
        assert not made.keras
        return
    assert made.keras, made.kept_as_estimator
    for line in (
        "def make(features, deep=True):",
        "    model = make(model_inputs(training))",
        "    return make_model(features, units=2)",
        "model_dir=flags.FLAGS.dir, optimizer=tf.keras.optimizers.legacy.Adagrad(0.05),",
        "            loss_reduction='sum')",
        "keras_canned.add_metrics(estimator, told, {'further': tf.keras.metrics.Mean(name='further')})",
        "    return {'further': (predictions['logits'],)}",
    ):
        assert line in made.after, made.after


TWO = """    chosen = [v for v in tf.trainable_variables() if v.op.name.startswith('hidden')]
    others = [v for v in tf.trainable_variables() if not any(v is one for one in chosen)]
    step = tf.train.get_global_step()
    first = tf.train.FtrlOptimizer(0.1)
    train_op = tf.group(first.minimize(loss, var_list=chosen), OPTIMIZER.minimize(loss, step, var_list=others))
"""


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("", "", ""),
        ("minimize(loss, var_list=chosen)", "minimize(2. * loss, var_list=chosen)", "does not minimize the loss"),
        ("minimize(loss, var_list=chosen)", "minimize(loss, step, var_list=chosen)", "global step exactly once"),
        ("minimize(loss, var_list=chosen)", "minimize(loss)", "whose variables cannot be determined"),
        ("tf.group(first", "tf.no_op(first", "several optimizers"),
        ("    chosen =", "    # no name\n    chosen =", "a layer without a name, where variables are selected by name"),
        ("first.minimize(loss, var_list=chosen),", "first.apply_gradients([]),", "does more than minimize"),
        ("hidden')]\n", "hidden') and v.shape]\n    chosen = chosen[step:]\n", ""),
    ],
)  # fmt: skip
def test_an_optimizer_for_some_variables(tmp_path, monkeypatch, before, after, reason):
    text = TWO.replace(before, after) if before else TWO
    train = "    train_op = OPTIMIZER.minimize(loss, tf.train.get_global_step())\n"
    program = OLD.replace(train, text)
    monkeypatch.setitem(globals(), "OLD", program.replace(", name='hidden'", "") if "no name" in text else program)
    made = old(tmp_path)
    if "step:]" in text:  # the step is one of the session
        assert not made.keras
        return
    assert reason in made.kept_as_estimator if reason else made.keras, made.kept_as_estimator
    if made.keras:
        for line in (
            "    chosen = [v for v in model.trainable_variables if keras_variables.name_of(v).startswith('hidden')]",
            "keras_variables.by_variables(",
            "[(tf.keras.optimizers.Ftrl(0.1), chosen), (tf.keras.optimizers.Adam(",
        ):
            assert line in made.after, made.after


def test_further_metrics_of_keras(tmp_path):
    """The function that made and updated them says what they are updated with."""
    told = "    return {'further': tf.metrics.mean(predictions['logits'])}"
    of_keras = """    found = tf.keras.metrics.TruePositives(0.4, name='found')
    found.update_state(y_true=labels, y_pred=predictions['logistic'])
    return {'further': found}"""
    (tmp_path / "old.py").write_text(FACTORY.replace(told, of_keras))
    (made,) = convert(tmp_path / "old.py", to="keras-layers").files
    assert made.keras, made.kept_as_estimator
    for line in (
        "def told(labels, predictions):\n    found = (labels, predictions['logistic'])\n",
        "told, {'further': tf.keras.metrics.TruePositives(0.4, name='further')})",
    ):
        assert line in made.after, made.after
    changed = of_keras.replace("    return", "    found.update_state(labels, labels)\n    return")
    (tmp_path / "old.py").write_text(FACTORY.replace(told, changed))
    (made,) = convert(tmp_path / "old.py", to="keras-layers").files
    assert "the metric further, which is not updated exactly once" in made.kept_as_estimator


def test_an_estimator_that_gets_further_metrics_and_keeps_its_name(tmp_path):
    program = OLD.replace(
        "    estimator = tf.estimator.Estimator(model_fn, 'model', params={'rate': 0.01})\n",
        """
    columns = [tf.feature_column.numeric_column('x')]
    estimator = tf.compat.v1.estimator.LinearClassifier(columns, model_dir='model')
    estimator = tf.estimator.add_metrics(estimator, told)
""",
    )
    program = program[program.index("def input_fn") :]
    told = "def told(predictions):\n    return {'further': tf.compat.v1.metrics.mean(predictions['logits'])}\n\n\n"
    (tmp_path / "old.py").write_text(f"import tensorflow as tf\n\n\n{told}{program}")
    (made,) = convert(tmp_path / "old.py", to="keras-layers").files
    assert made.keras, made.kept_as_estimator
    for line in (
        "    estimator = keras_canned.LinearClassifier(columns, loss_reduction='sum')\n",
        "    estimator = keras_canned.add_metrics(estimator, told, {'further': tf.keras.metrics.Mean(name='further')})",
        "    estimator.fit(input_fn(), steps_per_epoch=100",
    ):
        assert line in made.after, made.after
    other = f"import tensorflow as tf\n\n\n{told}{program}".replace("(estimator, t", "(other, t")
    (tmp_path / "old.py").write_text(other)
    (made,) = convert(tmp_path / "old.py", to="keras-layers").files
    assert "estimator is also used for something other than the Estimator" in made.kept_as_estimator


METHOD = {
    "def model_fn(features": "class Net:\n  size = 16\n\n  def model_fn(self, features",
    "16, tf.nn.relu": "self.size, tf.nn.relu",
    "def input_fn": "  def of(self):\n    return self.size\n\n\ndef input_fn",
    "Estimator(model_fn,": "Estimator(net.model_fn,",
    "    estimator = ": "    net = Net()\n    estimator = ",
}


def method(change: dict[str, str]) -> str:
    """OLD with its model_fn as a method."""
    text = OLD
    for before, after in {**METHOD, **change}.items():
        assert before in text
        text = text.replace(before, after)
    return text


def test_a_method_stays_a_method(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "OLD", method({}))
    made = old(tmp_path)
    assert made.keras, made.kept_as_estimator
    for line in (
        "  def make_model(self, features, params):",
        "tf.keras.layers.Dense(self.size, tf.nn.relu, name='hidden')",
        "OldModel(features, logits, params, self)",
        "net.make_model(model_inputs(",
        "self.net = net",
    ):
        assert line in made.after


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"return self.size": "return self.model_fn"}, "a model_fn that is called outside of its Estimator"),
        ({"    net = Net()\n": "", "net.model_fn": "Net().model_fn"}, "a method of an unnamed object"),
        ({"predicted = ": "self.last = predicted = "}, "a model_fn that changes its object"),
    ],
)
def test_methods_that_are_declined(tmp_path, monkeypatch, change, reason):
    monkeypatch.setitem(globals(), "OLD", method(change))
    made = old(tmp_path)
    assert not made.keras and reason in made.kept_as_estimator, made.kept_as_estimator


TOGETHER = """    estimator = tf.estimator.Estimator(model_fn, 'model', params={'rate': 0.01}, CONFIG)
    stop = tf.estimator.experimental.stop_if_no_decrease_hook(estimator, 'loss', 500, STOP)
    serving = tf.estimator.export.build_raw_serving_input_receiver_fn({'x': tf.zeros([1, 2])})
    best = tf.estimator.BestExporter('best', serving, EXPORTER)
    train = tf.estimator.TrainSpec(input_fn, max_steps=100, hooks=[stop])
    test = tf.estimator.EvalSpec(input_fn, exporters=[best], SPEC)
    RESULTtf.estimator.train_and_evaluate(estimator, train, test)
"""
OPTIONS = {
    "CONFIG": "config=tf.estimator.RunConfig(save_checkpoints_steps=20)", "STOP": "min_steps=40, run_every_secs=None",
    "EXPORTER": "compare_fn=better, exports_to_keep=2", "SPEC": "steps=None, throttle_secs=60", "RESULT": "found = ",
}  # fmt: skip


def together(monkeypatch, tmp_path, **options: str):
    text = TOGETHER
    for name, part in {**OPTIONS, **options}.items():
        text = text.replace(name, part)
    main = OLD[: OLD.index("    estimator = ")] + text
    monkeypatch.setitem(globals(), "OLD", main.replace("def input_fn", "def better(best_eval_result, "
                        "current_eval_result):\n    return False\n\n\ndef input_fn"))  # fmt: skip
    return old(tmp_path)


def test_evaluations_while_it_trains(tmp_path, monkeypatch):
    """At the steps of checkpoints, with the exporters and with what ends training early."""
    made = together(monkeypatch, tmp_path)
    assert made.keras, made.kept_as_estimator
    for line in (
        "from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation\n",
        "stop = keras_evaluation.stop_if_no_decrease( "
        "metric_name='loss', max_steps_without_decrease=500, min_steps=40)\n",
        "best = keras_evaluation.BestExporter( 'best', lambda model, folder: export_model(model, folder, serving), "
        "compare=better, exports_to_keep=2)\n",
        "# Was throttle_secs=60: every checkpoint is evaluated\n",
        "evaluation = keras_evaluation.Evaluation( "
        "input_fn, every_steps=20, folder='model', exporters=[best], stop=[stop])\n",
        "steps_per_epoch=100, callbacks=[evaluation, *callbacks], verbose=2)\n",
        "found = (evaluation.result, evaluation.exports)\n",
    ):
        assert " ".join(line.split()) in " ".join(made.after.split()), made.after
    # By its name, which is that of the folder as well.
    told = {"STOP": "eval_dir=estimator.eval_dir('a')", "SPEC": "name='a'", "RESULT": "", "CONFIG": "config=None"}
    made = together(monkeypatch, tmp_path, **told)
    assert "input_fn().take(100), every_steps=1000, name='a', folder='model'" in made.after


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"SPEC": "name='a'"}, "an early stopping hook whose eval_dir is not that of the EvalSpec"),
        ({"STOP": "eval_dir='a'"}, "an early stopping hook whose eval_dir is not that of the EvalSpec"),
        ({"EXPORTER": "assets_extra={'a': 'b'}"}, "assets_extra of BestExporter"),
        ({"RESULT": "print(), "}, "train_and_evaluate within another expression"),
        ({"SPEC": "hooks=[tf.estimator.ProfilerHook(100)]"}, "a hook of an evaluation or a prediction"),
        ({"hooks=[stop]": "hooks=[Mine()]"}, "a hook without an equivalent callback"),
        ({"exporters=[best]": "exporters=made()"}, "an exporter that is not created in this file"),
    ],
)
def test_evaluations_that_are_declined(tmp_path, monkeypatch, options, reason):
    made = together(monkeypatch, tmp_path, **options)
    assert not made.keras and reason in made.kept_as_estimator, made.kept_as_estimator


def test_stopping_needs_evaluations(tmp_path, monkeypatch):
    stop = "tf.estimator.experimental.stop_if_lower_hook(estimator, 'loss', 1)"
    before = "    estimator.train(input_fn, steps=100)"
    monkeypatch.setitem(globals(), "OLD", OLD.replace(before, f"    estimator.train(input_fn, hooks=[{stop}])"))
    assert "in training without evaluation" in old(tmp_path).kept_as_estimator


HOOK = """class Mine(tf.train.SessionRunHook):
  def begin(self):
    self.step = tf.train.get_global_step()
    self.weights = tf.trainable_variables()

  def before_run(self, run_context):
    self.began = 1
    return tf.train.SessionRunArgs({'at': self.step})

  def after_run(self, run_context, run_values):
    if run_values.results['at'] > 10:
      run_context.request_stop()

  def end(self, session):
    print(session.run(self.weights), session.run(self.step))


class Told(tf.train.CheckpointSaverListener):
  def begin(self):
    self.count = 0

  def after_save(self, session, step):
    self.count += 1


"""


def with_hooks(monkeypatch, tmp_path, change: dict[str, str]):
    text = OLD.replace("def model_fn", f"{HOOK}def model_fn")
    call = "steps=100, hooks=[Mine()], saving_listeners=[Told()])"
    for before, after in {"steps=100)": call, **change}.items():
        assert before in text
        text = text.replace(before, after)
    monkeypatch.setitem(globals(), "OLD", text)
    return old(tmp_path)


def test_hooks_become_callbacks(tmp_path, monkeypatch):
    made = with_hooks(monkeypatch, tmp_path, {})
    assert made.keras, made.kept_as_estimator
    for line in (
        "class Mine(tf.keras.callbacks.Callback):\n    def on_train_batch_begin(self, batch, logs=None):\n"
        "        self.began = 1\n",
        "        if int(self.model.optimizer.iterations) - 1 > 10:\n            self.model.stop_training = True\n",
        "lambda value: value.numpy(), self.model.trainable_variables), int(self.model.optimizer.iterations))\n",
        "class Told:\n    def begin(self):\n        self.count = 0\n\n    def after_save(self, step):\n",
        "callbacks=[*callbacks, Mine(), AtCheckpoints(Told(), 1000)]",
    ):
        assert line.replace(" ", "") in made.after.replace(" ", ""), made.after


def test_tensors_that_hooks_ask_for(tmp_path, monkeypatch):
    """What is no loss is worked out beside it, and told with the step's metrics."""
    asked = "tf.get_default_graph().get_tensor_by_name('doubled:0')"
    made = with_hooks(monkeypatch, tmp_path, {
        "{'at': self.step}": asked, "run_values.results['at'] > 10": "run_values.results > 10",
        "    tf.summary.scalar('loss', loss)\n": "    shown = tf.identity(loss * 2., name='doubled')\n",
    })  # fmt: skip
    assert made.keras, made.kept_as_estimator
    for line in (
        "        if logs['doubled'] > 10:\n",
        "        shown = tf.identity(loss * 2., name='doubled')\n        return {'doubled': shown}\n",
        "        return {**self.compute_metrics(x, y, y_pred, sample_weight), **tensors}\n",
    ):
        assert line.replace(" ", "") in made.after.replace(" ", ""), made.after


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"self.step = tf.train.get_global_step()": "self.step = tf.constant(1)"}, "before_run fetches values"),
        ({"{'at': self.step}": "{'at': self.weights}"}, "before_run fetches values that a callback does not have"),
        ({"{'at': self.step}": "{'at': self.step}, feed_dict={}"}, "before_run that sets feed_dict"),
        ({"run_context.request_stop()": "run_context.session.close()"}, "a use of run_context in a hook"),
        ({"run_values.results['at']": "run_values.run_metadata"}, "run_metadata of the session's results"),
        ({"session.run(self.weights)": "session.run('x:0')"}, "a session call whose fetches are not known statically"),
        ({"session.run(self.weights)": "self.weights"}, "self.weights is a part of the graph"),
        ({"self.began = 1": "self.model = 1"}, "a hook with an attribute model, which callbacks have"),
        ({"self.began = 1": "logs = 1"}, "a hook with a variable logs"),
        ({"self.began = 1": "self.began = tf.constant(1)"}, "tf.constant in a hook: a callback has no graph"),
        ({"def model_fn": "class More(Mine):\n  pass\n\n\ndef model_fn"}, "a subclass of another hook"),
        ({"training_hooks=[hook]": "training_hooks=[tf.train.CheckpointSaverHook('a', listeners=[Told()])]"},
         "listeners of a hook of an EstimatorSpec"),
        ({"hooks=[Mine()], saving_listeners=[Told()]":
          "hooks=[tf.train.CheckpointSaverHook('a', save_secs=9, listeners=[Told()])]"}, "every N seconds"),
        ({"self.count += 1": "self.count += session.graph.version"}, "a use of session in a hook"),
        ({"hooks=[Mine()], saving": "hooks=[tf.train.ProfilerHook(9)], saving"}, "without an equivalent callback"),
        ({"training_hooks=[hook]": "training_hooks=[hook, Mine()]", "hooks=[Mine()], ": ""}, ""),
        ({"    print(session.run(self.weights)": "    x = session.run('x:0')\n    print(session.run(self.weights)"},
         "a session call whose fetches are not known statically"),
        ({"      run_context.request_stop()": "      x = run_context.request_stop()"}, "inside another expression"),
        ({"training_hooks=[hook]": "training_hooks=[hook, Mine(loss)]"}, "a hook that takes loss, which"),
        ({"self.step = tf.train.get_global_step()":
          "self.step = tf.get_default_graph().get_tensor_by_name('loss:0')"}, "loss, which is not a tf.identity"),
        ({"self.step = tf.train.get_global_step()":
          "self.step = tf.get_default_graph().get_tensor_by_name('a/b:0')"}, "the tensor a/b:0, which has no name"),
        ({"saving_listeners=[Told()]": "saving_listeners=[made()]"}, "a listener that is not created in this file"),
    ],
)  # fmt: skip
def test_hooks_that_are_declined(tmp_path, monkeypatch, change, reason):
    made = with_hooks(monkeypatch, tmp_path, change)
    if not reason:
        assert made.keras and "callbacks=[*callbacks, AtCheckpoints(Told(), 1000), Mine()]" in made.after
        return
    assert not made.keras and reason in made.kept_as_estimator, made.kept_as_estimator


@pytest.mark.parametrize(
    ("condition", "written"),
    [
        ("FLAGS.train", "    if not (FLAGS.train):\n        keras_weights.restore(model, 'model')\n"),
        ("tf.train.latest_checkpoint('model') is None",
         "    keras_weights.restore(model, 'model', required=False)\n"),
    ],
)  # fmt: skip
def test_what_is_not_always_trained_is_restored(tmp_path, monkeypatch, condition, written):
    call = "    estimator.train(input_fn, steps=100)\n"
    monkeypatch.setitem(globals(), "OLD", OLD.replace(call, f"    if {condition}:\n    {call}"))
    made = old(tmp_path)
    assert made.keras and written in made.after, made.kept_as_estimator


def test_weights_by_their_names(tmp_path, monkeypatch):
    """The scope of a whole network is known; with several of them names of layers do not tell those of variables."""
    lines = OLD.splitlines(keepends=True)
    start = lines.index("    # Two layers.\n")
    body = ["    with tf.variable_scope('net'):\n", *(f"    {line}" for line in lines[start : start + 4])]
    text = "".join([*lines[:start], *body, *lines[start + 4 :]])
    text = text.replace(
        "print(estimator.evaluate(input_fn))", "print(estimator.get_variable_value('net/hidden/kernel'))"
    )
    monkeypatch.setitem(globals(), "OLD", text)
    made = old(tmp_path)
    assert "keras_weights.named_values(model, scope='net')['net/hidden/kernel']" in made.after, made.kept_as_estimator
    monkeypatch.setitem(
        globals(), "OLD", text.replace("        logits =", "    with tf.variable_scope('a'):\n        logits =")
    )
    assert "of a model with several scopes" in old(tmp_path).kept_as_estimator


def test_a_mode_that_is_handed_over_stays_what_it_is_called(tmp_path, monkeypatch):
    """A parameter is its default only by default."""
    text = OLD.replace("def input_fn():", "def input_fn(mode=tf.estimator.ModeKeys.EVAL):")
    text = text.replace("return data.batch(2)", "print(mode == tf.estimator.ModeKeys.TRAIN)\n    return data.batch(2)")
    monkeypatch.setitem(globals(), "OLD", text)
    made = old(tmp_path)
    assert "def input_fn(mode='eval'):" in made.after and "    print(mode == 'train')\n" in made.after


CANNED = """import tensorflow as tf

def metrics(labels, predictions):
    found = tf.keras.metrics.TruePositives(name='x', thresholds=0.3)
    found.update_state(labels, predictions['logistic'])
    return {'found': found}

def example_fn():
    return tf.estimator.export.build_parsing_serving_input_receiver_fn(SPEC)

SPEC = {'x': tf.io.FixedLenFeature([1], tf.float32)}
wide = tf.estimator.LinearClassifier([tf.feature_column.numeric_column('x')], 'model')
wide = tf.estimator.add_metrics(wide, metrics)
wide.train(lambda: data(True), steps=9)
wide.export_saved_model('out', example_fn())
"""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"wide = tf.estimator.add_metrics": "more = tf.estimator.add_metrics"}, "the Estimator wide is passed on"),
        ({"wide = tf.estimator.add_metrics(wide, metrics)": "wide = other(wide)"}, "wide is also used for something"),
        ({"    return {'found'": "    found.update_state(labels, labels)\n    return {'found'"}, "exactly once"),
        ({"labels, predictions['logistic'])": "labels, x=labels)"}, "the update arguments of the metric found"),
        ({"    return tf.estimator.export": "    if SPEC:\n        return None\n    return tf.estimator.export"},
         "a serving input function that does more than return"),
    ],
)  # fmt: skip
def test_a_canned_estimator_with_further_metrics(tmp_path, change, reason):
    text = CANNED
    for before, after in change.items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "old.py").write_text(text)
    (made,) = convert(tmp_path / "old.py", to="keras-layers").files
    if reason:
        assert reason in made.kept_as_estimator
        return
    for line in (
        "    found = (labels, predictions['logistic'])\n    return {'found': found}\n",
        "wide = keras_canned.add_metrics(\n"
        "    wide, metrics, {'found': tf.keras.metrics.TruePositives(thresholds=0.3, name='found')})\n",
        "def example_fn():\n    return SPEC\n",
        "keras_canned.export(wide, 'out', example_fn())\n",
    ):
        assert line in made.after, made.after


RUN = (
    """import tensorflow.compat.v1 as tf

tf.flags.DEFINE_string('model_dir', '/tmp/a', '')
FLAGS = tf.flags.FLAGS
"""
    + OLD.replace("import tensorflow as tf\n", "").replace("if __name__ == '__main__':", "def main(_):")
    + """

if __name__ == '__main__':
    tf.app.run()
"""
)


def test_flags_become_those_of_absl(tmp_path, monkeypatch):
    """But where one is read before app.run: those of V1 are read from the command line when they are asked."""
    monkeypatch.setitem(globals(), "OLD", RUN)
    made = old(tmp_path)
    assert made.keras, made.kept_as_estimator
    assert "from absl import app, flags\n" in made.after and "FLAGS = flags.FLAGS\n" in made.after
    assert "app.run(main, flags_parser=lambda argv: flags.FLAGS(argv, known_only=True))" in made.after
    monkeypatch.setitem(globals(), "OLD", RUN.replace("flags.FLAGS\n", "flags.FLAGS\nDIR = FLAGS.model_dir\n"))
    assert "tf.compat.v1.flags.DEFINE_string" in old(tmp_path).after


def test_gradients_by_v1_are_clipped(tmp_path, monkeypatch):
    """`tensorflow.compat.v1` has the functions by names of its own."""
    clipped = """    optimizer = OPTIMIZER
    variables = tf.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 2.5)
    train_op = optimizer.apply_gradients(zip(grads, variables), tf.train.get_global_step())
"""
    text = OLD.replace("    train_op = OPTIMIZER.minimize(loss, tf.train.get_global_step())\n", clipped)
    monkeypatch.setitem(globals(), "OLD", text.replace("import tensorflow as tf", "import tensorflow.compat.v1 as tf"))
    made = old(tmp_path)
    assert made.keras and "global_clipnorm=2.5" in made.after, made.kept_as_estimator


def test_a_defect_costs_the_conversion_and_not_the_scan(tmp_path, monkeypatch):
    def broken(*arguments, **options):
        raise KeyError("a")

    monkeypatch.setattr(conversion, "DEFECTS", DEFECTS)
    monkeypatch.setattr(conversion.modelling, "write", broken)
    made = old(tmp_path)
    assert not made.keras and "the converter failed: KeyError" in made.kept_as_estimator


@pytest.mark.nightly
@pytest.mark.slow
def test_the_conversions_learn_as_the_programs_do(tmp_path, run_python):
    """Each runs, its metric keeps the bound of the program that it was made of, and it exports where that does."""
    table = {name: PROGRAMS[name] for name in KERAS}
    sets = sorted({program["data"] for program in table.values()})
    done = run_python([HERE / "corpus_data.py", tmp_path / "data", *sets])
    assert done.returncode == 0, done.stderr[-4000:]
    asked = []
    for name, program in table.items():
        places = {"data": tmp_path / "data" / program["data"], "model": tmp_path / name}
        words = [str(word).format(**places) for word in program["command"]]
        # Near its bound after four epochs, whatever the seed.
        words = ["--train_epochs=8" if word == "--train_epochs=4" else word for word in words]
        asked.append({"arguments": [str(HERE / "keras" / words[0]), *words[1:]], "folder": str(tmp_path),
                      "output": f"{tmp_path}/{name}.log", "timeout": 200})  # fmt: skip
    environ = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(HERE.parents[1])}
    done = run_python([HERE / "corpus_process.py", 2], environ, timeout=400, stdin=json.dumps(asked))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for name, each, code in zip(table, asked, json.loads(done.stdout.splitlines()[-1]), strict=True):
        text, metric = Path(each["output"]).read_text(), table[name]["metric"]
        assert code == 0, text[-4000:]
        found = float(re.findall(metric["prints"], text)[-1])
        assert metric.get("at_least", -math.inf) <= found <= metric.get("at_most", math.inf), (name, found)
        if "exports" in table[name]:
            assert [*(tmp_path / name / table[name]["exports"]).glob("*/saved_model.pb")]


def test_predictions_of_a_keras_model(tmp_path):
    """Those of its Estimator are named by output layers, those of `predict_on_batch` are arrays."""
    source = tmp_path / "old.py"
    source.write_text(
        "import tensorflow as tf\n\nmodel = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])\n"
        "model.compile('sgd', 'mse')\nestimator = tf.keras.estimator.model_to_estimator(model)\n"
        "estimator.train(lambda: DATA, steps=1)\n"
    )
    (made,) = convert(source, to="keras-layers").files
    assert made.keras, made.kept_as_estimator
    source.write_text(source.read_text() + "print(list(estimator.predict(lambda: DATA)))\n")
    (made,) = convert(source, to="keras-layers").files
    assert made.kept_as_estimator.startswith("line 7: predictions of a Keras model, ")


@pytest.mark.parametrize(
    "statement",
    [
        "import estimator_pipeline.models.keras_runtime.model_fn",
        "from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn",
    ],
)
def test_a_program_that_was_converted_with_its_model_fn(capsys, statement):
    """One error and exit code 2, without a traceback, for plain python as well."""
    with pytest.raises(SystemExit) as ended:
        exec(statement)
    assert ended.value.code == 2
    assert re.match(
        r"error: .* \[migrate/outdated-conversion\]\n  found: .*\n  hint: .*ORIGINAL", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("call", "layer"),
    [
        ("tf.layers.dropout(x, training=mode == 'train')", "Dropout(0.5)(x)"),
        ("tf.layers.dropout(x, 0.1, training=mode == 'train')", "Dropout(0.1)(x)"),
        ("tf.layers.dropout(x, seed=3, training=mode == 'train')", "Dropout(0.5, seed=3)(x)"),
    ],
)
def test_the_rate_of_dropout_that_tensorflow_1_had_by_default(tmp_path, call, layer):
    text = (
        "import tensorflow as tf\n\ndef model_fn(features, labels, mode):\n    x = tf.layers.dense(features['x'], 3)\n"
    )
    text += f"    y = tf.layers.dense({call}, 1)\n    loss = tf.losses.mean_squared_error(labels, y)\n"
    text += "    train_op = tf.train.AdamOptimizer().minimize(loss, tf.train.get_global_step())\n"
    text += "    return tf.estimator.EstimatorSpec(mode, {'y': y}, loss, train_op)\n\n"
    (tmp_path / "one.py").write_text(text + "one = tf.estimator.Estimator(model_fn, 'm')\none.train(lambda: DATA)\n")
    (made,) = convert(tmp_path, to="keras-layers").files
    assert layer in made.after, made.kept_as_estimator
