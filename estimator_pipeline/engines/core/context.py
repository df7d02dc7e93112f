"""What a task of a job is and has, from its start to its exit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline.cluster import Task, TFConfig
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.rendezvous.files import ChiefsServer
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.core.rendezvous.result_exchange import ResultExchange, explicit_evaluator
from estimator_pipeline.engines.core.stopping.preemption import Preemption, seconds_of
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity
from estimator_pipeline.progress import progress_file
from estimator_pipeline.progress.preemption_signals import signals_of
from estimator_pipeline.progress.stages import reporter_of
from estimator_pipeline.progress.task_events import TaskEvents

__all__ = ["CheckpointEvent", "TaskContext", "build_context"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointEvent:
    """A checkpoint that this task has written.

    Attributes:
        path: Its path.
        step: Its global step.
        metrics: Its metrics, if the engine has evaluated it in training; empty if it has not, but evaluates others.
            None: the engine does not evaluate in training.
        last: Whether training is over.
    """

    path: str
    step: int
    metrics: Mapping[str, Any] | None = None
    last: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskContext:
    """A task of a job. Roles pass it on, with what they have found out replaced.

    Attributes:
        tf_config: Cluster and task of this process.
        environ: The environment.
        options: The caller's options.
        model_dir: The model directory; in a worker that does not see the chief's, a temporary folder.
        input_fn: Training input function; in training it starts at `start_step`.
        max_steps: The global step to stop at; None: at the end of the data.
        strategy: The training strategy, if any.
        eval_spec: Input, steps, delays and exporters of evaluations.
        checkpoint_steps: Steps between two checkpoints; None: they are written by time.
        identity: Returns the run identity with a training input function. Only for training tasks: it reads the data.
        settings: A program's settings that are compared between tasks, in addition to the run identity.
        evaluates_during_training: Whether the chief evaluates each checkpoint during training.
        progress: The launcher's progress file.
        events: Its events that name the task.
        rendezvous: The files through which the tasks meet.
        results: Sends or receives the result.
        preemption: Stop requests to this task.
        start_step: The step of the checkpoint that training starts from: the chief's, or the one that all workers have
            agreed on.
        warm_starts: Whether the variables get their initial values from `options.warm_start_from`.
        stopped_early: Why an earlier start of this training has stopped early; "" if it has not.
        after_checkpoint: Called for each checkpoint that this task writes; None: nothing is to be done.
    """

    tf_config: TFConfig
    environ: Mapping[str, str]
    options: TrainOptions
    model_dir: str
    input_fn: Any
    max_steps: int | None
    strategy: Any
    eval_spec: Any
    checkpoint_steps: int | None
    identity: Callable[[Any], RunIdentity]
    settings: Mapping[str, Any]
    evaluates_during_training: bool
    progress: progress_file.ProgressWriter
    events: TaskEvents
    rendezvous: Rendezvous
    results: ResultExchange
    preemption: Preemption
    start_step: int = 0
    warm_starts: bool = False
    stopped_early: str = ""
    after_checkpoint: Callable[[CheckpointEvent], None] | None = None

    @property
    def task(self) -> Task:
        """This task."""
        return self.tf_config.task

    @property
    def is_chief(self) -> bool:
        """Whether this task writes the checkpoints."""
        return self.tf_config.is_chief

    @property
    def trains_together(self) -> bool:
        """Whether several tasks make the same steps."""
        return not (self.tf_config.is_single_process or self.tf_config.is_asynchronous)

    def enter_stage(self, text: str) -> None:
        """Report what the task does before its first step; of the tasks, only the chief does so."""
        if self.is_chief:
            reporter_of(self.progress)(text)


def build_context(
    model_dir: str,
    *,
    tf_config: TFConfig,
    environ: Mapping[str, str],
    options: TrainOptions,
    input_fn: Any,
    max_steps: int | None,
    strategy: Any,
    eval_spec: Any,
    checkpoint_steps: int | None,
    identity: Callable[[Any], RunIdentity],
    settings: Mapping[str, Any] | None = None,
) -> TaskContext:
    """Return the context of this process's task; see `TaskContext` for the arguments.

    The identity of `options`, if there is one, replaces the argument.

    Raises:
        ConfigError: A variable of the environment has an invalid value.
    """
    explicit = explicit_evaluator(options, tf_config, environ)
    during = options.evaluate_during_training
    alone = tf_config.is_single_process or tf_config.dialect == "master"
    rendezvous = Rendezvous(
        model_dir,
        tf_config=tf_config,
        environ=environ,
        max_steps=max_steps,
        server=None if tf_config.is_single_process else ChiefsServer(tf_config),
        evaluator=bool(explicit),
        job=None if tf_config.is_ps else options.shared,
    )
    progress = environ.get(progress_file.PROGRESS_VARIABLE)
    signals, seconds = signals_of(options.preemption_signals, environ), seconds_of(environ)
    return TaskContext(
        tf_config=tf_config,
        environ=environ,
        options=options,
        model_dir=model_dir,
        input_fn=input_fn,
        max_steps=max_steps,
        strategy=strategy,
        eval_spec=eval_spec,
        checkpoint_steps=checkpoint_steps,
        identity=options.identity or identity,
        settings=settings or {},
        evaluates_during_training=not explicit and alone if during is None else during,
        progress=progress_file.from_environ(environ),
        events=TaskEvents(environ, str(tf_config.task)),
        rendezvous=rendezvous,
        results=ResultExchange(rendezvous, explicit=explicit, timeout=options.result_timeout, progress=progress),
        preemption=Preemption(str(tf_config.task), signals=signals, seconds=seconds),
    )
