"""The roles of a task, in every engine: what chief, worker, evaluator and parameter server do, and how they shut down.

An engine subclasses `TaskController` and defines how to train, evaluate a checkpoint and serve variables.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from estimator_pipeline import compat
from estimator_pipeline.cluster import EVALUATOR, Task, TFConfig
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.compat.patches import lost_peers
from estimator_pipeline.engines.keras import checkpoints as keras_checkpoints
from estimator_pipeline.engines.lifecycle import parameter_server, startup
from estimator_pipeline.engines.lifecycle import result as results
from estimator_pipeline.engines.lifecycle.evaluator import CheckpointEvaluator, conclude, follow_training
from estimator_pipeline.engines.lifecycle.progress_text import saved_progress
from estimator_pipeline.engines.lifecycle.rendezvous import same_job
from estimator_pipeline.engines.lifecycle.rendezvous.chief_server import ChiefsServer
from estimator_pipeline.engines.lifecycle.rendezvous.duplicate_records import DuplicateRecords
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import POLL_SECS, Rendezvous
from estimator_pipeline.engines.lifecycle.rendezvous.result_exchange import ResultExchange, explicit_evaluator
from estimator_pipeline.engines.lifecycle.result import TrainResult
from estimator_pipeline.engines.lifecycle.settings import TrainingOutcome, TrainOptions
from estimator_pipeline.engines.lifecycle.stopping import shutdown, synchronized_stop
from estimator_pipeline.engines.lifecycle.stopping.preemption import Preemption, seconds_of, signals_of
from estimator_pipeline.engines.lifecycle.training_files import TrainingFiles
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.engines.model_dir import run_identity as identity
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import PipelineError, PreemptedError, TaskFailedError
from estimator_pipeline.inputs import tf_dataset as blocks
from estimator_pipeline.job.user_code import refusal_in
from estimator_pipeline.models import label_checks
from estimator_pipeline.progress import progress_file as progress_protocol
from estimator_pipeline.progress.error_lines import error_line
from estimator_pipeline.progress.task_events import TaskEvents
from estimator_pipeline.utils import allocator
from estimator_pipeline.utils.logger import forward_warnings, logger

# Seconds for tasks to leave after a stop request, whose sender may not wait longer.
PREEMPTED_SECS = 30.0

_BEFORE_RESULT = "training had ended, and the result of its final evaluation was not available yet"


class TaskController(abc.ABC):
    """Runs one task of the job.

    Args:
        model_dir: Model directory of this task; if tasks have different ones, the chief's is used.
        tf_config: Cluster and task of this process.
        environ: Environment for the rendezvous and the launcher's progress file.
        input_fn: Training input function.
        max_steps: The global step to stop at, if any.
        strategy: The training strategy, if any.
        settings: See `TrainOptions`.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        tf_config: TFConfig,
        environ: Mapping[str, str],
        input_fn: Any,
        max_steps: int | None,
        strategy: Any,
        settings: TrainOptions,
    ) -> None:
        self.model_dir = model_dir
        self.tf_config, self.task = tf_config, tf_config.task
        self.input_fn, self.max_steps, self.strategy = input_fn, max_steps, strategy
        self.settings = settings
        explicit = explicit_evaluator(settings, tf_config, environ)
        during = settings.evaluate_during_training
        alone = tf_config.is_single_process or tf_config.dialect == "master"
        self.evaluate_during_training = not explicit and alone if during is None else during
        self.rendezvous = Rendezvous(
            model_dir,
            tf_config=tf_config,
            environ=environ,
            max_steps=max_steps,
            server=None if tf_config.is_single_process else ChiefsServer(tf_config),
            evaluator=bool(explicit),
            job=None if tf_config.is_ps else settings.shared,
        )
        self.result_exchange = ResultExchange(
            self.rendezvous,
            explicit=explicit,
            timeout=settings.result_timeout,
            progress=environ.get(progress_protocol.PROGRESS_VARIABLE),
        )
        self.progress = progress_protocol.from_environ(environ)
        self.events = TaskEvents(environ, str(self.task))
        self._environ = environ
        self._evaluator: CheckpointEvaluator | None = None
        self.duplicate_records: DuplicateRecords | None = None  # by the engine
        self.from_step = 0
        # The global step that training has reached, as far as this task knows.
        self.reached: Callable[[], int] = lambda: self.from_step
        self.preemption = Preemption(
            str(self.task),
            signals=signals_of(settings.preemption_signals, environ),
            seconds=seconds_of(environ),
            on_asked=self._on_stop_requested,
            progress=self._saved_progress,
            last_word=self._end_without_checkpoint,
        )
        self.stopping = synchronized_stop.SingleProcessStop(self.preemption)

    # -- defined by an engine -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def train(self) -> TrainingOutcome:
        """Train to the end, writing checkpoints."""

    @abc.abstractmethod
    def make_evaluator(self) -> CheckpointEvaluator:
        """Return the evaluator of this engine's checkpoints in this process."""

    @abc.abstractmethod
    def start_server(self) -> Any:
        """Start the server of a parameter server; it runs as long as the returned object exists."""

    # -- the lifecycle ------------------------------------------------------------------------------------------

    def live(self) -> TrainResult:
        """Run the task, with all events for the launcher."""
        allocator.keep_memory()
        progress_protocol.start_heartbeat(self._environ)
        try:
            with self.preemption.listening(), forward_warnings(lambda text: self.progress.emit("warning", text=text)):
                # Sent after the signal handlers are set: a receiver of this event may send a signal.
                self.events.started(self.max_steps)
                outcome = self.run()
        except TaskFailedError as error:
            # If this task exits first, the launcher knows from this which task failed, and whether it is a failure.
            self.events.ended(error, status=shutdown.status_of(error), caused_by=error.caused_by)
            raise
        except (Exception, KeyboardInterrupt) as error:
            # The caller may continue without the training. A SystemExit would end it in the middle.
            self.events.raised(error, echo=shutdown.is_echo(error))
            raise
        self.progress.emit("result", **outcome.event_fields())
        return outcome

    def run(self) -> TrainResult:
        """Run the task."""
        with disk.explaining(self.model_dir):
            try:
                if self.tf_config.is_chief:
                    return self.run_chief()
                with self._explaining(), self.rendezvous.attending():
                    return self._run_other_task()
            finally:
                self.rendezvous.end()
                if self._evaluator is not None:
                    self._evaluator.close()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Convert errors of a full disk or of mismatching labels, and report them to the other tasks."""
        try:
            yield
        except Exception as error:
            plain = self._explained(error)
            if plain is None:
                raise
            self._report_failed(plain)
            raise plain from error

    def _explained(self, error: BaseException) -> PipelineError | None:
        # Errors of the input come first: they name the file with the disk error.
        others = label_checks.explained(error) or blocks.explained(error) or refusal_in(error)
        return others or disk.explained(error, model_dir=self.model_dir)

    def _run_other_task(self) -> TrainResult:
        try:
            with self._explaining():
                if self.tf_config.is_evaluator:
                    with self.preemption.interruptible("training continues without it"):
                        return self.run_evaluator()
                if self.tf_config.is_ps:
                    return self.run_parameter_server()
                return self.run_worker()
        except PreemptedError:
            with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                self.rendezvous.report("preempted", left=True)
            raise
        except Exception as error:
            self._report_failed(error)
            raise

    # -- the training tasks -------------------------------------------------------------------------------------

    def run_chief(self) -> TrainResult:
        # Checkpoints after this step belong to this run, for an evaluator that starts late.
        with self._own_model_dir() as self.from_step, self._explaining(), self.rendezvous.attending():
            self.rendezvous.job = self._compared()
            start = {"start": startup.files_of_start(self.model_dir), "policy": identity.policy_of(self.model_dir)}
            self._publish_status("running", **start)
            return self._train_and_conclude()

    def run_worker(self) -> TrainResult:
        asked, timeout = lambda: self.preemption.asked, self.settings.startup_timeout
        self.rendezvous.job = self._compared()
        self.model_dir = startup.meet(self.rendezvous, self.model_dir, self.input_fn, asked=asked, timeout=timeout)
        if self._came_too_late():
            logger.warning("%s: training had ended before this task started", self.task)
            self.rendezvous.report("done", steps=0, records=self._records(0))
            return self._end_with_result()
        return self._train_and_conclude()

    def _came_too_late(self) -> bool:
        """Return whether asynchronous training has ended without this task."""
        if not self._is_asynchronous:
            return False
        while self.rendezvous.is_unanswered() and not self.preemption.asked:
            # The status of an earlier run, whose chief is about to start; or of this run, whose chief has exited.
            time.sleep(POLL_SECS)
        return self.rendezvous.finished() is not None

    @property
    def _is_asynchronous(self) -> bool:
        return self.tf_config.cluster is not None and self.tf_config.cluster.num_ps > 0

    def _own_model_dir(self) -> contextlib.AbstractContextManager[int]:
        return startup.own_model_dir(
            self.model_dir,
            rendezvous=self.rendezvous,
            owner=str(self.task),
            input_fn=self.input_fn,
            build_identity=lambda: self.run_identity,
            accept_changes=self.settings.accept_changes,
            on_failure=self._report_failed,
            known=self._environ.get(progress_protocol.CHECKPOINT_VARIABLE, ""),
        )

    @property
    def run_identity(self) -> identity.RunIdentity:
        """The run identity. Only for training tasks: it reads the data."""
        return (self.settings.identity or self._own_identity)()

    def own_settings(self) -> dict[str, Any]:
        """Return a program's settings that are compared between tasks, in addition to the run identity."""
        return same_job.facts({"max_steps": self.max_steps}, same_job.versions())

    def _compared(self) -> dict[str, Any] | None:
        """Return the settings that all training tasks must share; None: a program's tasks, which are not compared."""
        if self.settings.shared is None and (self._is_asynchronous or self.tf_config.is_single_process):
            return None
        shared = self.own_settings() if self.settings.shared is None else self.settings.shared
        return same_job.of_task(self.run_identity, shared)

    def _own_identity(self) -> identity.RunIdentity:
        return identity.of_inputs(self.input_fn, seed=None, num_pipelines=self.num_pipelines)

    @property
    def num_pipelines(self) -> int:
        """Number of input pipelines of training: one per training task."""
        return len(self._training_tasks())

    def _train_and_conclude(self) -> TrainResult:
        lost_peers.before_exit.append(self._report_peer_lost)
        try:
            trained = self._train_until_asked()
            # This task runs no further steps.
            self.progress.emit("trained")
            keras_checkpoints.remove_temporary(self.model_dir, self.tf_config, apart=self.rendezvous.apart)
            report = {"steps": trained.steps, "records": self._records(trained.steps)}
            if self.preemption.asked:
                self._end_with_checkpoint(report)
            if self.tf_config.is_chief:
                with self.preemption.interruptible(_BEFORE_RESULT):
                    return self._conclude_as_chief(trained, report)
        except PreemptedError:
            self._leave_preempted()
            raise
        except Exception as error:
            plain = self._explained(error)
            self._report_failed(plain or error)
            if plain is not None:
                raise plain from error
            raise
        finally:
            lost_peers.before_exit.remove(self._report_peer_lost)
        self.rendezvous.report("done", **report)
        return self._end_with_result()

    # -- asked to stop ------------------------------------------------------------------------------------------

    def _train_until_asked(self) -> TrainingOutcome:
        self.stopping = synchronized_stop.stopping_for(
            self.preemption, tf_config=self.tf_config, rendezvous=self.rendezvous
        )
        self.stopping.begin()
        self.files = TrainingFiles(self.input_fn, accept=self.settings.accept_changes)
        try:
            return self.train()
        except Exception as error:
            if not self.preemption.asked or not shutdown.is_echo(error):
                raise
            # A task that was asked to stop exits as preempted, even if the exit of other tasks raised an error here.
            raise self.preemption.error(f"{error_line(error)}, while it stopped; {self._saved_progress()}") from error
        finally:
            self.stopping.close()

    def _on_stop_requested(self, by: str) -> None:
        # The launcher allows this task that many seconds.
        self.progress.emit("heartbeat", preempting=by, seconds=self.preemption.seconds)
        if self.tf_config.is_ps:  # It serves variables until the chief has written the checkpoint.
            synchronized_stop.RendezvousChannel(self.rendezvous, []).post("ask", str(self.task))
        else:
            self.stopping.ask()

    def _end_with_checkpoint(self, report: Mapping[str, Any]) -> NoReturn:
        self.rendezvous.report("preempted", **report)
        if not self.tf_config.is_chief:
            # The chief may still be writing it: an exit of this task could abort the chief.
            ended, seconds = parameter_server.end_of_training, self.preemption.seconds
            self.rendezvous.wait("the last checkpoint", ended, timeout=seconds)
        raise self.preemption.error(self._saved_progress())

    def _leave_preempted(self) -> None:
        if self.tf_config.is_chief:
            self._publish_preempted()
            self._leave_last(timeout=PREEMPTED_SECS)
        else:
            self.rendezvous.leave()

    def _saved_progress(self) -> str:
        if self.rendezvous.apart:
            return "training is saved in the chief's last checkpoint"
        # The chief may still save steps that would count as lost here.
        return saved_progress(self.model_dir, reached=self.reached() if self.tf_config.is_chief else 0)

    def _publish_preempted(self) -> None:
        latest = compat.tensorflow().train.latest_checkpoint(self.model_dir)
        step = checkpoint_step(latest) if latest else 0
        self._publish_status("preempted", by=self.preemption.by, checkpoint=latest, global_step=step)

    def _end_without_checkpoint(self, error: PreemptedError) -> None:
        """Send the last event of a task that cannot stop: a peer is gone, or it takes too long."""
        self.progress.emit("end", status="preempted", caused_by=error.caused_by)
        if self.tf_config.is_chief:
            self._publish_preempted()

    # -- the end of training ------------------------------------------------------------------------------------

    def _conclude_as_chief(self, trained: TrainingOutcome, report: Mapping[str, Any]) -> TrainResult:
        checkpoint = compat.tensorflow().train.latest_checkpoint(self.model_dir)
        training = {
            "checkpoint": checkpoint,
            "global_step": checkpoint_step(checkpoint) if checkpoint else 0,
            "ended": self._why_ended(trained, checkpoint),
        }
        self.rendezvous.report("done", **report)
        by_evaluator = self.result_exchange.is_evaluators()
        self._publish_status("finished", result_by=str(EVALUATOR if by_evaluator else self.task), **training)
        outcome = self.result_exchange.from_evaluator() if by_evaluator else None
        if outcome is None:
            if by_evaluator:
                self._publish_status("finished", result_by=str(self.task), **training)
            outcome = self._conclude(self.own_evaluator(), training)
        reports = shutdown.reports_of(self.rendezvous, self._training_tasks(), timeout=self.settings.result_timeout)
        if self.duplicate_records is not None:
            self.duplicate_records.conclude()
        outcome = dataclasses.replace(outcome, tasks=reports, task=str(self.task))
        self.rendezvous.publish(outcome.to_dict())
        self._leave_last()
        return outcome

    def _report_peer_lost(self, message: str) -> None:
        self._report_failed(message, echo=True)

    def _report_failed(self, error: BaseException | str, *, echo: bool = False) -> None:
        """Report a failure to the other tasks, which would otherwise wait for this task."""
        echo = echo or shutdown.is_echo(error)
        if not echo:
            # The other tasks exit now, and the launcher may then stop this one too: it must still count as failed.
            self.events.raised(error)
            self.preemption.refuse()
        text, status = shutdown.text_of(error)[:2000], shutdown.status_of(error)
        try:
            if self.tf_config.is_chief:
                self.rendezvous.publish_failure(text, status=status, echo=echo, from_step=self.from_step)
                shutdown.let_hear(self.rendezvous)
            else:
                self.rendezvous.report_failed(text, status=status, echo=echo)
        except (OSError, compat.tensorflow().errors.OpError) as second:
            # Usually a full disk: the first error must be raised.
            logger.warning("%s could not be written to either: %s", self.rendezvous.directory, second)

    def _publish_status(self, state: str, **more: Any) -> None:
        self.rendezvous.publish_status(state, from_step=self.from_step, **more)

    def set_start_step(self) -> None:
        """Start an addressable input at the record of the latest checkpoint."""
        step = self.agree_on_start()
        if hasattr(self.input_fn, "start_step"):
            self.input_fn.start_step = max(0, step)

    def agree_on_start(self) -> int:
        """Return the step of the checkpoint that all workers resume from; see `startup.agree_on_start`."""
        timeout = self.settings.startup_timeout
        if self.rendezvous.apart and not self._is_asynchronous:
            startup.fetch_start(self.rendezvous, self.model_dir, timeout=timeout)
        if self._is_asynchronous and not self.tf_config.is_chief:
            return startup.follow_chief(
                self.rendezvous, self.model_dir, asked=lambda: self.preemption.asked, timeout=timeout
            )
        return startup.agree_on_start(self.model_dir, self.tf_config, timeout=timeout)

    def check_together(self) -> None:
        """Compare job and devices with the other workers."""
        timeout, job = self.settings.startup_timeout, self._compared() or {}
        refused = None if self.settings.shared is not None else same_job.OF_PROGRAMS
        same_job.agree(job, self.tf_config, refused=refused, apart=self.rendezvous.apart, timeout=timeout)
        startup.check_devices(self.strategy, self.tf_config, timeout=timeout)

    def _why_ended(self, trained: TrainingOutcome, checkpoint: str | None) -> str:
        if self.max_steps is not None and checkpoint is not None and checkpoint_step(checkpoint) >= self.max_steps:
            return results.REACHED
        return results.DATA_ENDED if trained.data_ended else results.STOPPED

    def _records(self, steps: int) -> int | None:
        return results.records_of(self.input_fn, self.strategy, steps)

    # -- evaluation ---------------------------------------------------------------------------------------------

    def own_evaluator(self) -> CheckpointEvaluator:
        """Return the evaluator of this process, created at the first call."""
        if self._evaluator is None:
            self._evaluator = self.make_evaluator()
        return self._evaluator

    def evaluate_during(self, checkpoint: str) -> None:
        if self.own_evaluator().seconds_to_wait() != 0:
            return
        with contextlib.suppress(PreemptedError), self.preemption.interruptible("it evaluated a checkpoint"):
            # A stop request does not wait for an evaluation; the checkpoint is written.
            self.own_evaluator().evaluate(checkpoint, final=False)

    def run_evaluator(self) -> TrainResult:
        evaluator = self.own_evaluator()
        while True:
            training = follow_training(
                evaluator,
                rendezvous=self.rendezvous,
                model_dir=self.model_dir,
                checkpoint_timeout=self.settings.checkpoint_timeout,
            )
            if training is None:
                return self.result_exchange.stand_by(self.model_dir)
            outcome = self.result_exchange.through_chief(training, functools.partial(self._conclude, evaluator))
            if outcome is not None:
                return outcome

    def _conclude(self, evaluator: CheckpointEvaluator, training: Mapping[str, Any]) -> TrainResult:
        return conclude(evaluator, training, model_dir=self.model_dir, task=str(self.task))

    def _training_tasks(self) -> tuple[Task, ...]:
        cluster = self.tf_config.cluster
        return (Task("worker"),) if cluster is None else cluster.training_tasks

    # -- shutdown -----------------------------------------------------------------------------------------------

    def _end_with_result(self) -> TrainResult:
        """Return the result in a worker that has left training."""
        try:
            with self.preemption.interruptible(_BEFORE_RESULT):
                outcome = self.result_exchange.wait()
                self.rendezvous.leave()
                return outcome
        except PreemptedError:
            self._leave_preempted()
            raise

    def _leave_last(self, timeout: float = shutdown.LEAVING_SECS) -> None:
        others = [task for task in self._training_tasks() if task != self.task]
        # Tasks with separate model directories read the result from this task.
        leaving = dict.fromkeys([*others, *self.rendezvous.apart_tasks()])
        shutdown.wait_until_left(self.rendezvous, leaving, timeout=timeout)
        cluster = self.tf_config.cluster
        if cluster is not None and cluster.num_ps == 0 and others and coordination.available():
            shutdown.end_last({str(task): cluster.address(task) for task in others if self.rendezvous.has_met(task)})

    # -- parameter servers --------------------------------------------------------------------------------------

    def run_parameter_server(self) -> TrainResult:
        self.start_server()
        timeout = self.settings.startup_timeout
        training = parameter_server.serve(self.rendezvous, startup=timeout, leaving=PREEMPTED_SECS)
        if training["state"] == "preempted":
            self.preemption.ask(str(training.get("by")))
            raise self.preemption.error(self._saved_progress())
        with self.preemption.interruptible(_BEFORE_RESULT):
            # The chief publishes it when every training task has left training; until then variables are served.
            outcome = self.result_exchange.wait()
            self.rendezvous.leave()
            return outcome
