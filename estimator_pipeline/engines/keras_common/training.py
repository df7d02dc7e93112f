"""One training of one task with Keras 2 or Keras 3: what is the same for both.

A Keras epoch lasts from one checkpoint to the next (`save_checkpoints_steps`; one pass over the data if checkpoints are
not saved by steps), so that all engines write and evaluate checkpoints of the same steps. Data is addressed by step: a
resumed run reads the records that an uninterrupted run would have read.

`KerasTraining` is what differs: `engines/keras/backend.py` and `engines/keras3/backend.py` implement it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.compat.internals.data_end.common_end import end_warning
from estimator_pipeline.compat.internals.data_end.keras_common_end import StepsTogether
from estimator_pipeline.compat.patches import lost_peers
from estimator_pipeline.engines.core import optimizer_changes
from estimator_pipeline.engines.core.backend import TrainingOutcome
from estimator_pipeline.engines.core.context import CheckpointEvent, TaskContext, build_context
from estimator_pipeline.engines.core.multi_step import MultiStepExecution
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.startup import optimizer_changes as changes_of_optimizer
from estimator_pipeline.engines.core.step_schedule import StepInterval
from estimator_pipeline.engines.core.stopping.synchronized_stop import SingleProcessStop
from estimator_pipeline.engines.core.training_files import TrainingFiles
from estimator_pipeline.engines.keras_common.callbacks import (
    check_finite,
    checkpoint_callback,
    preemption_callback,
    progress_callback,
    stop_callback,
)
from estimator_pipeline.engines.keras_common.data import distributed, scope, steps_of
from estimator_pipeline.engines.keras_common.executions import executions_callback, noting_endless, wanted_by
from estimator_pipeline.engines.keras_common.plan import KerasPlan
from estimator_pipeline.engines.model_dir.checkpoints import refuse_others
from estimator_pipeline.engines.model_dir.layout import PREFIXES, write_dir
from estimator_pipeline.engines.model_dir.run_identity import of_inputs
from estimator_pipeline.engines.recording.ledger import TaskLedger
from estimator_pipeline.errors import ClusterError
from estimator_pipeline.inputs.wrapping import at_step
from estimator_pipeline.utils.logger import logger

__all__ = ["FitEpochs", "KerasTraining", "context_of", "log_slots", "train"]

Tracing = Callable[[], contextlib.AbstractContextManager[None]]


class FitEpochs(NamedTuple):
    """The epochs of a training: arguments of `Model.fit`.

    Attributes:
        initial_epoch: Index of the first epoch.
        epochs: Maximum index of the last epoch, counted from 1; training ends at its last step.
        steps_per_epoch: None: until the end of the data.
    """

    initial_epoch: int
    epochs: int
    steps_per_epoch: int | None


class KerasTraining(Protocol):
    """A compiled model in a training, built in the scope of the strategy.

    Attributes:
        engine: The engine's name in a job file.
        model: The model.
        checkpoint: The `tf.train.Checkpoint` of the model and its optimizer.
    """

    engine: str
    model: Any
    checkpoint: Any

    def restore(self, path: str, changed: Mapping[str, Sequence[Any]]) -> None:
        """Restore the checkpoint that training resumes from.

        Args:
            path: Path of the saved checkpoint.
            changed: Changes of the optimizer since then, see `core.startup.optimizer_changes`.
        """

    def callbacks(self) -> list[Any]:
        """Return the engine's callbacks, such as those that write the chief's TensorBoard summaries."""

    def fit(self, data: Any, epochs: FitEpochs, *, callbacks: list[Any], tracing: Tracing) -> None:
        """Train on a distributed dataset. Every callback is called as `Model.fit` calls it.

        Args:
            data: The dataset.
            epochs: The epochs.
            callbacks: The callbacks.
            tracing: Returns the context in which a step is traced.
        """

    def before_save(self) -> None:
        """Prepare a checkpoint; called on every worker just before it is written."""

    def metrics_of(self, validation: Mapping[str, float], step: int) -> dict[str, float] | None:
        """Return the metrics of an evaluation by `fit`, empty without one; None: the engine makes none in `fit`."""

    def why_single(self) -> str:
        """Return why multi-step execution may differ from single steps, or ""."""

    def prepare_steps(self) -> None:
        """Prepare the model for multi-step execution."""

    def set_steps(self, model: Any, steps: int) -> None:
        """Set the number of steps of the next execution."""


def context_of(
    plan: KerasPlan, *, engine: str, tf_config: Any, options: TrainOptions | None, environ: Mapping[str, str] | None
) -> TaskContext:
    """Return the context of this process's task of a plan.

    Raises:
        ConfigError: The model directory has checkpoints of a different engine.
    """
    refuse_others(plan.model_dir, engine=engine)
    return build_context(
        plan.model_dir,
        tf_config=tf_config,
        environ=os.environ if environ is None else environ,
        options=options or TrainOptions(),
        input_fn=plan.train_input_fn,
        max_steps=plan.max_steps,
        strategy=plan.strategy,
        eval_spec=plan.eval_spec,
        checkpoint_steps=plan.epoch_steps,
        identity=lambda input_fn: of_inputs(input_fn, seed=plan.seed, num_pipelines=tf_config.num_training_tasks),
    )


def train(
    context: TaskContext, stop: SingleProcessStop, plan: KerasPlan, begin: Callable[[int], KerasTraining]
) -> TrainingOutcome:
    """Train to the end of this task's training, and write checkpoints.

    Args:
        context: See `Backend.train`.
        stop: See `Backend.train`.
        plan: The job's plan.
        begin: Builds the compiled model for a training that starts at a step.
    """
    if context.max_steps is not None and context.start_step >= context.max_steps:
        return TrainingOutcome(steps=0, data_ended=False)
    return _Run(context, stop, plan).run(begin)


def log_slots(context: TaskContext, path: str, there: Set[str], here: Set[str], kept: Set[str]) -> None:
    """Log, on the chief, which optimizer slots of a checkpoint are restored, new or dropped."""
    if context.is_chief and not there == here == kept:
        optimizer_changes.log_slots(path, kept=kept, new=here - kept, gone=there - kept)


class _Run:
    """One training of one task: callbacks, checkpoints and data around a `KerasTraining`."""

    def __init__(self, context: TaskContext, stop: SingleProcessStop, plan: KerasPlan) -> None:
        self.context, self.stop, self.plan = context, stop, plan
        self.files = TrainingFiles(context.input_fn, accept=context.options.accept_changes)
        self.start = self._start_after(context.start_step)
        self.is_endless = False
        self.ledger: TaskLedger | None = None
        if context.options.ledger is not None:
            self.ledger = TaskLedger(context.options.ledger, tf_config=context.tf_config)

    def run(self, begin: Callable[[int], KerasTraining]) -> TrainingOutcome:
        tf, context, plan, saved = compat.tensorflow(), self.context, self.plan, self.context.start_step
        if plan.seed is not None:
            tf.keras.utils.set_random_seed(plan.seed)
        with scope(context.strategy):
            training = begin(self.start)
            manager = tf.train.CheckpointManager(
                training.checkpoint,
                write_dir(context.model_dir, context.tf_config),
                max_to_keep=plan.keep_checkpoint_max or None,
                keep_checkpoint_every_n_hours=plan.keep_checkpoint_every_n_hours,
                checkpoint_name=PREFIXES[training.engine],
            )
            if saved:
                timeout = context.options.startup_timeout
                changed = changes_of_optimizer(context.model_dir, context.tf_config, step=saved, timeout=timeout)
                training.restore(tf.train.latest_checkpoint(context.model_dir), changed)
        log_every = plan.log_steps if context.is_chief else None
        progress = progress_callback(context.progress, start_step=self.start, log_every=log_every)
        self.stop.reached = lambda: progress.step
        with sessions.short_waits(), self._watching(progress):
            input_fn = noting_endless(self._input_fn(), self._note_endless)
            together = self._steps_together()
            data = distributed(context.strategy, input_fn, lambda dataset: self._read(dataset, together))
            training.fit(
                data,
                self._epochs(),
                callbacks=self._callbacks(training, manager, progress),
                tracing=contextlib.nullcontext if together is None else together.tracing,
            )
        if together is not None and context.is_chief:
            lacking = together.lacking()
            if lacking is not None and not all(lacking) and progress.step != context.max_steps:
                tasks = [str(task) for task in context.tf_config.training_tasks]
                logger.warning("%s", end_warning(tasks, lacking, progress.step))
        return TrainingOutcome(steps=progress.finished, data_ended=not training.model.stop_training)

    def _start_after(self, saved: int) -> int:
        """Return the step at which training and its data start: the latest checkpoint's or a newer backup's."""
        context, backup = self.context, self.plan.backup
        if backup is None:
            return saved
        if context.rendezvous.apart:
            raise ClusterError(
                "keras.backup needs a folder that all tasks share: all workers restore from it",
                code="job/conflict",
                found=f"{context.task} and the chief have separate model directories",
                hint="use a run.model_dir that all tasks share, or leave keras.backup out",
            )
        newer = backup.step_after(saved, max_steps=context.max_steps, epoch_steps=self.plan.epoch_steps or 0)
        if newer is not None:
            logger.info("Training resumes from the backup of step %d in %s", newer, backup.folder)
        elif context.is_chief:
            backup.remove()
        return saved if newer is None else newer

    # -- data -----------------------------------------------------------------------------------------------------

    def _input_fn(self) -> Any:
        input_fn = at_step(self.context.input_fn, self.start)
        return input_fn if self.ledger is None else self.ledger.input_fn(input_fn, strategy=self.context.strategy)

    def _note_endless(self, endless: bool) -> None:
        self.is_endless = endless

    def _steps_together(self) -> StepsTogether | None:
        """Return what ends training on all workers at the same step, if their data may end at different ones."""
        context = self.context
        tasks = [str(task) for task in context.tf_config.training_tasks]
        # Input functions of this package give every worker the same number of batches.
        if len(tasks) < 2 or getattr(context.input_fn, "as_many_for_all", False) or not coordination.available():
            return None
        timeout = context.options.startup_timeout
        return StepsTogether(context.strategy, tasks=tasks, task=str(context.task), timeout=timeout)

    def _read(self, dataset: Any, together: StepsTogether | None) -> Any:
        weighted = self.plan.weighted(dataset)
        return weighted if together is None else together.alike(weighted)

    def _epochs(self) -> FitEpochs:
        steps, last = self.plan.epoch_steps, self.context.max_steps
        if not steps and last is not None:
            return FitEpochs(0, 1, last - self.start)
        if not steps:
            start = at_step(self.context.input_fn, self.start)
            hint = "give train.max_steps, or save_checkpoints_steps"
            return FitEpochs(0, 1, steps_of(self.context.strategy, start, hint=hint))
        # One more than necessary, because a run that resumed with a different epoch length has different epoch
        # boundaries. Without a last step, training ends with the data.
        epochs = 10**9 if last is None else -(-last // steps) + 1
        return FitEpochs(self.start // steps, epochs, steps)

    # -- callbacks ------------------------------------------------------------------------------------------------

    def _callbacks(self, training: KerasTraining, manager: Any, progress: Any) -> list[Any]:
        context, plan, start = self.context, self.plan, self.start
        of_plan = list(plan.callbacks())
        executions = self._executions(training, of_plan)
        callbacks = [] if executions is None else [executions]
        callbacks += [] if self.ledger is None else [self.ledger.callback(start_step=start)]
        callbacks += [progress, *of_plan]
        if context.max_steps is not None:
            callbacks.append(stop_callback(context.max_steps, start_step=start))
        callbacks += training.callbacks()

        def save(step: int) -> None:
            self.files.check(step)
            check_finite(training.model, step)
            training.before_save()
            manager.save(checkpoint_number=step)

        def saved(step: int, validation: dict[str, float]) -> None:
            path = os.path.join(context.model_dir, f"{PREFIXES[training.engine]}-{step}")
            event = CheckpointEvent(path=path, step=step, metrics=training.metrics_of(validation, step))
            for action in context.after_checkpoint:
                action(event)

        # A backup of the end of an epoch: the previous run ended before it wrote the checkpoint.
        at_once = start > context.start_step and start % (plan.epoch_steps or 1) == 0
        saving = checkpoint_callback(save, saved, every_secs=plan.save_checkpoints_secs, at_once=at_once)
        callbacks.append(saving)
        callbacks.append(
            preemption_callback(
                self.stop.after_step,
                saving.save_now,
                on_begin=context.preemption.rearm,
                asked=lambda: context.tf_config.is_single_process and context.preemption.asked,
                coming=lambda: 1 if executions is None else executions.coming,
            )
        )
        if plan.backup is not None:
            # The last one: it removes the backup after the final checkpoint was written.
            callbacks.append(plan.backup.callback())
        return callbacks

    def _executions(self, training: KerasTraining, callbacks: Sequence[Any]) -> Any:
        """Return the callback for multi-step execution; None if it was not requested."""
        context, plan, start = self.context, self.plan, self.start
        if context.options.steps_per_execution == 1:
            return None
        multi_step = MultiStepExecution(context.options.steps_per_execution, tf_config=context.tf_config)
        endless = self.is_endless and context.max_steps is not None
        reason = "" if endless else "the data may end in the middle of several"
        if plan.backup is not None:
            reason = "a backup is kept"
        ends, every = wanted_by(callbacks, start)
        reason = reason or every or training.why_single()
        # On all workers, also for what only the chief writes.
        periods = (plan.log_steps, plan.epoch_steps)
        ends += [StepInterval(period, start + period) for period in periods if period]
        if plan.summary_steps:
            ends.append(StepInterval(plan.summary_steps, plan.summary_steps))
        if context.max_steps is not None:
            ends.append(StepInterval(0, context.max_steps))
        executions = executions_callback(
            multi_step, start_step=start, ends=ends, reason=reason, set_steps=training.set_steps
        )
        if not executions.single:
            training.prepare_steps()
        return executions

    def _watching(self, progress: Any) -> Any:
        cluster = self.context.tf_config.cluster
        if cluster is None:
            return contextlib.nullcontext()
        task = self.context.task
        peers = {str(other): cluster.address(other) for other in cluster.training_tasks if other != task}
        return lost_peers.watching(str(task), peers, progress) if peers else contextlib.nullcontext()
