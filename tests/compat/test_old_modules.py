"""Repairs for packages: private paths that moved, and the text columns of pandas 3."""

from __future__ import annotations

import importlib

import pandas as pd
import pytest

from estimator_pipeline import compat

tf = compat.install()


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("training.tracking.graph_view", "checkpoint.graph_view", "ObjectGraphView"),
        ("training.tracking.base", "trackable.base", "Trackable"),
        ("training.tracking.tracking", "trackable.autotrackable", "AutoTrackable"),
        ("training.tracking.util", "checkpoint.checkpoint", "Checkpoint"),
    ],
)
def test_moved_module_is_the_module_of_today(old, new, name):
    module = importlib.import_module(f"tensorflow.python.{old}")
    assert module is importlib.import_module(f"tensorflow.python.{new}")
    assert hasattr(module, name)
    assert module.__spec__.name == f"tensorflow.python.{new}"


def test_unknown_name_below_a_moved_package_is_still_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tensorflow.python.training.tracking.nothing")


def test_tensorflows_own_normalization_finds_its_layer():
    from tensorflow.python.layers import normalization

    assert normalization.BatchNormalization is tf.compat.v1.layers.BatchNormalization
    assert issubclass(normalization.BatchNormalization, tf.keras.layers.Layer)


@pytest.mark.parametrize("dtype", ["string", "object"])
def test_pandas_input_fn_takes_text(dtype):
    frame = pd.DataFrame({"kind": ["a", "b", "a"], "size": [1.0, 2.0, 3.0]}, index=pd.Index(["x", "y", "z"]))
    frame["kind"] = frame["kind"].astype(dtype)
    labels = pd.Series(["no", "yes", "no"], index=frame.index, dtype=dtype)
    input_fn = tf.compat.v1.estimator.inputs.pandas_input_fn(frame, labels, batch_size=3, shuffle=False)
    with tf.Graph().as_default():
        batch = input_fn()
        with tf.compat.v1.train.MonitoredSession() as session:
            features, target = session.run(batch)
    assert features["kind"].tolist() == [b"a", b"b", b"a"]
    assert features["size"].tolist() == [1.0, 2.0, 3.0]
    assert target.tolist() == [b"no", b"yes", b"no"]
