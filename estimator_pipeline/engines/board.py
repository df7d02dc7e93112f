"""The board: small files in the model directory by which the tasks of one run tell each other how far they are.

A cluster's tasks share nothing but the model directory: the evaluator may stand outside TF_CONFIG, and TensorFlow's
servers say nothing of why a peer went away. So each task writes what the others wait for, and every wait has a
deadline and says what it waits for:

===================== ===================== ======================================================================
file                  written by            meaning
===================== ===================== ======================================================================
`training.json`       the chief             state "running", "finished", "preempted" or "failed"; step, checkpoint
`tasks/TASK.json`     each training task    it has left training: state, steps, records
`evaluator.json`      the evaluator         it is there and will bring the result
`result.json`         who evaluated last    the result, the same for all
===================== ===================== ======================================================================

**Which run a file belongs to.** A model directory outlives a run, so stale files must not be taken for news. Under our
launcher (or a scheduler that sets ESTIMATOR_PIPELINE_RUN_ID) every file bears the run's id, and others are ignored.
Without an id two facts serve: nothing can be finished before the chief and all parameter servers have started, so these
clear the board when they start; and an evaluator, which may start late, gives an apparently finished run
:data:`GRACE_SECS` to turn out a new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import Task, TFConfig
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.errors import PreemptedError, TaskFailedError, WaitError

__all__ = ["DIRECTORY", "GRACE_SECS", "POLL_SECS", "RUN_ID_VARIABLE", "Board"]

RUN_ID_VARIABLE = "ESTIMATOR_PIPELINE_RUN_ID"
DIRECTORY = "estimator_pipeline"

# What is no news of one run: who trains here, and what the runs of this directory are made of.
KEPT = ("identity.json", "lock", "lock.lease")

POLL_SECS = 0.2
GRACE_SECS = 20.0


class Board:
    """One run's files.

    Args:
        model_dir: shared by all tasks; local or anything that `tf.io.gfile` can write.
        tf_config: which task this process is.
        environ: where the run's id is looked up.
    """

    def __init__(self, model_dir: str, *, tf_config: TFConfig, environ: Mapping[str, str]) -> None:
        self._gfile = compat.install().io.gfile
        self.directory = os.path.join(model_dir, DIRECTORY)
        self.tf_config = tf_config
        given = environ.get(RUN_ID_VARIABLE, "")
        self.has_run_id = bool(given)
        self.run_id = given or (tf_config.cluster.fingerprint() if tf_config.cluster else "single")
        self._doubted: dict[str, Any] | None = None
        self._doubted_until = 0.0

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Writes a file whole: readers see the old one or the new one, never a part."""
        path = self.path(name)
        self._gfile.makedirs(os.path.dirname(path))
        temporary = f"{path}.{socket.gethostname()}.{os.getpid()}.tmp"
        with self._gfile.GFile(temporary, "w") as file:
            file.write(json.dumps({**document, "run_id": self.run_id, "written": time.time()}, indent=1))
        self._gfile.rename(temporary, path, overwrite=True)

    def read(self, name: str) -> dict[str, Any] | None:
        """A file of this run, or None where there is none yet (or only one of another run)."""
        tf = compat.install()
        try:
            with self._gfile.GFile(self.path(name), "r") as file:
                document = json.loads(file.read())
        except tf.errors.NotFoundError:
            return None
        except (ValueError, tf.errors.OpError):
            # A network file system may show a file before its content; the next look will find it.
            return None
        return document if document.get("run_id") == self.run_id else None

    def read_any(self, name: str) -> dict[str, Any] | None:
        """A file of whatever run wrote it last, or None."""
        tf = compat.install()
        try:
            with self._gfile.GFile(self.path(name), "r") as file:
                document = json.loads(file.read())
        except (ValueError, tf.errors.OpError):
            return None
        return document if isinstance(document, dict) else None

    def clear(self) -> None:
        """Removes what earlier runs left. For the tasks without which no run can finish: chief and ps."""
        if self.has_run_id or not self._gfile.exists(self.directory):
            # Files of other runs are ignored by their id, and those of this run are news, not remains.
            return
        for name in self._gfile.listdir(self.directory):
            if name in KEPT:
                continue
            path = self.path(name.rstrip("/"))
            if self._gfile.isdir(path):
                self._gfile.rmtree(path)
            else:
                self._remove(path)

    def remove(self, name: str) -> None:
        self._remove(self.path(name))

    def _remove(self, path: str) -> None:
        tf = compat.install()
        with contextlib.suppress(tf.errors.NotFoundError):
            self._gfile.remove(path)

    # -- what is said -------------------------------------------------------------------------------------------

    def training(self) -> dict[str, Any] | None:
        """The chief's last word in this run, or None."""
        said = self.read("training.json")
        if said is not None and said == self._doubted and time.monotonic() < self._doubted_until:
            return None
        return said

    def finished(self) -> dict[str, Any] | None:
        """The chief's last word, once it says that training has finished."""
        said = self.training()
        return said if said is not None and said["state"] == "finished" else None

    def doubt_what_is_there(self, seconds: float = GRACE_SECS) -> None:
        """Takes the end of training that is on the board now for an earlier run's, unless it still stands after
        `seconds`. For the evaluator, when no run id tells runs apart."""
        said = self.read("training.json")
        if not self.has_run_id and said is not None and said["state"] != "running":
            # Whoever starts after a preemption starts to go on from there.
            until = float("inf") if said["state"] == "preempted" else time.monotonic() + seconds
            self._doubted, self._doubted_until = said, until

    def task_report(self, task: Task) -> dict[str, Any] | None:
        return self.read(_task_file(task))

    def write_task(self, task: Task, **document: Any) -> None:
        self.write(_task_file(task), document)

    # -- waiting ------------------------------------------------------------------------------------------------

    def wait(
        self,
        what: str,
        look: Callable[[], Any],
        *,
        timeout: float,
        watch: PeerWatch | None = None,
        poll: float = POLL_SECS,
    ) -> Any:
        """Calls `look` until it gives something, and returns that.

        Raises:
            TaskFailedError: the chief has reported that training failed.
            PreemptedError: the chief has reported that training was asked to end, and is in a checkpoint.
            WaitError: nothing came within `timeout` seconds, or the chief's server went away.
        """
        deadline = time.monotonic() + timeout
        while True:
            found = look()
            if found is not None:
                return found
            self.raise_if_failed()
            if watch is not None:
                watch.check(what)
            if time.monotonic() > deadline:
                raise WaitError(
                    f"{self.tf_config.task} waited {timeout:.0f} s for {what}, and it did not come",
                    found=f"the files in {self.directory}",
                    mend="see the logs of the other tasks; where they only need longer, raise the time-out",
                )
            time.sleep(poll)

    def raise_if_failed(self) -> None:
        training = self.training()
        if training is not None and training["state"] == "preempted":
            preempted = PreemptedError(
                f"training was asked to end ({training.get('by')}), and {self.tf_config.task} ends with it: it stands "
                f"after step {training.get('global_step')}, in {training.get('checkpoint')}",
                mend="give the same command again: it goes on from there",
            )
            preempted.because = training.get("task")
            raise preempted
        if training is not None and training["state"] == "failed":
            error = TaskFailedError(
                f"training failed on {training.get('task', 'the chief')}: {training.get('error', 'no message')}",
                mend="see that task's log; this task only ended because of it",
            )
            error.because = training.get("task")
            raise error


def _task_file(task: Task) -> str:
    return f"tasks/{task.type}-{task.index}.json"
