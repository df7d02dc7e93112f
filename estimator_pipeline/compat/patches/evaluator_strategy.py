"""Strategies of a process that evaluates are over its own devices, whatever cluster it belongs to.

An evaluator task may make MultiWorkerMirroredStrategy, as the program that every task runs does. TensorFlow takes the
evaluator for one of the workers: with the evaluator outside the cluster of TF_CONFIG the strategy fails with
`KeyError: 'evaluator'`, inside it the coordinator fails to copy it. An evaluator trains nothing and has no peers; its
strategy is one over this process's own devices.

A worker may make MirroredStrategy for its evaluations (`RunConfig(eval_distribute=)`), after the
MultiWorkerMirroredStrategy that it trains with. That one has connected the process to its peers, and TensorFlow then
counts their devices among the local ones: the process ends with a segmentation fault.

Private use: `CollectiveAllReduceExtended._initialize_strategy`, which already knows how to set itself up for a single
process; `mirrored_strategy.all_local_devices` and `device_util.resolve` (all the same from 2.15 to 2.21).
"""

from __future__ import annotations

import functools

NAME = "evaluator-strategy"
WHAT = (
    "MultiWorkerMirroredStrategy made on an evaluator task, and MirroredStrategy made on a worker, are over the "
    "devices of that process, and do not crash"
)


def apply() -> None:
    from tensorflow.python.distribute import collective_all_reduce_strategy as module

    extended = module.CollectiveAllReduceExtended
    original = extended._initialize_strategy

    @functools.wraps(original)
    def initialize(self, cluster_resolver, devices):
        if not devices and _is_evaluator(cluster_resolver):
            self._initialize_local(cluster_resolver)
            return
        original(self, cluster_resolver, devices)

    extended._initialize_strategy = initialize
    _own_devices_alone()


def _own_devices_alone() -> None:
    from tensorflow.python.distribute import device_util, mirrored_strategy

    original = mirrored_strategy.all_local_devices

    @functools.wraps(original)
    def all_local_devices(*args, **kwargs):
        found = original(*args, **kwargs)
        own = device_util.resolve("/device:CPU:0").rpartition("/")[0]
        return [device for device in found if device.name.startswith(f"{own}/")] or found

    mirrored_strategy.all_local_devices = all_local_devices


def _is_evaluator(cluster_resolver) -> bool:
    return getattr(cluster_resolver, "task_type", None) == "evaluator"
