"""Data written as TFRecord files before training: the same records, one part a worker, all or nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ruamel.yaml import YAML

from estimator_pipeline import compat, inputs
from estimator_pipeline.errors import InputError


@pytest.fixture(scope="module")
def tf():
    return compat.install()


@pytest.fixture
def environ(tmp_path):
    """No test writes to the user's cache."""
    return {"HOME": str(tmp_path / "home")}


def arrays(count):
    rng = np.random.default_rng(4)
    features = {
        "pixels": rng.integers(0, 256, [count, 4, 3], dtype=np.uint8),
        "weight": rng.standard_normal([count, 2]).astype(np.float32),
        "exact": rng.standard_normal(count),
        "flag": rng.integers(0, 2, count).astype(bool),
        "name": np.array([f"näme {i}" for i in range(count)], dtype=object),
    }
    return features, np.arange(count)


def rows(dataset):
    """label -> record, of a dataset of batches."""
    found = {}
    for features, labels in dataset:
        for i, label in enumerate(labels.numpy().tolist()):
            assert label not in found, "read twice"
            found[label] = {name: value.numpy()[i] for name, value in features.items()}
    return found


def test_d5_the_parts_together_are_the_data_set(tf, tmp_path, environ):
    """Every record once, with all its bits and types; evenly; the same bytes from the same data."""
    features, labels = arrays(23)
    source = inputs.from_arrays((features, labels), (features, labels), global_batch_size=5, scale={"weight": 0.5})
    made = inputs.partition(source, tmp_path / "parts", parts=4)
    assert made.train == {f"train-0000{i}-of-00004.tfrecord": n for i, n in enumerate((6, 6, 6, 5))}
    assert made.eval == {f"eval-0000{i}-of-00004.tfrecord": n for i, n in enumerate((6, 6, 6, 5))}
    assert "23 training records in 4 part(s)" in str(made) and "train-00003-of-00004.tfrecord: 5 records" in str(made)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == sorted(
        [*made.train, *made.eval, "partition.json"]
    )
    options = {"global_batch_size": 5, "environ": environ, "epochs": 1, "drop_remainder": False}
    data = inputs.from_partition(tmp_path / "parts", **options)
    for dataset in (data.train_input_fn(), data.eval_input_fn()):
        found = rows(dataset)
        assert sorted(found) == list(range(23))
        for number, record in found.items():
            for name, array in features.items():
                expected = array[number].encode() if name == "name" else array[number]
                np.testing.assert_array_equal(record[name], expected, err_msg=name)
                assert name == "name" or record[name].dtype == array.dtype, name
    # A part by itself: each fourth record, in the order of the source.
    for part, name in enumerate(made.train):
        one = inputs.from_tfrecord(
            tmp_path / "parts" / name, features=made.features, shuffle=False, **options
        ).train_input_fn()
        assert list(rows(one)) == list(range(part, 23, 4))
    inputs.partition(source, tmp_path / "again", parts=4)
    for path in (tmp_path / "parts").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_d5_each_worker_opens_its_own_part_alone(tf, tmp_path, environ):
    features, labels = arrays(24)
    inputs.partition(inputs.from_arrays((features, labels), global_batch_size=8), tmp_path / "parts", parts=2)
    data = inputs.from_partition(
        tmp_path / "parts", global_batch_size=8, shard_policy="file", epochs=1, environ=environ, memory_limit=0
    )
    seen = [sorted(rows(data.train_input_fn(tf.distribute.InputContext(2, worker, 2)))) for worker in (0, 1)]
    assert seen == [list(range(0, 24, 2)), list(range(1, 24, 2))]
    text = data.describe(2)
    assert "pipeline 1: 1 file(s) with 12 records: train-00001-of-00002.tfrecord" in text


def test_lists_of_any_length_and_keys_are_kept(tf, tmp_path, environ):
    path = str(tmp_path / "in.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(6):
            feature = {
                "tags": tf.train.Feature(int64_list=tf.train.Int64List(value=range(number % 3))),
                "y": tf.train.Feature(float_list=tf.train.FloatList(value=[number / 7])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    spec = {"tags": "varlen int64", "y": "float32"}
    source = inputs.from_tfrecord(path, features=spec, label_key="y", global_batch_size=2, environ=environ)
    made = inputs.partition(source, tmp_path / "parts", parts=2)
    assert (made.features, made.label_key, made.features_key, made.eval) == (spec, "y", None, {})
    data = inputs.from_partition(tmp_path / "parts", global_batch_size=6, shuffle=False, epochs=1, environ=environ)
    features, labels = next(iter(data.train_input_fn()))
    assert labels.numpy().tolist() == [np.float32(i / 7) for i in (0, 2, 4, 1, 3, 5)]
    assert tf.sparse.to_dense(features["tags"], default_value=-1).numpy().tolist() == [
        [-1, -1], [0, 1], [0, -1], [0, -1], [-1, -1], [0, 1],
    ]  # fmt: skip


def bad_folder(source, folder):
    (folder / "there").mkdir()
    (folder / "there" / "mine.txt").write_text("mine")
    inputs.partition(source, folder / "there", parts=2)


BAD = [
    (bad_folder, ["exists and is not empty", "there", "name a new folder"]),
    (lambda s, f: inputs.partition(s, f / "x", parts=0), ["records cannot be written as 0 parts", "1 to 23"]),
    (lambda s, f: inputs.partition(s, f / "x", parts=24), ["as 24 parts", "a whole number from 1 to 23"]),
    (lambda s, f: inputs.from_partition(f, global_batch_size=2), ["not a folder of inputs.partition", "from_tfrecord"]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "fragments"), BAD)
def test_bad_input_is_refused(tf, tmp_path, call, fragments):
    source = inputs.from_arrays(arrays(23), global_batch_size=5)
    with pytest.raises(InputError) as told:
        call(source, tmp_path)
    for fragment in fragments:
        assert fragment in str(told.value)
    assert not (tmp_path / "x").exists()


def test_a_failed_write_leaves_nothing(tf, tmp_path, environ):
    path = tmp_path / "bad.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for size in (2, 2, 3):
            feature = {"x": tf.train.Feature(int64_list=tf.train.Int64List(value=[1] * size))}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    source = inputs.from_tfrecord(
        str(path), features={"x": "int64[2]"}, label_key="x", features_key=["x"], global_batch_size=1, environ=environ
    )
    with pytest.raises(InputError, match=r"record 2"):
        inputs.partition(source, tmp_path / "parts", parts=2)
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("home", "bad.tfrecord")] == []


def test_a_part_that_was_cut_is_noticed(tf, tmp_path, environ):
    inputs.partition(inputs.from_arrays(arrays(8), global_batch_size=4), tmp_path / "parts", parts=2)
    first = tmp_path / "parts" / "train-00000-of-00002.tfrecord"
    second = tmp_path / "parts" / "train-00001-of-00002.tfrecord"
    first.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(InputError, match="has changed since it was written") as told:
        inputs.from_partition(tmp_path / "parts", global_batch_size=4, environ=environ)
    assert "8 records, 4 in partition.json" in str(told.value)


JOB = """
model: {name: linear}
input: {source: tfds, name: digits, scale: 1/16, global_batch_size: 32}
run: {model_dir: m}
"""


@pytest.mark.nightly
def test_the_command_prints_the_section_that_reads_the_parts(run_python, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    command = ["-m", "estimator_pipeline", "partition", tmp_path / "job.yaml", tmp_path / "parts", "--parts", "2"]
    done = run_python(command)
    assert done.returncode == 0, done.stderr[-3000:]
    said, _, section = done.stdout.partition("input:\n")
    assert "1437 training records in 2 part(s)\n  train-00000-of-00002.tfrecord: 719 records\n" in said
    document = YAML(typ="safe").load("input:\n" + section)
    from estimator_pipeline.job import make_job

    job = make_job({"model": {"name": "linear"}, "run": {"model_dir": "m"}, **document}, source="printed")
    assert job.input.features["image"].kind == "raw" and job.input.features["image"].dtype == "uint8"
    assert (job.input.shard_policy, job.input.scale, job.input.features_key) == ("file", 1 / 16, "image")
    about = json.loads((tmp_path / "parts" / "partition.json").read_text())
    assert sum(about["train"].values()) == 1437
    again = run_python(command)
    assert again.returncode == 2 and "there already" in again.stderr and "Traceback" not in again.stderr
