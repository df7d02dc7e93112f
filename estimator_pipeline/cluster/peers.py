"""Checks that the other tasks of a cluster are alive, through their ports. Imports no TensorFlow."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping

from estimator_pipeline.cluster.tasks import Task
from estimator_pipeline.errors import ConfigError, WaitError
from estimator_pipeline.utils.logger import logger

# Seconds without an answer after which a peer counts as lost; also the time for a busy or restarting chief.
PEER_GRACE_SECS = 60.0
PEER_GRACE_VARIABLE = "ESTIMATOR_PIPELINE_PEER_SECS"
# Seconds that a task waits at its start for the other tasks.
START_SECS = 1800.0
START_VARIABLE = "ESTIMATOR_PIPELINE_START_SECS"
# Missing tasks are logged once a minute.
LINE_SECS = 60.0
CONNECT_SECS = 2.0


def grace_secs(environ: Mapping[str, str] | None = None) -> float:
    """Return the seconds after which a silent peer counts as lost: ESTIMATOR_PIPELINE_PEER_SECS, or 60.

    Raises:
        ConfigError: The variable is not a number of seconds above 0.
    """
    return seconds_in(PEER_GRACE_VARIABLE, PEER_GRACE_SECS, environ)


def start_secs(environ: Mapping[str, str] | None = None) -> float:
    """Return the seconds that a task waits at its start for the others: ESTIMATOR_PIPELINE_START_SECS, or 1800.

    Raises:
        ConfigError: The variable is not a number of seconds above 0.
    """
    return seconds_in(START_VARIABLE, START_SECS, environ)


def seconds_in(variable: str, default: float, environ: Mapping[str, str] | None, *, hint: str | None = None) -> float:
    """Return the value of a variable that is a number of seconds above 0, or the default if it is not set.

    Raises:
        ConfigError: It is a different value; with this hint.
    """
    text = (os.environ if environ is None else environ).get(variable, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"{variable}={text!r} is not a number of seconds above 0",
            code="environment/bad-value",
            hint=hint or f"set for example {variable}={default:.0f}, or leave it unset",
        )
    return seconds


def answers(address: str, *, timeout: float = CONNECT_SECS) -> bool:
    """Return whether something listens at "host:port". The connection is closed immediately without sending data."""
    return probe(address, timeout=timeout)[0]


def probe(address: str, *, timeout: float = CONNECT_SECS, word: float = 0.0) -> tuple[bool, bool]:
    """Return whether something listens at "host:port", and whether the process sends data.

    The kernel accepts connections for a process that is stopped or frozen. TensorFlow's gRPC server sends a first
    message to every client, from threads that neither a long step nor Python's interpreter blocks.

    Args:
        address: The address.
        timeout: Seconds for the connection.
        word: Seconds to wait for the first message; 0 to not wait.
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
    """Detects a lost or hung peer by connecting to its port at intervals.

    A port that was never open proves nothing, because it may be unreachable from here. A peer is lost if its port was
    open and then refuses connections for `grace_secs`. It hangs if its server has sent data before and then sends
    none for as long: its process or machine is stopped, although the kernel accepts connections.

    Args:
        task: The peer, for the message.
        address: The address of the peer: "host:port".
        grace: Seconds without an answer after which it counts as lost; defaults to `grace_secs`.
        startup: Seconds within which the peer must answer once, with a warning every minute; None if it may be
            unreachable from here.
        known: Whether this process has already worked with the peer, so that it counts as seen.
    """

    INTERVAL_SECS = 5.0
    # Until the peer is seen for the first time, as it may live only briefly, and while it only accepts connections.
    FIRST_INTERVAL_SECS = 0.25
    # The timeout of a server's first message. A server that has never sent one gets a few trials: it may not be gRPC.
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
        # Consecutive trials in which the port accepted the connection and the server sent nothing.
        self._mute = 0

    def met(self) -> None:
        """Mark the peer as seen, although its port may not have been tried yet."""
        if self._last_seen is None:
            self._last_seen = time.monotonic()

    @property
    def seen(self) -> bool:
        """Whether the peer has answered once."""
        return self._last_seen is not None

    @property
    def silent_secs(self) -> float:
        """Seconds since the last answer; 0 before the first."""
        return 0.0 if self._last_seen is None else time.monotonic() - self._last_seen

    def is_there(self) -> bool:
        """Return whether the peer answers now; with a message, if its server has ever sent one."""
        if self._speaks:
            connected, spoke = probe(self.address, word=self.WORD_SECS)
            self._mute = self._mute + 1 if connected and not spoke else 0
            return spoke
        word = self.FIRST_WORD_SECS if self._trials < self._TRIALS else 0.0
        connected, self._speaks = probe(self.address, word=word)
        self._trials += connected
        return connected

    def check(self, awaited: str) -> None:
        """Raise WaitError if the peer has been lost for longer than the grace period, or never started.

        Args:
            awaited: What this task waits for, for the message: "the next step".
        """
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
            self._miss(awaited, now, self.startup)
        # A single missing message may be due to a busy machine.
        if self._last_seen is None or now - self._last_seen <= self.grace or self._mute == 1:
            return
        if self._mute:
            raise self._error(
                f"{self.task} at {self.address} hangs: its port accepts connections, but its process has sent nothing "
                f"for the last {now - self._last_seen:.0f} s; this task waited for {awaited}",
                hint=f"check whether {self.task} was stopped (SIGSTOP, a debugger) or its machine hangs, and kill it; "
                "start the job again to resume from its last checkpoint",
            )
        raise self._error(
            f"{self.task} at {self.address} is gone: its server answered before, but not for the last "
            f"{now - self._last_seen:.0f} s; this task waited for {awaited}",
            hint=f"see the log of {self.task}; start the job again to resume from its last checkpoint",
        )

    def _error(self, message: str, *, hint: str) -> WaitError:
        error = WaitError(message, hint=hint)
        error.caused_by = str(self.task)
        return error

    def _miss(self, awaited: str, now: float, startup: float) -> None:
        """Log or raise that the peer has not started yet."""
        waited = now - self._born
        if waited > startup:
            raise self._error(
                f"{self.task} did not start its server at {self.address} within {startup:.0f} s",
                hint=f"see the log of {self.task}, and whether that address can be reached from here; if the start "
                f"takes longer, raise {START_VARIABLE}, or run.start_timeout_secs in the job file",
            )
        if now >= self._next_line:
            self._next_line += LINE_SECS
            logger.warning(
                "%s has not started: nothing answers at %s. Waiting for %s, for %.0f s so far (timeout %.0f s, %s)",
                *(self.task, self.address, awaited, waited, startup, START_VARIABLE),
            )
