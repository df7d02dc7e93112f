"""A program's Estimator against a Keras model: what is wrong is refused before anything is trained or written."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from estimator_pipeline.cli.main import app
from estimator_pipeline.errors import ConfigError, DivergedError
from estimator_pipeline.parity import compare_models, summary
from estimator_pipeline.parity.models import matching
from estimator_pipeline.parity.models.input_fns import ComparedInputFn
from estimator_pipeline.parity.models.inspection import look_at_estimator
from estimator_pipeline.testing import assert_parity
from estimator_pipeline.utils.process_state import STATE
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1 = tf.compat.v1

pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning")

RANDOM = np.random.RandomState(2)
X = RANDOM.uniform(-1, 1, [96, 6]).astype("float32")
Y = (X @ RANDOM.uniform(-1, 1, [6, 1])).astype("float32")
nightly = pytest.mark.nightly
MAPPING = {"dense/kernel": "fc/weights", "dense/bias": "fc/biases"}


def train_input_fn():
    return tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(32)


def eval_input_fn():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(40)


def model_fn(features, labels, mode, params):
    weights = v1.get_variable("fc/weights", [6, 1])
    found = tf.matmul(features, weights) + v1.get_variable("fc/biases", [1], initializer=v1.zeros_initializer())
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": found})
    each = tf.square(found - labels)
    loss = tf.reduce_mean(each)
    if mode == tf.estimator.ModeKeys.EVAL:
        known = {
            "average_loss": lambda: v1.metrics.mean(each),
            "absolute": lambda: v1.metrics.mean_absolute_error(labels, found),
            "squared": lambda: v1.metrics.mean_squared_error(labels, found),
            "matrix": lambda: v1.metrics.mean_tensor(tf.ones([2, 2])),
        }
        asked = params.get("metrics", ("absolute",))
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={name: known[name]() for name in asked})
    rate = params.get("rate", 0.1)
    train_op = v1.train.GradientDescentOptimizer(rate).minimize(loss, v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def make_estimator(model_dir=None, **params):
    return tf.estimator.Estimator(model_fn, model_dir, params=params)


class Untrainable(tf.keras.Sequential):
    """A comparison that is refused has not come to here."""

    def fit(self, *args, **kwargs):
        raise AssertionError("it was trained")


def make_model(kind=tf.keras.Sequential, *, metrics=None, rate=0.1, units=1):
    tf.keras.utils.set_random_seed(4)
    model = kind([tf.keras.layers.Dense(units, name="dense", input_shape=(6,))])
    model.compile(
        tf.keras.optimizers.legacy.SGD(rate), "mse", [tf.keras.metrics.MeanAbsoluteError("mae"), *(metrics or ())]
    )
    return model


OPTIONS = {
    "input_fn": train_input_fn,
    "eval_input_fn": eval_input_fn,
    "mapping": MAPPING,
    "metric_names": {"mae": "absolute"},
    "steps": 3,
}


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """The error of a comparison, which has trained nothing and left nothing: neither of its own, nor where it may."""

    def refused(estimator=None, model=None, **options):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        (tmp_path / "temporary").mkdir(exist_ok=True)
        for folder in (None, tmp_path / "given"):
            with pytest.raises(ConfigError) as raised:
                compare_models(
                    make_estimator(tmp_path / "theirs") if estimator is None else estimator,
                    make_model(Untrainable) if model is None else model,
                    **{**OPTIONS, **options, "folder": folder},
                )
            # TensorFlow's AutoGraph leaves files of its own there.
            names = [one.name for one in (tmp_path / "temporary").iterdir()]
            left = [name for name in names if "autograph" not in name and name != "__pycache__"]
            assert not left and not (tmp_path / "given").exists()
        return str(raised.value)

    return refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"metric_names": {"mae": "absolut"}},
            "[parity/no-counterpart]\n  found: the Estimator's: absolute",
        ),
        pytest.param({"metric_names": {"mea": "absolute"}}, "the Keras model has no metric mea", marks=nightly),
        (
            {"metric_names": None},
            "[parity/no-counterpart]\n  found: the Estimator's: absolute; Keras's",
        ),
        ({"metric_names": {"mae": "absolute"}, "eval_input_fn": None}, "names metrics, and nothing is evaluated"),
        ({"predictions": "z"}, "[parity/no-counterpart]\n  found: they have: y"),
        pytest.param(
            {"predictions": {"out": "y"}},
            "predictions names outputs that the Keras model does not have: out",
            marks=nightly,
        ),
        (
            {"mapping": {"dense/kernel": "fc/weights"}},
            "only in Keras: dense/bias [1]; only in the Estimator: fc/biases",
        ),
        (
            {"mapping": {**MAPPING, "dens/bias": "fc/biases"}},
            "unknown names: the Keras model has no weight dens/bias",
        ),
        pytest.param({"mapping": {**MAPPING, "dense/bias": "fc/bias"}}, "has no variable fc/bias", marks=nightly),
        (
            {"mapping": {"dense/kernel": "fc/biases", "dense/bias": "fc/weights"}},
            "found: dense/kernel [6, 1] in Keras, fc/biases [1] in the Estimator;",
        ),
    ],
)
def test_names_are_refused_first(refused, options, says):
    found = refused(**options)
    assert says in found and "hint: " in found, found


def test_a_metric_that_would_take_the_place_of_another(refused):
    model = make_model(Untrainable, metrics=[tf.keras.metrics.MeanSquaredError("absolute")])
    assert "[parity/no-counterpart]\n  found: mae, absolute" in refused(model=model)


@nightly
def test_metrics_of_one_side_are_told_by_name(tmp_path):
    """They do not fail the comparison, and the note says what was compared, and how the others can be."""
    model = make_model(metrics=[tf.keras.metrics.MeanSquaredError("mse")])
    options = {**OPTIONS, "folder": tmp_path / "one"}
    found = assert_parity(estimator=make_estimator(metrics=("absolute", "squared", "matrix")), model=model, **options)
    (note,) = [note for note in found.notes if note.startswith("of the evaluation only")]
    assert (
        "only absolute, loss was compared, and not matrix, squared (only the Estimator); mse (only the Keras model)"
        in note
    )
    assert "`metric_names` (--metric-names)" in note and note in summary(found)
    # The report has those too.
    assert set(found.finals["estimator"]) == {"absolute", "squared", "matrix", "loss"}
    assert found.finals["estimator"]["matrix"] == [[1.0, 1.0], [1.0, 1.0]], "as JSON can hold it"
    assert set(found.finals["keras"]) == {"absolute", "mse", "loss"} and set(found.metrics.names) == {
        "absolute",
        "loss",
    }
    # Matched, nothing is left; average_loss is compared where Keras has it, beside the loss.
    options = {**options, "metric_names": {"mae": "absolute", "mse": "squared"}}
    for number, more in enumerate(({}, {"loss": "average_loss"})):
        estimator = make_estimator(metrics=("absolute", "squared", "average_loss"))
        options |= {"metric_names": {**options["metric_names"], **more}, "folder": tmp_path / f"all-{number}"}
        found = assert_parity(estimator=estimator, model=model, **options)
        assert not [note for note in found.notes if note.startswith("of the evaluation")]
        assert set(found.metrics.names) == {"absolute", "squared", "loss", *more.values()}


@pytest.mark.parametrize(
    ("theirs", "ours", "loss", "says"),
    [
        # One replica: the loss is compared, and so average_loss need not be.
        (["loss", "average_loss"], ["loss"], 1.0, []),
        (["loss", "average_loss", "auc"], ["loss"], 1.0, ["only loss was compared, and not auc (only the Estimator)"]),
        (["loss"], ["loss", "mae"], 1.0, ["only loss was compared, and not mae (only the Keras model)"]),
        # Several: Keras tells no mean of batch means.
        (
            ["loss", "average_loss"],
            ["loss", "average_loss"],
            None,
            [
                "the loss of the evaluation was not compared: the Estimator's is a mean of batch means, which Keras "
                "does not report on several replicas, or from a test_step without a loss; average_loss was"
            ],
        ),
        (["loss", "auc"], ["loss", "auc"], None, ["the loss of the evaluation was not compared"]),
        (["loss"], ["loss"], None, ["the loss of the evaluation was not compared"]),
        (
            ["loss", "average_loss"],
            ["loss"],
            None,
            [
                "nothing was compared: average_loss (only the Estimator): match",
                "the loss of the evaluation was not compared",
            ],
        ),
    ],
)
def test_what_is_said_of_metrics(theirs, ours, loss, says):
    values, notes = matching.to_compare(dict.fromkeys(theirs, 1.0), dict.fromkeys(ours, 1.0), {}, loss)
    assert len(notes) == len(says) and all(text in note for text, note in zip(says, notes, strict=True)), notes
    assert set(values["estimator"]) == set(theirs) and ("loss" in values["keras"]) == (loss is not None)


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1, name="dense")

    def call(self, inputs):
        return self.dense(inputs)


@pytest.mark.parametrize("kind", [pytest.param("sequential", marks=nightly), "subclassed"])
def test_a_model_that_its_first_batch_builds(tmp_path, kind):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, name="dense")]) if kind == "sequential" else Subclassed()
    model.compile(tf.keras.optimizers.legacy.SGD(0.1), "mse")
    prefix = "" if kind == "sequential" else f"{model.name}/"
    mapping = {f"{prefix}{name}": given for name, given in MAPPING.items()}
    output = "dense" if kind == "sequential" else "output_1"
    found = compare_models(
        make_estimator(), model, input_fn=train_input_fn, steps=3, mapping=mapping, predictions={output: "y"},
        folder=tmp_path / "parity",
    )  # fmt: skip
    assert found.equal and found.answers.names == (f"predictions {output}",), found.first_fault


def test_the_looks_change_nothing(tmp_path):
    """What a model_fn and an input function draw is the same with them, and the model can still be called."""
    drawn = []

    def drawing(features, labels, mode, params):
        drawn.append((random.random(), float(np.random.uniform())))
        v1.layers.Dense(1)  # Keras 2 changes the bases of its classes for it
        return model_fn(features, labels, mode, params)

    model = make_model()
    before = model.get_weights()
    found = compare_models(
        tf.estimator.Estimator(drawing, params={}), model, input_fn=train_input_fn, steps=2, mapping=MAPPING,
        folder=tmp_path / "parity",
    )  # fmt: skip
    assert found.equal and len(drawn) == 2 and drawn[0] == drawn[1]
    assert model(X[:3]).shape == (3, 1)
    assert all(np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True))


@nightly
def test_a_look_writes_no_summaries(tmp_path, monkeypatch):
    """A thread would write them still, while the look's folder is taken away."""
    seen = []

    class Folder(tempfile.TemporaryDirectory):
        def cleanup(self):
            seen.extend(path for path in Path(self.name).rglob("*") if path.is_file())
            super().cleanup()

    monkeypatch.setattr(tempfile, "TemporaryDirectory", Folder)
    estimator = tf.estimator.DNNClassifier([4], [tf.feature_column.numeric_column("x", [6])], tmp_path / "theirs")

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(({"x": X}, np.zeros([96, 1], "int64"))).batch(8)

    feed = ComparedInputFn(input_fn, name="input_fn", estimator=estimator, mode="train")
    assert look_at_estimator(estimator, training=feed, evaluation=None, asked=False).variables and not seen


@nightly
def test_a_look_at_a_canned_estimator_of_two_replicas(tmp_path):
    """Its heads, its columns and its strategy make names of their own; no session is made."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    config = tf.estimator.RunConfig(tmp_path / "theirs", train_distribute=strategy, eval_distribute=strategy)
    columns = [tf.feature_column.numeric_column("x", [6])]
    estimator = tf.estimator.DNNClassifier([4], columns, n_classes=3, config=config)

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(({"x": X}, np.zeros([96, 1], "int64"))).batch(8)

    feeds = [
        ComparedInputFn(input_fn, name=name, estimator=estimator, mode=mode)
        for name, mode in (("input_fn", "train"), ("eval_input_fn", "eval"))
    ]
    look = look_at_estimator(estimator, training=feeds[0], evaluation=feeds[1], asked=True)
    weights = {name: shape for name, shape in look.variables.items() if " @" not in name and name != "global_step"}
    assert weights == {
        "dnn/hiddenlayer_0/kernel": (6, 4),
        "dnn/hiddenlayer_0/bias": (4,),
        "dnn/logits/kernel": (4, 3),
        "dnn/logits/bias": (3,),
    }
    assert {"accuracy", "average_loss"} <= set(look.metrics) and {"logits", "class_ids"} <= set(look.predictions)
    assert not (tmp_path / "theirs").exists() or not list((tmp_path / "theirs").iterdir())


def failing_input_fn():
    raise FileNotFoundError("no file train.csv")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"estimator": "x"}, "[argument/bad-value]\n  found: a builtins.str"),
        ({"estimator": make_estimator}, "hint: call it, and pass its result: estimator=make_estimator()"),
        ({"model": make_model}, "hint: call it, and pass its result: model=make_model()"),
        (
            {"model": tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(6,))])},
            "the Keras model is not compiled",
        ),
        ({"steps": 0}, "[argument/bad-value]\n  found: allowed: whole numbers from 1 on\n  hint: set steps"),
        ({"steps": -2}, "steps is -2"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": True}, "steps is True"),
        ({"eval_steps": 0}, "[argument/bad-value]\n  found: allowed: whole numbers from 1 on"),
        (
            {"eval_steps": 3, "eval_input_fn": None, "metric_names": None},
            "eval_steps=3 is set, and nothing is evaluated",
        ),
        ({"mapping": "a: b"}, "[argument/bad-value]\n  found: 'a: b'"),
        ({"metric_names": ["mae"]}, "[argument/bad-value]\n  found: ['mae']"),
        ({"predictions": ["y"]}, "predictions is not a mapping of names to names"),
        ({"input_fn": None}, "input_fn is missing"),
        ({"input_fn": "train_input_fn"}, "[argument/bad-value]\n  found: a str"),
        (
            {"input_fn": train_input_fn()},
            "found: a _BatchDataset\n  hint: pass a function that creates and returns the dataset",
        ),
        ({"eval_input_fn": lambda: None}, "eval_input_fn (<lambda>) returns nothing"),
        ({"input_fn": lambda: (X, Y)}, "input_fn (<lambda>) returns a tuple of ndarray, ndarray"),
        ({"input_fn": lambda: [1, 2, 3]}, "returns a list of int, int, int"),
        ({"keras_input_fn": lambda: (tf.constant(X), tf.constant(Y))}, "returns tensors, which Keras cannot read"),
        ({"keras_eval_input_fn": lambda: None}, "keras_eval_input_fn (<lambda>) returns nothing"),
        ({"input_fn": failing_input_fn}, "input_fn (failing_input_fn) fails: FileNotFoundError: no file train.csv"),
        ({"input_fn": lambda path: None}, "input_fn (<lambda>) needs arguments that are not passed: path"),
        ({"eval_input_fn": lambda: eval_input_fn().take(0)}, "eval_input_fn (<lambda>) returns no batch"),
        ({"folder": __file__}, "the runs and their records cannot be written there"),
    ],
    ids=range(25),
)
def test_arguments_that_cannot_be(refused, options, says):
    if "folder" in options:
        with pytest.raises(ConfigError, match=says):
            compare_models(make_estimator(), make_model(Untrainable), **{**OPTIONS, **options})
        return
    found = refused(**options)
    assert says in found, found
    if "failing_input_fn" in says:
        assert f"found: {__file__}, line " in found


@nightly
@pytest.mark.parametrize("kind", ["queue", "iterator"])
def test_tensors_of_an_input_function(tmp_path, kind):
    """As programs of TensorFlow 1 have them; a session of its own reads them for Keras."""

    def of_an_iterator():
        return v1.data.make_one_shot_iterator(train_input_fn()).get_next()

    of_a_queue = v1.estimator.inputs.numpy_input_fn(X, Y, batch_size=32, num_epochs=None, shuffle=False)
    found = compare_models(
        make_estimator(), make_model(), steps=3, mapping=MAPPING, metric_names={"mae": "absolute"},
        input_fn=of_a_queue if kind == "queue" else of_an_iterator, folder=tmp_path / "parity", predictions="y",
        eval_input_fn=v1.estimator.inputs.numpy_input_fn(X, Y, batch_size=40, num_epochs=1, shuffle=False),
    )  # fmt: skip
    assert found.equal and len(found.steps) == 3 and set(found.metrics.names) == {"absolute", "loss"}
    assert any("estimator did not record them" in note for note in found.notes)


def test_what_an_estimator_fills_by_name(tmp_path):
    asked = []

    def input_fn(mode, params, config, input_context=None):
        asked.append((mode, params["rate"], type(config).__name__))
        return train_input_fn()

    found = compare_models(
        make_estimator(rate=0.1), make_model(), input_fn=input_fn, steps=2, mapping=MAPPING, folder=tmp_path / "parity"
    )
    assert found.equal and set(asked) == {("train", 0.1, "RunConfig")}


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ((1e20, 0.1), ["estimator: the loss of step 2 is inf", "the numbers of keras are finite"]),
        pytest.param(
            (0.1, 1e20),
            ["keras: the loss of step 2 is inf", "the numbers of estimator are finite"],
            marks=nightly,
        ),
        pytest.param(
            (1e20, 1e20),
            ["estimator: the loss of step 2 is inf; keras: the loss of step 2 is inf"],
            marks=nightly,
        ),
    ],
)
def test_a_training_that_diverges(tmp_path, rates, says):
    model = make_model(rate=rates[1])
    with pytest.raises(DivergedError) as raised:
        compare_models(make_estimator(rate=rates[0]), model, **{**OPTIONS, "steps": 6, "folder": tmp_path / "parity"})
    assert all(text in str(raised.value) for text in says), raised.value
    assert raised.value.exit_code == 3 and str(tmp_path / "parity") in str(raised.value)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_what_was_run(tmp_path):
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.5)
    model = make_model()
    model.compile(
        tf.keras.optimizers.legacy.SGD(schedule, momentum=0.9), "mse", [tf.keras.metrics.MeanAbsoluteError("mae")]
    )
    config = tf.estimator.RunConfig(tf_random_seed=7)
    estimator = tf.estimator.Estimator(model_fn, config=config, params={})
    ran = compare_models(estimator, model, **{**OPTIONS, "folder": tmp_path / "parity"}, predictions="y").about
    assert json.loads(json.dumps(ran)) == ran
    assert ran["estimator"] == "model_fn" and ran["model"] == "Sequential"
    assert ran["optimizer"]["estimator"] == "sgd, learning_rate 0.1"
    assert ran["optimizer"]["keras"] == (
        "SGD, learning_rate (ExponentialDecay, initial_learning_rate 0.1, decay_steps 100, decay_rate 0.5, staircase "
        "False), decay 0, momentum 0.9, nesterov False"
    )
    assert ran["strategy"] == {"estimator": "none", "keras": "none"} and ran["tf_random_seed"] == 7
    assert (ran["steps"], ran["input_fn"], ran["eval_input_fn"]) == (3, "train_input_fn", "eval_input_fn")
    assert ran["mapping"] == ["dense/kernel: fc/weights", "dense/bias: fc/biases"]
    assert ran["metric_names"] == ["mae: absolute"] and ran["predictions"] == ["dense: y"]
    assert ran["tolerances"]["initial values"] == "bit-equal" and "loss" in ran["tolerances"]


PROGRAM = """
import tensorflow as tf
import beside

def make_estimator():
    import beside_late
    return beside.make_estimator()

def make_canned():
    return tf.compat.v1.estimator.LinearRegressor([tf.feature_column.numeric_column("x", [6])])

def make_diverging():
    return beside.make_estimator(rate=1e20)

def fails():
    raise KeyError("learning_rate")

def asks(params):
    return None

def nothing():
    return None

train_input_fn, eval_input_fn = beside.train_input_fn, beside.eval_input_fn
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """`program(*options)`: the command line, in this process, of a program that imports what lies beside it."""
    folder, here = tmp_path / "theirs", tmp_path / "here"
    (here / "tests_of_parity").mkdir(parents=True)
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "broken.py").write_text("import not_installed_anywhere\n")
    (folder / "beside.py").write_text(f"from {__name__} import make_estimator, train_input_fn, eval_input_fn\n")
    (folder / "beside_late.py").write_text("")
    (here / "tests_of_parity" / "__init__.py").write_text("")
    (here / "tests_of_parity" / "helper.py").write_text(f"from {__name__} import make_model\n")
    (here / "names.yaml").write_text("dense/kernel: fc/weights\ndense/bias: fc/biases\n")
    (here / "metrics.yaml").write_text("mae: absolute\n")
    (here / "twice.yaml").write_text("dense/kernel: fc/weights\ndense/kernel: fc/biases\n")
    (here / "empty.yaml").write_text("")
    monkeypatch.chdir(here)
    given = {
        "--estimator": f"{folder / 'train.py'}:make_estimator",
        "--model": "tests_of_parity.helper:make_model",
        "--input-fn": f"{folder / 'train.py'}:train_input_fn",
        "--eval-input-fn": f"{folder / 'train.py'}:eval_input_fn",
        "--mapping": "names.yaml",
        "--metric-names": "metrics.yaml",
        "--steps": "3",
        "--folder": "runs",
    }

    def program(*more, **changes):
        options = {**given, **{"--" + name.replace("_", "-"): value for name, value in changes.items()}}
        words = [word.format(train=folder / "train.py", folder=folder) for pair in options.items() for word in pair]
        return CliRunner().invoke(app, ["parity", *words, *more])

    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(STATE, "user_imports", {})
    yield program
    # The next test has files of the same names.
    for name in set(sys.modules) - before:
        if name.startswith(("beside", "tests_of_parity", "train", "broken")):
            del sys.modules[name]


@nightly
def test_eval_steps_of_a_program(program):
    done = program("--json", "--eval-steps", "2")
    assert done.exit_code == 0, (done.output[-2000:], done.exception)
    found = json.loads(done.stdout)
    assert found["equal"] and found["about"]["eval_steps"] == 2 and found["metrics"]["compared"] == 2


def test_eval_steps_where_they_do_not_apply(program):
    done = CliRunner().invoke(app, ["parity", "job.yaml", "--eval-steps", "5"])
    assert done.exit_code == 2 and "--eval-steps cannot be combined with the job file job.yaml" in done.stderr
    done = CliRunner().invoke(app, ["parity", "--eval-steps", "5"])
    assert done.exit_code == 2 and "parity needs a job file, or --estimator, --model" in done.stderr
    assert CliRunner().invoke(app, ["parity", "--eval-steps", "0"]).exit_code == 2


def test_a_program_of_several_files(program):
    """A file beside the named one, also one that is imported late, and a package of the current folder."""
    done = program("--json")
    assert done.exit_code == 0, (done.output[-2000:], done.exception)
    found = json.loads(done.stdout)
    assert found["equal"] and found["about"]["estimator"] == "model_fn"


@pytest.mark.parametrize(
    ("changes", "more", "says"),
    [
        ({"estimator": "{train}"}, [], "--estimator: '{train}' does not name a function"),
        ({"model": "train:"}, [], "--model: 'train:' does not name a function"),
        ({"input_fn": ":train_input_fn"}, [], "--input-fn: ':train_input_fn' does not name a function"),
        ({"estimator": "{train}:fails"}, [], "--estimator: {train}:fails fails: KeyError: 'learning_rate'"),
        (
            {"model": "{train}:asks"},
            [],
            "--model: {train}:asks is called without arguments: missing a required argument: 'params'",
        ),
        ({"estimator": "{train}:nothing"}, [], "--estimator: {train}:nothing returns nothing"),
        (
            {"estimator": "{train}:make_canned"},
            [],
            "the Estimator's training cannot be built: ValueError: features should be a dictionary",
        ),
        ({"eval_input_fn": "{train}:nothing"}, [], "eval_input_fn (nothing) returns nothing"),
        ({"estimator": "{folder}/broken.py:f"}, [], "cannot be loaded: ModuleNotFoundError: No module named 'not_inst"),
        ({"mapping": "twice.yaml"}, [], "twice.yaml, line 2, column 1: the key 'dense/kernel' appears twice"),
        (
            {"mapping": "absent.yaml"},
            [],
            "absent.yaml cannot be read: No such file or directory [file/not-found]",
        ),
        (
            {"metric_names": "empty.yaml"},
            [],
            "[file/bad-format]\n  found: nothing\n  hint: write a line for",
        ),
        (
            {},
            ["--predictions", "dense=y", "--predictions", "dense=z"],
            "[argument/conflict]\n  found: y, z",
        ),
        ({}, ["--predictions", "="], "--predictions = is not OUTPUT=KEY"),
    ],
    ids=range(14),
)
def test_a_program_that_cannot_be(program, tmp_path, changes, more, says):
    done = program(*more, **changes)
    said = says.format(train=tmp_path / "theirs" / "train.py")
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and said in done.stderr, done.output
    assert isinstance(done.exception, SystemExit) and not (tmp_path / "here" / "runs").exists()


@nightly
def test_a_program_that_diverges(program, tmp_path):
    done = program(estimator="{train}:make_diverging", steps="6")
    assert done.exit_code == 3 and done.stderr.startswith("error: training has diverged: estimator: "), done.output
    assert "the numbers of keras are finite; runs and records: runs" in done.stderr


def test_weights_that_are_no_numbers_are_told(tmp_path):
    """The loss of the last step is one, and the weights that it leads to are not."""

    def input_fn():
        return train_input_fn().map(lambda x, y: (x, 100 * y))

    with pytest.raises(DivergedError, match="after step 1 the variable dense/kernel is not finite"):
        compare_models(
            make_estimator(rate=3e38), make_model(rate=3e38), input_fn=input_fn, mapping=MAPPING, steps=1,
            folder=tmp_path / "parity",
        )  # fmt: skip


@nightly
def test_a_metric_that_refuses_what_is_no_number(tmp_path):
    """Keras's AUC ends the training with an error of its own, in the step after the one that diverged."""
    model = make_model(rate=3e38, metrics=[tf.keras.metrics.AUC(name="auc")])
    with pytest.raises(DivergedError, match="keras: "):
        compare_models(
            make_estimator(), model, input_fn=lambda: train_input_fn().map(lambda x, y: (x, tf.abs(y) / 9)), steps=4,
            mapping=MAPPING, folder=tmp_path / "parity",
        )  # fmt: skip


def test_a_model_that_cannot_take_the_data(refused):
    def other_input_fn():
        return tf.data.Dataset.from_tensor_slices((X[:, :5], Y)).batch(8)

    found = refused(keras_eval_input_fn=other_input_fn)
    assert (
        "the Keras model cannot evaluate the first batch of keras_eval_input_fn (other_input_fn): ValueError: " in found
    )
    found = refused(input_fn=other_input_fn, keras_input_fn=train_input_fn)
    assert "the Estimator's training cannot be built: ValueError: Dimensions must be equal" in found
    assert f"found: {__file__}, line " in found


def test_variables_of_one_name():
    """Two weights cannot be told apart; the counts of two optimizers need not be."""
    names = ["dense/kernel:0", "iteration:0", "learning_rate:0", "m/dense/kernel:0", "iteration:0", "learning_rate:0"]
    assert list(matching.canonical_of(names, "the Keras model")) == [
        "dense/kernel",
        "global_step",
        "dense/kernel @momentum",
    ]
    with pytest.raises(ConfigError, match="the Keras model has several variables of one name: dense/kernel:0"):
        matching.canonical_of([*names, "dense/kernel:0"], "the Keras model")
    with pytest.raises(ConfigError, match="variables of the Estimator have the same name: a/iter:0 and global_step:0"):
        matching.canonical_of(["global_step:0", "a/iter:0"][::-1], "the Estimator")
