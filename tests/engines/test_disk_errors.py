"""What TensorFlow says of a disk that fails, as one message: while data are read, or a checkpoint is written."""

from __future__ import annotations

import errno
import os

import pytest

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.errors import DiskError

tf = compat.install()


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.ESTALE])
def test_data_of_a_disk_that_fails(number, tmp_path):
    text = f"data/a.tfrecord; {os.strerror(number)}\n\t [[IteratorGetNext]]"
    error = tf.errors.UnknownError(None, None, text)
    found = disk.explained(error, model_dir=str(tmp_path))
    assert isinstance(found, DiskError) and found.exit_code == 1
    assert found.what == f"data/a.tfrecord cannot be read or written: {os.strerror(number).lower()}"
    assert "does not exist yet" in found.found


def test_what_tensorflow_says_of_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "a.tfrecord").symlink_to("/proc/self/mem")
    with pytest.raises(DiskError) as caught, disk.explaining(str(tmp_path)):
        list(tf.data.TFRecordDataset(str(tmp_path / "a.tfrecord")))
    assert caught.value.what == f"{tmp_path}/a.tfrecord cannot be read or written: input/output error"


def test_a_checkpoint_that_is_not_taken(tmp_path, monkeypatch):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(w=tf.Variable([1.0])), str(tmp_path), max_to_keep=2)
    manager.save()

    def failing(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(DiskError) as caught, disk.explaining(str(tmp_path)):
        manager.save()
    assert "ckpt-2." in caught.value.what and "is at step 1 " in caught.value.found


def test_other_errors_are_none_of_a_disk(tmp_path):
    for error in (ValueError("Input/output error"), tf.errors.InvalidArgumentError(None, None, "shapes differ")):
        assert disk.explained(error, model_dir=str(tmp_path)) is None


def test_a_program_that_reads_by_itself(tmp_path, run_warm):
    (tmp_path / "a.tfrecord").symlink_to("/proc/self/mem")
    program = tmp_path / "program.py"
    program.write_text("import tensorflow as tf\nlist(tf.data.TFRecordDataset('a.tfrecord'))\n")
    run = "import sys\nfrom estimator_pipeline.compat.script_runner import runner\n"
    run += "sys.exit(runner.run_script(sys.argv[1]))"
    done = run_warm(["-c", run, program], cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "a.tfrecord cannot be read or written: input/output error [system/disk]\n  hint: " in done.stderr
