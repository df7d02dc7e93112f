"""Evaluation strategies use only the local devices of their process.

An evaluator task may create MultiWorkerMirroredStrategy, since every task runs the same program. TensorFlow treats the
evaluator as a worker: with the evaluator outside the cluster of TF_CONFIG the strategy fails with
`KeyError: 'evaluator'`; inside it the coordinator fails to copy the strategy. An evaluator does not train and has no
peers, so its strategy uses the devices of its process.

A worker may create MirroredStrategy for its evaluations (`RunConfig(eval_distribute=)`), after the
MultiWorkerMirroredStrategy of its training. The latter connects the process to its peers, and TensorFlow then lists
their devices as local ones: the process crashes with a segmentation fault.

Private use: `CollectiveAllReduceExtended._initialize_strategy`, which can set up a strategy for a single process;
`mirrored_strategy.all_local_devices` and `device_util.resolve` (unchanged from 2.15 to 2.21).
"""

from __future__ import annotations

import functools

NAME = "evaluator-strategy"
WHAT = (
    "MultiWorkerMirroredStrategy on an evaluator task, and MirroredStrategy on a worker, use the devices of that "
    "process, and do not crash"
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
    _use_local_devices()


def _use_local_devices() -> None:
    from tensorflow.python.distribute import device_util, mirrored_strategy

    original = mirrored_strategy.all_local_devices

    @functools.wraps(original)
    def all_local_devices(*args, **kwargs):
        devices = original(*args, **kwargs)
        task = device_util.resolve("/device:CPU:0").rpartition("/")[0]
        return [device for device in devices if device.name.startswith(f"{task}/")] or devices

    mirrored_strategy.all_local_devices = all_local_devices


def _is_evaluator(cluster_resolver) -> bool:
    return getattr(cluster_resolver, "task_type", None) == "evaluator"
