"""Whether tasks that wait for each other in a shared folder share it: they ask each other by the network.

A task that misses another one in the folder cannot tell one that has not started yet from one that has another folder
under that name. Where the hosts are known it asks: each listens at the port that a derived cluster would have, and who
connects says who it is and is told the same. One that answers, and whose file does not appear, has another folder.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["APART_SECS", "Neighbours"]

APART_SECS = 10.0
"""How long the file of a task that answers may take to appear: a network file system may show it a moment later."""
_EVERY_SECS = 2.0
_TIMEOUT_SECS = 2.0
_MOST_BYTES = 4096
# So many of the missing tasks are asked in a round: one that answers is enough.
_ASKED = 16


class Neighbours:
    """What the tasks of one start say of themselves by the network, until :meth:`close`.

    Args:
        job: what only the tasks of this start have in common.
        rank: this task's.
        folder: where it waits.
        addresses: "host:port" of each task by rank; this task listens at its own port, if nobody else does.
    """

    def __init__(self, job: str, *, rank: int, folder: str, addresses: Sequence[str]) -> None:
        self._own = {"job": job, "rank": rank, "folder": folder, "host": socket.gethostname()}
        self._addresses = tuple(addresses)
        self._missing: tuple[int, ...] = ()
        self._heard: dict[int, tuple[float, Mapping[str, Any]]] = {}
        self._done = threading.Event()
        server = self._listen(int(addresses[rank].rpartition(":")[2]))
        self._threads = [threading.Thread(target=self._ask, name="estimator_pipeline-neighbours", daemon=True)]
        if server is not None:
            self._threads.append(threading.Thread(target=self._answer, args=(server,), daemon=True))
        for thread in self._threads:
            thread.start()

    def apart(self, missing: Sequence[int]) -> str | None:
        """Who has said for :data:`APART_SECS` to be there, and is still missing in the folder: in words, with its host.

        Args:
            missing: the ranks of which there is no file.
        """
        self._missing = tuple(missing)
        now = time.monotonic()
        for rank, (since, said) in sorted(self._heard.items()):
            if rank not in missing:
                self._heard.pop(rank, None)
            elif now - since > APART_SECS:
                return f"rank {rank} waits on {said['host']} in {said['folder']}, and nothing of it is seen here"
        return None

    def close(self) -> None:
        """Listens and asks no longer."""
        self._done.set()
        for thread in self._threads:
            thread.join(0.5)  # One that connects ends by itself.

    def _listen(self, port: int) -> socket.socket | None:
        both = socket.has_dualstack_ipv6()
        try:
            server = socket.create_server(
                ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
            )
        except OSError:
            return None  # It can still ask, and be told.
        server.settimeout(0.2)
        return server

    def _answer(self, server: socket.socket) -> None:
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
        return json.dumps(self._own).encode() + b"\n"

    def _hear(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            text = lines.readline(_MOST_BYTES)
        try:
            said = json.loads(text)
            known = said["job"] == self._own["job"] and 0 <= said["rank"] < len(self._addresses)
        except (ValueError, KeyError, TypeError):
            return  # Another program listens there.
        if known and said["rank"] != self._own["rank"]:
            shown = {
                name: "".join(c for c in str(said.get(name))[:300] if c.isprintable()) for name in ("folder", "host")
            }
            self._heard.setdefault(said["rank"], (time.monotonic(), shown))
