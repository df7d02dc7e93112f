"""Stop requests to this task: SIGTERM, or the early signal of a scheduler.

A signal only sets a flag. Training checks it between two steps and stops with a checkpoint (`synchronized_stop`).
Python runs a signal handler when the main thread returns to the interpreter, which a step that waits for a peer does
not. The signal's number therefore also goes through a pipe to a thread (`signal.set_wakeup_fd`): the other tasks are
notified at once, and a task that cannot stop exits after a time limit.

Repeated signals are ignored: schedulers send them several times, and a launcher forwards them. SIGINT and SIGKILL end a
task at once, as usual. If the main thread does not return to the interpreter, a thread ends the process some seconds
after SIGINT, or at the second one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from types import FrameType

from estimator_pipeline.cluster.peers import seconds_in
from estimator_pipeline.errors import PreemptedError
from estimator_pipeline.progress.progress_file import code_of_preemption, stop_heartbeat
from estimator_pipeline.utils import startup
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.process_state import STATE

SECS_VARIABLE = "ESTIMATOR_PIPELINE_PREEMPTION_SECS"
PREEMPTION_SECS = 60.0
# Time limit for a task that waits for the others before its first step, and has nothing to save.
_START_END_SECS = 5.0
# Time limit for Ctrl-C to end a task by a KeyboardInterrupt.
_INTERRUPT_SECS = 10.0
_INTERRUPTED = 130
_SAVED = "training is saved in its last checkpoint"
# Time limit for the last messages, to a file system that may not answer.
_LAST_WORD_SECS = 5.0


def seconds_of(environ: Mapping[str, str]) -> float:
    """Return the maximum seconds from the signal to the exit: ESTIMATOR_PIPELINE_PREEMPTION_SECS, or 60.

    Raises:
        ConfigError: The variable is not a number of seconds above 0.
    """
    hint = f"for example {SECS_VARIABLE}=60, the time from the scheduler's signal to its SIGKILL"
    return seconds_in(SECS_VARIABLE, PREEMPTION_SECS, environ, hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reactions:
    """What happens when a task is asked to stop.

    Attributes:
        asked: Called once with the sender ("SIGTERM", "worker:1"), in the thread that received the request.
        saved: Returns a description of the saved progress, for the error of a task that cannot stop.
        last_word: Called with that error just before it ends the process.
    """

    asked: Callable[[str], None] = lambda by: None
    saved: Callable[[], str] = lambda: _SAVED
    last_word: Callable[[PreemptedError], None] = lambda error: None


class Preemption:
    """Receives stop requests to this task, from signals and from other tasks.

    Args:
        task: This task's name.
        signals: See `signals_of`. Signals with a handler of the program are left to the program.
        seconds: Time limit for the exit after a request.
        reactions: What happens at a request.

    Attributes:
        by: The sender of the request; None: no request.
        reactions: See above; replaced when training starts.
    """

    def __init__(
        self,
        task: str,
        *,
        signals: Sequence[signal.Signals],
        seconds: float = PREEMPTION_SECS,
        reactions: Reactions | None = None,
    ) -> None:
        self.task, self.seconds = task, seconds
        self.by: str | None = None
        self.reactions = reactions or Reactions()
        self._signals = tuple(signals)
        # Those of them that the program does not handle itself, while this object listens.
        self._ours: tuple[signal.Signals, ...] = ()
        # Held while a request is handled; and for moments, also by a thread that ends the process.
        self._asking, self._lock = threading.RLock(), threading.Lock()
        self._over = threading.Event()
        self._given_up = self._refuses = self._interrupted = False
        self._joined: Callable[[], bool] = lambda: True
        # The last signal that the main thread has handled; the state of a task that it may interrupt; its error.
        self._signalled: int | None = None
        self._reason: str | None = None
        self._raised: PreemptedError | None = None

    @property
    def asked(self) -> bool:
        """Whether this task was asked to stop. In the main thread, a signal counts as soon as its handler has run."""
        number = self._signalled
        if number is not None and threading.current_thread() is threading.main_thread():
            # The listening thread may not have run yet, or the program has replaced the wakeup descriptor.
            self.ask(signal.Signals(number).name)
        return self.by is not None

    def ask(self, by: str) -> None:
        """Ask this task to stop; the first request counts. Never called by the main thread's signal handler."""
        with self._asking:
            with self._lock:
                if self.by is not None or self._refuses or self._over.is_set():
                    return
                self.by = by
            line = "%s: %s stops training with a checkpoint, and exits within %.0f s"
            logger.warning(line, by, self.task, self.seconds)
            threading.Thread(target=self._wait_for_end, name="estimator_pipeline-preemption-end", daemon=True).start()
            self.reactions.asked(by)
            with self._lock:
                if self._reason is not None and not self._over.is_set():
                    # Only a signal can interrupt the main thread.
                    signal.pthread_kill(threading.main_thread().ident or 0, self._ours[0])

    def refuse(self) -> None:
        """Ignore later requests: this task has failed, and is about to exit."""
        with self._lock:
            self._refuses = True

    def joins(self, joined: Callable[[], bool] = lambda: False) -> None:
        """Use a short time limit while this task waits for others to join, and has nothing to save.

        The wait is over when `joined` returns True, in any case when training starts (`rearm`).
        """
        self._joined = joined

    def error(self, state: str) -> PreemptedError:
        """Return the error with which this task exits in this state."""
        by = self.by or "a signal"
        error = PreemptedError(
            f"{self.task} was asked to stop ({by}): {state}",
            hint="run the same command again: it resumes from the last checkpoint",
        )
        error.caused_by = by if ":" in by else None
        return error

    # -- listening ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals as stop requests within the block, if this is the main thread."""
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
        STATE.stop_listeners.append(self)
        thread = threading.Thread(
            target=self._listen, args=(reader,), name="estimator_pipeline-preemption", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._over.set()
                self._reason = None
            signal.set_wakeup_fd(self._before_fd)
            # Not only closed: a child that the program has forked may hold it open.
            writer.shutdown(socket.SHUT_RDWR)
            writer.close()
            thread.join()
            reader.close()
            # Last: a pending signal would kill the process. A repeated request (Slurm's SIGTERM for the step, then the
            # script's signal) must not change the exit code of a command that is about to exit.
            self._leave(ending=self.asked and startup.is_own_process())
            STATE.stop_listeners.pop()

    def rearm(self) -> None:
        """Set the handlers again when training starts: TensorFlow has replaced that of SIGTERM, and ignores it."""
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
                elif number == signal.SIGINT:
                    self._interrupt()
            if self._before_fd >= 0:
                # A loop of the program uses the same mechanism.
                with contextlib.suppress(OSError):
                    os.write(self._before_fd, numbers)

    def _interrupt(self) -> None:
        """Handle SIGINT: a KeyboardInterrupt is raised only when the main thread returns from a collective."""
        if signal.getsignal(signal.SIGINT) != signal.default_int_handler or startup.is_interactive():
            return
        seconds = 0.0 if self._interrupted else _INTERRUPT_SECS if self._joined() else _INTERRUPT_SECS / 10
        self._interrupted = True
        threading.Thread(
            target=self._end_interrupted, args=(seconds,), name="estimator_pipeline-interrupt", daemon=True
        ).start()

    def _end_interrupted(self, seconds: float) -> None:
        if self._over.wait(seconds):
            return
        error = f"{self.task} was interrupted, and exits without a new checkpoint: {_SAVED}"
        _try(lambda: print(error, file=sys.stderr, flush=True), sys.stdout.flush, stop_heartbeat)
        os._exit(_INTERRUPTED)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signalled = number
        reason, self._reason = self._reason, None
        if reason is not None:
            # The listening thread may not have run yet.
            self.by = self.by or signal.Signals(number).name
            self._raised = self.error(reason)
            raise self._raised

    @contextlib.contextmanager
    def interruptible(self, state: str) -> Iterator[None]:
        """Raise PreemptedError in the main thread at once, also before a block that has nothing to save.

        `state` is the state of the task, for the message.
        """
        self._raised = None
        is_main = threading.current_thread() is threading.main_thread()
        self._reason = state if self._ours and is_main else None
        try:
            if self.asked:
                self._reason = None
                raise self.error(state)
            yield
        except Exception as error:
            # It is raised wherever the main thread is. C++ code may convert it to a different error: a SystemError
            # about a list item that could not be created, a ValueError about an argument.
            if self._raised is None or error is self._raised:
                raise
            raise self._raised from error
        finally:
            self._reason = None

    # -- exit -----------------------------------------------------------------------------------------------------

    def _wait_for_end(self) -> None:
        early = min(self.seconds, _START_END_SECS)
        if self._over.wait(early):
            return
        if not self._joined():
            self.give_up("it waited for the other tasks, and had not started to train")
        if not self._over.wait(self.seconds - early):
            self.give_up(f"it did not stop within {self.seconds:.0f} s")

    def give_up(self, reason: str) -> None:
        """End the process, whose main thread may hang in TensorFlow because a peer is gone. Does not return.

        The exit code is that of PreemptedError: the last checkpoint is valid.
        """
        with self._lock:
            if self._over.is_set() or self._given_up:
                return
            self._given_up = True
        progress = [_SAVED]
        _try(lambda: progress.append(self.reactions.saved()))
        error = self.error(f"{reason}; {progress[-1]}")
        code = [error.exit_code]
        _try(
            lambda: self.reactions.last_word(error),
            lambda: print(error, file=sys.stderr, flush=True),
            sys.stdout.flush,
            stop_heartbeat,
            lambda: code.append(code_of_preemption(os.environ, error.exit_code)),
        )
        os._exit(code[-1])


def _try(*last_words: Callable[[], object]) -> None:
    """Call each function in a separate thread, and wait _LAST_WORD_SECS for all of them.

    Each may hang on a shared file system that is gone, which may be why this task cannot exit in a normal way.
    """
    threads = futures.ThreadPoolExecutor(len(last_words), thread_name_prefix="estimator_pipeline-last-word")
    futures.wait([threads.submit(word) for word in last_words], timeout=_LAST_WORD_SECS)


def _in_child() -> None:
    """Restore default signal handling in a forked child, which is not a task."""
    for preemption in reversed(STATE.stop_listeners):
        with contextlib.suppress(ValueError, OSError):
            signal.set_wakeup_fd(-1)
            preemption._leave(ending=False)
    STATE.stop_listeners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
