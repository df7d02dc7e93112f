"""A rendezvous of all tasks of a job in a folder that they should share.

Each task writes its facts to `MODEL_DIR/.doctor-ID/RANK.json`, with a random token of this process, and reads the
files of the others. If every task has read every token, the folder is shared. Each task then connects to the ports of
the others, tries to take a lock that rank 0 holds, and compares clocks. It writes the results to `RANK.results.json`.
A task that has read all results writes `RANK.done`; rank 0 removes the folder after that.

Clocks: a task reads a message at time r of its clock, which was written at time w of the writer's clock. Reading comes
after writing, so its clock is ahead by at most r - w. The opposite direction gives the other bound. Messages are
written several times to tighten the bounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.cluster.port_agreement import own_address
from estimator_pipeline.doctor.cluster.network import connect_to
from estimator_pipeline.errors import ClusterError, WaitError

__all__ = ["Participant", "RendezvousResult", "join", "skew_bounds"]

_POLL_SECS = (0.02, 0.5)
_TICKS = 4  # How often each task writes its clock.


@dataclass(frozen=True)
class Participant:
    """One task of a rendezvous.

    Attributes:
        rank: The task's rank, from 0.
        size: The number of tasks.
        name: The task's name, for messages.
        address: Where this task will listen; None uses a free port of this host.
    """

    rank: int
    size: int
    name: str
    address: str | None = None


@dataclass
class RendezvousResult:
    """The outcome of a rendezvous; all but `rank` is the same on every task.

    Attributes:
        rank: This task's rank.
        facts: The facts of each task, by rank.
        results: What each task found out about the others, by rank: `silent` (rank -> why its port does not answer),
            `lock` (the result of locking what rank 0 holds) and `delays` (rank -> the largest possible lead of this
            task's clock, in seconds).
    """

    rank: int
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    results: dict[int, dict[str, Any]] = field(default_factory=dict)

    def name(self, rank: int) -> str:
        """Return a task's name."""
        return str(self.facts[rank].get("name", rank))


def skew_bounds(results: Mapping[int, Mapping[str, Any]], rank: int, other: int) -> tuple[float, float] | None:
    """Return bounds of the seconds by which the clock of `rank` is ahead of that of `other`; None if not known."""
    most = results[rank].get("delays", {}).get(str(other))
    least = results[other].get("delays", {}).get(str(rank))
    return None if most is None or least is None else (-float(least), float(most))


def join(
    folder: Path,
    participant: Participant,
    facts: Mapping[str, Any],
    *,
    timeout: float,
    connect_timeout: float = 5.0,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> RendezvousResult:
    """Exchange facts with the other tasks.

    Args:
        folder: A folder that only this start of the job uses; it is created, and removed at the end.
        participant: This task.
        facts: What the other tasks compare; JSON values.
        timeout: Seconds for the whole exchange.
        connect_timeout: Seconds for one connection.
        environ: Where ESTIMATOR_PIPELINE_HOST is looked up.
        clock: Returns this task's time.

    Raises:
        ClusterError: The folder cannot be used, two processes have the same rank, or the number of tasks differs.
        WaitError: Some tasks did not come in time; the message names them.
    """
    files = _Files(folder, participant, timeout, clock)
    with contextlib.ExitStack() as undo:
        undo.callback(files.clean_up)
        listener, address = _listen(participant, environ or {})
        if listener is not None:
            undo.callback(listener.close)
        if participant.rank == 0:
            undo.enter_context(_locked(folder / "lock"))
        name, size = participant.name, participant.size
        mine = {**facts, "name": name, "host": socket.gethostname(), "address": address, "size": size}
        files.write("json", {**mine, "made": files.created})
        results = None
        while results is None:
            every = files.wait("json")
            files.check(every)
            # All tasks are present; from here on, only unanswered connections take time.
            files.extend(timeout + 3 * connect_timeout * (1 + size // 32))
            words = {str(rank): document["word"] for rank, document in every.items()}
            ticks = (files.exchange("tick.json", {"tick": n, "words": words}, n) for n in range(_TICKS))
            if not all(ticks):
                continue
            mine = {"silent": _silent(every, participant.rank, connect_timeout), "lock": files.try_lock()}
            results = files.exchange("results.json", {**mine, "delays": files.delays, "words": words})
        files.finish(words)
    return RendezvousResult(participant.rank, every, results)


class _Files:
    """The files of one rendezvous, as one task sees them."""

    def __init__(self, folder: Path, participant: Participant, timeout: float, clock: Callable[[], float]) -> None:
        self.folder, self.participant, self.timeout, self.clock = folder, participant, timeout, clock
        self.deadline = time.monotonic() + timeout
        self.word = secrets.token_hex(8)
        self.delays: dict[str, float] = {}
        self.finished = False
        # How many folders, this one and its parents, the rendezvous creates, and later removes.
        self.created = sum(not path.exists() for path in (folder, *folder.parents))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot(error) from error

    def extend(self, seconds: float) -> None:
        """Extend the deadline to so many seconds from now."""
        self.deadline = max(self.deadline, time.monotonic() + seconds)

    def write(self, kind: str, document: Mapping[str, Any]) -> None:
        """Write a file atomically, with this task's token and the time of its clock."""
        path = self.folder / f"{self.participant.rank}.{kind}"
        aside = self.folder / f".{path.name}.{self.word}"
        try:
            if kind == "json":
                # A different start that gives up may remove the folder while it is empty.
                self.folder.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps({**document, "word": self.word, "clock": self.clock()}), encoding="utf-8")
            aside.replace(path)
        except OSError as error:
            raise self._cannot(error) from error

    def read(self, rank: int, kind: str) -> dict[str, Any] | None:
        try:
            document = json.loads((self.folder / f"{rank}.{kind}").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # Missing or incomplete on this host; it is read again.
        if not isinstance(document, dict):
            return None
        self.created = max(self.created, int(document.get("made", 0)))
        lead = self.clock() - float(document.get("clock", 0.0))
        self.delays[str(rank)] = min(lead, self.delays.get(str(rank), lead))
        return document

    def wait(
        self, kind: str, fits: Callable[[dict[str, Any]], bool] = lambda document: True
    ) -> dict[int, dict[str, Any]]:
        """Wait for the files of all tasks that match, and return them by rank."""
        documents = self._wait(kind, fits, None)
        assert documents is not None
        return documents

    def exchange(self, kind: str, document: Mapping[str, Any], tick: int = 0) -> dict[int, dict[str, Any]] | None:
        """Write this task's file, and wait for the others' files with the same tokens and at least this tick.

        Returns:
            The files by rank; None if a task's token has changed, so that its first file was of an earlier start.
        """
        self.write(kind, document)
        words = document["words"]
        return self._wait(kind, lambda other: other.get("words") == words and other.get("tick", tick) >= tick, words)

    def _wait(
        self, kind: str, fits: Callable[[dict[str, Any]], bool], words: Mapping[str, str] | None
    ) -> dict[int, dict[str, Any]] | None:
        pause, longest = _POLL_SECS
        while True:
            with contextlib.suppress(OSError):
                os.listdir(self.folder)  # Refreshes what a network file system has cached as absent.
            documents = self._read_all(kind)
            self._check_rank(documents)
            documents = {rank: document for rank, document in documents.items() if fits(document)}
            if len(documents) == self.participant.size:
                return documents
            if words is not None:
                now = self._read_all("json")
                self._check_rank(now)
                if any(document["word"] != words[str(rank)] for rank, document in now.items()):
                    return None
            if time.monotonic() > self.deadline:
                raise self._missing([rank for rank in range(self.participant.size) if rank not in documents])
            time.sleep(pause)
            pause = min(pause * 1.3, longest)

    def _read_all(self, kind: str) -> dict[int, dict[str, Any]]:
        documents = {rank: self.read(rank, kind) for rank in range(self.participant.size)}
        return {rank: document for rank, document in documents.items() if document is not None}

    def check(self, documents: Mapping[int, Mapping[str, Any]]) -> None:
        size = self.participant.size
        other = next((rank for rank, document in documents.items() if document.get("size") != size), None)
        if other is not None:
            raise ClusterError(
                f"{self.participant.name} expects {size} tasks, and {documents[other].get('name')} expects "
                f"{documents[other].get('size')}",
                code="cluster/contradiction",
                found=f"the files in {self.folder}",
                hint="start every task with the same job file, TF_CONFIG and options",
            )

    def try_lock(self) -> str:
        """Try to take the lock that rank 0 holds: "kept", "not kept", or "none" (no locks)."""
        if self.participant.rank == 0:
            return "kept"
        import fcntl

        try:
            with open(self.folder / "lock", "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return "not kept"
        except BlockingIOError:
            return "kept"
        except OSError:
            return "none"

    def finish(self, words: Mapping[str, str]) -> None:
        """Report that this task has read all; rank 0 waits for the others until the deadline."""
        self.finished = True
        with contextlib.suppress(ClusterError, WaitError):
            self.write("done", {"words": words})
            if self.participant.rank == 0:
                self.wait("done", lambda document: document.get("words") == words)

    def clean_up(self) -> None:
        """Remove all files on rank 0 or, where the exchange failed, this task's files."""
        mine = (f"{self.participant.rank}.", f".{self.participant.rank}.")
        for path in self._paths():
            is_mine = path.name.startswith(mine) or (path.name == "lock" and self.participant.rank == 0)
            if (is_mine and not self.finished) or (self.finished and self.participant.rank == 0):
                with contextlib.suppress(OSError):
                    path.unlink()
        for folder in (self.folder, *self.folder.parents)[: max(1, self.created)]:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _paths(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except OSError:
            return []

    def _check_rank(self, documents: Mapping[int, Mapping[str, Any]]) -> None:
        mine = documents.get(self.participant.rank)
        if mine is not None and mine.get("word") != self.word:
            raise ClusterError(
                f"two processes are {self.participant.name} (rank {self.participant.rank} of {self.participant.size})",
                code="cluster/contradiction",
                found=f"this process on {socket.gethostname()}, and a different process that writes to {self.folder}",
                hint="set a different TF_CONFIG for each task, or start each task only once",
            )

    def _missing(self, ranks: list[int]) -> WaitError:
        there = self.participant.size - len(ranks)
        return WaitError(
            f"{there} of {self.participant.size} tasks met in {self.folder} within {self.timeout:.0f} s",
            found=f"missing: rank {', '.join(map(str, ranks[:16]))}{', ...' if len(ranks) > 16 else ''}",
            hint="start `doctor --shared` on every task at about the same time, with the same arguments; if all were "
            "started, they do not share this folder: mount it on every host",
        )

    def _cannot(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"the tasks cannot meet in {self.folder}",
            code="cluster/folder-not-shared",
            found=str(error),
            hint="set a model_dir that every task can write to",
        )


@contextlib.contextmanager
def _locked(path: Path):
    """Hold a lock on the file, if the file system has locks."""
    try:
        import fcntl

        file = open(path, "wb")  # noqa: SIM115
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        file.close()


def _listen(participant: Participant, environ: Mapping[str, str]) -> tuple[socket.socket | None, str | None]:
    """Return a socket that listens where the task will, or None if the port is in use, and its address."""
    port = int(participant.address.rpartition(":")[2]) if participant.address else 0
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        listener = socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError:
        return None, participant.address
    if participant.address:
        return listener, participant.address
    host = own_address(environ, known=None, hostname=socket.gethostname())
    port = listener.getsockname()[1]
    return listener, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _silent(every: Mapping[int, Mapping[str, Any]], this_rank: int, timeout: float) -> dict[str, str]:
    """Return the ranks whose port does not answer, each with the reason."""
    addresses = {rank: facts.get("address") for rank, facts in every.items() if rank != this_rank}
    others = [(rank, str(address)) for rank, address in addresses.items() if address]
    answers = connect_to([address for _, address in others], timeout=timeout)
    return {str(rank): why for (rank, _), why in zip(others, answers, strict=True) if why}
