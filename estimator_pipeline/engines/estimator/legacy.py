"""`tf.estimator.train_and_evaluate` of a legacy program: runs the engine with the behavior of the original call."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.cluster.peers import start_secs
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.result import DATA_ENDED
from estimator_pipeline.engines.estimator import backend
from estimator_pipeline.engines.model_dir import checkpoints, lock
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.process_state import STATE


def train_and_evaluate(
    estimator: Any,
    train_spec: Any,
    eval_spec: Any,
    *,
    original: Callable[[Any, Any, Any], Any],
    every_checkpoint: bool = True,
    keep_evaluation: bool = True,
) -> Any:
    """Run this task of a legacy program.

    Args:
        estimator: The program's Estimator.
        train_spec: Its `tf.estimator.TrainSpec`.
        eval_spec: Its `tf.estimator.EvalSpec`.
        original: The original function of tensorflow-estimator, for programs that the engine does not support.
        every_checkpoint: Whether EvalSpec's default delays count as "not set".
        keep_evaluation: Whether evaluations share a graph.

    Returns:
        The pair that the original call returns in a single process, here on every task: the metrics of the final
        evaluation (NumPy scalars, including `global_step`), and for each exporter the last path that it wrote, or None.
    """
    tf_config = _cluster_of(estimator, train_spec, eval_spec)
    if isinstance(tf_config, str):
        logger.info("train_and_evaluate runs as in tf.estimator: %s", tf_config)
        return original(estimator, train_spec, eval_spec)
    options = TrainOptions(
        startup_timeout=start_secs(os.environ),
        seed_keras=False,
        # A legacy program may change anything between two runs, as before; changes are logged.
        accept_changes=True,
        literal_delays=not every_checkpoint,
        needs_evaluation_data=False,
        keep_evaluation=keep_evaluation,
        steps_per_execution=1,
    )
    result = backend.run(estimator, train_spec, eval_spec, tf_config=tf_config, options=options, environ=os.environ)
    if result.ended == DATA_ENDED and train_spec.max_steps is not None and tf_config.is_single_process:
        logger.warning("training ended at step %d, before max_steps=%d: its data have no more batches",
                       result.global_step, train_spec.max_steps)  # fmt: skip
    metrics: dict[str, Any] = {}
    for name, value in result.metrics.items():
        metrics[name] = np.float32(value) if isinstance(value, float) else np.asarray(value)[()]
    metrics["global_step"] = np.int64(result.global_step)
    paths = [result.exporters.get(exporter.name) for exporter in eval_spec.exporters or ()]
    return metrics, [None if path is None else os.fsencode(path) for path in paths]


_acquiring = threading.Lock()


@contextlib.contextmanager
def own_model_dir(estimator: Any) -> Iterator[None]:
    """Hold the lock on the Estimator's model directory within the block, with an undamaged newest checkpoint.

    For direct calls of `Estimator.train`. Only the task that writes checkpoints does this, and only in a directory that
    supports locks (no object store). If this process holds the lock already, nothing is done: the engine does, or a
    task of the same cluster in a different thread, as the coordinator's client of a remote cluster runs them.

    Raises:
        ConfigError: A different process trains there.
        TaskFailedError: No checkpoint is complete; or the disk is full or cannot be written.
    """
    config, model_dir = estimator.config, os.fspath(estimator.model_dir)
    saves = config.save_checkpoints_steps or config.save_checkpoints_secs
    if not saves or "://" in model_dir or not _writes_checkpoints():
        yield
        return
    with contextlib.ExitStack() as held:
        with _acquiring:
            if not lock.is_held(model_dir):
                held.enter_context(lock.hold(model_dir, owner="Estimator.train", run_id=f"process {os.getpid()}"))
                name = os.path.realpath(model_dir)
                if name not in STATE.examined:
                    with disk.explaining(model_dir):
                        checkpoints.rescue(model_dir)
                    STATE.examined.add(name)
        yield


def _writes_checkpoints() -> bool:
    try:
        return from_environ(os.environ).is_chief
    except PipelineError:
        # A different format of TF_CONFIG, which the program itself interprets.
        return False


def _cluster_of(estimator: Any, train_spec: Any, eval_spec: Any) -> TFConfig | str:
    """Return cluster and task of this process, or why the engine cannot run this."""
    tf = compat.tensorflow()
    v1 = tf.compat.v1.estimator
    if not isinstance(estimator, v1.Estimator) or isinstance(estimator, v1.tpu.TPUEstimator):
        return f"the estimator is a {type(estimator).__name__}"
    if not isinstance(train_spec, tf.estimator.TrainSpec) or not isinstance(eval_spec, tf.estimator.EvalSpec):
        return "the specs are none of tf.estimator's"
    config = getattr(estimator, "_config", None)
    if config is None:
        return "the estimator is a replacement with only the public attributes"
    if getattr(config, "_distribute_coordinator_mode", None) == "standalone_client":
        return "this is the client of a remote cluster"
    try:
        tf_config = from_environ(os.environ)
    except PipelineError as error:
        return f"TF_CONFIG cannot be read: {error}"
    return _other_cluster(config, tf_config) or tf_config


def _other_cluster(config: Any, tf_config: TFConfig) -> str | None:
    jobs = config.cluster_spec.as_dict() if config.cluster_spec else {}
    if tf_config.is_single_process:
        return "RunConfig has a cluster, and TF_CONFIG has none" if jobs else None
    if threading.current_thread() is not threading.main_thread():
        # Several tasks in one process share its environment: TF_CONFIG describes at most one of them.
        return "a task of a cluster is run on a thread, as one of several in this process may be"
    if tf_config.is_evaluator:
        return None
    assert tf_config.cluster is not None
    if not jobs and config.train_distribute is None:
        return "TF_CONFIG has a cluster, and RunConfig does not"
    if config.train_distribute is None and tf_config.num_training_tasks > 1 and tf_config.cluster.num_ps == 0:
        return "the cluster has several workers, no strategy and no parameter server"
    return None
