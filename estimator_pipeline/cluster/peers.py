"""Whether the other tasks of a cluster are still there, as far as their ports can tell. Imports no TensorFlow."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping

from estimator_pipeline.cluster.tasks import Task
from estimator_pipeline.errors import ConfigError, WaitError
from estimator_pipeline.utils.logger import logger

# How long a peer's server may be silent before it counts as gone. A busy or restarting chief is given this time.
PEER_GRACE_SECS = 60.0
PEER_GRACE_VARIABLE = "ESTIMATOR_PIPELINE_PEER_SECS"
# How long a task waits at its start for the others to come.
START_SECS = 1800.0
START_VARIABLE = "ESTIMATOR_PIPELINE_START_SECS"
# From the first minute on, who is missing is said once a minute.
LINE_SECS = 60.0
CONNECT_SECS = 2.0


def grace_secs(environ: Mapping[str, str] | None = None) -> float:
    """Seconds of silence after which a peer counts as gone: ESTIMATOR_PIPELINE_PEER_SECS, or 60.

    Raises:
        ConfigError: the variable is no number of seconds above 0.
    """
    return _seconds(PEER_GRACE_VARIABLE, PEER_GRACE_SECS, environ)


def start_secs(environ: Mapping[str, str] | None = None) -> float:
    """Seconds that a task waits at its start for the others to come: ESTIMATOR_PIPELINE_START_SECS, or 1800.

    Raises:
        ConfigError: the variable is no number of seconds above 0.
    """
    return _seconds(START_VARIABLE, START_SECS, environ)


def _seconds(variable: str, default: float, environ: Mapping[str, str] | None) -> float:
    given = (os.environ if environ is None else environ).get(variable, "")
    if not given:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"{variable}={given!r} is no number of seconds above 0",
            code="environment/bad-value",
            hint=f"for example {variable}={default:.0f}, or leave it unset",
        )
    return seconds


def answers(address: str, *, timeout: float = CONNECT_SECS) -> bool:
    """Whether something listens at "host:port". The connection is closed at once and says nothing."""
    return probe(address, timeout=timeout)[0]


def probe(address: str, *, timeout: float = CONNECT_SECS, word: float = 0.0) -> tuple[bool, bool]:
    """Whether something listens at "host:port", and whether a process speaks there.

    The kernel takes a connection for a process that is stopped, or whose machine has frozen it. A server of
    TensorFlow's (gRPC) says a first word to whoever connects, by threads that neither a long step nor Python's
    interpreter keeps from it.

    Args:
        address: where.
        timeout: seconds for the connection.
        word: seconds for its first word; 0: none is waited for.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout) as connection:
            if not word:
                return True, False
            connection.settimeout(word)
            try:
                return True, bool(connection.recv(1))
            except OSError:
                return True, False
    except OSError:
        return False, False


class PeerWatch:
    """Notices that a peer's server has gone or stands still, by trying its port now and then.

    A port that was never open proves nothing (it may be out of reach from here); one that was open and then refuses
    for :func:`grace_secs` does. So does a server that has spoken once and then says nothing for as long: its process
    is stopped, or its machine, though the kernel takes connections for it.

    Args:
        task: the peer, for the message.
        address: its "host:port".
        grace: seconds of silence after which it counts as gone; :func:`grace_secs` by default.
        startup: seconds within which it must have been seen once, with a warning a minute until then; None: it may be
            out of reach from here.
        known: whether this process has worked with it already, so that it counts as seen.
    """

    INTERVAL_SECS = 5.0
    # Until it is seen for the first time: it may live for a moment only. And while a connection is all it gives.
    FIRST_INTERVAL_SECS = 0.25
    # For the first word of a server. Until it has said one, it is waited for in a few trials: it may be another kind.
    WORD_SECS = 5.0
    FIRST_WORD_SECS = 2.0
    _TRIALS = 3

    def __init__(
        self,
        task: Task | str,
        address: str,
        *,
        grace: float | None = None,
        startup: float | None = None,
        known: bool = False,
    ) -> None:
        self.task, self.address, self.startup = task, address, startup
        self.grace = grace_secs() if grace is None else grace
        self._born = time.monotonic()
        self._last_seen: float | None = self._born if known else None
        self._next = 0.0
        self._next_line = self._born + LINE_SECS
        self._speaks, self._trials = False, 0
        # Trials in a row in which the port answered, and the server did not.
        self._mute = 0

    def met(self) -> None:
        """It is known to have been there by now, though its port may not have been tried yet."""
        if self._last_seen is None:
            self._last_seen = time.monotonic()

    @property
    def seen(self) -> bool:
        """Whether it has answered once."""
        return self._last_seen is not None

    @property
    def silent_secs(self) -> float:
        """Seconds since it was last heard; 0 where it was never heard."""
        return 0.0 if self._last_seen is None else time.monotonic() - self._last_seen

    def is_there(self) -> bool:
        """Whether it answers now: by its server's first word, where it has ever said one."""
        if self._speaks:
            connected, spoke = probe(self.address, word=self.WORD_SECS)
            self._mute = self._mute + 1 if connected and not spoke else 0
            return spoke
        word = self.FIRST_WORD_SECS if self._trials < self._TRIALS else 0.0
        connected, self._speaks = probe(self.address, word=word)
        self._trials += connected
        return connected

    def check(self, what: str) -> None:
        """Raises WaitError when the peer was there and has been gone for longer than the grace, or never came."""
        now = time.monotonic()
        if now < self._next:
            return
        there = self.is_there()
        often = self._mute or not (there or self.seen)
        self._next = now + (min(self.FIRST_INTERVAL_SECS, self.INTERVAL_SECS) if often else self.INTERVAL_SECS)
        now = time.monotonic()
        if there:
            self._last_seen = now
            return
        if self._last_seen is None and self.startup is not None:
            self._miss(what, now, self.startup)
        # One word that is missed, on a busy machine, is none yet.
        if self._last_seen is None or now - self._last_seen <= self.grace or self._mute == 1:
            return
        if self._mute:
            raise self._error(
                f"{self.task} at {self.address} stands still: its port answers, and its process has said nothing for "
                f"the last {now - self._last_seen:.0f} s; it was waited on for {what}",
                hint=f"see whether {self.task} was stopped (SIGSTOP, a debugger) or its machine stands still, and end "
                "it; start the job again to go on from its last checkpoint",
            )
        raise self._error(
            f"{self.task} at {self.address} is gone: its server answered before, and not for the last "
            f"{now - self._last_seen:.0f} s; it was waited on for {what}",
            hint=f"see the log of {self.task}; start the job again to go on from its last checkpoint",
        )

    def _error(self, what: str, *, hint: str) -> WaitError:
        error = WaitError(what, hint=hint)
        error.caused_by = str(self.task)
        return error

    def _miss(self, what: str, now: float, startup: float) -> None:
        """It has not come so far."""
        waited = now - self._born
        if waited > startup:
            raise self._error(
                f"{self.task} did not start its server at {self.address} within {startup:.0f} s",
                hint=f"see the log of {self.task}, and whether that address can be reached from here; where a start "
                f"takes longer, give it more seconds: {START_VARIABLE}, or run.start_timeout_secs of a job file",
            )
        if now >= self._next_line:
            self._next_line += LINE_SECS
            logger.warning(
                "%s has not come: nothing answers at its port %s. It is waited on for %s, for %.0f s so far "
                "(given up after %.0f s, %s)",
                *(self.task, self.address, what, waited, startup, START_VARIABLE),
            )
