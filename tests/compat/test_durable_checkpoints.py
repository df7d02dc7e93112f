"""The patch `durable-checkpoints`: what the state file names is on the disk by then."""

from __future__ import annotations

import errno
import os

import pytest

from estimator_pipeline import compat
from estimator_pipeline.inputs import ledger

tf = compat.install()
v1 = tf.compat.v1


def by_saver(folder):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("w", [3])
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, os.path.join(folder, "model.ckpt"), global_step=7)


def by_manager(folder):
    tf.train.CheckpointManager(tf.train.Checkpoint(w=tf.Variable([1.0])), folder, max_to_keep=2).save()


def by_checkpoint(folder):
    tf.train.Checkpoint(w=tf.Variable([1.0])).save(os.path.join(folder, "ckpt"))


def by_weights(folder):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.save_weights(os.path.join(folder, "weights"), save_format="tf")


@pytest.fixture
def synced(monkeypatch):
    """(the file's name, the checkpoint that the state file named at that time), of each fsync."""
    found = []
    fsync = os.fsync

    def recording(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        fsync(descriptor)
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        found.append((os.path.basename(path), tf.train.latest_checkpoint(folder)))

    monkeypatch.setattr(os, "fsync", recording)
    return found


@pytest.mark.parametrize("save", [by_saver, by_manager, by_checkpoint, by_weights])
def test_files_are_synced_before_they_are_named(tmp_path, synced, save):
    save(str(tmp_path))
    latest = tf.train.latest_checkpoint(str(tmp_path))
    files = {path.name for path in tmp_path.glob(f"{os.path.basename(latest)}.*") if path.suffix != ".meta"}
    before = [name for name, named in synced if named is None]
    assert len(files) >= 2 and files <= set(before)
    # The folder that lists them comes after them; then the state file, under another name.
    folder = before.index(tmp_path.name)
    assert all(before.index(name) < folder for name in files)
    assert any(name.startswith("checkpoint.tmp") for name in before[folder:])
    assert (tmp_path.name, latest) in synced  # the folder again, which has the state file's name now
    assert not list(tmp_path.glob("checkpoint.tmp*"))


def test_a_second_checkpoint_is_named_after_its_own_files_are_synced(tmp_path, synced):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(w=tf.Variable([1.0])), str(tmp_path), max_to_keep=2)
    first, second = manager.save(), manager.save()
    files = ("ckpt-2.index", "ckpt-2.data-00000-of-00001")
    assert {name: next(named for one, named in synced if one == name) for name in files} == dict.fromkeys(files, first)
    assert second != first and (tmp_path.name, second) in synced


def test_a_ledger_is_synced_with_it(tmp_path, synced):
    writer = ledger.LedgerWriter(tmp_path / "ledger", task="worker:0", tasks=["worker:0"])
    writer.begin(0)
    synced.clear()
    by_saver(str(tmp_path))
    assert ("worker-0.1.ledger", None) in synced
    before = [name for name, named in synced if named is None and name != "worker-0.1.ledger"]
    assert [name for name, _ in synced].index("worker-0.1.ledger") < len(before)


def test_an_estimators_export_is_synced_before_it_has_its_name(tmp_path, synced):
    def model_fn(features, labels, mode):
        del labels
        weight = v1.get_variable("w", [])
        loss = tf.reduce_mean(features["x"] * weight)
        step = v1.assign_add(v1.train.get_global_step(), 1)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step, predictions={"y": features["x"] * weight})

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path / "model"))
    estimator.train(lambda: tf.data.Dataset.from_tensors({"x": [1.0]}), steps=1)
    synced.clear()

    def receiver_fn():
        given = {"x": v1.placeholder(tf.float32, [None])}
        return tf.estimator.export.ServingInputReceiver(given, given)

    made = estimator.export_saved_model(str(tmp_path / "export"), receiver_fn)
    names = {name for name, _ in synced}
    assert {"saved_model.pb", "variables.index", "variables"} <= names
    assert any(name.startswith("temp-") for name in names) and os.path.basename(made.decode()) not in names


def test_a_file_system_without_fsync_fails_no_checkpoint(tmp_path, monkeypatch):
    def refused(descriptor):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refused)
    by_saver(str(tmp_path))
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-7")


def test_a_checkpoint_that_the_disk_does_not_take_is_not_named(tmp_path, monkeypatch):
    by_manager(str(tmp_path))
    before = (tmp_path / "checkpoint").read_text()

    def failing(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match=r"Input/output error.*ckpt-2\.(data|index)"):
        tf.train.CheckpointManager(
            tf.train.Checkpoint(w=tf.Variable([1.0])), str(tmp_path), max_to_keep=2, checkpoint_name="ckpt"
        ).save(checkpoint_number=2)
    assert (tmp_path / "checkpoint").read_text() == before
