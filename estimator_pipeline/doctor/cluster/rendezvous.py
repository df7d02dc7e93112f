"""The job's tasks meet in a folder that they should share, and leave nothing behind.

Each task writes what the others should know into `MODEL_DIR/.doctor-ID/RANK.json`, with a random word that only this
start of this process has, and reads the others'. That all of them have read each other's words is the proof that the
folder is shared. Then each tries what takes two: it connects to the ports of the others, tries a lock that rank 0
holds, and compares clocks; it tells what came of it in `RANK.told.json`. When each has all of these, rank 0 takes the
folder away, after the others have said in `RANK.done` that they have read it.

**Clocks.** A task that reads a message at the time r of its own clock, written at the time w of the writer's, knows
that its clock is ahead of the writer's by at most r - w, since reading comes after writing. The same the other way
round gives the other bound. Messages are written several times: the bounds are as tight as the folder is quick.
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
from estimator_pipeline.doctor.cluster.network import connected
from estimator_pipeline.errors import ClusterError, WaitError

__all__ = ["Meeting", "Seat", "meet", "skew_bounds"]

_POLL_SECS = (0.02, 0.5)
_TICKS = 4  # How often each task tells its time again.


@dataclass(frozen=True)
class Seat:
    """One task of a meeting.

    Attributes:
        rank: from 0.
        size: how many tasks there are.
        name: of this task, for people.
        address: where this task will listen; None takes a free port of this host.
    """

    rank: int
    size: int
    name: str
    address: str | None = None


@dataclass
class Meeting:
    """What came of it, the same on every task but for `own`.

    Attributes:
        facts: what each task has told, by rank.
        told: what each has found out about the others, by rank: `silent` (rank -> why its port does not answer),
            `lock` (what became of the lock that rank 0 holds) and `delays` (rank -> the largest lead of this task's
            clock that is possible, in seconds).
        own: this task's rank.
    """

    own: int
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    told: dict[int, dict[str, Any]] = field(default_factory=dict)

    def name(self, rank: int) -> str:
        """A task's name."""
        return str(self.facts[rank].get("name", rank))


def skew_bounds(told: Mapping[int, Mapping[str, Any]], one: int, other: int) -> tuple[float, float] | None:
    """By how many seconds the clock of `one` is ahead of that of `other`: at least, at most. None: not known."""
    most = told[one].get("delays", {}).get(str(other))
    least = told[other].get("delays", {}).get(str(one))
    return None if most is None or least is None else (-float(least), float(most))


def meet(
    folder: Path,
    seat: Seat,
    facts: Mapping[str, Any],
    *,
    timeout: float,
    connect_timeout: float = 5.0,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> Meeting:
    """Meets the other tasks.

    Args:
        folder: a folder that belongs to this start of the job alone; it is made, and taken away again.
        seat: who this is.
        facts: what the others should know; plain values.
        timeout: seconds for all of it.
        connect_timeout: seconds for one connection.
        environ: where ESTIMATOR_PIPELINE_HOST is looked up.
        clock: what this task takes for the time.

    Raises:
        ClusterError: The folder cannot be used, two processes have the same rank, or count other tasks.
        WaitError: Not all came in time; the message names those that are missing.
    """
    table = _Table(folder, seat, timeout, clock)
    with contextlib.ExitStack() as undo:
        undo.callback(table.leave)
        listener, address = _listen(seat, environ or {})
        if listener is not None:
            undo.callback(listener.close)
        if seat.rank == 0:
            undo.enter_context(_locked(folder / "lock"))
        mine = {**facts, "name": seat.name, "host": socket.gethostname(), "address": address, "size": seat.size}
        table.write("json", {**mine, "made": table.made})
        heard = None
        while heard is None:
            found = table.wait("json")
            table.check(found)
            # All are there: what follows takes as long as connections that come to nothing do.
            table.extend(timeout + 3 * connect_timeout * (1 + seat.size // 32))
            words = {str(rank): one["word"] for rank, one in found.items()}
            ticks = (table.together("tick.json", {"tick": n, "words": words}, n) for n in range(_TICKS))
            if not all(ticks):
                continue
            told = {"silent": _silent(found, seat.rank, connect_timeout), "lock": table.try_lock()}
            heard = table.together("told.json", {**told, "delays": table.delays, "words": words})
        table.finish(words)
    return Meeting(seat.rank, found, heard)


class _Table:
    """The files of one meeting, as one task sees them."""

    def __init__(self, folder: Path, seat: Seat, timeout: float, clock: Callable[[], float]) -> None:
        self.folder, self.seat, self.timeout, self.clock = folder, seat, timeout, clock
        self.deadline = time.monotonic() + timeout
        self.word = secrets.token_hex(8)
        self.delays: dict[str, float] = {}
        self.finished = False
        # How many folders, this one and those above it, are there for the meeting alone.
        self.made = sum(not one.exists() for one in (folder, *folder.parents))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot(error) from error

    def extend(self, seconds: float) -> None:
        """The wait may go on for so long from now."""
        self.deadline = max(self.deadline, time.monotonic() + seconds)

    def write(self, kind: str, document: Mapping[str, Any]) -> None:
        """Written aside and renamed, with this task's word and the time of its clock."""
        path = self.folder / f"{self.seat.rank}.{kind}"
        aside = self.folder / f".{path.name}.{self.word}"
        try:
            if kind == "json":
                # Another start that gives up may take the folder away while it is empty.
                self.folder.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps({**document, "word": self.word, "clock": self.clock()}), encoding="utf-8")
            aside.replace(path)
        except OSError as error:
            raise self._cannot(error) from error

    def read(self, rank: int, kind: str) -> dict[str, Any] | None:
        try:
            document = json.loads((self.folder / f"{rank}.{kind}").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # Not there yet, or not yet whole on this host; the next look will tell.
        if not isinstance(document, dict):
            return None
        self.made = max(self.made, int(document.get("made", 0)))
        lead = self.clock() - float(document.get("clock", 0.0))
        self.delays[str(rank)] = min(lead, self.delays.get(str(rank), lead))
        return document

    def wait(self, kind: str, fits: Callable[[dict[str, Any]], bool] = lambda one: True) -> dict[int, dict[str, Any]]:
        """The files of all tasks, once they are there and fit."""
        found = self._wait(kind, fits, None)
        assert found is not None
        return found

    def together(self, kind: str, document: Mapping[str, Any], tick: int = 0) -> dict[int, dict[str, Any]] | None:
        """Writes this task's file, and waits for those of all others that tell of the same words, and of this tick.

        None: a task has another word by now, so that what was read of it was left by an earlier start.
        """
        self.write(kind, document)
        words = document["words"]
        return self._wait(kind, lambda one: one.get("words") == words and one.get("tick", tick) >= tick, words)

    def _wait(
        self, kind: str, fits: Callable[[dict[str, Any]], bool], words: Mapping[str, str] | None
    ) -> dict[int, dict[str, Any]] | None:
        pause, longest = _POLL_SECS
        while True:
            with contextlib.suppress(OSError):
                os.listdir(self.folder)  # Makes a network file system look again for what it remembers as absent.
            found = {i: one for i in range(self.seat.size) if (one := self.read(i, kind)) is not None}
            self._same_rank(found)
            found = {i: one for i, one in found.items() if fits(one)}
            if len(found) == self.seat.size:
                return found
            if words is not None:
                now = {i: one for i in range(self.seat.size) if (one := self.read(i, "json")) is not None}
                self._same_rank(now)
                if any(one["word"] != words[str(i)] for i, one in now.items()):
                    return None
            if time.monotonic() > self.deadline:
                raise self._missing([i for i in range(self.seat.size) if i not in found])
            time.sleep(pause)
            pause = min(pause * 1.3, longest)

    def check(self, found: Mapping[int, Mapping[str, Any]]) -> None:
        other = next((rank for rank, one in found.items() if one.get("size") != self.seat.size), None)
        if other is not None:
            raise ClusterError(
                f"{self.seat.name} is one of {self.seat.size} tasks, and {found[other].get('name')} of "
                f"{found[other].get('size')}",
                code="cluster/contradiction",
                found=f"the files in {self.folder}",
                hint="start every task with the same job file, TF_CONFIG and options",
            )

    def try_lock(self) -> str:
        """What becomes of the lock that rank 0 holds: "kept", "not kept", or "none"."""
        if self.seat.rank == 0:
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
        """Rank 0 waits until the others have read all, for as long as there is time; the others do not wait."""
        self.finished = True
        with contextlib.suppress(ClusterError, WaitError):
            self.write("done", {"words": words})
            if self.seat.rank == 0:
                self.wait("done", lambda one: one.get("words") == words)

    def leave(self) -> None:
        """Rank 0 takes all away in the end; where the tasks did not meet, each what is its own."""
        mine = (f"{self.seat.rank}.", f".{self.seat.rank}.")
        for path in self._files():
            own = path.name.startswith(mine) or (path.name == "lock" and self.seat.rank == 0)
            if (own and not self.finished) or (self.finished and self.seat.rank == 0):
                with contextlib.suppress(OSError):
                    path.unlink()
        for folder in (self.folder, *self.folder.parents)[: max(1, self.made)]:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _files(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except OSError:
            return []

    def _same_rank(self, found: Mapping[int, Mapping[str, Any]]) -> None:
        own = found.get(self.seat.rank)
        if own is not None and own.get("word") != self.word:
            raise ClusterError(
                f"two processes are {self.seat.name} (rank {self.seat.rank} of {self.seat.size})",
                code="cluster/contradiction",
                found=f"this one on {socket.gethostname()}, and another one that writes to {self.folder}",
                hint="give each task a TF_CONFIG of its own, or start each task once",
            )

    def _missing(self, ranks: list[int]) -> WaitError:
        there = self.seat.size - len(ranks)
        return WaitError(
            f"{there} of {self.seat.size} tasks came to {self.folder} within {self.timeout:.0f} s",
            found=f"missing: rank {', '.join(map(str, ranks[:16]))}{', ...' if len(ranks) > 16 else ''}",
            hint="start `doctor --shared` on every task at about the same time, with the same arguments; if all were "
            "started, they do not share this folder: mount it on every host",
        )

    def _cannot(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"the tasks cannot meet in {self.folder}",
            code="cluster/folder-not-shared",
            found=str(error),
            hint="give a model_dir that every task can write",
        )


@contextlib.contextmanager
def _locked(path: Path):
    """Holds a lock on the file, where the file system has locks."""
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


def _listen(seat: Seat, environ: Mapping[str, str]) -> tuple[socket.socket | None, str | None]:
    """A socket that listens where the task will, and its address; None where the port is not free."""
    port = int(seat.address.rpartition(":")[2]) if seat.address else 0
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        made = socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError:
        return None, seat.address
    if seat.address:
        return made, seat.address
    host = own_address(environ, known=None, hostname=socket.gethostname())
    return made, f"[{host}]:{made.getsockname()[1]}" if ":" in host else f"{host}:{made.getsockname()[1]}"


def _silent(found: Mapping[int, Mapping[str, Any]], own: int, timeout: float) -> dict[str, str]:
    """Rank -> why its port does not answer."""
    others = [(rank, str(one["address"])) for rank, one in found.items() if rank != own and one.get("address")]
    answers = connected([address for _, address in others], timeout=timeout)
    return {str(rank): why for (rank, _), why in zip(others, answers, strict=True) if why}
