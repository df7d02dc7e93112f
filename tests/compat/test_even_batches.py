"""The patch `even-batches`: an evaluation on several replicas of one process counts every record."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from estimator_pipeline.compat.internals.data_end.even_batches import are_even, even_batches, mark_even
from estimator_pipeline.utils.logger import logger
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
NUMBERS = np.arange(34, dtype=np.float32)


class Rounds(tf.compat.v1.train.SessionRunHook):
    """Counts the steps of an evaluation that have ended well."""

    def __init__(self):
        self.made = 0

    def after_run(self, run_context, run_values):
        self.made += 1


def model_fn(features, labels, mode):
    v1 = tf.compat.v1
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(features) + weight
    step = v1.train.get_or_create_global_step()
    yes = labels >= 0
    counts = {"seen": v1.metrics.mean(labels), "records": v1.metrics.true_positives(yes, yes)}
    train_op = v1.train.GradientDescentOptimizer(0.0).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=counts)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with a checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    tf.estimator.Estimator(model_fn, str(folder)).train(batches(), steps=1)
    return folder


@pytest.fixture
def evaluated(trained):
    """`evaluated(input_fn, replicas, **options)`: metrics, and how many rounds were made. Nothing is warned of."""
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = said.append
    logger.addHandler(handler)

    def evaluate(input_fn, replicas, **options):
        over = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)]) if replicas > 1 else None
        config = tf.estimator.RunConfig(model_dir=str(trained), eval_distribute=over)
        estimator = tf.estimator.Estimator(model_fn, config=config)
        hook = Rounds()
        return estimator.evaluate(input_fn, hooks=[hook], **options), hook.made

    yield evaluate
    logger.removeHandler(handler)
    assert [record.getMessage() for record in said] == []


def batches(size=8, count=34, **options):
    def input_fn():
        return tf.data.Dataset.from_tensor_slices((NUMBERS[:count], NUMBERS[:count])).batch(size, **options)

    return input_fn


# So many replicas, records in batches of 8, and the rounds that have a batch for each.
CASES = {"two replicas, five batches": (2, 34, 3), "three replicas, five batches": (3, 34, 2),
         "two replicas, one batch": (2, 8, 1)}  # fmt: skip


@pytest.mark.gate("three replicas, five batches")
@pytest.mark.parametrize("case", CASES)
def test_every_record_is_counted(evaluated, case):
    """Without the patch a round fails that has not a batch for each: it is not made."""
    replicas, count, rounds = CASES[case]
    metrics, made = evaluated(batches(count=count), replicas)
    assert made == rounds
    assert metrics["records"] == count and metrics["seen"] == pytest.approx(NUMBERS[:count].mean())


def test_so_many_steps_are_so_many(evaluated):
    metrics, made = evaluated(batches(), 2, steps=2)
    assert made == 2 and metrics["records"] == 32.0


def test_one_replica_and_rounds_that_are_whole_are_as_they_were(evaluated):
    metrics, made = evaluated(batches(), 1)
    assert made == 5 and metrics["records"] == 34.0
    metrics, made = evaluated(batches(count=32), 2)
    assert made == 2 and metrics["loss"] == pytest.approx(15.5)


def test_tensors_and_what_cannot_be_cut_are_as_they_were(evaluated):
    """Of two batches of one size each replica has one; of three, one is left that cannot be shared."""
    metrics, made = evaluated(batches(size=11, count=22, drop_remainder=True), 2)
    assert made == 1 and metrics["records"] == 22.0
    metrics, made = evaluated(batches(size=11, drop_remainder=True), 2)
    assert made == 1 and metrics["records"] in (22.0, 33.0), "a race, which nobody can mend"


@pytest.mark.gate("3")
@pytest.mark.parametrize("replicas", [2, 3])
def test_what_cannot_be_cut_stays_whole(replicas):
    """Where it is not strict: in order, none lost, none cut."""
    for count in (1, 4, 5):
        ones = tf.data.Dataset.range(count).batch(1)
        found = [batch.tolist() for batch in even_batches(ones, replicas, strict=False).as_numpy_iterator()]
        assert found == [[number] for number in range(count)]
        found = even_batches(ones.filter(lambda _: True), replicas, strict=False)
        assert [batch.tolist() for batch in found.as_numpy_iterator()] == [[number] for number in range(count)]
        whole = tf.data.Dataset.range(5 * count).batch(5, drop_remainder=True)
        found = np.concatenate([*even_batches(whole, replicas, strict=False).as_numpy_iterator()])
        assert found.tolist() == [*range(5 * count)]


def read_ahead(data, *, known):
    """How many of ten batches are read for the first two of their whole rounds."""
    read = []

    def numbers():
        for number in range(10):
            read.append(number)
            yield [number]

    batches = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([None], tf.int64))
    batches = data(batches.apply(tf.data.experimental.assert_cardinality(10)) if known else batches)
    options = tf.data.Options()
    options.autotune.enabled = False  # which puts buffers of its own behind it
    found = iter(even_batches(batches, 2).with_options(options))
    assert [next(found).numpy().tolist() for _ in range(2)] == [[0], [1]]
    return len(read)


def test_nothing_is_looked_at_where_rounds_are_known_to_be_whole():
    """No batch is read before its turn; where nobody knows, as many as this round and the next one have."""
    assert read_ahead(lambda batches: batches, known=True) == 2
    assert read_ahead(lambda batches: batches.repeat(), known=True) == 2, "without an end"
    assert read_ahead(lambda batches: batches, known=False) == 4
    assert read_ahead(lambda batches: batches.take(9), known=True) == 4


@pytest.mark.gate("-True", "cached-False")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("file", ["", "cached"])
def test_data_that_are_cached_are_read_once(tmp_path, known, file):
    """They stand twice in the graph, of which one is read: a cache in a file cannot be written by two."""
    began = []

    def numbers():
        began.append(True)
        yield from ([number] * 3 for number in range(10))

    batches = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([None], tf.int64))
    batches = batches.apply(tf.data.experimental.assert_cardinality(10)) if known else batches
    rounds = even_batches(batches.cache(str(tmp_path / file) if file else ""), 4)
    first, again = ([batch.tolist() for batch in rounds.as_numpy_iterator()] for _ in range(2))
    assert len(began) == 1 and first == again
    assert len(first) == 12 and np.concatenate(first).tolist() == np.repeat(np.arange(10), 3).tolist()


def test_what_is_whole_is_known():
    marked = mark_even(tf.data.Dataset.range(4))
    assert are_even(marked) and list(marked.as_numpy_iterator()) == [0, 1, 2, 3]
    assert are_even(even_batches(tf.data.Dataset.range(4).batch(2), 2))
    assert not are_even(tf.data.Dataset.range(4)) and not are_even(None)


def test_no_operation_takes_the_name_of_a_layer():
    """They come before the model: a layer called "size" would have variables of other names than in training."""
    with tf.Graph().as_default() as graph:
        dataset = tf.data.Dataset.from_tensor_slices(NUMBERS).batch(4)
        before = len(graph.get_operations())
        even_batches(dataset, 2)
        added = {operation.name.split("/")[0] for operation in graph.get_operations()[before:]}
    assert added == {"estimator_pipeline_even_batches"}
