"""A check over the network that tasks that wait for each other in a folder actually share it.

If the file of a task is missing, the task has not started yet, or it uses a different folder of the same name. If the
hosts are known, the waiting task queries it: each task listens at its derived port, and both sides of a connection
exchange their identity. A task that answers, but whose file does not appear, has a different folder.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["APART_SECS", "Neighbours", "listen"]

APART_SECS = 10.0
"""Seconds until the file of a task that answers must appear, which allows for the delay of a network file system."""
_EVERY_SECS = 2.0
_TIMEOUT_SECS = 2.0
_MOST_BYTES = 4096
# The number of missing tasks that are queried in a round: one answer is enough.
_ASKED = 16


def listen(port: int) -> socket.socket | None:
    """Return a socket that listens at a port (0: a free one) on IPv4 and IPv6; None if the port is in use."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError:
        return None


class Neighbours:
    """The exchange of identities among the tasks of one start, until `close`.

    Args:
        job: The identifier of this start.
        rank: The rank of this task.
        folder: The folder in which this task waits.
        addresses: "host:port" of each task by rank; this task listens at its port if it is free.
    """

    def __init__(self, job: str, *, rank: int, folder: str, addresses: Sequence[str]) -> None:
        self._identity = {"job": job, "rank": rank, "folder": folder, "host": socket.gethostname()}
        self._addresses = tuple(addresses)
        self._missing: tuple[int, ...] = ()
        self._heard: dict[int, tuple[float, Mapping[str, Any]]] = {}
        self._done = threading.Event()
        # A task that cannot listen can still query others.
        server = listen(int(addresses[rank].rpartition(":")[2]))
        self._threads = [threading.Thread(target=self._ask, name="estimator_pipeline-neighbours", daemon=True)]
        if server is not None:
            self._threads.append(threading.Thread(target=self._answer, args=(server,), daemon=True))
        for thread in self._threads:
            thread.start()

    def apart(self, missing: Sequence[int]) -> str | None:
        """Describe a task that has answered for `APART_SECS` and is still missing in the folder, or return None.

        Args:
            missing: The ranks without a file.
        """
        self._missing = tuple(missing)
        now = time.monotonic()
        for rank, (since, identity) in sorted(self._heard.items()):
            if rank not in missing:
                self._heard.pop(rank, None)
            elif now - since > APART_SECS:
                return f"rank {rank} waits on {identity['host']} in {identity['folder']}, but its file is missing here"
        return None

    def close(self) -> None:
        """Stop listening and querying."""
        self._done.set()
        for thread in self._threads:
            thread.join(0.5)  # A thread that is connecting ends after its timeout.

    def _answer(self, server: socket.socket) -> None:
        server.settimeout(0.2)
        with server:
            while not self._done.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = server.accept()
                    with connection:
                        connection.settimeout(_TIMEOUT_SECS)
                        connection.sendall(self._line())
                        self._hear(connection)

    def _ask(self) -> None:
        while not self._done.wait(_EVERY_SECS):
            for rank in self._missing[:_ASKED]:
                host, _, port = self._addresses[rank].rpartition(":")
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_SECS) as connection,
                ):
                    connection.sendall(self._line())
                    self._hear(connection)
                if self._done.is_set():
                    return

    def _line(self) -> bytes:
        return json.dumps(self._identity).encode() + b"\n"

    def _hear(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            text = lines.readline(_MOST_BYTES)
        try:
            identity = json.loads(text)
            known = identity["job"] == self._identity["job"] and 0 <= identity["rank"] < len(self._addresses)
        except (ValueError, KeyError, TypeError):
            return  # A different program listens there.
        if known and identity["rank"] != self._identity["rank"]:
            shown = {
                name: "".join(c for c in str(identity.get(name))[:300] if c.isprintable())
                for name in ("folder", "host")
            }
            self._heard.setdefault(identity["rank"], (time.monotonic(), shown))
