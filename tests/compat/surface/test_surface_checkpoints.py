"""Checkpoints of other versions: those of 2.15 (recorded), those of TensorFlow 1 (made here), and what we write.

python tests/compat/surface/test_surface_checkpoints.py      (with TensorFlow 2.15) records anew
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile

import numpy as np
import pytest

from tests.support.surface_models import X, Y, input_fn, linear, tf, weights_by_step

v1 = tf.compat.v1
FOLDER = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", "..", "records", "checkpoints"))
STEPS = 3
CLASSES = np.array([0, 2, 1, 0])
# Other releases of TensorFlow sum in another order.
close = {"rtol": 1e-4, "atol": 1e-6}


def keras_layers_fn(features, labels, mode):
    """A model_fn of Keras layers, with an optimizer that has slots and a layer that has averages."""
    training = mode == tf.estimator.ModeKeys.TRAIN
    layers = [tf.keras.layers.Dense(3, "tanh", name="hidden"), tf.keras.layers.BatchNormalization(momentum=0.5)]
    model = tf.keras.Sequential([tf.keras.Input((2,)), *layers, tf.keras.layers.Dense(1, name="out")])
    answer = model(features["x"], training=training)[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"y": answer})
    loss = tf.reduce_mean(tf.square(answer - labels))
    optimizer = tf.keras.optimizers.legacy.Adam(0.05)
    optimizer.iterations = v1.train.get_or_create_global_step()
    step = optimizer.get_updates(loss, model.trainable_variables)[0]
    averages = model.get_updates_for(None) + model.get_updates_for(features["x"])
    return tf.estimator.EstimatorSpec(mode, {"y": answer}, loss, tf.group(step, *averages))


def keras_layers(model_dir):
    config = tf.estimator.RunConfig(tf_random_seed=5)
    return tf.estimator.Estimator(keras_layers_fn, model_dir, config)


def dnn_classifier(model_dir):
    column = tf.feature_column.categorical_column_with_vocabulary_list("word", ["apple", "fig", "plum"])
    columns = [tf.feature_column.numeric_column("x", shape=[2]), tf.feature_column.embedding_column(column, 2)]
    config = tf.estimator.RunConfig(tf_random_seed=5)
    return tf.estimator.DNNClassifier([4, 3], columns, model_dir, 3, optimizer="Adam", batch_norm=True, config=config)


def data():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(4).repeat()


def words():
    features = {"x": X, "word": np.array(["apple", "fig", "plum", "fig"])[:, None]}
    return tf.data.Dataset.from_tensor_slices((features, CLASSES)).batch(4).repeat()


MODELS = {"keras_layers": (keras_layers, data, "y"), "dnn_classifier": (dnn_classifier, words, "probabilities")}


def observed(estimator, source, key):
    """What a version says of the checkpoint in the model's folder, and of the one after three more steps."""
    found = {}
    for when in ("now", "later"):
        if when == "later":
            estimator.train(source, steps=STEPS)
        result = estimator.evaluate(source, steps=1)
        rows = estimator.predict(lambda: source().take(1))
        found[when] = {
            "global_step": int(result["global_step"]),
            "loss": float(result["loss"]),
            "predictions": [np.ravel(row[key]).tolist() for row in rows],
        }
    found["variables"] = {name: estimator.get_variable_value(name).shape for name in estimator.get_variable_names()}
    return found


def record():
    """Trains each model and keeps its checkpoint and what this version says of it."""
    found = {"tensorflow": tf.__version__}
    for name, (make, source, key) in MODELS.items():
        kept = os.path.join(FOLDER, name)
        shutil.rmtree(kept, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            tf.keras.utils.set_random_seed(5)
            make(folder).train(source, steps=STEPS)
            keep = [f"model.ckpt-{STEPS}.index", f"model.ckpt-{STEPS}.data-00000-of-00001", "checkpoint"]
            os.makedirs(kept)
            for file in keep:
                shutil.copy(os.path.join(folder, file), kept)
            found[name] = observed(make(folder), source, key)
    with open(os.path.join(FOLDER, "observed.json"), "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


@pytest.fixture(scope="module")
def recorded():
    with open(os.path.join(FOLDER, "observed.json")) as file:
        return json.load(file)


@pytest.mark.gate("dnn_classifier")
@pytest.mark.symbols("tf.estimator.Estimator", "tf.estimator.DNNClassifier")
@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_of_2_15_goes_on_as_on_2_15(tmp_path, recorded, name):
    """It evaluates and predicts as it did there, and so it does after three more steps: slots and averages are read."""
    assert recorded["tensorflow"].startswith("2.15.")
    make, source, key = MODELS[name]
    folder = shutil.copytree(os.path.join(FOLDER, name), tmp_path / "model")
    found, expected = observed(make(str(folder)), source, key), recorded[name]
    for when, step in (("now", STEPS), ("later", 2 * STEPS)):
        assert found[when]["global_step"] == expected[when]["global_step"] == step
        np.testing.assert_allclose(found[when]["loss"], expected[when]["loss"], **close)
        np.testing.assert_allclose(found[when]["predictions"], expected[when]["predictions"], **close)
    assert not np.allclose(expected["now"]["predictions"], expected["later"]["predictions"], atol=1e-3)


@pytest.mark.gate("keras_layers")
@pytest.mark.symbols("tf.estimator.Estimator", "tf.estimator.DNNClassifier")
@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_has_the_names_and_shapes_of_2_15(tmp_path, recorded, name):
    make, source, _ = MODELS[name]
    make(str(tmp_path)).train(source, steps=1)
    found = dict(tf.train.list_variables(str(tmp_path)))
    assert found == recorded[name]["variables"]
    assert len(found) > 10


# TensorFlow 1 ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param("V1", marks=pytest.mark.nightly), "V2"])
def old(request, tmp_path):
    """A folder with a checkpoint as TensorFlow 1 wrote it: variables by reference, no object graph."""
    folder = tmp_path / "old"
    folder.mkdir()
    with tf.Graph().as_default(), v1.Session() as session:
        options = {"use_resource": False}
        v1.get_variable("w", initializer=tf.constant([0.5, -1.0]), **options)
        # The first format cannot give out a variable that was saved in parts.
        parts = v1.fixed_size_partitioner(2) if request.param == "V2" else None
        v1.get_variable("table", [4, 2], initializer=v1.ones_initializer(), partitioner=parts, **options)
        v1.get_variable("global_step", initializer=tf.constant(7, tf.int64), trainable=False, **options)
        assert {v.op.type for v in v1.global_variables()} == {"VariableV2"}
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(write_version=getattr(v1.train.SaverDef, request.param))
        path = saver.save(session, str(folder / "model.ckpt"), global_step=7)
    assert os.path.exists(f"{path}.index") == (request.param == "V2")
    names = {name for name, _ in tf.train.list_variables(path)}
    assert names == {"w", "table", "global_step"}
    return str(folder)


@pytest.mark.symbols("tf.estimator.Estimator", "tf.compat.v1.estimator.Estimator")
@pytest.mark.parametrize("family", ["tf.estimator", "tf.compat.v1.estimator"])
def test_values_of_a_checkpoint_of_tensorflow_1(old, family):
    estimator = linear(old, v1=family != "tf.estimator")
    assert set(estimator.get_variable_names()) == {"w", "table", "global_step"}
    np.testing.assert_array_equal(estimator.get_variable_value("w"), [0.5, -1.0])
    np.testing.assert_array_equal(estimator.get_variable_value("table"), np.ones((4, 2)))
    assert estimator.latest_checkpoint() == os.path.join(old, "model.ckpt-7")


@pytest.mark.symbols("tf.estimator.Estimator")
def test_a_training_of_tensorflow_1_goes_on(old):
    estimator = linear(old).train(input_fn, steps=2)
    assert estimator.get_variable_value("global_step") == 9
    np.testing.assert_allclose(estimator.get_variable_value("w"), weights_by_step(2, [0.5, -1.0])[2], rtol=1e-5)


@pytest.mark.symbols("tf.estimator.Estimator", "tf.estimator.WarmStartSettings")
@pytest.mark.parametrize("named", [False, True])
def test_warm_start_from_a_checkpoint_of_tensorflow_1(old, tmp_path, named):
    start = tf.estimator.WarmStartSettings(old, "w") if named else old
    estimator = linear(tmp_path / "new", warm_start_from=start).train(input_fn, steps=2)
    assert estimator.get_variable_value("global_step") == 2
    np.testing.assert_allclose(estimator.get_variable_value("w"), weights_by_step(2, [0.5, -1.0])[2], rtol=1e-5)


@pytest.mark.symbols("tf.estimator.Estimator", "tf.estimator.EstimatorSpec")
def test_init_from_checkpoint_in_a_model_fn(old, tmp_path):
    def extra(**_):
        v1.train.init_from_checkpoint(old, {"w": "w"})
        return {}

    estimator = linear(tmp_path / "new", extra=extra).train(input_fn, steps=1)
    assert estimator.get_variable_value("global_step") == 1
    np.testing.assert_allclose(estimator.get_variable_value("w"), weights_by_step(1, [0.5, -1.0])[1], rtol=1e-5)


if __name__ == "__main__":
    record()
    sys.exit(0)
