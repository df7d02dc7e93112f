"""Programs whose model_fn stays: each call of an Estimator becomes Keras's, one idiom does not decline the file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from estimator_pipeline.migrate.code import convert, scan, summary

MODEL_FN = """
def model_fn(features, labels, mode, params):
    net = features['x']
    for units, rate in zip(params['units'], params['rates']):
        net = tf.layers.dense(net, units, tf.nn.relu)
        if mode == tf.estimator.ModeKeys.TRAIN:
            net = tf.nn.dropout(net, keep_prob=1.0 - rate)
    logits = tf.layers.dense(net, 1)
    predictions = {'score': logits}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.mean_squared_error(labels, logits)
    metrics = {'error': tf.metrics.mean_absolute_error(labels, logits)}
    optimizer = tf.train.AdamOptimizer(0.01) if params['adam'] else tf.train.GradientDescentOptimizer(0.01)
    train_op = optimizer.minimize(loss, tf.train.get_global_step()) if mode == 'train' else None
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)
"""
MAIN = """
def input_fn(count=None):
    data = tf.data.Dataset.range(64).map(lambda i: ({'x': [tf.to_float(i)]}, [tf.to_float(i % 7)]))
    features, labels = data.batch(8).repeat(count).make_one_shot_iterator().get_next()
    return features, labels

def main(folder):
    config = tf.estimator.RunConfig(save_checkpoints_steps=4, tf_random_seed=1)
    params = {'units': [4, 4], 'rates': [0.1, 0.1], 'adam': True}
    model = tf.estimator.Estimator(model_fn=model_fn, model_dir=folder, params=params, config=config)
    model.train(input_fn, steps=4)
    model.train(steps=4, input_fn=lambda: input_fn(2))  # four more
    result = model.evaluate(input_fn=lambda: input_fn(1), name='held_out')
    first = next(model.predict(lambda: input_fn(1), predict_keys=['score']))
    print(result['global_step'], sorted(result), first['score'].shape)

if __name__ == '__main__':
    tf.app.run(lambda _: main(sys.argv[1]))
"""
PROGRAM = "import sys\n\nimport tensorflow as tf\n\n" + MODEL_FN + "\n" + MAIN


def converted(folder, text, name="one.py", **options):
    (folder / name).write_text(text)
    (made,) = convert(folder / name, **options).files
    return made


def test_a_program(tmp_path):
    made = converted(tmp_path, PROGRAM)
    assert made.keras and made.keeps_model_fn.startswith("line ") and not made.kept_as_estimator
    text = made.after
    # Before TensorFlow, and shapes as the program knows them.
    beginning = (
        "from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn\nimport sys\n\n"
        'import tensorflow as tf\n\nif __name__ == "__main__":\n    tf.compat.v1.disable_v2_behavior()\n'
    )
    assert text.startswith(beginning)
    for line in (
        "        if mode == 'train':\n            net = tf.compat.v1.nn.dropout(net, keep_prob=1.0 - rate)\n",
        "        return keras_model_fn.ModelFnSpec(mode, predictions=predictions)\n",
        "    config = keras_model_fn.RunConfig(save_checkpoints_steps=4, tf_random_seed=1)\n",
        "    model = keras_model_fn.ModelFnModel(model_fn=model_fn, model_dir=folder, params=params, config=config)\n",
        "    model.fit(keras_model_fn.dataset(input_fn), steps_per_epoch=4)\n",
        "    model.fit(steps_per_epoch=4, x=keras_model_fn.dataset(lambda: input_fn(2)))  # four more\n",
        "model.evaluate(keras_model_fn.dataset(lambda: input_fn(1)), name='held_out', return_dict=True)\n",
        "keras_model_fn.predictions(model, keras_model_fn.dataset(lambda: input_fn(1)), predict_keys=['score']))\n",
    ):
        assert line in text, line
    assert "tf.estimator" not in text
    assert "converted to Keras; keeps its model_fn as a function that a Keras model calls: line " in summary(
        convert(tmp_path)
    )
    assert scan(tmp_path).count("manual") == 0
    strict = converted(tmp_path, PROGRAM, to="keras-layers")
    assert not strict.keras and strict.kept_as_estimator == made.keeps_model_fn


def test_it_runs(tmp_path, run_warm):
    """Graphs of TensorFlow 1 stand beside it."""
    beside = "print(input_fn())\nprint(tf.placeholder(tf.float32))\n"
    program = PROGRAM.replace("\nif __name__", f"\n{beside}\nif __name__")
    (tmp_path / "two.py").write_text(converted(tmp_path, program).after)
    done = run_warm([tmp_path / "two.py", tmp_path / "model"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "IteratorGetNext" in said[0] and "Placeholder" in said[1]
    assert said[-1] == "8 ['error', 'global_step', 'loss'] (1,)"


@pytest.mark.nightly
def test_it_runs_by_python_alone(tmp_path):
    """Without a launcher, and again from the last checkpoint."""
    made = converted(tmp_path, PROGRAM)
    (tmp_path / "two.py").write_text(made.after)
    environ = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    for run in (1, 2):
        done = subprocess.run(
            [sys.executable, "two.py", "model"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{8 * run} ['error', 'global_step', 'loss'] (1,)\n"


def test_files_of_one_program(tmp_path):
    """The Estimator is made in another file than it is used in; one flag chooses a TPUEstimator."""
    (tmp_path / "model.py").write_text(
        "import tensorflow as tf\n" + MODEL_FN + "\n"
        "def build_estimator(config, use_tpu):\n"
        "    if use_tpu:\n"
        "        return tf.contrib.tpu.TPUEstimator(model_fn, config=config, use_tpu=True, train_batch_size=8)\n"
        "    return tf.estimator.Estimator(model_fn, config=config)\n"
    )
    (tmp_path / "task.py").write_text(
        "import tensorflow as tf\nimport model\n\n"
        "def run(flags, input_fn):\n"
        "    config = tf.contrib.tpu.RunConfig(model_dir=flags.dir)\n"
        "    estimator = model.build_estimator(config, flags.use_tpu)\n"
        "    serving = tf.estimator.export.build_raw_serving_input_receiver_fn(\n"
        "        {'x': tf.placeholder(tf.float32, shape=[None, 1])})\n"
        "    exporters = [tf.estimator.FinalExporter('exporter', serving)] if flags.export else None\n"
        "    tf.estimator.train_and_evaluate(\n"
        "        estimator, tf.estimator.TrainSpec(input_fn, max_steps=10),\n"
        "        tf.estimator.EvalSpec(input_fn, steps=None, exporters=exporters))\n"
        "    estimator.export_savedmodel(flags.export, serving)\n"
    )
    made = {one.path: one for one in convert(tmp_path).files}
    assert made["model.py"].keras and made["task.py"].keras
    assert "return keras_model_fn.tpu_model(model_fn, config=config, use_tpu=True" in made["model.py"].after
    text = made["task.py"].after
    assert "{'x': tf.TensorSpec(dtype=tf.float32, shape=[None, 1])}" in text
    assert "    keras_model_fn.export_saved_model(estimator, flags.export, serving)\n" in text
    assert "keras_model_fn.train_and_evaluate(\n        estimator, keras_model_fn.TrainSpec(input_fn" in text
    assert "estimator." not in text.replace("estimator_pipeline.", "")


def test_what_is_run_imports_it_first(tmp_path):
    """Before TensorFlow with Keras 3, where another file of the program has the Estimator."""
    (tmp_path / "model.py").write_text(
        f"import tensorflow as tf\n{MODEL_FN}\nmodel = tf.estimator.Estimator(model_fn)\n"
    )
    (tmp_path / "main.py").write_text(
        "import tensorflow as tf\nimport model\n\nif __name__ == '__main__':\n    tf.app.run(model.main)\n"
    )
    made = {one.path: one.after for one in convert(tmp_path).files}
    assert made["main.py"] == (
        "from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn\nimport tensorflow as tf\n"
        'import model\n\nif __name__ == "__main__":\n    tf.compat.v1.disable_v2_behavior()\n\n'
        "if __name__ == '__main__':\n    tf.compat.v1.app.run(model.main)\n"
    )


def test_heads_and_canned_estimators_of_tensorflow_2(tmp_path):
    """Their V2; a head by the Estimator's private name for it; a Keras model that became an Estimator."""
    made = converted(
        tmp_path,
        "import tensorflow as tf\nfrom tensorflow.python.estimator.canned import head as lib\n\n"
        "def model_fn(features, labels, mode):\n    w = tf.Variable(1.0)\n    head = tf.estimator.MultiClassHead(3)\n"
        "    other = lib._binary_logistic_or_multi_class_head(2, None, None, 'weighted_sum')\n"
        "    return head.create_estimator_spec(features, mode, w, labels)\n\n"
        "models = [tf.estimator.Estimator(model_fn), tf.estimator.DNNClassifier([3], []),\n"
        "          tf.compat.v1.estimator.LinearRegressor([]), tf.keras.estimator.model_to_estimator(keras_model=1)]\n"
        "for model in models:\n    model.train(input_fn, steps=1)\n",
    )
    for line in (
        "    head = keras_model_fn.MultiClassHead(3)\n",
        "    other = keras_model_fn.binary_or_multi_class_head(2, None, None, 'weighted_sum')\n",
        "models = [keras_model_fn.ModelFnModel(model_fn), keras_model_fn.DNNClassifierV2([3], []),\n"
        "          keras_model_fn.LinearRegressor([]), keras_model_fn.model_to_estimator(keras_model=1)]\n",
    ):
        assert line in made.after, made.after


def test_canned_estimators(tmp_path):
    """Those of TensorFlow 1; columns are TensorFlow's own, and stay."""
    made = converted(
        tmp_path,
        "import tensorflow as tf\n\n"
        "column = tf.feature_column.numeric_column('x')\n"
        "if tf.app.flags.FLAGS.deep:\n"
        "    model = tf.estimator.DNNClassifier([8], [column], 'model')\n"
        "else:\n"
        "    model = tf.estimator.LinearClassifier([column], 'model')\n"
        "model = tf.contrib.estimator.add_metrics(model, lambda labels: {'m': tf.metrics.mean(labels)})\n"
        "read = tf.estimator.inputs.numpy_input_fn({'x': [1.0]}, [1], shuffle=True)\n"
        "model.train(read)\n",
    )
    for line in (
        "model = keras_model_fn.DNNClassifier([8], [column], 'model')",
        "model = keras_model_fn.LinearClassifier([column], 'model')",
        "model = keras_model_fn.add_metrics(model, lambda labels: {'m': tf.compat.v1.metrics.mean(labels)})",
        "read = keras_model_fn.numpy_input_fn({'x': [1.0]}, [1], shuffle=True)",
        "model.fit(keras_model_fn.dataset(read))",
    ):
        assert line in made.after, line


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tf.estimator.train_and_evaluate(model, *specs)\n"
         "strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()", "trains in one process"),
        ("tf.estimator.BaselineClassifier('model')", "tf.estimator.BaselineClassifier: Keras has no"),
        ("model.evaluate(input_fn, hooks=[], unknown=1)", "evaluate of an Estimator with unknown"),
        ("session = tf.compat.v1.Session()", "tf.compat.v1.Session of a separate graph, in a function"),
        ("place = tf.compat.v1.placeholder(tf.float32)", "a placeholder without dtype and shape, in a function"),
        ("from tensorflow.python.estimator import util\nutil.f()", "tensorflow.python.estimator.util, which is"),
        ("class Own(tf.estimator.Estimator):\n    pass", "Keras has no equivalent call"),
        ("try:\n    config = tf.estimator.RunConfig()\nexcept AttributeError:\n    config = None", "in a branch for"),
    ],
)  # fmt: skip
def test_what_declines_a_file(tmp_path, text, reason):
    """With the line of the user's file; the file stays as it was."""
    begin = (
        "import tensorflow as tf\n\n\ndef model_fn(features):\n    tf.compat.v1.get_variable('w', [])\n"
        "    return tf.estimator.EstimatorSpec('infer')\n\n\nmodel = tf.estimator.Estimator(model_fn, 'm')\n"
    )
    made = converted(tmp_path, f"{begin}{text}\n")
    assert not made.keras and made.before == made.after
    line, _, told = made.kept_as_estimator.partition(": ")
    assert reason in told and int(line.removeprefix("line ")) >= 10, made.kept_as_estimator


def test_imports_by_name(tmp_path):
    """A name that is imported goes with its import; a name of the program's own is not taken."""
    made = converted(
        tmp_path,
        "import tensorflow as tf\nfrom tensorflow.estimator import RunConfig as RC\n\n"
        "keras_model_fn = 1\nmodel = tf.estimator.Estimator(lambda features: None, config=RC('m'))\n"
        "model.train(lambda: None)\n",
    )
    assert made.after == (
        "from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn_\nimport tensorflow as tf\n\n"
        "keras_model_fn = 1\nmodel = keras_model_fn_.ModelFnModel(lambda features: None, "
        "config=keras_model_fn_.RunConfig('m'))\nmodel.fit(keras_model_fn_.dataset(lambda: None))\n"
    )


def test_private_imports(tmp_path):
    """Of the Estimator's own modules: gone where all that they give is replaced; ModeKeys may stand by itself."""
    made = converted(
        tmp_path,
        "import tensorflow as tf\nfrom tensorflow.python.estimator import model_fn as lib\n"
        "from tensorflow.python.estimator.model_fn import EstimatorSpec, ModeKeys\n"
        "from tensorflow import estimator, io\n\n"
        "def model_fn(features, mode):\n    keys = ModeKeys\n"
        "    if mode == lib.ModeKeys.TRAIN:\n        return EstimatorSpec(mode)\n\n"
        "estimator.Estimator(model_fn, 'm').train(lambda: io.gfile.GFile('x'))\n",
    )
    assert made.after == (
        "from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn\nimport tensorflow as tf\n"
        "from tensorflow import io\n\n"
        "def model_fn(features, mode):\n    keys = keras_model_fn.ModeKeys\n"
        "    if mode == 'train':\n        return keras_model_fn.ModelFnSpec(mode)\n\n"
        "keras_model_fn.ModelFnModel(model_fn, 'm').fit(keras_model_fn.dataset(lambda: io.gfile.GFile('x')))\n"
    )


def test_iterators_of_data_sets_of_other_files(tmp_path):
    """They may be those of TensorFlow 2, which have no such method."""
    made = converted(
        tmp_path,
        "import tensorflow as tf\nimport reading\n\n\ndef input_fn():\n"
        "    return reading.read().batch(2).make_one_shot_iterator().get_next()\n\n\n"
        "tf.estimator.Estimator(lambda features: None, 'm').train(input_fn)\n",
    )
    assert "    return tf.compat.v1.data.make_one_shot_iterator(reading.read().batch(2)).get_next()\n" in made.after


def test_an_estimator_of_another_package(tmp_path):
    """It is handed a RunConfig, heads and specs that are the Estimator's."""
    (tmp_path / "program.py").write_text(
        "import adanet\nimport tensorflow as tf\n\n"
        "tf.estimator.Estimator(lambda features: None, 'm').train(lambda: None)\n"
        "adanet.Estimator(config=tf.estimator.RunConfig()).train(lambda: None)\n"
    )
    (made,) = convert(tmp_path / "program.py").files
    assert not made.keras and made.kept_as_estimator.startswith("line 5: adanet.Estimator: an Estimator of another")


def test_classes_of_hooks(tmp_path):
    """What they come from is TensorFlow's own, by another name."""
    made = converted(
        tmp_path,
        "import tensorflow as tf\n\n\nclass Timing(tf.train.SessionRunHook):\n    pass\n\n\n"
        "hook = tf.train.LoggingTensorHook(['loss'], every_n_iter=10)\n"
        "tf.estimator.Estimator(lambda features: None, 'm').train(lambda: None, hooks=[Timing(), hook])\n",
    )
    assert "class Timing(tf.compat.v1.train.SessionRunHook):\n" in made.after
    assert "hook = tf.compat.v1.train.LoggingTensorHook(['loss'], every_n_iter=10)\n" in made.after
    assert ".fit(keras_model_fn.dataset(lambda: None), hooks=[Timing(), hook])\n" in made.after
