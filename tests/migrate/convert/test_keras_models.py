"""Estimators of the program's own Keras model, `model_to_estimator`: what is written, and what stays."""

from __future__ import annotations

import pytest

PROGRAM = """\
import tensorflow as tf
<BEFORE>

def build(units):
    model = tf.keras.Sequential([tf.keras.layers.Dense(units, input_shape=(3,)), tf.keras.layers.Dense(1)])
    model.compile(<COMPILE>)
    return model


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": [[1.0, 2.0, 3.0]]}, [[1.0]])).repeat().batch(2)


def main():
    <MAIN>


if __name__ == "__main__":
    main()
"""
V1 = 'tf.train.AdamOptimizer(0.1), "mse", metrics=["mae"]'
MAKE = "estimator = tf.keras.estimator.model_to_estimator"
TRAIN = "estimator.train(input_fn, steps=4)"


def program(main: str, *, compile: str = V1, before: str = "") -> str:
    text = PROGRAM.replace("<MAIN>", main.replace("\n", "\n    ")).replace("<COMPILE>", compile)
    return text.replace("<BEFORE>", before)


WRITTEN = [
    (f"{MAKE}(build(4))\n{TRAIN}\nprint(estimator.evaluate(input_fn, steps=2))", [
        "    model = build(4)\n    training = keras_data(model, input_fn())\n    model.fit(training, steps_per_epoch",
        "model.evaluate(keras_data(model, input_fn()).take(2), return_dict=True, verbose=0)",
        'model.compile(tf.keras.optimizers.Adam(0.1, epsilon=1e-8), "mse", metrics=["mae"])']),
    (f"net = build(4)\nnet.summary()\n{MAKE}(keras_model=net, model_dir='runs')\n{TRAIN}\nprint(net.name)", [
        "    net.summary()\n    training = keras_data(net, input_fn())\n    save = checkpoints(net, ",
        "    print(net.name)\n"]),
    # A model that is only evaluated is restored where there is a checkpoint, and needs none.
    (f"{MAKE}(build(4), model_dir='runs')\nprint(estimator.evaluate(input_fn, steps=2))", [
        "    model = build(4)\n    data = keras_data(model, input_fn())\n    checkpoints(model, "]),
    (f"{MAKE}(build(4), checkpoint_format='saver')\n{TRAIN}\nrows = list(estimator.predict(input_fn))", [
        "    model = build(4)\n    # Without a counterpart in fit: checkpoint_format='saver'\n",
        "predict(model, keras_data(model, input_fn()), lambda _, outputs: named_outputs(model, outputs))"]),
]  # fmt: skip


@pytest.mark.parametrize(("main", "written"), WRITTEN)
def test_a_model_that_the_program_compiles(convert_files, main, written):
    file = convert_files(program=program(main))["program"]
    assert all(line in file.after for line in written), file.kept_as_estimator or file.after


def test_a_function_that_is_passed_the_estimator(convert_files):
    show = "def show(x):\n    print(x.evaluate(input_fn, steps=2))\n    return list(x.predict(input_fn))\n"
    file = convert_files(program=program(f"{MAKE}(build(4))\n{TRAIN}\nshow(estimator)", before=show))["program"]
    assert "    print(dict(x.evaluate(keras_data(x, input_fn()).take(2), return" in file.after, file.kept_as_estimator
    assert "predict(x, keras_data(x, input_fn()), lambda _, outputs: named_outputs(x, outputs))" in file.after


OPTIMIZERS = [
    ("tf.keras.optimizers.legacy.Adam(lr=0.1)", "tf.keras.optimizers.Adam(learning_rate=0.1)"),
    ("tf.train.RMSPropOptimizer(0.1)", "TensorFlow1RMSprop(0.1, epsilon=1e-10)"),
    ("'adam'", "'adam'"),
]


@pytest.mark.parametrize(("optimizer", "written"), OPTIMIZERS)
def test_the_optimizer_of_compile(convert_files, optimizer, written):
    text = program(f"{MAKE}(build(4), model_dir='a')\n{TRAIN}", compile=f"optimizer={optimizer}, loss='mse'")
    file = convert_files(program=text)["program"]
    assert (', "keras"), restores_rates=True)\n' in file.after) != ("tf.train." in optimizer), file.kept_as_estimator
    assert f"    model.compile(optimizer={written}, loss='mse')\n" in file.after, file.kept_as_estimator


@pytest.mark.parametrize("of_v1", ["", "tf.logging.set_verbosity(tf.logging.ERROR)\n"])
def test_an_argument_that_keras_3_names_otherwise(convert_files, of_v1):
    text = program(f"{MAKE}(build(4))\n{TRAIN}\nprint(tf.keras.utils.to_categorical(y=[1], num_classes=2))")
    file = convert_files(program=text.replace("\n\ndef ", f"\n{of_v1}\ndef ", 1))["program"]
    assert "print(tf.keras.utils.to_categorical([1], num_classes=2))" in file.after, file.kept_as_estimator


TRAINER = """\
import tensorflow as tf
from tensorflow.python.keras import models
from tensorflow.python.keras.layers import Dense


def make(model_dir, config, units):
    # Two layers.
    model = models.Sequential([Dense(units, activation=tf.nn.softmax), Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.Adam(lr=0.1), loss="mse")
    estimator = tf.keras.estimator.model_to_estimator(keras_model=model, model_dir=model_dir, config=config)
    return estimator


def input_fn(mode):
    data = tf.data.Dataset.from_tensor_slices(([[1.0, 2.0, 3.0]], [[1.0]])).repeat().batch(2)
    return data.make_one_shot_iterator().get_next()


def serving():
    x = tf.placeholder(tf.float32, [None, 3])
    return tf.estimator.export.TensorServingInputReceiver(x, x)
"""
TASK = """\
import tensorflow as tf

import trainer


def main(epochs):
    tf.summary.FileWriterCache.clear()
    config = tf.estimator.RunConfig(save_checkpoints_steps=5)
    steps = epochs * 9 / 2
    train_spec = tf.estimator.TrainSpec(lambda: trainer.input_fn(tf.estimator.ModeKeys.TRAIN), max_steps=steps)
    exporter = tf.estimator.LatestExporter("latest", trainer.serving)
    eval_spec = tf.estimator.EvalSpec(lambda: trainer.input_fn(tf.estimator.ModeKeys.EVAL), 1, exporters=exporter)
    estimator = trainer.make(
        model_dir="runs",
        config=config, units=4
    )
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
"""


def test_a_function_that_makes_the_model_and_its_estimator(convert_files):
    """It returns the model; its callers in other files, and their input and serving functions, change with it."""
    files = convert_files(trainer=TRAINER, task=TASK)
    trainer, task = files["trainer"], files["task"]
    assert trainer.keras and task.keras, (trainer.kept_as_estimator, task.kept_as_estimator)
    assert "def make(units):\n    # Two layers.\n" in trainer.after
    assert "    estimator = model\n    return estimator\n" in trainer.after
    assert "from tensorflow.keras import models\nfrom tensorflow.keras.layers import Dense\n" in trainer.after
    assert "Adam(learning_rate=0.1)" in trainer.after
    assert "    # Without a counterpart in fit: tf.compat.v1.summary.FileWriterCache.clear()\n" in task.after
    assert "\n    return data\n" in trainer.after and 'return {"input": x}, features_of\n' in trainer.after
    assert "    model = trainer.make(units=4)\n" in task.after
    assert "keras_data(model, once(trainer.input_fn('train')))" in task.after
    assert "epochs=-(-int(-(-steps // 1)) // 5)," in task.after
    assert '    export_keras(model, os.path.join("runs", "export", "latest"), *trainer.serving())\n' in task.after
    assert "estimator." not in task.after and "def predict" not in task.after and "placeholder" not in trainer.after


STAYS = [
    (f"{MAKE}(keras_model_path='m.h5')\n{TRAIN}", "", V1, "keras_model_path of model_to_estimator"),
    (f"{MAKE}(build(4), metric_names_map={{'mae': 'm'}})\n{TRAIN}", "", V1, "metric_names_map of model_to_estimator"),
    (f"net = build(4)\nnet.fit(input_fn())\n{MAKE}(net)\n{TRAIN}", "", V1, "net, which is trained or used beside"),
    (f"net = build(4)\nother = net\n{MAKE}(net)\n{TRAIN}", "", V1, "net, which is trained or used beside"),
    (f"net = build(4)\ntrain(net)\n{MAKE}(net)\n{TRAIN}", "def train(x):\n    x.fit(input_fn())\n", V1,
     "net, which is trained or used beside"),
    (f"net = build(4)\n{MAKE}(net)\n{TRAIN}\nnet.save('m.h5')", "", V1, "net, which is trained or used beside"),
    (f"net = build(4)\nfor d in 'ab':\n    {MAKE}(net, model_dir=d)\n    {TRAIN}", "", V1, "of several Estimators"),
    (f"{MAKE}(NET)\n{TRAIN}", "NET = tf.keras.Sequential()\nNET.compile('sgd', 'mse')\n", V1, "not made in"),
    (f"{MAKE}(tf.keras.models.load_model('m.h5'))\n{TRAIN}", "", V1, "whose compile is not found"),
    (f"strategy = tf.distribute.MirroredStrategy()\nconfig = tf.estimator.RunConfig(train_distribute=strategy)\n"
     f"{MAKE}(build(4), config=config)\n{TRAIN}", "", V1, "outside of the strategy's scope"),
    (f"{MAKE}(build(4))\n{TRAIN}", "", "'rmsprop', 'mse'", "the optimizer 'rmsprop' of a Keras model"),
    (f"{MAKE}(build(4))\n{TRAIN}", "", "OPTIMIZER, 'mse'", "the optimizer OPTIMIZER of a Keras model"),
    (f"{MAKE}(build(4))\n{TRAIN}", "", "tf.keras.optimizers.SGD(0.1, decay=0.1), 'mse'", "decay=0.1 of tf.keras"),
    (f"{MAKE}(build(4))\n{TRAIN}", "", "'sgd', 'mse', weighted_metrics=['mae']", "weighted_metrics of compile"),
    (f"{MAKE}(build(4))\n{TRAIN}", "TABLE = tf.keras.layers.Embedding(4, 2)\n",
     "tf.train.MomentumOptimizer(0.1, 0.9), 'mse'", "of embeddings"),
    (f"x = tf.keras.layers.Dense(3)(tf.keras.Input((3,)))\ny = tf.reshape(x, [-1])\n{MAKE}(build(4))\n{TRAIN}", "", V1,
     "tf.reshape of a tensor of Keras"),
    (f"tf.keras.backend.set_learning_phase(True)\n{MAKE}(build(4))\n{TRAIN}", "", V1, "do not share"),
    (f"{MAKE}(build(4))\n{TRAIN}", "LAYER = tf.keras.layers.LSTM(4)\n", V1, "another layer in TensorFlow 1"),
    (f"{MAKE}(build(4))\n{TRAIN}", "NORM = tf.keras.layers.BatchNormalization()\nNORM.trainable = False\n", V1,
     "another layer in TensorFlow 1"),
    (f"{MAKE}(build(4))\n{TRAIN}", "BASE = tf.keras.applications.MobileNet()\nBASE.trainable = False\n", V1,
     "another layer in TensorFlow 1"),
    (f"{MAKE}(build(4))\n{TRAIN}", "from tensorflow.python.keras.layers.core import Dense\n", V1, "cannot be imported"),
    (f"{MAKE}(build(4))\nrun(estimator)", "def run(x):\n    return x\n", V1, "in another way than train"),
]  # fmt: skip


@pytest.mark.parametrize(("main", "before", "compile", "reason"), STAYS)
def test_what_stays(convert_files, main, before, compile, reason):
    file = convert_files(program=program(main, before=before, compile=compile))["program"]
    assert reason in file.kept_as_estimator, file.kept_as_estimator or file.after


MAKERS = [
    ("    print(config)\n    model = models", "", "a RunConfig that is used elsewhere, too"),
    ("", "print(trainer.make)\n", "make, which task.py uses, too"),
    ("", "trainer.make(None, None, 4)\n", "passed on where it is made"),
]


@pytest.mark.parametrize(("inside", "more", "reason"), MAKERS)
def test_functions_that_stay(convert_files, inside, more, reason):
    text = TRAINER.replace("    model = models", inside) if inside else TRAINER
    files = convert_files(trainer=text, task=TASK + more)
    assert reason in files["trainer"].kept_as_estimator, files["trainer"].after
