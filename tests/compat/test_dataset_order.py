"""Operations of a dataset because of which two processes read its elements in different orders."""

from __future__ import annotations

import contextlib

import pytest

from estimator_pipeline import compat

tf = compat.install()

from estimator_pipeline.compat.internals.dataset_order import differing_order  # noqa: E402

pytestmark = pytest.mark.tf


def numbers(stop=20):
    return tf.data.Dataset.range(stop)


def not_deterministic():
    options = tf.data.Options()
    options.deterministic = False
    return numbers().with_options(options)


SHUFFLE = "shuffle() or list_files() without a seed"


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(
    ("build", "operation", "with_graph_seed"),
    [
        (lambda: numbers().shuffle(9).repeat().batch(4), SHUFFLE, None),
        (lambda: numbers().shuffle(9, reshuffle_each_iteration=False), SHUFFLE, None),
        (lambda: numbers().shuffle(9, seed=0).repeat().batch(4).prefetch(1), None, None),
        (lambda: numbers().flat_map(lambda n: tf.data.Dataset.range(n).shuffle(9)), SHUFFLE, None),
        (lambda: numbers().flat_map(lambda n: tf.data.Dataset.range(n).shuffle(9, seed=1)), None, None),
        (lambda: tf.data.Dataset.list_files(__file__).interleave(tf.data.TFRecordDataset), SHUFFLE, None),
        (lambda: tf.data.Dataset.list_files(__file__, shuffle=False).map(tf.io.read_file), None, None),
        (
            lambda: tf.data.Dataset.sample_from_datasets([numbers(), numbers()]),
            "random() or sample_from_datasets() without a seed",
            None,
        ),
        (lambda: tf.data.Dataset.sample_from_datasets([numbers(), numbers()], seed=5), None, None),
        (lambda: numbers().map(lambda n: n, num_parallel_calls=2), None, None),
        (
            lambda: numbers().map(lambda n: n, num_parallel_calls=2, deterministic=False),
            "map(deterministic=False)",
            "map(deterministic=False)",
        ),
        (
            lambda: numbers().apply(tf.data.experimental.parallel_interleave(numbers, 2, sloppy=True)),
            "interleave(deterministic=False)",
            "interleave(deterministic=False)",
        ),
        (not_deterministic, "options.deterministic = False", "options.deterministic = False"),
        (lambda: tf.data.Dataset.from_generator(lambda: iter([1]), tf.int64), None, None),
    ],
)
def test_the_order(build, operation, with_graph_seed, mode):
    scope = tf.Graph().as_default() if mode == "graph" else contextlib.nullcontext()
    with scope:
        tf.compat.v1.set_random_seed(None)  # left by other tests
        assert differing_order(build()) == operation
        tf.compat.v1.set_random_seed(3)
        try:
            assert differing_order(build()) == with_graph_seed
        finally:
            tf.compat.v1.set_random_seed(None)
