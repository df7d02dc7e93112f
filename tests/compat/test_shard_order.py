"""The warning of automatic sharding by records, where workers read the records in different orders."""

from __future__ import annotations

import os

import pytest

from estimator_pipeline import compat

tf = compat.install()

from tensorflow.python.distribute import input_ops  # noqa: E402

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def no_seed():
    tf.random.set_seed(None)  # left by other tests


def shard(logged, dataset, policy="AUTO", shards=2):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    logged.clear()
    input_ops.auto_shard_dataset(dataset.with_options(options), shards, 0, 2)
    return [record.getMessage() for record in logged.records if "twice or never" in record.getMessage()]


def test_sharding_by_records_after_a_shuffle(logged):
    numbers = tf.data.Dataset.range(100)
    (warning,) = shard(logged, numbers.shuffle(100).batch(4))
    assert "differs between the workers (shuffle() or list_files() without a seed)" in warning
    assert len(shard(logged, numbers.shuffle(100).batch(4), "DATA")) == 1
    assert not shard(logged, numbers.shuffle(100, seed=1).batch(4), "DATA")
    assert not shard(logged, numbers.shuffle(100).batch(4), "OFF")
    assert not shard(logged, numbers.shuffle(100).batch(4), shards=1)


def test_sharding_by_files(logged, tmp_path):
    for number in range(2):
        with tf.io.TFRecordWriter(os.fspath(tmp_path / f"{number}.tfrecord")) as writer:
            writer.write(b"record")
    records = tf.data.TFRecordDataset(tf.io.gfile.glob(os.fspath(tmp_path / "*"))).shuffle(2).batch(1)
    assert not shard(logged, records) and not shard(logged, records, "FILE")
    assert len(shard(logged, records, "DATA")) == 1
