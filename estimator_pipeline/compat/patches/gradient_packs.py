"""All gradients of an Estimator's step travel between workers together.

MultiWorkerMirroredStrategy packs a step's dense gradients into one collective, where each of them is known to lie on
the device of its variable. Of gradients by `tf.gradients`, or by `minimize(colocate_gradients_with_ops=True)`, that is
not known in a session's graph: some are placed beside the read of a variable, and their own device is the empty
string. TensorFlow 2 takes that for another device, warns that an "efficient batch_reduce is not supported", and sends
each gradient by itself. Such a gradient is put on the device of its replica here, which is where it is in any case,
and TensorFlow packs all.

What two workers sum is the same to the bit. With more, TensorFlow's ring adds an element in an order that follows from
its place in what is sent, so the last bits may be others, as between Keras and an Estimator.

Private use: `CollectiveAllReduce.batch_reduce_implementation`, its `_devices`, `values.PerReplica`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAME = "gradient-packs"
WHAT = "all dense gradients of an Estimator's step go to the other workers in one collective, not each in its own"


def apply() -> None:
    from tensorflow.python.distribute import cross_device_ops

    base = cross_device_ops.CollectiveAllReduce.batch_reduce_implementation

    def batch_reduce_implementation(self: Any, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        import tensorflow as tf

        pairs = list(value_destination_pairs)
        if not tf.executing_eagerly() and len(pairs) > 1:
            pairs = [(_on_devices(tf, value, self._devices), destination) for value, destination in pairs]
        return base(self, reduce_op, pairs, options)

    cross_device_ops.CollectiveAllReduce.batch_reduce_implementation = batch_reduce_implementation


def _on_devices(tf: Any, value: Any, devices: Sequence[str]) -> Any:
    """The value with what has no device of its own on that of its replica."""
    from tensorflow.python.distribute import values

    if not isinstance(value, values.PerReplica) or len(value.values) != len(devices):
        return value
    if all(one.device for one in value.values):
        return value
    placed = []
    for one, device in zip(value.values, devices, strict=True):
        if one.device:
            placed.append(one)
            continue
        with tf.device(device):
            placed.append(tf.nest.map_structure(tf.identity, one, expand_composites=True))
    return values.PerReplica(placed)
