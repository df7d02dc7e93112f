"""The interface between Estimator and TensorFlow's distribute coordinator, reimplemented.

TensorFlow 2.16 removed `tensorflow.python.distribute.estimator_training`, but not the coordinator
(`tensorflow.python.distribute.distribute_coordinator`). The estimator package calls five functions of the removed
module, which is an alias of this one:

=============================== ======================================================================
called from                     function
=============================== ======================================================================
`RunConfig.__init__`            `init_run_config`
`train_and_evaluate`            `should_run_distribute_coordinator`, `train_and_evaluate`
`Estimator.train`               `estimator_train`
`Estimator.evaluate`            `estimator_evaluate`
=============================== ======================================================================

The behavior is the one that these callers need, and that a program sees on 2.15: the fields of a new RunConfig were
recorded there for every task of every dialect (`tests/compat/test_run_config_fields.py`).

This package's engine uses `run_training_task` with every TensorFlow, also 2.15.

Private use: `distribute_coordinator`, which starts the task's server and sets the worker context that
`MonitoredTrainingSession` reads (no public equivalent, unchanged from 2.15 to 2.21); and the private fields of
Estimator and RunConfig for the task, which cannot be set publicly.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.cluster import own_port
from estimator_pipeline.compat.internals.saving import saving_listeners
from estimator_pipeline.errors import ClusterError
from estimator_pipeline.utils.process_state import STATE

__all__ = [
    "CoordinatorMode",
    "bind_to_task",
    "estimator_evaluate",
    "estimator_train",
    "init_run_config",
    "run_classic_task",
    "run_training_task",
    "server_of",
    "should_run_distribute_coordinator",
    "start_server",
    "train_and_evaluate",
    "training_task",
]


class CoordinatorMode:
    """How the coordinator runs: in every task separately, or in one client for all tasks."""

    STANDALONE_CLIENT = "standalone_client"
    INDEPENDENT_WORKER = "independent_worker"


def _normalized(cluster_spec: Any) -> Any:
    from tensorflow.python.distribute import multi_worker_util

    return multi_worker_util.normalize_cluster_spec(cluster_spec)


def _distributed_options(config: Any) -> tuple[Any, Any, Any]:
    """Return (train strategy, evaluation strategy, remote cluster) of a RunConfig, from both ways to set them."""
    train, evaluation, remote = config._train_distribute, config._eval_distribute, None
    experimental = getattr(config, "_experimental_distribute", None)
    if experimental:
        for name, old, new in (
            ("train_distribute", train, experimental.train_distribute),
            ("eval_distribute", evaluation, experimental.eval_distribute),
        ):
            if old is not None and new is not None:
                raise ValueError(
                    f"RunConfig has `{name}` twice: directly, and in `experimental_distribute`. Set only one of them."
                )
        train = train or experimental.train_distribute
        evaluation = evaluation or experimental.eval_distribute
        remote = experimental.remote_cluster
    return train, evaluation, remote


def init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
    """Complete a RunConfig that has a distribution strategy.

    With a training strategy and a cluster, the coordinator sets this task at run time, so the config has the values of
    a single process (worker 0, chief) and the cluster. In all other cases it is set from TF_CONFIG as without a
    strategy.

    Args:
        config: The `tf.estimator.RunConfig` under construction, whose other options are already set.
        tf_config: The parsed TF_CONFIG of this process, or `{}`.
    """
    train, evaluation, remote = _distributed_options(config)
    config._train_distribute, config._eval_distribute = train, evaluation
    config._distribute_coordinator_mode = None

    if remote is not None:
        if (tf_config or {}).get("cluster"):
            raise ValueError(
                "RunConfig has `experimental_distribute.remote_cluster`, and TF_CONFIG has a `cluster` as well. "
                "A client of a remote cluster is not a task: unset TF_CONFIG in its process."
            )
        config._init_distributed_setting_from_environment_var({})
        config._maybe_overwrite_session_config_for_distributed_training()
        config._cluster_spec = _normalized(remote)
        config._distribute_coordinator_mode = CoordinatorMode.STANDALONE_CLIENT
        return

    cluster = (tf_config or {}).get("cluster")
    if train is None or not cluster or "master" in cluster:
        # The coordinator does not support the `master` job of TensorFlow 1; such a cluster is set up without it.
        config._init_distributed_setting_from_environment_var(tf_config or {})
        config._maybe_overwrite_session_config_for_distributed_training()
        return

    config._init_distributed_setting_from_environment_var({})
    config._maybe_overwrite_session_config_for_distributed_training()
    config._cluster_spec = _normalized(cluster)
    config._distribute_coordinator_mode = CoordinatorMode.INDEPENDENT_WORKER


def should_run_distribute_coordinator(config: Any) -> bool:
    """Whether `train_and_evaluate` uses the coordinator instead of its executor."""
    if not getattr(config, "_distribute_coordinator_mode", None):
        return False
    return bool(config.cluster_spec and config.cluster_spec.as_dict())


def config_of(estimator: Any) -> Any:
    """Return an Estimator's RunConfig, also for an object that has only the public attributes.

    `Estimator.config` is a deep copy, and strategies cannot be copied.
    """
    config = getattr(estimator, "_config", None)
    return estimator.config if config is None else config


def bind_to_task(
    estimator: Any,
    *,
    train_strategy: Any = None,
    eval_strategy: Any = None,
    context: Any = None,
    model_dir: str | None = None,
) -> Any:
    """Return a shallow copy of an Estimator that is configured for one task of the cluster.

    Args:
        estimator: The program's `tf.estimator.Estimator`, which is not changed.
        train_strategy: The coordinator's copy of the training strategy, configured for the task.
        eval_strategy: The same for evaluation.
        context: The coordinator's worker context. None: a single process.
        model_dir: The directory for checkpoints; None: the Estimator's.

    Returns:
        The copy. Its `train` and `evaluate` run directly, without the coordinator.
    """
    local = copy.copy(estimator)
    if model_dir is not None:
        local._model_dir = model_dir
    config = copy.copy(config_of(estimator))
    config._train_distribute, config._eval_distribute = train_strategy, eval_strategy
    config._distribute_coordinator_mode = None
    if context is not None and context.cluster_spec is not None:
        _fill_from_context(config, context)
    elif context is None:
        config._init_distributed_setting_from_environment_var({})
    local._config = config
    local._train_distribution, local._eval_distribution = train_strategy, eval_strategy
    return local


def _fill_from_context(config: Any, context: Any) -> None:
    jobs = context.cluster_spec.as_dict()
    config._service = None
    config._cluster_spec = context.cluster_spec
    config._task_type, config._task_id = context.task_type, context.task_id
    config._is_chief = context.is_chief
    if context.task_type == "evaluator":
        config._master = config._evaluation_master = ""
        config._num_ps_replicas = config._num_worker_replicas = 0
        config._global_id_in_cluster = None
        return
    config._master = context.master_target
    # Evaluation in a training task uses a local session, which is not part of the cluster.
    config._evaluation_master = ""
    config._num_ps_replicas = len(jobs.get("ps", ()))
    config._num_worker_replicas = len(jobs.get("chief", ())) + len(jobs.get("worker", ()))
    order = [(job, i) for job in ("chief", "worker", "ps") for i in range(len(jobs.get(job, ())))]
    task = (context.task_type, context.task_id)
    config._global_id_in_cluster = order.index(task) if task in order else None


def train_and_evaluate(estimator: Any, train_spec: Any, eval_spec: Any, executor_class: type) -> Any:
    """Run `tf.estimator.train_and_evaluate` for this task of the cluster.

    Args:
        estimator: The program's Estimator, with a RunConfig for which `should_run_distribute_coordinator` is true.
        train_spec: Its `tf.estimator.TrainSpec`.
        eval_spec: Its `tf.estimator.EvalSpec`.
        executor_class: The estimator package's executor, called with (estimator, train_spec, eval_spec), which
            implements training tasks and evaluators.
    """
    from tensorflow.python.distribute import distribute_coordinator as dc
    from tensorflow.python.distribute import distribute_coordinator_context as dc_context

    config = config_of(estimator)

    def train(strategy: Any) -> Any:
        context = dc_context.get_current_worker_context()
        local = bind_to_task(estimator, train_strategy=strategy, eval_strategy=None, context=context)
        hooks, listeners = list(train_spec.hooks), train_spec.saving_listeners
        if listeners and saving_listeners.are_rejected(strategy):
            hooks.append(saving_listeners.listeners_hook(listeners, is_chief=context is None or context.is_chief))
            listeners = ()
        return local.train(
            input_fn=train_spec.input_fn,
            max_steps=train_spec.max_steps,
            hooks=hooks,
            saving_listeners=listeners,
        )

    def evaluate(strategy: Any) -> Any:
        context = dc_context.get_current_worker_context()
        local = bind_to_task(estimator, train_strategy=None, eval_strategy=strategy, context=context)
        return executor_class(local, train_spec, eval_spec).run_evaluator()

    return dc.run_distribute_coordinator(
        train,
        config.train_distribute,
        evaluate,
        config.eval_distribute,
        mode=config._distribute_coordinator_mode,
        cluster_spec=config.cluster_spec if _is_standalone(config) else None,
        session_config=config.session_config,
    )


def _is_standalone(config: Any) -> bool:
    return config._distribute_coordinator_mode == CoordinatorMode.STANDALONE_CLIENT


def _only_standalone(estimator: Any, call: str) -> None:
    if not _is_standalone(estimator._config):
        raise ValueError(
            f"Estimator.{call} was called in a task of a TF_CONFIG cluster. In a cluster every task must call "
            f"tf.estimator.train_and_evaluate, which runs the task's role; Estimator.{call} works in a "
            "single process, or from one client with "
            "`experimental_distribute=DistributeConfig(remote_cluster=…)`."
        )
    if "evaluator" in _normalized(estimator._config.cluster_spec).jobs:
        raise ValueError(
            f"Estimator.{call} was called with an `evaluator` job in the cluster, which only "
            "tf.estimator.train_and_evaluate uses. Remove the job or call train_and_evaluate."
        )


def estimator_train(estimator: Any, train_distributed_fn: Callable[..., Any], hooks: Sequence[Any]) -> Any:
    """Implement `Estimator.train` in a cluster, which only a standalone client may call.

    Args:
        estimator: The Estimator whose `train` was called.
        train_distributed_fn: Called with (task's Estimator, task's strategy, hooks).
        hooks: The session hooks of the call.
    """
    _only_standalone(estimator, "train")
    return _from_client(estimator, train_distributed_fn, hooks, training=True)


def estimator_evaluate(estimator: Any, evaluate_distributed_fn: Callable[..., Any], hooks: Sequence[Any]) -> Any:
    """Implement `Estimator.evaluate` in a cluster, which only a standalone client may call."""
    _only_standalone(estimator, "evaluate")
    if estimator._config.eval_distribute.extended.experimental_between_graph:
        raise ValueError(
            "Estimator.evaluate was called in a cluster with a strategy that runs one graph on each worker "
            f"({type(estimator._config.eval_distribute).__name__}); its metrics cannot be combined. "
            "Use MirroredStrategy for `eval_distribute`, or none."
        )
    return _from_client(estimator, evaluate_distributed_fn, hooks, training=False)


def _from_client(estimator: Any, run: Callable[..., Any], hooks: Sequence[Any], *, training: bool) -> Any:
    from tensorflow.python.distribute import distribute_coordinator as dc
    from tensorflow.python.distribute import distribute_coordinator_context as dc_context

    config = estimator._config

    def on_task(strategy: Any) -> Any:
        context = dc_context.get_current_worker_context()
        which = {"train_strategy": strategy} if training else {"eval_strategy": strategy}
        local = bind_to_task(estimator, context=context, **which)
        # Hooks have state for one session: with a graph on each worker only the chief has them.
        chief_hooks = list(hooks) if context is None or context.is_chief else []
        return run(local, strategy, chief_hooks)

    return dc.run_distribute_coordinator(
        on_task,
        config.train_distribute if training else config.eval_distribute,
        mode=CoordinatorMode.STANDALONE_CLIENT,
        cluster_spec=config.cluster_spec,
        session_config=config.session_config,
    )


def run_training_task(
    estimator: Any,
    strategy: Any,
    run: Callable[[Any], Any],
    *,
    jobs: dict[str, list[str]],
    task_type: str,
    task_id: int,
    model_dir: str | None = None,
) -> Any:
    """Run `run(bound estimator)` as one training task (chief or worker), and return its result.

    Starts the task's TensorFlow server (if the strategy has not), configures the strategy's copy for the task, and sets
    the context from which monitored sessions get their master and chief.

    Args:
        estimator: The program's Estimator.
        strategy: Its training strategy, created in this process.
        run: Called once with the Estimator for this task.
        jobs: The training cluster: job name -> addresses. No evaluator.
        task_type: "chief" or "worker".
        task_id: The index within the job.
        model_dir: See `bind_to_task`.

    Returns:
        The result of `run`.

    Raises:
        ClusterError: The task is not a training task.
    """
    from tensorflow.python.distribute import distribute_coordinator as dc
    from tensorflow.python.distribute import distribute_coordinator_context as dc_context

    if task_type not in ("chief", "worker"):
        raise ClusterError(
            f"task {task_type}:{task_id} was asked to train",
            code="training/unsupported",
            found="training tasks are chief and worker",
        )

    def on_task(configured: Any) -> Any:
        context = dc_context.get_current_worker_context()
        return run(bind_to_task(estimator, train_strategy=configured, context=context, model_dir=model_dir))

    return dc.run_distribute_coordinator(
        on_task,
        strategy,
        mode=CoordinatorMode.INDEPENDENT_WORKER,
        cluster_spec=_normalized(jobs),
        task_type=task_type,
        task_id=task_id,
        session_config=estimator._config.session_config,
    )


def training_task(config: Any) -> tuple[dict[str, list[str]], tuple[str, int], bool] | None:
    """Return the cluster and the task of the training in this thread.

    They come from the coordinator's worker context, if there is one, or else from a RunConfig that was set from
    TF_CONFIG without the coordinator.

    Args:
        config: The RunConfig of the Estimator that trains.

    Returns:
        (job -> addresses, (this job, this index), whether this is the chief), or None for a single process.
    """
    from tensorflow.python.distribute import distribute_coordinator_context as dc_context

    context = dc_context.get_current_worker_context()
    if context is not None and context.cluster_spec is not None:
        return context.cluster_spec.as_dict(), (context.task_type, context.task_id), bool(context.is_chief)
    if config.cluster_spec and not getattr(config, "_distribute_coordinator_mode", None):
        return config.cluster_spec.as_dict(), (config.task_type, config.task_id), bool(config.is_chief)
    return None


def start_server(estimator: Any) -> Any:
    """Start the TensorFlow server of a task whose RunConfig has the cluster of TF_CONFIG, without a strategy.

    The cluster keeps the program's job names (also `master`), which are in the device names of its graph. It excludes
    the evaluator.
    """
    import tensorflow as tf

    config = estimator._config
    jobs = {job: tasks for job, tasks in config.cluster_spec.as_dict().items() if job != "evaluator"}
    settings = tf.compat.v1.ConfigProto()
    if config.session_config is not None:
        # Only these two session settings apply to a server; device filters, for example, would hide other tasks.
        settings.log_device_placement = config.session_config.log_device_placement
        settings.gpu_options.CopyFrom(config.session_config.gpu_options)
    return server_of(jobs, config.task_type, config.task_id, protocol=config.protocol, settings=settings)


def server_of(
    jobs: Mapping[str, Sequence[str]], task_type: str, task_id: int, *, protocol: str | None, settings: Any
) -> Any:
    """Return the TensorFlow server of a task, one for all trainings of a process, since it keeps its port.

    Args:
        jobs: Job name -> addresses.
        task_type: The job of the task.
        task_id: The index within the job.
        protocol: The server's protocol; None: TensorFlow's default.
        settings: A `tf.compat.v1.ConfigProto`, or None. The settings of the first training apply.
    """
    import tensorflow as tf

    key = (task_type, str(task_id), str(protocol), repr(sorted((job, list(tasks)) for job, tasks in jobs.items())))
    if key not in STATE.servers:
        own_port.check_server(jobs, jobs[task_type][task_id], f"{task_type}:{task_id}", os.environ)
        STATE.servers[key] = tf.distribute.Server(
            tf.train.ClusterSpec(dict(jobs)), job_name=task_type, task_index=task_id, protocol=protocol, config=settings
        )
    return STATE.servers[key]


def run_classic_task(estimator: Any, run: Callable[[Any], Any]) -> Any:
    """Run `run(estimator)` as one training task of a parameter-server cluster without a strategy.

    Args:
        estimator: The program's Estimator, whose RunConfig has the cluster and the task.
        run: Called once.

    Returns:
        The result of `run`.
    """
    start_server(estimator)
    return run(estimator)
