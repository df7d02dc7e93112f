"""The rendezvous: small files in the model directory through which the tasks of one run publish their status.

A cluster's tasks share only the model directory: the evaluator may be outside TF_CONFIG, and TensorFlow's servers do
not report why a peer has exited. Each task therefore writes what the others wait for. Every wait has a time limit, and
its error names the awaited event:

===================== ===================== ======================================================================
file                  written by            meaning
===================== ===================== ======================================================================
`training.json`       the chief             state "running", "finished", "preempted" or "failed"; step, checkpoint,
                                            and, when finished, the task that publishes the result (`result_by`)
`tasks/TASK.json`     that task             "here", "done" with steps and records, "evaluated" with the result,
                                            "preempted" or "failed" with the error; and whether it has left
`result.json`         the chief             the result, the same for all
`refused.json`        a rejected chief      the reason: a different job trains here, and owns `training.json`
===================== ===================== ======================================================================

Every file has one writer, so no task overwrites a different task's status. (If the chief has exited, an evaluator that
has the result publishes it.)

Which run a file belongs to: a model directory outlives a run, so stale files must be ignored. Neither time stamps nor
run IDs identify them reliably, because a run ID may be reused. Tasks therefore do a handshake. Each starting task draws
a number (`nonce`) and writes it to its file. The chief's number is the *session*, and its file lists the numbers of all
tasks that it has seen. A task accepts a chief that lists its number, and then writes the session to its files as well;
the chief accepts files with its session, or of a task that it has not answered yet. No task's file is ever deleted.

A chief that has exited does not answer. An unanswered end of training may belong to an earlier run, or the chief may
have exited before this task started. It is accepted if it is unchanged for a while (`grace_secs`) and matches the end
of this task's training; a parameter server of a run with an ID accepts it at once.

Under the launcher (or a scheduler that sets ESTIMATOR_PIPELINE_RUN_ID) every file has the run's ID, and files of other
runs are ignored from the start.

A task with a different model directory than the chief's reads and writes in the chief's, through the chief's server
(`files`); everything else is the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import EVALUATOR, Task, TFConfig
from estimator_pipeline.cluster.peers import PeerWatch, grace_secs
from estimator_pipeline.cluster.resolution import RUN_ID_VARIABLE
from estimator_pipeline.engines.core.rendezvous.files import ChiefsServer, RendezvousFiles
from estimator_pipeline.engines.core.rendezvous.same_job import OTHER_JOB, refuse_other
from estimator_pipeline.errors import OtherJobError, PreemptedError, TaskFailedError, WaitError
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.process_state import STATE

POLL_SECS = 0.2
# Interval of handshake checks: while a task is missing, and after all have connected.
_GREETING_SECS = 0.25
_MET_SECS = 2.0
# Seconds in which tasks look for each other only in the model directory; then they look at the chief's server as well.
_APART_SECS = 1.0
_LOOK_SECS = 0.5
# Time limit for a check in progress, on a file system that may not answer.
_CLOSING_SECS = 10.0

_TRAINING = "training.json"
_RESULT = "result.json"
_REFUSED = "refused.json"


def in_state(status: Mapping[str, Any] | None, *states: str) -> Mapping[str, Any] | None:
    """Return the chief's status if it is one of these states, else None."""
    return status if status is not None and status["state"] in states else None


def raise_if_over(status: Mapping[str, Any] | None, task: Task) -> None:
    """Raise TaskFailedError or PreemptedError for `task` if training has failed or was stopped."""
    if status is None or status["state"] not in ("preempted", "failed"):
        return
    error: PreemptedError | TaskFailedError = TaskFailedError(
        f"training failed on {status.get('task', 'the chief')}: {status.get('error', 'no message')}",
        code="cluster/peer-failed",
        hint="read that task's log; this task only stopped because of it",
    )
    if status["state"] == "preempted":
        error = PreemptedError(
            f"training was asked to stop ({status.get('by')}), and {task} stops with it: training is saved after step "
            f"{status.get('global_step')}, in {status.get('checkpoint')}",
            hint="run the same command again: it resumes from there",
        )
    error.caused_by = status.get("task")
    raise error


class Rendezvous:
    """One run's files, as seen by one task.

    Args:
        model_dir: Shared by all tasks; any path that `tf.io.gfile` can write.
        tf_config: Cluster and task of this process.
        environ: Environment with the run's ID, and the seconds after which a silent chief counts as gone.
        max_steps: The global step at which this task's training ends, if any.
        server: The chief's server; None: all tasks share the model directory.
        evaluator: Whether the job is known to have an evaluator.
        job: The settings of this task's job, for comparison (`same_job`).

    Attributes:
        directory: Folder of the files.
        run_id: The run's ID; without one, a name of the cluster.
        session: The session number of the accepted chief; None: no chief accepted yet.
        answered: Whether that chief has answered this task. False if it had exited before.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        tf_config: TFConfig,
        environ: Mapping[str, str],
        max_steps: int | None = None,
        server: ChiefsServer | None = None,
        evaluator: bool = False,
        job: Mapping[str, Any] | None = None,
    ) -> None:
        self.tf_config, self._me, self._job = tf_config, str(tf_config.task), job
        run_id = environ.get(RUN_ID_VARIABLE, "")
        self._has_run_id = bool(run_id)
        self.run_id = run_id or (tf_config.cluster.fingerprint() if tf_config.cluster else "single")
        self.files = RendezvousFiles(model_dir, run_id=self.run_id, server=server)
        self.directory = self.files.directory
        self._has_evaluator, self._max_steps, self._grace = evaluator, max_steps, grace_secs(environ)
        self._nonce = uuid.uuid4().hex
        self.session: str | None = self._nonce if tf_config.is_chief else None
        self.answered = tf_config.is_chief
        self._lock, self._closing = threading.RLock(), threading.Event()
        # This task's report; the chief's status, the nonces that it has answered, and those that existed before it.
        self._report: dict[str, Any] = {}
        self._status: dict[str, Any] | None = None
        self._answers: dict[str, str] = {}
        self._before: dict[str, str] = {}
        # Whether the last write of the handshake failed; when this task first saw what it does not believe yet.
        self._must_write = False
        self._first_seen: dict[Hashable, float] = {}

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """See `RendezvousFiles.write`."""
        self.files.write(name, {**document, "nonce": self._nonce, "session": self.session})

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a file of this run, or None if it does not exist or belongs to a different run."""
        document = self.read_any(name)
        return document if document is not None and document.get("run_id") == self.run_id else None

    def read_of_session(self, name: str) -> dict[str, Any] | None:
        """Return a file of this session, or None."""
        document = self.read(name)
        if document is not None and document.get("session") is None:
            # Its task had not read the chief's answer.
            reports = filter(None, map(self.task_report, self._others()))
            return document if document.get("nonce") in [report.get("nonce") for report in reports] else None
        return document if document is not None and document["session"] == self.session else None

    def read_any(self, name: str) -> dict[str, Any] | None:
        """See `RendezvousFiles.read_any`."""
        return self.files.read_any(name)

    # -- handshake ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def attending(self, job: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Take part in the handshake within the block, in a thread; with `job`, if it was unknown before."""
        self._job = self._job if job is None else job
        if self.tf_config.is_chief:
            self.files.remove_abandoned()
            # These may belong to an earlier run. A running task will see the answer and confirm it.
            self._before = _nonces(self._reports())
        self.report("here")
        thread = threading.Thread(target=self._attend, name="estimator_pipeline-rendezvous", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closing.set()
            thread.join(_CLOSING_SECS)

    def _attend(self) -> None:
        look_at = time.monotonic() + _APART_SECS
        while not self._closing.wait(_MET_SECS if self._all_met() else _GREETING_SECS):
            self.attend()
            if time.monotonic() > look_at:
                # The server may not have started yet, or may have exited.
                with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                    self._reach()
                look_at = time.monotonic() + _LOOK_SECS

    def _reach(self) -> None:
        """Look for missing tasks through the chief's server."""
        if self.tf_config.is_chief:
            if not self._all_met() or (self._has_evaluator and str(EVALUATOR) not in self._answers):
                self.files.announce(self._nonce)
        elif not self.answered:
            own_file = _task_file(self.tf_config.task)
            if self.files.look_elsewhere(own_file, self._nonce, ended=STATE.ended_sessions):
                self.report(self._report["state"], apart=True)

    @property
    def apart(self) -> bool:
        """Whether this task is known to have a different model directory than the chief."""
        return self.files.elsewhere is not None and self.answered

    def apart_tasks(self) -> list[Task]:
        """Return the tasks of this session with separate model directories. For the chief."""
        reports = self._reports().items()
        return [task for task, report in reports if report.get("apart") and self._is_of_session(task, report)]

    def attend(self) -> dict[str, Any] | None:
        """Check once for nonces (chief) or for the answer (other tasks), and return the chief's status."""
        if self.tf_config.is_chief:
            with self._lock:
                if self._status is not None and (self._hear() or self._must_write):
                    self._try_to(self._write_status)
        return self.training()

    def _try_to(self, write: Callable[[], None]) -> None:
        """Write a file. It is retried later if that fails: a file system may be unavailable."""
        try:
            write()
            self._must_write = False
        except (OSError, compat.tensorflow().errors.OpError) as error:
            if not self._must_write:
                logger.warning("%s cannot be written: %s", self.directory, error)
            self._must_write = True

    def _all_met(self) -> bool:
        if not self.tf_config.is_chief:
            return self.answered
        return all(str(task) in self._answers for task in self._others() if task != EVALUATOR)

    def _others(self) -> list[Task]:
        cluster = self.tf_config.cluster
        tasks = dict.fromkeys((*(() if cluster is None else cluster.tasks), EVALUATOR))
        return [task for task in tasks if task != self.tf_config.task]

    def _reports(self) -> dict[Task, dict[str, Any]]:
        """Return the other tasks' reports, of any session."""
        documents = ((task, self.read(_task_file(task))) for task in self._others())
        return {task: document for task, document in documents if document is not None}

    def _hear(self) -> bool:
        """Read the other tasks' nonces and failures, and return whether there is anything new. For the chief."""
        reports = self._reports()
        before, self._answers = self._answers, {**self._answers, **_nonces(reports)}
        failures = self._failures_in(reports) if in_state(self._status, "running") else []
        if failures:
            self._status = {**(self._status or {}), "state": "failed", **min(failures, key=_is_echo)}
        return bool(failures) or self._answers != before

    def _failures_in(self, reports: Mapping[Task, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the failures of tasks that fail the training. In asynchronous training only a different job does."""
        return [
            {"task": str(task), **{key: report[key] for key in ("error", "status", "echo")}}
            for task, report in reports.items()
            if task != EVALUATOR and report["state"] == "failed" and self._is_of_session(task, report)
            if self._is_synchronous() or report["status"] == OTHER_JOB
        ]

    def _is_synchronous(self) -> bool:
        """Return whether the failure of one training task fails the training."""
        return self.tf_config.cluster is not None and self.tf_config.cluster.num_ps == 0

    def raise_if_refused(self) -> None:
        """Raise OtherJobError in the chief of asynchronous training, if a task has reported a different job."""
        status = in_state(self._status, "failed")
        if status is not None and status.get("status") == OTHER_JOB:
            raise OtherJobError(f"{status['task']}: {status['error']}")

    def raise_if_other_job(self, status: Mapping[str, Any] | None, job: Mapping[str, Any] | None = None) -> None:
        """Raise OtherJobError if the chief has a different job than this task, or than `job`.

        The workers of synchronous training compare their jobs with each other instead.
        """
        if status is not None and not (self.tf_config.is_training_task and self._is_synchronous()):
            refuse_other(status, job or self._job, self.tf_config, apart=self.files.elsewhere is not None)

    def has_met(self, task: Task) -> bool:
        """Return whether a task has connected. For the chief."""
        return self.task_report(task) is not None

    def task_report(self, task: Task) -> dict[str, Any] | None:
        """Return a task's report in this session, or None."""
        report = self.read(_task_file(task))
        return report if report is not None and self._is_of_session(task, report) else None

    def has_heard(self, task: Task) -> bool:
        """Return whether a task has read a status of this session, or has failed. For the chief."""
        report = self.task_report(task)
        return report is not None and (report.get("session") == self.session or report["state"] == "failed")

    def failure_before(self, task: Task) -> dict[str, Any] | None:
        """Return the report of a task of this run that failed before the chief started, or None. For the chief.

        Only if the run has an ID: without one, the report may be of an earlier run.
        """
        report = self.read(_task_file(task)) if self._has_run_id else None
        return report if report is not None and report["state"] == "failed" else None

    def _is_of_session(self, task: Task, report: Mapping[str, Any]) -> bool:
        if self.session is None:
            return False
        greets = self.tf_config.is_chief and report.get("nonce") != self._before.get(str(task))
        return report.get("session") == self.session or (report.get("session") is None and greets)

    # -- publishing -----------------------------------------------------------------------------------------------

    def report(self, state: str, **document: Any) -> None:
        """Write this task's state to its file."""
        with self._lock:
            self._report = {**self._report, **document, "state": state}
            self._write_report()

    def report_failed(self, error: str, *, status: str, echo: bool) -> None:
        """Report that this task failed; only the first failure counts.

        `status` is for the launcher (`failures.status_of`). `echo`: it is known to be only a consequence of a different
        task's failure.
        """
        with self._lock:
            if self._report.get("state") != "failed":
                self.report("failed", error=error, status=status, echo=echo)

    def end(self) -> None:
        """Mark the session of this task as ended."""
        if not self.tf_config.is_chief and self.session is not None:
            STATE.ended_sessions.add(self.session)

    def leave(self) -> None:
        """Report that this task is about to exit."""
        with self._lock:
            self.report(self._report.get("state", "here"), left=True)

    def _write_report(self) -> None:
        self.write(_task_file(self.tf_config.task), self._report)

    def publish_status(self, state: str, **more: Any) -> None:
        """Publish the status of training. For the chief."""
        with self._lock:
            self._status = {"state": state, "task": self._me, **more}
            self._hear()
            self._write_status()

    def publish_failure(self, error: str, *, status: str, echo: bool, **more: Any) -> None:
        """Publish that training failed, see `report_failed`; only the first cause counts. For the chief.

        If it is an echo, the failure of a different task has priority.
        """
        with self._lock:
            before = in_state(self._status, "failed")
            if before is not None and (echo or not before.get("echo")):
                return
            failure = {"task": self._me, "error": error, "status": status, "echo": echo}
            cause = min((failure, *self._failures_in(self._reports())), key=_is_echo)
            self.publish_status("failed", **{**more, **cause})

    def publish_refusal(self, error: str) -> None:
        """Publish that this job may not train here, without changing the other job's status. For the chief."""
        status = {"state": "failed", "task": self._me, "error": error}
        self.write(_REFUSED, {**status, "answers": _nonces(self._reports())})

    def _write_status(self) -> None:
        status = {**(self._status or {}), "max_steps": self._max_steps, "answers": self._answers}
        self.write(_TRAINING, {**status, "chief": self._me, "job": self._job})

    def publish(self, result: Mapping[str, Any]) -> None:
        """Publish the result for all tasks."""
        self.write(_RESULT, {"result": dict(result)})

    # -- reading --------------------------------------------------------------------------------------------------

    def training(self) -> dict[str, Any] | None:
        """Return the chief's last status in this run, or None."""
        status = self._status if self.tf_config.is_chief else self._accepted(self.read(_TRAINING))
        return status if status is not None or self.answered else self._rejection()

    def _rejection(self) -> dict[str, Any] | None:
        """Return the status of a rejected chief that has seen this task, if the training chief does not answer.

        Without a run ID the two have the same name; a chief that trains answers within _MET_SECS.
        """
        status = self.read(_REFUSED)
        if status is None or not self._is_answer(status):
            return None
        return status if self._seconds_since(_REFUSED) > 2 * _MET_SECS else None

    def _is_answer(self, status: Mapping[str, Any]) -> bool:
        return bool(status.get("answers", {}).get(self._me) == self._nonce)

    def _accepted(self, status: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a status if it is from the chief of this task's session, else None."""
        if status is None:
            return None
        session = status.get("session")
        with self._lock:
            answered = self._is_answer(status) and session not in STATE.ended_sessions
            if not answered and not self._is_final(status):
                return None
            is_new = answered and not (self.answered and session == self.session)
            self.answered, self.session = answered, session
            if is_new or (answered and self._must_write):
                self._try_to(self._write_report)
        return status

    def is_unanswered(self) -> bool:
        """Return whether there is a chief's status that may still answer this task, or is of an earlier run."""
        status = self.read(_TRAINING)
        return status is not None and self._accepted(status) is None and self._silence(status) < self._grace

    def _is_final(self, status: Mapping[str, Any]) -> bool:
        """Return whether an unanswered status is the end of this training, and its chief has or may have exited."""
        # A task that starts after a failure or a preemption starts in order to resume.
        if status["state"] != "finished":
            return False
        reached = self._max_steps is not None and status["global_step"] >= self._max_steps
        # A parameter server has nothing to do then, whether or not the chief has exited, or a run ID is reused.
        if reached and self._has_run_id and self.tf_config.is_ps:
            return True
        is_old = self._silence(status) >= self._grace
        return is_old and (reached or status.get("max_steps") == self._max_steps)

    def _silence(self, status: Mapping[str, Any]) -> float:
        return self._seconds_since((status.get("session"), status["state"]))

    def _seconds_since(self, event: Hashable) -> float:
        now = time.monotonic()
        return now - self._first_seen.setdefault(event, now)

    def finished(self) -> Mapping[str, Any] | None:
        """Return the chief's status if training has finished, else None."""
        return in_state(self.training(), "finished")

    def result(self) -> dict[str, Any] | None:
        """Return the result of this session, or None."""
        return (self.read_of_session(_RESULT) or {}).get("result")

    def wait(
        self,
        event: str,
        check: Callable[[Mapping[str, Any] | None], Any],
        *,
        timeout: float,
        watch: PeerWatch | None = None,
        poll: float = POLL_SECS,
    ) -> Any:
        """Call `check` until it returns a value, and return that value.

        Args:
            event: The awaited event, for the message.
            check: Takes the chief's last status; returns the awaited value, or None.
            timeout: Seconds; restarted with each new status of the chief.
            watch: Monitors the task that is waited for.
            poll: Seconds between two calls.

        Raises:
            TaskFailedError, PreemptedError: See `raise_if_over`. Not raised in the chief.
            OtherJobError: The chief has a different job.
            WaitError: No value within `timeout` seconds, or the connection to the monitored server was lost.
        """
        deadline, last = Deadline(timeout), None
        for _ in deadline.polls(poll):
            training = self.attend()
            self.raise_if_other_job(training)
            value = check(training)
            if value is not None:
                return value
            if not self.tf_config.is_chief:
                raise_if_over(training, self.tf_config.task)
            if training is not None:
                current = training.get("session"), training["state"], training.get("result_by")
                if current != last:
                    deadline.extend(timeout)
                    last = current
            if watch is not None:
                watch.check(event)
        raise WaitError(
            f"{self._me} waited {timeout:.0f} s for {event}, and it did not come",
            found=f"the files in {self.directory}",
            hint="read the logs of the other tasks; if they only need longer, increase the time-out",
        )


def _is_echo(failure: Any) -> bool:
    return bool(failure["echo"])


def _nonces(reports: Mapping[Task, Mapping[str, Any]]) -> dict[str, str]:
    return {str(task): str(report.get("nonce")) for task, report in reports.items()}


def _task_file(task: Task) -> str:
    return f"tasks/{task.type}-{task.index}.json"
