"""Folders whose path TensorFlow takes for a pattern: `lr=0.1,units=[8,4]` and the like."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.patches import best_exporter, literal_paths
from estimator_pipeline.errors import CompatError
from estimator_pipeline.migrate.checkpoints import write as checkpoint_writing

tf = compat.install()
v1 = tf.compat.v1
FOLDERS = ["units=[8]", "a\\b", "a*b?"]
NEIGHBOURS = {"units=[8]": "units=8", "a\\b": "ab", "a*b?": "a-bc"}  # what the pattern matches


@pytest.fixture(params=FOLDERS)
def folder(request, tmp_path):
    (tmp_path / request.param).mkdir()
    return str(tmp_path / request.param)


@pytest.fixture
def neighbour(folder):
    """A checkpoint and an event file of another run, whose folder the pattern matches."""
    other = os.path.join(os.path.dirname(folder), NEIGHBOURS[os.path.basename(folder)])
    assert tf.train.Checkpoint(v=tf.Variable(-1.0)).write(os.path.join(other, "model.ckpt-1"))
    return other


def model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    loss = tf.abs(weight - 5) + 0 * tf.reduce_sum(features["x"])
    train_op = tf.group(v1.assign_add(weight, 1), v1.assign_add(v1.train.get_or_create_global_step(), 1))
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.from_tensors({"x": tf.zeros([1])})


def test_a_second_start_goes_on_and_old_checkpoints_are_removed(folder, neighbour):
    config = tf.estimator.RunConfig(folder, save_checkpoints_steps=1, keep_checkpoint_max=2)
    for start in (1, 2):
        estimator = tf.estimator.Estimator(model_fn, config=config)
        estimator.train(lambda: input_fn().repeat(), steps=2)
        assert estimator.latest_checkpoint() == os.path.join(folder, f"model.ckpt-{2 * start}")
        assert estimator.get_variable_value("weight") == 2 * start
    assert estimator.evaluate(input_fn)["loss"] == 1
    v1.summary.FileWriterCache.clear()
    kept = {name.partition(".index")[0] for name in os.listdir(folder) if name.endswith(".index")}
    assert kept == {"model.ckpt-3", "model.ckpt-4"}
    assert len([name for name in os.listdir(folder) if name.startswith("model.ckpt-")]) == 6
    assert os.path.exists(os.path.join(neighbour, "model.ckpt-1.index"))
    from tensorflow_estimator.python.estimator import early_stopping

    # What looks through event files: early stopping, and the best exporter where no file of its own is there.
    assert early_stopping.read_eval_metrics(estimator.eval_dir())[4]["loss"] == 1
    (evaluation,) = best_exporter._evaluations(folder, "eval/*.tfevents.*")
    assert (evaluation[0], evaluation[1]["loss"]) == (4, 1)


def test_checkpoints_of_objects(folder, neighbour):
    weight = tf.Variable(0.0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(weight=weight), folder, max_to_keep=1)
    for value in (1.0, 2.0):
        weight.assign(value)
        path = manager.save()
    assert tf.train.latest_checkpoint(folder) == path
    assert len([name for name in os.listdir(folder) if name.endswith(".index")]) == 1
    weight.assign(0.0)
    tf.train.Checkpoint(weight=weight).restore(manager.latest_checkpoint).assert_consumed()
    assert weight == 2
    reader = tf.train.load_checkpoint(folder)
    assert [value for name, value in _tensors(reader) if "weight" in name] == [2.0]
    # A reader opens the data later, and by the same path.
    assert v1.train.NewCheckpointReader(filepattern=path).get_variable_to_shape_map()


def _tensors(reader):
    names = reader.get_variable_to_dtype_map()
    return [(name, reader.get_tensor(name)) for name in names if not name.startswith("_CHECKPOINTABLE")]


def test_initial_values_from_a_checkpoint(folder):
    """A warm start reads by an operation of the graph."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("weight", initializer=3.0)
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, os.path.join(folder, "model.ckpt"), global_step=7)
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=0.0)
        v1.train.init_from_checkpoint(folder, {"weight": "weight"})
        session.run(v1.global_variables_initializer())
        assert session.run(weight) == 3
        v1.train.Saver().restore(session, save_path=path)
    assert v1.train.checkpoint_exists(path) and len(v1.train.get_checkpoint_mtimes([path])) == 1


def test_saved_models(folder):
    module = tf.Module()
    module.weight = tf.Variable(4.0)
    tf.saved_model.save(module, os.path.join(folder, "saved"))
    assert tf.saved_model.load(os.path.join(folder, "saved")).weight == 4


def test_a_migrated_checkpoint_leaves_nothing_stale(folder, neighbour, tmp_path):
    stale = os.path.join(folder, "model.ckpt-1.data-00001-of-00002")
    written = tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / "new" / "model.ckpt-1"))
    os.mkdir(os.path.join(folder, "estimator_pipeline"))
    for path in (stale, os.path.join(neighbour, os.path.basename(stale))):
        with open(path, "w", encoding="ascii"):
            pass
    checkpoint_writing.into_folder(folder, written, run=str(tmp_path), record={})
    assert not os.path.exists(stale) and os.path.exists(os.path.join(neighbour, os.path.basename(stale)))


def test_other_paths_stay_as_they_are(tmp_path):
    (tmp_path / "a[b]").mkdir()
    tensor = np.array("a[b]/model")
    for path in (
        "model.ckpt-1",
        str(tmp_path / "model.ckpt-?????-of-00002"),
        str(tmp_path / "x[y]" / "m"),
        "ram://[a]/m",
    ):
        assert literal_paths.file(path) == path
    assert literal_paths.file(tensor) is tensor
    assert os.path.samefile(os.path.dirname(literal_paths.file(tmp_path / "a[b]" / "model")), tmp_path / "a[b]")


def test_a_folder_for_temporary_files_that_is_a_pattern_too_is_told(tmp_path, monkeypatch):
    (tmp_path / "a[b]").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a[b]"))
    with pytest.raises(CompatError, match="set TMPDIR"):
        literal_paths.folder(str(tmp_path / "a[b]"))
