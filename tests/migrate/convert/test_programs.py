"""Converted programs run with plain python, train as the Estimator did, and are saved and loaded."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline.migrate.code import convert
from estimator_pipeline.testing import assert_parity
from tests.migrate.convert.programs import BRANCHES, CNN, KERAS_MODEL, TUTORIAL, program
from tests.support.processes import tensorflow_with_three_cpus

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]
tf = tensorflow_with_three_cpus()


@pytest.fixture(autouse=True)
def named_as_in_a_process_of_its_own():
    """Keras numbers layers without a name over all models of a process."""
    tf.keras.backend.clear_session()


def converted(folder: Path, text: str, name: str = "program.py") -> Path:
    """Return the file that a program is converted to, in a folder of its own."""
    (folder / name).write_text(text)
    (file,) = convert(folder / name).files
    assert file.keras, file.kept_as_estimator
    assert "estimator" not in file.after.replace("tf.estimator averages", "") and "compat.v1" not in strip_comments(
        file.after
    )
    (folder / "keras").mkdir()
    (folder / "keras" / name).write_text(file.after)
    return folder / "keras" / name


def strip_comments(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in text.splitlines())


def module(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def todays(folder: Path, text: str) -> Path:
    """Return the program with names of TensorFlow 2, whose Estimator runs here."""
    (folder / "before.py").write_text(text)
    (file,) = convert(folder / "before.py", to="estimator").files
    (folder / "before.py").write_text(file.after)
    return folder / "before.py"


UNKNOWN_LENGTH = """\
import numpy as np


def input_fn(serving=False):
    draw = np.random.RandomState(0)
    features = {"x": draw.rand(10, 2).astype("float32"), "a_key": draw.choice(["a", "b"], 10)}
    features.update({} if serving else {"weight": draw.rand(10).astype("float32")})
    data = tf.data.Dataset.from_tensor_slices((features, draw.randint(0, 3, 10)))
    return data.filter(lambda *_: True).batch(4)


"""


CHECKS = """\
import by_keys
import numpy as np
import tensorflow as tf
import whole

for program in (by_keys, whole):
    model = program.make_model(program.model_inputs(program.input_fn()), {"rate": 0.1})
    for count in (3, 6):
        model.fit(program.input_fn(), callbacks=[program.CountSteps()], verbose=0)
        assert int(model.optimizer.iterations.numpy()) == count
    losses = [float(model.compute_loss(x, y, model(x))) for x, y in program.input_fn()]
    result = model.evaluate(program.input_fn(), return_dict=True, verbose=0)
    np.testing.assert_allclose([result["loss"], result["mean"]], [np.mean(losses)] * 2, rtol=1e-5)
    model.save(f"{program.__name__}.keras")
    np.save(program.__name__, np.mean(losses))
    if program is by_keys:
        assert model(next(iter(program.input_fn(serving=True)))[0]).shape == (4, 3)
"""
LOADS = """\
import by_keys
import numpy as np
import tensorflow as tf
import whole

for program in (by_keys, whole):
    model = tf.keras.models.load_model(f"{program.__name__}.keras")
    result = model.evaluate(program.input_fn(), return_dict=True, verbose=0)
    np.testing.assert_allclose(result["mean"], np.load(f"{program.__name__}.npy"), rtol=1e-5)
"""


@pytest.mark.nightly
def test_data_of_unknown_length_with_features_of_the_loss(tmp_path, run_python):
    """Each batch counts once, and the model needs the features of its network only; it is saved and loaded.

    In processes without this package's settings, whose Keras is Keras 3 where TensorFlow has it.
    """
    for name, network in {"by_keys": 'features["x"]', "whole": "dict(features)['x']"}.items():
        parts = {"NETWORK": f"logits = tf.layers.dense({network}, 3)", "METRICS": '{"mean": tf.metrics.mean(loss)}'}
        loss = 'loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, features["weight"])'
        text = program(**parts, LOSS=loss).replace("steps=4", "").replace("steps=2", "")
        text = re.sub(r"def input_fn.*?\n\n\n", UNKNOWN_LENGTH, text, flags=re.DOTALL)
        (tmp_path / name).mkdir()
        shutil.copy(converted(tmp_path / name, text, f"{name}.py"), tmp_path)
    for script in (CHECKS, LOADS):
        (tmp_path / "script.py").write_text(script)
        done = run_python([tmp_path / "script.py"], env={"TF_USE_LEGACY_KERAS": None}, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]


def test_a_model_that_compile_describes_trains_alike(tmp_path):
    text = program(TRAIN_OP='train_op = tf.train.GradientDescentOptimizer(params["rate"]).minimize('
                            'loss, tf.train.get_global_step())')  # fmt: skip
    before = module(todays(tmp_path, text), "before_compile")
    after = module(converted(tmp_path, text), "after_compile")
    params = {"rate": 0.1}
    parity = assert_parity(
        estimator=tf.estimator.Estimator(before.model_fn, params=params),
        model=after.make_model(after.model_inputs(after.input_fn()), params),
        input_fn=before.input_fn,
        eval_input_fn=lambda: before.input_fn().take(3),
        steps=6,
    )
    assert len(parity.steps) == 6


def test_a_model_of_a_class_trains_alike(tmp_path):
    """With batch normalization, a schedule, a loss of one-hot labels and metrics; no dropout, which is chance."""
    text = CNN.replace('"keep": 0.9', '"keep": 1.0')
    before = module(todays(tmp_path, text), "before_class")
    after = module(converted(tmp_path, text), "after_class")
    parity = assert_parity(
        estimator=tf.estimator.Estimator(before.model_fn, params=before.PARAMS),
        model=after.make_model(after.model_inputs(after.input_fn()), after.PARAMS),
        input_fn=before.input_fn,
        eval_input_fn=lambda: before.input_fn().take(3),
        mapping={f"dense/{name}": f"head/dense/{name}" for name in ("kernel", "bias")},
        steps=8,
    )
    assert len(parity.steps) == 8


OPERATIONS = (
    'net = tf.expand_dims(tf.cast(features["x"], tf.float32), 1)\nnet = tf.stack([net, net * 2.0], axis=-1)\n'
    "net = tf.multiply(x=net, y=net)\nlogits = tf.layers.dense(tf.reduce_sum(net, [1, 3]), 3)"
)


@pytest.mark.parametrize("text", [program(), CNN, program(NETWORK=OPERATIONS)], ids=["compile", "class", "operations"])
def test_a_saved_model_loads(tmp_path, text):
    loaded = module(converted(tmp_path, text), "saved")
    data = loaded.input_fn()
    params = getattr(loaded, "PARAMS", {"rate": 0.1})
    model = loaded.make_model(loaded.model_inputs(data), params)
    model.fit(data, steps_per_epoch=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    features, _ = next(iter(data))
    np.testing.assert_array_equal(model.predict(features, verbose=0), again.predict(features, verbose=0))
    assert again.evaluate(data.take(2), verbose=0, return_dict=True).keys() == {"loss", "accuracy"}


@pytest.mark.parametrize(
    "legacy", [pytest.param("1", marks=pytest.mark.nightly), pytest.param("0", marks=pytest.mark.keras_3)]
)
def test_a_job_runs_resumes_and_ends(tmp_path, run_python, legacy):
    """Plain python, on both versions of Keras: 7 steps, then up to 12 from the last epoch's end, then none."""
    path = converted(tmp_path, CNN)

    def run(steps):
        environment = {"STEPS": str(steps), "MODEL_DIR": str(tmp_path / "model"), "TF_USE_LEGACY_KERAS": legacy}
        done = run_python([path], env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    first = run(7)
    assert "step 7 ['accuracy', 'global_step', 'loss']" in first and "['classes', 'probabilities'] (10,)" in first
    assert "step 12" in run(12) and "Epoch" not in run(12)


RUN = """\
import sys

import numpy as np
import tensorflow as tf

path, folder, *arguments = sys.argv[1:]
sys.argv = [path, *arguments]
fit = tf.keras.Model.fit


def saved(model, *args, callbacks=(), **options):
    class Save(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations.numpy())
            np.savez(f"{folder}/{step}.npz", *[variable.numpy() for variable in self.model.trainable_variables])

    return fit(model, *args, callbacks=[*callbacks, Save()], **options)


tf.keras.Model.fit = saved
exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__", "__file__": path})
"""


@pytest.mark.cluster
def test_the_tutorial_on_two_workers(tmp_path, run_python):
    """The reference documents' program: its conversion comes to the Estimator's weights at each checkpoint."""
    path, steps = converted(tmp_path, TUTORIAL), 6
    (tmp_path / "run.py").write_text(RUN)
    weights = tmp_path / "weights"
    weights.mkdir()
    launch = ["-m", "estimator_pipeline", "launch", "--workers", 2, "--timeout", 200, "--"]
    keras = [sys.executable, tmp_path / "run.py", path, weights, tmp_path / "keras_model", steps]
    needs_keras_2 = {"TF_USE_LEGACY_KERAS": None if tf.__version__.startswith("2.15.") else "1"}
    done = run_python([*launch, *keras], env=needs_keras_2, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr[-6000:]
    estimator = [sys.executable, "-m", "estimator_pipeline", "exec", tmp_path / "program.py"]
    done = run_python([*launch, *estimator, tmp_path / "estimator_model", steps], cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr[-6000:]
    for step in range(2, steps + 1, 2):
        reader = tf.train.load_checkpoint(os.fspath(tmp_path / "estimator_model" / f"model.ckpt-{step}"))
        names = ["conv2d/kernel", "conv2d/bias", "dense/kernel", "dense/bias"]
        with np.load(weights / f"{step}.npz") as after:
            for name, value in zip(names, after.values(), strict=True):
                np.testing.assert_allclose(
                    value, reader.get_tensor(name), rtol=1e-5, atol=1e-6, err_msg=f"{name}, {step}"
                )


def test_operations_between_layers_compute_the_same(tmp_path):
    text = program(NETWORK=OPERATIONS)
    before = module(todays(tmp_path, text), "before_operations")
    after = module(converted(tmp_path, text), "after_operations")
    assert "operation('stack', [net, operation('multiply', net, 2.0)], axis=-1)" in Path(after.__file__).read_text()
    assert_parity(
        estimator=tf.estimator.Estimator(before.model_fn, params={"rate": 0.1}),
        model=after.make_model(after.model_inputs(after.input_fn()), {"rate": 0.1}),
        input_fn=before.input_fn,
        steps=3,
    )


def test_the_source_runs_without_this_package(tmp_path):
    """Nothing of it is imported, not even where it is installed."""
    path = converted(tmp_path, program())
    code = f"import sys; sys.modules['estimator_pipeline'] = None; exec(open({os.fspath(path)!r}).read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "global_step" in done.stdout, done.stderr[-2000:]


def test_adam_compares_with_betas_of_float32(tmp_path):
    """V1 subtracts them from 1 in float32, Keras in Python: the slots differ by 2.4e-7 where nothing rounds them."""
    before, after = (
        module(todays(tmp_path, program()), "before_adam"),
        module(converted(tmp_path, program()), "after_adam"),
    )
    model = after.make_model(after.model_inputs(after.input_fn()), {"rate": 0.1})
    assert_parity(
        estimator=tf.estimator.Estimator(before.model_fn, params={"rate": 0.1}),
        model=model,
        input_fn=before.input_fn,
        steps=1,
        tolerances={"slots": {"rtol": 1.5e-7, "atol": 0, "rtol_of_max": 0, "reason": "the same operations"}},
    )
    assert model.optimizer.beta_1 == 0.9 and model.optimizer.beta_2 == 0.999


def test_branches_of_several_runs(tmp_path):
    """Each run restores the model, with the numbers of the Estimator; without a checkpoint there is an error."""
    before = module(todays(tmp_path, BRANCHES), "before_branches")
    after = module(converted(tmp_path, BRANCHES), "after_branches")
    before.FOLDER, after.FOLDER = os.fspath(tmp_path / "estimator"), os.fspath(tmp_path / "converted")
    after.MODE = "eval"
    with pytest.raises(FileNotFoundError, match="no checkpoint in "):
        after.main()
    results = []
    for run in (before, after):
        for run.MODE in ("train", "eval", "predict"):
            results.append(run.main())
    _, metrics, rows, _, new_metrics, new_rows = results
    assert new_metrics["global_step"] == metrics["global_step"] == 8
    names = ["loss", "accuracy"]
    np.testing.assert_allclose([new_metrics[name] for name in names], [metrics[name] for name in names], rtol=1e-5)
    np.testing.assert_allclose(new_rows, rows, rtol=1e-5)
    after.MODE = "export"
    after.main()
    (exported,) = (tmp_path / "converted" / "exports").iterdir()
    x = after.rows(1)[0]["x"]
    served = tf.saved_model.load(os.fspath(exported)).signatures["serving_default"](a=x[:, 0], b=x[:, 1])
    np.testing.assert_allclose(served["logits"].numpy(), new_rows, rtol=1e-5)


@pytest.fixture
def program_helpers():
    """The module, imported after the choice of the Keras that Estimators need."""
    return importlib.import_module("estimator_pipeline.migrate.convert.program_helpers")


def test_data_that_ends_with_an_epoch_is_read_once(program_helpers):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    data = program_helpers.once(tf.data.Dataset.from_tensor_slices(([[1.0]] * 4, [1.0] * 4)).batch(2))
    stop = program_helpers.StopAt(8, 2)
    model.fit(data, epochs=4, steps_per_epoch=2, callbacks=[stop], verbose=0)
    assert model.optimizer.iterations.numpy() == 2


@pytest.mark.parametrize("of_keras", [False, True])
def test_the_rate_of_a_training_that_continues(program_helpers, tmp_path, of_keras):
    """It is that of the program, as in tf.estimator, whose checkpoints have only the rate of an optimizer of Keras."""
    for rate in (0.5, 0.125):
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile(tf.keras.optimizers.SGD(rate), "mse")
        save = program_helpers.checkpoints(model, os.fspath(tmp_path), restores_rates=of_keras)
        model.fit(np.ones([2, 1]), np.ones([2]), callbacks=[save], verbose=0)
    assert model.optimizer.iterations.numpy() == 2
    assert model.optimizer.learning_rate.numpy() == (0.5 if of_keras else 0.125)


@pytest.mark.nightly
def test_a_job_that_trains_no_further_has_no_warnings(program_helpers, tmp_path, monkeypatch):
    """Its optimizer has no slots, which are in the checkpoint."""
    warnings = []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda text, *_: warnings.append(text))
    for trains in (True, False):
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile("adam", "mse")
        save = program_helpers.checkpoints(model, os.fspath(tmp_path))
        if trains:
            model.fit(np.ones([2, 1]), np.ones([2]), callbacks=[save], verbose=0)
        else:
            program_helpers.restore(model, os.fspath(tmp_path))
        del model, save
        gc.collect()
    assert not warnings


def batches(input_fn):
    """Return what a graph of TensorFlow 1 reads."""
    with tf.Graph().as_default():
        tensors = input_fn()
        with tf.compat.v1.train.MonitoredSession() as session:
            read = []
            while not session.should_stop():
                read.append(session.run(tensors))
    return read


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_are_read_alike(program_helpers, shuffle):
    x, y = {"a": np.arange(10), "b": np.arange(20.0).reshape(10, 2)}, np.arange(10) * 2
    options = {"batch_size": 4, "num_epochs": 3, "shuffle": shuffle}
    before = batches(tf.compat.v1.estimator.inputs.numpy_input_fn(x, y, **options))
    after = list(program_helpers.numpy_input_fn(x, y, **options)().as_numpy_iterator())
    assert [len(labels) for _, labels in before] == [len(labels) for _, labels in after] == [4] * 7 + [2]
    assert {name: value.dtype for name, value in after[0][0].items()} == {"a": np.int64, "b": np.float64}

    def read(rows):
        values = [np.concatenate([features[name].reshape(len(labels), -1) for features, labels in rows]) for name in x]
        table = np.concatenate([*values, np.concatenate([labels for _, labels in rows])[:, None]], axis=1)
        return table[np.lexsort(table.T)] if shuffle else table

    np.testing.assert_array_equal(read(after), read(before))


def test_columns_are_read_alike(program_helpers):
    pandas = pytest.importorskip("pandas")
    x, y = pandas.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]}), pandas.Series([0.5, 1.5, 2.5])
    before = batches(tf.compat.v1.estimator.inputs.pandas_input_fn(x, y, batch_size=2, shuffle=False))
    after = list(program_helpers.pandas_input_fn(x, y, batch_size=2, shuffle=False)().as_numpy_iterator())
    assert len(before) == len(after) == 2
    for (features, labels), (new_features, new_labels) in zip(before, after, strict=True):
        np.testing.assert_array_equal(labels, new_labels)
        for name in ("a", "b"):
            np.testing.assert_array_equal(features[name], new_features[name])


@pytest.mark.parametrize(
    "legacy", [pytest.param("1", marks=pytest.mark.nightly), pytest.param("0", marks=pytest.mark.keras_3)]
)
def test_the_estimator_of_a_keras_model_prints_the_same_numbers(tmp_path, run_python, monkeypatch, capsys, legacy):
    """The loss with its regularizer, a metric, and the predictions, which depend on each weight; resumed at step 8."""
    path, folder = converted(tmp_path, KERAS_MODEL), tmp_path / "after"
    for steps in ("8", "16"):
        env = {"TF_USE_LEGACY_KERAS": legacy, "MODEL_DIR": str(folder), "STEPS": steps}
        done = run_python([path], env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-4000:]
        assert numbers(done.stdout)[2] == int(steps) and ("Epoch 1/" in done.stdout) == (steps == "8")
    for name, value in {"MODEL_DIR": str(tmp_path / "before"), "STEPS": "16"}.items():
        monkeypatch.setenv(name, value)
    module(todays(tmp_path, KERAS_MODEL), "keras_model").main()
    assert numbers(done.stdout) == pytest.approx(numbers(capsys.readouterr().out), rel=1e-5, abs=1e-5)
    (export, *_) = sorted((folder / "export" / "final").iterdir())
    served = tf.saved_model.load(str(export)).signatures["serving_default"]
    assert {tensor.name for tensor in served.structured_input_signature[1].values()} == {"wide", "deep"}
    assert [*served.structured_outputs] == ["price"]


def numbers(text: str) -> list[float]:
    """Return the numbers of the last two lines."""
    return [float(word) for line in text.splitlines()[-2:] for word in line.split()]
