"""The Estimator engine: `train_and_evaluate` for a `tf.estimator.Estimator` on the tasks of a cluster.

`core/roles.py` has what each task does; this module has how an Estimator trains, evaluates and serves variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.compat.internals import distribute_coordinator as coordinator
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.compat.internals.saving import saving_listeners
from estimator_pipeline.engines.core import failures, optimizer_changes
from estimator_pipeline.engines.core.backend import TrainingOutcome
from estimator_pipeline.engines.core.context import TaskContext, build_context
from estimator_pipeline.engines.core.options import TrainOptions, options_of
from estimator_pipeline.engines.core.rendezvous import same_graph, same_job
from estimator_pipeline.engines.core.rendezvous.duplicate_records import DuplicateRecords
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.core.roles import run_task
from estimator_pipeline.engines.core.startup import latest_step
from estimator_pipeline.engines.core.stopping import shutdown
from estimator_pipeline.engines.core.stopping.synchronized_stop import SingleProcessStop
from estimator_pipeline.engines.core.training_files import TrainingFiles
from estimator_pipeline.engines.estimator.evaluation import EstimatorEvaluation
from estimator_pipeline.engines.estimator.hooks import (
    checkpoint_hook,
    finite_hook,
    finite_listener,
    local_loss_hook,
    progress_hook,
)
from estimator_pipeline.engines.estimator.multi_step import multi_step_hooks
from estimator_pipeline.engines.estimator.warm_start import warm_start_graph
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity, of_inputs, of_model_fn
from estimator_pipeline.engines.recording.ledger import TaskLedger
from estimator_pipeline.errors import ConfigError, DivergedError, PipelineError
from estimator_pipeline.inputs.wrapping import is_addressable
from estimator_pipeline.progress.error_lines import error_line
from estimator_pipeline.utils.logger import logger

__all__ = ["EstimatorBackend", "run", "train_and_evaluate"]


def train_and_evaluate(
    estimator: Any,
    train_spec: Any,
    eval_spec: Any,
    *,
    options: TrainOptions | None = None,
    environ: Mapping[str, str] | None = None,
    **keywords: Any,
) -> TrainResult:
    """Run this process's task of the job.

    Call it with the same arguments on every task; TF_CONFIG selects the task. Training resumes from the latest
    checkpoint in `model_dir`. Every checkpoint is evaluated. The final one is always evaluated, whether training ended
    at `max_steps`, at the end of the data, or by a hook. EvalSpec's defaults of `throttle_secs` and `start_delay_secs`
    count as "not set"; other values apply to all checkpoints except the final one.

    Args:
        estimator: A `tf.estimator.Estimator` with a RunConfig of `build_run_config`.
        train_spec: A `tf.estimator.TrainSpec`.
        eval_spec: A `tf.estimator.EvalSpec`.
        options: See `TrainOptions`.
        environ: Environment with TF_CONFIG; `os.environ` by default.
        **keywords: Options one by one, such as `evaluator=True`; they replace those of `options`.

    Returns:
        The job's result, the same on every task: final step, metrics, exports, a summary of each task.

    Raises:
        ConfigError: Arguments contradict each other.
        ClusterError: TF_CONFIG is invalid, or the workers have different numbers of devices.
        InputError: The evaluation had no data.
        TaskFailedError: This task, or the training that it belongs to, failed.
        PreemptedError: The task was asked to stop; training is saved in a checkpoint.
        WaitError: A wait timed out; the message names the awaited event.
        TypeError: A keyword is not an option.
    """
    compat.tensorflow()
    environ = os.environ if environ is None else environ
    options = options_of(options, keywords, environ=environ)
    return run(estimator, train_spec, eval_spec, tf_config=from_environ(environ), options=options, environ=environ)


def run(
    estimator: Any,
    train_spec: Any,
    eval_spec: Any,
    *,
    tf_config: TFConfig,
    options: TrainOptions,
    environ: Mapping[str, str],
) -> TrainResult:
    """Run a task of the job; see `train_and_evaluate`."""
    _check(estimator, train_spec, eval_spec, tf_config)
    config = estimator._config
    every = {"save_checkpoints_steps": config.save_checkpoints_steps}
    context = build_context(
        estimator.model_dir,
        tf_config=tf_config,
        environ=environ,
        options=options,
        input_fn=train_spec.input_fn,
        max_steps=train_spec.max_steps,
        strategy=config.train_distribute,
        eval_spec=eval_spec,
        checkpoint_steps=config.save_checkpoints_steps,
        identity=lambda input_fn: _identity_of(estimator, input_fn, tf_config),
        settings=same_job.facts(every, {"save_checkpoints_secs": config.save_checkpoints_secs}),
    )
    return run_task(context, EstimatorBackend(estimator=estimator, train_spec=train_spec))


def _check(estimator: Any, train_spec: Any, eval_spec: Any, tf_config: TFConfig) -> None:
    tf = compat.tensorflow()
    for name, value, kind in (
        ("estimator", estimator, "Estimator"),
        ("train_spec", train_spec, "TrainSpec"),
        ("eval_spec", eval_spec, "EvalSpec"),
    ):
        if not isinstance(value, (getattr(tf.estimator, kind), getattr(tf.compat.v1.estimator, kind))):
            hint = f"give a tf.estimator.{kind}"
            raise ConfigError(f"{name} is a {type(value).__name__}", code="argument/bad-value", hint=hint)
    if tf_config.is_single_process or not tf_config.is_training_task:
        return
    if estimator._config.train_distribute is None and not _is_classic(estimator, tf_config):
        raise ConfigError(
            f"{tf_config.task} is one of {tf_config.num_training_tasks} training tasks, and the RunConfig has no "
            "training strategy: each would train a separate model in the same model_dir",
            code="strategy/not-possible",
            found="train_distribute: none",
            hint="set train_distribute='multi_worker_mirrored', or 'parameter_server' if the cluster has a ps job",
        )


def _is_classic(estimator: Any, tf_config: TFConfig) -> bool:
    """Return whether this is a parameter-server cluster without a strategy.

    Each worker places the variables of its graph on the parameter servers, and RunConfig has the cluster of TF_CONFIG.
    """
    config = estimator._config
    is_configured = bool(config.cluster_spec and config.cluster_spec.as_dict())
    return tf_config.is_asynchronous and config.train_distribute is None and is_configured


def _identity_of(estimator: Any, input_fn: Any, tf_config: TFConfig) -> RunIdentity:
    seed = estimator._config.tf_random_seed
    of_data = of_inputs(input_fn, seed=seed, num_pipelines=tf_config.num_training_tasks)
    return dataclasses.replace(of_data, described=of_model_fn(estimator._model_fn, estimator.params))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatorBackend:
    """Trains, evaluates and serves with tf.estimator; see `Backend`.

    Attributes:
        estimator: The program's Estimator.
        train_spec: Its `tf.estimator.TrainSpec`.
    """

    estimator: Any
    train_spec: Any

    def train(self, context: TaskContext, stop: SingleProcessStop) -> TrainingOutcome:
        return _Training(self, context, stop).run()

    def evaluator(self, context: TaskContext) -> EstimatorEvaluation:
        return EstimatorEvaluation(
            self.estimator,
            context.eval_spec,
            progress=context.progress,
            keep=context.options.keep_evaluation,
            needs_data=context.options.needs_evaluation_data,
        )

    def server(self, context: TaskContext) -> Any:
        if _is_classic(self.estimator, context.tf_config):
            return coordinator.start_server(self.estimator)
        assert context.tf_config.cluster is not None
        return coordinator.server_of(
            context.tf_config.cluster.as_dict(),
            "ps",
            context.task.index,
            protocol=context.tf_config.rpc_layer,
            settings=self.estimator._config.session_config,
        )


class _Training:
    """One training of one task: its hooks, and the call of `Estimator.train`."""

    def __init__(self, backend: EstimatorBackend, context: TaskContext, stop: SingleProcessStop) -> None:
        self.estimator, self.spec = backend.estimator, backend.train_spec
        self.config = self.estimator._config
        self.context, self.stop = context, stop
        self.is_classic = _is_classic(self.estimator, context.tf_config)
        self.progress = progress_hook(context, self._after_step)
        stop.reached = lambda: self.progress.global_step
        self.local_loss: Any = None  # of a worker of synchronous training

    def _after_step(self, steps: int, coming: int) -> bool:
        self.context.rendezvous.raise_if_refused()
        return self.stop.after_step(steps, coming)

    def run(self) -> TrainingOutcome:
        context, options, input_fn = self.context, self.context.options, self.context.input_fn
        hooks = [self.progress, *self.spec.hooks, optimizer_changes.session_hook(context)]
        conclude: Callable[[], None] = lambda: None  # noqa: E731
        if context.tf_config.num_training_tasks > 1 and not is_addressable(input_fn):
            # Input functions of `estimator_pipeline.inputs` are known to shard.
            duplicates = DuplicateRecords(context)
            hooks.append(duplicates.hook())
            conclude = duplicates.conclude
        reporting = None
        if context.after_checkpoint is not None:
            exact = context.evaluates_during_training and not context.tf_config.is_asynchronous
            every = self.config.save_checkpoints_steps if exact else None
            reporting = checkpoint_hook(context.after_checkpoint, model_dir=context.model_dir, every_steps=every)
            hooks.append(reporting)
        if context.is_chief and context.tf_config.is_asynchronous:
            hooks.append(shutdown.last_steps_hook(context, self.stop))
        listeners = self._saving(hooks)
        if options.ledger is not None:
            ledger = TaskLedger(options.ledger, tf_config=context.tf_config)
            input_fn = ledger.input_fn(input_fn)
            hooks.insert(0, ledger.hook())
        if self.config.tf_random_seed is not None and options.seed_keras:
            # Without this two runs differ from the first step where the patch `graph-seed` is off.
            compat.tensorflow().keras.utils.set_random_seed(self.config.tf_random_seed)
        context.enter_stage("building the graph")
        try:
            with sessions.short_waits():
                self._train(input_fn, hooks, listeners)
        except Exception as error:
            self._record_failed_end(error)
            self._explain_divergence(error)
            raise
        if reporting is not None:
            reporting.poll(last=True)
        if self.progress.steps == 0:
            self._warn_of_failed_end()
        return TrainingOutcome(steps=self.progress.steps, data_ended=self.progress.data_ended, conclude=conclude)

    def _train(self, input_fn: Any, hooks: list[Any], listeners: tuple[Any, ...]) -> None:
        context, tf_config = self.context, self.context.tf_config

        def run(local: Any) -> None:
            warm_start_graph(local, context)
            of_task = multi_step_hooks(local, context)
            if context.trains_together:
                self.local_loss = local_loss_hook(local)
                of_task += [same_graph.watch(local, context), self.local_loss]
            local.train(
                input_fn=input_fn,
                max_steps=self.spec.max_steps,
                hooks=[*hooks, *of_task],
                saving_listeners=listeners,
            )

        if tf_config.is_single_process:
            run(coordinator.bind_to_task(self.estimator, train_strategy=context.strategy))
        elif self.is_classic:
            coordinator.run_classic_task(self.estimator, run)
        else:
            assert tf_config.cluster is not None
            coordinator.run_training_task(
                self.estimator,
                context.strategy,
                run,
                jobs=tf_config.cluster.as_dict(),
                task_type=context.task.type,
                task_id=context.task.index,
                model_dir=context.model_dir,
            )

    def _saving(self, hooks: list[Any]) -> tuple[Any, ...]:
        """Return the listeners of the hook that saves; add hooks in their place where it accepts none."""
        of_spec, is_chief = tuple(self.spec.saving_listeners), self.context.is_chief
        check = TrainingFiles(self.context.input_fn, accept=self.context.options.accept_changes).check
        if self.context.tf_config.is_single_process or self.is_classic:
            return (finite_listener(check), *of_spec) if is_chief else ()
        # A hook of the distribute coordinator, which runs last, writes checkpoints.
        rejected = bool(of_spec) and saving_listeners.are_rejected(self.context.strategy)
        if rejected:
            hooks.append(saving_listeners.listeners_hook(of_spec, is_chief=is_chief))
        hooks.append(finite_hook(check, every_steps=self.config.save_checkpoints_steps))
        return of_spec if is_chief and not rejected else ()

    # -- errors ---------------------------------------------------------------------------------------------------

    def _explain_divergence(self, error: Exception) -> None:
        """Report the last step of a training that has diverged; raise a DivergedError for a NaN loss."""
        hook, emit = self.progress, self.context.progress.emit
        if isinstance(error, compat.tensorflow().estimator.NanLossDuringTrainingError):
            emit("step", step=hook.global_step, loss=float("nan"), steps=hook.steps)
            loss = None if self.local_loss is None else self.local_loss.loss
            raise failures.diverged_at(hook.global_step, loss, self.context.tf_config) from error
        if isinstance(error, DivergedError):
            emit("step", step=hook.global_step, steps=hook.steps)

    def _record_failed_end(self, error: Exception) -> None:
        """Record that a hook's `end` failed: a restart with nothing left to train will not run it."""
        if self.progress.has_ended and not isinstance(error, PipelineError) and not failures.is_echo(error):
            record = {"step": self.progress.global_step, "error": error_line(error)}
            with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                self.context.rendezvous.write(self._failed_end, record)

    def _warn_of_failed_end(self) -> None:
        record, last = self.context.rendezvous.read_any(self._failed_end) or {}, self.context.max_steps
        if last is not None and last <= latest_step(self.context.model_dir) == record.get("step"):
            logger.warning(
                "In an earlier attempt the end of a session hook failed on %s, after the checkpoint of step %d: %s. It "
                "was not run again, because no step is left to train",
                *(self.context.task, record["step"], record["error"]),
            )

    @property
    def _failed_end(self) -> str:
        return f"failed_end/{str(self.context.task).replace(':', '-')}.json"
