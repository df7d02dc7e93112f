"""The Keras engine: runs a job with `Model.fit`, with the same task lifecycle as the Estimator engine.

A Keras epoch lasts from one checkpoint to the next (`save_checkpoints_steps`; one pass over the data if checkpoints are
not saved by steps), so that both engines write and evaluate checkpoints of the same steps. Data is addressed by step: a
resumed run reads the records that an uninterrupted run would have read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence, Set
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.internals import keras_steps_per_execution as keras_steps
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.compat.internals import stateless_random as step_random
from estimator_pipeline.compat.internals.data_end.common_end import end_warning
from estimator_pipeline.compat.internals.data_end.keras_common_end import StepsTogether
from estimator_pipeline.compat.patches import lost_peers
from estimator_pipeline.engines.estimator import changed_optimizer as other_optimizer
from estimator_pipeline.engines.estimator.multi_step import MultiStepExecution
from estimator_pipeline.engines.keras import checkpoints as keras_checkpoints
from estimator_pipeline.engines.keras.callbacks import (
    check_finite,
    checkpoint_callback,
    closing_summaries,
    preemption_callback,
    progress_callback,
    saved_values_callback,
    stop_callback,
    tensorboard_callback,
)
from estimator_pipeline.engines.keras.data import distributed, scope, steps_of
from estimator_pipeline.engines.keras.evaluator import KerasEvaluator
from estimator_pipeline.engines.keras.multi_step import executions_callback, noting_endless, wanted_by
from estimator_pipeline.engines.keras.plan import KerasPlan
from estimator_pipeline.engines.lifecycle.result import TrainResult
from estimator_pipeline.engines.lifecycle.settings import TrainingOutcome, TrainOptions
from estimator_pipeline.engines.lifecycle.startup import optimizer_changes
from estimator_pipeline.engines.lifecycle.step_schedule import StepInterval
from estimator_pipeline.engines.lifecycle.task import TaskController
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity, of_inputs
from estimator_pipeline.engines.recording.ledger import TaskLedger
from estimator_pipeline.errors import ClusterError, ConfigError
from estimator_pipeline.utils.logger import logger

__all__ = ["KerasTask", "train_and_evaluate"]


def train_and_evaluate(
    plan: KerasPlan,
    *,
    tf_config: TFConfig,
    settings: TrainOptions | None = None,
    environ: Mapping[str, str] | None = None,
) -> TrainResult:
    """Run this process's task of a job with `Model.fit`.

    Args:
        plan: The job's plan.
        tf_config: Cluster and task of this process.
        settings: See `TrainOptions`.
        environ: Environment for the rendezvous and the launcher's progress file; `os.environ` by default.

    Returns:
        The job's result, the same on every task: final step, metrics, exports, a summary of each task.

    Raises:
        ConfigError: The model directory has checkpoints of a different model.
        TaskFailedError: This task, or the training that it belongs to, failed.
        PreemptedError: The task was asked to stop; training is saved in a checkpoint.
        WaitError: A wait timed out.
    """
    return KerasTask(
        plan,
        tf_config=tf_config,
        settings=settings or TrainOptions(),
        environ=os.environ if environ is None else environ,
    ).live()


class KerasTask(TaskController):
    """One task of a job that Keras trains.

    Attributes:
        engine: The engine's name in a job file.
        plan: The job's plan.
    """

    engine = "keras"

    def __init__(
        self, plan: KerasPlan, *, tf_config: TFConfig, settings: TrainOptions, environ: Mapping[str, str]
    ) -> None:
        compat.install()
        keras_checkpoints.refuse_others(plan.model_dir, engine=self.engine)
        super().__init__(
            plan.model_dir,
            tf_config=tf_config,
            environ=environ,
            input_fn=plan.train_input_fn,
            max_steps=plan.max_steps,
            strategy=plan.strategy,
            settings=settings,
        )
        self.plan, self._endless = plan, False
        # For several workers whose data may end at different steps.
        self._together: StepsTogether | None = None
        # The global step at which training starts.
        self.start_step = 0
        self.ledger: TaskLedger | None = None
        if plan.ledger is not None and tf_config.is_training_task:
            self.ledger = TaskLedger(plan.ledger, tf_config=tf_config)

    def train(self) -> TrainingOutcome:
        tf = compat.tensorflow()
        if not self.tf_config.is_single_process:
            self.preemption.joins()
            sessions.let_sigterm_end_this_process()
            self.check_together()
        saved = self.agree_on_start()
        if self.max_steps is not None and saved >= self.max_steps:
            return TrainingOutcome(steps=0, data_ended=False)
        start = self.start_step = self._start_after(saved)
        if self.plan.seed is not None:
            tf.keras.utils.set_random_seed(self.plan.seed)
        with scope(self.strategy):
            model = self.build()
            checkpoint = self.checkpoint_of(model)
            manager = tf.train.CheckpointManager(
                checkpoint,
                keras_checkpoints.write_dir(self.model_dir, self.tf_config),
                max_to_keep=self.plan.keep_checkpoint_max or None,
                keep_checkpoint_every_n_hours=self.plan.keep_checkpoint_every_n_hours,
                checkpoint_name=keras_checkpoints.PREFIXES[self.engine],
            )
            if saved:
                timeout = self.settings.startup_timeout
                changed = optimizer_changes(self.model_dir, self.tf_config, step=saved, timeout=timeout)
                self.restore(model, checkpoint, tf.train.latest_checkpoint(self.model_dir), changed)
        log_every = self.plan.log_steps if self.tf_config.is_chief else None
        progress = progress_callback(self.progress, start_step=start, log_every=log_every)
        self.reached = lambda: progress.step
        with sessions.short_waits(), self._watching(progress):
            input_fn = noting_endless(self._recorded_input_fn(), self._note_endless)
            self._together = self._step_together()
            data = distributed(self.strategy, input_fn, self._read)
            self.fit(
                model,
                data,
                initial_epoch=start // self.plan.epoch_steps if self.plan.epoch_steps else 0,
                epochs=self._epochs(),
                steps_per_epoch=self._epoch_steps(start),
                callbacks=self._callbacks(model, manager, progress, start, restored=start > saved),
            )
        if self._together is not None and self.tf_config.is_chief:
            lacking = self._together.lacking()
            if lacking is not None and not all(lacking) and progress.step != self.max_steps:
                tasks = [str(task) for task in self._training_tasks()]
                logger.warning("%s", end_warning(tasks, lacking, progress.step))
        return TrainingOutcome(steps=progress.finished, data_ended=not model.stop_training)

    def _step_together(self) -> StepsTogether | None:
        tasks = [str(task) for task in self._training_tasks()]
        # Input functions of this package give every worker the same number of batches.
        if len(tasks) < 2 or getattr(self.input_fn, "as_many_for_all", False) or not coordination.available():
            return None
        timeout = self.settings.startup_timeout
        return StepsTogether(self.strategy, tasks=tasks, task=str(self.task), timeout=timeout)

    def _read(self, dataset: Any) -> Any:
        weighted = self.plan.weighted(dataset)
        return weighted if self._together is None else self._together.alike(weighted)

    def tracing(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a training step is traced."""
        return contextlib.nullcontext() if self._together is None else self._together.tracing()

    def _start_after(self, saved: int) -> int:
        """Return the step at which training and its data start: the latest checkpoint's or a newer backup's."""
        start, backup = saved, self.plan.backup
        if backup is not None and self.rendezvous.apart:
            raise ClusterError(
                "keras.backup needs a folder that all tasks share: all workers restore from it",
                code="job/conflict",
                found=f"{self.task} and the chief have separate model directories",
                hint="use a run.model_dir that all tasks share, or leave keras.backup out",
            )
        if backup is not None:
            newer = backup.step_after(saved, max_steps=self.max_steps, epoch_steps=self.plan.epoch_steps or 0)
            if newer is not None:
                start = newer
                logger.info("Training resumes from the backup of step %d in %s", newer, backup.folder)
            elif self.tf_config.is_chief:
                backup.remove()
        if hasattr(self.input_fn, "start_step"):
            self.input_fn.start_step = start
        return start

    def build(self) -> Any:
        """Return the compiled model, built in the scope of the strategy."""
        return self.plan.build_model()

    def checkpoint_of(self, model: Any) -> Any:
        """Return the `tf.train.Checkpoint` of the model and its optimizer."""
        return keras_checkpoints.of(model)

    def restore(self, model: Any, checkpoint: Any, path: str, changed: Mapping[str, Sequence[Any]]) -> None:
        """Restore the checkpoint that training resumes from.

        Args:
            model: The compiled model.
            checkpoint: Its `tf.train.Checkpoint`.
            path: Path of the saved checkpoint.
            changed: Changes of the optimizer since then, see
                `optimizer_changes`.
        """
        if not changed:
            keras_checkpoints.restore(checkpoint, path, whole=True)
            return
        momentum = other_optimizer.keeps_momentum(changed)
        self.log_slots(path, *keras_checkpoints.restore_changed(model, checkpoint, path, momentum=momentum))

    def log_slots(self, path: str, there: Set[str], here: Set[str], kept: Set[str]) -> None:
        """Log, on the chief, which optimizer slots are restored, new or dropped."""
        if self.tf_config.is_chief and not there == here == kept:
            other_optimizer.log_slots(path, kept=kept, new=here - kept, gone=there - kept)

    def fit(
        self,
        model: Any,
        data: Any,
        *,
        initial_epoch: int,
        epochs: int,
        steps_per_epoch: int | None,
        callbacks: list[Any],
    ) -> None:
        """Train; every callback is called as `Model.fit` calls it."""
        if self.plan.seed is not None:
            self._draw_by_step(model, self.plan.seed)
        keras_steps.trace_in(model, self.tracing)
        with closing_summaries(callbacks):
            model.fit(
                data,
                initial_epoch=initial_epoch,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                **self._validation(),
                callbacks=callbacks,
                verbose=0,
            )

    def _draw_by_step(self, model: Any, seed: int) -> None:
        """Make random numbers in layers depend on step and replica, the same as an Estimator's."""
        tf, original = compat.tensorflow(), model.train_step

        def train_step(data: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            with step_random.drawn_by_step(tf, seed=seed, step=model.optimizer.iterations, replica=replica):
                return original(data)

        model.train_step = train_step

    def before_save(self) -> None:
        """Prepare a checkpoint; called on every worker just before it is written."""

    def saved(self, step: int, validation: dict[str, float]) -> None:
        """Handle a written checkpoint and the validation metrics of `fit`; called on every worker."""
        if self.tf_config.is_chief and validation:
            metrics = {**self.plan.completed(validation), "global_step": step}
            self.own_evaluator().take(self.checkpoint_path(step), metrics)

    def checkpoint_path(self, step: int) -> str:
        """Return the path of the chief's checkpoint of a step."""
        return os.path.join(self.model_dir, f"{keras_checkpoints.PREFIXES[self.engine]}-{step}")

    def summaries(self) -> list[Any]:
        """Return the callbacks that write the chief's TensorBoard summaries of training."""
        every = self.plan.summary_steps or 1
        return [
            tensorboard_callback(
                self.model_dir, every_steps=every, start_step=self.start_step, shown=self.plan.histograms
            )
        ]

    def _epochs(self) -> int:
        """Return an upper bound of the number of epochs; training ends at the last step."""
        if not self.plan.epoch_steps:
            return 1
        if self.max_steps is None:
            # Training ends with the data.
            return 10**9
        # One more, because a run that resumed with a different epoch length has different epoch boundaries.
        return -(-self.max_steps // self.plan.epoch_steps) + 1

    def _epoch_steps(self, start: int) -> int | None:
        if self.plan.epoch_steps:
            return self.plan.epoch_steps
        if self.max_steps is not None:
            return self.max_steps - start
        return steps_of(self.strategy, self.input_fn, hint="give train.max_steps, or save_checkpoints_steps")

    def _callbacks(self, model: Any, manager: Any, progress: Any, start: int, *, restored: bool) -> list[Any]:
        of_plan = list(self.plan.callbacks())
        executions = self._executions(model, start, of_plan)
        callbacks = [] if executions is None else [executions]
        callbacks += [] if self.ledger is None else [self.ledger.callback(start_step=start)]
        callbacks += [progress, *of_plan]
        if self.evaluate_during_training:
            callbacks.append(saved_values_callback())
        if self.max_steps is not None:
            callbacks.append(stop_callback(self.max_steps, start_step=start))
        if self.tf_config.is_chief and self.plan.summary_steps:
            callbacks += self.summaries()

        def save(step: int) -> None:
            self.files.check(step)
            check_finite(model, step)
            self.before_save()
            path = manager.save(checkpoint_number=step)
            if self.tf_config.is_chief:
                self.progress.emit("checkpoint", step=step, path=path)

        # A backup of the end of an epoch: the previous run ended before it wrote the checkpoint.
        at_once = restored and start % (self.plan.epoch_steps or 1) == 0
        saving = checkpoint_callback(save, self.saved, every_secs=self.plan.save_checkpoints_secs, at_once=at_once)
        callbacks.append(saving)
        callbacks.append(
            preemption_callback(
                self.stopping.after_step,
                saving.save_now,
                on_begin=self.preemption.rearm,
                asked=lambda: self.tf_config.is_single_process and self.preemption.asked,
                coming=lambda: 1 if executions is None else executions.coming,
            )
        )
        if self.plan.backup is not None:
            # The last one: it removes the backup after the final checkpoint was written.
            callbacks.append(self.plan.backup.callback())
        return callbacks

    def _note_endless(self, endless: bool) -> None:
        self._endless = endless

    def _executions(self, model: Any, start: int, callbacks: Sequence[Any]) -> Any:
        """Return the callback for multi-step execution; None if it was not requested."""
        if self.plan.steps_per_execution == 1:
            return None
        multi_step = MultiStepExecution(self.plan.steps_per_execution, tf_config=self.tf_config)
        reason = "" if self._endless and self.max_steps is not None else "the data may end in the middle of several"
        if self.plan.backup is not None:
            reason = "a backup is kept"
        ends, every = wanted_by(callbacks, start)
        reason = reason or every or self.why_single(model)
        # On all workers, also for what only the chief writes.
        periods = (self.plan.log_steps, self.plan.epoch_steps)
        ends += [StepInterval(period, start + period) for period in periods if period]
        if self.plan.summary_steps:
            ends.append(StepInterval(self.plan.summary_steps, self.plan.summary_steps))
        if self.max_steps is not None:
            ends.append(StepInterval(0, self.max_steps))
        executions = executions_callback(
            multi_step, start_step=start, ends=ends, reason=reason, set_steps=self.set_steps
        )
        if not executions.single:
            self.prepare_steps(model)
        return executions

    def why_single(self, model: Any) -> str:
        """Return why multi-step execution may differ from single steps, or ""."""
        return keras_steps.why_not(model, random_by_step=self.plan.seed is not None)

    def prepare_steps(self, model: Any) -> None:
        """Prepare a model for multi-step execution."""
        keras_steps.prepare(model)

    def set_steps(self, model: Any, steps: int) -> None:
        """Set the number of steps of the next execution."""
        keras_steps.set_steps(model, steps)

    def _recorded_input_fn(self) -> Any:
        return self.input_fn if self.ledger is None else self.ledger.input_fn(self.input_fn, strategy=self.strategy)

    def _validation(self) -> dict[str, Any]:
        """Return the evaluation data for all workers, if checkpoints are evaluated during training."""
        if not self.evaluate_during_training:
            return {}
        spec = self.plan.eval_spec
        return {
            "validation_data": distributed(self.strategy, spec.input_fn, self.plan.weighted),
            "validation_steps": spec.steps or steps_of(self.strategy, spec.input_fn, hint="give eval.steps"),
        }

    def _watching(self, progress: Any) -> Any:
        cluster = self.tf_config.cluster
        if cluster is None:
            return contextlib.nullcontext()
        peers = {str(task): cluster.address(task) for task in cluster.training_tasks if task != self.task}
        return lost_peers.watching(str(self.task), peers, progress) if peers else contextlib.nullcontext()

    def _own_identity(self) -> RunIdentity:
        return of_inputs(self.input_fn, seed=self.plan.seed, num_pipelines=self.num_pipelines)

    def make_evaluator(self) -> KerasEvaluator:
        return KerasEvaluator(self.plan, progress=self.progress)

    def start_server(self) -> Any:
        raise ConfigError(
            f"{self.task} is a parameter server, and Model.fit has none",
            code="training/unsupported",
            hint="engine keras trains with none, one_device, mirrored or multi_worker_mirrored; for parameter "
            "servers keep the engine estimator",
        )
