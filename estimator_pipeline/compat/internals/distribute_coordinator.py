"""The glue between Estimator and TensorFlow's distribute coordinator, written anew.

TensorFlow 2.16 removed `tensorflow.python.distribute.estimator_training`; the coordinator below it
(`tensorflow.python.distribute.distribute_coordinator`) is still there. The estimator package calls five functions
of the removed module, at fixed places, and this module answers to its name:

=============================== ======================================================================
called from                     function
=============================== ======================================================================
`RunConfig.__init__`            :func:`init_run_config`
`train_and_evaluate`            :func:`should_run_distribute_coordinator`, :func:`train_and_evaluate`
`Estimator.train`               :func:`estimator_train`
`Estimator.evaluate`            :func:`estimator_evaluate`
=============================== ======================================================================

The behaviour is what these callers need, and what a program can see of it on 2.15: the fields of a RunConfig after
its construction were recorded there for every task of every dialect (`tests/compat/test_run_config_fields.py`).

Our own engine uses :func:`run_training_task` from here on every TensorFlow, 2.15 included.

Private use, and why: `distribute_coordinator` (starts the task's server and sets the worker context that
`MonitoredTrainingSession` reads; no public equivalent, unchanged from 2.15 to 2.21), and the private fields of
Estimator and RunConfig that say which task they are for (there is no public way to set them).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.cluster import own_port
from estimator_pipeline.compat.internals.saving import saving_listeners
from estimator_pipeline.errors import ClusterError

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
    """How the coordinator runs: on every task by itself, or from one client for all of them."""

    STANDALONE_CLIENT = "standalone_client"
    INDEPENDENT_WORKER = "independent_worker"


def _normalized(cluster_spec: Any) -> Any:
    from tensorflow.python.distribute import multi_worker_util

    return multi_worker_util.normalize_cluster_spec(cluster_spec)


def _distributed_options(config: Any) -> tuple[Any, Any, Any]:
    """(train strategy, evaluation strategy, remote cluster) of a RunConfig, from either of its two ways to say it."""
    train, evaluation, remote = config._train_distribute, config._eval_distribute, None
    experimental = getattr(config, "_experimental_distribute", None)
    if experimental:
        for name, old, new in (
            ("train_distribute", train, experimental.train_distribute),
            ("eval_distribute", evaluation, experimental.eval_distribute),
        ):
            if old is not None and new is not None:
                raise ValueError(
                    f"RunConfig was given `{name}` twice: directly, and in `experimental_distribute`. "
                    "Give it in one of the two places."
                )
        train = train or experimental.train_distribute
        evaluation = evaluation or experimental.eval_distribute
        remote = experimental.remote_cluster
    return train, evaluation, remote


def init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
    """Completes a RunConfig that was given a distribution strategy.

    Args:
        config: the `tf.estimator.RunConfig` under construction; its plain options are set already.
        tf_config: the parsed TF_CONFIG of this process, `{}` where there is none.

    With a training strategy and a cluster, the coordinator decides at run time what this task is, so the config
    keeps the values of a single process (worker 0, chief) and takes the cluster along. In every other case it is
    filled from TF_CONFIG as it is without a strategy.
    """
    train, evaluation, remote = _distributed_options(config)
    config._train_distribute, config._eval_distribute = train, evaluation
    config._distribute_coordinator_mode = None

    if remote is not None:
        if (tf_config or {}).get("cluster"):
            raise ValueError(
                "RunConfig was given `experimental_distribute.remote_cluster`, and TF_CONFIG has a `cluster` as well. "
                "A client of a remote cluster is no task of one: unset TF_CONFIG in its process."
            )
        config._init_distributed_setting_from_environment_var({})
        config._maybe_overwrite_session_config_for_distributed_training()
        config._cluster_spec = _normalized(remote)
        config._distribute_coordinator_mode = CoordinatorMode.STANDALONE_CLIENT
        return

    cluster = (tf_config or {}).get("cluster")
    if train is None or not cluster or "master" in cluster:
        # The coordinator does not know the `master` job of TensorFlow 1; such a cluster goes the old way.
        config._init_distributed_setting_from_environment_var(tf_config or {})
        config._maybe_overwrite_session_config_for_distributed_training()
        return

    config._init_distributed_setting_from_environment_var({})
    config._maybe_overwrite_session_config_for_distributed_training()
    config._cluster_spec = _normalized(cluster)
    config._distribute_coordinator_mode = CoordinatorMode.INDEPENDENT_WORKER


def should_run_distribute_coordinator(config: Any) -> bool:
    """Whether `train_and_evaluate` goes through the coordinator rather than through its own executor."""
    if not getattr(config, "_distribute_coordinator_mode", None):
        return False
    return bool(config.cluster_spec and config.cluster_spec.as_dict())


def config_of(estimator: Any) -> Any:
    """An Estimator's RunConfig; of a stand-in that has the public attributes alone, those.

    `Estimator.config` is a deep copy, and strategies cannot be copied.
    """
    own = getattr(estimator, "_config", None)
    return estimator.config if own is None else own


def bind_to_task(
    estimator: Any,
    *,
    train_strategy: Any = None,
    eval_strategy: Any = None,
    context: Any = None,
    model_dir: str | None = None,
) -> Any:
    """A shallow copy of an Estimator that stands for one task of the cluster.

    Args:
        estimator: the program's `tf.estimator.Estimator`; it is left as it was.
        train_strategy: the coordinator's own copy of the training strategy, already configured for the task.
        eval_strategy: the same for evaluation.
        context: the coordinator's worker context. None: a process by itself.
        model_dir: where it looks for a checkpoint and writes; None: in the Estimator's own.

    Returns:
        The copy. Its `train` and `evaluate` run at once, without going through the coordinator again.
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
    # Evaluation on a training task is a session of its own in this process: it takes no part in the cluster.
    config._evaluation_master = ""
    config._num_ps_replicas = len(jobs.get("ps", ()))
    config._num_worker_replicas = len(jobs.get("chief", ())) + len(jobs.get("worker", ()))
    order = [(job, i) for job in ("chief", "worker", "ps") for i in range(len(jobs.get(job, ())))]
    task = (context.task_type, context.task_id)
    config._global_id_in_cluster = order.index(task) if task in order else None


def train_and_evaluate(estimator: Any, train_spec: Any, eval_spec: Any, executor_class: type) -> Any:
    """Runs `tf.estimator.train_and_evaluate` for this task of the cluster.

    Args:
        estimator: the program's Estimator, with a RunConfig for which
            :func:`should_run_distribute_coordinator` holds.
        train_spec: its `tf.estimator.TrainSpec`.
        eval_spec: its `tf.estimator.EvalSpec`.
        executor_class: the estimator package's executor; called with (estimator, train_spec, eval_spec), it
            knows how a training task and an evaluator spend their lives.
    """
    from tensorflow.python.distribute import distribute_coordinator as dc
    from tensorflow.python.distribute import distribute_coordinator_context as dc_context

    config = config_of(estimator)

    def train(strategy: Any) -> Any:
        context = dc_context.get_current_worker_context()
        local = bind_to_task(estimator, train_strategy=strategy, eval_strategy=None, context=context)
        hooks, listeners = list(train_spec.hooks), train_spec.saving_listeners
        if listeners and saving_listeners.are_refused(strategy):
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
            f"Estimator.{call} was called on a task of a TF_CONFIG cluster. In a cluster every task must call "
            f"tf.estimator.train_and_evaluate, which knows what the task is for; Estimator.{call} works in a "
            "single process, or from one client with "
            "`experimental_distribute=DistributeConfig(remote_cluster=…)`."
        )
    if "evaluator" in _normalized(estimator._config.cluster_spec).jobs:
        raise ValueError(
            f"Estimator.{call} was called with an `evaluator` job in the cluster, which only "
            "tf.estimator.train_and_evaluate has a use for. Remove the job or call train_and_evaluate."
        )


def estimator_train(estimator: Any, train_distributed_fn: Callable[..., Any], hooks: Sequence[Any]) -> Any:
    """Answers `Estimator.train` in a cluster: from a standalone client alone.

    Args:
        estimator: the Estimator whose `train` was called.
        train_distributed_fn: called with (task's Estimator, task's strategy, hooks).
        hooks: the session hooks that `train` was given.
    """
    _only_standalone(estimator, "train")
    return _from_client(estimator, train_distributed_fn, hooks, training=True)


def estimator_evaluate(estimator: Any, evaluate_distributed_fn: Callable[..., Any], hooks: Sequence[Any]) -> Any:
    """Answers `Estimator.evaluate` in a cluster: from a standalone client alone. Arguments as in training."""
    _only_standalone(estimator, "evaluate")
    if estimator._config.eval_distribute.extended.experimental_between_graph:
        raise ValueError(
            "Estimator.evaluate was called in a cluster with a strategy that runs one graph on each worker "
            f"({type(estimator._config.eval_distribute).__name__}); its metrics could not be brought together. "
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
        # Hooks keep state for one session: with a graph on each worker only the chief's may have them.
        own = list(hooks) if context is None or context.is_chief else []
        return run(local, strategy, own)

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
    """Runs `run(bound estimator)` as one training task (chief or worker) and gives back what it returns.

    Starts the task's TensorFlow server (where the strategy has not done so), configures the strategy's copy for the
    task, and sets the context that monitored sessions take their master and their chief from.

    Args:
        estimator: the program's Estimator.
        strategy: its training strategy, made in this process.
        run: called once with the Estimator that stands for this task.
        jobs: the training cluster: job name -> addresses. No evaluator.
        task_type: "chief" or "worker".
        task_id: index within the job.
        model_dir: see :func:`bind_to_task`.

    Returns:
        What `run` returned.

    Raises:
        ClusterError: the task is not a training task.
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
    """Which task of which cluster the training that runs or begins in this thread is.

    The coordinator's worker context says so where there is one, and else the RunConfig, if it took the cluster from
    TF_CONFIG by itself.

    Args:
        config: the RunConfig of the Estimator that trains.

    Returns:
        (job -> addresses, (own job, own index), whether this is the chief), or None: a process by itself.
    """
    from tensorflow.python.distribute import distribute_coordinator_context as dc_context

    context = dc_context.get_current_worker_context()
    if context is not None and context.cluster_spec is not None:
        return context.cluster_spec.as_dict(), (context.task_type, context.task_id), bool(context.is_chief)
    if config.cluster_spec and not getattr(config, "_distribute_coordinator_mode", None):
        return config.cluster_spec.as_dict(), (config.task_type, config.task_id), bool(config.is_chief)
    return None


def start_server(estimator: Any) -> Any:
    """Starts the TensorFlow server of a task whose RunConfig took the cluster from TF_CONFIG, without a strategy.

    The cluster keeps the program's own job names (`master` among them): they are in the device names of its graph.
    The evaluator is no part of it.
    """
    import tensorflow as tf

    config = estimator._config
    jobs = {job: tasks for job, tasks in config.cluster_spec.as_dict().items() if job != "evaluator"}
    settings = tf.compat.v1.ConfigProto()
    if config.session_config is not None:
        # Of the session's own settings these two belong to a server; device filters, for one, would blind it.
        settings.log_device_placement = config.session_config.log_device_placement
        settings.gpu_options.CopyFrom(config.session_config.gpu_options)
    return server_of(jobs, config.task_type, config.task_id, protocol=config.protocol, settings=settings)


_servers: dict[tuple[str, ...], Any] = {}


def server_of(
    jobs: Mapping[str, Sequence[str]], task_type: str, task_id: int, *, protocol: str | None, settings: Any
) -> Any:
    """The TensorFlow server of a task; one for all trainings of a process, for a server keeps its port until the end.

    Args:
        jobs: job name -> addresses.
        task_type: job of the task.
        task_id: its index in the job.
        protocol: of the server; None: TensorFlow's own choice.
        settings: a `tf.compat.v1.ConfigProto`, or None. Those of the first training count.
    """
    import tensorflow as tf

    key = (task_type, str(task_id), str(protocol), repr(sorted((job, list(tasks)) for job, tasks in jobs.items())))
    if key not in _servers:
        own_port.require_free(jobs[task_type][task_id], f"{task_type}:{task_id}", os.environ)
        _servers[key] = tf.distribute.Server(
            tf.train.ClusterSpec(dict(jobs)), job_name=task_type, task_index=task_id, protocol=protocol, config=settings
        )
    return _servers[key]


def run_classic_task(estimator: Any, run: Callable[[Any], Any]) -> Any:
    """Runs `run(estimator)` as one training task of a parameter-server cluster without a strategy.

    Args:
        estimator: the program's Estimator; its RunConfig knows the cluster and the task.
        run: called once.

    Returns:
        What `run` returned.
    """
    start_server(estimator)
    return run(estimator)
