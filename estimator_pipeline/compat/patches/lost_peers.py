"""A training task whose peer has died exits with a message within a timeout.

In tf.estimator it hangs: it treats the loss of the peer as a preemption, creates a new session, restores the
checkpoint, and then waits at "Running local_init_op" for the missing task. Here

* under MultiWorkerMirroredStrategy, whose lost peers cannot rejoin, the error stops training immediately and names the
  lost task;
* if TensorFlow does not detect the loss, a thread connects to the ports of the tasks that training needs: under
  MultiWorkerMirroredStrategy all others, in a parameter-server cluster the parameter servers and the chief. A task that
  answered once and then does not answer for 60 s (ESTIMATOR_PIPELINE_PEER_SECS), while no step completes, is lost. The
  thread reports it and terminates the process, since a blocking call into TensorFlow cannot be interrupted.

A parameter server or chief that its scheduler restarts within that time is found again.

Private use: `monitored_session._PREEMPTION_ERRORS` (the errors that a session treats as a preemption; unchanged from
2.15 to 2.21).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from estimator_pipeline.cluster.peers import PeerWatch, grace_secs
from estimator_pipeline.compat.internals import estimator_wrapping as around
from estimator_pipeline.compat.patches import missing_peers
from estimator_pipeline.errors import TaskFailedError, WaitError
from estimator_pipeline.progress.task_events import TaskEvents
from estimator_pipeline.utils.deadline import Deadline
from estimator_pipeline.utils.logger import logger

NAME = "lost-peers"
WHAT = (
    "a training task whose peer has died exits with a message, immediately or after 60 s without an answer "
    "(ESTIMATOR_PIPELINE_PEER_SECS), instead of hanging"
)

# After an error that a lost peer may have caused: how long to wait for its port to close.
ERROR_GRACE_SECS = 10.0
# A peer's port closes before its process exits. The launcher should see the failed task exit first.
CULPRIT_FIRST_SECS = 3.0
# After the last step: the chief may write a checkpoint for long, while the others have exited normally.
LAST_STEP_GRACE_SECS = 1800.0
EXIT_CODE = 1

# Called with the message just before the process is terminated, in the watching thread.
before_exit: list[Callable[[str], None]] = []


def apply() -> None:
    around.training(_watched)


@contextlib.contextmanager
def _watched(estimator: Any, hooks: list[Any]) -> Iterator[None]:
    task, peers, synchronous = needed_peers(estimator)
    if not peers:
        yield
        return
    progress = _progress_hook()
    hooks.insert(0, progress)
    with watching(task, peers, progress), _no_new_session() if synchronous else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def watching(task: str, peers: dict[str, str], progress: Any) -> Iterator[None]:
    """Stop this task in the block when a peer is lost, by a clear error or by terminating the process.

    Args:
        task: This task's name.
        peers: The tasks that training needs: name -> address.
        progress: The progress of training: `begun`, whether all peers have answered once; `finished`, the number of
            steps; `ended`, whether the last step is complete.

    Raises:
        TaskFailedError: TensorFlow raised an error, and a peer is lost.
    """
    import tensorflow as tf

    watch = _WatchThread(task, peers, progress)
    watch.start()
    try:
        yield
    except (tf.errors.OpError, RuntimeError) as error:
        if isinstance(error, tf.compat.v1.train.NanLossDuringTrainingError):
            raise  # not caused by a peer
        lost = _gone(watch.watches)
        if lost is None:
            raise
        time.sleep(CULPRIT_FIRST_SECS)
        failure = TaskFailedError(
            f"{task} cannot continue: {lost[0]} at {lost[1]} is gone ({type(error).__name__})",
            code="cluster/peer-lost",
            hint=f"see the log of {lost[0]}; restart the job to resume from its last checkpoint",
        )
        failure.caused_by = lost[0]
        raise failure from error
    finally:
        watch.stop()


def needed_peers(estimator: Any) -> tuple[str, dict[str, str], bool]:
    """Return this task's name, the tasks that training needs (name -> address), and whether it is synchronous."""
    from tensorflow.python.distribute import collective_all_reduce_strategy

    from estimator_pipeline.compat.internals import distribute_coordinator as coordinator

    task = coordinator.training_task(estimator._config)
    if task is None:
        return "", {}, False
    jobs, this_task, _ = task
    strategy = estimator._train_distribution
    synchronous = isinstance(
        strategy,
        (
            collective_all_reduce_strategy.CollectiveAllReduceStrategy,
            collective_all_reduce_strategy.CollectiveAllReduceStrategyV1,
        ),
    )
    wanted = ("chief", "master", "worker") if synchronous else ("chief", "master", "ps")
    return (
        f"{this_task[0]}:{this_task[1]}",
        {
            f"{job}:{index}": address
            for job in wanted
            for index, address in enumerate(jobs.get(job, ()))
            if (job, index) != this_task
        },
        synchronous,
    )


def _progress_hook() -> Any:
    """Return a hook that records when the session exists, the completed steps, and the end of training."""
    import tensorflow as tf

    class Progress(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self.begun, self.finished, self.ended = False, 0, False

        def after_create_session(self, session, coord):
            # The session needs all peers. A peer may exit before the first step completes or its port is checked.
            self.begun = True

        def steps_passed(self, count: int) -> None:
            self.finished += count

        def after_run(self, run_context, run_values):
            self.finished += 1

        def end(self, session):
            self.ended = True

    return Progress()


@contextlib.contextmanager
def _no_new_session() -> Iterator[None]:
    """Let a session that loses a peer raise an error in the block, instead of being recreated."""
    from tensorflow.python.training import monitored_session

    before = monitored_session._PREEMPTION_ERRORS
    monitored_session._PREEMPTION_ERRORS = ()
    try:
        yield
    finally:
        monitored_session._PREEMPTION_ERRORS = before


def _gone(watches: list[PeerWatch]) -> tuple[str, str] | None:
    """Return the first peer that does not answer; waits a little, as an error may come before the port closes."""
    for _ in Deadline(ERROR_GRACE_SECS).polls(0.2):
        for watch in watches:
            if not watch.is_there():
                return str(watch.task), watch.address
    return None


class _WatchThread(threading.Thread):
    """Terminates this process when a peer is lost and no step completes."""

    def __init__(self, task: str, peers: dict[str, str], progress: Any) -> None:
        super().__init__(name="estimator_pipeline-lost-peers", daemon=True)
        self.task, self.progress = task, progress
        self.grace = grace_secs()
        self.watches = [PeerWatch(peer, address, grace=self.grace) for peer, address in peers.items()]
        self._stopped = threading.Event()
        self._begun, self._finished, self._since = False, 0, time.monotonic()
        self._calls = missing_peers.roll_call(task, peers)

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            lost = self._lost() or self._missing()
            if lost is not None and not self._stopped.is_set():
                self._end_process(lost)
            often = not all(watch.seen for watch in self.watches)
            self._stopped.wait(min(PeerWatch.FIRST_INTERVAL_SECS if often else 1.0, self.grace / 4))

    def _lost(self) -> WaitError | None:
        now = time.monotonic()
        # Read once, since the training thread changes them.
        begun, finished = self.progress.begun, self.progress.finished
        if (begun, finished) != (self._begun, self._finished):
            self._begun, self._finished, self._since = begun, finished, now
            for watch in self.watches:
                # It has answered TensorFlow, even if it exited before its port was checked here.
                watch.met()
        lost: tuple[float, WaitError] | None = None
        for watch in self.watches:
            try:
                watch.check("the next step")
            except WaitError as error:
                idle, silent = now - self._since, watch.silent_secs
                needed = LAST_STEP_GRACE_SECS if self.progress.ended else self.grace
                # If several are lost, report the first one: the others may have exited because of it.
                if idle > needed and silent > needed and (lost is None or silent > lost[0]):
                    lost = (silent, error)
        return None if lost is None else lost[1]

    def _missing(self) -> WaitError | None:
        """Log which tasks are missing before the session exists; return an error after the timeout."""
        if self.progress.begun or all(watch.seen for watch in self.watches) or not self._calls.due:
            return None
        try:
            line = self._calls.look_for_missing()
        except WaitError as error:
            return error
        if line is not None and not self.progress.begun:
            # The engine's tasks report their warnings to the launcher.
            logger.warning("%s", line)
        return None

    def _end_process(self, error: WaitError) -> None:
        message = f"{self.task} stops: {error}"
        for call in before_exit:
            with contextlib.suppress(Exception):
                call(message)
        TaskEvents(os.environ, self.task).ended(error, status="failed", caused_by=error.caused_by)
        print(message, file=sys.stderr, flush=True)
        sys.stdout.flush()
        # The main thread is inside TensorFlow, where an exception cannot reach it.
        os._exit(EXIT_CODE)
