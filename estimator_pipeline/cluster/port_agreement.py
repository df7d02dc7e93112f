"""Agreed ports: each task binds a port, and the tasks publish their addresses in a shared folder.

There is no race: a port is bound before it is published, and remains bound until the process ends, so no other process
can get it. TensorFlow's server shares it (see `estimator_pipeline.cluster.ports`).

Each task atomically writes two files into a folder that all of them share:

* `RANK.json`: its address, and a random word that is unique to this start of this process;
* `RANK.seen.json`: the words of all tasks as it read them.

A task is done when every task has seen the same words as this task. Files of an earlier run cannot be mistaken for
current files, because they do not contain the new words. Once one task is done, all tasks will be, because none writes
any more. The words together identify the start (`Agreement.start_id`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator_pipeline.cluster.shared_folder import Neighbours
from estimator_pipeline.errors import ClusterError, ConfigError, WaitError

if TYPE_CHECKING:
    from estimator_pipeline.cluster.ports import HeldPorts

__all__ = [
    "AGREEMENT_SECS",
    "HOST_VARIABLE",
    "SECS_VARIABLE",
    "Agreement",
    "agree",
    "folder_for",
    "own_address",
    "wait_secs",
]

AGREEMENT_SECS = 600.0
"""Seconds that a task waits for the others, which may wait for images or nodes."""
SECS_VARIABLE = "ESTIMATOR_PIPELINE_AGREEMENT_SECS"
HOST_VARIABLE = "ESTIMATOR_PIPELINE_HOST"
_POLL_SECS = (0.05, 1.0)
# The delay before a task queries missing tasks, and the interval of its log lines.
_ALONE_SECS = 3.0
_LINE_SECS = 60.0


@dataclass
class Agreement:
    """The result of an agreement.

    Attributes:
        addresses: "host:port" of each task, by rank.
        start_id: Twelve characters, the same on every task and different for each start.
        held: This task's port, bound until it is released or the process ends.
    """

    addresses: tuple[str, ...]
    start_id: str
    held: HeldPorts


def folder_for(directory: str | os.PathLike[str], job_id: str, restart: int) -> Path:
    """Return `DIRECTORY/.cluster/JOB-RESTART`, for a directory on a mounted file system.

    Raises:
        ConfigError: The directory is on a remote file system.
    """
    if "://" in str(directory):
        raise ConfigError(
            f"the tasks cannot agree on ports in {str(directory)!r}, which is not a mounted folder",
            code="cluster/no-ports",
            found="agreed ports need a folder that all tasks share as files",
            hint="set ESTIMATOR_PIPELINE_SHARED_DIR to such a folder (NFS, Lustre, a shared volume), or cluster.ports: "
            "derived if the environment names the hosts.",
        )
    return Path(directory).absolute() / ".cluster" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', job_id)}-{restart}"


def wait_secs(environ: Mapping[str, str]) -> float:
    """Return ESTIMATOR_PIPELINE_AGREEMENT_SECS, or `AGREEMENT_SECS`.

    Raises:
        ConfigError: The variable is not a number of seconds above 0.
    """
    text = environ.get(SECS_VARIABLE, "").strip()
    if not text:
        return AGREEMENT_SECS
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ConfigError(
        f"{SECS_VARIABLE}={text!r} is not a number of seconds above 0",
        code="environment/bad-value",
        hint=f"set for example {SECS_VARIABLE}=600, or leave it unset",
    )


def own_address(environ: Mapping[str, str], *, known: str | None, hostname: str) -> str:
    """Return the host at which the other tasks reach this task.

    It is ESTIMATOR_PIPELINE_HOST, or the environment's value, or this machine's network address, or its name. Set the
    variable on machines with several networks.
    """
    return environ.get(HOST_VARIABLE, "").strip() or known or _network_address() or hostname


def _network_address() -> str | None:
    """Return the source address of this machine; connecting a datagram socket only looks up a route."""
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    return None


def agree(
    folder: Path,
    *,
    rank: int,
    size: int,
    host: str,
    timeout: float = AGREEMENT_SECS,
    hint: str = "",
    addresses: Sequence[str] | None = None,
) -> Agreement:
    """Bind a port, publish it to the other tasks, and wait until all tasks know all ports.

    Args:
        folder: See `folder_for`; created if it does not exist.
        rank: The rank of this task.
        size: The number of tasks.
        host: The name or address at which the others reach this host.
        timeout: Seconds to wait for the others.
        hint: The hint of the error if tasks are missing.
        addresses: Addresses at which the waiting tasks can be queried, by rank; None if unknown.

    Raises:
        ClusterError: The folder cannot be written, two processes have the same rank, the numbers of tasks differ, or
            a task waits in a different folder of the same name.
        WaitError: Tasks are missing after the timeout; the message names them.
    """
    from estimator_pipeline.cluster.ports import hold_ports

    held = hold_ports(1)
    with contextlib.ExitStack() as undo:
        undo.callback(held.release)
        word = secrets.token_hex(8)
        address = f"[{host}]:{held.ports[0]}" if host.count(":") > 1 else f"{host}:{held.ports[0]}"
        exchange = _AddressExchange(folder, rank=rank, size=size, word=word)
        exchange.publish({"address": address, "word": word, "size": size, "pid": os.getpid()})
        documents = exchange.wait(timeout, hint, addresses)
        undo.pop_all()
    words = "".join(documents[i]["word"] for i in range(size))
    return Agreement(
        addresses=tuple(str(documents[i]["address"]) for i in range(size)),
        start_id=hashlib.sha256(words.encode()).hexdigest()[:12],
        held=held,
    )


class _AddressExchange:
    """The files of one agreement, as one task sees them."""

    def __init__(self, folder: Path, *, rank: int, size: int, word: str) -> None:
        self.folder, self.rank, self.size, self.word = folder, rank, size, word
        self._seen: dict[str, str] | None = None
        self._document: dict[str, Any] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot(error) from error

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        temporary = self.folder / f".{name}.{socket.gethostname()}.{os.getpid()}"
        try:
            temporary.write_text(json.dumps(document), encoding="utf-8")
            temporary.replace(self.folder / name)
        except OSError as error:
            raise self._cannot(error) from error

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            document = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # Missing or incomplete on this host; it is read again at the next poll.
        return document if isinstance(document, dict) else None

    def publish(self, document: Mapping[str, Any]) -> None:
        """Write this task's file."""
        self._document = dict(document)
        self.write(f"{self.rank}.json", document)

    def wait(self, timeout: float, hint: str, addresses: Sequence[str] | None) -> dict[int, dict[str, Any]]:
        begun = time.monotonic()
        deadline, line = begun + timeout, begun + _LINE_SECS
        missing = list(range(self.size))
        with contextlib.ExitStack() as asking:
            neighbours: Neighbours | None = None
            for pause in _pauses():
                documents, missing = self._poll()
                if not missing:
                    return documents
                now = time.monotonic()
                if now > deadline:
                    break
                absent = [rank for rank in missing if rank not in documents]
                if addresses is not None and neighbours is None and absent and now - begun > _ALONE_SECS:
                    neighbours = Neighbours(
                        self.folder.name, rank=self.rank, folder=str(self.folder), addresses=addresses
                    )
                    asking.callback(neighbours.close)
                if neighbours is not None and (why := neighbours.apart(absent)) is not None:
                    self._check_apart(why, neighbours, absent)
                if now > line:
                    line += _LINE_SECS
                    self._log_wait(now - begun, timeout, missing, absent)
                time.sleep(min(pause, max(deadline - time.monotonic(), 0.0) + 0.01))
        there = self.size - len(missing)
        raise WaitError(
            f"rank {self.rank} waited {timeout:.0f} s for the other tasks to publish their ports, and "
            f"{there} of {self.size} did",
            found=f"missing: {_ranks(missing)}; the folder is {self.folder}",
            hint=(f"{hint} " if hint else "") + "See the logs of the missing tasks and whether they reach that folder; "
            f"raise {SECS_VARIABLE} if they need longer.",
        )

    def _poll(self) -> tuple[dict[int, dict[str, Any]], list[int]]:
        """Return the current documents, and the ranks that are missing or have not yet seen the same words."""
        # Listing the folder makes a network file system refresh files that it has cached as absent.
        with contextlib.suppress(OSError):
            os.listdir(self.folder)
        documents = {i: document for i in range(self.size) if (document := self.read(f"{i}.json")) is not None}
        mine = documents.get(self.rank)
        if mine is not None and mine.get("word") != self.word:
            raise ClusterError(
                f"two processes have the rank {self.rank}.",
                code="cluster/contradiction",
                found=f"this one, and one at {mine.get('address')}, in {self.folder}",
                hint="start each task once; if the scheduler starts a process per core, request one per host.",
            )
        missing = [i for i in range(self.size) if i not in documents]
        if missing:
            return documents, missing
        words = {str(i): str(documents[i].get("word")) for i in range(self.size)}
        if words != self._seen:
            self.write(f"{self.rank}.seen.json", {"words": words})
            self._seen = words
        seen = {i: (self.read(f"{i}.seen.json") or {}).get("words") for i in range(self.size)}
        behind = [i for i in range(self.size) if seen[i] != words]
        if not behind:
            self._check_sizes(documents)
        return documents, behind

    def _check_apart(self, why: str, neighbours: Neighbours, absent: list[int]) -> None:
        # Writing makes a network file system refresh the folder.
        self.publish(self._document)
        documents, _ = self._poll()
        if neighbours.apart([rank for rank in absent if rank not in documents]) is None:
            return
        raise ClusterError(
            f"the tasks do not share the folder {self.folder}: rank {self.rank} waits there on {socket.gethostname()}.",
            code="cluster/folder-not-shared",
            found=why,
            hint="set run.model_dir (or ESTIMATOR_PIPELINE_SHARED_DIR) to a folder that all nodes share under the same "
            "path, such as one on NFS or Lustre; folders below /tmp are usually local to a node.",
        )

    def _log_wait(self, waited: float, timeout: float, missing: list[int], absent: list[int]) -> None:
        known = f"; no file of {_ranks(absent)}: not started yet, or in a different folder" if absent else ""
        print(
            f"rank {self.rank} has waited {waited:.0f} s for the ports of {_ranks(missing)} in {self.folder}{known} "
            f"(timeout {timeout:.0f} s, {SECS_VARIABLE})",
            file=sys.stderr,
            flush=True,
        )

    def _check_sizes(self, documents: Mapping[int, Mapping[str, Any]]) -> None:
        other = next((i for i, document in documents.items() if document.get("size") != self.size), None)
        if other is not None:
            raise ClusterError(
                f"rank {self.rank} is one of {self.size} tasks, but rank {other} of {documents[other].get('size')}.",
                code="cluster/contradiction",
                found=f"the files in {self.folder}",
                hint="start every task with the same job file and options.",
            )

    def _cannot(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"the tasks cannot agree on ports in {self.folder}.",
            code="cluster/no-ports",
            found=str(error),
            hint="let every task write to run.model_dir, or set ESTIMATOR_PIPELINE_SHARED_DIR to a folder that they "
            "all share.",
        )


def _pauses() -> Iterator[float]:
    pause, longest = _POLL_SECS
    while True:
        yield pause
        pause = min(pause * 1.3, longest)


def _ranks(ranks: list[int]) -> str:
    """Format ranks as "ranks 1, 3 to 5"."""
    parts, start = [], 0
    for i in range(1, len(ranks) + 1):
        if i == len(ranks) or ranks[i] != ranks[i - 1] + 1:
            first, last = ranks[start], ranks[i - 1]
            parts.append(str(first) if first == last else f"{first} to {last}")
            start = i
    return f"rank{'s'[: len(ranks) != 1]} {', '.join(parts)}"
