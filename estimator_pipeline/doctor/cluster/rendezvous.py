"""A rendezvous of all tasks of a job in a folder that they should share.

The tasks exchange their facts in `MODEL_DIR/.doctor-ID` (`cluster.document_exchange`). If every task has read every
task's file, the folder is shared. Each task then connects to the ports of the others, and tries to take a lock that
rank 0 holds. It writes the results to `RANK.results.json`. A task that has read all results writes `RANK.done`; rank 0
removes the folder after that.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.cluster.document_exchange import DocumentExchange, SharedDocuments
from estimator_pipeline.cluster.port_agreement import own_address
from estimator_pipeline.doctor.cluster.network import connect_to
from estimator_pipeline.errors import ClusterError, WaitError

__all__ = ["Participant", "RendezvousResult", "join"]


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
        results: What each task found out about the others, by rank: `silent` (rank -> why its port does not answer)
            and `lock` (the result of locking what rank 0 holds).
    """

    rank: int
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    results: dict[int, dict[str, Any]] = field(default_factory=dict)

    def name(self, rank: int) -> str:
        """Return a task's name."""
        return str(self.facts[rank].get("name", rank))


def join(
    folder: Path,
    participant: Participant,
    facts: Mapping[str, Any],
    *,
    timeout: float,
    connect_timeout: float = 5.0,
    environ: Mapping[str, str] | None = None,
) -> RendezvousResult:
    """Exchange facts with the other tasks.

    Args:
        folder: A folder that only this start of the job uses; it is created, and removed at the end.
        participant: This task.
        facts: What the other tasks compare; JSON values.
        timeout: Seconds for the whole exchange.
        connect_timeout: Seconds for one connection.
        environ: Where ESTIMATOR_PIPELINE_HOST is looked up.

    Raises:
        ClusterError: The folder cannot be used, two processes have the same rank, or the number of tasks differs.
        WaitError: Some tasks did not come in time; the message names them.
    """
    rank, size = participant.rank, participant.size
    documents = _RemovedDocuments(folder)
    with contextlib.ExitStack() as undo:
        undo.enter_context(_explaining(folder))
        # This task's files, if the exchange fails.
        removed = [f"{rank}.", *(["lock"] if rank == 0 else [])]
        undo.callback(documents.remove, removed)
        exchange = DocumentExchange(
            documents,
            rank=rank,
            size=size,
            name=participant.name,
            timeout=timeout,
            event="start `doctor --shared`",
            hint="start `doctor --shared` on every task at about the same time, with the same arguments; if all were "
            "started, they do not share this folder: mount it on every host",
        )
        listener, address = _listen(participant, environ or {})
        if listener is not None:
            undo.callback(listener.close)
        if rank == 0:
            undo.enter_context(_locked(folder / "lock"))
        mine = {**facts, "name": participant.name, "host": socket.gethostname(), "address": address}
        mine["made"] = documents.created
        # Tasks that expect different numbers of tasks would wait until the timeout.
        every = exchange.agree(mine, on_wait=lambda *_: exchange.check_sizes())
        # All tasks are present; from here on, only unanswered connections take time.
        exchange.deadline.extend(timeout + 3 * connect_timeout * (1 + size // 32))
        results = {"silent": _silent(every, rank, connect_timeout), "lock": _try_lock(folder, rank)}
        exchange.post("results.json", results)
        result = RendezvousResult(rank, every, exchange.collect("results.json"))
        # Rank 0 removes all files when the others have read them, or at the deadline.
        removed[:] = [""] if rank == 0 else []
        with contextlib.suppress(OSError, ClusterError, WaitError):
            exchange.post("done", {})
            if rank == 0:
                exchange.collect("done")
        return result


class _RemovedDocuments(SharedDocuments):
    """Documents that are removed with their folder.

    Attributes:
        created: How many folders, this one and its parents, the tasks create, and later remove.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.created = sum(not path.exists() for path in (folder, *folder.parents))

    def read(self, name: str) -> dict[str, Any] | None:
        document = super().read(name)
        if document is not None:
            self.created = max(self.created, int(document.get("made", 0)))
        return document

    def remove(self, prefixes: Sequence[str]) -> None:
        """Remove the files whose names start with one of these prefixes, and the created folders if they are empty."""
        folder = Path(self.folder)
        for path in folder.glob("*"):
            if path.name.startswith(tuple(prefixes)):
                with contextlib.suppress(OSError):
                    path.unlink()
        for created in (folder, *folder.parents)[: max(1, self.created)]:
            with contextlib.suppress(OSError):
                created.rmdir()


@contextlib.contextmanager
def _explaining(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClusterError(
            f"the tasks cannot meet in {folder}",
            code="cluster/folder-not-shared",
            found=str(error),
            hint="set a model_dir that every task can write to",
        ) from error


def _try_lock(folder: Path, rank: int) -> str:
    """Try to take the lock that rank 0 holds: "kept", "not kept", or "none" (no locks)."""
    if rank == 0:
        return "kept"
    import fcntl

    try:
        with open(folder / "lock", "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "not kept"
    except BlockingIOError:
        return "kept"
    except OSError:
        return "none"


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
    listener = None
    with contextlib.suppress(OSError):  # in use
        listener = socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)
    if listener is None or participant.address:
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
