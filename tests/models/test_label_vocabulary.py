"""Labels that are text: the canned heads' numbers and names, the same from Keras, and what cannot be."""

from __future__ import annotations

import json

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.models.test_keras_model import ROWS, WIDTH, layers, mirrored
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

NAMES = {
    "sparse_categorical_crossentropy": ["wolf", "lamb", "cabbage"],
    "binary_crossentropy": ["no", "yes"],
}


def records(loss):
    random = np.random.default_rng(11)
    features = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    return features, np.array(NAMES[loss])[random.integers(len(NAMES[loss]), size=ROWS)]


def dataset(loss, batch=6):
    return tf.data.Dataset.from_tensor_slices(records(loss)).batch(batch)


def options_of(loss):
    names = NAMES[loss]
    return {
        "loss": loss,
        "label_vocabulary": names,
        "class_weights": {names[1]: 3.0},
        "params": {"units": 1 if len(names) == 2 else len(names)},
        "optimizer": {"name": "momentum", "learning_rate": 0.1},
    }


@pytest.mark.nightly
@pytest.mark.parametrize("loss", NAMES)
def test_the_canned_heads_numbers_and_names_and_keras(loss, tmp_path):
    """Trained on one replica and on two, evaluated, predicted and served by name; Keras comes to the same weights."""
    options, names = options_of(loss), NAMES[loss]
    features, labels = records(loss)
    kernels, found = [], []
    for replicas in (1, 2):
        strategy = mirrored(replicas) if replicas > 1 else None
        config = tf.estimator.RunConfig(str(tmp_path / str(replicas)), tf_random_seed=1, train_distribute=strategy)
        estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options), config=config)
        estimator.train(lambda batch=6 // replicas: dataset(loss, batch), steps=4)
        kernels.append(estimator.get_variable_value("dense/kernel"))
        found.append(estimator.evaluate(lambda: dataset(loss)))
    np.testing.assert_allclose(*kernels, rtol=0, atol=1e-6)
    predicted = list(estimator.predict(lambda: tf.data.Dataset.from_tensors(features)))
    classes = [one["classes"][0].decode() for one in predicted]
    assert classes == [names[one["class_ids"][0]] for one in predicted] and len(set(classes)) > 1
    logits = tf.constant([one["logits"] for one in predicted])
    if loss == "binary_crossentropy":
        canned = tf.estimator.BinaryClassHead(label_vocabulary=names)
    else:
        canned = tf.estimator.MultiClassHead(3, label_vocabulary=names)
    np.testing.assert_array_equal(canned.predictions(logits)["classes"], [one["classes"] for one in predicted])
    assert found[0]["accuracy"] == pytest.approx(_weighted_accuracy(classes, labels, names), rel=1e-5)
    plain = tf.estimator.Estimator(
        ep.build_model_fn(layers, **{**options, "class_weights": None}), model_dir=estimator.model_dir
    )
    theirs = canned.update_metrics(canned.metrics(), {}, logits, tf.constant(labels[:, None]))
    for name in ("average_loss", "accuracy"):
        ours = plain.evaluate(lambda: dataset(loss))[name]
        assert ours == pytest.approx(float(theirs[name].result()), rel=1e-5)

    model = ep.build_keras_model(layers, **options)
    given = {key: options[key] for key in ("loss", "label_vocabulary", "class_weights")}
    model.fit(ep.keras_batches(dataset(loss), **given), verbose=0)
    np.testing.assert_allclose(model.layers[-1].kernel, kernels[0], rtol=0, atol=1e-6)
    ours = model.evaluate(ep.keras_batches(dataset(loss), **given), return_dict=True, verbose=0)
    for name in ("average_loss", "accuracy"):
        assert ours[name] == pytest.approx(float(found[0][name]), rel=1e-5), name

    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.constant(features)})
    served = ep.build_model_fn(_named, **options)
    estimator = tf.estimator.Estimator(served, model_dir=str(tmp_path / "served"))
    estimator.train(lambda: dataset(loss).map(lambda x, y: ({"x": x}, y)), steps=1)
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export"), receiver).decode())
    answer = loaded.signatures["predict"](x=tf.constant(features))["classes"].numpy()
    assert {name for (name,) in answer} <= {name.encode() for name in names}


def _named(params):
    given = tf.keras.Input([WIDTH], name="x")
    return tf.keras.Model({"x": given}, tf.keras.layers.Dense(params["units"])(given))


def _weighted_accuracy(classes, labels, names):
    weights = np.where(labels == names[1], 3.0, 1.0)
    return (weights * (np.array(classes) == labels)).sum() / weights.sum()


@pytest.mark.nightly
def test_a_job_of_both_engines(tmp_path):
    """Text in a CSV file; what both exports call the classes."""
    random = np.random.default_rng(3)
    rows = ["a,b,kind"]
    rows += [f"{a:.3f},{b:.3f},{'big' if a + b > 1 else 'small'}" for a, b in random.random((96, 2))]
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "own.py").write_text(
        "import tensorflow as tf\n\ndef layers():\n"
        "    inputs = {name: tf.keras.Input([], name=name) for name in ('a', 'b')}\n"
        "    both = tf.stack([inputs['a'], inputs['b']], axis=1)\n"
        "    return tf.keras.Model(inputs, tf.keras.layers.Dense(2, kernel_initializer='zeros')(both))\n"
    )
    job = {
        "model": {
            "function": f"{tmp_path}/own.py:layers", "loss": "sparse_categorical_crossentropy",
            "label_vocabulary": ["small", "big"], "class_weights": {"big": 2.0}, "metrics": ["accuracy"],
            "optimizer": {"learning_rate": 0.5}, "export": {"signatures": ["predict", "classify"]},
        },
        "input": {
            "source": "csv", "train": str(tmp_path / "data.csv"), "eval": str(tmp_path / "data.csv"),
            "columns": {"a": "float32", "b": "float32", "kind": "string"}, "label_key": "kind", "global_batch_size": 32,
        },
        "train": {"max_steps": 60},
        "eval": {"exporters": [{"kind": "final"}]},
        "run": {"model_dir": "m"},
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    found = []
    for engine in ("estimator", "keras"):
        settings = [f"run.engine={engine}", f"run.model_dir={tmp_path / engine}"]
        found.append(run_job(load_job(str(tmp_path / "job.yaml"), overrides=settings), environ={}))
    theirs, ours = (one.metrics for one in found)
    for name in ("average_loss", "accuracy"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
    assert ours["accuracy"] > 0.8
    values = {"a": 0.9, "b": 0.8}
    feature = {n: tf.train.Feature(float_list=tf.train.FloatList(value=[v])) for n, v in values.items()}
    record = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    for result in found:
        signatures = tf.saved_model.load(result.exporters["final"]).signatures
        assert signatures["classification"](inputs=tf.constant([record]))["classes"].numpy().tolist() == [
            [b"small", b"big"]
        ]
        tensors = {name: tf.constant([value]) for name, value in values.items()}
        assert signatures["predict"](**tensors)["classes"].numpy().tolist() == [[b"big"]]


def test_a_label_that_is_not_known_is_named(tmp_path):
    loss = "binary_crossentropy"
    features, labels = records(loss)
    labels = np.where(np.arange(ROWS) == 7, "maybe", labels)
    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options_of(loss)), model_dir=str(tmp_path))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not one of label_vocabulary[^$]*maybe"):
        estimator.train(lambda: tf.data.Dataset.from_tensors((features, labels)))
    given = {"loss": loss, "label_vocabulary": NAMES[loss]}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not one of label_vocabulary[^$]*maybe"):
        list(ep.keras_batches(tf.data.Dataset.from_tensors((features, labels)), **given))


def test_text_without_a_vocabulary(tmp_path):
    loss = "binary_crossentropy"
    fn = ep.build_model_fn(layers, loss=loss, params={"units": 1})
    with pytest.raises(ConfigError, match="the labels are text, and the loss 'binary_crossentropy' takes numbers"):
        tf.estimator.Estimator(fn, model_dir=str(tmp_path)).train(lambda: dataset(loss))


def test_names_for_classes_by_number(tmp_path):
    """A vocabulary names the classes of heads whose labels are numbers, too."""
    features, labels = records("binary_crossentropy")
    numbers = (labels == "yes").astype(np.int64)
    for loss, head, given in (
        ("binary_crossentropy", None, numbers),
        ("binary_crossentropy", "multi_label", np.stack([numbers, 1 - numbers], 1)),
        ("categorical_crossentropy", None, np.eye(2, dtype=np.float32)[numbers]),
    ):
        units = {"units": 1 if given.ndim == 1 else 2}
        fn = ep.build_model_fn(layers, loss=loss, head=head, label_vocabulary=["no", "yes"], params=units)
        estimator = tf.estimator.Estimator(fn, model_dir=str(tmp_path / f"{loss}-{head}"))
        estimator.train(lambda given=given: tf.data.Dataset.from_tensors((features, given)))
        (first, *_) = estimator.predict(lambda: tf.data.Dataset.from_tensors(features))
        assert set(first["classes"].tolist()) <= {b"no", b"yes"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label_vocabulary": "abc"}, "label_vocabulary is 'abc'"),
        ({"label_vocabulary": ["a"]}, "two or more"),
        ({"label_vocabulary": ["a", "a", "b"]}, "two or more distinct"),
        ({"label_vocabulary": ["a", 3]}, "label_vocabulary is"),
        ({"label_vocabulary": ["a", "b"], "loss": "mse"}, "with the head 'regression' there are no classes to name"),
        ({"label_vocabulary": ["a", "b"], "loss": lambda y, x: x}, "a custom loss function without a head"),
    ],
)
@pytest.mark.parametrize("build", [ep.build_keras_model, ep.build_model_fn])
def test_a_vocabulary_that_cannot_be(build, options, words):
    with pytest.raises(ConfigError, match=words):
        build(layers, **{"loss": "sparse_categorical_crossentropy", **options}, params={"units": 3})


def test_a_vocabulary_of_another_size(tmp_path):
    loss = "sparse_categorical_crossentropy"
    options = {**options_of(loss), "params": {"units": 4}, "class_weights": None}
    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, **options), model_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="label_vocabulary has 3 names, and the model has 4 classes"):
        estimator.train(lambda: dataset(loss))
    with pytest.raises(ConfigError, match="label_vocabulary has 3 names, and the model has 4 classes"):
        ep.build_keras_model(layers, **options)
