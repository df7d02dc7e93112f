"""The sparse gradients of all embeddings are exchanged between workers together.

TensorFlow sends a sparse gradient in three sequential collectives: the number of rows, their values, their indices. A
model with 16 embeddings waits for the network 48 times per step, plus once for all dense gradients, which TensorFlow
packs. Here one collective sends the numbers of rows of all of them, and a second one all values and indices as raw
bits. The result is bit-identical: nothing is summed, and rows are in the same order.

It applies only to CPUs, since NCCL does not gather integers. 16-bit gradients are sent as before.

Private use: `CollectiveAllReduce._all_reduce`, its `_launchers`, `_devices` and `_group_size`, and
`CollectiveReplicaLauncher._all_gather`.
"""

from __future__ import annotations

from typing import Any

NAME = "embedding-gathers"
WHAT = "sparse gradients of all embeddings are sent in two collectives, instead of three for each"


def apply() -> None:
    from tensorflow.python.distribute import cross_device_ops

    base = cross_device_ops.CollectiveAllReduce._all_reduce

    def all_reduce(self: Any, reduce_op: Any, value: Any, replica_id: int, options: Any) -> Any:
        import tensorflow as tf

        flat = tf.nest.flatten(value)
        together = [index for index, gradient in enumerate(flat) if _fits(tf, gradient)]
        if not together or not _on_cpus(self, options) or tf.executing_eagerly():
            return base(self, reduce_op, value, replica_id, options)
        rest = [gradient for index, gradient in enumerate(flat) if index not in together]
        reduced = iter(base(self, reduce_op, rest, replica_id, options) if rest else [])
        launcher = self._launchers[replica_id]
        with tf.device(self._devices[replica_id]):
            gathered = _gather(tf, [flat[index] for index in together], launcher, options)
            if reduce_op == tf.distribute.ReduceOp.MEAN:
                gathered = [
                    tf.IndexedSlices(slices.values / self._group_size, slices.indices, slices.dense_shape)
                    for slices in gathered
                ]
        sparse = dict(zip(together, gathered, strict=True))
        return tf.nest.pack_sequence_as(
            value, [sparse[index] if index in sparse else next(reduced) for index in range(len(flat))]
        )

    cross_device_ops.CollectiveAllReduce._all_reduce = all_reduce


def _fits(tf: Any, gradient: Any) -> bool:
    """Whether it is a sparse gradient of 32-bit or 64-bit numbers."""
    if not isinstance(gradient, tf.IndexedSlices) or gradient.values.dtype.size not in (4, 8):
        return False
    # Without the number of rows, which differs between workers.
    return bool(gradient.values.shape[1:].num_elements())


def _on_cpus(reduction: Any, options: Any) -> bool:
    nccl = options.implementation.value == "NCCL"
    return not nccl and reduction._group_size > 1 and all("cpu" in device.lower() for device in reduction._devices)


def _gather(tf: Any, slices: list[Any], launcher: Any, options: Any) -> list[Any]:
    """Return each gradient with the rows of all workers, in the workers' order.

    The tensors of a collective have the same size on all workers, so rows are padded to the largest number.
    """
    options = launcher._options.merge(options)
    local = tf.stack([tf.shape(gradient.indices)[0] for gradient in slices])
    rows = launcher._all_gather(local[tf.newaxis], options)
    most = tf.reduce_max(rows, axis=0)

    sent, kinds = [], []
    for index, gradient in enumerate(slices):
        for tensor in (gradient.values, gradient.indices):
            width = tensor.shape[1:].num_elements() * tensor.dtype.size // 4
            bits = tf.reshape(tf.bitcast(tensor, tf.int32), [-1, width])
            sent.append(tf.reshape(tf.pad(bits, [[0, most[index] - local[index]], [0, 0]]), [-1]))
            kinds.append((index, width, tensor))
    got = launcher._all_gather(tf.concat(sent, axis=0)[tf.newaxis], options)

    sizes = tf.stack([most[index] * width for index, width, _ in kinds])
    parts = []
    for (index, width, tensor), part in zip(kinds, tf.split(got, sizes, axis=1, num=len(kinds)), strict=True):
        # Remove the padding.
        there = tf.sequence_mask(rows[:, index], most[index])
        bits = tf.boolean_mask(tf.reshape(part, tf.concat([tf.shape(there), [width]], axis=0)), there)
        shape = [-1, *tensor.shape[1:].as_list(), *([2] if tensor.dtype.size == 8 else [])]
        parts.append(tf.bitcast(tf.reshape(bits, shape), tensor.dtype))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [
        tf.IndexedSlices(values, indices, gradient.dense_shape)
        for gradient, (values, indices) in zip(slices, pairs, strict=True)
    ]
