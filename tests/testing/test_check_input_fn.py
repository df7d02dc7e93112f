"""check_input_fn: good input_fns of every form pass; for each check, one that is broken fails it and nothing else."""

# ruff: noqa: E501 (tables of cases read best with one case a line)
from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from estimator_pipeline import inputs, testing
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.testing import input_checks
from estimator_pipeline.testing import record_stream as streams
from estimator_pipeline.testing import shard_checks as shards
from tests.support.processes import tensorflow_with_three_cpus
from tests.support.tutorial_names import tutorial

tf = tensorflow_with_three_cpus()
__all__ = ["tutorial"]  # a fixture
N, BATCH = 24, 12


def records(chosen=None):
    """N records, each with a content of its own."""
    dataset = tf.data.Dataset.range(N) if chosen is None else tf.data.Dataset.from_tensor_slices(chosen)
    return dataset.map(lambda i: ({"x": tf.cast(tf.stack([i, 2 * i]), tf.float32)}, i))


def pieces(input_context=None, batch=BATCH):
    """(number of shards, index, batch) by the book."""
    if input_context is None:
        return 1, 0, batch
    size = input_context.get_per_replica_batch_size(batch)
    return input_context.num_input_pipelines, input_context.input_pipeline_id, size


def good(mode, input_context=None):
    """What all the broken ones are made from."""
    shards, index, size = pieces(input_context)
    dataset = records().shard(shards, index)
    if mode == tf.estimator.ModeKeys.TRAIN:
        dataset = dataset.shuffle(N).repeat()
    return dataset.batch(size)


def train_only(input_context=None):
    return good("train", input_context)


class Factory:
    def __call__(self, mode, params):
        return good(mode).take(10_000 if params["all"] else 1)


def everything_apart(input_context=None):
    """Unsharded, shuffled by each pipeline with a seed of its own."""
    _, index, size = pieces(input_context)
    return records().shuffle(N, seed=index + 1).repeat().batch(size)


def one_order(input_context=None):
    """All shuffle alike, anew in each epoch, and take turns."""
    shards, index, size = pieces(input_context)
    return records().shuffle(N, seed=5).repeat().shard(shards, index).batch(size)


def sparse(input_context=None):
    def add(features, label):
        indices = tf.cast(label, tf.int64) % 3
        made = tf.SparseTensor([[indices]], [tf.cast(label, tf.int64)], [3])
        return {**features, "s": made, "name": tf.strings.as_string(label)}, label

    shards, index, size = pieces(input_context)
    return records().shard(shards, index).map(add).repeat().batch(size)


def by_numpy(shuffle=True, num_epochs=None):
    x = np.arange(N, dtype=np.float32)
    return tf.compat.v1.estimator.inputs.numpy_input_fn(
        {"x": x}, x, batch_size=BATCH, shuffle=shuffle, num_epochs=num_epochs
    )


def as_tensors():
    """The oldest form: tensors instead of a dataset."""
    return tf.compat.v1.data.make_one_shot_iterator(train_only()).get_next()


ARRAYS = inputs.from_arrays(({"x": np.arange(2 * N, dtype=np.float32)}, np.arange(2 * N)), global_batch_size=BATCH)
DIGITS = inputs.from_tfds("digits", global_batch_size=64, scale=1 / 16)
ONE, TWO = {"pipelines": (1,)}, {"pipelines": (2,)}
GOOD = {
    "mode_and_context": (good, {"global_batch_size": BATCH}),
    "eval": (good, {"mode": "eval", "global_batch_size": BATCH, "num_records": N}),
    "predict": (good, {"mode": "predict", **TWO}),
    "context_alone": (train_only, {"global_batch_size": BATCH, **TWO}),
    "no_parameter": (lambda: train_only(), ONE),
    "features_alone": (lambda: train_only().map(lambda x, y: x), ONE),
    "object_with_params": (Factory(), {"params": {"all": True}, **ONE}),
    "partial": (functools.partial(good, "train"), {}),
    "everything_apart": (everything_apart, {}),
    "one_order": (one_order, {}),
    "sparse_and_text": (sparse, TWO),
    "numpy_input_fn": (by_numpy(), {**ONE, "mode": "train"}),
    "numpy_input_fn_eval": (by_numpy(shuffle=False, num_epochs=1), {"mode": "eval"}),
    "tensors": (as_tensors, ONE),
    "from_arrays": (ARRAYS.train_input_fn, {"global_batch_size": BATCH, **TWO}),
    "from_tfds": (DIGITS.train_input_fn, {"global_batch_size": 64, "pipelines": (2, 4)}),
    "from_tfds_eval": (DIGITS.eval_input_fn, {"mode": "eval", "num_records": DIGITS.num_eval_records}),
}


# Of two of these test_the_way_of_sharing_is_told says more, and mode_and_context has what "partial" has.
@pytest.mark.gate(*(name for name in GOOD if name not in ("from_tfds", "everything_apart", "one_order", "partial")))
@pytest.mark.parametrize("name", GOOD)
def test_good_ones_pass(name):
    input_fn, options = GOOD[name]
    report = testing.check_input_fn(input_fn, **options)
    expected = {"shards_do_not_overlap"} if options.get("pipelines") == (1,) else set()
    assert {outcome.name for outcome in report.skipped} == expected


@pytest.mark.nightly
def test_the_tutorials_input_fn(tutorial):
    assert testing.check_input_fn(tutorial["input_fn"], finite=True).ok
    with pytest.raises(testing.ComplianceError, match="the data ends after 23 batches"):
        testing.check_input_fn(tutorial["input_fn"], only=["training_repeats"])
    assert testing.check_input_fn(tutorial["input_fn"], mode="eval", num_records=360).ok


@pytest.mark.parametrize(
    ("input_fn", "says"),
    [(train_only, "each reads different records"), (one_order, "they take turns in a common order"),
     (everything_apart, "each reads all records, in a different order")],
)  # fmt: skip
def test_the_way_of_sharing_is_told(input_fn, says):
    (outcome,) = testing.check_input_fn(input_fn, only=["shards_do_not_overlap"]).passed
    assert outcome.found == f"2 pipelines: {says}; 3 pipelines: {says}"


# Broken ones ---------------------------------------------------------------------------------------------------


def misspelt(input_contxt=None):
    # Shuffled by chance, so that only the name is at fault.
    return records().shuffle(N).repeat().batch(BATCH)


def keyword_only(*, input_context=None):
    return misspelt()


@functools.wraps(good)
def hidden(*args, **kwargs):
    return misspelt()


def needs_more(mode, batch_size):
    return good(mode).unbatch().batch(batch_size)


def three(input_context=None):
    return tf.data.Dataset.zip((records(), records(), records())).batch(BATCH)


def raises(input_context=None):
    raise FileNotFoundError("no such file: clicks.csv")


def raises_for_some(input_context=None):
    return tf.data.TFRecordDataset("/nowhere/clicks.tfrecord")


def other_structure(input_context=None):
    dataset = train_only(input_context)
    return dataset if input_context is None else dataset.map(lambda x, y: ({**x, "worker": y}, y))


class Changing:
    calls = 0

    def __call__(self):
        self.calls += 1
        return train_only().map(lambda x, y: (x, tf.cast(y, tf.int32 if self.calls > 1 else tf.int64)))


def unknown_rank(input_context=None):
    def lose(x, y):
        return {"x": tf.numpy_function(lambda value: value, [x["x"]], tf.float32)}, y

    return train_only(input_context).map(lose)


def uneven(input_context=None):
    return train_only(input_context).map(lambda x, y: (x, y[:-1]))


def unbatched(input_context=None):
    return train_only(input_context).unbatch()


def with_empty(input_context=None):
    shards, index, size = pieces(input_context)
    batches = records().shard(shards, index).batch(size)
    return batches.map(lambda x, y: ({"x": x["x"][:0]}, y[:0])).take(1).concatenate(batches).repeat()


def by_two_files(input_context=None):
    shards, index, size = pieces(input_context)
    files = tf.data.Dataset.from_tensor_slices(np.arange(N, dtype=np.int64).reshape(2, -1)).shard(shards, index)
    return files.flat_map(records).repeat().batch(size)


def by_pipelines(input_context=None):
    """Right with one device a worker, wrong with two."""
    shards, index, _ = pieces(input_context)
    return records().shard(shards, index).repeat().batch(BATCH // shards)


def undivided(input_context=None):
    shards, index, _ = pieces(input_context)
    return records().shard(shards, index).repeat().batch(BATCH)


def one_shard_too_many(input_context=None):
    shards, index, size = pieces(input_context)
    return records().shard(shards + (shards > 1), index).repeat().batch(size)


def by_replicas(input_context=None):
    _, index, size = pieces(input_context)
    shards = 1 if input_context is None else input_context.num_replicas_in_sync
    return records().shard(shards, index).repeat().batch(size)


def same_everywhere(input_context=None, seed=5):
    _, _, size = pieces(input_context)
    return records().shuffle(N, seed=seed).repeat().batch(size)


def shuffled_then_sharded(input_context=None):
    """Each pipeline shuffles by chance, and then takes what may be another's."""
    shards, index, size = pieces(input_context)
    return records().shuffle(N).shard(shards, index).repeat().batch(size)


def neighbours(input_context=None):
    """Each pipeline also reads the next one's first records."""
    shards, index, size = pieces(input_context)
    own = np.arange(N).reshape(shards, -1)
    more = own[(index + 1) % shards][:2] if shards > 1 else own[0][:0]
    return records(np.concatenate([own[index], more])).repeat().batch(size)


def one_epoch(input_context=None):
    shards, index, size = pieces(input_context)
    return records().shard(shards, index).batch(size)


def neighbours_once(input_context=None):
    shards, index, size = pieces(input_context)
    own = np.arange(N).reshape(shards, -1)
    more = own[(index + 1) % shards][:2] if shards > 1 else own[0][:0]
    return records(np.concatenate([own[index], more])).batch(size)


def eval_drops(input_context=None):
    return records().batch(pieces(input_context, 16)[2], drop_remainder=True)


EVAL = {"mode": "eval"}
# What is broken: (input_fn, options, the one check that fails, what it says, what it advises).
BROKEN = {
    "misspelt": (misspelt, {}, "parameters_are_known",
                 r"has a parameter input_contxt, .* so input_context is never passed, and every pipeline reads all",
                 "rename input_contxt to input_context"),
    "context": (lambda context=None: misspelt(), {}, "parameters_are_known", "it looks like input_context", "rename"),
    "keyword_only": (keyword_only, {}, "parameters_are_known",
                     r"never passes the parameter input_context .*: it is keyword-only", "plain positional"),
    "hidden": (hidden, {}, "parameters_are_known", r"parameter mode of .*: it is hidden by a decorator", "plain"),
    "needs_more": (needs_more, {}, "parameters_are_known", "requires the parameter batch_size", "functools.partial"),
    "three": (three, {}, "returns_batches", "a tuple of 3 values was returned", r"\(features, labels\)"),
    "none": (lambda: None, {}, "returns_batches", "features is None", "return a tf.data.Dataset"),
    "numbers": (lambda: {"x": np.zeros(3)}, {}, "returns_batches", r"features\['x'\] is ndarray", "tf.data.Dataset"),
    "raises": (raises, {}, "returns_batches", r"FileNotFoundError: no such file: clicks.csv \(.*test_check_input_fn.py, line \d+: ",
               "correct the error in the input_fn"),
    "raises_later": (raises_for_some, {}, "returns_batches", "NotFoundError: .*clicks.tfrecord", "correct the error"),
    "other_structure": (other_structure, {}, "same_structure_in_each_call",
                        r"returns features\['x'\].*; pipeline 0 of 2 pipelines returns .*features\['worker'\]: int64", "same features"),
    "changing": (Changing(), ONE, "same_structure_in_each_call", r"labels: int64 .*; a second call returns .*labels: int32", "same"),
    "unknown_rank": (unknown_rank, {}, "shapes_are_known", r"features\['x'\]: the rank is unknown", "set_shape"),
    "uneven": (uneven, {}, "rows_agree", r"batch 0 of .*features\['x'\] has 12 rows, labels has 11 rows", "batch features and labels together"),
    "unbatched": (unbatched, {}, "rows_agree", "labels has no batch dimension", r"dataset.batch\(...\)"),
    "with_empty": (with_empty, {}, "no_empty_batches", "batch 0 of .* has no records", "filter records before"),
    "by_two_files": (by_two_files, {"pipelines": (3,)}, "every_pipeline_gets_data", "pipeline 2 of 3 pipelines has no batch", "at least as many files"),
    "by_pipelines": (by_pipelines, {"global_batch_size": BATCH}, "per_replica_batch",
                     "1 pipeline with 2 replicas each: the batch size per replica is 12, not 6 = 12 / 2", "get_per_replica_batch_size"),
    "by_pipelines_untold": (by_pipelines, {}, "per_replica_batch", "is 12 for a single replica, and with 2 pipelines: 6, 1 pipeline with 2 replicas each: 12", "get_per"),
    "undivided": (undivided, {"global_batch_size": BATCH}, "per_replica_batch", "2 pipelines: the batch size per replica is 12, not 6", "get_per"),
    "other_batch": (train_only, {"global_batch_size": 6}, "per_replica_batch", "the batch size is 12, and global_batch_size is 6", "use global"),
    "no_context": (lambda: misspelt(), {"global_batch_size": BATCH}, "per_replica_batch", "2 pipelines: the batch size per replica is 12, not 6",
                   "add the parameter input_context=None"),
    "one_shard_too_many": (one_shard_too_many, {}, "shards_cover",
                           r"2 pipelines: 8 of 24 records are read by no pipeline, such as labels = 2; features\['x'\] = 2, 4 \| .* and 5 more",
                           r"input_pipeline_id \(from 0\)"),
    "by_replicas": (by_replicas, {}, "shards_cover", "1 pipeline with 2 replicas each: 12 of 24 records are read by no pipeline",
                    "not by the number of replicas"),
    "fewer_than_told": (train_only, {"num_records": 30}, "shards_cover", "reads 24 records, and there are 30", "take, skip, filter"),
    "same_everywhere": (same_everywhere, {}, "shards_do_not_overlap",
                        "2 pipelines: pipelines 0 and 1 read the same records in the same order",
                        "or shuffle with a different seed in each pipeline"),
    "shuffled_then_sharded": (shuffled_then_sharded, {}, "shards_do_not_overlap",
                              r"2 pipelines: \d+ of 24 records are read more than once in an epoch, such as .* \(by pipeline", "before shuffle"),
    "same_without_context": (lambda: same_everywhere(), {}, "shards_do_not_overlap", "pipelines 0 and 1 read the same", r"pass pipelines=\(1,\)"),
    "neighbours": (neighbours, {}, "shards_do_not_overlap",
                   r"2 pipelines: 4 of 24 records are read more than once in an epoch, such as labels = \d+; .* \(by pipelines 0 and 1\)",
                   "if some records have equal content, pass key="),
    "neighbours_once": (neighbours_once, {"finite": True}, "shards_do_not_overlap", "4 of 24 records are read more than once", "shard"),
    "one_epoch": (one_epoch, {}, "training_repeats", "the data ends after 2 batches, and training stops there", "finite=True"),
    "not_finite": (train_only, {"finite": True}, "training_repeats", "the data repeats endlessly", r"repeat\(epochs\)"),
    "eval_repeats": (train_only, EVAL, "evaluation_ends", "the data repeats endlessly", "num_epochs=1|no repeat"),
    "numpy_repeats": (by_numpy(shuffle=False), {**EVAL, "steps": 50}, "evaluation_ends", "50 batches hold 24 different records repeatedly", "num_epochs=1"),
    "eval_twice": (lambda mode: good(mode).repeat(2), EVAL, "evaluation_reads_every_record_once", "all 24 records are read 2 times", "no repeat"),
    "eval_some_twice": (lambda: one_epoch().concatenate(one_epoch().take(1)), {**EVAL, "key": lambda features, labels: labels},
                        "evaluation_reads_every_record_once", "12 of 24 records are read more than once, such as key 0", "no repeat"),
    "eval_drops": (eval_drops, EVAL, "evaluation_reads_every_record_once",
                   "8 of 24 records are never read, such as labels = 16", "no drop_remainder"),
    "eval_fewer": (lambda: one_epoch().take(1), {**EVAL, "num_records": N}, "evaluation_reads_every_record_once",
                   "12 records are read, and there are 24", "drop_remainder=True, take"),
}  # fmt: skip


# The first fault of each check is held against all checks; what others do to it alone is enough.
FIRST = {check: name for name, (_, _, check, _, _) in reversed(BROKEN.items())}


@pytest.mark.gate(*(name for name in BROKEN if name not in ("undivided", "by_pipelines_untold", "neighbours")))
@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_fails_its_check_alone(name):
    input_fn, options, check, found, hint = BROKEN[name]
    if "mode" not in options:
        options = {**TWO, **options}
    if FIRST[check] != name:
        options = {**options, "only": [check]}
    with pytest.raises(testing.ComplianceError) as caught:
        testing.check_input_fn(input_fn, **options)
    report = caught.value.report
    (outcome,) = report.failed
    assert outcome.name == check
    assert re.search(found, outcome.found) and re.search(hint, outcome.hint), outcome
    assert str(outcome) in str(caught.value) and f"1 check of {len(report.outcomes)} failed" in str(caught.value)
    assert len(report.outcomes) == (1 if FIRST[check] != name else 10 if options.get("mode") == "eval" else 11)


def test_every_check_has_a_fault_that_fails_it():
    every = {d.name for d in (*input_checks.TRAINING_CHECKS, *input_checks.EVALUATION_CHECKS)}
    assert {check for _, _, check, _, _ in BROKEN.values()} == every


def read(batches, times=1, *, ended=False):
    """What a pipeline gave: batches such as "ab cd", that many times over."""
    stream = streams.Stream("a pipeline", batches=[list(batch) for batch in batches.split()] * times, ended=ended)
    stream.sizes = [len(batch) for batch in stream.batches]
    stream.texts = dict.fromkeys(stream.records, "")
    return stream


ALONE = read("ab cd ef gh", 3)


@pytest.mark.parametrize(
    ("base", "pipelines", "way", "twice"),
    [
        (ALONE, [read("ab cd", 3), read("ef gh", 3)], "shards", ""),
        (ALONE, [read("ab cd ef gh fa bc hg de"), read("ef gh ab cd cb ed fa gh")], "one order", ""),
        (ALONE, [read("ab cd ef gh", 3), read("ca hd be fg", 3)], "everything", ""),
        (ALONE, [read("ab cd ef gh", 3), read("ab cd ef gh", 3)], "", "abcdefgh"),
        (ALONE, [read("ab cd ef gh", 3), read("ac ab cd ef gh", 3)], "", "ac"),
        (ALONE, [read("ab cd ea", 3), read("ef gh", 3)], "", "e"),
        (read("ab cd", 1, ended=True), [read("ab", ended=True), read("cd", ended=True)], "shards", ""),
        (read("ab cd", 1, ended=True), [read("ab cd", ended=True), read("dc ba", ended=True)], "everything", ""),
        (read("ab cd", 1, ended=True), [read("ab c", ended=True), read("cd", ended=True)], "", "c"),
        (read("aa bc", 3), [read("ab", 3), read("ac", 3)], "shards", ""),
        # Less than a step in an epoch: only what each pipeline reads can be told.
        (read("abc", 9), [read("abc", 9), read("bca", 9)], "everything", ""),
    ],
)
def test_ways_of_sharing(base, pipelines, way, twice):
    found = shards.share(base, pipelines)
    assert (found.way, "".join(sorted(found.twice))) == (way, twice)


# What cannot be judged -----------------------------------------------------------------------------------------


def augmented(input_context=None):
    noisy = same_everywhere(input_context)
    return noisy.map(lambda x, y: ({"x": x["x"] + tf.random.uniform([], maxval=0.1)}, y))


def test_augmented_records_are_known_by_their_key():
    """Unsharded with equal orders: found by the key; the content alone says nothing about which records they are."""
    report = testing.check_input_fn(augmented, steps=20, **TWO, only=["shards_cover"])
    (outcome,) = report.skipped
    assert "random augmentation?" in outcome.found and "pass key=" in outcome.found
    with pytest.raises(testing.ComplianceError, match="pipelines 0 and 1 read the same records in the same order"):
        testing.check_input_fn(augmented, **TWO, key=lambda features, labels: labels)


def test_the_seed_is_that_of_the_job():
    """Without a graph seed a shuffle is drawn anew on each worker, with one it is the same on all."""
    unsharded = functools.partial(same_everywhere, seed=None)
    options = {"pipelines": (2,), "only": ["shards_do_not_overlap"]}
    assert testing.check_input_fn(unsharded, config=tf.estimator.RunConfig(), **options).ok
    with pytest.raises(
        testing.ComplianceError, match=r"the graph's seed 7, RunConfig.tf_random_seed, is the same on all"
    ):
        testing.check_input_fn(unsharded, config=tf.estimator.RunConfig(tf_random_seed=7), **options)


def test_too_few_steps_are_told():
    (outcome,) = testing.check_input_fn(train_only, steps=2, **TWO, only=["shards_cover"]).skipped
    assert re.search("2 batches of .* were read, with .* pass a larger steps=", outcome.found)


def test_records_of_equal_content_may_be_in_several_shards():
    def twins(input_context=None):
        shards, index, size = pieces(input_context)
        return records(np.arange(N) // 2).shard(shards, index).shuffle(N, seed=1).repeat().batch(size)

    assert testing.check_input_fn(twins, num_records=N, **TWO).ok


def test_a_layout_that_is_rightly_refused_is_left_out():
    def even(input_context=None):
        shards, index, size = pieces(input_context, 8)
        return records().shard(shards, index).repeat().batch(size)

    report = testing.check_input_fn(even)
    (outcome,) = [o for o in report.passed if o.name == "returns_batches"]
    assert "3 pipelines skipped; the input_fn rejects them: ValueError" in outcome.found


# The surface ---------------------------------------------------------------------------------------------------


@testing.parametrize_with_checks(testing.input_fn_checks(good, global_batch_size=BATCH, **TWO))
def test_each_check_is_a_test(check):
    check()


def test_checks_one_by_one():
    checks = testing.input_fn_checks(same_everywhere, **TWO)
    assert [check.name for check in checks] == [d.name for d in input_checks.TRAINING_CHECKS]
    states = {}
    for check in checks:
        try:
            states[check.name] = check().state
        except testing.ComplianceError as error:
            assert "1 check of 1 failed" in str(error)
            states[check.name] = "raised"
    assert [name for name, state in states.items() if state == "raised"] == ["shards_do_not_overlap"]


def test_only_and_skip():
    report = testing.check_input_fn(same_everywhere, **TWO, skip=["shards_do_not_overlap"])
    (outcome,) = [o for o in report.skipped if o.name == "shards_do_not_overlap"]
    assert outcome.found == "skipped by skip="
    assert [o.name for o in testing.check_input_fn(same_everywhere, **TWO, only=["rows_agree"]).outcomes] == [
        "rows_agree"
    ]
    # Alone, a check that cannot be judged fails with what stands in its way: nobody else would tell.
    with pytest.raises(testing.ComplianceError, match="shards_cover: failed\n  found: FileNotFoundError"):
        testing.check_input_fn(raises, only=["shards_cover"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"only": ["shard_cover"]}, "only= names checks that do not exist: shard_cover"),
        ({"skip": "x"}, "skip= names checks"),
        ({"mode": "training"}, "mode is 'training'"),
        ({"pipelines": (0,)}, r"pipelines=\(0,\)"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_arguments_are_checked_at_once(options, says):
    with pytest.raises(ConfigError, match=says):
        testing.input_fn_checks(good, **options)


def test_a_dataset_is_no_input_fn():
    with pytest.raises(ConfigError, match="the input_fn is a list"):
        testing.check_input_fn([1, 2])


def test_reports_read_well():
    report = testing.check_input_fn(one_epoch, **TWO, raise_on_failure=False)
    assert not report.ok and str(report).splitlines()[:3] == [
        "one_epoch(input_context=None) in mode train: 1 failed, 10 passed, 0 skipped",
        "training_repeats: failed",
        "  found: the data ends after 2 batches, and training stops there, before max_steps",
    ]


def test_nothing_is_left_behind():
    before = tf.compat.v1.get_default_graph()
    operations = len(before.get_operations())
    testing.check_input_fn(good, pipelines=(1,))
    assert tf.compat.v1.get_default_graph() is before and len(before.get_operations()) == operations
