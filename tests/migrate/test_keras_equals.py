"""What `migrate convert` writes as Keras trains as the Estimator did: weights, slots and metrics after every step.

The program's own Estimator and the model of its conversion start from the same values and read the same records.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl import flags

from estimator_pipeline.cluster.ports import REUSE_VARIABLE
from estimator_pipeline.errors import ClusterError, ConfigError
from estimator_pipeline.launch import hold_ports
from estimator_pipeline.migrate.code import convert
from estimator_pipeline.models.keras_runtime import rnn_cells as keras_cells
from estimator_pipeline.models.keras_runtime import variables as keras_variables
from estimator_pipeline.models.keras_runtime import warm_start as keras_weights
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.testing import assert_parity
from estimator_pipeline.testing.training_runs import two_replicas
from tests.migrate import corpus_data
from tests.migrate.test_convert import run
from tests.support.processes import tensorflow_with_three_cpus

# What becomes Keras as a whole, and what declines a file.

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
tf = tensorflow_with_three_cpus()
HERE = Path(__file__).resolve().parent


class DataSets:
    """A folder of data sets; `data / NAME` is that of one, which is written when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __truediv__(self, name: str) -> Path:
        folder = self.folder / name
        return folder if folder.exists() else corpus_data.write(name, folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> DataSets:
    return DataSets(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def named_as_in_a_process_of_its_own():
    tf.keras.backend.clear_session()


@pytest.fixture
def load(monkeypatch, tmp_path):
    """`load(NAME, *arguments)`: (the program, its conversion) as modules, their `__main__` parts not run.

    `change` is what is written anew in the program before: a dropout of 0, for chance is another one. `text` is a
    program that is none of the corpus.
    """
    level = tf.compat.v1.logging.get_verbosity()

    def module(path: Path, words: tuple[str, ...]) -> Any:
        monkeypatch.setattr(sys, "argv", [str(path), *words])
        spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        for flag in re.findall(r"flags\.DEFINE_\w+\(['\"](\w+)['\"]", path.read_text()):
            if flag in flags.FLAGS:  # absl refuses those that are defined again
                delattr(flags.FLAGS, flag)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    def load(name: str, *arguments: Any, change: dict[str, str] | None = None, text: str = "") -> tuple[Any, Any]:
        source = HERE / "corpus" / f"{name}.py"
        if change or text:
            text = text or source.read_text()
            for before, after in (change or {}).items():
                assert before in text
                text = text.replace(before, after)
            source = tmp_path / "changed" / f"{name}.py"
            source.parent.mkdir(exist_ok=True)
            source.write_text(text)
        (made,) = convert(source, to="keras-layers").files
        assert made.kept_as_estimator == "" and "tf.estimator" not in made.after
        written = tmp_path / "keras" / f"{name}.py"
        written.parent.mkdir(exist_ok=True)
        written.write_text(made.after)
        words = tuple(map(str, arguments))
        return module(source, words), module(written, words)

    yield load
    tf.compat.v1.logging.set_verbosity(level)


def test_the_tutorial(load, data):
    """Keras layers in a model_fn, a loss that is a sum by a constant; it may train on several workers."""
    program, made = load("mnist_multiworker", "--data_dir", data / "digits")
    tf.keras.utils.set_random_seed(1)
    mode = tf.estimator.ModeKeys.EVAL
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn),
        model=made.make_model(made.model_inputs(made.input_fn("train"))),
        input_fn=lambda: program.input_fn(mode).repeat(),
        eval_input_fn=lambda: program.input_fn(mode),
        steps=20,
    )
    assert len(found.steps) == 20 and set(found.metrics.names) == {"loss"}


@pytest.mark.nightly
def test_the_tutorial_on_two_replicas(load, data):
    """The loss that is a sum by a constant is scaled as an Estimator scales it."""
    program, made = load("mnist_multiworker", "--data_dir", data / "digits")
    tf.keras.utils.set_random_seed(6)
    mode = tf.estimator.ModeKeys.EVAL
    with two_replicas().scope():
        model = made.make_model(made.model_inputs(made.input_fn("train")))
    config = tf.estimator.RunConfig(train_distribute=two_replicas())
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, config=config),
        model=model,
        input_fn=lambda: program.input_fn(mode).repeat(),
        steps=10,
    )
    assert len(found.steps) == 10


CONVNET = {"filters": 8, "dropout": 0.0, "boundaries": [10, 15], "rates": [0.1, 0.01, 0.001]}


@pytest.mark.nightly
def test_convolutions_with_batch_norm(load, data):
    """tf.compat.v1.layers, UPDATE_OPS, regularisation losses, momentum with a rate that steps down after step 11."""
    program, made = load("digit_convnet")
    tf.keras.utils.set_random_seed(2)
    pattern = str(data / "digit_records" / "test-*")
    names = {}
    for block in ("block1", "block2"):
        names[f"{block}_conv2d/kernel"] = f"{block}/conv2d/kernel"
        for weight in ("gamma", "beta", "moving_mean", "moving_variance"):
            names[f"{block}_batch_normalization/{weight}"] = f"{block}/batch_normalization/{weight}"
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, params=CONVNET),
        model=made.make_model(made.model_inputs(made.input_fn(pattern, True, 32)), CONVNET),
        input_fn=lambda: program.input_fn(pattern, False, 32).repeat(),
        eval_input_fn=lambda: program.input_fn(pattern, False, 32),
        mapping=names,
        steps=20,
    )
    assert len(found.initial.names) == 21 and {"loss", "accuracy"} <= set(found.metrics.names)


@pytest.mark.nightly
def test_a_model_fn_around_a_keras_model(load, data):
    program, made = load("wine_keras_layers")
    x, y = program.load(data / "wine" / "wine_test.csv")
    params = {"num_features": x.shape[1], "hidden": (16,), "dropout": 0.0, "l2": 1e-3, "learning_rate": 0.01}
    tf.keras.utils.set_random_seed(3)
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, params=params),
        model=made.make_model(made.model_inputs(made.dataset(x, y, True)), params),
        input_fn=lambda: program.dataset(x, y, False).repeat(),
        eval_input_fn=lambda: program.dataset(x, y, False),
        steps=20,
    )
    assert {"loss", "accuracy"} <= set(found.metrics.names)


PROOF = """
import tensorflow as tf

PARAMS = {"num_features": 13, "hidden": (4,), "dropout": 0.0, "l2": 1e-3, "learning_rate": 0.01}


def data(module):
    return module.dataset(*module.load("PATH"), False)


def estimator(program):
    return tf.estimator.Estimator(program.model_fn, params=PARAMS)


def model(made):
    return made.make_model(made.model_inputs(data(made)), PARAMS)


def input_fn(program):
    return data(program).repeat()


def eval_input_fn(program):
    return data(program)
"""


@pytest.mark.nightly
def test_a_conversion_and_its_proof(data, tmp_path, capsys):
    """`migrate convert --parity`: compared at once, by a file of a few functions."""
    proof, out = tmp_path / "proof.py", tmp_path / "out"
    proof.write_text(PROOF.replace("PATH", str(data / "wine" / "wine_test.csv")))
    command = ["migrate", "convert", HERE / "corpus" / "wine_keras_layers.py", "--parity", proof, "--steps", "3"]
    code, told, _ = run([*command, "--output", out], capsys)
    assert code == 0 and "wine_keras_layers.py: converted to Keras" in told and "equal" in told
    assert json.loads((out / "parity.json").read_text())["equal"] is True
    proof.write_text(
        proof.read_text().replace("(data(made)), PARAMS", "(data(made)), {**PARAMS, 'learning_rate': 1.0}")
    )
    code, told, _ = run([*command, "--output", tmp_path / "other", "--json"], capsys)
    assert code == 1 and json.loads(told)["parity"]["equal"] is False
    proof.write_text(proof.read_text() + "\n\ndef metric_names(model):\n    return {'none': 'accuracy'}\n")
    code, _, told = run([*command, "--output", tmp_path / "named"], capsys)
    assert code == 2 and "the Keras model has no metric none" in told


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("proof", "more", "message"),
    [
        ("", [], "has no function estimator"),
        ("import absent_module", [], "cannot be imported: ModuleNotFoundError"),
        ("raise SystemExit(2)", [], "ends when it is imported, with code 2"),
        (None, [], "there is no file"),
        (
            "estimator = input_fn = print\ndef model(made):\n    return made.build",
            [],
            "the function model uses build, which",
        ),
        ("", ["--dry-run"], "compares what is written"),
    ],
)
def test_proofs_that_are_refused(tmp_path, capsys, proof, more, message):
    file = tmp_path / "proof.py"
    if proof is not None:
        file.write_text(proof)
    command = ["migrate", "convert", HERE / "corpus" / "wine_keras_layers.py", "--parity", file, *more]
    code, _, told = run([*command, "--output", tmp_path / "out"], capsys)
    assert code == 2 and message in " ".join(told.split())


@pytest.mark.nightly
def test_what_has_no_conversion_has_no_proof(tmp_path, capsys):
    (tmp_path / "proof.py").write_text("")
    alone = tmp_path / "alone.py"
    alone.write_text("import tensorflow as tf\n\ntf.estimator.BoostedTreesClassifier([], 1).train(lambda: None)\n")
    reasons = {alone: "remains an Estimator program, so there is no Keras model", tmp_path: f"{tmp_path} is a folder"}
    for path, reason in reasons.items():
        command = ["migrate", "convert", path, "--parity", tmp_path / "proof.py", "--output", tmp_path / "out"]
        code, _, told = run(command, capsys)
        assert code == 2 and reason in " ".join(told.split())


@pytest.mark.nightly
def test_a_canned_regressor(load, data):
    """DNNRegressor over normalised and one-hot columns, Adagrad."""
    import pandas as pd

    program, made = load("house_prices")
    frame = pd.read_csv(data / "housing" / "housing_test.csv")
    prices = frame.pop("price") / 10
    tf.keras.utils.set_random_seed(4)
    options = {"hidden_units": [16, 16], "loss_reduction": tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE}
    model = made.keras_canned.DNNRegressor(
        feature_columns=made.columns_of(frame),
        optimizer=tf.keras.optimizers.legacy.Adagrad(learning_rate=0.1),
        **options,
    )
    batches = made.batches(x=frame, y=prices, batch_size=40)
    model(next(iter(batches))[0])
    found = assert_parity(
        estimator=tf.estimator.DNNRegressor(
            feature_columns=program.columns_of(frame),
            optimizer=tf.compat.v1.keras.optimizers.Adagrad(learning_rate=0.1),
            **options,
        ),
        model=model,
        input_fn=lambda: made.batches(x=frame, y=prices, batch_size=40, num_epochs=None),
        eval_input_fn=lambda: made.batches(x=frame, y=prices, batch_size=40),
        steps=20,
        mapping=_named(model, {layer: f"dnn/{layer}" for layer in ("hiddenlayer_0", "hiddenlayer_1", "logits")}),
    )
    assert {"average_loss", "label/mean", "prediction/mean"} <= set(found.metrics.names) and len(found.steps) == 20


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["Adam", "Adagrad", "RMSProp"])
def test_a_variable_that_is_looked_up_in(load, data, optimizer):
    """It is an Embedding now, whose words a table numbers; the optimizer is one by name, of clipped gradients."""
    change = {"net, 0.3": "net, 0.0", "(grads, 5.0)": "(grads, 0.02)"}
    program, made = load("review_sentiment", "--data=x", change=change)
    for module in (program, made):
        module.FLAGS(["review_sentiment.py", f"--data={data / 'reviews'}"])
    words = str(data / "reviews" / "vocab.txt")
    params = {"vocab_file": words, "vocab_size": len(Path(words).read_text().split()), "hidden": [16],
              "embedding_size": 8, "lr": 0.01, "optimizer": optimizer, "max_pool": True}  # fmt: skip
    tf.keras.utils.set_random_seed(7)
    test = str(data / "reviews" / "test.tsv")
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, params=params),
        model=made.make_model(made.model_inputs(made.read(test, False)), params),
        input_fn=lambda: program.read(test, False).repeat(),
        eval_input_fn=lambda: program.read(test, False),
        mapping={"embeddings_table/embeddings": "embeddings/table"},
        steps=20,
    )
    assert {"loss", "accuracy", "auc", "precision", "recall"} <= set(found.metrics.names) and len(found.steps) == 20


@pytest.mark.nightly
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_recurrent_cells(load, data, tmp_path, cell):
    """Two cells one above the other, sequences of several lengths, gradients of a clipped norm."""
    words = (f"--data_path={data / 'demand' / 'demand.npz'}", f"--save_path={tmp_path}", f"--cell={cell}")
    program, made = load("demand_rnn", *words)
    for module in (program, made):
        module.FLAGS(["demand_rnn.py", *words], known_only=True)
    params = {"keep_prob": 1.0, "num_units": 6, "num_layers": 2, "max_grad_norm": 0.1, "learning_rate": 0.01}
    tf.keras.utils.set_random_seed(9)
    model = made.make_rnn_model(made.model_inputs(made.get_input_fn("test")()), params)
    names = {}
    for weight in (weight for layer in model.layers for weight in layer.weights):
        plain = weight.name.partition(":")[0]
        if f"{cell}_cell" in plain:
            layer, _, part = plain.partition(f"{cell}_cell")[2].partition("/")
            names[plain] = f"rnn/rnn/multi_rnn_cell/cell_{int(bool(layer))}/{cell}_cell/{part}"
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.rnn_model_fn, params=params),
        model=model,
        input_fn=lambda: made.get_input_fn("test")().repeat(),
        eval_input_fn=lambda: made.get_input_fn("test")(),
        mapping=names,
        steps=20,
    )
    assert {"loss", "rmse", "mae"} <= set(found.metrics.names) and len(found.steps) == 20
    assert len(names) == (4 if cell == "lstm" else 8)


@pytest.mark.nightly
def test_dropout_of_a_cell_is_of_training_and_of_outputs():
    """Half of the outputs are 0 in training and the others doubled, at each step others; states keep all numbers."""
    tf.keras.utils.set_random_seed(10)
    plain = keras_cells.LSTMCell(40)
    cell = keras_cells.DropoutWrapper(plain, output_keep_prob=0.5)
    x, zeros = tf.ones([3, 2]), [tf.zeros([3, 40]), tf.zeros([3, 40])]
    outputs, states = cell(x, zeros, training=False)
    np.testing.assert_array_equal(outputs, states[1])
    first, after = cell(x, zeros, training=True)
    second, _ = cell(x, zeros, training=True)
    np.testing.assert_array_equal(after[1], states[1])
    kept = first.numpy() != 0
    assert 0.3 < kept.mean() < 0.7 and (kept != (second.numpy() != 0)).any()
    np.testing.assert_allclose(first.numpy()[kept], 2 * outputs.numpy()[kept])


@pytest.mark.nightly
def test_what_keras_cells_and_optimizers_refuse():
    with pytest.raises(ConfigError, match="dynamic_rnn with a cell GRUCell"):
        keras_cells.dynamic_rnn(tf.keras.layers.GRUCell(2), tf.zeros([1, 2, 3]))
    with pytest.raises(ConfigError, match=r"the optimizer 'Proximal' is not known"):
        keras_optimizers.of_v1("Proximal", 0.1)
    assert type(keras_optimizers.of_v1("GradientDescent", 0.1)).__name__ == "SGD"


NOISE = "tf.compat.v1.random_normal(tf.shape(mean)"


@pytest.mark.nightly
def test_a_method_whose_network_is_another_one_in_training(load, data):
    """The model_fn is a method, reads attributes of its object, has no labels, and adds noise where it trains."""
    # A noise that is no chance: 1 for each number in training, nothing in evaluation.
    program, made = load("anomaly_vae", change={NOISE: f"{NOISE}, mean=1.0, stddev=0.0"})
    _, test, _ = program.make_input_fns(data / "digits" / "digits.npz", 50)

    def labelled():
        """What is compared has labels; the model_fn does not look at them."""
        return test().map(lambda x: (x, x[:, 0]))

    params = {"learning_rate": 5e-3, "max_steps": 15}
    tf.keras.utils.set_random_seed(8)
    model = made.VAE(beta=0.2).make_model(made.model_inputs(test()), params)
    dense = [layer.name for layer in model.layers if layer.name.startswith("dense")]
    theirs = ("encoder/dense", "encoder/dense_1", "decoder/dense", "decoder/dense_1", "decoder/dense_2")
    names = dict(zip(dense, theirs, strict=True)) | {f"encoder_{one}": f"encoder/{one}" for one in
                                                     ("mean", "log_variance")}  # fmt: skip
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.VAE(beta=0.2).model_fn, params=params),
        model=model,
        input_fn=lambda: labelled().repeat(),
        eval_input_fn=labelled,
        mapping={f"{ours}/{part}": f"{name}/{part}" for ours, name in names.items() for part in ("kernel", "bias")},
        steps=20,
    )
    assert {"loss", "elbo", "mse"} <= set(found.metrics.names) and len(found.steps) == 20


@pytest.mark.nightly
def test_averages_of_the_weights(load, data):
    """They are kept after each step, by a decay that grows, and evaluated; nesterov with a rate that steps down."""
    # TensorFlow 1's behaviour is a switch of the whole process.
    change = {"tf.disable_v2_behavior()": ""}
    program, made = load("mnist_tf1", change=change)
    with np.load(data / "digits" / "digits.npz") as arrays:
        x, y = arrays["x_test"].reshape(-1, 64).astype(np.float32) / 255, arrays["y_test"].astype(np.int32)
    params = program.default_hparams().parse("dropout=0.0,decay_steps=8")
    tf.keras.utils.set_random_seed(11)
    given = {"x": {"x": x}, "y": y, "batch_size": 40}
    names = {}
    for layer in ("conv2d", "conv2d_1", "dense", "dense_1"):
        for name in (f"{layer}/{kind}" for kind in ("kernel", "bias")):
            names |= {one: f"lenet/{one}" for one in (name, f"{name}/ExponentialMovingAverage")}
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, params=params),
        model=made.make_model(made.model_inputs(made.batches(**given)), params),
        input_fn=lambda: made.batches(**given, num_epochs=None),
        eval_input_fn=lambda: made.batches(**given),
        mapping=names,
        steps=20,
    )
    assert {"loss", "accuracy", "top_3"} <= set(found.metrics.names) and len(found.initial.names) == 25


@pytest.mark.nightly
def test_two_heads_over_one_network(load, data):
    """A MultiHead with weights, over a model of a class; thresholds, columns, an optimizer that the head steps."""
    program, made = load("order_heads")
    read = program.make_input_fn(data / "orders" / "orders_eval.csv", 40, False)
    args = argparse.Namespace(late_weight=1.0, days_weight=0.5)
    params = {"units": [16, 8], "learning_rate": 5e-3}
    tf.keras.utils.set_random_seed(12)
    model = made.make_order_model(made.model_inputs(read()), {**params, "head": made.build_head(args)})
    answers = next(made.examples(model, read()))
    assert {("late", "logistic"), ("late", "all_classes"), ("days", "predictions")} <= answers.keys()
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.order_model_fn, params={**params, "head": program.build_head(args)}),
        model=model,
        input_fn=lambda: read().repeat(),
        eval_input_fn=read,
        steps=20,
    )
    told = {"accuracy/late", "auc/late", "accuracy/positive_threshold_0.3/late", "loss/days", "prediction/mean/days"}
    assert {"loss", "accuracy_baseline/late", *told} <= set(found.metrics.names) and len(found.steps) == 20


def ads(load, folder: Path, *words: str):
    program, made = load("ads_parameter_server", f"--data_dir={folder}", "--batch_size=50", *words)
    for module in (program, made):
        module.FLAGS(["ads.py", f"--data_dir={folder}", "--batch_size=50", *words], known_only=True)
    return program, made


@pytest.mark.nightly
def test_a_program_for_parameter_servers(load, data, monkeypatch):
    """In one process its Estimator trains as Keras does; on a cluster with such servers no task trains."""
    program, made = ads(load, data / "clicks")
    config, params = tf.estimator.RunConfig(), {"hidden_units": [8, 4], "learning_rate": 0.05}
    tf.keras.utils.set_random_seed(16)
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, config=config, params=params),
        model=made.make_model(made.model_inputs(made.input_fn("eval")), params),
        input_fn=lambda: program.input_fn("eval").repeat(),
        eval_input_fn=lambda: program.input_fn("eval"),
        mapping={f"{name}_embedding/embeddings": f"fields/{name}_embedding" for name, _ in program.FIELDS},
        steps=20,
    )
    assert {"loss", "auc", "ctr"} <= set(found.metrics.names) and len(found.steps) == 20
    monkeypatch.setenv("TF_CONFIG", "{}")  # the program writes it
    words = ["--ps_hosts=a:2222", "--worker_hosts=b:2222,c:2222"]
    for job, index, task in (("ps", 0, "ps:0"), ("worker", 0, "chief:0"), ("worker", 1, "worker:0")):
        _, made = ads(load, data / "clicks", *words, f"--job_name={job}", f"--task_index={index}")
        with pytest.raises(ClusterError, match=f"1 chief, 1 ps, 1 worker; this task is {task}"):
            made.main(None)


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.slow
def test_such_a_program_on_workers(data, tmp_path, run_python):
    """A cluster of workers alone trains together, and comes to one model."""
    held = hold_ports(2)
    jobs = {"worker": [f"localhost:{port}" for port in held.ports]}
    words = [str(HERE / "keras" / "ads_parameter_server.py"), f"--data_dir={data / 'clicks'}", "--train_steps=60",
             f"--checkpoint_dir={tmp_path}"]  # fmt: skip

    def task(index: int):
        told = json.dumps({"cluster": jobs, "task": {"type": "worker", "index": index}})
        variables = {"TF_CONFIG": told, REUSE_VARIABLE: "1"}
        return run_python(["-m", "estimator_pipeline", "exec", *words], variables, timeout=120)

    with held, concurrent.futures.ThreadPoolExecutor(2) as pool:
        chief, worker = pool.map(task, range(2))
    assert chief.returncode == worker.returncode == 0, chief.stderr[-4000:] + worker.stderr[-4000:]
    assert "auc 0." in chief.stdout and "auc 0." not in worker.stdout
    (result,) = json.loads((tmp_path / "eval" / "evaluations.json").read_text())
    assert result["global_step"] == 60 and result["loss"] < 0.68
    assert (tmp_path / "weights.index").exists() and not list(tmp_path.glob("tmp_*"))


# Noise that is no chance: of the image. And no bias before a normalisation, which takes it away: its gradient
# is but rounding, and Adam makes much of that.
NO_CHANCE = {
    "tf.compat.v1.random_normal([tf.shape(real)[0], NOISE])": "tf.sin(tf.cumsum(7. * real, 1)[:, 24:24 + NOISE])",
    "dense(noise, 64, name='fc1')": "dense(noise, 64, use_bias=False, name='fc1')",
}
GAN = {"g_rate": 2e-3, "d_rate": 1e-3, "d_steps": 2}


@pytest.mark.nightly
@pytest.mark.parametrize("every", [1, 2, 3])
def test_two_networks_trained_against_each_other(load, data, every):
    """Each has a loss and an optimizer, one of which steps every so many steps; its predictions are of one alone."""
    program, made = load("digit_gan", change=NO_CHANCE)
    params = GAN | {"d_steps": every}

    def images(training=False):
        """What is compared has labels; the model_fn does not look at them."""
        found = program.images_input_fn(data / "digits" / "digits.npz", False).unbatch().batch(50)
        found = found.map(lambda one: (one, one["images"][:, 0]))
        return found.repeat() if training else found

    tf.keras.utils.set_random_seed(17)
    model = made.make_gan_model(made.model_inputs(images()), params)
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.gan_model_fn, params=params),
        model=model,
        input_fn=lambda: images(True),
        eval_input_fn=images,
        steps=20,
    )
    assert {"loss", "mean_gap", "d_accuracy"} <= set(found.metrics.names) and len(found.steps) == 20
    before = [int(one.iterations) for one in model.optimizer.parts]
    model.fit(images(True), steps_per_epoch=7, verbose=0)
    counted = [int(one.iterations) for one in model.optimizer.parts]
    at = before[0]
    assert counted == [at + 7, before[1] + sum(step % every == 0 for step in range(at, at + 7))]
    weights = [variable.numpy() for variable in model.weights]
    asked = program.noise_input_fn(4)
    answered = model.predict(asked, verbose=0)["images"]
    assert answered.shape == (4, 64) and (model.predict(asked, verbose=0)["images"] == answered).all()
    for before, after in zip(weights, model.weights, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.nightly
def test_predictions_of_such_a_network(load, data, tmp_path):
    """From the Estimator's own checkpoint they are the Estimator's."""
    program, made = load("digit_gan", change=NO_CHANCE)
    path = data / "digits" / "digits.npz"
    estimator = tf.estimator.Estimator(program.gan_model_fn, str(tmp_path), params=GAN)
    estimator.train(lambda: program.images_input_fn(path, True), steps=3)
    model = made.make_gan_model(made.model_inputs(made.images_input_fn(path, True)), GAN)
    for variable in model.weights:
        if "/" in variable.name:  # a weight, and none of a metric
            variable.assign(estimator.get_variable_value(keras_variables.name_of(variable)))
    theirs = np.array([one["images"] for one in estimator.predict(lambda: program.noise_input_fn(5))])
    np.testing.assert_allclose(model.predict(made.noise_input_fn(5), verbose=0)["images"], theirs, rtol=1e-5)


TWINS = """import tensorflow as tf
v1 = tf.compat.v1


def tower(images, reuse):
    with v1.variable_scope('tower', reuse=reuse):
        net = v1.layers.dense(images, 6, tf.nn.relu, name='hidden', kernel_regularizer=tf.keras.regularizers.l2(0.01))
        weights = v1.get_variable('weights', [6, 3])
        return tf.matmul(net, weights)


def model_fn(features, labels, mode):
    one, other = tower(features['one'], False), tower(features['other'], True)
    distance = tf.reduce_sum(tf.square(one - other), axis=1, keepdims=True)
    with v1.variable_scope('answer'):
        logits = v1.layers.dense(distance, 1)[:, 0]
    loss = v1.losses.sigmoid_cross_entropy(labels, logits) + v1.losses.get_regularization_loss()
    accuracy = v1.metrics.accuracy(labels, logits > 0)
    train_op = v1.train.AdamOptimizer(0.05).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(
        mode, {'same': logits}, loss, train_op, eval_metric_ops={'accuracy': accuracy})


def input_fn(training=True):
    one = tf.constant([[(i * k) % 7 / 7. for k in range(1, 5)] for i in range(40)])
    pairs = {'one': one, 'other': tf.reverse(one, [1])}
    data = tf.data.Dataset.from_tensor_slices((pairs, [i % 2 for i in range(40)])).batch(8)
    return data.repeat() if training else data


if __name__ == '__main__':
    estimator = tf.estimator.Estimator(model_fn, 'model')
    estimator.train(input_fn, steps=10)
    print(estimator.evaluate(lambda: input_fn(False)))
"""


@pytest.mark.nightly
def test_layers_that_are_used_again(load):
    """One network over two features, by the names of its variables: its layers and its own variable are there once."""
    program, made = load("twins", text=TWINS)
    tf.keras.utils.set_random_seed(15)
    model = made.make_model(made.model_inputs(made.input_fn()))
    assert len(model.trainable_variables) == 5 and len(model.losses) == 1
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn),
        model=model,
        input_fn=made.input_fn,
        eval_input_fn=lambda: made.input_fn(False),
        mapping={"tower/weights/own_variable": "tower/weights"},
        steps=15,
    )
    assert {"loss", "accuracy"} <= set(found.metrics.names) and len(found.steps) == 15


@pytest.mark.nightly
def test_variables_of_ones_own_by_two_optimizers(load, data):
    """get_variable in calculations, in a class and in a loop; variables in parts; an optimizer for those of a name."""
    program, made = load("movie_deepfm")
    features, likes = program.read_ratings(data / "ratings")

    def batches():
        return tf.data.Dataset.from_tensor_slices((features, likes)).take(600).batch(50)

    params = {"users": 150, "movies": 90, "dim": 4, "shards": 1, "deep_layers": [8, 4], "keep_prob": 1.0,
              "learning_rate": 3e-3}  # fmt: skip
    tf.keras.utils.set_random_seed(14)
    model = made.make_model(made.model_inputs(batches()), params)
    names = {}
    for name in (made.keras_variables.name_of(one) for one in model.trainable_variables):
        if "dense" not in name:
            names[f"{name}/own_variable"] = f"{name}/part_0" if name[:4] in ("user", "movi") else name
    assert [len(one) for one in model.optimizer.which] == [4, 9] and len(names) == 11
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, params=params),
        model=model,
        input_fn=lambda: batches().repeat(),
        eval_input_fn=batches,
        mapping=names,
        steps=20,
    )
    assert {"loss", "auc"} <= set(found.metrics.names) and len(found.steps) == 20


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["canned", "custom"])
def test_estimators_of_v1(load, data, tmp_path, kind):
    """A canned one with sums as losses and further metrics; input_layer and linear_model under a head, partial."""
    program, made = load("ads_v1_canned", change={"dnn_dropout=0.1": "dnn_dropout=None"})
    words = [f"--data={data / 'clicks'}", f"--model_dir={tmp_path / 'model'}", f"--kind={kind}"]
    for module in (program, made):
        module.FLAGS(["ads_v1_canned.py", *words, "--hidden_units=8,4"], known_only=True)
    tf.keras.utils.set_random_seed(13)
    model = made.build(made.model_inputs(made.input_fn("eval")))
    model(next(iter(made.input_fn("eval")))[0])
    names = [one.name.partition(":")[0] for one in model.weights]
    found = assert_parity(
        estimator=program.build(),
        model=model,
        input_fn=lambda: made.input_fn("eval", 50).repeat(),
        eval_input_fn=lambda: made.input_fn("eval", 50),
        mapping={name: _of_v1(name) for name in names if "/" in name},
        steps=20,
    )
    told = {"auc", "auc_precision_recall", "accuracy", "precision", "recall", "average_loss", "prediction/mean"}
    told |= {"ctr_error"} if kind == "canned" else set()
    assert told <= set(found.metrics.names) and len(found.steps) == 20


# Every start is one: what hooks saw is compared too, and they were there from the first step on.
SAME_START = {
    "tf.nn.tanh, name=": "tf.nn.tanh, kernel_initializer=tf.compat.v1.constant_initializer(0.1), name=",
    "Dense(2, name=": "Dense(2, kernel_initializer=tf.compat.v1.constant_initializer(0.2), name=",
    "max_steps=args.max_steps, hooks=": "max_steps=args.max_steps, saving_listeners=[SavedListener()], hooks=",
}


@pytest.fixture
def said():
    """What is written to TensorFlow's log."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())
    level = tf.get_logger().level
    tf.get_logger().setLevel(logging.INFO)
    tf.get_logger().addHandler(handler)
    yield lines
    tf.get_logger().removeHandler(handler)
    tf.get_logger().setLevel(level)


@pytest.mark.nightly
def test_hooks_and_listeners(load, data, tmp_path, said):
    """What a program's own hooks saw of each step, and wrote, and the checkpoints that its listener was told of."""
    program, made = load("turbine_hooks", change=SAME_START)
    path = str(data / "turbines" / "turbines_train.csv")
    params = program.Params([8, 4], 1e-2)

    def heard(what):
        return [line for line in said if line.startswith(what)]

    hook = program.RunningLossHook("smoothed_loss:0", every_n_steps=3)
    config = tf.estimator.RunConfig(str(tmp_path / "model"), save_checkpoints_steps=4)
    tf.estimator.Estimator(program.model_fn, config=config, params=params).train(
        lambda: program.input_fn(path, 32, 1), hooks=[hook], saving_listeners=[program.SavedListener()], steps=10
    )
    told = heard("checkpoint of step")
    said.clear()
    model = made.make_model(made.model_inputs(made.input_fn(path, 32, 1)), params)
    callbacks = [made.RunningLossHook("smoothed_loss", every_n_steps=3), made.WeightNormHook(tmp_path / "norms.jsonl")]
    saved = made.AtCheckpoints(made.SavedListener(), 4)
    model.fit(made.input_fn(path, 32, 1), steps_per_epoch=10, callbacks=[*callbacks, saved], verbose=0)
    assert callbacks[0].mean == pytest.approx(hook.mean, rel=1e-5)
    assert heard("checkpoint") == told == [f"checkpoint of step {n} written" for n in (0, 4, 8, 10)]
    # The step that a hook reads is the one before, but once in some hundred times: it is read beside the update.
    assert [line.rpartition(" ")[2] for line in heard("running loss")] == ["0", "3", "6", "9"]
    norms, found = ((folder / "norms.jsonl").read_text() for folder in (tmp_path / "model", tmp_path))
    assert json.loads(found) == pytest.approx(json.loads(norms), rel=1e-5)


@pytest.mark.nightly
def test_the_timer_of_hooks(load):
    _, made = load("turbine_hooks")
    ours, theirs = made.Timer(every_steps=3), tf.estimator.SecondOrStepTimer(every_steps=3)
    for step in (0, 0, 1, 2, 3, 5, 6, 9, 9, 20):
        due = ours.should_trigger_for_step(step)
        assert due == theirs.should_trigger_for_step(step)
        if due:
            found, steps = ours.update_last_triggered_step(step), theirs.update_last_triggered_step(step)[1]
            assert found[1] == steps and (found[0] is None) == (steps is None)
        assert ours.last_triggered_step() == theirs.last_triggered_step()
    ours, theirs = made.Timer(every_secs=0), tf.estimator.SecondOrStepTimer(every_secs=0)
    for timer in (ours, theirs):
        timer.update_last_triggered_step(4)
        assert [timer.should_trigger_for_step(step) for step in (4, 5)] == [False, True]


@pytest.mark.nightly
def test_a_program_with_hooks_trains_alike(load, data):
    """RMSProp by a rate that steps down, labels that are smoothed, a step that tells its loss."""
    program, made = load("turbine_hooks")
    path = str(data / "turbines" / "turbines_eval.csv")
    params = program.Params([8, 4], 1e-2)
    tf.keras.utils.set_random_seed(11)
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.model_fn, config=tf.estimator.RunConfig(), params=params),
        model=made.make_model(made.model_inputs(made.input_fn(path, 32, 1)), params),
        input_fn=lambda: program.input_fn(path, 32, 1).repeat(),
        eval_input_fn=lambda: program.input_fn(path, 32, 1),
        steps=20,
    )
    assert {"loss", "accuracy", "failures_found", "mean_probability"} <= set(found.metrics.names)
    assert len(found.steps) == 20


@pytest.mark.nightly
@pytest.mark.parametrize("freeze", [False, True])
def test_a_warm_start(load, data, tmp_path, freeze):
    """From an Estimator's checkpoint and from its model's own: the same weights are taken, and training is the same."""
    program, made = load("warm_start_transfer")
    x, y = program.load(str(data / "digits"))["test"]
    inputs = program.numpy_input(x, y, training=False)
    tf.keras.utils.set_random_seed(18)
    seeded = tf.estimator.RunConfig(tf_random_seed=6)
    base = tf.estimator.Estimator(program.digit_model_fn, str(tmp_path / "base"), config=seeded)
    base.train(inputs, steps=3)
    kinds = [f"{layer}/{kind}" for layer in ("conv1", "conv2") for kind in ("kernel", "bias")]
    settings = {
        "vars_to_warm_start": [f"parity/{kind}" for kind in kinds] if freeze else ".*conv[12].*",
        "var_name_to_prev_var_name": {f"parity/{kind}": f"digits/{kind}" for kind in kinds},
    }
    theirs = tf.estimator.Estimator(
        program.parity_model_fn, str(tmp_path / "parity"), seeded, params={"freeze": freeze, "learning_rate": 0.0},
        warm_start_from=tf.estimator.WarmStartSettings(str(tmp_path / "base"), **settings),
    )  # fmt: skip
    theirs.train(program.numpy_input(x, y % 2, training=False), steps=1)
    data_of = made.model_inputs(made.numpy_input(x, y, training=False))
    # Adam makes much of gradients that are but rounding: with a small rate they do not move the convolutions.
    params = {"freeze": freeze, "learning_rate": 3e-3 if freeze else 1e-5}
    model = made.make_parity_model(data_of, params)
    start = keras_weights.WarmStartSettings(str(tmp_path / "base"), **settings)
    keras_weights.warm_start(model, start, scope="parity")
    ours = keras_weights.named_values(model, scope="parity")
    assert ours.keys() == {name for name in theirs.get_variable_names() if re.search(r"/(kernel|bias)$", name)}
    for kind in kinds:
        np.testing.assert_array_equal(ours[f"parity/{kind}"], theirs.get_variable_value(f"parity/{kind}"))
    # What the conversion of the first model saves is as good.
    digits = made.make_digit_model(data_of)
    assert keras_weights.restore(digits, str(tmp_path / "base"), scope="digits")
    found = digits.evaluate(made.numpy_input(x, y, training=False), return_dict=True, verbose=0)
    assert found["accuracy"] == pytest.approx(base.evaluate(inputs)["accuracy"], rel=1e-6)
    digits.save_weights(tmp_path / "keras" / "weights")
    other = made.make_parity_model(data_of, params)
    again = keras_weights.WarmStartSettings(str(tmp_path / "keras"), scope="digits", **settings)
    keras_weights.warm_start(other, again, scope="parity")
    for name, value in keras_weights.named_values(other, scope="parity").items():
        assert (value == ours[name]).all() == ("conv" in name or "bias" in name)
    found = assert_parity(
        estimator=tf.estimator.Estimator(program.parity_model_fn, params=params),
        model=model,
        input_fn=lambda: made.numpy_input(x, y % 2, training=False).repeat(),
        eval_input_fn=lambda: made.numpy_input(x, y % 2, training=False),
        mapping={name.replace("parity/", "parity_" if "conv" not in name else "", 1): name for name in ours},
        steps=10,
    )
    assert {"loss", "accuracy"} <= set(found.metrics.names) and len(found.steps) == 10


@pytest.mark.nightly
def test_further_metrics_and_exports(load, data, tmp_path):
    """Columns from TFRecords, a rate by a schedule, add_metrics with a metric of Keras, signatures of plain tensors."""
    program, made = load("churn_exporters")
    names = str(data / "churn" / "plans.txt")
    options = {"hidden_units": [8, 4], "activation_fn": tf.nn.elu}

    def records(module):
        columns = module.get_feature_columns(names)
        spec = tf.feature_column.make_parse_example_spec(program.get_feature_columns(names))
        spec[module.LABEL] = tf.io.FixedLenFeature([1], tf.int64)
        return columns, module.tfrecords_input_fn(str(data / "churn" / "eval-*"), spec, 40)

    step = tf.compat.v1.train.get_global_step
    estimator = tf.estimator.DNNClassifier(
        feature_columns=program.get_feature_columns(names),
        optimizer=lambda: tf.keras.optimizers.legacy.Adam(
            learning_rate=tf.compat.v1.train.cosine_decay(0.01, step(), 30)),
        **options,
    )  # fmt: skip
    estimator = tf.estimator.add_metrics(estimator, program.metric_fn)
    columns, batches = records(made)
    tf.keras.utils.set_random_seed(14)
    model = made.keras_canned.DNNClassifier(
        feature_columns=columns,
        optimizer=lambda: tf.keras.optimizers.legacy.Adam(
            learning_rate=tf.keras.optimizers.schedules.CosineDecay(0.01, 30)),
        **options,
    )  # fmt: skip
    found_metric = tf.keras.metrics.TruePositives(name="churners_found")
    model = made.keras_canned.add_metrics(model, made.metric_fn, {"churners_found": found_metric})
    model(next(iter(batches))[0])
    asked = {"plan": tf.constant(["basic", "x"]), "months": tf.constant([[3], [40]], tf.int64)}
    asked["fee"] = tf.constant([[20.0], [80.0]])
    logits = model({**asked, "services": tf.fill([2, 1], "")}).numpy()
    folders = [made.export_model(model, str(tmp_path / "keras"))]
    layers = {layer: f"dnn/{layer}" for layer in ("hiddenlayer_0", "hiddenlayer_1", "logits")}
    layer, weight = "plan_embedding", "embedding_weights"
    mapping = _named(model, layers)
    mapping |= {one.name[:-2]: f"dnn/input_from_feature_columns/input_layer/{layer}/{weight}"
                for one in model.weights if weight in one.name}  # fmt: skip
    found = assert_parity(
        estimator=estimator,
        model=model,
        input_fn=lambda: records(program)[1].repeat(),
        eval_input_fn=lambda: records(program)[1],
        mapping=mapping,
        steps=10,
    )
    assert {"churners_found", "auc", "average_loss"} <= set(found.metrics.names) and len(found.steps) == 10
    # What a model is asked by plain tensors has one signature in both.
    estimator.train(lambda: records(program)[1], steps=1)
    folders.append(estimator.export_saved_model(str(tmp_path), program.json_serving_input_fn))
    ours, theirs = (tf.saved_model.load(one.decode()).signatures for one in folders)
    assert set(theirs) == set(ours) == {"predict"}
    told = [signature["predict"](**asked) for signature in (ours, theirs)]
    shapes = [{key: (value.shape, value.dtype) for key, value in one.items()} for one in told]
    assert shapes[0] == shapes[1]
    np.testing.assert_allclose(told[0]["logits"], logits, rtol=1e-6)


WIDE = ["education", "marital_status", "relationship", "workclass", "occupation", "education_X_occupation"]
WIDE += ["age_bucketized", "age_bucketized_X_education_X_occupation"]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["wide", "deep", "wide_deep"])
def test_canned_classifiers(load, data, tmp_path, kind):
    """Every kind of feature column, an optimizer for each part, the canned Estimators' defaults."""
    program, made = load("census_wide_deep")
    tf.keras.utils.set_random_seed(5)
    model = made.build_estimator(str(tmp_path / "keras"), kind, made.build_model_columns)
    file = str(data / "census" / "adult.data")
    model(next(iter(program.input_fn(file, 1, False, 40)))[0])
    layers = {f"hiddenlayer_{i}": f"dnn/hiddenlayer_{i}" for i in range(4)} | {"logits": "dnn/logits"}
    layers |= {f"linear_model/{name}": f"linear/linear_model/{name}" for name in WIDE}
    embedding = "occupation_embedding/embedding_weights"
    inputs = "dnn/input_from_feature_columns/input_layer"
    names = _named(model, layers)
    for weight in (weight for layer in model.layers for weight in layer.weights):
        plain = weight.name.partition(":")[0]
        if plain.endswith("bias_weights"):
            names[plain] = "linear/linear_model/bias_weights"
        elif plain.endswith(embedding):
            names[plain] = f"{inputs}/{embedding}"
    found = assert_parity(
        estimator=program.build_estimator(str(tmp_path / "model"), kind, program.build_model_columns),
        model=model,
        input_fn=lambda: program.input_fn(file, 1, False, 40).repeat(),
        eval_input_fn=lambda: program.input_fn(str(data / "census" / "adult.test"), 1, False, 40),
        steps=20,
        mapping=names,
    )
    metrics = {"accuracy", "auc", "precision", "recall", "average_loss", "accuracy_baseline", "prediction/mean"}
    assert metrics <= set(found.metrics.names) and len(found.steps) == 20
    # Its weights go by the Estimator's names.
    assert set(model.named_values()) == set(names.values())


def _of_v1(name: str) -> str:
    """A variable of the Estimators of ads_v1_canned, by its name in Keras."""
    canned = name.startswith("canned_model/")
    plain = name.removeprefix("canned_model/").replace("feature_layer/", "input_layer/")
    scope = ("linear/" if canned else "wide/") if plain.startswith("linear_model/") else "dnn/" if canned else "deep/"
    if canned and plain.startswith("input_layer/"):
        scope += "input_from_feature_columns/"
    return scope + plain + ("/part_0" if canned else "")


def _named(model, layers: dict[str, str]) -> dict[str, str]:
    """The model's weights by the names of the Estimator's, by the names of their layers."""
    names = {}
    for weight in (weight for layer in model.layers for weight in layer.weights):
        plain = weight.name.partition(":")[0]
        for ours, theirs in layers.items():
            if f"/{ours}/" in f"/{plain}":
                names[plain] = f"{theirs}/{plain.split(f'{ours}/', 1)[1]}"
    return names
