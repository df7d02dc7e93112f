"""What a job's model takes from its data, and what does not fit them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import yaml

import model_fns
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
INPUT_FN = """
import numpy as np
import tensorflow as tf

def images(input_context=None):
    return tf.data.Dataset.from_tensor_slices((np.zeros([8, 5, 4, 3], np.float32), np.zeros([8], np.int64))).batch(4)
"""


@pytest.fixture
def job(tmp_path, digits_dir):
    """`job(input={}, model={}, run={})`: on images of 6 by 5 pixels and 2 channels unless `input` says otherwise."""
    rng = np.random.default_rng(1)
    for name, count in (("train", 24), ("test", 8)):
        images = rng.random((count, 6, 5, 2), dtype=np.float32)
        np.savez(tmp_path / f"{name}.npz", image=images, label=np.arange(count) % 4)
    npz = {"source": "arrays", "train": f"{tmp_path}/train.npz", "eval": f"{tmp_path}/test.npz"}
    tfds = {"source": "tfds", "name": "digits", "data_dir": str(digits_dir)}

    def make(input=npz, model=(), run=()):
        document = {
            "model": {"name": "cnn", **dict(model)},
            "input": {"global_batch_size": 4, **(tfds if input == "digits" else input)},
            "train": {"max_steps": 2},
            "eval": {"during_training": False},
            "run": {"model_dir": str(tmp_path / "model"), **dict(run)},
        }
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(document))
        return load_job(path)

    return make


def params_of(job):
    return BuiltJob(job).model_params


@pytest.mark.gate("cnn-estimator", "dnn-keras", "linear-estimator", "resnet-keras")
@pytest.mark.parametrize("engine", ["estimator", "keras"])
@pytest.mark.parametrize("name", ["cnn", "dnn", "linear", "resnet"])
def test_a_model_is_of_the_shape_of_its_data(job, engine, name):
    loaded = job(model={"name": name}, run={"engine": engine})
    result = run_job(loaded, environ={})
    assert result.global_step == 2 and np.isfinite(result.metrics["loss"])


@pytest.mark.parametrize("name", ["cnn", "dnn", "resnet", "wide_deep"])
def test_the_activation_of_a_model(name):
    """By Keras's name for it, in all layers that have one; ReLU where nothing is said."""
    more = {"numeric": ["age"], "categorical": {"work": 4}} if name == "wide_deep" else {}

    def activations(**params):
        layers = model_fns.keras_model(name, **more, **params).layers
        found = {one.activation.__name__ for one in layers if hasattr(one, "activation")}
        return found - {"linear"}

    assert activations() == {"relu"} and activations(activation="softplus") == {"softplus"}


def test_the_number_of_classes_is_that_of_the_data_sets_label(job):
    assert params_of(job("digits")) == {"input_shape": (8, 8, 1), "classes": 10}
    assert params_of(job("digits", {"params": {"classes": 12, "filters": 4}})) == {
        "input_shape": (8, 8, 1),
        "classes": 12,
        "filters": 4,
    }
    # Outputs of another loss are no classes; and arrays do not say how many there are.
    assert params_of(job("digits", {"name": "linear", "loss": "mse"})) == {"input_shape": (8, 8, 1)}
    assert params_of(job()) == {"input_shape": (6, 5, 2)}


def test_what_an_own_input_function_gives_is_not_known(job, tmp_path):
    (tmp_path / "own_images.py").write_text(INPUT_FN)
    own = f"{tmp_path}/own_images.py:images"
    loaded = job({"source": "function", "train": own, "eval": own}, {"params": {"input_shape": [5, 4, 3]}})
    assert params_of(loaded) == {"input_shape": [5, 4, 3]}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"input_shape": [28, 28, 1]}, r"input_shape \[28, 28, 1\] of the model 'cnn'.*\n.*shape \[8, 8, 1\]"),
        ({"input_shape": 64}, "input_shape 64 of the model 'cnn' is not a shape"),
        ({"input_shape": [8, "8", 1]}, r"input_shape \[8, '8', 1\] of the model 'cnn' is not a shape"),
        ({"classes": 9}, r"'cnn' has 9 classes.*\n.*labels from 0 to 9"),
        ({"classes": [10]}, r"classes \[10\] of the model 'cnn' is not a number of classes"),
    ],
)
def test_params_that_do_not_fit_the_data_are_refused(job, params, message):
    with pytest.raises(ConfigError, match=message):
        params_of(job("digits", {"params": params}))


def test_a_last_axis_of_one_may_be_left_out():
    given = {"input_shape": [8, 8]}
    assert model_fns.for_data("dnn", given, shapes={"image": [8, 8, 1]}, classes=10) == {
        "input_shape": [8, 8],
        "classes": 10,
    }


def test_records_of_no_fixed_shape_are_refused():
    with pytest.raises(ConfigError, match=re.escape("records of the shape [?, ?, 3]")):
        model_fns.for_data("resnet", {}, shapes={"image": [None, None, 3]})


@pytest.mark.parametrize("name", ["linear", "dnn"])
def test_a_feature_that_is_one_number(job, tmp_path, name):
    (tmp_path / "rows.csv").write_text("a,label\n" + "1,2\n" * 8)
    csv = {
        "source": "csv",
        "train": f"{tmp_path}/rows.csv",
        "eval": f"{tmp_path}/rows.csv",
        "columns": {"a": "float32", "label": "float32"},
        "features_key": "a",
    }
    loaded = job(csv, {"name": name, "loss": "mse", "params": {"classes": 1}})
    assert params_of(loaded) == {"input_shape": (), "classes": 1}
    assert run_job(loaded, environ={}).global_step == 2


def test_several_features_are_refused(job, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,label\n" + "1,2,0\n" * 8)
    csv = {
        "source": "csv",
        "train": f"{tmp_path}/rows.csv",
        "eval": f"{tmp_path}/rows.csv",
        "columns": {"a": "float32", "b": "float32", "label": "int64"},
    }
    with pytest.raises(ConfigError, match=r"'linear' takes one tensor.*\n.*found: a, b\n.*features_key"):
        params_of(job(csv, {"name": "linear"}))


def test_columns_that_the_data_do_not_give_are_refused(job, tmp_path):
    columns = {"numeric": ["a"], "categorical": {"b": 3}}
    with pytest.raises(ConfigError, match=r"the data do not have: a, b .*\n.*of the data: image"):
        params_of(job("digits", {"name": "wide_deep", "params": columns}))
    shapes = {"a": [], "b": [1], "c": [7]}
    assert model_fns.for_data("wide_deep", columns, shapes=shapes) == columns
    with pytest.raises(ConfigError, match="the column 'c'") as caught:
        model_fns.for_data("wide_deep", {"numeric": ["c"]}, shapes=shapes)
    assert (caught.value.code, caught.value.found) == ("model/features-mismatch", "records of the shape [7]")


def test_text_to_a_model_that_takes_numbers_is_refused():
    with pytest.raises(ConfigError, match="'dnn' takes numbers, but the data have text: city"):
        model_fns.for_data("dnn", {}, shapes={"city": []}, text=["city"])
    # A column of the data that the model does not take may be of any type.
    columns = {"numeric": ["a"]}
    assert model_fns.for_data("wide_deep", columns, shapes={"a": [], "city": []}, text=["city"]) == columns


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "wide_deep needs columns"),
        ({"numeric": "age"}, "are a list of names"),
        ({"numeric": [1]}, "are a list of names"),
        ({"categorical": ["occupation"]}, r"mapping of names to numbers of ids .*\n.*categorical \['occupation'\]"),
    ],
)
def test_columns_are_names(params, message):
    with pytest.raises(ConfigError, match=message):
        model_fns.for_data("wide_deep", params)
    with pytest.raises(ConfigError, match=message):
        model_fns.keras_model("wide_deep", **params)


@pytest.mark.tf
@pytest.mark.parametrize("name", ["linear", "dnn", "wide_deep"])
def test_models_of_several_columns(name):
    """One output for two classes and for numbers; a column may have its own size of an embedding."""
    columns = {"numeric": ["x"], "categorical": {"c": 3, "d": {"buckets": 5, "embedding_dim": 2}}}
    shapes = {"x": [], "c": [], "d": []}
    for loss, outputs in (
        ("binary_crossentropy", 1),
        ("mean_squared_error", 1),
        ("sparse_categorical_crossentropy", 4),
    ):
        params = model_fns.for_data(name, columns, shapes=shapes, classes=4, loss=loss)
        model = model_fns.keras_model(name, **params)
        assert model.output_shape == (None, outputs) and set(model.input) == set(shapes)
        sizes = {layer.name: layer.output_dim for layer in model.layers if layer.name.startswith("embedding_")}
        assert sizes == ({} if name == "linear" else {"embedding_c": 8, "embedding_d": 2})
