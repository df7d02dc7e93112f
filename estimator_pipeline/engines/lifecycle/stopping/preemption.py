"""Whether this task was asked to end: SIGTERM, or the early signal of a scheduler.

A signal only sets a flag; training looks at it between two steps and stops with a checkpoint
(:mod:`~estimator_pipeline.engines.lifecycle.stopping.synchronized_stop`). Python runs a signal's handler when the main
thread comes back to the interpreter, and a step that waits for a peer does not come back. So the signal's number also
goes into a pipe that a thread reads (`signal.set_wakeup_fd`): the other tasks hear of it at once, and a task that
cannot stop ends all the same, within a stated time.

A signal that comes again changes nothing: schedulers repeat themselves, and a launcher forwards what they say.
SIGINT and SIGKILL end a task at once, as ever; where the main thread does not come back to the interpreter, a thread
ends the process some seconds after SIGINT, or at the second one.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from estimator_pipeline.errors import ConfigError, PreemptedError
from estimator_pipeline.progress.preemption_signals import signals_of
from estimator_pipeline.progress.progress_file import code_of_preemption, stop_heartbeat
from estimator_pipeline.utils import startup
from estimator_pipeline.utils.logger import logger

__all__ = [
    "PREEMPTION_SECS",
    "SECS_VARIABLE",
    "Preemption",
    "seconds_of",
    "signals_of",
]

SECS_VARIABLE = "ESTIMATOR_PIPELINE_PREEMPTION_SECS"
PREEMPTION_SECS = 60.0
# A task that waits for the others before its first step has nothing to save.
_START_END_SECS = 5.0
# How long Ctrl-C has to end a task as a KeyboardInterrupt.
_INTERRUPT_SECS = 10.0
_INTERRUPTED = 130
# For last words to a file system that may not answer.
_LAST_WORD_SECS = 5.0
# For a thread that has been woken to have its turn, on a machine with more threads than cores.
_TURN_SECS = 5.0


def seconds_of(environ: Mapping[str, str]) -> float:
    """Seconds from the signal to the end at the latest: ESTIMATOR_PIPELINE_PREEMPTION_SECS, or 60.

    Raises:
        ConfigError: the variable is no number of seconds above 0.
    """
    given = environ.get(SECS_VARIABLE, "")
    if not given:
        return PREEMPTION_SECS
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"{SECS_VARIABLE}={given!r} is no number of seconds above 0",
            code="environment/bad-value",
            hint=f"for example {SECS_VARIABLE}=60, the time from the scheduler's signal to its SIGKILL",
        )
    return seconds


class Preemption:
    """Listens for the wish that this task should end, whoever has it.

    Args:
        task: this task's name.
        signals: see :func:`signals_of`. One for which the program has set a handler of its own is left to it.
        seconds: after which a task that was asked ends, wherever it stands.
        on_asked: called once with who asked ("SIGTERM", "worker:1"), in the thread that heard it.
        last_word: called with the error just before :meth:`give_up` ends the process.
        stands: where training stands, in words, for that error.

    Attributes:
        by: who asked; None: nobody has.
        seconds: as given.
    """

    def __init__(
        self,
        task: str,
        *,
        signals: Sequence[signal.Signals],
        seconds: float = PREEMPTION_SECS,
        on_asked: Callable[[str], None] = lambda by: None,
        last_word: Callable[[PreemptedError], None] = lambda error: None,
        stands: Callable[[], str] = lambda: "training stands as last saved",
    ) -> None:
        self.task, self.seconds = task, seconds
        self.by: str | None = None
        self._signals, self._on_asked, self._last_word = tuple(signals), on_asked, last_word
        self._stands = stands
        self._lock = threading.Lock()
        self._interruptible, self._what = False, ""
        self._raised: PreemptedError | None = None
        self._ours: tuple[signal.Signals, ...] = ()
        self._over = threading.Event()
        self._given_up = self._refuses = False
        self._signalled: int | None = None
        self._taken_up = threading.Event()
        self._interrupted = False
        self._joined: Callable[[], bool] = lambda: True

    @property
    def asked(self) -> bool:
        """Whether this task should end.

        A signal that has reached the main thread counts in that thread from then on: the thread that listens has been
        woken, and if it has not had its turn yet it is waited for.
        """
        number = self._signalled
        if number is None or self._over.is_set() or threading.current_thread() is not threading.main_thread():
            return self.by is not None
        if not self._taken_up.wait(_TURN_SECS):
            # Nobody woke it: the program has put a wakeup descriptor of its own in the place of ours.
            self._taken_up.set()
            self.ask(signal.Signals(number).name)
        return self.by is not None

    def ask(self, by: str) -> None:
        """Asks it to end; the first word counts. Never called by the main thread's signal handler."""
        with self._lock:
            if self.by is not None or self._refuses or self._over.is_set():
                return
            self.by = by
        logger.warning("%s: %s stops training with a checkpoint, and ends within %.0f s", by, self.task, self.seconds)
        threading.Thread(target=self._wait_for_end, name="estimator_pipeline-preemption-end", daemon=True).start()
        self._on_asked(by)
        with self._lock:
            if self._interruptible and self._ours and not self._over.is_set():
                # Nothing but a signal reaches the main thread in the middle of something.
                signal.pthread_kill(threading.main_thread().ident or 0, self._ours[0])

    def refuse(self) -> None:
        """This task has failed by itself, and is about to end: who asks it to end from now on does not change that."""
        with self._lock:
            self._refuses = True

    def joins(self, joined: Callable[[], bool] = lambda: False) -> None:
        """From now on this task waits for others to join, and has nothing to save: asked to end, it does so soon.

        Args:
            joined: whether that is over. It is in any case when training begins (:meth:`rearm`).
        """
        self._joined = joined

    def error(self, what: str) -> PreemptedError:
        """The error with which this task ends.

        Args:
            what: what has become of it.
        """
        by = self.by or "a signal"
        error = PreemptedError(
            f"{self.task} was asked to end ({by}): {what}",
            hint="give the same command again: it goes on from the last checkpoint",
        )
        error.caused_by = by if ":" in by else None
        return error

    # -- listening ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """In the block, the signals ask this task to end. On another thread than the main one they do what they did."""
        if threading.current_thread() is not threading.main_thread():
            try:
                yield
            finally:
                self._over.set()
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._ours = tuple(number for number in self._signals if signal.getsignal(number) == signal.SIG_DFL)
        self.rearm()
        _active.append(weakref.ref(self))
        thread = threading.Thread(
            target=self._listen, args=(reader,), name="estimator_pipeline-preemption", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._over.set()
                self._interruptible = False
            signal.set_wakeup_fd(self._before_fd)
            writer.close()
            thread.join()
            reader.close()
            # Last: a signal that is under way would end the process. One that repeats the wish (Slurm's SIGTERM for the
            # step, then the script's own signal) must not take its exit code from a command that is about to end.
            self._leave(ending=self.asked and startup.is_own_process())
            _active.pop()

    def rearm(self) -> None:
        """Training begins. Sets the handlers once more: TensorFlow has one of its own for SIGTERM, which drops it."""
        self._joined = lambda: True
        if threading.current_thread() is threading.main_thread():
            for number in self._ours:
                signal.signal(number, self._handle)

    def _leave(self, *, ending: bool) -> None:
        for number in self._ours:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_IGN if ending else signal.SIG_DFL)

    def _listen(self, reader: socket.socket) -> None:
        while numbers := reader.recv(64):
            for number in numbers:
                if number in self._ours:
                    self.ask(signal.Signals(number).name)
                    self._taken_up.set()
                elif number == signal.SIGINT:
                    self._interrupt()
            if self._before_fd >= 0:
                # Somebody else's loop listens in the same way.
                with contextlib.suppress(OSError):
                    os.write(self._before_fd, numbers)

    def _interrupt(self) -> None:
        """KeyboardInterrupt comes when the main thread is back in the interpreter, which a collective keeps it from."""
        if signal.getsignal(signal.SIGINT) != signal.default_int_handler or startup.is_interactive():
            return
        if self._interrupted:
            self._end_interrupted()
        self._interrupted = True
        threading.Thread(target=self._wait_for_interrupt, name="estimator_pipeline-interrupt", daemon=True).start()

    def _wait_for_interrupt(self) -> None:
        if not self._over.wait(_INTERRUPT_SECS if self._joined() else _INTERRUPT_SECS / 10):
            self._end_interrupted()

    def _end_interrupted(self) -> None:
        error = f"{self.task} was interrupted, and is left where it stands: the last checkpoint counts"
        _try(lambda: print(error, file=sys.stderr, flush=True), sys.stdout.flush, stop_heartbeat)
        os._exit(_INTERRUPTED)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signalled = number
        if self._interruptible:
            self._interruptible = False
            # The listening thread may not have run yet.
            self.by = self.by or signal.Signals(number).name
            self._raised = self.error(self._what)
            raise self._raised

    @contextlib.contextmanager
    def interruptible(self, what: str) -> Iterator[None]:
        """In the block, which has nothing to save, the wish raises PreemptedError in the main thread at once.

        Args:
            what: for the message: what has become of the task.

        Raises:
            PreemptedError: this task is asked to end, or was before.
        """
        self._what, self._raised = what, None
        self._interruptible = bool(self._ours) and threading.current_thread() is threading.main_thread()
        try:
            if self.asked:
                self._interruptible = False
                raise self.error(what)
            yield
        except Exception as error:
            # It is raised wherever the main thread is. What is written in C++ may make another of it: a SystemError
            # about a list's item that could not be made, a ValueError about an argument.
            if self._raised is None or error is self._raised:
                raise
            raise self._raised from error
        finally:
            self._interruptible = False

    # -- the end --------------------------------------------------------------------------------------------------

    def _wait_for_end(self) -> None:
        early = min(self.seconds, _START_END_SECS)
        if self._over.wait(early):
            return
        if not self._joined():
            self.give_up("it waited for the other tasks, and had not begun to train")
        if not self._over.wait(self.seconds - early):
            self.give_up(f"it did not come to its end within {self.seconds:.0f} s")

    def give_up(self, what: str) -> None:
        """Ends the process, whose main thread may wait inside TensorFlow for a peer that is gone. Does not return.

        The exit code is that of PreemptedError: the last checkpoint stands.
        """
        with self._lock:
            if self._over.is_set() or self._given_up:
                return
            self._given_up = True
        stands = ["training stands as last saved"]
        _try(lambda: stands.append(self._stands()))
        error = self.error(f"{what}; {stands[-1]}")
        code = [error.exit_code]
        _try(
            lambda: self._last_word(error),
            lambda: print(error, file=sys.stderr, flush=True),
            sys.stdout.flush,
            stop_heartbeat,
            lambda: code.append(code_of_preemption(os.environ, error.exit_code)),
        )
        os._exit(code[-1])


def _try(*last_words: Callable[[], object]) -> None:
    """Does each in a thread of its own, and waits _LAST_WORD_SECS for them all.

    Each may wait for a shared file system that is gone, which may be why this task cannot end in another way.
    """

    def run(word: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):
            word()

    threads = [
        threading.Thread(target=run, args=(word,), name="estimator_pipeline-last-word", daemon=True)
        for word in last_words
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _LAST_WORD_SECS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


# Those that listen now, the innermost last; for children that are forked meanwhile.
_active: list[weakref.ref[Any]] = []


def _in_child() -> None:
    """A forked child is no task: it ends by SIGTERM, and its signals are not ours."""
    for reference in reversed(_active):
        preemption = reference()
        if preemption is not None:
            with contextlib.suppress(ValueError, OSError):
                signal.set_wakeup_fd(-1)
                preemption._leave(ending=False)
    _active.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
