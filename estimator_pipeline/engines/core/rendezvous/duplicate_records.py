"""Check that the workers of a training do not train on the same records.

The input function of a program that was written for a single process takes no `input_context`: on several workers each
reads all data, usually in the same order, so that n workers do the work of one. TensorFlow does not report it. Here
each training task takes fingerprints of its first batches, and the chief compares them.

The batches are fetched with the first steps: the program's dataset and graph are not changed. The cost is a copy of
these batches, and two more session signatures.
"""

from __future__ import annotations

import base64
import inspect
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.graph_state import BATCH_OPERATIONS
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.inputs.ledger import same_records
from estimator_pipeline.inputs.ledger.hashing import Sparse, fingerprints
from estimator_pipeline.utils.logger import logger

# A task's sample ends at the first of these limits.
_STEPS, _RECORDS, _BYTES = 64, 4096, 64 << 20
_POLL_SECS = 1.0


class DuplicateRecords:
    """The check for one training of one task.

    Args:
        context: This task, which is a training task of a cluster.
    """

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._tasks = [str(task) for task in context.tf_config.training_tasks]
        # The tensors of a step's batches, until this task has published its sample: the fingerprints of each step.
        self._batches: list[list[Any]] = []
        self._steps: list[np.ndarray] = []
        self._bytes = 0
        self._samples: dict[str, list[np.ndarray]] = {}
        self._is_over, self._due = False, 0.0

    def hook(self) -> Any:
        """Return a `tf.estimator.SessionRunHook` for the task's training."""
        v1: Any = compat.tensorflow().compat.v1
        check = self

        class DuplicateRecordsHook(v1.train.SessionRunHook):
            def __init__(self) -> None:
                pass  # TensorFlow's __init__ logs a deprecation warning

            def begin(self) -> None:
                check._batches = list(_batches(v1.get_default_graph()))

            def before_run(self, run_context):
                return v1.train.SessionRunArgs(check._batches) if check._batches else None

            def after_run(self, run_context, run_values):
                if check._batches:
                    check._take(run_values.results)
                elif check._context.is_chief:
                    check._poll()

            def end(self, session):
                check._publish()

        return DuplicateRecordsHook()

    def _take(self, batches: list[Any]) -> None:
        self._steps.append(np.concatenate([fingerprints(leaves) for leaves in batches]))
        self._bytes += sum(np.asarray(part).nbytes for part in compat.tensorflow().nest.flatten(batches))
        records = sum(map(len, self._steps))
        if len(self._steps) == _STEPS or records >= _RECORDS or self._bytes >= _BYTES:
            self._publish()

    def _publish(self) -> None:
        if not self._batches:
            return
        self._batches = []
        task, steps = str(self._context.task), [base64.b64encode(step.tobytes()).decode() for step in self._steps]
        try:
            self._context.rendezvous.write(_file(task), {"steps": steps})
        except (OSError, compat.tensorflow().errors.OpError) as error:
            logger.info("The first records of %s are not compared with those of other tasks: %s", task, error)

    def _poll(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _POLL_SECS
            self.conclude(when_complete=True)

    def conclude(self, *, when_complete: bool = False) -> None:
        """Compare the records that the tasks have published, in the chief, once: after training, or when all have."""
        if self._is_over:
            return
        for task in self._tasks:
            document = None if task in self._samples else self._context.rendezvous.read_of_session(_file(task))
            if document is not None:
                steps = [np.frombuffer(base64.b64decode(step), np.uint64) for step in document["steps"]]
                self._samples[task] = steps
        if when_complete and len(self._samples) < len(self._tasks):
            return
        self._is_over = True
        tasks, records = same_records.in_same_order(self._samples), "the same records in the same order"
        # Tasks of asynchronous training may each read all records, in different orders.
        asynchronous = self._context.tf_config.is_asynchronous
        if not tasks and not asynchronous and (same := same_records.in_any_order(self._samples)) is not None:
            tasks, shared, sample = same
            records = (
                f"the same records in different orders ({shared} of the first {sample} of {tasks[-1]} were also read "
                "by another task)"
            )
        if tasks:
            logger.warning("%s train on %s. %s", " and ".join(tasks), records, self._advice())

    def _advice(self) -> str:
        input_fn = self._context.input_fn
        code = getattr(inspect.unwrap(getattr(input_fn, "func", input_fn)), "__code__", None)
        where = f" ({os.path.basename(code.co_filename)}, line {code.co_firstlineno})" if code is not None else ""
        if self._context.strategy is not None:
            # It calls the input_fn.
            if "input_context" in inspect.signature(input_fn).parameters:
                return f"The input_fn{where} must shard by input_context before it shuffles, or shuffle with a seed"
            return (
                f"The input_fn{where} takes no input_context: add this parameter, and shard before the shuffle, "
                "dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)"
            )
        return (
            f"The input_fn{where} must shard before it shuffles: dataset.shard(config.num_worker_replicas, "
            "config.global_id_in_cluster), since config.task_id is 0 on the chief and on worker:0"
        )


def _batches(graph: Any) -> Iterator[list[Any]]:
    """Yield the tensors of each batch that a step reads: dense ones, and sparse ones as `Sparse`."""
    for op in graph.get_operations():
        if op.type not in BATCH_OPERATIONS or not graph.is_fetchable(op):
            continue
        leaves: list[Any] = []
        for tensor in op.outputs:
            if tensor.dtype.name == "variant":
                sparse = [user for user in tensor.consumers() if user.type == "DeserializeSparse"]
                leaves += [Sparse(*user.outputs) for user in sparse]
            elif tensor.shape.rank != 0 and tensor.dtype.name != "resource":
                leaves.append(tensor)
        if leaves:
            yield leaves


def _file(task: str) -> str:
    return f"records/{task.replace(':', '-')}.json"
