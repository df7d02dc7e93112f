"""What workers gather may have another size at each step.

The runtime keeps the shape with which a collective was first used under its instance key, and refuses another one:
"Shape mismatch in the collective instance". In TensorFlow 2 each call of a function has new keys. In a session's graph
a key is a constant, so a sparse gradient, whose rows are the different ids of a batch, ended training under
MultiWorkerMirroredStrategy at the first step that had more or fewer of them: all canned Estimators with sparse or
embedding columns, all embeddings of a last batch that is smaller.

Here such a tensor is filled up to one of :data:`SIZES`, and each size has an instance key of its own. All replicas give
a gather tensors of the same shape, so all take the same one. Keys that were new at each step would do as well, but the
runtime never forgets one: memory would grow with each step. Neighbouring sizes differ by a quarter, so that an eighth
more is sent, on average.

Private use: `CollectiveReplicaLauncher._all_gather`, `_use_unique_instance_key`, `_next_instance_key`;
`collective_ops.all_gather_v2`.
"""

from __future__ import annotations

from typing import Any

NAME = "gather-sizes"
WHAT = "sparse gradients of MultiWorkerMirroredStrategy may have another number of rows at each step of a session"


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
            own = tf.reshape(gathered, tf.stack([-1, size]))[:, :elements]
            # Of each replica its rows, below those of the replica before it.
            shape = tf.shape(input_tensor)
            every = tf.concat([shape[:1] * self._group_size, shape[1:]], axis=0)
            return tf.ensure_shape(tf.reshape(own, every), [None, *input_tensor.shape[1:]])

    launcher._all_gather = all_gather
