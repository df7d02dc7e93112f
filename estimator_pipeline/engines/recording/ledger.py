"""The ledger of a training task: records read by its input function, and the hook and callback that count steps.

Input functions of `estimator_pipeline.inputs` report record numbers. Batches of other input functions are
inspected, and the ledger has a fingerprint of each record's content.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.compat.internals import estimator_wrapping as around
from estimator_pipeline.engines.recording import graph_hashing
from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.inputs.ledger.hashing import Sparse, fingerprints
from estimator_pipeline.inputs.ledger.writing import LedgerWriter, RowStream
from estimator_pipeline.inputs.reader import replicas_of
from estimator_pipeline.inputs.wrapping import is_addressable, wrap_input_fn
from estimator_pipeline.utils.logger import logger

__all__ = ["TaskLedger", "count_data", "keep_for_every_training", "read_input_fn"]

_AHEAD = 4  # Batches that are inspected ahead of the step.


class TaskLedger:
    """The ledger of one training of one task, in the folder of all tasks and attempts.

    Raises:
        ConfigError: The folder cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str], *, tf_config: TFConfig) -> None:
        cluster = tf_config.cluster
        tasks = [str(tf_config.task)] if cluster is None else [str(task) for task in cluster.training_tasks]
        asynchronous = cluster is not None and cluster.num_ps > 0
        self.writer = LedgerWriter(folder, task=str(tf_config.task), tasks=tasks, asynchronous=asynchronous)

    def input_fn(self, input_fn: Callable[..., Any], *, strategy: Any = None) -> Callable[..., Any]:
        """Return the training input function, with recording of its records.

        Args:
            input_fn: The task's input function.
            strategy: The strategy that distributes its batches; None: the one in whose scope it is called.
        """
        if is_addressable(input_fn):
            return input_fn.with_ledger(self.writer)  # type: ignore[attr-defined,no-any-return]
        return _inspected(input_fn, self.writer, strategy)

    def hook(self) -> Any:
        """Return a `tf.estimator.SessionRunHook` for an Estimator's training."""
        tf: Any = compat.tensorflow()
        base: Any = tf.compat.v1.train.SessionRunHook
        writer = self.writer

        class LedgerHook(base):
            keeps_ledger = True

            def begin(self) -> None:
                self._global_step = tf.compat.v1.train.get_global_step()

            def after_create_session(self, session, coord):
                # Asynchronous workers share the global step, but each counts its steps.
                writer.begin(0 if writer.asynchronous else int(session.run(self._global_step)))

            def steps_passed(self, count):
                writer.step(count)

            def after_run(self, run_context, run_values):
                writer.step()

            def end(self, session):
                writer.end()

        return LedgerHook()

    def callback(self, *, start_step: int) -> Any:
        """Return a Keras callback for a training that starts at this global step."""
        base: Any = compat.tensorflow().keras.callbacks.Callback
        writer = self.writer

        class LedgerCallback(base):
            _supports_tf_logs = True

            def on_train_begin(self, logs=None):
                writer.begin(start_step)

            def on_train_batch_begin(self, batch, logs=None):
                self._first = batch

            def on_train_batch_end(self, batch, logs=None):
                # In multi-step execution, `batch` is that of the last step.
                writer.step(batch - self._first + 1)

            def on_train_end(self, logs=None):
                writer.end()

        return LedgerCallback()


def keep_for_every_training(folder: str | os.PathLike[str]) -> None:
    """Keep a ledger of every later training of an Estimator in this process, for a legacy program.

    TF_CONFIG is read when a training starts: the program may set it.
    """
    compat.install()
    # An error must be raised before the program runs, not in the middle of it.
    LedgerWriter(folder, task="worker:0", tasks=())

    def enter(input_fn: Any, hooks: list[Any]) -> Any:
        if any(getattr(hook, "keeps_ledger", False) for hook in hooks):
            return input_fn  # The program keeps a ledger already.
        try:
            tf_config = from_environ(os.environ)
        except PipelineError as error:
            logger.warning("No ledger is kept, because TF_CONFIG cannot be read: %s", error)
            return input_fn
        ledger = TaskLedger(folder, tf_config=tf_config)
        hooks.insert(0, ledger.hook())
        return ledger.input_fn(input_fn)

    around.training_input(enter)


def _inspected(input_fn: Callable[..., Any], writer: LedgerWriter, strategy: Any) -> Callable[..., Any]:
    """Return the input function with recording of its batches, which are unchanged."""
    tf: Any = compat.tensorflow()

    def inspected(input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        context = kwargs.get("input_context")
        who = replicas_of(tf, context)
        facts = {"kind": "fingerprints", "pipelines": who.num_pipelines, "pipeline": who.pipeline}
        if context is None:
            # Without a context, the index of the pipeline is unknown.
            facts |= {"pipelines": None, "pipeline": None}
        data = input_fn(*args, **kwargs)
        stream = writer.stream({**facts, "batches_per_step": _batches_per_step(tf, strategy)})
        if isinstance(data, tf.data.Dataset | tf.compat.v1.data.Dataset):

            def inspect_batch(number: Any, *element: Any) -> Any:
                return _recorded(tf, stream, number, element[0] if len(element) == 1 else element)

            return data.enumerate().map(tf.autograph.experimental.do_not_convert(inspect_batch)).prefetch(_AHEAD)
        # Tensors of a queue, which each step evaluates once.
        return _recorded(tf, stream, tf.constant(-1, tf.int64), data)

    return wrap_input_fn(input_fn, inspected)


def _batches_per_step(tf: Any, strategy: Any) -> int:
    if strategy is None and tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
    return 1 if strategy is None else max(1, len(strategy.extended.worker_devices))


def _recorded(tf: Any, stream: RowStream, number: Any, element: Any) -> Any:
    """Return the element, with a control dependency on its recording."""
    is_sparse: list[bool] = []
    parts: list[Any] = []
    for leaf in tf.nest.flatten(element):
        leaf = leaf.to_sparse() if isinstance(leaf, tf.RaggedTensor) else leaf
        is_sparse.append(isinstance(leaf, tf.SparseTensor))
        parts += [leaf.indices, leaf.values, leaf.dense_shape] if is_sparse[-1] else [leaf]

    def fingerprints_of(*values: Any) -> Any:
        rest = iter(values)
        return fingerprints([Sparse(next(rest), next(rest), next(rest)) if it else next(rest) for it in is_sparse])

    def record(at: Any, prints: Any) -> Any:
        stream(int(at) == 0, [prints])
        return at

    if not any(is_sparse) and graph_hashing.can_take(parts):
        prints = graph_hashing.fingerprints(tf, parts)
    else:
        prints = tf.numpy_function(fingerprints_of, parts, tf.uint64)
    with tf.control_dependencies([tf.numpy_function(record, [number, prints], tf.int64)]):
        return tf.nest.map_structure(tf.identity, element, expand_composites=True)


def read_input_fn(
    input_fn: Callable[..., Any], *, pipeline: int, pipelines: int, steps: int, local: int = 1
) -> list[np.ndarray]:
    """Return the fingerprints of one worker's records for each step; fewer steps if the data ends.

    Args:
        input_fn: With or without a parameter `input_context`.
        pipeline: Index of the worker.
        pipelines: Number of workers.
        steps: Number of steps to read.
        local: Batches per step of the worker.

    Raises:
        ConfigError: The input function does not return a dataset.
    """
    tf: Any = compat.tensorflow()
    context = tf.distribute.InputContext(pipelines, pipeline, pipelines * local)
    batches = list(itertools.islice(_batches(tf, input_fn, context), steps * local))
    return [np.concatenate(batches[at : at + local]) for at in range(0, len(batches), local)]


def count_data(input_fn: Callable[..., Any], *, epoch_records: int | None = None) -> Counter[int]:
    """Return the number of occurrences of each fingerprint in the data of an input function, for a single worker.

    Args:
        input_fn: With or without a parameter `input_context`.
        epoch_records: Number of records per epoch, for an infinite dataset, which must be ordered by epoch.

    Raises:
        ConfigError: The input function does not return a dataset, or an infinite one without `epoch_records`.
    """
    tf: Any = compat.tensorflow()
    batches = _batches(tf, input_fn, tf.distribute.InputContext(), endless=epoch_records is not None)
    return Counter(itertools.islice(itertools.chain.from_iterable(map(np.ndarray.tolist, batches)), epoch_records))


def _batches(tf: Any, input_fn: Callable[..., Any], context: Any, *, endless: bool = True) -> Iterator[np.ndarray]:
    """Yield the fingerprints of each batch."""
    takes = "input_context" in inspect.signature(input_fn).parameters
    data = input_fn(input_context=context) if takes else input_fn()
    if not isinstance(data, tf.data.Dataset | tf.compat.v1.data.Dataset):
        raise ConfigError(
            "the input function returns no dataset, and can be inspected only during training",
            code="data/bad-input-fn",
            found=f"a {type(data).__name__}",
            hint="train with a ledger: exec --ledger DIR",
        )
    if not endless and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ConfigError(
            "the dataset of the input function is infinite, so its records cannot be counted",
            code="data/endless",
            hint="set the number of records per epoch: --epoch-records N",
        )
    for element in data:
        leaves = []
        for leaf in tf.nest.flatten(element):
            leaf = leaf.to_sparse() if isinstance(leaf, tf.RaggedTensor) else leaf
            if isinstance(leaf, tf.SparseTensor):
                leaves.append(Sparse(leaf.indices.numpy(), leaf.values.numpy(), leaf.dense_shape.numpy()))
            else:
                leaves.append(leaf.numpy())
        yield fingerprints(leaves)
