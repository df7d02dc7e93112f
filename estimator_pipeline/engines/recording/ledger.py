"""The ledger of a training task: what its input function is told to tell, and the hook and callback that count steps.

Data of :mod:`estimator_pipeline.inputs` tell the numbers of their records. Any other input function is looked at batch
by batch, and a record stands in the ledger by a fingerprint of its content.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
from estimator_pipeline.utils.logger import logger

__all__ = ["TaskLedger", "count_data", "keep_for_every_training", "read_input_fn"]


_AHEAD = 4  # Batches that are looked at ahead of the step.


class TaskLedger:
    """The ledger of one training of one task.

    Args:
        folder: of the ledger, for all tasks and attempts.
        tf_config: which task this is.

    Raises:
        ConfigError: the folder cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str], *, tf_config: TFConfig) -> None:
        cluster = tf_config.cluster
        tasks = [str(tf_config.task)] if cluster is None else [str(task) for task in cluster.training_tasks]
        asynchronous = cluster is not None and cluster.num_ps > 0
        self.writer = LedgerWriter(folder, task=str(tf_config.task), tasks=tasks, asynchronous=asynchronous)

    def input_fn(self, input_fn: Callable[..., Any], *, strategy: Any = None) -> Callable[..., Any]:
        """The input function of training, which tells the ledger what it gives.

        Args:
            input_fn: the task's.
            strategy: that distributes its batches; None: the one in whose scope it is called.
        """
        if hasattr(input_fn, "ledger"):
            input_fn.ledger = self.writer
            return input_fn
        return _looked_at(input_fn, self.writer, strategy)

    def hook(self) -> Any:
        """For an Estimator that trains, a `tf.estimator.SessionRunHook`."""
        tf: Any = compat.tensorflow()
        base: Any = tf.compat.v1.train.SessionRunHook
        writer = self.writer

        class LedgerHook(base):
            keeps_ledger = True

            def begin(self) -> None:
                self._global_step = tf.compat.v1.train.get_global_step()

            def after_create_session(self, session, coord):
                # Workers that step on their own have one global step in common, and each its own count.
                writer.begin(0 if writer.asynchronous else int(session.run(self._global_step)))

            def steps_passed(self, count):
                writer.step(count)

            def after_run(self, run_context, run_values):
                writer.step()

            def end(self, session):
                writer.end()

        return LedgerHook()

    def callback(self, *, start_step: int) -> Any:
        """For Keras, a callback.

        Args:
            start_step: the global step at which training begins.
        """
        base: Any = compat.tensorflow().keras.callbacks.Callback
        writer = self.writer

        class LedgerCallback(base):
            _supports_tf_logs = True

            def on_train_begin(self, logs=None):
                writer.begin(start_step)

            def on_train_batch_begin(self, batch, logs=None):
                self._first = batch

            def on_train_batch_end(self, batch, logs=None):
                # Several steps for each execution end with the number of the last one.
                writer.step(batch - self._first + 1)

            def on_train_end(self, logs=None):
                writer.end()

        return LedgerCallback()


def keep_for_every_training(folder: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> None:
    """Keeps a ledger of every training of an Estimator in this process from now on: for a legacy program.

    Args:
        folder: of the ledger.
        environ: where TF_CONFIG is read when a training begins; `os.environ` by default.
    """
    compat.install()
    # Refused before the program runs, not in the middle of it.
    LedgerWriter(folder, task="worker:0", tasks=())

    def enter(input_fn: Any, hooks: list[Any]) -> Any:
        if any(getattr(hook, "keeps_ledger", False) for hook in hooks):
            return input_fn  # The program has asked for one by itself.
        try:
            tf_config = from_environ(os.environ if environ is None else environ)
        except PipelineError as error:
            logger.warning("No ledger is kept, for TF_CONFIG cannot be read: %s", error)
            return input_fn
        ledger = TaskLedger(folder, tf_config=tf_config)
        hooks.insert(0, ledger.hook())
        return ledger.input_fn(input_fn)

    around.training_input(enter)


def _looked_at(input_fn: Callable[..., Any], writer: LedgerWriter, strategy: Any) -> Callable[..., Any]:
    """An input function whose batches are looked at as they pass; they stay as they are."""
    tf: Any = compat.tensorflow()

    def outer(*args: Any, **kwargs: Any) -> Any:
        context = kwargs.get("input_context")
        who = replicas_of(tf, context)
        facts = {"kind": "fingerprints", "pipelines": who.num_pipelines, "pipeline": who.pipeline}
        if context is None:
            # It cannot know which pipeline it is; nor can the ledger.
            facts |= {"pipelines": None, "pipeline": None}
        found = input_fn(*args, **kwargs)
        told = writer.stream({**facts, "batches_per_step": _batches_per_step(tf, strategy)})
        if isinstance(found, tf.data.Dataset | tf.compat.v1.data.Dataset):

            def look(number: Any, *element: Any) -> Any:
                return _look(tf, told, number, _single(element))

            return found.enumerate().map(tf.autograph.experimental.do_not_convert(look)).prefetch(_AHEAD)
        # Tensors of a queue: each step asks for them once.
        return _look(tf, told, tf.constant(-1, tf.int64), found)

    # TensorFlow looks at the names of its parameters.
    outer.__signature__ = inspect.signature(input_fn)  # type: ignore[attr-defined]
    outer.__name__ = getattr(input_fn, "__name__", "input_fn")
    for name in ("start_step", "rebatched", "global_batch_size"):
        if hasattr(input_fn, name):
            setattr(outer, name, getattr(input_fn, name))
    return outer


def _batches_per_step(tf: Any, strategy: Any) -> int:
    if strategy is None and tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
    return 1 if strategy is None else max(1, len(strategy.extended.worker_devices))


def _single(element: tuple[Any, ...]) -> Any:
    return element[0] if len(element) == 1 else element


def _look(tf: Any, told: RowStream, number: Any, element: Any) -> Any:
    """The element, which cannot be had before the ledger has been told of it."""
    shapes: list[bool] = []
    parts: list[Any] = []
    for leaf in tf.nest.flatten(element):
        if isinstance(leaf, tf.RaggedTensor):
            leaf = leaf.to_sparse()
        shapes.append(isinstance(leaf, tf.SparseTensor))
        parts += [leaf.indices, leaf.values, leaf.dense_shape] if shapes[-1] else [leaf]

    def look(at: Any, *values: Any) -> Any:
        rest = iter(values)
        leaves = [Sparse(next(rest), next(rest), next(rest)) if sparse else next(rest) for sparse in shapes]
        told(int(at) == 0, [fingerprints(leaves)])
        return at

    def tell(at: Any, prints: Any) -> Any:
        told(int(at) == 0, [prints])
        return at

    if not any(shapes) and graph_hashing.can_take(parts):
        done = tf.numpy_function(tell, [number, graph_hashing.fingerprints(tf, parts)], tf.int64)
    else:
        done = tf.numpy_function(look, [number, *parts], tf.int64)
    with tf.control_dependencies([done]):
        return tf.nest.map_structure(tf.identity, element, expand_composites=True)


def read_input_fn(
    input_fn: Callable[..., Any], *, pipeline: int, pipelines: int, steps: int, local: int = 1
) -> list[np.ndarray]:
    """The fingerprints of what an input function gives one worker, step by step; fewer where the data end.

    Args:
        input_fn: with a parameter `input_context` or without.
        pipeline: which worker.
        pipelines: of how many.
        steps: how many to read.
        local: batches that the worker takes for one step.

    Raises:
        ConfigError: it gives no dataset.
    """
    tf: Any = compat.tensorflow()
    context = tf.distribute.InputContext(pipelines, pipeline, pipelines * local)
    found: list[np.ndarray] = []
    batches: list[np.ndarray] = []
    for batch in _batches(tf, input_fn, context):
        batches.append(batch)
        if len(batches) == local:
            found.append(np.concatenate(batches))
            batches = []
        if len(found) == steps:
            break
    if batches:
        found.append(np.concatenate(batches))
    return found


def count_data(input_fn: Callable[..., Any], *, epoch_records: int | None = None) -> Counter[int]:
    """How often each fingerprint stands in the data of an input function, called for one worker alone.

    Args:
        input_fn: with a parameter `input_context` or without.
        epoch_records: how many records an epoch has, for data without an end. They must come epoch by epoch.

    Raises:
        ConfigError: it gives no dataset, or one without an end and `epoch_records` does not say where to stop.
    """
    tf: Any = compat.tensorflow()
    counts: Counter[int] = Counter()
    read = 0
    for batch in _batches(tf, input_fn, tf.distribute.InputContext(), endless=epoch_records is not None):
        left = len(batch) if epoch_records is None else min(len(batch), epoch_records - read)
        counts.update(batch[:left].tolist())
        read += left
        if read == epoch_records:
            break
    return counts


def _batches(tf: Any, input_fn: Callable[..., Any], context: Any, *, endless: bool = True) -> Iterator[np.ndarray]:
    """The fingerprints of each batch."""
    takes = "input_context" in inspect.signature(input_fn).parameters
    data = input_fn(input_context=context) if takes else input_fn()
    if not isinstance(data, tf.data.Dataset | tf.compat.v1.data.Dataset):
        raise ConfigError(
            "the input function gives no dataset, and can be looked at in a training alone",
            code="data/bad-input-fn",
            found=f"a {type(data).__name__}",
            hint="train with a ledger: exec --ledger DIR",
        )
    if not endless and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ConfigError(
            "the data of the input function have no end, so they cannot be counted",
            code="data/endless",
            hint="say how many records an epoch has: --epoch-records N",
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
