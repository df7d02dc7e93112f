"""The patch `gather-sizes`: what workers gather may have another size at each step of a session."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

from tensorflow.python.distribute import collective_util, cross_device_utils  # noqa: E402

from estimator_pipeline.compat.patches import gather_sizes  # noqa: E402

DEVICES = ["/device:CPU:0", "/device:CPU:1"]


def launchers():
    """Of two replicas, in one process: what two workers have of MultiWorkerMirroredStrategy."""
    keys = cross_device_utils.CollectiveKeys()
    group = keys.get_group_key(DEVICES)
    options = collective_util.Options(timeout_seconds=20)
    return [cross_device_utils.CollectiveReplicaLauncher(group, 2, keys, device, options) for device in DEVICES]


def random(rows, kind):
    return (100 * np.random.default_rng(rows).standard_normal((rows, 3))).astype(kind)


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_a_gather_with_another_number_of_rows_at_each_step(kind):
    with tf.Graph().as_default():
        given = [tf.compat.v1.placeholder(kind, [None, 3]) for _ in DEVICES]
        gathered = [launcher._all_gather(one, None) for launcher, one in zip(launchers(), given, strict=True)]
        assert [one.shape.as_list() for one in gathered] == [[None, 3]] * 2
        with tf.compat.v1.Session() as session:
            # 64 elements are the smallest size; 21 and 22 rows are on both sides of it.
            for rows in (3, 1, 0, 21, 22, 1000, 3):
                fed = [random(rows, kind), random(rows + 5000, kind)[:rows]]
                for found in session.run(gathered, dict(zip(given, fed, strict=True))):
                    np.testing.assert_array_equal(found, np.concatenate(fed))


def test_sparse_gradients_of_which_one_replica_has_none():
    """Rows by TensorFlow's own reduction of one sparse gradient, in the order of the replicas."""
    with tf.Graph().as_default():
        rows = [tf.compat.v1.placeholder(tf.int64, [None]) for _ in DEVICES]
        sums = [
            launcher.all_reduce_indexed_slices(
                tf.IndexedSlices(tf.cast(one, tf.float32)[:, tf.newaxis], one, tf.constant([50, 1], tf.int64))
            )
            for launcher, one in zip(launchers(), rows, strict=True)
        ]
        with tf.compat.v1.Session() as session:
            for first, second in (([1, 2, 3], [4, 5, 6]), ([7], []), ([], [8, 9]), ([], []), (range(40), [1])):
                for found in session.run(sums, {rows[0]: list(first), rows[1]: list(second)}):
                    assert found.indices.tolist() == [*first, *second]
                    assert found.values[:, 0].tolist() == [*first, *second]


def test_the_sizes_are_few_and_hold_all():
    sizes = gather_sizes.SIZES
    assert len(sizes) < 100 and sizes[-1] > 2**32
    assert all(a < b <= 1.25 * a for a, b in itertools.pairwise(sizes))
