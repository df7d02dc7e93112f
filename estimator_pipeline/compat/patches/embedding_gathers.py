"""The sparse gradients of all embeddings travel between workers together.

A sparse gradient goes to the other workers in three collectives: the number of its rows, their values, their indices;
TensorFlow's function makes one after the other. A model with 16 embeddings waits for the network 48 times a step,
beside once for all dense gradients, which TensorFlow packs. Here the numbers of rows of all of them go in one
collective, and all values and indices, as the bits that they are, in another. What comes out is the same to the bit:
nothing is added on the way, and rows come in the same order.

It is for CPUs: NCCL does not gather integers. A gradient of 16 bits goes its old way.

Private use: `CollectiveAllReduce._all_reduce`, its `_launchers`, `_devices` and `_group_size`, and
`CollectiveReplicaLauncher._all_gather`.
"""

from __future__ import annotations

from typing import Any

NAME = "embedding-gathers"
WHAT = "sparse gradients of all embeddings go to the other workers in two collectives, not in three for each"


def apply() -> None:
    from tensorflow.python.distribute import cross_device_ops

    base = cross_device_ops.CollectiveAllReduce._all_reduce

    def all_reduce(self: Any, reduce_op: Any, value: Any, replica_id: int, options: Any) -> Any:
        import tensorflow as tf

        flat = tf.nest.flatten(value)
        together = [index for index, one in enumerate(flat) if _fits(tf, one)]
        if not together or not _on_cpus(self, options) or tf.executing_eagerly():
            return base(self, reduce_op, value, replica_id, options)
        rest = [one for index, one in enumerate(flat) if index not in together]
        found = iter(base(self, reduce_op, rest, replica_id, options) if rest else [])
        launcher = self._launchers[replica_id]
        with tf.device(self._devices[replica_id]):
            gathered = _gather(tf, [flat[index] for index in together], launcher, options)
            if reduce_op == tf.distribute.ReduceOp.MEAN:
                gathered = [
                    tf.IndexedSlices(one.values / self._group_size, one.indices, one.dense_shape) for one in gathered
                ]
        sparse = dict(zip(together, gathered, strict=True))
        return tf.nest.pack_sequence_as(
            value, [sparse[index] if index in sparse else next(found) for index in range(len(flat))]
        )

    cross_device_ops.CollectiveAllReduce._all_reduce = all_reduce


def _fits(tf: Any, one: Any) -> bool:
    """Whether it is a sparse gradient of numbers that are one or two times 32 bits."""
    if not isinstance(one, tf.IndexedSlices) or one.values.dtype.size not in (4, 8):
        return False
    # Not the number of rows, which each worker has of its own.
    return bool(one.values.shape[1:].num_elements())


def _on_cpus(reduction: Any, options: Any) -> bool:
    nccl = options.implementation.value == "NCCL"
    return not nccl and reduction._group_size > 1 and all("cpu" in device.lower() for device in reduction._devices)


def _gather(tf: Any, slices: list[Any], launcher: Any, options: Any) -> list[Any]:
    """Every worker's rows, in the workers' order, of each of the slices.

    All tensors of one collective have the same size on all workers, so rows are filled up to the most that any has.
    """
    options = launcher._options.merge(options)
    own = tf.stack([tf.shape(one.indices)[0] for one in slices])
    rows = launcher._all_gather(own[tf.newaxis], options)
    most = tf.reduce_max(rows, axis=0)

    sent, kinds = [], []
    for index, one in enumerate(slices):
        for tensor in (one.values, one.indices):
            width = tensor.shape[1:].num_elements() * tensor.dtype.size // 4
            bits = tf.reshape(tf.bitcast(tensor, tf.int32), [-1, width])
            sent.append(tf.reshape(tf.pad(bits, [[0, most[index] - own[index]], [0, 0]]), [-1]))
            kinds.append((index, width, tensor))
    got = launcher._all_gather(tf.concat(sent, axis=0)[tf.newaxis], options)

    sizes = tf.stack([most[index] * width for index, width, _ in kinds])
    parts = []
    for (index, width, tensor), part in zip(kinds, tf.split(got, sizes, axis=1, num=len(kinds)), strict=True):
        # Without what was filled up.
        there = tf.sequence_mask(rows[:, index], most[index])
        bits = tf.boolean_mask(tf.reshape(part, tf.concat([tf.shape(there), [width]], axis=0)), there)
        shape = [-1, *tensor.shape[1:].as_list(), *([2] if tensor.dtype.size == 8 else [])]
        parts.append(tf.bitcast(tf.reshape(bits, shape), tensor.dtype))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [
        tf.IndexedSlices(values, indices, one.dense_shape) for one, (values, indices) in zip(slices, pairs, strict=True)
    ]
