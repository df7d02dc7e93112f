"""Keras' preprocessing layers in layers of a job: adapted in an Estimator's graph, and exported by each engine."""

from __future__ import annotations

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.errors import ConfigError
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
keras = tf.keras

WORDS = ["red", "blue", "red", "green blue", "blue"]
NUMBERS = np.array([[1.0, 10.0], [2.0, 30.0], [6.0, 20.0]], np.float32)


def adapted(layer, data):
    layer.adapt(data)
    return layer


def text(output_mode="int", **options):
    layer = adapted(keras.layers.TextVectorization(output_mode=output_mode, **options), WORDS)
    return lambda x: tf.cast(layer(x), tf.float32)


def embedded(layer):
    """The size of the embedding is that of the vocabulary."""
    assert layer.vocabulary_size() == len(layer.get_vocabulary()) == 5
    embedding = keras.layers.Embedding(layer.vocabulary_size(), 3, embeddings_initializer="ones")
    return lambda x: keras.layers.Flatten()(embedding(layer(x)))


def as_float(layer):
    return lambda x: tf.cast(layer(x), tf.float32)


# Layers of a model, its input.
CASES = {
    "StringLookup": (lambda: as_float(adapted(keras.layers.StringLookup(), WORDS)), ["blue", "none", "red"]),
    "of a dataset": (
        lambda: as_float(adapted(keras.layers.StringLookup(), tf.data.Dataset.from_tensor_slices(WORDS).batch(2))),
        ["blue", "none", "red"],
    ),
    "a vocabulary": (lambda: embedded(keras.layers.StringLookup(vocabulary=["a", "b", "c", "d"])), ["a", "x"]),
    "IntegerLookup": (lambda: as_float(adapted(keras.layers.IntegerLookup(), [7, 9, 9])), [9, 8, 7]),
    "TextVectorization": (lambda: text(output_sequence_length=3), ["red blue", "green"]),
    "counts": (lambda: text("count", max_tokens=9, pad_to_max_tokens=True), ["red blue", "green x"]),
    "Normalization": (lambda: adapted(keras.layers.Normalization(), NUMBERS), NUMBERS),
    "Discretization": (lambda: as_float(adapted(keras.layers.Discretization(num_bins=3), NUMBERS)), NUMBERS),
}


@pytest.mark.parametrize("case", CASES)
def test_an_estimator_adapts_as_keras_does(case, tmp_path):
    """The same answers, on two replicas, and from a checkpoint of a later process."""
    make, values = CASES[case]
    values = np.array(values)
    dtype = "string" if values.dtype.kind == "U" else values.dtype.name

    def layers():
        x = keras.Input(values.shape[1:], dtype=dtype)
        y = make()(x)
        y = y[:, None] if len(y.shape) == 1 else y
        return keras.Model(x, keras.layers.Dense(1, kernel_initializer="ones")(y))

    options = {"loss": "mean_squared_error", "optimizer": {"learning_rate": 1e-9}}
    wanted = ep.build_keras_model(layers, **options)(tf.constant(values)).numpy()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    config = tf.estimator.RunConfig(str(tmp_path), train_distribute=strategy)
    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options), config=config)
    records = tf.data.Dataset.from_tensors
    estimator.train(lambda: records((values, np.zeros(len(values), np.float32))).repeat(), steps=1)
    answers = [answer["predictions"] for answer in estimator.predict(lambda: tf.data.Dataset.from_tensors(values))]
    np.testing.assert_allclose(answers, wanted, rtol=1e-5, atol=1e-6)


def test_weights_of_words_are_refused(tmp_path):
    def layers():
        x = keras.Input((), dtype="string")
        return keras.Model(x, keras.layers.Dense(1)(text("tf_idf")(x)))

    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, loss="mean_squared_error"), model_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="TextVectorization with output_mode='tf_idf' cannot be adapted in the graph"):
        estimator.train(lambda: tf.data.Dataset.from_tensors((np.array(["a"]), np.zeros(1, np.float32))), steps=1)


def test_a_layer_that_is_not_always_created_is_refused(tmp_path):
    def layers():
        x = keras.Input((), dtype="string")
        layer = None if tf.executing_eagerly() else keras.layers.StringLookup(vocabulary=["a"])
        if layer is None:
            return keras.Model(x, x)
        return keras.Model(x, keras.layers.Embedding(layer.vocabulary_size(), 1)(layer(x)))

    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, loss="mean_squared_error"), model_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"StringLookup.vocabulary_size is called in a graph"):
        estimator.train(lambda: tf.data.Dataset.from_tensors((np.array(["a"]), np.zeros(1, np.float32))), steps=1)


ANSWER = """
import glob, sys
import tensorflow as tf
(export,) = glob.glob(sys.argv[1] + "/export/final/*")
model = tf.saved_model.load(export)
print(model.signatures["serving_default"](text=tf.constant(["good", "bad"]))["logits"].numpy().ravel().tolist())
"""


@pytest.mark.gate("keras")
@pytest.mark.parametrize(
    "engine", ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3)]
)  # fmt: skip
def test_an_export_has_the_lookup_tables(tmp_path, run_python, engine):
    """Also that of a vocabulary in a file, without the file."""
    (tmp_path / "vocabulary.txt").write_text("good\nfine\n")
    (tmp_path / "t.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 20)
    (tmp_path / "net.py").write_text(
        "from estimator_pipeline import compat\n"
        "keras = compat.install().keras\n"
        "def layers():\n"
        "    x = keras.Input((), dtype='string', name='text')\n"
        "    ids = keras.layers.TextVectorization(output_sequence_length=1, vocabulary='vocabulary.txt')(x)\n"
        "    lookup = keras.layers.StringLookup(vocabulary=['bad'])\n"
        "    sizes = lookup.vocabulary_size()\n"
        "    both = [keras.layers.Embedding(9, 1)(ids), keras.layers.Embedding(sizes, 1)(lookup(x)[:, None])]\n"
        "    return keras.Model(x, keras.layers.Flatten()(keras.layers.Add()(both)))\n"
    )
    (tmp_path / "job.yaml").write_text(
        "model: {function: 'net.py:layers', loss: binary_crossentropy, optimizer: {learning_rate: 1.0}}\n"
        "input: {source: csv, train: t.csv, eval: t.csv, columns: {text: string, label: int64}, features_key: text,\n"
        "  global_batch_size: 10}\n"
        "train: {max_steps: 20}\neval: {exporters: [{kind: final}]}\n"
        f"run: {{model_dir: model, engine: {engine}}}\n"
    )
    done = run_python(["-m", "estimator_pipeline", "train", "job.yaml"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "vocabulary.txt").unlink()
    done = run_python(["-c", ANSWER, tmp_path / "model"], cwd=tmp_path)
    good, bad = map(float, done.stdout.splitlines()[-1].strip("[]").split(","))
    assert good > 0.5 and bad < -0.5, done.stdout
