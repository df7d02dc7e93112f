"""All dense gradients of an Estimator's step are exchanged in one collective.

MultiWorkerMirroredStrategy packs a step's dense gradients into one collective if each is on the device of its variable.
For gradients of `tf.gradients` or `minimize(colocate_gradients_with_ops=True)` this is unknown in a session's graph:
some are colocated with the read of a variable, and their device is the empty string. TensorFlow 2 treats that as a
different device, warns that an "efficient batch_reduce is not supported", and sends each gradient separately. Here such
a gradient is placed on the device of its replica, where it is in any case, and TensorFlow packs all.

The sum over two workers is bit-identical. With more, the order in which TensorFlow's ring adds an element depends on
its position in the packed tensor, so the last bits may differ, as between Keras and an Estimator.

Private use: `CollectiveAllReduce.batch_reduce_implementation`, its `_devices`, `values.PerReplica`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAME = "gradient-packs"
WHAT = "all dense gradients of an Estimator's step are sent in one collective, instead of one for each"


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
    """Place components without a device on the device of their replica."""
    from tensorflow.python.distribute import values

    if not isinstance(value, values.PerReplica) or len(value.values) != len(devices):
        return value
    if all(component.device for component in value.values):
        return value
    placed = []
    for component, device in zip(value.values, devices, strict=True):
        if component.device:
            placed.append(component)
            continue
        with tf.device(device):
            placed.append(tf.nest.map_structure(tf.identity, component, expand_composites=True))
    return values.PerReplica(placed)
