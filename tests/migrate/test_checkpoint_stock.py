"""From the optimizers of TensorFlow 1 to the stock ones of Keras, as `.keras`: the step that comes next is the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate import migrate_checkpoint

ROOT = Path(__file__).parents[2]
tf = compat.install()
v1 = tf.compat.v1
X = np.random.RandomState(0).uniform(size=[16, 4]).astype("float32")
Y = (X @ np.array([[1.0], [2.0], [3.0], [4.0]])).astype("float32")
# A rate of 1/8 makes the conversion of a momentum exact. Keras's call, with the epsilon of TensorFlow 1.
CASES = {
    "sgd": (lambda: v1.train.GradientDescentOptimizer(0.125), "SGD(0.125)"),
    "momentum": (lambda: v1.train.MomentumOptimizer(0.125, 0.9), "SGD(0.125, momentum=0.9)"),
    "nesterov": (
        lambda: v1.train.MomentumOptimizer(0.125, 0.9, use_nesterov=True),
        "SGD(0.125, momentum=0.9, nesterov=True)",
    ),
    "adam": (lambda: v1.train.AdamOptimizer(0.125), "Adam(0.125, epsilon=1e-8)"),
    "adagrad": (lambda: v1.train.AdagradOptimizer(0.125), "Adagrad(0.125, epsilon=1e-30)"),
    "adadelta": (lambda: v1.train.AdadeltaOptimizer(0.125), "Adadelta(0.125, epsilon=1e-8)"),
    "rmsprop": (lambda: v1.train.RMSPropOptimizer(0.125), "RMSprop(0.125, epsilon=1e-10)"),
    "rmsprop with momentum": (
        lambda: v1.train.RMSPropOptimizer(0.125, momentum=0.5, centered=True),
        "RMSprop(0.125, momentum=0.5, centered=True, epsilon=1e-10)",
    ),
    "ftrl": (lambda: v1.train.FtrlOptimizer(0.125), "Ftrl(0.125)"),
}
CHOICES = {"momentum": {"learning_rate": 0.125}, "nesterov": {"learning_rate": 0.125}}


def old_losses(folder, optimizer):
    """Three steps of TensorFlow 1, a checkpoint, and the losses of the three steps after it."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        kernel = v1.get_variable("dense/kernel", [4, 1])
        bias = v1.get_variable("dense/bias", [1], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(X, kernel) + bias - Y))
        train = optimizer().minimize(loss, v1.train.get_or_create_global_step())
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        saver = v1.train.Saver()
        saver.save(session, f"{folder}/model.ckpt", global_step=3)
        return [float(session.run([loss, train])[0]) for _ in range(3)]


def keras_model(call):
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, name="dense")])
    model.compile(eval(f"tf.keras.optimizers.{call}"), "mse", run_eagerly=True)  # without a graph for each case
    return model


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """Case -> folder of its checkpoint, and the losses that come next."""
    found = {}
    for case, (optimizer, _) in CASES.items():
        folder = tmp_path_factory.mktemp("old")
        found[case] = (folder, old_losses(folder, optimizer))
    return found


@pytest.fixture(scope="module")
def of_keras_3(old, run_python, tmp_path_factory):
    """Case -> the losses of a `.keras` that Keras alone loads."""
    asked = {case: (str(old[case][0]), call, CHOICES.get(case, {})) for case, (_, call) in CASES.items()}
    folder = tmp_path_factory.mktemp("keras3")
    code = f"""
import json
import numpy as np
from estimator_pipeline import compat
compat.use_keras_3()
from estimator_pipeline.migrate import migrate_checkpoint
import keras
x, y = np.array({X.tolist()}, "float32"), np.array({Y.tolist()}, "float32")
def make(call):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="dense")])
    model.compile(eval("keras.optimizers." + call), "mse", run_eagerly=True)
    return model
told = {{}}
for case, (folder, call, choices) in {asked!r}.items():
    path = {str(folder)!r} + "/" + case + ".keras"
    done = migrate_checkpoint(folder, to="keras3", model=lambda: make(call), output=path, **choices)
    model = keras.models.load_model(path)
    losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
    told[case] = [losses, list(done.notes), int(model.optimizer.iterations)]
print(json.dumps(told))
"""
    program = folder / "go_on.py"
    program.write_text(code)
    done = run_python([program], env={"PYTHONPATH": str(ROOT)}, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.keras_3
@pytest.mark.parametrize("case", CASES)
def test_keras_3_goes_on_from_a_file(old, of_keras_3, case):
    losses, notes, iterations = of_keras_3[case]
    np.testing.assert_allclose(losses, old[case][1], rtol=1e-5)
    assert iterations == 6 and not notes


@pytest.mark.parametrize("case", CASES)
def test_keras_2_goes_on_from_a_file(old, tmp_path, case):
    path = str(tmp_path / "model.keras")
    call = CASES[case][1]
    done = migrate_checkpoint(
        old[case][0], to="keras", model=lambda: keras_model(call), output=path, **CHOICES.get(case, {})
    )
    model = tf.keras.models.load_model(path)
    losses = [float(model.train_on_batch(X, Y)) for _ in range(3)]
    np.testing.assert_allclose(losses, old[case][1], rtol=1e-5)
    assert int(model.optimizer.iterations) == 6 and not done.notes


@pytest.mark.parametrize(
    ("case", "call", "epsilon"), [("adam", "Adam(0.125)", "1e-08"), ("rmsprop", "RMSprop(0.125)", "1e-10")]
)
def test_another_epsilon_is_one_note_that_names_it(old, tmp_path, case, call, epsilon):
    done = migrate_checkpoint(old[case][0], to="keras", model=lambda: keras_model(call), output=tmp_path / "new")
    assert len(done.notes) == 1 and f"(epsilon={epsilon})" in done.notes[0]


def test_shapes_that_do_not_fit_are_a_line_a_variable(old, tmp_path):
    def wrong():
        model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(2, name="dense")])
        model.compile("adam", "mse")
        return model

    with pytest.raises(ConfigError) as caught:
        migrate_checkpoint(old["adam"][0], to="keras", model=wrong, output=tmp_path / "new.keras")
    assert caught.value.code == "migrate/mismatch"
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  dense")] == ["dense/kernel", "dense/bias"]
    assert all(part in lines[1] for part in ("[5, 2]", "[4, 1]"))


def v1_model_fn(features, labels, mode):
    kernel, bias = v1.get_variable("dense/kernel", [4, 1]), v1.get_variable("dense/bias", [1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, kernel) + bias - labels))
    train = v1.train.AdamOptimizer(0.125).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_fn():
    return tf.data.Dataset.from_tensors((X, Y)).repeat()


def test_there_and_back_with_an_estimator_of_v1(tmp_path):
    v1.estimator.Estimator(v1_model_fn, str(tmp_path / "old")).train(input_fn, max_steps=2)
    call = CASES["adam"][1]
    migrate_checkpoint(tmp_path / "old", to="keras", model=lambda: keras_model(call), output=tmp_path / "keras")
    back = migrate_checkpoint(
        tmp_path / "keras",
        to="estimator",
        estimator=lambda: v1.estimator.Estimator(v1_model_fn, str(tmp_path / "unused")),
        input_fn=input_fn,
        output=tmp_path / "back",
    )
    one, other = (tf.train.load_checkpoint(path) for path in (str(tmp_path / "old"), back.output))
    for name in one.get_variable_to_shape_map():
        assert one.get_tensor(name).tobytes() == other.get_tensor(name).tobytes(), name


def test_a_canned_estimator_of_v1(tmp_path):
    columns = [tf.feature_column.numeric_column("x", [4])]
    old = v1.estimator.LinearRegressor(columns, str(tmp_path / "old"))
    old.train(lambda: tf.data.Dataset.from_tensors(({"x": X}, Y)).repeat(), max_steps=2)
    names = {"dense/kernel": "linear/linear_model/x/weights", "dense/bias": "linear/linear_model/bias_weights"}
    done = migrate_checkpoint(
        tmp_path / "old", to="keras", model=lambda: keras_model("Ftrl(0.2)"), output=tmp_path / "keras", mapping=names
    )
    taken = {row.source for row in done.rows}
    assert len([name for name in taken if name.rpartition("/")[2] in ("Ftrl", "Ftrl_1")]) == 4
