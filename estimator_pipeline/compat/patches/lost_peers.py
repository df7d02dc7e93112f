"""A training task whose peer has died ends, with a message, within a stated time.

In tf.estimator it waits for ever: it takes the loss of its peer for a preemption, makes a new session, restores the
checkpoint, and then waits at "Running local_init_op" for somebody who is not there. Here

* under MultiWorkerMirroredStrategy, whose lost peers can never join again, the error ends training at once, and names
  the task that is gone;
* where TensorFlow itself does not notice, a thread tries the ports of those tasks without which training cannot go on:
  under MultiWorkerMirroredStrategy all others, in a parameter-server cluster the parameter servers and the chief. One
  that answered and then is silent for 60 s (ESTIMATOR_PIPELINE_PEER_SECS), while no step is finished, is lost. The
  thread says so and ends the process, as nothing else can end a call into TensorFlow that waits.

A parameter server or a chief that its scheduler starts again within that time is found again, as ever.

Private use: `monitored_session._PREEMPTION_ERRORS` (what a session takes for a preemption; the same from 2.15 to
2.21).
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
from estimator_pipeline.utils.logger import logger

NAME = "lost-peers"
WHAT = (
    "a training task whose peer has died ends with a message, at once or after 60 s of silence "
    "(ESTIMATOR_PIPELINE_PEER_SECS), and does not wait for ever"
)

# After an error that a lost peer may be the reason of: how long its port may take to show it.
ERROR_GRACE_SECS = 10.0
# A peer's port closes before its process has ended. Who watches all of them should see the one that failed end first.
CULPRIT_FIRST_SECS = 3.0
# After the last step: the chief may write a checkpoint for long, while the others have ended rightly.
LAST_STEP_GRACE_SECS = 1800.0
EXIT_CODE = 1

# Called with the message just before the process is ended, in the watching thread.
before_exit: list[Callable[[str], None]] = []


def apply() -> None:
    around.training(_watched)


@contextlib.contextmanager
def _watched(estimator: Any, hooks: list[Any]) -> Iterator[None]:
    own, peers, synchronous = needed_peers(estimator)
    if not peers:
        yield
        return
    progress = _progress_hook()
    hooks.insert(0, progress)
    with watching(own, peers, progress), _no_new_session() if synchronous else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def watching(own: str, peers: dict[str, str], progress: Any) -> Iterator[None]:
    """In the block, a lost peer ends this task: its error is told as what it is, and its silence ends the process.

    Args:
        own: this task's name.
        peers: the tasks it cannot train without: name -> address.
        progress: how training comes on: `begun`, whether all peers have answered once, `finished`, the number of
            steps, and `ended`, whether it has left the last.

    Raises:
        TaskFailedError: TensorFlow raised an error, and a peer is gone.
    """
    import tensorflow as tf

    watch = _WatchThread(own, peers, progress)
    watch.start()
    try:
        yield
    except (tf.errors.OpError, RuntimeError) as error:
        if isinstance(error, tf.compat.v1.train.NanLossDuringTrainingError):
            raise  # no peer's fault
        lost = _gone(watch.watches)
        if lost is None:
            raise
        time.sleep(CULPRIT_FIRST_SECS)
        told = TaskFailedError(
            f"{own} cannot train on: {lost[0]} at {lost[1]} is gone ({type(error).__name__})",
            code="cluster/peer-lost",
            hint=f"see the log of {lost[0]}; start the job again to go on from its last checkpoint",
        )
        told.caused_by = lost[0]
        raise told from error
    finally:
        watch.stop()


def needed_peers(estimator: Any) -> tuple[str, dict[str, str], bool]:
    """This task's name, the tasks it cannot train without (name -> address), and whether training is synchronous."""
    from tensorflow.python.distribute import collective_all_reduce_strategy

    from estimator_pipeline.compat.internals import distribute_coordinator as coordinator

    task = coordinator.training_task(estimator._config)
    if task is None:
        return "", {}, False
    jobs, own, _ = task
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
        f"{own[0]}:{own[1]}",
        {
            f"{job}:{index}": address
            for job in wanted
            for index, address in enumerate(jobs.get(job, ()))
            if (job, index) != own
        },
        synchronous,
    )


def _progress_hook() -> Any:
    """A hook that knows when the session stands, how many steps were finished, and when the last one was left."""
    import tensorflow as tf

    class Progress(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            self.begun, self.finished, self.ended = False, 0, False

        def after_create_session(self, session, coord):
            # No session without all of them. A peer may go before the first step is finished, or its port was tried.
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
    """In the block, a session that loses a peer raises, and is not made anew."""
    from tensorflow.python.training import monitored_session

    before = monitored_session._PREEMPTION_ERRORS
    monitored_session._PREEMPTION_ERRORS = ()
    try:
        yield
    finally:
        monitored_session._PREEMPTION_ERRORS = before


def _gone(watches: list[PeerWatch]) -> tuple[str, str] | None:
    """The first peer that does not answer, given it a moment: an error may come before the port is closed."""
    deadline = time.monotonic() + ERROR_GRACE_SECS
    while True:
        for watch in watches:
            if not watch.is_there():
                return str(watch.task), watch.address
        if time.monotonic() > deadline:
            return None
        time.sleep(0.2)


class _WatchThread(threading.Thread):
    """Ends this process when a peer is lost and no step is finished any more."""

    def __init__(self, own: str, peers: dict[str, str], progress: Any) -> None:
        super().__init__(name="estimator_pipeline-lost-peers", daemon=True)
        self.own, self.progress = own, progress
        self.grace = grace_secs()
        self.watches = [PeerWatch(peer, address, grace=self.grace) for peer, address in peers.items()]
        self._stopped = threading.Event()
        self._begun, self._finished, self._since = False, 0, time.monotonic()
        self._calls = missing_peers.roll_call(own, peers)

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
        # Read once: the training thread goes on.
        begun, finished = self.progress.begun, self.progress.finished
        if (begun, finished) != (self._begun, self._finished):
            self._begun, self._finished, self._since = begun, finished, now
            for watch in self.watches:
                # It has answered TensorFlow, even if it went before its port was ever tried here.
                watch.met()
        lost: tuple[float, WaitError] | None = None
        for watch in self.watches:
            try:
                watch.check("the next step")
            except WaitError as error:
                standing, silent = now - self._since, watch.silent_secs
                needed = LAST_STEP_GRACE_SECS if self.progress.ended else self.grace
                # Of several the one that went first: the others may have ended because of it.
                if standing > needed and silent > needed and (lost is None or silent > lost[0]):
                    lost = (silent, error)
        return None if lost is None else lost[1]

    def _missing(self) -> WaitError | None:
        """Says who has not come yet, before the session stands; the error once that has taken too long."""
        if self.progress.begun or all(watch.seen for watch in self.watches) or not self._calls.due:
            return None
        try:
            line = self._calls.look_for_missing()
        except WaitError as error:
            return error
        if line is not None and not self.progress.begun:
            # What the engine's tasks warn of, they tell the launcher by themselves.
            logger.warning("%s", line)
        return None

    def _end_process(self, error: WaitError) -> None:
        message = f"{self.own} ends: {error}"
        for call in before_exit:
            with contextlib.suppress(Exception):
                call(message)
        TaskEvents(os.environ, self.own).ended(error, status="failed", caused_by=error.caused_by)
        print(message, file=sys.stderr, flush=True)
        sys.stdout.flush()
        # The main thread is inside TensorFlow, and no exception reaches it there.
        os._exit(EXIT_CODE)
