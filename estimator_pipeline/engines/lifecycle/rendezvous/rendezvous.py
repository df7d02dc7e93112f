"""The rendezvous: small files in the model directory by which the tasks of one run tell each other how far they are.

A cluster's tasks share nothing but the model directory: the evaluator may stand outside TF_CONFIG, and TensorFlow's
servers say nothing of why a peer went away. So each task writes what the others wait for, and every wait has a
deadline and says what it waits for:

===================== ===================== ======================================================================
file                  written by            meaning
===================== ===================== ======================================================================
`training.json`       the chief             state "running", "finished", "preempted" or "failed"; step, checkpoint,
                                            and once it is finished who brings the result (`result_by`)
`tasks/TASK.json`     that task             "here", "done" with steps and records, "evaluated" with the result,
                                            "preempted" or "failed" with the error; and whether it has left
`result.json`         the chief             the result, the same for all
`refused.json`        a refused chief       why: another job trains here, and `training.json` is that one's
===================== ===================== ======================================================================

Every file has one writer, so nothing is overwritten by somebody else's word. (Where the chief has gone, an evaluator
that has the result publishes it.)

**Which run a file belongs to.** A model directory outlives a run, so stale files must not be taken for news, and
neither a clock nor a name can tell them apart: a run's id may come twice. So tasks greet each other. Each task that
arrives draws a number (`nonce`) and writes it into its file; the chief's own number is the *session*, and its file
answers with the numbers of all that it has seen. A task believes a chief that answers its number, and writes the
session into its file; the chief believes reports that bear its session. No task's word is
ever cleared away.

A chief that has gone answers nobody. An end of training that nobody answers for may be an earlier run's, or the chief
may have left before this task came: it counts if it still stands after a while (:func:`~estimator_pipeline.cluster.
peers.grace_secs`) and is what this task's own training would have come to.

Under our launcher (or a scheduler that sets ESTIMATOR_PIPELINE_RUN_ID) every file bears the run's id, and those of
other runs are ignored from the start.

Where a task's model directory is not the chief's, it reads and writes in the chief's through the chief's server
(:mod:`~estimator_pipeline.engines.lifecycle.rendezvous.files`); all else is the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import EVALUATOR, Task, TFConfig
from estimator_pipeline.cluster.peers import PeerWatch, grace_secs
from estimator_pipeline.cluster.resolution import RUN_ID_VARIABLE
from estimator_pipeline.engines.lifecycle.rendezvous.chief_server import ChiefsServer
from estimator_pipeline.engines.lifecycle.rendezvous.chief_status import in_state, raise_if_over
from estimator_pipeline.engines.lifecycle.rendezvous.files import RendezvousFiles
from estimator_pipeline.engines.lifecycle.rendezvous.same_job import OTHER_JOB, refuse_other
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.errors import OtherJobError, WaitError
from estimator_pipeline.utils.logger import logger

__all__ = ["DIRECTORY", "POLL_SECS", "Rendezvous"]

POLL_SECS = 0.2
# How often a task looks for another's greeting: while one is awaited, and once all have met.
_GREETING_SECS = 0.25
_MET_SECS = 2.0
# How long tasks look for each other in the model directory alone.
_APART_SECS = 1.0
# For a look that is under way, on a file system that may not answer.
_CLOSING_SECS = 10.0

_TRAINING = "training.json"
_RESULT = "result.json"
_REFUSED = "refused.json"

# Sessions that a task of this process has come to the end of: its next training is of another one, though their chief
# may still be there to answer.
_ended: set[str | None] = set()


class Rendezvous:
    """One run's files, as one task sees them.

    Args:
        model_dir: shared by all tasks; local or anything that `tf.io.gfile` can write.
        tf_config: which task this process is.
        environ: where the run's id is looked up, and the seconds after which a silent chief counts as gone.
        max_steps: the global step at which this task's training ends, if any.
        server: the chief's; None: all tasks share the model directory.
        evaluator: whether the job has an evaluator, as far as anybody says so.
        job: what this task's job is made of, which the others compare
            (:mod:`~estimator_pipeline.engines.lifecycle.rendezvous.same_job`).

    Attributes:
        directory: where the files are.
        run_id: the run's id; without one, a name of the cluster.
        session: the number of the chief whose word this task takes; None: it has heard of none yet.
        answered: whether that chief has answered this task. It has not where it was gone before.
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
        self.tf_config, self.job = tf_config, job
        given = environ.get(RUN_ID_VARIABLE, "")
        self.run_id = given or (tf_config.cluster.fingerprint() if tf_config.cluster else "single")
        self.files = RendezvousFiles(model_dir, run_id=self.run_id, server=server)
        self.directory = self.files.directory
        self._expected = evaluator
        self._max_steps = max_steps
        self._grace = grace_secs(environ)
        self._nonce = uuid.uuid4().hex
        self.session: str | None = self._nonce if tf_config.is_chief else None
        self.answered = tf_config.is_chief
        self._lock = threading.RLock()
        self._own: dict[str, Any] = {}
        # The session that this task's file bears; whether all that was heard is written; whether writing fails.
        self._confirmed: str | None = None
        self._heard_all, self._away = True, False
        # The chief's word, whom it has answered, and the greetings that were there before it.
        self._said: dict[str, Any] | None = None
        self._answers: dict[str, str] = {}
        self._before: dict[str, str] = {}
        # A chief's word that nobody answers for, and since when this task has known it.
        self._silent: tuple[Any, Any] | None = None
        self._silent_since = 0.0
        self._refused_since: float | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # -- files ----------------------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """See :meth:`RendezvousFiles.write`."""
        self.files.write(name, document)

    def read(self, name: str) -> dict[str, Any] | None:
        """A file of this run, or None where there is none yet (or only one of another run)."""
        document = self.read_any(name)
        return document if document is not None and document.get("run_id") == self.run_id else None

    def read_any(self, name: str) -> dict[str, Any] | None:
        """See :meth:`RendezvousFiles.read_any`."""
        return self.files.read_any(name)

    # -- meeting --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def attending(self) -> Iterator[None]:
        """In the block, this task is there: it greets, and answers greetings, whatever else it does."""
        if self.tf_config.is_chief:
            self.files.remove_abandoned()
            # They may be an earlier run's. Whoever is there still will hear the answer, and say so.
            self._before = _nonces(self._reports())
        self.report("here")
        self._thread = threading.Thread(target=self._attend, name="estimator_pipeline-rendezvous", daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            self._closing.set()
            self._thread.join(_CLOSING_SECS)

    def _attend(self) -> None:
        begun = time.monotonic()
        while not self._closing.wait(_MET_SECS if self._all_met() else _GREETING_SECS):
            self.attend()
            if time.monotonic() - begun > _APART_SECS:
                # The server may not be there yet, or no longer.
                with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
                    self._reach()

    def _reach(self) -> None:
        """Looks for the others at the chief's server, where they have not been met by files."""
        if self.tf_config.is_chief:
            if not self._all_met() or (self._expected and str(EVALUATOR) not in self._answers):
                self.files.announce(self._nonce)
            return
        own_file = _task_file(self.tf_config.task)
        if not self.answered and self.files.look_elsewhere(own_file, self._nonce, ended=_ended):
            self.report(self._own["state"], apart=True)

    @property
    def apart(self) -> bool:
        """Whether this task's model directory is not the chief's, as far as it knows."""
        return self.files.elsewhere is not None and self.answered

    def apart_tasks(self) -> list[Task]:
        """The tasks of this session that have a model directory of their own. For the chief."""
        found = self._reports().items()
        return [task for task, report in found if report.get("apart") and self._is_of_session(task, report)]

    def attend(self) -> dict[str, Any] | None:
        """Looks for greetings, or for the answer to this task's own; gives the chief's last word, see `training`."""
        if self.tf_config.is_chief:
            with self._lock:
                if self._said is not None and self._hear():
                    self._heard_all = self._wrote(self._write_word)
        return self.training()

    def _wrote(self, write: Callable[[], None]) -> bool:
        """Whether a greeting could be written. If not it is again: a file system may be away for a while."""
        try:
            write()
        except (OSError, compat.tensorflow().errors.OpError) as error:
            if not self._away:
                logger.warning("%s cannot be written: %s", self.directory, error)
            self._away = True
            return False
        self._away = False
        return True

    def _all_met(self) -> bool:
        if not self.tf_config.is_chief:
            return self.answered
        return all(str(task) in self._answers for task in self._others() if task != EVALUATOR)

    def _others(self) -> tuple[Task, ...]:
        cluster = self.tf_config.cluster
        tasks = () if cluster is None else cluster.tasks
        return tuple(task for task in dict.fromkeys((*tasks, EVALUATOR)) if task != self.tf_config.task)

    def _reports(self) -> dict[Task, dict[str, Any]]:
        """What the other tasks' files say, whichever session they are of."""
        found = ((task, self.read(_task_file(task))) for task in self._others())
        return {task: document for task, document in found if document is not None}

    def _hear(self) -> bool:
        """Takes in who is there, and whether training has failed for one of them; whether there is any news."""
        reports = self._reports()
        answers = {**self._answers, **_nonces(reports)}
        news = answers != self._answers or not self._heard_all
        self._answers = answers
        if self._said is not None and self._said["state"] == "running":
            failure = self._failure_in(reports)
            if failure is not None:
                self._said = {**self._said, "state": "failed", **failure}
                news = True
        return news

    def raise_if_refused(self) -> None:
        """Ends the chief of asynchronous training where a task has found that its job is another one."""
        said = self._said
        if said is not None and said["state"] == "failed" and said.get("status") == OTHER_JOB:
            raise OtherJobError(f"{said['task']}: {said['error']}")

    def raise_if_other_job(self, said: Mapping[str, Any] | None) -> None:
        """Ends this task where the chief's word is of another job; OtherJobError. The workers of synchronous training
        compare by themselves, all with all."""
        if said is not None and not (self.tf_config.is_training_task and self._is_synchronous()):
            refuse_other(said, self.job, self.tf_config, apart=self.files.elsewhere is not None)

    def _is_synchronous(self) -> bool:
        """Whether a training task's failure is that of training."""
        return self.tf_config.cluster is not None and self.tf_config.cluster.num_ps == 0

    def _failure_in(self, reports: Mapping[Task, Mapping[str, Any]]) -> dict[str, Any] | None:
        """A task's failure that is that of training: rather a cause than what followed from one."""
        failures = []
        for task, report in reports.items():
            if task == EVALUATOR or report["state"] != "failed" or not self._is_of_session(task, report):
                continue
            if self._is_synchronous() or report["status"] == OTHER_JOB:
                failures.append({"task": str(task), **{key: report[key] for key in ("error", "status", "echo")}})
        return min(failures, key=lambda failure: bool(failure["echo"]), default=None)

    def has_met(self, task: Task) -> bool:
        """Whether a task is there, or was. For the chief."""
        return self.task_report(task) is not None

    def task_report(self, task: Task) -> dict[str, Any] | None:
        """What a task has said of itself to this session, or None."""
        report = self.read(_task_file(task))
        return report if report is not None and self._is_of_session(task, report) else None

    def _is_of_session(self, task: Task, report: Mapping[str, Any]) -> bool:
        if self.session is None:
            return False
        greets = self.tf_config.is_chief and report.get("nonce") != self._before.get(str(task))
        return report.get("session") == self.session or (report.get("session") is None and greets)

    # -- what is said ---------------------------------------------------------------------------------------------

    def report(self, state: str, **document: Any) -> None:
        """Says what this task is at, in its own file."""
        with self._lock:
            self._own = {**self._own, **document, "state": state}
            self._write_own()

    def report_failed(self, error: str, *, status: str, echo: bool) -> None:
        """Says that this task failed; its first failure counts.

        Args:
            error: the message.
            status: "failed" or "diverged".
            echo: whether it failed by what happened to another task, as far as it knows.
        """
        with self._lock:
            if self._own.get("state") != "failed":
                self.report("failed", error=error, status=status, echo=echo)

    def end(self) -> None:
        """This task has come to the end of its session, whatever it was."""
        if not self.tf_config.is_chief and self.session is not None:
            _ended.add(self.session)

    def leave(self) -> None:
        """Says that this task is about to end."""
        with self._lock:
            self.report(self._own.get("state", "here"), left=True)

    def _write_own(self) -> None:
        own = {**self._own, "nonce": self._nonce, "session": self.session}
        self.write(_task_file(self.tf_config.task), own)

    def publish_status(self, state: str, **more: Any) -> None:
        """Says how training stands. For the chief."""
        with self._lock:
            self._said = {"state": state, "task": str(self.tf_config.task), **more}
            self._hear()
            self._write_word()

    def publish_failure(self, error: str, *, status: str, echo: bool, **more: Any) -> None:
        """Says that training failed; the first cause counts. For the chief.

        Args:
            error: what happened to the chief.
            status: see :meth:`report_failed`.
            echo: see :meth:`report_failed`. What another task has told goes before it then.
        """
        with self._lock:
            before = self._said or {}
            if before.get("state") == "failed" and (echo or not before.get("echo")):
                return
            own = {"task": str(self.tf_config.task), "error": error, "status": status, "echo": echo}
            told = self._failure_in(self._reports()) if echo else None
            if told is not None and not told["echo"]:
                own = told
            self._said = {**more, **own, "state": "failed"}
            self._hear()
            self._write_word()

    def publish_refusal(self, error: str) -> None:
        """Says that this job may not train here, which leaves the word of the job that does. For the chief."""
        word = {"state": "failed", "task": str(self.tf_config.task), "error": error, "session": self._nonce}
        self.write(_REFUSED, {**word, "answers": _nonces(self._reports())})

    def _write_word(self) -> None:
        assert self._said is not None
        word = {**self._said, "session": self._nonce, "max_steps": self._max_steps, "answers": self._answers}
        self.write(_TRAINING, {**word, "chief": str(self.tf_config.task), "job": self.job})

    def publish(self, result: Mapping[str, Any]) -> None:
        """Writes the result for all."""
        self.write(_RESULT, {"result": dict(result), "session": self.session})

    # -- what is heard --------------------------------------------------------------------------------------------

    def training(self) -> dict[str, Any] | None:
        """The chief's last word in this run, or None."""
        said = self._said if self.tf_config.is_chief else self._believed(self.read(_TRAINING))
        return said if said is not None or self.answered else self._refusal()

    def _refusal(self) -> dict[str, Any] | None:
        """The word of a chief that may not train here, if it has seen this task, and the one that may does not answer.

        The two may be of one name, without a run's id; a chief that trains answers within _MET_SECS.
        """
        said = self.read(_REFUSED)
        if said is None or said.get("answers", {}).get(str(self.tf_config.task)) != self._nonce:
            return None
        self._refused_since = self._refused_since or time.monotonic()
        return said if time.monotonic() - self._refused_since > 2 * _MET_SECS else None

    def _believed(self, said: dict[str, Any] | None) -> dict[str, Any] | None:
        """A word that was read, if it is of the chief that this task takes for its own."""
        if said is None:
            return None
        session = said.get("session")
        with self._lock:
            answered = said.get("answers", {}).get(str(self.tf_config.task)) == self._nonce
            answered = answered and session not in _ended
            if not answered and not self._stands(said):
                return None
            self.answered = answered
            self.session = session
            if answered and session != self._confirmed and self._wrote(self._write_own):
                self._confirmed = session
        return said

    def is_unanswered(self) -> bool:
        """Whether there is a word of a chief's that nobody has answered for so far: a chief's that is about to answer
        this task, an earlier run's, or that of a chief that has gone."""
        said = self.read(_TRAINING)
        return said is not None and self._believed(said) is None and self._silence(said) < self._grace

    def _stands(self, said: Mapping[str, Any]) -> bool:
        """Whether it is an end of training that has stood unanswered for so long that its chief must have gone."""
        return self._silence(said) >= self._grace and self._could_stand(said)

    def _silence(self, said: Mapping[str, Any]) -> float:
        """Seconds since this task saw the word first, which nobody answers for."""
        key = said.get("session"), said["state"]
        if key != self._silent:
            self._silent, self._silent_since = key, time.monotonic()
        return time.monotonic() - self._silent_since

    def _could_stand(self, said: Mapping[str, Any]) -> bool:
        if said["state"] != "finished":
            # Whoever starts after a failure or a preemption starts to go on from there.
            return False
        if said.get("session") == self.session:
            return True
        reached = self._max_steps is not None and said["global_step"] >= self._max_steps
        return reached or said.get("max_steps") == self._max_steps

    def finished(self) -> Mapping[str, Any] | None:
        """The chief's last word, once it says that training has finished."""
        return in_state(self.training(), "finished")

    def result(self) -> dict[str, Any] | None:
        """The result of this session, or None."""
        document = self.read(_RESULT)
        if document is None or self.session is None or document.get("session") != self.session:
            return None
        found: dict[str, Any] = document["result"]
        return found

    # -- waiting --------------------------------------------------------------------------------------------------

    def wait(
        self,
        what: str,
        look: Callable[[Mapping[str, Any] | None], Any],
        *,
        timeout: float,
        watch: PeerWatch | None = None,
        poll: float = POLL_SECS,
    ) -> Any:
        """Calls `look` until it gives something, and returns that.

        Args:
            what: what is waited for, for the message.
            look: given the chief's last word as it stood before, it gives what is waited for, or None.
            timeout: seconds; they count anew with each word of the chief's.
            watch: on the task that is waited for.
            poll: seconds between two looks.

        Raises:
            TaskFailedError: the chief has reported that training failed. The chief itself knows it, and waits on.
            PreemptedError: likewise, that training was asked to end, and is in a checkpoint.
            OtherJobError: the chief's job is not this task's.
            WaitError: nothing came within `timeout` seconds, or the server of the one that is watched went away.
        """
        deadline, word = time.monotonic() + timeout, None
        while True:
            training = self.attend()
            self.raise_if_other_job(training)
            found = look(training)
            if found is not None:
                return found
            if not self.tf_config.is_chief:
                raise_if_over(training, self.tf_config.task)
            if training is not None and (
                said := (training.get("session"), training["state"], training.get("result_by"))
            ):
                deadline = deadline if said == word else time.monotonic() + timeout
                word = said
            if watch is not None:
                watch.check(what)
            if time.monotonic() > deadline:
                raise WaitError(
                    f"{self.tf_config.task} waited {timeout:.0f} s for {what}, and it did not come",
                    found=f"the files in {self.directory}",
                    hint="see the logs of the other tasks; where they only need longer, raise the time-out",
                )
            time.sleep(poll)


def _nonces(reports: Mapping[Task, Mapping[str, Any]]) -> dict[str, str]:
    return {str(task): str(report.get("nonce")) for task, report in reports.items()}


def _task_file(task: Task) -> str:
    return f"tasks/{task.type}-{task.index}.json"
