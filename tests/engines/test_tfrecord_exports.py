"""Exports of jobs with TFRecord files by each engine: sparse features, defaults, images; damaged images."""

from __future__ import annotations

import json

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline import compat
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.inputs import tf_dataset as blocks
from estimator_pipeline.job import load_job
from tests.support.processes import KERAS3_PROCESS, ROOT

tf = compat.install()

LAYERS = """
import tensorflow as tf

class Bag(tf.keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(20, 3), name="table")

    def call(self, ids):
        return tf.nn.embedding_lookup_sparse(tf.convert_to_tensor(self.table), ids, None)

    def compute_output_shape(self, shape):
        return (shape[0], 3)

def layers(params):
    layers = tf.keras.layers
    ids = tf.keras.Input((None,), dtype="int64", sparse=True, name="ids")
    age = tf.keras.Input((), dtype="float32", name="age")
    image = tf.keras.Input((4, 4, 1), dtype="uint8", name="image")
    parts = [Bag()(ids), layers.Reshape((1,))(age), layers.Flatten()(layers.Rescaling(1 / 255)(image))]
    return tf.keras.Model([ids, age, image], layers.Dense(1)(layers.Concatenate()(parts)))
"""
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 4, 4, 1)).astype(np.uint8)


def serialized(number, *, age=True, image=None, label=True):
    example = tf.train.Example()
    feature = example.features.feature
    feature["ids"].int64_list.value.extend(range(1, 2 + number % 4))
    if age:
        feature["age"].float_list.value.append(number)
    feature["image"].bytes_list.value.append(tf.io.encode_png(PIXELS[number]).numpy() if image is None else image)
    if label:
        feature["label"].int64_list.value.append(number % 2)
    return example.SerializeToString()


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


@pytest.fixture
def job(tmp_path):
    (tmp_path / "own.py").write_text(LAYERS)
    records = write(tmp_path / "a.tfrecord", (serialized(number, age=number % 3 > 0) for number in range(16)))
    fields = {
        "model": {
            "function": f"{tmp_path}/own.py:layers",
            "loss": "binary_crossentropy",
            "export": {"signatures": ["predict", "classify"]},
        },
        "input": {
            "source": "tfrecord",
            "train": records,
            "eval": records,
            "features": {
                "ids": {"dtype": "int64", "kind": "varlen"},
                "age": {"dtype": "float32", "default": 40.0},
                "image": {"kind": "image", "shape": [4, 4, 1]},
                "label": {"dtype": "int64"},
            },
            "global_batch_size": 4,
        },
        "train": {"max_steps": 2},
        "eval": {"exporters": [{"kind": "final"}]},
        "run": {"model_dir": str(tmp_path / "model")},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(fields))
    return path


@pytest.fixture
def train(job, run_python):
    def train(engine, *settings):
        settings = [f"run.engine={engine}", *settings]
        if engine != "keras3":
            return run_job(load_job(job, overrides=settings), environ={}).to_dict()
        done = run_python([KERAS3_PROCESS, "jobs"], {"PYTHONPATH": str(ROOT)}, stdin=json.dumps([[str(job), settings]]))
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])[0]

    return train


ENGINES = ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3)]


@pytest.mark.parametrize("engine", ENGINES)
def test_records_as_they_are_and_tensors_by_name(engine, train):
    """A record without the feature has the default; ids are a list; an image is the bytes of its file."""
    result = train(engine)
    signatures = tf.saved_model.load(result["exporters"]["final"]).signatures
    records = [serialized(0, age=False, label=False), serialized(5), serialized(2)]
    scores = signatures["classification"](tf.constant(records))["scores"].numpy()
    ids = tf.sparse.from_dense([[1, 0, 0], [1, 2, 0], [1, 2, 3]])
    parts = {
        "ids_indices": ids.indices,
        "ids_values": tf.cast(ids.values, tf.int64),
        "ids_dense_shape": ids.dense_shape,
    }
    by_name = {**parts, "age": tf.constant([40.0, 5.0, 2.0]), "image": tf.constant(PIXELS[[0, 5, 2]])}
    for key in ("predict", "serving_default"):
        assert set(signatures[key].structured_input_signature[1]) == set(by_name)
        answered = signatures[key](**by_name)["probabilities"].numpy()
        np.testing.assert_allclose(answered, scores, rtol=1e-5)
    assert len(np.unique(scores[:, 1])) == 3


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_a_sparse_feature_of_a_dense_input(engine, job, train, tmp_path):
    """Keras 2 fails in a layer that computes a mask."""
    bag = "layers.GlobalAveragePooling1D()(layers.Embedding(20, 2, mask_zero=True)(ids))"
    dense = f"    return tf.keras.Model({{'ids': ids}}, layers.Dense(1)({bag}))\n"
    text = LAYERS.replace(" sparse=True,", "")
    (tmp_path / "own.py").write_text(text[: text.index("    age = ")] + dense)
    for features_key in ("ids", "[ids]"):
        with pytest.raises(ConfigError) as raised:
            train(engine, f"input.features_key={features_key}")
        assert raised.value.code == "model/features-mismatch" and "sparse=True" in raised.value.hint


def test_examples_are_decoded_and_scaled_as_in_training(tmp_path):
    """Images of any size, arrays as bytes and sparse numbers; the labels are not needed."""
    pixels = np.arange(240, dtype=np.uint8).reshape(8, 10, 3)
    example = tf.train.Example()
    feature = example.features.feature
    feature["image"].bytes_list.value.append(tf.io.encode_png(pixels).numpy())
    feature["array"].bytes_list.value.append(np.array([1, 2], np.int16).tobytes())
    feature["prices"].float_list.value.extend([3.0, 4.0])
    wanted = example.SerializeToString()
    feature["label"].int64_list.value.append(1)
    data = ep.inputs.from_tfrecord(
        write(tmp_path / "a.tfrecord", [example.SerializeToString()]),
        features={
            "image": "image uint8[4,5,3] resize",
            "array": "raw int16[2]",
            "prices": "varlen float32",
            "label": "int64",
        },
        scale=0.5,
        global_batch_size=1,
        environ={"HOME": str(tmp_path)},
    )
    trained, _ = next(iter(data.train_input_fn()))
    served = data.parse_examples(tf.constant([wanted]))
    assert data.serving_spec.keys() == served.keys() == trained.keys()
    for name, value in served.items():
        assert value.dtype == data.serving_spec[name].dtype == trained[name].dtype == tf.float32
        dense = [tf.sparse.to_dense(each) if name == "prices" else each for each in (value, trained[name])]
        np.testing.assert_array_equal(*dense)
    resized = tf.round(tf.image.resize(pixels, (4, 5)))
    np.testing.assert_array_equal(served["image"][0], resized / 2)
    assert tf.sparse.to_dense(served["prices"]).numpy().tolist() == [[1.5, 2.0]]


@pytest.mark.parametrize("limit", [0, 2**30])
@pytest.mark.parametrize(("kind", "reason"), [("damaged", "PNG"), ("other size", "[2,4,1] is not compatible")])
def test_an_image_that_does_not_match_is_named(limit, kind, reason, tmp_path):
    """In memory, and while it is read; with `resize` an image may have any size."""
    image = b"\x89PNG\r\n\x1a\n, broken" if kind == "damaged" else tf.io.encode_png(PIXELS[0][:2]).numpy()
    records = [serialized(number, image=image if number == 11 else None) for number in range(16)]
    data = ep.inputs.from_tfrecord(
        write(tmp_path / "a.tfrecord", records),
        features={"image": "image uint8[4,4,1]", "label": "int64"},
        global_batch_size=4,
        memory_limit=limit,
        environ={"HOME": str(tmp_path)},
    )
    with pytest.raises(tf.errors.OpError) as raised:
        for _ in data.train_input_fn().take(4):
            pass
    error = blocks.explained(raised.value)
    assert isinstance(error, InputError) and error.code == "data/bad-record"
    assert "a.tfrecord, record 11: " in error.found and reason in error.found


def test_runs_of_earlier_versions_resume(job):
    """Their identity has the fields of each feature that there were."""
    features = load_job(job).input.model_dump(mode="json")["features"]
    assert features["age"] == {"dtype": "float32", "shape": [], "default": 40.0, "kind": "fixed"}
    changed = load_job(job, overrides=["input.features.image.resize=true"])
    assert changed.input.model_dump(mode="json")["features"]["image"]["resize"] is True
