"""What `tf.estimator.train_and_evaluate` leads to in a legacy program: the engine, with the old call's own manners."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.engines.estimator import engine
from estimator_pipeline.engines.lifecycle.result import DATA_ENDED, TrainResult
from estimator_pipeline.engines.model_dir import checkpoint_recovery as checkpoints
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.engines.model_dir import lock
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.utils.logger import logger


def train_and_evaluate(
    estimator: Any,
    train_spec: Any,
    eval_spec: Any,
    *,
    original: Callable[[Any, Any, Any], Any],
    every_checkpoint: bool = True,
    keep_evaluation: bool = True,
) -> Any:
    """Runs this task of a legacy program.

    Args:
        estimator: the program's Estimator.
        train_spec: its `tf.estimator.TrainSpec`.
        eval_spec: its `tf.estimator.EvalSpec`.
        original: the function of the estimator package, for what the engine has no place for.
        every_checkpoint: whether EvalSpec's default delays are read as "not set".
        keep_evaluation: whether evaluations share a graph.

    Returns:
        The pair that the old call gives in a single process, here on every task: the metrics of the final evaluation
        (NumPy scalars, `global_step` among them) and the list of what was exported.
    """
    reason = _why_not(estimator, train_spec, eval_spec)
    if reason is not None:
        logger.info("train_and_evaluate runs as tf.estimator's own: %s", reason)
        return original(estimator, train_spec, eval_spec)
    result = engine.train_and_evaluate(
        estimator,
        train_spec,
        eval_spec,
        seed_keras=False,
        # It may change what it likes between two runs, as ever; what has changed is said in the log.
        accept_changes=True,
        literal_delays=not every_checkpoint,
        needs_evaluation_data=False,
        keep_evaluation=keep_evaluation,
    )
    if result.ended == DATA_ENDED and train_spec.max_steps is not None and from_environ(os.environ).is_single_process:
        logger.warning("training ended at step %d, before max_steps=%d: its data have no more batches",
                       result.global_step, train_spec.max_steps)  # fmt: skip
    return old_result(result, [exporter.name for exporter in eval_spec.exporters or ()])


def old_result(result: TrainResult, exporters: Sequence[str]) -> tuple[dict[str, Any], list[bytes | None]]:
    """A result as the old call gives it.

    Args:
        result: the engine's.
        exporters: the names of EvalSpec's exporters, in order.

    Returns:
        The metrics, and for each exporter the last path that it gave, None for one that wrote none.
    """
    metrics: dict[str, Any] = {}
    for name, value in result.metrics.items():
        metrics[name] = np.float32(value) if isinstance(value, float) else np.asarray(value)[()]
    metrics["global_step"] = np.int64(result.global_step)
    last = result.exporters
    return metrics, [os.fsencode(last[name]) if name in last else None for name in exporters]


# Model directories whose checkpoints this process has examined: later ones are its own.
_examined: set[str] = set()


@contextlib.contextmanager
def own_model_dir(estimator: Any) -> Iterator[None]:
    """In the block, nobody else trains in the Estimator's model directory, and its newest checkpoint is whole.

    For `Estimator.train` where it is called by itself. Only the task that writes checkpoints looks, and only for a
    directory that has locks (no object store). What the engine holds already is left to it.

    Raises:
        ConfigError: another process trains there.
        TaskFailedError: there are checkpoints, and none of them is whole; the disk is full, or cannot be written.
    """
    config, model_dir = estimator.config, os.fspath(estimator.model_dir)
    saves = config.save_checkpoints_steps or config.save_checkpoints_secs
    if not saves or "://" in model_dir or lock.is_held(model_dir) or not _writes_checkpoints():
        yield
        return
    with lock.hold(model_dir, owner="Estimator.train", run_id=f"process {os.getpid()}"):
        name = os.path.realpath(model_dir)
        if name not in _examined:
            with disk.explaining(model_dir):
                checkpoints.rescue(model_dir)
            _examined.add(name)
        yield


def _writes_checkpoints() -> bool:
    try:
        return from_environ(os.environ).is_chief
    except PipelineError:
        # A document of another kind: whoever reads it knows what this task is.
        return False


def _why_not(estimator: Any, train_spec: Any, eval_spec: Any) -> str | None:
    """Why the engine cannot run this, or None."""
    tf = compat.tensorflow()
    v1 = tf.compat.v1.estimator
    if not isinstance(estimator, v1.Estimator) or isinstance(estimator, v1.tpu.TPUEstimator):
        return f"the estimator is a {type(estimator).__name__}"
    if not isinstance(train_spec, tf.estimator.TrainSpec) or not isinstance(eval_spec, tf.estimator.EvalSpec):
        return "the specs are none of tf.estimator's"
    config = getattr(estimator, "_config", None)
    if config is None:
        return "the estimator is a stand-in with the public attributes alone"
    if getattr(config, "_distribute_coordinator_mode", None) == "standalone_client":
        return "this is the client of a remote cluster"
    try:
        tf_config = from_environ(os.environ)
    except PipelineError as error:
        return f"TF_CONFIG cannot be read: {error}"
    return _other_cluster(config, tf_config)


def _other_cluster(config: Any, tf_config: TFConfig) -> str | None:
    jobs = config.cluster_spec.as_dict() if config.cluster_spec else {}
    if tf_config.is_single_process:
        return "RunConfig has a cluster, and TF_CONFIG has none" if jobs else None
    if threading.current_thread() is not threading.main_thread():
        # Several tasks in one process share its environment: what TF_CONFIG says is one task's, or none's.
        return "a task of a cluster is run on a thread, as one of several in this process may be"
    if tf_config.is_evaluator:
        return None
    assert tf_config.cluster is not None
    if not jobs and config.train_distribute is None:
        return "TF_CONFIG has a cluster, and RunConfig knows nothing of it"
    if config.train_distribute is None and tf_config.num_training_tasks > 1 and tf_config.cluster.num_ps == 0:
        return "the cluster has several workers, no strategy and no parameter server"
    return None
