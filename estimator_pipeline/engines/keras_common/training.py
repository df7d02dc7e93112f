"""The Keras engines: what is the same for Keras 2 and Keras 3.

A Keras epoch lasts from one checkpoint to the next (`save_checkpoints_steps`; one pass over the data if checkpoints are
not saved by steps), so that all engines write and evaluate checkpoints of the same steps. Data is addressed by step: a
resumed run reads the records that an uninterrupted run would have read.

`KerasTraining` is what differs: `engines/keras/backend.py` and `engines/keras3/backend.py` implement it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.compat.internals.data_end.common_end import end_warning
from estimator_pipeline.compat.internals.data_end.keras_common_end import StepsTogether
from estimator_pipeline.compat.patches import lost_peers
from estimator_pipeline.engines.core import warm_start
from estimator_pipeline.engines.core.backend import TrainingOutcome
from estimator_pipeline.engines.core.context import CheckpointEvent, TaskContext, build_context
from estimator_pipeline.engines.core.multi_step import MultiStepExecution, StepInterval
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.core.roles import run_task
from estimator_pipeline.engines.core.startup import optimizer_changes
from estimator_pipeline.engines.core.stopping.synchronized_stop import SingleProcessStop
from estimator_pipeline.engines.core.training_files import TrainingFiles
from estimator_pipeline.engines.keras_common.callbacks import (
    check_finite,
    checkpoint_callback,
    executions_callback,
    progress_callback,
    stop_callback,
    wanted_by,
)
from estimator_pipeline.engines.keras_common.evaluation import KerasEvaluation
from estimator_pipeline.engines.keras_common.plan import KerasPlan, distributed, scope, steps_of
from estimator_pipeline.engines.model_dir.checkpoints import refuse_others
from estimator_pipeline.engines.model_dir.layout import PREFIXES, write_dir
from estimator_pipeline.engines.model_dir.run_identity import of_inputs
from estimator_pipeline.engines.recording.ledger import TaskLedger
from estimator_pipeline.errors import ClusterError, ConfigError
from estimator_pipeline.inputs.wrapping import at_step
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.progress.stages import reporter_of
from estimator_pipeline.utils.logger import logger

__all__ = ["KerasBackend", "KerasTraining", "Tracing", "train_and_evaluate"]

Tracing = Callable[[], contextlib.AbstractContextManager[None]]


class KerasTraining(Protocol):
    """A compiled model in a training, built in the scope of the strategy.

    Attributes:
        model: The model.
        checkpoint: The `tf.train.Checkpoint` of the model and its optimizer.
    """

    model: Any
    checkpoint: Any

    def restore(self, path: str, changed: Mapping[str, Sequence[Any]]) -> None:
        """Restore the checkpoint that training resumes from.

        Args:
            path: Path of the saved checkpoint.
            changed: Changes of the optimizer since then, see `core.startup.optimizer_changes`.
        """

    def weights(self) -> Mapping[str, Any]:
        """Return the model's variables by the names that checkpoints have, without seeds: name -> variable."""

    def weights_in(self, checkpoint: str) -> Mapping[str, str]:
        """Return the model's variables in a checkpoint of the engine: name -> key in the file."""

    def callbacks(self) -> list[Any]:
        """Return the engine's callbacks, such as those that write the chief's TensorBoard summaries."""

    def fit(self, data: Any, *, callbacks: list[Any], tracing: Tracing, **epochs: Any) -> None:
        """Train on a distributed dataset, with the arguments of `Model.fit`; steps are traced in `tracing()`."""

    def before_save(self) -> None:
        """Prepare a checkpoint; called on every worker just before it is written."""

    def why_single(self) -> str:
        """Return why multi-step execution may differ from single steps, or ""."""

    def prepare_steps(self) -> None:
        """Prepare the model for multi-step execution."""

    def set_steps(self, steps: int) -> None:
        """Set the number of steps of the next execution."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasBackend:
    """Trains and evaluates with Keras 2 or Keras 3; see `Backend`.

    Attributes:
        plan: The job's plan.
        engine: The engine's name in a job file.
        begin: `begin(context, plan, start_step)` returns the model of a training that starts at a step.
        checkpoint_of: See `KerasEvaluation`.
        loop: What trains, for messages.
        evaluates_in_fit: Whether `fit` evaluates checkpoints, if they are evaluated during training.
    """

    plan: KerasPlan
    engine: str
    begin: Callable[[TaskContext, KerasPlan, int], KerasTraining]
    checkpoint_of: Callable[[Any, bool], Any]
    loop: str
    evaluates_in_fit: bool

    def train(self, context: TaskContext, stop: SingleProcessStop) -> TrainingOutcome:
        if context.max_steps is not None and context.start_step >= context.max_steps:
            return TrainingOutcome(steps=0, data_ended=False)
        return _Run(self, context, stop).run()

    def evaluator(self, context: TaskContext) -> KerasEvaluation:
        return KerasEvaluation(self.plan, checkpoint_of=self.checkpoint_of, report=reporter_of(context.progress))

    def server(self, context: TaskContext) -> Any:
        raise ConfigError(
            f"{context.task} is a parameter server, and {self.loop} has none",
            code="training/unsupported",
            hint=f"engine {self.engine} trains with none, one_device, mirrored or multi_worker_mirrored; for parameter "
            "servers keep the engine estimator",
        )


def train_and_evaluate(
    backend: KerasBackend,
    *,
    tf_config: TFConfig,
    options: TrainOptions | None = None,
    environ: Mapping[str, str] | None = None,
) -> TrainResult:
    """Run this process's task of a job, with `os.environ` by default; see `run_task`.

    Raises:
        ConfigError: The model directory has checkpoints of a different engine or model.
    """
    plan = backend.plan
    refuse_others(plan.model_dir, engine=backend.engine)
    context = build_context(
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
    return run_task(context, backend)


class _Run:
    """One training of one task: callbacks, checkpoints and data around a `KerasTraining`."""

    def __init__(self, backend: KerasBackend, context: TaskContext, stop: SingleProcessStop) -> None:
        self.backend, self.context, self.stop, self.plan = backend, context, stop, backend.plan
        self.files = TrainingFiles(context.input_fn, accept=context.options.accept_changes)
        self.start = self._start_after(context.start_step)
        self.is_endless = False
        self.ledger: TaskLedger | None = None
        if context.options.ledger is not None:
            self.ledger = TaskLedger(context.options.ledger, tf_config=context.tf_config)

    def run(self) -> TrainingOutcome:
        tf, context, plan = compat.tensorflow(), self.context, self.plan
        if plan.seed is not None:
            tf.keras.utils.set_random_seed(plan.seed)
        context.enter_stage("building the model")
        with scope(context.strategy):
            training = self.backend.begin(context, plan, self.start)
            manager = tf.train.CheckpointManager(
                training.checkpoint,
                write_dir(context.model_dir, context.tf_config),
                max_to_keep=plan.keep_checkpoint_max or None,
                keep_checkpoint_every_n_hours=plan.keep_checkpoint_every_n_hours,
                checkpoint_name=PREFIXES[self.backend.engine],
            )
            if context.start_step:
                context.enter_stage(f"restoring the checkpoint of step {context.start_step}")
                training.restore(tf.train.latest_checkpoint(context.model_dir), optimizer_changes(context))
            elif context.warm_starts:
                self._warm_start(training)
        log_every = plan.log_steps if context.is_chief else None
        progress = progress_callback(context.progress, start_step=self.start, log_every=log_every)
        self.stop.reached = lambda: progress.step
        with sessions.short_waits(), self._watching(progress):
            input_fn = at_step(self.context.input_fn, self.start)
            if self.ledger is not None:
                input_fn = self.ledger.input_fn(input_fn, strategy=context.strategy)
            context.enter_stage("compiling the training step")
            together = self._steps_together()
            data = distributed(context.strategy, input_fn, lambda dataset: self._read(dataset, together))
            training.fit(
                data,
                callbacks=self._callbacks(training, manager, progress),
                tracing=contextlib.nullcontext if together is None else together.tracing,
                **self._epochs(),
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

    def _warm_start(self, training: KerasTraining) -> None:
        """Set the variables to the values of `run.warm_start_from`, on every worker."""
        section = self.context.options.warm_start_from
        assert section is not None
        path = warm_start.checkpoint_of(section)
        reader, weights = compat.tensorflow().train.load_checkpoint(path), training.weights()
        shapes, keys = reader.get_variable_to_shape_map(), training.weights_in(path)
        model = {name: variable.shape.as_list() for name, variable in weights.items()}
        saved = {name: shapes[key] for name, key in keys.items()}
        for name, old in warm_start.choose(self.context, path, model, saved).items():
            weights[name].assign(reader.get_tensor(keys[old]))
        for variable, average in moving_averages.averages(training.model):
            average.assign(variable)

    def _watching(self, progress: Any) -> Any:
        cluster, task = self.context.tf_config.cluster, self.context.task
        tasks = [] if cluster is None else [other for other in cluster.training_tasks if other != task]
        if cluster is None or not tasks:
            return contextlib.nullcontext()
        return lost_peers.watching(str(task), {str(other): cluster.address(other) for other in tasks}, progress)

    # -- data -----------------------------------------------------------------------------------------------------

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
        tf = compat.tensorflow()
        self.is_endless = tf.executing_eagerly() and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        weighted = self.plan.weighted(dataset)
        return weighted if together is None else together.alike(weighted)

    def _epochs(self) -> dict[str, Any]:
        steps, last = self.plan.epoch_steps, self.context.max_steps
        if steps:
            # One more than necessary, because a run that resumed with a different epoch length has different epoch
            # boundaries. Without a last step, training ends with the data.
            epochs = 10**9 if last is None else -(-last // steps) + 1
            return {"initial_epoch": self.start // steps, "epochs": epochs, "steps_per_epoch": steps}
        if last is not None:
            steps = last - self.start
        else:
            start = at_step(self.context.input_fn, self.start)
            hint = "give train.max_steps, or save_checkpoints_steps"
            steps = steps_of(self.context.strategy, start, hint=hint)
        return {"initial_epoch": 0, "epochs": 1, "steps_per_epoch": steps}

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

        def save(step: int, validation: dict[str, float]) -> None:
            self.files.check(step)
            check_finite(training.model, step)
            training.before_save()
            manager.save(checkpoint_number=step)
            if context.after_checkpoint is None:
                return
            path = os.path.join(context.model_dir, f"{PREFIXES[self.backend.engine]}-{step}")
            metrics: dict[str, float] | None = {} if self.backend.evaluates_in_fit else None
            if validation:
                metrics = {**plan.outputs.completed(validation), "global_step": step}
            context.after_checkpoint(CheckpointEvent(path=path, step=step, metrics=metrics))

        callbacks.append(
            checkpoint_callback(
                context,
                self.stop,
                save,
                every_secs=plan.save_checkpoints_secs,
                # A backup of the end of an epoch: the previous run ended before it wrote the checkpoint.
                at_once=start > context.start_step and start % (plan.epoch_steps or 1) == 0,
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
        execution = MultiStepExecution(
            context.options.steps_per_execution, tf_config=context.tf_config, call="execution"
        )
        ends, reason = wanted_by(callbacks, start)
        if plan.backup is not None:
            reason = "a backup is kept"
        elif not self.is_endless or context.max_steps is None:
            reason = "the data may end in the middle of several"
        # On all workers, also for what only the chief writes.
        periods = (plan.log_steps, plan.epoch_steps)
        ends += [StepInterval(period, start + period) for period in periods if period]
        if plan.summary_steps:
            ends.append(StepInterval(plan.summary_steps, plan.summary_steps))
        if context.max_steps is not None:
            ends.append(StepInterval(0, context.max_steps))
        execution.begin(ends, reason or training.why_single())
        if not execution.single:
            training.prepare_steps()
        return executions_callback(execution, start_step=start, set_steps=training.set_steps)
