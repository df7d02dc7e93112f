"""The Estimator engine: `train_and_evaluate` that knows what each task of the cluster is for, and how it ends.

================ ===============================================================================================
task             its life
================ ===============================================================================================
chief            trains, writes checkpoints; evaluates the final one where there is no evaluator (and every one
                 during training, where asked for); ends with the result
worker           trains; waits for the result
parameter server holds variables until every training task has left training; waits for the result
evaluator        makes no training strategy; evaluates each checkpoint and the final one last, exports; its result
                 is everybody's
single process   trains and evaluates at each checkpoint
================ ===============================================================================================

A `master` (TensorFlow 1) is a chief that evaluates during training, as it always did.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from absl import logging

from estimator_pipeline import compat
from estimator_pipeline.cluster import Task, TFConfig, from_environ
from estimator_pipeline.compat import coordination, coordinator, sessions
from estimator_pipeline.engines import result as results
from estimator_pipeline.engines.board import Board, PeerWatch
from estimator_pipeline.engines.evaluation import CheckpointEvaluator, follow_training
from estimator_pipeline.engines.hooks import checkpoint_hook, checkpoint_step, progress_hook
from estimator_pipeline.engines.result import TrainResult
from estimator_pipeline.errors import ClusterError, ConfigError, TaskFailedError, WaitError
from estimator_pipeline.launch import progress as progress_protocol

# How long a task's report may come after the chief's: tasks leave synchronous training within a step of each other.
REPORT_SECS = 30.0

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
    startup_timeout: float = 1800.0,
    environ: Mapping[str, str] | None = None,
) -> TrainResult:
    """Runs this process's task of the job, and returns the job's result, the same on every task.

    Call it with the same arguments on every task; TF_CONFIG says which one this is. Training goes on from the latest
    checkpoint in `model_dir`. Every checkpoint is evaluated, and the final one always, however training ended:
    `max_steps` reached, data at an end, or a hook that stopped it. EvalSpec's own defaults for `throttle_secs` and
    `start_delay_secs` are read as "not set"; other values are kept to, but never for the final checkpoint.

    Args:
        estimator: a `tf.estimator.Estimator` whose RunConfig came from :func:`~estimator_pipeline.build_run_config`.
        train_spec: a `tf.estimator.TrainSpec`.
        eval_spec: a `tf.estimator.EvalSpec`.
        evaluator: whether the job has an evaluator task. None: it has one if TF_CONFIG names it, or if one has
            announced itself by the time training ends.
        evaluate_during_training: whether the chief stops at each checkpoint to evaluate it. None: a single process
            and a `master` do, a chief does not.
        result_timeout: seconds that a task waits for the result once training has ended.
        checkpoint_timeout: seconds without a new checkpoint after which the evaluator gives up.
        startup_timeout: seconds that a parameter server waits for the chief to appear.
        environ: where TF_CONFIG is read; `os.environ` by default.

    Returns:
        The result: final step, metrics, exports, what each task did.

    Raises:
        ConfigError: arguments that cannot work together.
        ClusterError: a TF_CONFIG that cannot work, or workers with different numbers of devices.
        TaskFailedError: this task, or the training it belongs to, failed.
        WaitError: something waited for did not come in time; the message says what.
    """
    tf = compat.install()
    environ = os.environ if environ is None else environ
    tf_config = from_environ(environ)
    _check(tf, estimator, train_spec, eval_spec, tf_config)
    job = _Job(
        estimator,
        train_spec,
        eval_spec,
        tf_config=tf_config,
        environ=environ,
        evaluator=evaluator,
        evaluate_during_training=evaluate_during_training,
        result_timeout=result_timeout,
        checkpoint_timeout=checkpoint_timeout,
        startup_timeout=startup_timeout,
    )
    job.progress.emit("start")
    if tf_config.is_evaluator:
        outcome = job.run_evaluator()
    elif tf_config.is_ps:
        outcome = job.run_parameter_server()
    else:
        outcome = job.run_training_task()
    job.progress.emit(
        "result",
        status=outcome.ended,
        global_step=outcome.global_step,
        metrics=dict(outcome.metrics),
        exports=list(outcome.exports),
        tasks=outcome.to_dict()["tasks"],
    )
    return outcome


def _check(tf: Any, estimator: Any, train_spec: Any, eval_spec: Any, tf_config: TFConfig) -> None:
    for name, value, kind in (
        ("estimator", estimator, (tf.estimator.Estimator, tf.compat.v1.estimator.Estimator)),
        ("train_spec", train_spec, tf.estimator.TrainSpec),
        ("eval_spec", eval_spec, tf.estimator.EvalSpec),
    ):
        if not isinstance(value, kind):
            expected = kind[0] if isinstance(kind, tuple) else kind
            raise ConfigError(f"{name} is a {type(value).__name__}", mend=f"give a tf.estimator.{expected.__name__}")
    if tf_config.is_single_process or not tf_config.is_training_task:
        return
    if estimator._config.train_distribute is None:
        raise ConfigError(
            f"{tf_config.task} is one of {tf_config.num_training_tasks} training tasks, and the RunConfig has no "
            "training strategy: each would train a model of its own in the same model_dir",
            found="train_distribute: none",
            mend="train_distribute='multi_worker_mirrored', or 'parameter_server' where the cluster has a ps job",
        )


class _Job:
    """One task's view of the job; see :func:`train_and_evaluate` for the arguments."""

    def __init__(
        self, estimator: Any, train_spec: Any, eval_spec: Any, *, tf_config: TFConfig, environ: Mapping[str, str],
        evaluator: bool | None, evaluate_during_training: bool | None, result_timeout: float,
        checkpoint_timeout: float, startup_timeout: float,
    ) -> None:  # fmt: skip
        self.estimator, self.train_spec, self.eval_spec = estimator, train_spec, eval_spec
        self.tf_config, self.task = tf_config, tf_config.task
        self.model_dir = estimator.model_dir
        self.has_evaluator = evaluator
        if evaluate_during_training is None:
            evaluate_during_training = not evaluator and (tf_config.is_single_process or tf_config.dialect == "master")
        self.evaluate_during_training = evaluate_during_training
        self.result_timeout = result_timeout
        self.checkpoint_timeout = checkpoint_timeout
        self.startup_timeout = startup_timeout
        self.board = Board(self.model_dir, tf_config=tf_config, environ=environ)
        self.progress = progress_protocol.from_environ(environ)
        self.strategy = estimator._config.train_distribute
        self._evaluator: CheckpointEvaluator | None = None

    # -- the training tasks -------------------------------------------------------------------------------------

    def run_training_task(self) -> TrainResult:
        chief = self.tf_config.is_chief
        if chief:
            self.board.clear()
            self.board.write("training.json", {"state": "running", "task": str(self.task)})
        try:
            hook = self._train()
        except Exception as error:
            self.board.write(
                "training.json",
                {"state": "failed", "task": str(self.task), "error": f"{type(error).__name__}: {error}"[:2000]},
            )
            raise
        self._remove_temporary_checkpoints()
        report = {"steps": hook.steps, "records": self._records(hook.steps)}
        if not chief:
            self.board.write_task(self.task, state="done", **report)
            return self._wait_for_result()
        checkpoint = compat.install().train.latest_checkpoint(self.model_dir)
        training = {
            "state": "finished",
            "task": str(self.task),
            "checkpoint": checkpoint,
            "global_step": checkpoint_step(checkpoint) if checkpoint else 0,
            "ended": self._why_ended(hook, checkpoint),
        }
        self.board.write_task(self.task, state="done", **report)
        self.board.write("training.json", training)
        if self._evaluator_expected():
            try:
                return self._wait_for_result()
            except WaitError as error:
                logging.warning("%s; the chief evaluates the final checkpoint itself", error)
        outcome = self._conclude(self._own_evaluator(), training)
        self._wait_for_others_to_leave()
        return outcome

    def _train(self) -> Any:
        tf = compat.install()
        config = self.estimator._config
        hook = progress_hook(self.progress)
        hooks = [hook, *self.train_spec.hooks]
        if self.tf_config.is_chief and self.evaluate_during_training:
            asynchronous = self.tf_config.cluster is not None and self.tf_config.cluster.num_ps > 0
            every = None if asynchronous else config.save_checkpoints_steps
            hooks.append(checkpoint_hook(self._evaluate_during, model_dir=self.model_dir, every_steps=every))
        self._set_start_step()
        if config.tf_random_seed is not None:
            # The graph's seed does not reach Keras initializers; without this two runs differ from the first step.
            tf.keras.utils.set_random_seed(config.tf_random_seed)

        def train(local: Any) -> None:
            local.train(
                input_fn=self.train_spec.input_fn,
                max_steps=self.train_spec.max_steps,
                hooks=hooks,
                saving_listeners=tuple(self.train_spec.saving_listeners) if self.tf_config.is_chief else (),
            )

        with sessions.short_waits():
            if self.tf_config.is_single_process:
                train(coordinator.bind_to_task(self.estimator, train_strategy=self.strategy))
                return hook
            assert self.tf_config.cluster is not None
            _let_sigterm_end_this_process()
            self._check_devices()
            coordinator.run_training_task(
                self.estimator,
                self.strategy,
                train,
                jobs=self.tf_config.cluster.as_dict(),
                task_type=self.task.type,
                task_id=self.task.index,
            )
        return hook

    def _set_start_step(self) -> None:
        """Lets an addressable input begin at the record where the latest checkpoint stands."""
        input_fn = self.train_spec.input_fn
        if not hasattr(input_fn, "start_step"):
            return
        latest = compat.install().train.latest_checkpoint(self.model_dir)
        input_fn.start_step = max(0, checkpoint_step(latest)) if latest else 0

    def _check_devices(self) -> None:
        """All workers must have the same number of devices: a collective with another count never completes."""
        assert self.tf_config.cluster is not None
        own = len(self.strategy.extended.worker_devices)
        tasks = [str(task) for task in self.tf_config.cluster.training_tasks]
        counts = coordination.exchange(
            "device count", str(own), own=str(self.task), tasks=tasks, timeout=self.startup_timeout
        )
        if counts is not None and len(set(counts.values())) > 1:
            raise ClusterError(
                "the workers have different numbers of devices; synchronous training would never finish a step",
                found=", ".join(f"{task}: {count}" for task, count in counts.items()),
                mend="give every worker the same number (CUDA_VISIBLE_DEVICES, num_devices, the scheduler's request)",
            )

    def _why_ended(self, hook: Any, checkpoint: str | None) -> str:
        limit = self.train_spec.max_steps
        if limit is not None and checkpoint is not None and checkpoint_step(checkpoint) >= limit:
            return results.REACHED
        return results.DATA_ENDED if hook.data_ended else results.STOPPED

    def _records(self, steps: int) -> int | None:
        batch = getattr(self.train_spec.input_fn, "global_batch_size", None)
        if batch is None:
            return None
        if self.strategy is None or self.strategy.num_replicas_in_sync <= 1:
            return steps * batch
        own = len(self.strategy.extended.worker_devices)
        return steps * batch * own // self.strategy.num_replicas_in_sync

    def _remove_temporary_checkpoints(self) -> None:
        """Removes what a worker had to write beside the chief's checkpoints (saving is a collective operation)."""
        gfile = compat.install().io.gfile
        path = os.path.join(self.model_dir, f"tmp_{self.task.type}_{self.task.index}")
        if not self.tf_config.is_chief and gfile.exists(path):
            gfile.rmtree(path)

    # -- evaluation ---------------------------------------------------------------------------------------------

    def _own_evaluator(self) -> CheckpointEvaluator:
        if self._evaluator is None:
            self._evaluator = CheckpointEvaluator(self.estimator, self.eval_spec, progress=self.progress)
        return self._evaluator

    def _evaluate_during(self, checkpoint: str) -> None:
        if self._own_evaluator().seconds_to_wait() == 0:
            self._own_evaluator().evaluate(checkpoint, final=False)

    def run_evaluator(self) -> TrainResult:
        evaluator = self._own_evaluator()

        def announce() -> None:
            if self.board.read("evaluator.json") is None:
                self.board.write("evaluator.json", {"task": str(self.task)})

        announce()
        training = follow_training(
            evaluator,
            board=self.board,
            model_dir=self.model_dir,
            eval_spec=self.eval_spec,
            checkpoint_timeout=self.checkpoint_timeout,
            announce=announce,
        )
        done = self.board.read("result.json")
        if done is not None:
            # The chief did not know of this evaluator, or did not wait for it: its result stands.
            return self._from_board(done)
        return self._conclude(evaluator, training)

    def _evaluator_expected(self) -> bool:
        if self.has_evaluator is not None:
            return self.has_evaluator
        cluster = self.tf_config.cluster
        if cluster is None:
            return False
        return cluster.evaluator is not None or self.board.read("evaluator.json") is not None

    def _conclude(self, evaluator: CheckpointEvaluator, training: Mapping[str, Any]) -> TrainResult:
        """Evaluates the final checkpoint and writes the result for all."""
        if training["checkpoint"] is None:
            raise TaskFailedError(
                "training ended without a checkpoint, so there is nothing to evaluate",
                found=f"no checkpoint in {self.model_dir}",
                mend="see whether the input has any records, and whether save_checkpoints_steps is set",
            )
        final = evaluator.evaluate(training["checkpoint"], final=True)
        outcome = TrainResult(
            global_step=training["global_step"],
            metrics=final.metrics,
            checkpoint=training["checkpoint"],
            exports=tuple(evaluator.exports),
            ended=training["ended"],
            evaluations=tuple(evaluator.evaluations),
            tasks=self._task_reports(),
            evaluated_by=str(self.task),
            model_dir=self.model_dir,
            task=str(self.task),
        )
        self.board.write("result.json", {"result": outcome.to_dict()})
        return outcome

    def _task_reports(self) -> dict[str, results.TaskReport]:
        deadline = time.monotonic() + REPORT_SECS
        reports: dict[str, results.TaskReport] = {}
        for task in self._training_tasks():
            while (report := self.board.task_report(task)) is None and time.monotonic() < deadline:
                time.sleep(0.1)
            if report is None:
                logging.warning("%s has not said what it did within %.0f s", task, REPORT_SECS)
                continue
            reports[str(task)] = results.TaskReport(steps=report["steps"], records=report["records"])
        return reports

    def _training_tasks(self) -> tuple[Task, ...]:
        cluster = self.tf_config.cluster
        return (Task("worker"),) if cluster is None else cluster.training_tasks

    # -- the end ------------------------------------------------------------------------------------------------

    def _wait_for_result(self) -> TrainResult:
        outcome = self._await_result()
        if not self.tf_config.is_chief:
            self._say_left()
        else:
            self._wait_for_others_to_leave()
        return outcome

    def _await_result(self) -> TrainResult:
        done = self.board.wait(
            "the result of the final evaluation",
            lambda: self.board.read("result.json"),
            timeout=self.result_timeout,
        )
        return self._from_board(done)

    def _from_board(self, document: Mapping[str, Any]) -> TrainResult:
        return TrainResult.from_dict(document["result"], task=str(self.task))

    def _say_left(self) -> None:
        self.board.write(f"tasks/{self.task.type}-{self.task.index}.left.json", {})

    def _wait_for_others_to_leave(self) -> None:
        """The chief leaves last: it holds the service through which TensorFlow's servers watch each other, and a task
        that loses it before its own end is torn down as if the job had failed."""
        others = [task for task in self._training_tasks() if task != self.task]
        deadline = time.monotonic() + REPORT_SECS
        for task in others:
            name = f"tasks/{task.type}-{task.index}.left.json"
            while self.board.read(name) is None and time.monotonic() < deadline:
                time.sleep(0.05)

    # -- parameter servers --------------------------------------------------------------------------------------

    def run_parameter_server(self) -> TrainResult:
        tf = compat.install()
        cluster = self.tf_config.cluster
        assert cluster is not None
        self.board.clear()
        server = tf.distribute.Server(
            tf.train.ClusterSpec(cluster.as_dict()),
            job_name="ps",
            task_index=self.task.index,
            protocol=self.tf_config.rpc_layer,
            config=self.estimator._config.session_config,
        )
        watch = PeerWatch(cluster.chief, cluster.address(cluster.chief), startup=self.startup_timeout)
        self.board.wait("the end of training", self.board.finished, timeout=float("inf"), watch=watch, poll=0.5)
        deadline = time.monotonic() + REPORT_SECS
        while self._still_training() and time.monotonic() < deadline:
            time.sleep(0.1)
        del server
        return self._await_result()

    def _still_training(self) -> bool:
        return any(self.board.task_report(task) is None for task in self._training_tasks())


def _let_sigterm_end_this_process() -> None:
    """Undoes TensorFlow's own SIGTERM handler, which comes with MultiWorkerMirroredStrategy's server.

    That handler notes the signal for a preemption checkpoint of Keras and drops it: an Estimator's worker would train
    on until it is killed. A handler that the program set itself is left as it is.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
