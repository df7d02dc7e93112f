"""Synchronized stop: all tasks of a job leave training after the same step, with a checkpoint of that step.

Synchronous training stops after the same step on all workers. Without a request this costs a lock and an addition per
step, and no message. A thread on each task waits for a message; then:

1. A task that was asked to stop notifies the chief, and the chief notifies all tasks.
2. Each task answers with the number of its current step. It starts no further step until the decision.
3. The chief chooses the largest of these numbers and publishes it. Every task can finish that step, and no task starts
   a later one.

In multi-step execution (`multi_step`), a task answers with the last step of its current call. All tasks make the same
calls, so the largest of these numbers is the end of a call on each of them.

Messages are always waited for, never polled once and treated as missing. The tasks may therefore be any number of steps
apart (steps are queued on a GPU), and messages may be slow.

In asynchronous training (parameter servers) each worker stops after its current step and reports this. The chief writes
the checkpoint when all have stopped, so that it includes every update. The chief does not wait for a worker that has
not answered in time; its later updates are lost (docs/guides/preemption.md states the bound).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from estimator_pipeline.cluster.peers import answers
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.core.stopping.preemption import Preemption
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.process_state import STATE

# Time limit for a task to answer a message; a thread answers, independently of training.
ANSWER_SECS = 15.0
_FAREWELL_SECS = 5.0
_POLL_SECS = 1.0
# Time limit for one wait for a request, which usually never comes; then the task waits again.
_REQUEST_SECS = 24 * 3600.0
_OVER = "over"
# The sender of a request that ends training as complete.
_EARLY = "early stopping"


class StopChannel(Protocol):
    """Short messages between the tasks of one training. A name has one value, which may be posted again."""

    def post(self, name: str, value: str) -> None:
        """Post a message."""

    def wait(self, name: str, seconds: float) -> str | None:
        """Wait for a message and return it; None after a timeout, or after `wake`."""

    def wake(self, name: str) -> None:
        """End this task's wait for a name that only this task waits for."""


class CoordinationServiceChannel(StopChannel):
    """Uses the coordination service of MultiWorkerMirroredStrategy, which needs no shared files."""

    def __init__(self) -> None:
        # A process may train several times, as all tasks do: a counter makes the names of each training unique.
        STATE.trainings += 1
        self._place = f"preemption/{STATE.trainings}"

    def post(self, name: str, value: str) -> None:
        coordination.publish_first(f"{self._place}/{name}", value)

    def wait(self, name: str, seconds: float) -> str | None:
        value = coordination.wait_for(f"{self._place}/{name}", seconds)
        return None if value == _OVER else value

    def wake(self, name: str) -> None:
        self.post(name, _OVER)


class RendezvousChannel(StopChannel):
    """Uses files in the model directory. Files of an earlier training are ignored."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._woken: set[str] = set()
        self._bell = threading.Condition()

    def post(self, name: str, value: str) -> None:
        self._rendezvous.write(_file(name), {"value": value})

    def wait(self, name: str, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        while True:
            document = self._rendezvous.read_of_session(_file(name))
            if document is not None:
                return str(document["value"])
            with self._bell:
                if name in self._woken or time.monotonic() > deadline:
                    return None
                self._bell.wait(_POLL_SECS)

    def wake(self, name: str) -> None:
        with self._bell:
            self._woken.add(name)
            self._bell.notify_all()


def _file(name: str) -> str:
    return f"preemption/{name.replace('/', '-').replace(':', '-')}.json"


class SingleProcessStop:
    """Stops a single-process job after the current step.

    Args:
        preemption: Has the stop request.

    Attributes:
        reached: Returns the global step that training has reached, as far as this task knows; set by the engine.
    """

    def __init__(self, preemption: Preemption) -> None:
        self._preemption = preemption
        self._ends_early = False
        self.reached: Callable[[], int] = lambda: 0

    def begin(self) -> None:
        """Prepare for training, when it starts."""

    def ask(self) -> None:
        """Handle a stop request to this task."""

    def end_early(self) -> None:
        """Stop training on all tasks, after the same step, as complete; called on the chief, in any thread."""
        self._ends_early = True

    def after_step(self, steps: int = 1, coming: int = 1) -> bool:
        """Return whether training stops here; called after each step, or after each call of several steps.

        Args:
            steps: Number of steps since the last call of this method.
            coming: Number of steps until the next call of this method; the same on all tasks.
        """
        return self._preemption.asked or self._ends_early

    def close(self) -> None:
        """Release resources, when training is over."""


class SynchronizedStop(SingleProcessStop):
    """Stops one training task of several.

    Args:
        preemption: Has the stop request to this task.
        task: This task's name.
        chief: The chief's name.
        addresses: Addresses of all training tasks: name -> "host:port".
        channel: Messages to the other tasks.
        synchronous: Whether all tasks stop after the same step.
    """

    def __init__(
        self,
        preemption: Preemption,
        *,
        task: str,
        chief: str,
        addresses: Mapping[str, str],
        channel: StopChannel,
        synchronous: bool,
    ) -> None:
        super().__init__(preemption)
        self._task, self._is_chief = task, task == chief
        self._others = {other: address for other, address in addresses.items() if other != task}
        self._channel, self._synchronous = channel, synchronous
        # The message with which a request reaches this task.
        self._call = "ask" if self._is_chief else f"word/{task}"
        self._lock = threading.Lock()
        # The steps that this task has finished, and those at the end of the call that it has started.
        self._finished, self._bound = 0, 1
        self._trains = False
        self._heard, self._decided = threading.Event(), threading.Event()
        self._last: int | None = None
        self._thread = threading.Thread(target=self._listen, name="estimator_pipeline-stopping", daemon=True)

    def begin(self) -> None:
        with self._lock:
            self._trains = True
        self._thread.start()
        if self._preemption.asked:
            self.ask()

    def ask(self) -> None:
        self._request(self._task)

    def end_early(self) -> None:
        self._request(_EARLY)

    def _request(self, by: str) -> None:
        with self._lock:
            if not self._trains or self._heard.is_set():
                return
        # Not in the caller's thread, which listens for signals.
        threading.Thread(target=self._ask, args=(by,), name="estimator_pipeline-stopping-ask", daemon=True).start()

    def _ask(self, by: str) -> None:
        try:
            self._channel.post("ask", by)
        except Exception as error:
            self._preemption.give_up(f"the chief cannot be notified ({type(error).__name__})")
        if not self._heard.wait(2 * ANSWER_SECS):
            self._preemption.give_up(f"the chief has not answered for {2 * ANSWER_SECS:.0f} s")

    def _listen(self) -> None:
        """Wait for the request, and take part in the decision; runs in a thread."""
        # When the service stops, as at the end of a job, TensorFlow raises an error.
        with contextlib.suppress(Exception):
            while (by := self._channel.wait(self._call, _REQUEST_SECS)) is None:
                if not self._trains:
                    return
            try:
                self._take_part(by)
            except Exception as error:
                self._preemption.give_up(f"the workers could not agree on a last step ({type(error).__name__})")

    def _take_part(self, by: str) -> None:
        with self._lock:
            # From now on this task's answer does not change.
            self._heard.set()
        if self._is_chief:
            for task in self._others:
                self._channel.post(f"word/{task}", by)
        if by == _EARLY:
            self._ends_early = True
        else:
            self._preemption.ask(by)
        if not self._synchronous:
            return
        self._answer()
        if self._is_chief:
            numbers = [self._bound]
            for task in self._others:
                number = self._answer_of(task, time.monotonic() + ANSWER_SECS)
                if number is None:
                    self._preemption.give_up(f"{task} does not answer, so there is no step that all can stop at")
                    return
                numbers.append(number)
            self._channel.post("decision", str(max(numbers)))
            self._last = max(numbers)
        else:
            # The chief waits for the answers of all tasks first.
            decision = self._channel.wait("decision", ANSWER_SECS * (1 + len(self._others)))
            if decision is None:
                self._preemption.give_up("the chief has not published the step to stop at")
                return
            self._last = int(decision)
        self._decided.set()

    def _answer(self) -> None:
        self._channel.post(f"answer/{self._task}", str(self._bound if self._synchronous else self._finished))

    def _answer_of(self, task: str, deadline: float) -> int | None:
        """Return the number that a task has answered; None after a timeout, or if the task has exited."""
        while (left := deadline - time.monotonic()) > 0:
            answer = self._channel.wait(f"answer/{task}", min(left, 2.0))
            if answer is not None:
                return int(answer)
            if not answers(self._others[task]):
                # It may have answered and then exited.
                answer = self._channel.wait(f"answer/{task}", 0.2)
                return None if answer is None else int(answer)
        return None

    def after_step(self, steps: int = 1, coming: int = 1) -> bool:
        """Return whether training stops here, which is the same on all tasks."""
        with self._lock:
            self._finished += steps
            if self._synchronous and not self._heard.is_set():
                self._bound = self._finished + coming
                return False
        if self._synchronous:
            # The thread decides, or ends the process.
            self._decided.wait(self._preemption.seconds)
            return self._last is not None and self._finished >= self._last
        if not (self._preemption.asked or self._ends_early):
            return False
        if not self._is_chief:
            self._answer()
            return True
        # The chief waits until the other workers have stopped, for a limited time.
        self._heard.wait(ANSWER_SECS)
        deadline = time.monotonic() + ANSWER_SECS
        for task in self._others:
            if self._answer_of(task, deadline) is None:
                logger.warning("%s has not reported that it has stopped: its further updates are lost", task)
        return True

    def close(self) -> None:
        """Finish a decision in progress; training is over on this task."""
        with self._lock:
            trained, self._trains = self._trains, False
        if not trained:
            return
        # Training may be over because the chief is gone: a message to it must not block.
        thread = threading.Thread(target=self._post_last_answer, name="estimator_pipeline-stopping-end", daemon=True)
        thread.start()
        thread.join(_FAREWELL_SECS)
        if not thread.is_alive():
            self._thread.join(ANSWER_SECS)

    def _post_last_answer(self) -> None:
        with contextlib.suppress(Exception):
            # The chief then does not wait for a task that has left training.
            self._answer()
        with contextlib.suppress(Exception):
            self._channel.wake(self._call)


def stopping_for(context: TaskContext) -> SingleProcessStop:
    """Return the object that stops this training task on request."""
    cluster = context.tf_config.cluster
    if cluster is None or (len(cluster.training_tasks) <= 1 and cluster.num_ps == 0):
        return SingleProcessStop(context.preemption)
    by_service = cluster.num_ps == 0 and coordination.available()
    return SynchronizedStop(
        context.preemption,
        task=str(context.task),
        chief=str(cluster.chief),
        addresses={str(task): cluster.address(task) for task in cluster.training_tasks},
        channel=CoordinationServiceChannel() if by_service else RendezvousChannel(context.rendezvous),
        synchronous=cluster.num_ps == 0,
    )
