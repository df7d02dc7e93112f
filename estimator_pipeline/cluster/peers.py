"""Whether the other tasks of a cluster are still there, as far as their ports can tell. Imports no TensorFlow."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping

from estimator_pipeline.cluster.tasks import Task
from estimator_pipeline.errors import ConfigError, WaitError

# How long a peer's server may be silent before it counts as gone. A busy or restarting chief is given this time.
PEER_GRACE_SECS = 60.0
PEER_GRACE_VARIABLE = "ESTIMATOR_PIPELINE_PEER_SECS"
CONNECT_SECS = 2.0


def grace_secs(environ: Mapping[str, str] | None = None) -> float:
    """Seconds of silence after which a peer counts as gone: ESTIMATOR_PIPELINE_PEER_SECS, or 60.

    Raises:
        ConfigError: the variable is no number of seconds above 0.
    """
    given = (os.environ if environ is None else environ).get(PEER_GRACE_VARIABLE, "")
    if not given:
        return PEER_GRACE_SECS
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"{PEER_GRACE_VARIABLE}={given!r} is no number of seconds above 0",
            mend=f"for example {PEER_GRACE_VARIABLE}=60, or leave it unset",
        )
    return seconds


def answers(address: str, *, timeout: float = CONNECT_SECS) -> bool:
    """Whether something listens at "host:port". The connection is closed at once and says nothing."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout):
            return True
    except OSError:
        return False


class PeerWatch:
    """Notices that a peer's server has gone, by trying its port now and then.

    A port that was never open proves nothing (it may be out of reach from here); one that was open and then refuses
    for :func:`grace_secs` does.

    Args:
        task: the peer, for the message.
        address: its "host:port".
        grace: seconds of silence after which it counts as gone; :func:`grace_secs` by default.
        startup: seconds within which it must have been seen once; None: it may be out of reach from here.
        known: whether this process has worked with it already, so that it counts as seen.
    """

    INTERVAL_SECS = 5.0
    # Until it is seen for the first time: it may live for a moment only.
    FIRST_INTERVAL_SECS = 1.0

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

    def check(self, what: str) -> None:
        """Raises WaitError when the peer was there and has been gone for longer than the grace, or never came."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (min(self.FIRST_INTERVAL_SECS, self.INTERVAL_SECS) if not self.seen else self.INTERVAL_SECS)
        if answers(self.address):
            self._last_seen = time.monotonic()
            return
        now = time.monotonic()
        if self._last_seen is None and self.startup is not None and now - self._born > self.startup:
            raise WaitError(
                f"{self.task} did not start its server at {self.address} within {self.startup:.0f} s",
                mend=f"see the log of {self.task}, and whether that address can be reached from here",
            )
        if self._last_seen is not None and now - self._last_seen > self.grace:
            raise WaitError(
                f"{self.task} at {self.address} is gone: its server answered before, and not for the last "
                f"{now - self._last_seen:.0f} s; it was waited on for {what}",
                mend=f"see the log of {self.task}; start the job again to go on from its last checkpoint",
            )
