"""A record that is damaged ends training with one message, whichever engine reads it."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline import compat, inputs
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs import tf_dataset as blocks
from estimator_pipeline.inputs.sources.tfrecord_index import index_file

tf = compat.install()


@pytest.fixture
def spoilt(tmp_path):
    """A pattern of TFRecord files, a bit of which is another one; nothing but its checksum tells."""
    for part in range(2):
        with tf.io.TFRecordWriter(str(tmp_path / f"part-{part}.tfrecord")) as writer:
            for number in range(20):
                features = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=[number, part])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    path = tmp_path / "part-1.tfrecord"
    data = bytearray(path.read_bytes())
    last, _ = index_file(str(path), cache=None)[19]
    data[last + 5] ^= 1
    path.write_bytes(data)
    return str(tmp_path / "part-*.tfrecord")


def test_what_tensorflow_makes_of_it_is_what_it_was(spoilt):
    features = {"x": tf.io.FixedLenFeature([2], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
    data = inputs.from_tfrecord(train=spoilt, eval=spoilt, features=features, label_key="label", global_batch_size=4)
    with pytest.raises(tf.errors.OpError) as raised:
        for _ in data.train_input_fn().take(20):
            pass
    told = blocks.explained(raised.value)
    assert isinstance(told, InputError) and "part-1.tfrecord, record 19, at byte" in str(told)
    assert blocks.explained(told) is None and blocks.explained(ValueError("another")) is None


@pytest.mark.nightly  # a process for each engine
@pytest.mark.parametrize("engine", ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3)])
def test_training_ends_with_one_message(engine, spoilt, tmp_path, run_python):
    job = {
        "model": {"name": "linear", "params": {"input_shape": [2], "classes": 2}},
        "input": {
            "source": "tfrecord",
            "train": spoilt,
            "eval": spoilt,
            "features": {"x": {"dtype": "float32", "shape": [2]}, "label": {"dtype": "int64"}},
            "features_key": "x",
            "global_batch_size": 4,
        },
        "train": {"max_steps": 100},
        "run": {"model_dir": str(tmp_path / "model"), "engine": engine},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    done = run_python(["-m", "estimator_pipeline", "train", tmp_path / "job.yaml"])
    assert done.returncode == 2, done.stderr[-3000:]
    assert done.stderr.count("do not match their checksum") == 1 and "Traceback" not in done.stderr
