"""What four programs of the corpus should become, written by hand, trains as they do: docs/reference/migrate-equals.md.

The program's own Estimator and its target start from the same values, read the same records, and are compared after
every step.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from absl import flags
from ruamel.yaml import YAML

from estimator_pipeline.testing import ParityError, assert_parity
from tests.support.processes import tensorflow_with_three_cpus

pytestmark = [
    pytest.mark.nightly,
    # That they are deprecated is why they are here.
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]
tf = tensorflow_with_three_cpus()
HERE = Path(__file__).resolve().parent
TABLE = YAML(typ="safe").load((HERE / "corpus" / "programs.yaml").read_text())


@pytest.fixture(scope="module")
def data(tmp_path_factory, run_python) -> Path:
    folder = tmp_path_factory.mktemp("data")
    sets = ("digits", "digit_records", "housing", "census")
    done = run_python([HERE / "corpus_data.py", folder, *sets])
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(autouse=True)
def named_as_in_a_process_of_its_own():
    """Layers without a name are numbered over all models of a process."""
    tf.keras.backend.clear_session()


LOADED: dict[tuple[str, ...], Any] = {}


@pytest.fixture
def load(monkeypatch):
    """`load("corpus/NAME", *arguments)`: the program as a module, its `__main__` part not run.

    Once in a process: absl refuses flags that are defined again. Those of other tests' programs are forgotten.
    """
    level = tf.compat.v1.logging.get_verbosity()

    def load(*command: Any) -> Any:
        words = tuple(map(str, command))
        if words not in LOADED:
            monkeypatch.setattr(sys, "argv", list(words))
            spec = importlib.util.spec_from_file_location(words[0].replace("/", "_"), HERE / f"{words[0]}.py")
            assert spec is not None and spec.loader is not None
            text = (HERE / f"{words[0]}.py").read_text()
            for flag in re.findall(r"flags\.DEFINE_\w+\(['\"](\w+)['\"]", text):
                if flag in flags.FLAGS:
                    delattr(flags.FLAGS, flag)
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
            LOADED[words] = loaded
        return LOADED[words]

    yield load
    tf.compat.v1.logging.set_verbosity(level)


def test_the_tutorial(load, data):
    """Keras layers in a model_fn, a loss that is a sum by a constant: records 320 to 357 are a smaller batch."""
    program = load("corpus/mnist_multiworker", "--data_dir", data / "digits")
    target = load("targets/mnist_multiworker")
    tf.keras.utils.set_random_seed(1)

    def training():
        return program.input_fn(tf.estimator.ModeKeys.EVAL).repeat()

    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn),
        model=target.make_model(),
        input_fn=training,
        eval_input_fn=lambda: program.input_fn(tf.estimator.ModeKeys.EVAL),
        steps=20,
    )
    assert len(found.steps) == 20 and set(found.metrics.names) == {"loss"}


CONVNET = {"filters": 8, "dropout": 0.0, "boundaries": [10, 15], "rates": [0.1, 0.01, 0.001]}


def compare_convnets(program, model, data, **options):
    pattern = str(data / "digit_records" / "test-*")
    names = {}
    for block in ("block1", "block2"):
        names[f"{block}_conv2d/kernel"] = f"{block}/conv2d/kernel"
        for weight in ("gamma", "beta", "moving_mean", "moving_variance"):
            names[f"{block}_batch_normalization/{weight}"] = f"{block}/batch_normalization/{weight}"
    return assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, params=CONVNET),
        model=model,
        input_fn=lambda: program.input_fn(pattern, False, 32).repeat(),
        eval_input_fn=lambda: program.input_fn(pattern, False, 32),
        mapping=names,
        **options,
    )


def test_convolutions_with_batch_norm(load, data):
    """tf.compat.v1.layers, UPDATE_OPS, regularisation losses, momentum with a rate that steps down after step 11."""
    program, target = load("corpus/digit_convnet"), load("targets/digit_convnet")
    tf.keras.utils.set_random_seed(2)
    found = compare_convnets(program, target.make_model(**CONVNET), data, steps=20)
    assert len(found.initial.names) == 21 and {"loss", "accuracy"} <= set(found.metrics.names)


def test_momentum_of_keras_parts_where_the_rate_steps_down(load, data):
    """What the target's optimizer is for: with stock SGD the first eleven steps are equal, and the twelfth is not."""
    program, target = load("corpus/digit_convnet"), load("targets/digit_convnet")
    tf.keras.utils.set_random_seed(2)
    model = target.make_model(**CONVNET)
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay(CONVNET["boundaries"], CONVNET["rates"])
    model.compile(tf.keras.optimizers.SGD(schedule, momentum=0.9), model.loss)
    with pytest.raises(ParityError, match=r"^not equal: they first differ at step 12 of 13"):
        compare_convnets(program, model, data, steps=13, slots=False)


def test_a_canned_regressor(load, data):
    """DNNRegressor over normalised and one-hot columns, Adagrad."""
    import pandas as pd

    program, target = load("corpus/house_prices"), load("targets/house_prices")
    tf.keras.utils.set_random_seed(3)
    frame = pd.read_csv(data / "housing" / "housing_train.csv")
    prices = frame.pop("price") / 10
    estimator = tf.estimator.DNNRegressor(
        hidden_units=[32, 32],
        feature_columns=program.columns_of(frame),
        optimizer=tf.compat.v1.keras.optimizers.Adagrad(learning_rate=0.1),
        loss_reduction=tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE,
    )
    found = assert_parity(
        estimator=estimator,
        model=target.make_model(frame),
        input_fn=lambda: target.dataset(frame, prices, training=False, batch_size=60).repeat(),
        eval_input_fn=lambda: target.dataset(frame, prices, training=False, batch_size=60),
        steps=40,
        mapping={
            f"{layer}/{weight}": f"dnn/{layer}/{weight}"
            for layer in ("hiddenlayer_0", "hiddenlayer_1", "logits")
            for weight in ("kernel", "bias")
        },
    )
    assert set(found.metrics.names) == {"average_loss", "loss"} and len(found.steps) == 40


def test_wide_and_deep(load, data, tmp_path):
    """Every kind of feature column, an optimizer for each part, the canned Estimator's defaults."""
    program, target = load("corpus/census_wide_deep"), load("targets/census_wide_deep")
    tf.keras.utils.set_random_seed(4)
    file = str(data / "census" / "adult.data")
    columns = ("education", "marital_status", "relationship", "workclass")
    names = {f"linear_{name}/kernel": f"linear/linear_model/{name}/weights" for name in columns}
    hashed = {"occupation": "occupation", "education_X_occupation": "education_X_occupation"}
    hashed |= {"age": "age_bucketized", "age_X_education_X_occupation": "age_bucketized_X_education_X_occupation"}
    names |= {f"linear_{ours}/embeddings": f"linear/linear_model/{name}/weights" for ours, name in hashed.items()}
    names["linear_bias/bias"] = "linear/linear_model/bias_weights"
    inputs = "dnn/input_from_feature_columns/input_layer"
    names["occupation_embedding/embeddings"] = f"{inputs}/occupation_embedding/embedding_weights"
    layers = [*(f"hiddenlayer_{i}" for i in range(4)), "logits"]
    names |= {f"{layer}/{weight}": f"dnn/{layer}/{weight}" for layer in layers for weight in ("kernel", "bias")}
    found = assert_parity(
        estimator=program.build_estimator(str(tmp_path / "model"), "wide_deep", program.build_model_columns),
        model=target.make_model(),
        input_fn=lambda: program.input_fn(file, 1, False, 40).repeat(),
        eval_input_fn=lambda: program.input_fn(str(data / "census" / "adult.test"), 1, False, 40),
        steps=30,
        mapping=names,
    )
    assert {"loss", "accuracy", "auc"} <= set(found.metrics.names) and len(found.steps) == 30


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("wide", {"Ftrl": 0.2}),
        ("deep", {"Adagrad": 0.001}),
        ("wide_deep", {"Ftrl": 0.005, "Adagrad": 0.001}),
    ],
)
def test_the_rates_of_canned_estimators(load, data, tmp_path, kind, rates):
    """What they take where nothing is said, as docs/reference/migrate-equals.md has it; eight linear columns."""
    program = load("corpus/census_wide_deep")
    estimator = program.build_estimator(str(tmp_path), kind, program.build_model_columns)
    estimator.train(lambda: program.input_fn(str(data / "census" / "adult.test"), 1, False, 40), steps=1)
    names = [name for name in estimator.get_variable_names() if name.endswith("/learning_rate")]
    found = {name.split("/")[1]: float(estimator.get_variable_value(name)) for name in names}
    assert found == pytest.approx(rates)


def test_the_names_of_the_corpus_are_there():
    """Every full name of the table is one of TensorFlow's; `same` are those that are one object with that of `tf`."""

    def found(name):
        here = tf
        for part in name.split(".")[1:]:
            here = getattr(here, part)
        return here

    def is_same(name):
        try:
            return found("tf." + name.removeprefix("tf.compat.v1.")) is found(name)
        except AttributeError:
            return False

    for program in TABLE.values():
        names = [*program["constructs"], *program.get("same", {})]
        assert all(found(name) is not None for name in names)
        elsewhere = ("tf.compat.v1.estimator.", "tf.compat.v1.feature_column.")
        of_v1 = {name for name in names if name.startswith("tf.compat.v1.") and not name.startswith(elsewhere)}
        assert {name for name in of_v1 if is_same(name)} == set(program.get("same", {}))


# Target -> what comes after `exec`, and what it must print, as in the corpus's table.
RUNS = {
    "mnist_multiworker": (["--data_dir", "{data}/digits", "--model_dir", "{model}", "--max_steps", "300"], None),
    "digit_convnet": (["--data", "{data}/digit_records", "--job-dir", "{model}", "--train-steps", "150"], None),
    "house_prices": (
        ["--train", "{data}/housing/housing_train.csv", "--test", "{data}/housing/housing_test.csv",
         "--model-dir", "{model}", "--steps", "400"],
        None,
    ),
    "census_wide_deep": (
        ["--data_dir={data}/census", "--model_dir={model}", "--train_epochs=4", "--epochs_between_evals=2"],
        r"val_auc: ([\d.]+)",
    ),
}  # fmt: skip


@pytest.mark.slow
def test_the_targets_learn_as_the_programs_do(data, run_python, tmp_path):
    """Each is a program too; its metric keeps the bound of the one that it was made of."""
    asked = [
        {
            "arguments": [
                str(HERE / "targets" / f"{name}.py"),
                *(argument.format(data=data, model=tmp_path / name) for argument in arguments),
            ],
            "folder": str(tmp_path),
            "output": f"{tmp_path}/{name}.log",
            "timeout": 200,
        }
        for name, (arguments, _) in RUNS.items()
    ]
    environ = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_python([HERE / "corpus_process.py", 2], environ, timeout=280, stdin=json.dumps(asked))
    codes = json.loads(done.stdout.splitlines()[-1])
    for (name, (_, pattern)), each, code in zip(RUNS.items(), asked, codes, strict=True):
        text, metric = Path(each["output"]).read_text(), TABLE[name]["metric"]
        assert code == 0, text[-4000:]
        found = float(re.findall(pattern or metric["prints"], text)[-1])
        assert metric.get("at_least", -math.inf) <= found <= metric.get("at_most", math.inf), (name, found)
    assert (tmp_path / "digit_convnet" / "export" / "1" / "saved_model.pb").exists()
