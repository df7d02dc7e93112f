"""The `input_fn` factories: what an Estimator gets, from arrays and from each kind of file."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from estimator_pipeline import compat, inputs
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.reader import InMemory
from estimator_pipeline.inputs.sampler import record_ids
from estimator_pipeline.inputs.source import ArraySource
from estimator_pipeline.inputs.sources.arrow_files import TableSource
from estimator_pipeline.inputs.sources.tfrecord import ExampleSource

RECORDS = 100


@pytest.fixture(scope="module")
def tf():
    return compat.install()


@pytest.fixture
def environ(tmp_path):
    """No test writes to the user's cache."""
    return {"HOME": str(tmp_path / "home")}


def arrays(count=RECORDS):
    ids = np.arange(count)
    return np.stack([ids, 2 * ids], axis=1).astype(np.float32), ids


def context(tf, pipelines, pipeline, replicas=None):
    return tf.distribute.InputContext(pipelines, pipeline, replicas or pipelines)


def labels_of(dataset, batches=None):
    taken = dataset if batches is None else dataset.take(batches)
    return [labels.numpy() for _, labels in taken]


def write_examples(tf, path, ids, *, make=None, compression=""):
    def example(number):
        return {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[number, 2 * number])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        }

    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for number in ids:
            features = tf.train.Features(feature=(make or example)(int(number)))
            writer.write(tf.train.Example(features=features).SerializeToString())
    return str(path)


SPEC = {"x": "float32[2]", "label": "int64"}


def tfrecord_files(tf, folder, sizes=(30, 10, 25, 35)):
    start, paths = 0, []
    for number, size in enumerate(sizes):
        paths.append(write_examples(tf, folder / f"part-{number}.tfrecord", range(start, start + size)))
        start += size
    return paths


def csv_files(folder, sizes=(30, 10, 25, 35)):
    start, paths = 0, []
    for number, size in enumerate(sizes):
        path = folder / f"part-{number}.csv"
        rows = [f"{i}.0,{i},{2 * i}" for i in range(start, start + size)]
        path.write_text("\n".join(["x,label,y", *rows]) + "\n")
        paths.append(str(path))
        start += size
    return paths


def all_kinds(tf, folder, environ, **options):
    """The same 100 records from each kind of source, and from files both in memory and read by record."""
    options = {"global_batch_size": 12, "seed": 3, **options}
    records, tables = tfrecord_files(tf, folder), csv_files(folder)
    x, ids = arrays()
    yield "arrays", inputs.from_arrays((x, ids), (x, ids), **options)
    for limit in (2**30, 0):
        more = {**options, "memory_limit": limit}
        yield (
            f"tfrecord {limit}",
            inputs.from_tfrecord(train=records, eval=records, features=SPEC, features_key="x", environ=environ, **more),
        )
        types = {"x": "float32", "y": "int64", "label": "int64"}
        yield f"csv {limit}", inputs.from_csv(train=tables, eval=tables, columns=types, **more)


def test_every_source_gives_the_same_records_in_training_and_evaluation(tf, tmp_path, environ):
    """Without windows the order depends on the number of records and the seed, not on where they lie."""
    seen = {}
    for name, data in all_kinds(tf, tmp_path, environ, shuffle_window=None):
        assert (data.num_train_records, data.num_eval_records, data.steps_per_epoch) == (100, 100, 9)
        seen[name] = np.stack(labels_of(data.train_input_fn(), 20))
        batches = labels_of(data.eval_input_fn())
        assert np.concatenate(batches).tolist() == list(range(100)), name
        assert [len(batch) for batch in batches] == [12, 11, 11, 11, 11, 11, 11, 11, 11]
        features, labels = next(iter(data.train_input_fn()))
        x = features["x"] if isinstance(features, dict) else features[..., 0]
        x = x[:, 0] if name.startswith("tfrecord") and x.shape.rank == 2 else x
        assert np.array_equal(np.asarray(x), labels.numpy().astype(np.float32)), name
    assert len(seen) == 5
    assert all(np.array_equal(one, seen["arrays"]) for one in seen.values())
    assert (np.bincount(np.concatenate(list(seen["arrays"]))[:100]) == 1).all()


def test_e1_scaled_sharded_shuffled_batched_the_same_for_any_number_of_workers(tf):
    images = np.arange(RECORDS * 4, dtype=np.uint8).reshape(RECORDS, 2, 2) % 17
    data = inputs.from_arrays(
        (images, np.arange(RECORDS)), global_batch_size=12, seed=1, scale=1 / 16, features_key="image"
    )
    alone = labels_of(data.train_input_fn(), 30)
    for pipelines in (1, 2, 3, 4, 6):
        parts = [labels_of(data.train_input_fn(input_context=context(tf, pipelines, p)), 30) for p in range(pipelines)]
        for step in range(30):
            assert np.array_equal(np.concatenate([part[step] for part in parts]), alone[step])
    features, labels = next(iter(data.train_input_fn()))
    assert features.dtype == tf.float32 and features.shape == (12, 2, 2)
    assert np.array_equal(features, images[labels].astype(np.float32) * np.float32(1 / 16))
    assert 0 <= float(tf.reduce_min(features)) and float(tf.reduce_max(features)) <= 1
    assert data.features_spec == {"image": tf.TensorSpec((2, 2), tf.float32)}
    assert data.label_spec == tf.TensorSpec((), tf.int64)


@pytest.mark.parametrize("local", [2, 3])
def test_local_replicas_get_consecutive_batches_of_their_pipelines_slice(tf, local):
    data = inputs.from_arrays(arrays(), global_batch_size=12, seed=1)
    alone = labels_of(data.train_input_fn(), 5)
    for pipelines in (1, 2):
        parts = [
            labels_of(data.train_input_fn(context(tf, pipelines, p, pipelines * local)), 5 * local)
            for p in range(pipelines)
        ]
        for step in range(5):
            together = [batch for part in parts for batch in part[step * local : (step + 1) * local]]
            assert {len(batch) for batch in together} == {12 // pipelines // local}
            assert np.array_equal(np.concatenate(together), alone[step])


def test_a_restart_at_any_step_reads_what_an_uninterrupted_run_reads(tf, tmp_path, environ):
    for name, data in all_kinds(tf, tmp_path, environ):
        # Where the records lie has no part in the order: the others begin with the second epoch alone.
        begins = (1, 8, 9, 24) if name == "arrays" else (9,)
        for where in (None, context(tf, 2, 1), context(tf, 1, 0, 2)):
            local = 2 if where is not None and where.num_input_pipelines == 1 else 1
            whole = labels_of(data.train_input_fn(where), 25 * local)
            for step in begins:
                rest = labels_of(data.at_step(step).train_input_fn(where), (25 - step) * local)
                assert np.array_equal(np.stack(rest), np.stack(whole[step * local :])), (name, step)


@pytest.mark.gate("data")
@pytest.mark.parametrize("policy", ["data", "file"])
def test_a_restart_reads_no_record_that_was_read_before(tf, tmp_path, environ, policy, monkeypatch):
    """The cost does not grow with the step: a block or two are read ahead, at the millionth step as at the first."""
    read = []
    for kind in (ArraySource, TableSource, ExampleSource, InMemory):
        theirs = kind.raw

        def counted(self, ids, *, theirs=theirs):
            read.append(len(ids))
            return theirs(self, ids)

        monkeypatch.setattr(kind, "raw", counted)
    for name, data in all_kinds(tf, tmp_path, environ, shard_policy="auto" if policy == "file" else "data"):
        if policy == "file":
            data = data.with_policy(policy)  # but for arrays, which are in no file
        where, numbers = context(tf, 2, 1), {}
        for step in (0, 10**6):
            at = data.at_step(step)
            labels_of(at.train_input_fn(where), 1)
            read.clear()
            labels_of(at.train_input_fn(where), 3)
            numbers[step] = sum(read)
        # 64 steps are a block; of a step this worker has 6 records.
        assert all(3 * 6 <= number <= 3 * 64 * 6 for number in numbers.values()), (name, numbers)


def test_start_step_may_be_a_function_and_is_asked_at_each_call(tf):
    data = inputs.from_arrays(arrays(), global_batch_size=10)
    whole = labels_of(data.train_input_fn(), 4)
    steps = iter([3, 1])
    data.train_input_fn.start_step = lambda: np.int64(next(steps))
    assert np.array_equal(labels_of(data.train_input_fn(), 1)[0], whole[3])
    assert np.array_equal(labels_of(data.train_input_fn(), 1)[0], whole[1])
    assert np.array_equal(labels_of(data.with_start_step(2).train_input_fn(), 1)[0], whole[2])
    data.train_input_fn.start_step = -1
    with pytest.raises(InputError, match="start_step must be a step"):
        data.train_input_fn()


@pytest.mark.parametrize("memory_limit", [0, 2**30])
def test_file_policy_no_worker_opens_anothers_file(tf, tmp_path, environ, memory_limit):
    for kind in ("tfrecord", "csv"):
        folder = tmp_path / kind
        folder.mkdir()
        paths = tfrecord_files(tf, folder) if kind == "tfrecord" else csv_files(folder)
        options = {"global_batch_size": 10, "shard_policy": "file", "memory_limit": memory_limit}
        if kind == "csv":
            if memory_limit:
                continue  # Parsed as a whole by the factory, on each worker.
            data = inputs.from_csv(train=paths, eval=paths, columns=None, **options)
        else:
            data = inputs.from_tfrecord(train=paths, eval=paths, features=SPEC, environ=environ, **options)
        starts = np.cumsum([0, 30, 10, 25, 35])
        shares = [data.train_shards(inputs.ShardOptions(2, p, 2)).parts for p in range(2)]
        assert sorted(shares[0] + shares[1]) == [0, 1, 2, 3]
        for pipeline, mine in enumerate(shares):
            own = {i for part in mine for i in range(starts[part], starts[part + 1])}
            others = [paths[i] for i in range(4) if i not in mine]
            for path in others:
                os.rename(path, path + ".away")
            try:
                where = context(tf, 2, pipeline)
                read = np.concatenate(labels_of(data.train_input_fn(where), 40))
                assert set(read.astype(int)) == own
                evaluated = np.concatenate(labels_of(data.eval_input_fn(where))).astype(int)
                assert sorted(evaluated) == sorted(own)
            finally:
                for path in others:
                    os.rename(path + ".away", path)


def test_auto_is_by_record_and_follows_what_a_run_began_under(tf, tmp_path, environ):
    paths = tfrecord_files(tf, tmp_path)

    def plans(policy, pipelines, followed=None):
        data = inputs.from_tfrecord(
            train=paths, features=SPEC, global_batch_size=12, seed=3, shard_policy=policy, memory_limit=0,
            environ=environ,
        )  # fmt: skip
        if followed is not None:
            before, data = data, data.with_policy(followed)
            assert (data is not before) == (policy == "auto")
        return [data.train_shards(inputs.ShardOptions(pipelines, p, pipelines)) for p in range(pipelines)]

    def same(some, others):
        assert [one.policy for one in some] == [one.policy for one in others]
        assert all(np.array_equal(a.ids(5, 20), b.ids(5, 20)) for a, b in zip(some, others, strict=True))

    for pipelines in (1, 2, 3):
        same(plans("auto", pipelines), plans("data", pipelines))
        same(plans("auto", pipelines, "file"), plans("file", pipelines))
        same(plans("data", pipelines, "file"), plans("data", pipelines))
    data = inputs.from_tfrecord(train=paths, features=SPEC, global_batch_size=12, environ=environ)
    two = inputs.ShardOptions(2, 0, 2)
    assert data.with_policy("file").train_shards(two).policy == "file"
    assert data.train_shards(two).policy == "data", "the next run of these data is another one"
    assert data.at_step(5).with_policy("file").train_input_fn.start_step == 5
    # One worker reads all files in the order of all records.
    (by_record,), (by_file,) = plans("data", 1), plans("file", 1)
    assert np.array_equal(by_record.ids(0, 50), by_file.ids(0, 50))
    arrays_in_memory = inputs.from_arrays(arrays(), global_batch_size=12)
    assert arrays_in_memory.with_policy("file") is arrays_in_memory


def test_the_content_of_files_is_told(tf, tmp_path, environ):
    """By names that are the same on another machine, of each kind of file, in memory and read by record."""

    def told(kind, limit, folder):
        files = [f"{folder}/b/one", f"{folder}/a/one"]
        options = {"global_batch_size": 2, "memory_limit": limit}
        if kind == "csv":
            made = inputs.from_csv(train=files, **options)
        else:
            compression = "GZIP" if kind == "gzip" else ""
            made = inputs.from_tfrecord(
                train=files, features=SPEC, features_key="x", compression=compression, environ=environ, **options
            )
        assert made.train_input_fn.files == {"one": files[0], "one (2)": files[1]}
        return made.identity()[0]["input.content"]

    for kind in ("csv", "tfrecord", "gzip"):
        for folder, last in (("here", 8), ("there", 8), ("other", 9)):
            for part, ids in (("a", (1, 2)), ("b", (3, last))):
                (tmp_path / kind / folder / part).mkdir(parents=True)
                path = tmp_path / kind / folder / part / "one"
                if kind == "csv":
                    path.write_text("x,label\n" + "".join(f"{i},{i}\n" for i in ids))
                else:
                    write_examples(tf, path, ids, compression="GZIP" if kind == "gzip" else "")
        here, there, other = (told(kind, 2**30, tmp_path / kind / f) for f in ("here", "there", "other"))
        assert here == there and here["one"] != other["one"] and here["one (2)"] == other["one (2)"] != here["one"]
    for kind in ("csv", "tfrecord"):
        assert told(kind, 0, tmp_path / kind / "here") == told(kind, 2**30, tmp_path / kind / "here")
    assert "input.content" not in inputs.from_arrays(arrays(), global_batch_size=2).identity()[0]


def test_off_and_distinct_seeds_e2(tf):
    data = inputs.from_arrays(arrays(), global_batch_size=10, shard_policy="off", worker_seeds="distinct")
    epochs = [np.concatenate(labels_of(data.train_input_fn(context(tf, 2, p)), 20)) for p in range(2)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert not np.array_equal(*epochs)
    # Evaluation is shared all the same: each record once.
    data = inputs.from_arrays(arrays(), arrays(), global_batch_size=10, shard_policy="off")
    parts = [np.concatenate(labels_of(data.eval_input_fn(context(tf, 2, p)))) for p in range(2)]
    assert np.concatenate(parts).tolist() == list(range(100))


@pytest.mark.parametrize("memory_limit", [0, 2**30])
def test_k3_the_hint_is_filled_in_by_the_strategy(tf, tmp_path, environ, memory_limit):
    """One worker: all of the stream, from any step on, from files as from memory; transforms as ever."""
    data = inputs.from_tfrecord(
        train=tfrecord_files(tf, tmp_path), features=SPEC, features_key="x", global_batch_size=12, seed=3,
        shard_policy="hint", memory_limit=memory_limit, environ=environ, transform=lambda x, y: (x * 10, y),
    )  # fmt: skip
    policy = data.train_input_fn().options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.HINT
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    for start in (0, 13):
        dataset = data.at_step(start).train_input_fn()
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY and dataset.element_spec[1].shape == [12]
        batches = iter(strategy.experimental_distribute_dataset(dataset))
        got = [next(batches) for _ in range(9)]
        # The inputs' own sharding for one worker reads the same.
        own = list(data.at_step(start).train_input_fn(context(tf, 1, 0)).take(9))
        for (x, label), (other_x, other_label) in zip(got, own, strict=True):
            assert label.numpy().tolist() == other_label.numpy().tolist()
            assert np.array_equal(x, other_x) and np.array_equal(x[:, 0], label.numpy() * 10)
    with pytest.raises(InputError, match="TensorFlow does not apply the hint"):
        data.train_input_fn(context(tf, 2, 0))
    text = data.describe(2)
    assert "policy hint: set explicitly" in text and "pipeline 1: record 1 of each 2 in turn" in text
    assert "guaranteed: the records of a step depend only on the seed and the step" in text


def test_k3_a_finite_stream_by_the_hint_ends_with_its_full_steps(tf):
    data = inputs.from_arrays(arrays(), global_batch_size=12, seed=3, shard_policy="hint", epochs=1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    read = [
        label for batch in strategy.experimental_distribute_dataset(data.train_input_fn()) for label in batch[1].numpy()
    ]
    assert len(read) == len(set(read)) == 96
    with pytest.raises(InputError, match="cannot shard a smaller last batch"):
        inputs.from_arrays(arrays(), global_batch_size=12, shard_policy="hint", epochs=1, drop_remainder=False)


def test_batches_without_records_do_no_harm(tf, tmp_path, environ):
    """TensorFlow's unbatch() crashes the process on one, so that none must come to it."""
    for name, data in all_kinds(tf, tmp_path, environ, global_batch_size=200, eval_batch_size=200):
        parts = [labels_of(data.eval_input_fn(context(tf, 2, p, 200))) for p in range(2)]
        assert [len(part) for part in parts] == [100, 100]
        assert {len(batch) for part in parts for batch in part} == {0, 1}
        assert np.concatenate(parts[0] + parts[1]).tolist() == list(range(100)), name
    for name, data in all_kinds(
        tf, tmp_path, environ, global_batch_size=150, epochs=1, drop_remainder=False, shuffle_window=None
    ):
        batches = labels_of(data.train_input_fn(context(tf, 1, 0, 150)))
        assert len(batches) == 150 and sorted(np.concatenate(batches)) == list(range(100)), name


@pytest.mark.parametrize("drop", [True, False])
def test_a_finite_stream_keeps_or_drops_its_remainder(tf, drop):
    data = inputs.from_arrays(arrays(), global_batch_size=12, epochs=2, drop_remainder=drop)
    batches = labels_of(data.train_input_fn())
    assert [len(batch) for batch in batches] == [12] * 16 + ([] if drop else [8])
    if not drop:
        assert (np.bincount(np.concatenate(batches)) == 2).all()
    dataset = data.at_step(15).train_input_fn()
    assert int(tf.data.experimental.cardinality(dataset)) == len(labels_of(dataset)) == (1 if drop else 2)
    assert labels_of(data.at_step(40).train_input_fn()) == []


def test_an_endless_stream_says_so_and_has_a_fixed_batch(tf):
    """Else a strategy asks all replicas at each step whether they have a batch."""
    data = inputs.from_arrays(arrays(), arrays(), global_batch_size=12)
    dataset = data.train_input_fn()
    assert int(tf.data.experimental.cardinality(dataset)) == tf.data.INFINITE_CARDINALITY
    assert dataset.element_spec[0].shape == (12, 2)
    assert int(tf.data.experimental.cardinality(data.eval_input_fn())) == 9
    sharding = dataset.options().experimental_distribute.auto_shard_policy
    assert sharding == tf.data.experimental.AutoShardPolicy.OFF


def test_transforms_in_their_order_on_batches_and_on_records(tf):
    def record(features, label):
        return {"sum": tf.reduce_sum(features), "own": features}, label + 1

    data = inputs.from_arrays(
        arrays(),
        arrays(),
        global_batch_size=10,
        eval_batch_size=7,
        shuffle=False,
        scale=2,
        record_transform=record,
        train_transform=lambda f, y: (f, -y),
        transform=lambda f, y: (f["sum"], y * 10),
    )
    features, labels = next(iter(data.train_input_fn()))
    assert labels.numpy().tolist() == [-10 * (i + 1) for i in range(10)]
    assert features.numpy().tolist() == [6.0 * i for i in range(10)]
    batches = labels_of(data.eval_input_fn())
    assert np.concatenate(batches).tolist() == [10 * (i + 1) for i in range(100)]
    assert data.features_spec == {"features": tf.TensorSpec((), tf.float32)}


@pytest.mark.parametrize("name", ["record_transform", "transform"])
def test_a_transform_may_have_conditions(tf, name):
    def small_alone(features, label):
        if tf.reduce_max(features) > 20:
            label = -tf.ones_like(label)
        return features, label

    made = inputs.from_arrays(arrays(), global_batch_size=10, shuffle=False, **{name: small_alone})
    batches = [labels.numpy().tolist() for _, labels in made.train_input_fn().take(3)]
    assert batches[0] == list(range(10)) and batches[2] == [-1] * 10


def test_text_dicts_and_several_labels(tf):
    features = {"name": np.array(["ann", "bob", "zoë"]), "age": np.array([1, 2, 3], np.int32)}
    targets = {"a": np.arange(3), "b": np.arange(3) * 2}
    data = inputs.from_arrays((features, targets), global_batch_size=3, shuffle=False, scale={"age": 0.5})
    got, labels = next(iter(data.train_input_fn()))
    assert got["name"].numpy().tolist() == [b"ann", b"bob", "zoë".encode()]
    assert got["age"].numpy().tolist() == [0.5, 1.0, 1.5]
    assert labels["b"].numpy().tolist() == [0, 2, 4]
    assert set(data.label_spec) == {"a", "b"}
    objects = inputs.from_arrays(
        ({"t": np.array(["x", b"y"], dtype=object)}, np.arange(2)), global_batch_size=2, shuffle=False
    )
    assert next(iter(objects.train_input_fn()))[0]["t"].numpy().tolist() == [b"x", b"y"]


def test_describe_says_who_reads_what_why_and_what_is_not_promised(tf, tmp_path, environ):
    text = inputs.from_arrays(arrays(), arrays(), global_batch_size=12).describe(2)
    assert "policy data: the data is held in memory" in text
    assert "pipeline 1: records 6 to 11 of each 12" in text
    assert "for any number of workers" in text
    assert "evaluation: evaluation arrays, 100 records, each exactly once, in 9 step(s)" in text
    paths = tfrecord_files(tf, tmp_path, (30, 30, 30, 10))
    data = inputs.from_tfrecord(
        train=paths, features=SPEC, global_batch_size=12, memory_limit=0, shard_policy="file", environ=environ
    )
    text = data.describe(2)
    assert "pipeline 0: 2 file(s) with 60 records: part-0.tfrecord" in text
    assert "records of the smaller ones come up to 1.50 times as often" in text
    assert "a different number shards the files differently" in text
    assert "not guaranteed" in data.describe(2, asynchronous=True)
    finite = inputs.from_arrays(arrays(), global_batch_size=12, epochs=1)
    assert "8 full steps, 4 record(s) at the end fill no batch and are dropped" in finite.describe()
    kept = inputs.from_arrays(arrays(), global_batch_size=12, epochs=1, drop_remainder=False)
    assert "then 1 step(s) with the 4 record(s) left over, 2 a batch, on replica(s) 2" not in kept.describe(2)
    assert "4 record(s) left over, 2 a batch, on replica(s) 1 1" not in kept.describe(2)
    assert "then 1 step(s) with the 4 record(s) left over, 2 a batch, on replica(s) 1, 2 1" in kept.describe(3)
    few = inputs.from_arrays(arrays(1), arrays(1), global_batch_size=4)
    assert "1 batch(es) are empty" in few.describe(2)


# --- files ---------------------------------------------------------------------------------------------


def test_tfrecord_codings_types_and_compression(tf, tmp_path, environ):
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)

    def example(number):
        def text(value):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

        tags = tf.train.Feature(int64_list=tf.train.Int64List(value=range(number)))
        return {
            "png": text(tf.io.encode_png(image + np.uint8(number)).numpy()),
            "raw": text((np.arange(6, dtype=np.float64) * number).tobytes()),
            "flag": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
            "name": text(b"n%d" % number),
            "tags": tags,
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        }

    spec = {
        "png": "image uint8[4,4,3]",
        "raw": "raw float64[2, 3]",
        "flag": "bool",
        "name": "string",
        "tags": tf.io.VarLenFeature(tf.int64),
        "label": "int32",
    }
    plain = write_examples(tf, tmp_path / "a.tfrecord", range(5), make=example)
    packed = write_examples(tf, tmp_path / "b.tfrecord.gz", range(5), make=example, compression="GZIP")
    for path in (plain, packed):
        data = inputs.from_tfrecord(train=path, features=spec, global_batch_size=5, shuffle=False, environ=environ)
        features, labels = next(iter(data.train_input_fn()))
        assert labels.dtype == tf.int32 and labels.numpy().tolist() == [0, 1, 2, 3, 4]
        assert np.array_equal(features["png"][3], image + 3)
        assert np.array_equal(features["raw"][2], np.arange(6.0).reshape(2, 3) * 2)
        assert features["flag"].numpy().tolist() == [False, True, False, True, False]
        assert features["name"].numpy().tolist() == [b"n0", b"n1", b"n2", b"n3", b"n4"]
        assert tf.sparse.to_dense(features["tags"]).numpy()[4].tolist() == [0, 1, 2, 3]
    # Without the strings and the lists the records have one size, and are held in memory.
    small = {name: spec[name] for name in ("png", "raw", "flag", "label")}
    held = inputs.from_tfrecord(train=packed, features=small, global_batch_size=5, shuffle=False, environ=environ)
    assert "held in memory" in held.describe()
    assert np.array_equal(next(iter(held.train_input_fn()))[0]["png"][3], image + 3)


def test_the_index_of_a_file_is_kept_and_made_anew_when_the_file_changes(tf, tmp_path, environ):
    path = write_examples(tf, tmp_path / "a.tfrecord", range(5))

    def count():
        options = {"global_batch_size": 1, "environ": environ}
        return inputs.from_tfrecord(train=path, features=SPEC, **options).num_train_records

    assert count() == 5
    index = tmp_path / "home" / ".cache" / "estimator_pipeline" / "index"
    kept = list(index.glob("*"))
    assert len(kept) == 1
    before = kept[0].stat().st_mtime_ns
    assert count() == 5 and kept[0].stat().st_mtime_ns == before
    write_examples(tf, path, range(9))
    assert count() == 9
    kept[0].write_bytes(b"half an index")
    write_examples(tf, path, range(5))
    assert count() == 5


def test_records_of_several_shapes_are_brought_to_one(tf, tmp_path, environ):
    def example(number):
        pixels = tf.io.encode_png(np.full((4 + number, 5, 1), number, np.uint8)).numpy()
        return {
            "png": tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        }

    path = write_examples(tf, tmp_path / "a.tfrecord", range(3), make=example)

    def decoded(features, label):
        image = tf.io.decode_png(features["png"], channels=1)
        return tf.ensure_shape(tf.image.resize(image, [2, 2]), [2, 2, 1]), label

    data = inputs.from_tfrecord(
        train=path,
        eval=path,
        features={"png": "string", "label": "int64"},
        global_batch_size=2,
        shuffle=False,
        record_transform=decoded,
        environ=environ,
    )
    images = np.concatenate([features.numpy() for features, _ in data.eval_input_fn()])
    assert images.shape == (3, 2, 2, 1) and images[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert data.features_spec == {"features": tf.TensorSpec((2, 2, 1), tf.float32)}


def test_csv_headers_defaults_quotes_delimiters(tf, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffname;age;label;more\r\n"a;b";;0;x\r\n\r\nç;7;1;y'.encode())
    for limit in (0, 2**30):
        data = inputs.from_csv(
            train=path,
            columns={"label": "int64", "age": ("float32", -1.0), "name": "string"},
            delimiter=";",
            global_batch_size=2,
            shuffle=False,
            memory_limit=limit,
        )
        features, labels = next(iter(data.train_input_fn()))
        assert features["name"].numpy().tolist() == [b"a;b", "ç".encode()]
        assert features["age"].numpy().tolist() == [-1.0, 7.0]
        assert labels.numpy().tolist() == [0, 1] and set(features) == {"name", "age"}
    bare = tmp_path / "b.csv"
    bare.write_text("1,2\n3,4\n")
    data = inputs.from_csv(
        train=bare,
        columns={"x": "float64", "label": "int32"},
        header=False,
        global_batch_size=2,
        shuffle=False,
    )
    assert next(iter(data.train_input_fn()))[0]["x"].numpy().tolist() == [1.0, 3.0]


def _tfrecord(tf, tmp_path, **more):
    options = {"features": SPEC, "global_batch_size": 2, "environ": {"HOME": str(tmp_path)}, **more}
    return inputs.from_tfrecord(**options)


def _cut(tf, tmp_path):
    path = write_examples(tf, tmp_path / "cut", range(3))
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 5)
    return _tfrecord(tf, tmp_path, train=path)


def _damaged(tf, tmp_path):
    path = write_examples(tf, tmp_path / "bad", range(3))
    with open(path, "r+b") as file:
        size = os.path.getsize(path) // 3
        file.seek(size + 9)  # a byte of the second record's checksum
        byte = file.read(1)[0]
        file.seek(size + 9)
        file.write(bytes([byte ^ 1]))
    return _tfrecord(tf, tmp_path, train=path)


def _file(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def _csv(tmp_path, text, **more):
    return inputs.from_csv(train=_file(tmp_path, "t.csv", text), **{"global_batch_size": 2, **more})


class Frame(dict):
    """What a DataFrame has, of which no package is needed here."""

    columns = property(lambda self: list(self))
    to_numpy = None


XY = (np.zeros((4, 2)), np.zeros(4))
# What is given, and the words that the message must hold.
REFUSED = {
    "no such file": (lambda tf, p: _tfrecord(tf, p, train=str(p / "no")), "no: nothing there"),
    "a directory": (lambda tf, p: _tfrecord(tf, p, train=str(p)), "a directory"),
    "a pattern without matches": (lambda tf, p: _tfrecord(tf, p, train=f"{p}/*.tfr"), "the folder is there"),
    "a pattern in no folder": (lambda tf, p: _tfrecord(tf, p, train=f"{p}/x/*"), "there is no folder"),
    "no files": (lambda tf, p: _tfrecord(tf, p, train=[]), "There are no training files"),
    "neither": (lambda tf, p: _tfrecord(tf, p), "give train=, eval=, or both"),
    "twice": (lambda tf, p: _tfrecord(tf, p, train=[_file(p, "a", "")] * 2), "named twice"),
    "remote": (lambda tf, p: _tfrecord(tf, p, train="gs://b/x"), "copy the files to a local disk"),
    "empty": (
        lambda tf, p: _tfrecord(tf, p, train=_file(p, "a", "")),
        "There are no records in the training",
    ),
    "text": (
        lambda tf, p: _tfrecord(tf, p, train=_file(p, "a", "some text that is no record")),
        "a, record 0, at byte 0: the length of the record does not match its checksum",
    ),
    "cut off": (_cut, "record 2, at byte"),
    "damaged": (_damaged, "bad, record 1, at byte"),
    "no gzip": (
        lambda tf, p: _tfrecord(tf, p, train=_file(p, "a.gz", "text")),
        "A compressed TFRecord file cannot be read",
    ),
    "gzip too large": (
        lambda tf, p: _tfrecord(tf, p, train=_file(p, "a.gz", gzip.compress(bytes(2000))), memory_limit=1000),
        "more than 1000 bytes",
    ),
    "some compressed": (
        lambda tf, p: _tfrecord(tf, p, train=[_file(p, "a.gz", ""), _file(p, "b", "")]),
        "Some files are compressed and some are not",
    ),
    "another compression": (
        lambda tf, p: _tfrecord(tf, p, train=_file(p, "a", ""), compression="ZLIB"),
        "use '' or 'GZIP'",
    ),
    "no Example": (
        lambda tf, p: _tfrecord(tf, p, train=_record(tf, p, b"\xff\xff\xff")),
        "A record is not a tf.train.Example",
    ),
    "a feature missing": (
        lambda tf, p: _tfrecord(
            tf, p, train=write_examples(tf, p / "a", range(2)), features={"z": "float32", "label": "int64"}
        ),
        "a, record 0 has label, x",
    ),
    "a SequenceExample": (
        lambda tf, p: _tfrecord(
            tf, p, train=_record(tf, p, _sequence(tf)), features={"ids": "varlen int64", "label": "int64"}
        ),
        "record 0 has ids in its feature_lists",
    ),
    "a SequenceExample, by another name": (
        lambda tf, p: _tfrecord(
            tf,
            p,
            train=_record(tf, p, _sequence(tf)),
            features={"x": tf.io.RaggedFeature(tf.int64, value_key="ids"), "label": "int64"},
        ),
        "record 0 has ids in its feature_lists",
    ),
    "another type": (
        lambda tf, p: _tfrecord(
            tf, p, train=write_examples(tf, p / "a", range(2)), features={"x": "int64[2]", "label": "int64"}
        ),
        "record 0 has float32, the spec has int64",
    ),
    "another size": (
        lambda tf, p: _tfrecord(
            tf, p, train=write_examples(tf, p / "a", range(2)), features={"x": "float32[3]", "label": "int64"}
        ),
        "holds 2 value(s), the spec's shape is [3]",
    ),
    "a spec in no language": (
        lambda tf, p: _tfrecord(tf, p, train=_file(p, "a", ""), features={"x": "floats"}),
        "The spec of the feature 'x' is not understood",
    ),
    "no such label": (
        lambda tf, p: _tfrecord(tf, p, train=write_examples(tf, p / "a", range(2)), label_key="y"),
        "The data has no label 'y'",
    ),
    "a weight that is the label": (
        lambda tf, p: _tfrecord(tf, p, train=write_examples(tf, p / "a", range(2)), weight_key="label"),
        "'label' is a label and cannot be the record weight as well",
    ),
    "no such weight": (
        lambda tf, p: _tfrecord(tf, p, train=write_examples(tf, p / "a", range(2)), weight_key="w"),
        "The data has no label 'w'",
    ),
    "no such feature": (
        lambda tf, p: _tfrecord(tf, p, train=write_examples(tf, p / "a", range(2)), features_key="y"),
        "The data has no feature 'y'",
    ),
    "csv: columns": (lambda tf, p: _csv(p, "x,label\n1,2\n1,2,3\n"), "t.csv, line 3: 3 cells, 2 columns"),
    "csv: no number": (lambda tf, p: _csv(p, "x,label\n1,2\nabc,3\n"), "t.csv, line 3: 'abc'"),
    "csv: a fraction": (
        lambda tf, p: _csv(p, "x,label\n1.5,2\n", columns={"x": "int64", "label": "int64"}),
        "A cell of the column 'x' is not of type int64",
    ),
    "csv: too large": (
        lambda tf, p: _csv(p, "x,label\n3000000000,2\n", columns={"x": "int32", "label": "int64"}),
        "line 2: '3000000000'",
    ),
    "csv: empty cell": (lambda tf, p: _csv(p, "x,label\n,2\n"), "columns={'x': ('float32', 0)}"),
    "csv: no column": (lambda tf, p: _csv(p, "x,y\n1,2\n", columns={"z": "float32"}), "line 1: x, y"),
    "csv: column twice": (lambda tf, p: _csv(p, "x,x,label\n1,2,3\n"), "there more than once"),
    "csv: empty file": (lambda tf, p: _csv(p, ""), "has no header"),
    "csv: header alone": (lambda tf, p: _csv(p, "x,label\n"), "There are no records in the training CSV"),
    "csv: bytes": (lambda tf, p: _csv(p, b"x,label\n\xff,2\n"), "line 2: invalid start byte"),
    "csv: an open quote": (lambda tf, p: _csv(p, 'x,label\n1,"2\n3,4\n'), "t.csv, line 2: the cell reaches to the end"),
    "csv: no columns": (lambda tf, p: _csv(p, "1,2\n", header=False), "need columns"),
    "csv: type": (lambda tf, p: _csv(p, "x,label\n1,2\n", columns={"x": "float"}), "float32, float64, int32"),
    "csv: delimiter": (
        lambda tf, p: _csv(p, "x,label\n1,2\n", delimiter="::"),
        "A delimiter is one character",
    ),
    "lengths": (
        lambda tf, p: inputs.from_arrays((np.zeros(3), np.zeros(4)), global_batch_size=1),
        "features: 3, label: 4",
    ),
    "no records": (
        lambda tf, p: inputs.from_arrays((np.zeros((0, 2)), np.zeros(0)), global_batch_size=1),
        "There are no records in training arrays",
    ),
    "no pair": (lambda tf, p: inputs.from_arrays(np.zeros(3), global_batch_size=1), "give a pair"),
    "no data": (lambda tf, p: inputs.from_arrays(global_batch_size=1), "from_arrays got no data"),
    "objects": (
        lambda tf, p: inputs.from_arrays((np.array([{}, {}]), np.zeros(2)), global_batch_size=1),
        "is not an array of records",
    ),
    "missing text": (
        lambda tf, p: inputs.from_arrays(
            ({"city": np.array(["a", float("nan")], object)}, [0, 1]), global_batch_size=1
        ),
        "with nan\n  hint: use from_dataframe, or fill missing values, in pandas: frame['city']",
    ),
    "frame": (
        lambda tf, p: inputs.from_arrays((Frame({"city": ["a"], "age": [1.0]}), [0]), global_batch_size=1),
        "training data are a table, a Frame, with the columns city, age",
    ),
    "batch size": (
        lambda tf, p: inputs.from_arrays(XY, batch_size=1),
        "did you mean global_batch_size?",
    ),
    "unlike": (
        lambda tf, p: inputs.from_arrays(XY, (np.zeros((4, 3)), np.zeros(4)), global_batch_size=1),
        "Training and evaluation data have different structures",
    ),
    "no batch": (lambda tf, p: inputs.from_arrays(XY), "needs global_batch_size"),
    "misspelt": (
        lambda tf, p: inputs.from_arrays(XY, global_batch_size=1, sharding=1),
        "has no option 'sharding'",
    ),
    "close": (lambda tf, p: inputs.from_arrays(XY, global_batch_size=1, epoch=1), "did you mean epochs?"),
    "policy": (
        lambda tf, p: inputs.from_arrays(XY, global_batch_size=1, shard_policy="records"),
        "use one of auto, file, data, hint, off",
    ),
    "seeds": (
        lambda tf, p: inputs.from_arrays(XY, global_batch_size=1, worker_seeds="distinct"),
        "add shard_policy='off'",
    ),
    "scale": (lambda tf, p: inputs.from_arrays(XY, global_batch_size=1, scale="1/16"), "scale=1/16"),
    "scale of none": (
        lambda tf, p: inputs.from_arrays(XY, global_batch_size=1, scale={"x": 2.0}),
        "scale names the unknown feature 'x'",
    ),
    "transform": (
        lambda tf, p: inputs.from_arrays(XY, global_batch_size=1, transform=lambda f, y: f).train_input_fn(),
        "A transform must return (features, labels)",
    ),
    "indivisible": (
        lambda tf, p: inputs.from_arrays(XY, global_batch_size=64).train_input_fn(context(tf, 3, 0)),
        "use a multiple of 3: the nearest are 63 and 66",
    ),
    "no evaluation": (
        lambda tf, p: inputs.from_arrays(XY, global_batch_size=1).eval_input_fn(),
        "There is no evaluation data",
    ),
    "file policy without files": (
        lambda tf, p: inputs.from_arrays(XY, global_batch_size=1, shard_policy="file").train_input_fn(),
        "shard_policy='file' needs data in files",
    ),
    "too few files": (
        lambda tf, p: _tfrecord(tf, p, train=write_examples(tf, p / "a", range(2)), shard_policy="file").train_input_fn(
            context(tf, 2, 0)
        ),
        "1 files cannot be shared by 2 input pipelines",
    ),
}


def _record(tf, folder, data):
    with tf.io.TFRecordWriter(str(folder / "r")) as writer:
        writer.write(data)
    return str(folder / "r")


def _sequence(tf):
    """A record with the label in its context, and a list."""
    number = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
    return tf.train.SequenceExample(
        context=tf.train.Features(feature={"label": number}),
        feature_lists=tf.train.FeatureLists(feature_list={"ids": tf.train.FeatureList(feature=[number] * 3)}),
    ).SerializeToString()


def test_the_context_of_a_sequence_example_is_read_as_an_example(tf, tmp_path):
    spec = {"label": "int64", "x": tf.io.FixedLenFeature([], tf.float32, 0.5)}
    data = _tfrecord(tf, tmp_path, train=_record(tf, tmp_path, _sequence(tf)), features=spec)
    assert data.num_train_records == 1


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_the_place_and_the_mend(tf, tmp_path, case):
    call, words = REFUSED[case]
    with pytest.raises(InputError) as refused:
        call(tf, tmp_path)
    assert words in str(refused.value)


def test_a_bad_record_in_the_middle_is_named_when_it_is_read(tf, tmp_path, environ):
    def example(number):
        name = "y" if number == 51 else "x"
        return {
            name: tf.train.Feature(float_list=tf.train.FloatList(value=[1, 2])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        }

    path = write_examples(tf, tmp_path / "a.tfr", range(100), make=example)
    data = inputs.from_tfrecord(train=path, features=SPEC, global_batch_size=10, environ=environ)
    words = "a.tfr, record 51 has label, y"
    with pytest.raises(tf.errors.OpError) as failed:
        labels_of(data.train_input_fn(), 20)
    assert words in str(failed.value) and "InputError" in str(failed.value)


# --- under an Estimator ----------------------------------------------------------------------------------

MIRRORED = textwrap.dedent(
    """
    import json, sys, tempfile
    import numpy as np
    from estimator_pipeline import compat, inputs

    tf = compat.install()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


    def model_fn(features, labels, mode):
        weight = tf.compat.v1.get_variable("w", [], tf.float64, initializer=tf.zeros_initializer())
        ids = tf.cast(labels, tf.float64)
        # Records that a batch holds, weighed so that a record read twice, or not at all, changes the sums.
        loss = tf.reduce_sum(ids) * weight
        metrics = None
        if mode == tf.estimator.ModeKeys.EVAL:
            total = tf.compat.v1.metrics.mean(tf.ones_like(ids))
            mean = tf.compat.v1.metrics.mean(ids)
            square = tf.compat.v1.metrics.mean(ids * ids)
            metrics = {"mean": mean, "square": square, "ones": total}
        step = tf.compat.v1.train.get_or_create_global_step()
        train = tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops=metrics)


    def job(count, batch, steps, **options):
        ids = np.arange(count)
        pair = ids[:, None], ids
        data = inputs.from_arrays(pair, pair, global_batch_size=batch, seed=2, **options)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        # Without the count the session has one CPU device, and the collectives of the second wait for ever.
        session = tf.compat.v1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=True)
        config = tf.estimator.RunConfig(
            train_distribute=strategy, eval_distribute=strategy, session_config=session
        )
        estimator = tf.estimator.Estimator(model_fn, tempfile.mkdtemp(), config)
        estimator.train(data.train_input_fn, max_steps=steps)
        metrics = estimator.evaluate(data.eval_input_fn, steps=None)
        trained = int(estimator.get_variable_value("global_step"))
        return {
            "w": float(estimator.get_variable_value("w")),
            "steps": trained,
            **{name: float(metrics[name]) for name in ("mean", "square", "ones")},
        }


    print("RESULT", json.dumps([job(*case["args"], **case["options"]) for case in json.loads(sys.argv[1])]))
    """
)


@pytest.mark.nightly
def test_an_estimator_on_two_devices_reads_each_record_once_and_ends(tmp_path):
    """Two logical CPU devices under MirroredStrategy: partial batches, empty ones, and streams that end."""
    cases = [
        {"args": (100, 12, 20), "options": {}},
        {"args": (7, 4, 5), "options": {"eval_batch_size": 2}},
        {"args": (1, 2, 3), "options": {}},  # fewer records than replicas: a replica evaluates an empty batch
        {"args": (10, 4, 100), "options": {"epochs": 1, "drop_remainder": False}},  # ends before max_steps
        {"args": (11, 4, 100), "options": {"epochs": 1}},
    ]
    script = tmp_path / "job.py"
    script.write_text(MIRRORED)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(cases)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.split("RESULT", 1)[1])
    steps = [20, 5, 3, 3, 2]
    for case, result, count_steps in zip(cases, results, steps, strict=True):
        count, batch, _ = case["args"]
        ids = np.arange(count)
        assert result["mean"] == pytest.approx(ids.mean())
        assert result["square"] == pytest.approx((ids**2).mean())
        assert result["ones"] == 1.0
        assert result["steps"] == count_steps
        sampler = inputs.IndexSampler(count, seed=2, epochs=case["options"].get("epochs"))
        stop = count_steps * batch
        if case["options"].get("drop_remainder") is False:
            stop = count
        # The gradient on a replica is the sum of its ids; the V1 optimizer divides it by two replicas.
        assert result["w"] == pytest.approx(-record_ids(sampler, 0, stop).sum() / 2)


def test_a_graph_of_tensorflow_1_holds_no_data(tf):
    """What an Estimator writes to disk as its graph must not grow with the data."""
    x = np.zeros((20_000, 100), np.float32)
    data = inputs.from_arrays((x, np.zeros(20_000)), global_batch_size=100)
    with tf.Graph().as_default() as graph:
        tf.compat.v1.data.make_one_shot_iterator(data.train_input_fn()).get_next()
        assert len(graph.as_graph_def().SerializeToString()) < 50_000


def test_names_of_the_package_and_the_parameter_that_tensorflow_injects_by_name(tf):
    assert set(dir(inputs)) >= {"from_tfds", "from_tfrecord", "from_csv", "from_arrays", "InputOptions"}
    with pytest.raises(AttributeError, match="from_text"):
        _ = inputs.from_text
    data = inputs.from_arrays(arrays(), arrays(), global_batch_size=10)
    for function in (data.train_input_fn, data.eval_input_fn):
        assert list(inspect.signature(function).parameters) == ["input_context"]
    tf.estimator.TrainSpec(data.train_input_fn, max_steps=1)
    tf.estimator.EvalSpec(data.eval_input_fn, steps=None)


@pytest.mark.nightly
@pytest.mark.parametrize("digits", [False, True])
def test_making_data_does_not_start_tensorflows_runtime(tf, tmp_path, digits):
    """A MultiWorkerMirroredStrategy refuses to be made once it runs, and people make their data first.

    Clusters whose job file names the digits would not train either.
    """
    tfrecord_files(tf, tmp_path)
    csv_files(tmp_path)
    code = textwrap.dedent(
        """
        import sys
        import numpy as np
        from estimator_pipeline import compat, inputs

        tf = compat.install()
        home = {"HOME": sys.argv[1]}
        common = {"global_batch_size": 8, "transform": lambda f, y: (f, y)}
        spec = {"x": "float32[2]", "label": "int64"}
        made = [
            inputs.from_arrays((np.zeros((9, 2)), np.zeros(9)), **common),
            inputs.from_csv(sys.argv[1] + "/*.csv", **common),
            inputs.from_tfrecord(sys.argv[1] + "/*.tfrecord", features=spec, environ=home, **common),
        ]
        if sys.argv[2] == "True":
            made.append(inputs.from_tfds("digits", data_dir=sys.argv[1], environ=home, **common))
        for data in made:
            data.describe(2)
        # Refused as soon as the runtime has started, as that strategy is.
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        for data in made:
            context = tf.distribute.InputContext(2, 1, 2)
            features, labels = next(iter(data.train_input_fn(context)))
            assert labels.shape == (4,)
        """
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(digits)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


# For editors and people ------------------------------------------------------------------------------------------


def test_the_repr_has_source_records_batch_size_and_policy_and_reads_no_data(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("x,label\n" + "1,0\n" * 10)
    data = inputs.from_csv(str(path), str(path), global_batch_size=4, eval_batch_size=5, shard_policy="data")
    monkeypatch.setattr(TableSource, "raw", lambda *_: pytest.fail("data was read"))
    monkeypatch.setattr(InMemory, "raw", lambda *_: pytest.fail("data was read"))
    train = "training: the training CSV files, 10 records, batch size 4, shard policy data"
    evaluation = "evaluation: the evaluation CSV files, 10 records, batch size 5, shard policy data"
    assert repr(data) == f"Inputs({train}; {evaluation})"
    assert (repr(data.train_input_fn), repr(data.eval_input_fn)) == (f"InputFn({train})", f"InputFn({evaluation})")
    only = inputs.from_arrays((np.zeros((6, 2)), np.zeros(6)), global_batch_size=2)
    assert repr(only) == "Inputs(training: training arrays, 6 records, batch size 2, shard policy auto)"
    assert repr(only.eval_input_fn) == "InputFn(no evaluation data)"


def test_the_options_that_type_checkers_see_are_the_fields_of_input_options():
    from estimator_pipeline.inputs.options import FactoryOptions, InputOptions

    seen = {name: hint.__forward_arg__ for name, hint in FactoryOptions.__annotations__.items()}
    assert seen == InputOptions.__annotations__ | {"global_batch_size": "Required[int]"}
    for name in (name for name in inputs.__all__ if name.startswith("from_")):
        options = inspect.signature(getattr(inputs, name)).parameters["options"]
        assert options.annotation == "Unpack[FactoryOptions]"
