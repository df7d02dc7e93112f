"""The Estimator engine: `train_and_evaluate` with the role and shutdown of each task of the cluster.

================ ===============================================================================================
task             what it does
================ ===============================================================================================
chief            trains and writes checkpoints; without an evaluator, evaluates the final checkpoint (and, if
                 requested, every checkpoint during training); publishes the result
worker           trains; waits for the result
parameter server serves variables until every training task has left training; waits for the result
evaluator        creates no training strategy; evaluates each checkpoint and the final one last, exports; every
                 task returns its result
single process   trains and evaluates at each checkpoint
================ ===============================================================================================

A `master` (TensorFlow 1) is a chief that evaluates during training, as in TensorFlow 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.cluster.peers import start_secs
from estimator_pipeline.compat.internals import distribute_coordinator as coordinator
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.compat.internals.saving import saving_listeners
from estimator_pipeline.engines.estimator import changed_optimizer as other_optimizer
from estimator_pipeline.engines.estimator.evaluator import EstimatorEvaluator
from estimator_pipeline.engines.estimator.hooks import (
    checkpoint_hook,
    finite_hook,
    finite_listener,
    local_loss_hook,
    progress_hook,
    stop_hook,
)
from estimator_pipeline.engines.estimator.multi_step import MultiStepExecution, checked_steps
from estimator_pipeline.engines.lifecycle.divergence import diverged_at
from estimator_pipeline.engines.lifecycle.evaluator import CheckpointEvaluator
from estimator_pipeline.engines.lifecycle.rendezvous import same_graph, same_job
from estimator_pipeline.engines.lifecycle.rendezvous.duplicate_records import DuplicateRecords
from estimator_pipeline.engines.lifecycle.result import TrainResult
from estimator_pipeline.engines.lifecycle.settings import TrainingOutcome, TrainOptions
from estimator_pipeline.engines.lifecycle.startup import latest_step
from estimator_pipeline.engines.lifecycle.stopping import shutdown
from estimator_pipeline.engines.lifecycle.stopping.last_steps import last_steps_hook
from estimator_pipeline.engines.lifecycle.task import TaskController
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity, of_inputs, of_model_fn
from estimator_pipeline.engines.recording.ledger import TaskLedger
from estimator_pipeline.engines.recording.pace import WorkerPace
from estimator_pipeline.errors import ConfigError, DivergedError, PipelineError
from estimator_pipeline.progress.error_lines import error_line
from estimator_pipeline.utils.logger import logger

__all__ = ["TrainResult", "train_and_evaluate"]


def train_and_evaluate(
    estimator: Any,
    train_spec: Any,
    eval_spec: Any,
    *,
    evaluator: bool | None = None,
    evaluate_during_training: bool | None = None,
    result_timeout: float = 1800.0,
    checkpoint_timeout: float = 7200.0,
    startup_timeout: float | None = None,
    keep_evaluation: bool = True,
    literal_delays: bool = False,
    needs_evaluation_data: bool = True,
    seed_keras: bool = True,
    identity: Callable[[], RunIdentity] | None = None,
    shared: Mapping[str, Any] | None = None,
    accept_changes: bool = False,
    preemption_signals: Sequence[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    steps_per_execution: int | str = 1,
    environ: Mapping[str, str] | None = None,
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
        evaluator: Whether the job has an evaluator task. None: as set by the launcher or TF_CONFIG; if neither does, an
            evaluator that has connected by the end of training is used.
        evaluate_during_training: Whether the chief evaluates each checkpoint during training. None: a single process
            and a `master` do, a chief does not.
        result_timeout: Seconds that a task waits for the result after the end of training.
        checkpoint_timeout: Seconds without a new checkpoint after which the evaluator gives up.
        startup_timeout: Seconds that a task waits for the other tasks to start. None: the environment variable
            ESTIMATOR_PIPELINE_START_SECS, or 1800.
        keep_evaluation: Whether evaluations share one graph and one session (docs/guides/evaluation.md).
        literal_delays: Whether EvalSpec's defaults `throttle_secs=600` and `start_delay_secs=120` apply literally.
            Otherwise they count as "not set".
        needs_evaluation_data: Whether an evaluation without any batch is an error. All its metrics are 0.0, and a loss
            of 0.0 counts as the best. False: a warning, and training continues as in tf.estimator.
        seed_keras: Whether `RunConfig.tf_random_seed` also seeds Keras, NumPy and Python. Without it the seed
            applies to graphs and, with the patch `graph-seed`, to their Keras initializers.
        identity: Returns the run identity, see `estimator_pipeline.engines.model_dir.run_identity`; None: the seed
            and the description of the input function.
        shared: Settings that all tasks must share, from a job file, see
            `estimator_pipeline.engines.lifecycle.rendezvous.same_job`. None: tasks may differ as far as the result
            can still be right.
        accept_changes: Whether the run may resume from a checkpoint of a run with a different identity.
        preemption_signals: Names of signals that stop this task with a checkpoint (docs/guides/preemption.md). None:
            the environment variable ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS, or SIGTERM.
        ledger: A folder, the same for all tasks, to which each writes the records that it consumes
            (docs/guides/ledger.md).
        steps_per_execution: Maximum train steps per session call, or "auto". Results do not depend on it
            (docs/guides/performance.md).
        environ: Environment with TF_CONFIG; `os.environ` by default.

    Returns:
        The job's result, the same on every task: final step, metrics, exports, a summary of each task.

    Raises:
        ConfigError: Arguments contradict each other.
        ClusterError: TF_CONFIG is invalid, or the workers have different numbers of devices.
        InputError: The evaluation had no data.
        TaskFailedError: This task, or the training that it belongs to, failed.
        PreemptedError: The task was asked to stop; training is saved in a checkpoint.
        WaitError: A wait timed out; the message names the awaited event.
    """
    tf = compat.tensorflow()
    environ = os.environ if environ is None else environ
    tf_config = from_environ(environ)
    _check(tf, estimator, train_spec, eval_spec, tf_config)
    task = _EstimatorTask(
        estimator,
        train_spec,
        eval_spec,
        tf_config=tf_config,
        environ=environ,
        settings=TrainOptions(
            evaluator=evaluator,
            evaluate_during_training=evaluate_during_training,
            result_timeout=result_timeout,
            checkpoint_timeout=checkpoint_timeout,
            startup_timeout=start_secs(environ) if startup_timeout is None else startup_timeout,
            identity=identity,
            shared=shared,
            accept_changes=accept_changes,
            preemption_signals=preemption_signals,
        ),
        keep_evaluation=keep_evaluation,
        literal_delays=literal_delays,
        needs_evaluation_data=needs_evaluation_data,
        seed_keras=seed_keras,
        ledger=ledger,
        multi_step=MultiStepExecution(checked_steps(steps_per_execution), tf_config=tf_config),
    )
    return task.live()


def _check(tf: Any, estimator: Any, train_spec: Any, eval_spec: Any, tf_config: TFConfig) -> None:
    for name, value, kind in (
        ("estimator", estimator, (tf.estimator.Estimator, tf.compat.v1.estimator.Estimator)),
        ("train_spec", train_spec, tf.estimator.TrainSpec),
        ("eval_spec", eval_spec, tf.estimator.EvalSpec),
    ):
        if not isinstance(value, kind):
            expected = kind[0] if isinstance(kind, tuple) else kind
            raise ConfigError(
                f"{name} is a {type(value).__name__}",
                code="argument/bad-value",
                hint=f"give a tf.estimator.{expected.__name__}",
            )
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
    has_ps = tf_config.cluster is not None and tf_config.cluster.num_ps > 0
    return has_ps and config.train_distribute is None and bool(config.cluster_spec and config.cluster_spec.as_dict())


class _EstimatorTask(TaskController):
    """One task of a job that tf.estimator trains; see `train_and_evaluate` for the arguments."""

    def __init__(
        self,
        estimator: Any,
        train_spec: Any,
        eval_spec: Any,
        *,
        tf_config: TFConfig,
        environ: Mapping[str, str],
        settings: TrainOptions,
        keep_evaluation: bool,
        literal_delays: bool,
        needs_evaluation_data: bool,
        seed_keras: bool,
        ledger: str | os.PathLike[str] | None,
        multi_step: MultiStepExecution,
    ) -> None:
        super().__init__(
            estimator.model_dir,
            tf_config=tf_config,
            environ=environ,
            input_fn=train_spec.input_fn,
            max_steps=train_spec.max_steps,
            strategy=estimator._config.train_distribute,
            settings=settings,
        )
        self.estimator, self.train_spec, self.eval_spec = estimator, train_spec, eval_spec
        self.keep_evaluation, self.literal_delays, self.seed_keras = keep_evaluation, literal_delays, seed_keras
        self.needs_evaluation_data = needs_evaluation_data
        self.classic, self.multi_step = _is_classic(estimator, tf_config), multi_step
        self.local_loss: Any = None  # of a worker of synchronous training
        self.ledger = None
        if ledger is not None and tf_config.is_training_task:
            self.ledger = TaskLedger(ledger, tf_config=tf_config)

    def train(self) -> TrainingOutcome:
        tf = compat.tensorflow()
        if self._is_over():
            return TrainingOutcome(steps=0, data_ended=False)
        if not self.tf_config.is_single_process:
            self.preemption.joins()
        config = self.estimator._config
        together = not (self.tf_config.is_single_process or self._is_asynchronous)
        hook = progress_hook(self.progress, pace=WorkerPace(self.progress, task=str(self.task)) if together else None)
        self.reached = lambda: hook.global_step
        hooks = [hook, stop_hook(self._after_step, self.preemption.rearm), *self.train_spec.hooks]
        accept = self.settings.accept_changes
        hooks.append(other_optimizer.hook(self.model_dir, accept=accept, log=self.tf_config.is_chief))
        if self.num_pipelines > 1 and not hasattr(self.input_fn, "ledger"):
            # Input functions of `estimator_pipeline.inputs` are known to shard.
            self.duplicate_records = DuplicateRecords(
                self.rendezvous, self.tf_config, input_fn=self.input_fn, has_strategy=not self.classic
            )
            hooks.append(self.duplicate_records.hook())
        reporting = None
        if self.tf_config.is_chief and self.progress.enabled:
            reporting = checkpoint_hook(self._report_checkpoint, model_dir=self.model_dir, every_steps=None)
            hooks.append(reporting)
        if self.tf_config.is_chief and self.evaluate_during_training:
            asynchronous = self.tf_config.cluster is not None and self.tf_config.cluster.num_ps > 0
            every = None if asynchronous else config.save_checkpoints_steps
            hooks.append(checkpoint_hook(self.evaluate_during, model_dir=self.model_dir, every_steps=every))
        if self.tf_config.is_chief and self._is_asynchronous:
            hooks.append(
                last_steps_hook(
                    self.rendezvous,
                    [task for task in self._training_tasks() if task != self.task],
                    timeout=self.settings.result_timeout,
                    asked=lambda: self.preemption.asked,
                    stop_others=lambda: self.stopping.after_step(0),
                    on_wait=lambda: self.progress.emit("trained"),
                )
            )
        of_spec = tuple(self.train_spec.saving_listeners)
        listeners = of_spec if self.tf_config.is_chief else ()
        if of_spec and self._saves_by_coordinator() and saving_listeners.are_rejected(self.strategy):
            hooks.append(saving_listeners.listeners_hook(of_spec, is_chief=self.tf_config.is_chief))
            listeners = ()
        if self._saves_by_coordinator():
            hooks.append(finite_hook(self.files.check, every_steps=config.save_checkpoints_steps))
        elif self.tf_config.is_chief:
            listeners = (finite_listener(self.files.check), *listeners)
        input_fn = self.train_spec.input_fn
        if self.ledger is not None:
            input_fn = self.ledger.input_fn(input_fn)
            hooks.insert(0, self.ledger.hook())
        if config.tf_random_seed is not None and self.seed_keras:
            # Without this two runs differ from the first step where the patch `graph-seed` is off.
            tf.keras.utils.set_random_seed(config.tf_random_seed)

        def run(local: Any) -> None:
            of_task = self.multi_step.attach(local)
            if together:
                of_task.append(same_graph.watch(local, self.tf_config, timeout=self.settings.startup_timeout))
                self.local_loss = local_loss_hook(local)
                of_task.append(self.local_loss)
            local.train(
                input_fn=input_fn,
                max_steps=self.train_spec.max_steps,
                hooks=[*hooks, *of_task],
                saving_listeners=listeners,
            )

        with sessions.short_waits(), self._diverging(hook), self._recording_failed_end(hook):
            if self.tf_config.is_single_process:
                self.set_start_step()
                run(coordinator.bind_to_task(self.estimator, train_strategy=self.strategy))
            elif self.classic:
                self.set_start_step()
                coordinator.run_classic_task(self.estimator, run)
            else:
                assert self.tf_config.cluster is not None
                sessions.let_sigterm_end_this_process()
                self.check_together()
                self.set_start_step()
                coordinator.run_training_task(
                    self.estimator,
                    self.strategy,
                    run,
                    jobs=self.tf_config.cluster.as_dict(),
                    task_type=self.task.type,
                    task_id=self.task.index,
                    model_dir=self.model_dir,
                )
        if reporting is not None:
            reporting.poll()
        if hook.steps == 0:
            self._warn_of_failed_end()
        return TrainingOutcome(steps=hook.steps, data_ended=hook.data_ended)

    def _after_step(self, steps: int = 1, coming: int = 1) -> bool:
        self.rendezvous.raise_if_refused()
        return self.stopping.after_step(steps, coming)

    def _is_over(self) -> bool:
        """Return whether asynchronous training has reached its last step, for a worker without the chief's model_dir.

        A worker that sees the chief's checkpoints gets the step from them.
        """
        apart = self.rendezvous.apart and self._is_asynchronous
        return apart and self.max_steps is not None and self.agree_on_start() >= self.max_steps

    def _own_identity(self) -> RunIdentity:
        seed, function = self.estimator._config.tf_random_seed, self.estimator._model_fn
        of_data = of_inputs(self.input_fn, seed=seed, num_pipelines=self.num_pipelines)
        return dataclasses.replace(of_data, described=of_model_fn(function, self.estimator.params))

    def own_settings(self) -> dict[str, Any]:
        config = self.estimator._config
        every = {"save_checkpoints_steps": config.save_checkpoints_steps}
        return super().own_settings() | same_job.facts(every, {"save_checkpoints_secs": config.save_checkpoints_secs})

    def _saves_by_coordinator(self) -> bool:
        """Return whether a hook of the distribute coordinator, which runs last, writes checkpoints."""
        return not self.tf_config.is_single_process and not self.classic

    @contextlib.contextmanager
    def _diverging(self, hook: Any) -> Iterator[None]:
        """Convert the error of a NaN loss to a DivergedError with the step, within the block."""
        try:
            yield
        except compat.tensorflow().estimator.NanLossDuringTrainingError as error:
            self.progress.emit("step", step=hook.global_step, loss=float("nan"), steps=hook.steps)
            loss = None if self.local_loss is None else self.local_loss.loss
            raise diverged_at(hook.global_step, loss, self.tf_config) from error
        except DivergedError:
            self.progress.emit("step", step=hook.global_step, steps=hook.steps)
            raise

    @contextlib.contextmanager
    def _recording_failed_end(self, hook: Any) -> Iterator[None]:
        """Record that a hook's `end` failed, within the block: a restart with nothing left to train will not run it."""
        try:
            yield
        except Exception as error:
            if hook.has_ended and not isinstance(error, PipelineError) and not shutdown.is_echo(error):
                with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                    self.rendezvous.write(self._failed_end, {"step": hook.global_step, "error": error_line(error)})
            raise

    def _warn_of_failed_end(self) -> None:
        record = self.rendezvous.read_any(self._failed_end) or {}
        if self.max_steps is not None and self.max_steps <= latest_step(self.model_dir) == record.get("step"):
            logger.warning(
                "In an earlier attempt the end of a session hook failed on %s, after the checkpoint of step %d: %s. It "
                "was not run again, because no step is left to train",
                *(self.task, record["step"], record["error"]),
            )

    @property
    def _failed_end(self) -> str:
        return f"failed_end/{str(self.task).replace(':', '-')}.json"

    def _report_checkpoint(self, checkpoint: str) -> None:
        self.progress.emit("checkpoint", step=checkpoint_step(checkpoint), path=checkpoint)

    def make_evaluator(self) -> CheckpointEvaluator:
        return EstimatorEvaluator(
            self.estimator,
            self.eval_spec,
            progress=self.progress,
            keep=self.keep_evaluation,
            literal_delays=self.literal_delays,
            needs_data=self.needs_evaluation_data,
        )

    def start_server(self) -> Any:
        self.preemption.joins(lambda: self.rendezvous.answered)
        if self.classic:
            return coordinator.start_server(self.estimator)
        assert self.tf_config.cluster is not None
        return coordinator.server_of(
            self.tf_config.cluster.as_dict(),
            "ps",
            self.task.index,
            protocol=self.tf_config.rpc_layer,
            settings=self.estimator._config.session_config,
        )
