"""An evaluator task may make MultiWorkerMirroredStrategy, as the program that every task runs does.

TensorFlow takes the evaluator for one of the workers: with the evaluator outside the cluster of TF_CONFIG the
strategy fails with `KeyError: 'evaluator'`, inside it the coordinator fails to copy it. An evaluator trains nothing
and has no peers; its strategy is one over this process's own devices.

Private use: `CollectiveAllReduceExtended._initialize_strategy` (the same from 2.15 to 2.21), which already knows how
to set itself up for a single process.
"""

from __future__ import annotations

import functools

NAME = "evaluator-strategy"
WHAT = "MultiWorkerMirroredStrategy made on an evaluator task is one over its own devices, and does not crash"


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


def _is_evaluator(cluster_resolver) -> bool:
    return getattr(cluster_resolver, "task_type", None) == "evaluator"
