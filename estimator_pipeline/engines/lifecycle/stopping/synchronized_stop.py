"""Stopping on request: every task of a job leaves training together, and the checkpoint is of that step.

**Synchronous training** stops after the same step on all workers. In normal running this costs a lock and an addition
a step, and no message. A thread on each task waits for a word; then:

1. A task that is asked to end says so to the chief, whose word goes to all.
2. Each task answers with the number of the step that it has bound itself to: the one that it is in. From now on it
   binds itself to no further one, and waits after it for the decision.
3. The chief decides for the largest of these numbers, and says it. Everybody can finish that step, as nobody has
   bound himself to less than what he has begun; and nobody begins another one.

Where a call makes several steps (:mod:`~estimator_pipeline.engines.estimator.multi_step`) a task binds itself to the
last one of its call. All tasks make the same calls, so the largest of these numbers is the end of a call of each of
them.

Every message is waited for until it is there; none is looked for once and taken as missing. So it does not matter how
far the tasks are apart (steps are queued on a GPU), nor how slow the messages are.

**Asynchronous training** (parameter servers): each worker stops after its own step, says so, and the chief writes the
checkpoint when all have, so that no update comes after it. A worker that has not answered in time is not waited for:
what it adds after that is lost (docs/guides/preemption.md states the bound).
"""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Mapping

from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.cluster.peers import answers
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.lifecycle.stopping.preemption import Preemption
from estimator_pipeline.utils.logger import logger

__all__ = [
    "ANSWER_SECS",
    "CoordinationServiceChannel",
    "RendezvousChannel",
    "SingleProcessStop",
    "StopChannel",
    "SynchronizedStop",
]

# How long a task has to answer a message: its thread does so whatever its training is at.
ANSWER_SECS = 15.0
_FAREWELL_SECS = 5.0
_POLL_SECS = 1.0
# Without an end: the wait for a word that mostly never comes.
_EVER_SECS = 10.0 * 24 * 3600
_OVER = "over"


class StopChannel(abc.ABC):
    """Short messages between the tasks of one training. A name is said once; all that may ask say the same."""

    @abc.abstractmethod
    def post(self, name: str, value: str) -> None:
        """Says it."""

    @abc.abstractmethod
    def wait(self, name: str, seconds: float) -> str | None:
        """What was said under the name, as soon as it is; None where nothing was, or this mail has been closed."""

    @abc.abstractmethod
    def wake(self, name: str) -> None:
        """Ends this task's own wait for a name that only this task waits for."""


class CoordinationServiceChannel(StopChannel):
    """Through the coordination service of MultiWorkerMirroredStrategy, which needs no shared files."""

    # A process may train several times, all tasks as often: the names of each training are its own.
    _trainings: Counter[str] = Counter()

    def __init__(self) -> None:
        self._trainings["all"] += 1
        self._place = f"preemption/{self._trainings['all']}"

    def post(self, name: str, value: str) -> None:
        coordination.publish_first(f"{self._place}/{name}", value)

    def wait(self, name: str, seconds: float) -> str | None:
        found = coordination.wait_for(f"{self._place}/{name}", seconds)
        return None if found == _OVER else found

    def wake(self, name: str) -> None:
        self.post(name, _OVER)


class RendezvousChannel(StopChannel):
    """Through files in the model directory. What an earlier training has left there is not read.

    Args:
        rendezvous: of the run.
        names: all names that this task may wait for.
    """

    def __init__(self, rendezvous: Rendezvous, names: list[str]) -> None:
        self._rendezvous = rendezvous
        self._stale = {name: rendezvous.read(self._file(name)) for name in names}
        self._woken: set[str] = set()
        self._bell = threading.Condition()

    @staticmethod
    def _file(name: str) -> str:
        return f"preemption/{name.replace('/', '-').replace(':', '-')}.json"

    def post(self, name: str, value: str) -> None:
        self._rendezvous.write(self._file(name), {"value": value})

    def wait(self, name: str, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        while True:
            found = self._rendezvous.read(self._file(name))
            if found is not None and found != self._stale.get(name):
                return str(found["value"])
            with self._bell:
                if name in self._woken or time.monotonic() > deadline:
                    return None
                self._bell.wait(_POLL_SECS)

    def wake(self, name: str) -> None:
        with self._bell:
            self._woken.add(name)
            self._bell.notify_all()


class SingleProcessStop:
    """A process by itself: it stops after the step that it is in.

    Args:
        preemption: says whether it should.
    """

    def __init__(self, preemption: Preemption) -> None:
        self._preemption = preemption

    def begin(self) -> None:
        """Training begins."""

    def ask(self) -> None:
        """This task was asked to end."""

    def after_step(self, steps: int = 1, coming: int = 1) -> bool:
        """Called after each step, or after each call of several: whether training stops here.

        Args:
            steps: how many were made since it was last called.
            coming: how many are made until it is called again; the same on all tasks.
        """
        return self._preemption.asked

    def close(self) -> None:
        """Training is over."""


class SynchronizedStop(SingleProcessStop):
    """One training task of several.

    Args:
        preemption: of this task.
        own: this task's name.
        chief: the chief's.
        addresses: of all training tasks, by name: name -> "host:port".
        channel: to the others.
        synchronous: whether all tasks stop after the same step.
    """

    def __init__(
        self,
        preemption: Preemption,
        *,
        own: str,
        chief: str,
        addresses: Mapping[str, str],
        channel: StopChannel,
        synchronous: bool,
    ) -> None:
        super().__init__(preemption)
        self._own, self._is_chief = own, own == chief
        self._others = {task: address for task, address in addresses.items() if task != own}
        self._channel, self._synchronous = channel, synchronous
        self._lock = threading.Lock()
        self._finished, self._bound = 0, 1
        self._begun = self._awake = self._answered = self._closed = False
        self._heard, self._decided = threading.Event(), threading.Event()
        self._last: int | None = None
        self._thread = threading.Thread(target=self._listen, name="estimator_pipeline-stopping", daemon=True)

    @classmethod
    def names(cls, own: str, tasks: list[str]) -> list[str]:
        """What a task may wait for."""
        return ["ask", "decision", f"word/{own}", *(f"answer/{task}" for task in tasks)]

    def begin(self) -> None:
        self._thread.start()
        with self._lock:
            self._begun = True
        if self._preemption.asked:
            self.ask()

    def ask(self) -> None:
        with self._lock:
            if not self._begun or self._awake or self._closed:
                return
        # Not in the caller's thread, which listens for signals.
        threading.Thread(target=self._ask, name="estimator_pipeline-stopping-ask", daemon=True).start()

    def _ask(self) -> None:
        try:
            self._channel.post("ask", self._own)
        except Exception as error:
            self._preemption.give_up(f"the chief cannot be told ({type(error).__name__})")
        if not self._heard.wait(2 * ANSWER_SECS):
            self._preemption.give_up(f"the chief has not answered for {2 * ANSWER_SECS:.0f} s")

    def _listen(self) -> None:
        """The thread: waits for the word, and takes part in the decision."""
        # A service that goes away, as it does at the end of a job, says so with an error of TensorFlow's.
        with contextlib.suppress(Exception):
            by = self._channel.wait("ask" if self._is_chief else f"word/{self._own}", _EVER_SECS)
            if by is None:
                return
            self._heard.set()
            try:
                self._take_part(by)
            except Exception as error:
                self._preemption.give_up(f"the workers could not agree on a last step ({type(error).__name__})")

    def _take_part(self, by: str) -> None:
        if self._is_chief:
            for task in self._others:
                self._channel.post(f"word/{task}", by)
        with self._lock:
            self._awake, bound = True, self._bound
        self._preemption.ask(by)
        if not self._synchronous:
            return
        self._answer(bound)
        if self._is_chief:
            numbers = [bound]
            for task in self._others:
                number = self._answer_of(task, time.monotonic() + ANSWER_SECS)
                if number is None:
                    self._preemption.give_up(f"{task} does not answer, so there is no step that all can stop at")
                    return
                numbers.append(number)
            self._channel.post("decision", str(max(numbers)))
            self._last = max(numbers)
        else:
            # The chief waits for everybody's answer before.
            said = self._channel.wait("decision", ANSWER_SECS * (1 + len(self._others)))
            if said is None:
                self._preemption.give_up("the chief has not said at which step to stop")
                return
            self._last = int(said)
        self._decided.set()

    def _answer(self, number: int) -> None:
        with self._lock:
            if self._answered:
                return
            self._answered = True
        self._channel.post(f"answer/{self._own}", str(number))

    def _answer_of(self, task: str, deadline: float) -> int | None:
        """The number that a task has answered with; None: it has not in time, or is gone."""
        while (left := deadline - time.monotonic()) > 0:
            said = self._channel.wait(f"answer/{task}", min(left, 2.0))
            if said is not None:
                return int(said)
            if not answers(self._others[task]):
                # It may have answered and gone since.
                said = self._channel.wait(f"answer/{task}", 0.2)
                return None if said is None else int(said)
        return None

    def after_step(self, steps: int = 1, coming: int = 1) -> bool:
        """The same; where it stops, it does on all tasks."""
        with self._lock:
            self._finished += steps
            if self._synchronous and not self._awake:
                self._bound = self._finished + coming
                return False
        if not self._synchronous:
            if not self._preemption.asked:
                return False
            if self._is_chief:
                self._wait_for_others()
            else:
                self._answer(self._finished)
            return True
        # The thread decides, or ends the process.
        self._decided.wait(self._preemption.seconds)
        return self._last is not None and self._finished >= self._last

    def _wait_for_others(self) -> None:
        """Until the other workers stand still, for a bounded time."""
        self._heard.wait(ANSWER_SECS)
        deadline = time.monotonic() + ANSWER_SECS
        for task in self._others:
            if self._answer_of(task, deadline) is None:
                logger.warning("%s has not said that it stands still: what it adds from now on is lost", task)

    def close(self) -> None:
        """Training is over on this task. A decision that is under way is brought to its end."""
        with self._lock:
            self._closed = True
            if not self._begun:
                return
        # Training may be over because the chief is gone, and a message to it is not waited for.
        farewell = threading.Thread(target=self._say_farewell, name="estimator_pipeline-stopping-end", daemon=True)
        farewell.start()
        farewell.join(_FAREWELL_SECS)
        if not farewell.is_alive():
            self._thread.join(ANSWER_SECS)

    def _say_farewell(self) -> None:
        with contextlib.suppress(Exception):
            # The chief need not wait for a task that has left; it cannot stop earlier than it did.
            self._answer(self._bound if self._synchronous else self._finished)
        with contextlib.suppress(Exception):
            self._channel.wake("ask" if self._is_chief else f"word/{self._own}")


def stopping_for(preemption: Preemption, *, tf_config: TFConfig, rendezvous: Rendezvous) -> SingleProcessStop:
    """How a training task stops on request.

    Args:
        preemption: of this task.
        tf_config: which task this is.
        rendezvous: of the run.
    """
    cluster, own = tf_config.cluster, str(tf_config.task)
    if cluster is None or (len(cluster.training_tasks) <= 1 and cluster.num_ps == 0):
        return SingleProcessStop(preemption)
    addresses = {str(task): cluster.address(task) for task in cluster.training_tasks}
    channel: StopChannel
    if cluster.num_ps == 0 and coordination.available():
        channel = CoordinationServiceChannel()
    else:
        channel = RendezvousChannel(rendezvous, SynchronizedStop.names(own, list(addresses)))
    return SynchronizedStop(
        preemption,
        own=own,
        chief=str(cluster.chief),
        addresses=addresses,
        channel=channel,
        synchronous=cluster.num_ps == 0,
    )
