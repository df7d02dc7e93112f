"""The size of an all-gather may differ between steps.

The runtime stores the shape of a collective at the first use of its instance key, and rejects a different one: "Shape
mismatch in the collective instance". In TensorFlow 2 each call of a function has new keys. In a session's graph a key
is a constant. A sparse gradient has a row for each distinct id of a batch, so training under
MultiWorkerMirroredStrategy failed at the first step with a different number: for canned Estimators with sparse or
embedding columns, and for embeddings with a smaller last batch.

Here such a tensor is padded to one of `SIZES`, and each size has a separate instance key. All replicas have tensors of
the same shape in a gather, so all select the same size. New keys at each step would work too, but the runtime never
frees a key, so memory would grow with each step. Consecutive sizes differ by a quarter, so on average an eighth more is
sent.

Private use: `CollectiveReplicaLauncher._all_gather`, `_use_unique_instance_key`, `_next_instance_key`;
`collective_ops.all_gather_v2`.
"""

from __future__ import annotations

from typing import Any

NAME = "gather-sizes"
WHAT = "sparse gradients of MultiWorkerMirroredStrategy may have a different number of rows at each step"


def _sizes() -> tuple[int, ...]:
    sizes = [64]
    while sizes[-1] < 2**33:
        sizes.append(sizes[-1] * 5 // 4)
    return tuple(sizes)


SIZES = _sizes()  # in elements


def apply() -> None:
    from tensorflow.python.distribute import cross_device_utils
    from tensorflow.python.ops import collective_ops

    launcher = cross_device_utils.CollectiveReplicaLauncher
    base = launcher._all_gather

    def all_gather(self: Any, input_tensor: Any, options: Any) -> Any:
        import tensorflow as tf

        if self._use_unique_instance_key() or input_tensor.shape.is_fully_defined():
            return base(self, input_tensor, options)
        merged = self._options.merge(options)
        keys = [self._next_instance_key() for _ in SIZES]
        with tf.device(self._device):
            flat = tf.reshape(input_tensor, [-1])
            elements = tf.size(flat, out_type=tf.int64)
            sizes = tf.constant(SIZES, tf.int64)
            place = tf.searchsorted(sizes, elements[tf.newaxis])[0]
            size = sizes[place]
            filled = tf.pad(flat, [[0, size - elements]])
            gathered = collective_ops.all_gather_v2(
                filled,
                self._group_size,
                self._group_key,
                tf.constant(keys)[place],
                communication_hint=merged.implementation.value,
                timeout=merged.timeout_seconds,
            )
            rows = tf.reshape(gathered, tf.stack([-1, size]))[:, :elements]
            # The rows of all replicas, concatenated in their order.
            shape = tf.shape(input_tensor)
            every = tf.concat([shape[:1] * self._group_size, shape[1:]], axis=0)
            return tf.ensure_shape(tf.reshape(rows, every), [None, *input_tensor.shape[1:]])

    launcher._all_gather = all_gather
