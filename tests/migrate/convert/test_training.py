"""Programs train by numbers as their Estimators did: optimizers, clipping, learning rates, losses.

Each case runs its Estimator for a few steps, and its conversion from the same initial weights on the same batches with
Keras 2 and Keras 3, each in one process for all cases.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from estimator_pipeline.migrate.code import convert
from tests.migrate.convert.programs import program
from tests.migrate.convert.test_programs import module, todays
from tests.support.processes import tensorflow_with_three_cpus

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]
tf = tensorflow_with_three_cpus()

STEPS = 6
DATA = """\
    import numpy as np
    draw = np.random.RandomState(0)
    x = draw.normal(size=(48, 4)).astype(np.float32)
    weights = (draw.uniform(size=48) > 0.3).astype(np.float32) * 1.5
    y = ((x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0))
    return tf.data.Dataset.from_tensor_slices(({"x": x * 3, "w": weights}, y)).repeat().batch(8)
"""
NETWORK = (
    "first, second = (tf.random_uniform_initializer(-0.8, 0.8, seed=seed) for seed in (3, 4))\n"
    'net = tf.layers.dense(features["x"], 5, tf.nn.tanh, name="hidden", kernel_initializer=first)\n'
    'logits = tf.layers.dense(net, 3, name="logits", kernel_initializer=second)'
)
FEATURE = 'features["x"]'
STEP = "tf.train.get_or_create_global_step()"


def minimize(optimizer: str, before: str = "") -> dict[str, str]:
    return {"TRAIN_OP": f"{before}train_op = {optimizer}.minimize(loss, global_step={STEP})"}


def clipped(lines: str, optimizer: str = "tf.train.GradientDescentOptimizer(0.3)") -> dict[str, str]:
    return {"TRAIN_OP": f"optimizer = {optimizer}\n{lines}\n"
                        f"train_op = optimizer.apply_gradients(gvs, global_step={STEP})"}  # fmt: skip


def loss(text: str) -> dict[str, str]:
    return {"LOSS": text, **minimize("tf.train.GradientDescentOptimizer(0.3)")}


# Name -> the parts of the program, and what its conversion has.
CASES: dict[str, tuple[dict[str, str], str]] = {
    "global_norm": (clipped(
        "grads, variables = zip(*optimizer.compute_gradients(loss))\n"
        "grads, norm = tf.clip_by_global_norm(grads, 0.5)\ngvs = zip(grads, variables)"), "global_clipnorm=0.5"),
    "gradients": (clipped(
        "tvars = tf.trainable_variables()\ngrads = tf.gradients(loss, tvars)\n"
        "(grads, _) = tf.clip_by_global_norm(grads, clip_norm=0.5)\ngvs = zip(grads, tvars)"), "global_clipnorm=0.5"),
    "norm": (clipped(
        "gvs = optimizer.compute_gradients(loss)\n"
        "gvs = [(tf.clip_by_norm(g, 0.1) if g is not None else None, v) for g, v in gvs]",
        "tf.train.MomentumOptimizer(0.1, 0.9)"), "clipnorm=0.1"),
    "value": (clipped(
        "gvs = optimizer.compute_gradients(loss)\nfor i, (g, v) in enumerate(gvs):\n    if g is not None:\n"
        "        gvs[i] = (tf.clip_by_value(g, -0.05, 0.05), v)", "tf.train.GradientDescentOptimizer(0.1)"),
        "clipvalue=0.05"),
    "rmsprop": (minimize("tf.train.RMSPropOptimizer(0.01)"), "TensorFlow1RMSprop(0.01, epsilon=1e-10)"),
    "rmsprop_centered": (
        minimize("tf.train.RMSPropOptimizer(0.01, decay=0.8, momentum=0.5, centered=True)"), "centered=True"),
    "momentum": (
        minimize("tf.train.MomentumOptimizer(rate, 0.9)", f"rate = tf.train.exponential_decay(0.1, {STEP}, 1, 0.5)\n"),
        "TensorFlow1Momentum(rate, momentum=0.9)"),
    "nesterov": (minimize(
        "tf.train.MomentumOptimizer(tf.train.piecewise_constant(s, [1, 3], [0.1, 0.01, 0.2]), 0.9, use_nesterov=True)",
        f"s = {STEP}\n"), "nesterov=True"),
    "adadelta": (minimize("tf.train.AdadeltaOptimizer(1.0)"), "Adadelta(1.0, epsilon=1e-8)"),
    "adagrad": (minimize("tf.train.AdagradOptimizer(0.1, initial_accumulator_value=1e-8)"), "epsilon=0.0"),
    "ftrl": (minimize("tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01)"), "Ftrl("),
    "warmup": (minimize(
        "tf.train.AdamOptimizer(rate)",
        'step = tf.train.get_global_step()\nwarmup = params["rate"] * 30\n'
        'rate = params["rate"] * tf.minimum(1.0, tf.cast(step, tf.float32) / warmup)\n'
        "rate = tf.cond(step < 4, lambda: rate, lambda: tf.train.exponential_decay(rate, step, 2, 0.5))\n"),
        "ProgramLearningRate(params)"),
    "noam": (minimize(
        "tf.train.AdamOptimizer(rate)",
        "step = tf.to_float(tf.train.get_global_step() + 1)\nrate = 0.1 * tf.minimum(step * 0.3, step ** -0.5)\n"),
        "ProgramLearningRate()"),
    "restarts": (minimize(
        f"tf.train.GradientDescentOptimizer(tf.train.cosine_decay_restarts(0.1, {STEP}, 2))"), "CosineDecayRestarts("),
    "optimize_loss": ({"TRAIN_OP": (
        f"train_op = tf.contrib.layers.optimize_loss(loss, {STEP}, params['rate'], 'Momentum', clip_gradients=0.5,\n"
        "    learning_rate_decay_fn=lambda rate, step: tf.train.exponential_decay(rate, step, 2, 0.5))")},
        "TensorFlow1Momentum(ProgramLearningRate(params), momentum=0.9, global_clipnorm=0.5)"),
    "optimize_loss_class": ({"TRAIN_OP": (
        f"train_op = tf.contrib.layers.optimize_loss(loss, {STEP}, 0.1, tf.train.AdagradOptimizer)")}, "Adagrad(0.1)"),
    "chosen": (minimize(
        "optimizer", "if params['rate'] > 1:\n    optimizer = tf.train.AdamOptimizer(0.1)\nelse:\n"
        "    optimizer = tf.train.RMSPropOptimizer(0.01)\n"), "optimizer = TensorFlow1RMSprop("),
    "weights": (loss("loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, weights=features['w'])"),
                "weighted_mean("),
    "weights_smoothed": (
        loss("loss = tf.losses.softmax_cross_entropy(tf.one_hot(labels, 3), logits, features['w'], 0.2)"),
        "label_smoothing=0.2"),
    "weights_of_elements": (
        loss("weights = tf.expand_dims(features['w'], 1)\nonehot = tf.one_hot(labels, 3)\n"
             "loss = tf.losses.mean_squared_error(onehot, logits, weights=weights)\n"
             "loss += tf.losses.sigmoid_cross_entropy(onehot, logits, weights)\n"
             "loss += tf.losses.absolute_difference(onehot, logits, weights=0.5)"), "squared_difference("),
    "hinge": (loss("loss = tf.losses.hinge_loss(tf.one_hot(labels, 3), logits)"), "nn.relu("),
    "log_loss": (loss("loss = tf.losses.log_loss(tf.one_hot(labels, 3), tf.nn.sigmoid(logits), epsilon=0.01)"),
                 "log_losses("),
    "cosine": (loss("loss = tf.losses.cosine_distance(tf.one_hot(labels, 3), tf.nn.l2_normalize(logits, 1), axis=1)"),
               "keepdims=True, axis=1"),
    "reductions": (
        loss("onehot = tf.one_hot(labels, 3)\nloss = tf.losses.mean_squared_error("
             "onehot, logits, reduction=tf.losses.Reduction.SUM) / 64.0\nloss += tf.reduce_max("
             "tf.losses.sparse_softmax_cross_entropy(labels, logits, reduction=tf.losses.Reduction.NONE))"),
        "reduce_sum("),
    "l2": (loss("loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)\nloss += 0.1 * tf.add_n("
                "[tf.nn.l2_loss(v) for v in tf.trainable_variables() if 'bias' not in v.name])"),
           "for v in self.trainable_variables if 'bias' not in v.name"),
    "l2_of_all": (loss("loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)\n"
                       "for v in tf.trainable_variables():\n    loss += 0.1 * tf.nn.l2_loss(v)"),
                  "for v in self.trainable_variables:"),
    "metrics": (minimize("tf.train.GradientDescentOptimizer(0.1)") | {"METRICS": (
        "dict(per_class=tf.metrics.mean_per_class_accuracy(labels, tf.argmax(logits, 1), 3),\n"
        "     weighted_per_class=tf.metrics.mean_per_class_accuracy(labels, tf.argmax(logits, 1), 3, features['w']),\n"
        "     iou=tf.metrics.mean_iou(labels, tf.argmax(logits, 1), 3),\n"
        "     weighted=tf.metrics.accuracy(labels, tf.argmax(logits, 1), weights=features['w']),\n"
        "     mean=tf.metrics.mean(tf.reduce_max(logits, 1), features['w']),\n"
        "     precision=tf.metrics.precision(labels > 0, tf.argmax(logits, 1) > 0, features['w']),\n"
        "     false=tf.metrics.false_positives(labels > 0, tf.argmax(logits, 1) > 0),\n"
        "     true=tf.metrics.true_negatives(labels > 0, tf.argmax(logits, 1) > 0, weights=features['w']))")},
        "MeanPerClassAccuracy(num_classes=3, name='per_class')"),
    "activation": (minimize("tf.train.AdamOptimizer(0.01)") | {"NETWORK": NETWORK.replace("nn.tanh", "nn.leaky_relu")},
                   "activation=leaky_relu"),
    # Rows that a batch has several times, and dropout that never drops.
    "embedding": (minimize("tf.train.AdamOptimizer(0.01)") | {"NETWORK": (
        'ids = tf.cast(tf.greater(features["x"], 0.0), tf.int32)\n'
        'net = tf.keras.layers.Embedding(2, 3, name="embedding")(ids)\n'
        f'net = tf.layers.dropout(tf.layers.flatten(net), 0.5)\n{NETWORK.replace(FEATURE, "net")}')},
        "ConstantTraining(tf.keras.layers.Dropout(0.5), False)(tf.keras.layers.Flatten()(net))"),
}  # fmt: skip

TRAIN = """\
import importlib.util
import json
import sys

import numpy as np
import tensorflow as tf

folder, steps = sys.argv[1], int(sys.argv[2])
for name in json.load(open(f"{folder}/cases.json")):
    spec = importlib.util.spec_from_file_location(f"after_{name}", f"{folder}/{name}/keras.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    tf.keras.backend.clear_session()
    data = program.input_fn()
    model = program.make_model(program.model_inputs(data), {"rate": 0.1})
    initial = np.load(f"{folder}/{name}/initial.npz")
    named = lambda: {getattr(v, "path", v.name).split(":")[0]: v for v in model.trainable_variables}
    for path, variable in named().items():
        variable.assign(initial[path])
    half = steps // 2 if "class TensorFlow1" in open(program.__file__).read() else steps
    model.fit(data, steps_per_epoch=half, verbose=0)
    checkpoint = tf.train.Checkpoint(model=model).save(f"{folder}/{name}/checkpoint/c")  # and into a new model
    model = program.make_model(program.model_inputs(data), {"rate": 0.1})
    tf.train.Checkpoint(model=model).restore(checkpoint).assert_existing_objects_matched()
    if half < steps:
        model.fit(data.skip(half), steps_per_epoch=steps - half, verbose=0)
    metrics = model.evaluate(data.take(5), return_dict=True, verbose=0)
    np.savez(f"{folder}/{name}/after-{sys.argv[3]}.npz", **{p: v.numpy() for p, v in named().items()})
    with open(f"{folder}/{name}/after-{sys.argv[3]}.json", "w") as file:
        json.dump({key: float(value) for key, value in metrics.items()}, file)
"""


def program_of(parts: dict[str, str]) -> str:
    text = program(**{"NETWORK": NETWORK, **parts})
    start, end = text.index("    return tf.data.Dataset"), text.index("\n\ndef main")
    return text[:start] + DATA + text[end:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of the cases: the Estimator's weights before and after, and its metrics."""
    folder = tmp_path_factory.mktemp("training")
    for name, (parts, written) in CASES.items():
        (folder / name).mkdir()
        (folder / name / "program.py").write_text(program_of(parts))
        (file,) = convert(folder / name / "program.py").files
        assert file.keras, f"{name}: {file.kept_as_estimator}"
        assert written in file.after, f"{name}: {file.after}"
        (folder / name / "keras.py").write_text(file.after)
        before = module(todays(folder / name, program_of(parts)), f"before_{name}")
        config = tf.estimator.RunConfig(os.fspath(folder / name / "model"), tf_random_seed=1, log_step_count_steps=1000)
        estimator = tf.estimator.Estimator(before.model_fn, config=config, params={"rate": 0.1})
        estimator.train(before.input_fn, max_steps=STEPS)
        metrics = estimator.evaluate(before.input_fn, steps=5)
        for step, to in ((0, "initial"), (STEPS, "final")):
            reader = tf.train.load_checkpoint(os.fspath(folder / name / "model" / f"model.ckpt-{step}"))
            names = [f"{layer}/{kind}" for layer in ("hidden", "logits") for kind in ("kernel", "bias")]
            names += ["embedding/embeddings"] if reader.has_tensor("embedding/embeddings") else []
            np.savez(folder / name / f"{to}.npz", **{variable: reader.get_tensor(variable) for variable in names})
        (folder / name / "metrics.json").write_text(json.dumps({key: float(value) for key, value in metrics.items()}))
    (folder / "cases.json").write_text(json.dumps(list(CASES)))
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.mark.parametrize(
    "keras", [pytest.param("2", marks=pytest.mark.nightly), pytest.param("3", marks=pytest.mark.keras_3)]
)
def test_training_ends_at_the_weights_of_the_estimator(trained, run_python, keras):
    """Also after a checkpoint in the middle, which has the optimizer's state."""
    legacy = {"TF_USE_LEGACY_KERAS": None if tf.__version__.startswith("2.15.") else str(int(keras == "2"))}
    done = run_python([trained / "train.py", trained, STEPS, keras], env=legacy, cwd=trained)
    assert done.returncode == 0, done.stderr[-4000:]
    for name in CASES:
        final, after = (np.load(trained / name / f"{file}.npz") for file in ("final", f"after-{keras}"))
        initial = np.load(trained / name / "initial.npz")
        assert sorted(final) == sorted(after)
        for variable in final:
            assert not np.array_equal(initial[variable], final[variable]), f"{name}: {variable} does not train"
            np.testing.assert_allclose(after[variable], final[variable], rtol=2e-5, atol=1e-5,
                                       err_msg=f"{name}: {variable}")  # fmt: skip
        expected = json.loads((trained / name / "metrics.json").read_text())
        metrics = json.loads((trained / name / f"after-{keras}.json").read_text())
        for key in metrics:
            np.testing.assert_allclose(metrics[key], expected[key], rtol=1e-5, err_msg=f"{name}: {key}")
