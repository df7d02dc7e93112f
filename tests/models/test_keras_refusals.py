"""Error messages for `.keras` files that Keras cannot load name the file and the layer."""

from __future__ import annotations

import zipfile

import pytest

from estimator_pipeline import compat, load_keras_model
from estimator_pipeline.errors import ConfigError

tf = compat.install()
keras = tf.keras


class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2.0


# Keras would find it in this module by itself.
Doubled.__module__ = "__main__"


def saved(layer, folder):
    given = keras.Input((2,))
    model = keras.Model(given, keras.layers.Dense(1)(layer(given)))
    model.compile("sgd", "mse")
    path = str(folder / "model.keras")
    model.save(path)
    return path


def test_code_in_the_file(tmp_path):
    path = saved(keras.layers.Lambda(lambda values: values * 2.0, name="twice"), tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_keras_model(path)
    assert caught.value.what == (
        f"{path} holds Python code, which Keras does not run from a file: that of the Lambda layer twice"
    )
    assert "safe_mode=False" in caught.value.hint and caught.value.exit_code == 2


def test_a_class_that_nobody_knows(tmp_path):
    path = saved(Doubled(), tmp_path)
    with pytest.raises(ConfigError, match=f"{path} uses 'Doubled', which is not a class or function of Keras"):
        load_keras_model(path)


def test_a_class_that_is_registered_is_loaded(tmp_path):
    path = saved(Doubled(), tmp_path)
    with keras.utils.custom_object_scope({"Doubled": Doubled}):
        assert load_keras_model(path).count_params() == 3


def test_what_is_no_description_of_a_model(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", '{"class_name": "Sequential", "config": {"layers": 3}, "module": "keras"}')
        archive.writestr("metadata.json", "{}")
    with pytest.raises(ConfigError, match=f"Keras cannot load {tmp_path}/model.keras: "):
        load_keras_model(str(tmp_path / "model.keras"))
