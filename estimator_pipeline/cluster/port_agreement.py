"""Agreed ports: each task binds a port of its own, and the tasks tell each other where they are in a shared folder.

There is no race: a port is bound before it is told, and stays bound until the process ends, so nobody else can get
it. TensorFlow's server shares it (see :mod:`estimator_pipeline.cluster.ports`).

Each task writes two files into one folder that all of them reach, whole or not at all:

* `RANK.json`: its address, and a random word that only this start of this process has;
* `RANK.seen.json`: the words of all tasks as it read them.

A task is done when every task has seen the same words as itself, its own among them. What an earlier run has left
cannot be taken for news: a word that was just made stands in no old file. And once one task is done, all will be, for
none writes any more. The words together name the start (:attr:`Agreement.start_id`).
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
"""How long a task waits for the others: they may be in a queue for images or nodes."""
SECS_VARIABLE = "ESTIMATOR_PIPELINE_AGREEMENT_SECS"
HOST_VARIABLE = "ESTIMATOR_PIPELINE_HOST"
_POLL_SECS = (0.05, 1.0)
# From when on a task asks those that it misses, and how often it says whom it waits for.
_ALONE_SECS = 3.0
_LINE_SECS = 60.0


@dataclass
class Agreement:
    """What the tasks have agreed upon.

    Attributes:
        addresses: "host:port" of each task, by rank.
        start_id: twelve characters, the same on every task, and others for each start.
        held: this task's port, bound until it is released or the process ends.
    """

    addresses: tuple[str, ...]
    start_id: str
    held: HeldPorts


def folder_for(directory: str | os.PathLike[str], job_id: str, restart: int) -> Path:
    """`DIRECTORY/.cluster/JOB-RESTART`; for a folder that this process can reach as files.

    Raises:
        ConfigError: The directory is one of a remote file system.
    """
    if "://" in str(directory):
        raise ConfigError(
            f"the tasks cannot agree on ports in {str(directory)!r}, which is no folder of this machine",
            code="cluster/no-ports",
            found="agreed ports need a folder that all tasks share as files",
            hint="set ESTIMATOR_PIPELINE_SHARED_DIR to one (NFS, Lustre, a shared volume), or cluster.ports: derived "
            "where the environment names the hosts.",
        )
    return Path(directory).absolute() / ".cluster" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', job_id)}-{restart}"


def wait_secs(environ: Mapping[str, str]) -> float:
    """ESTIMATOR_PIPELINE_AGREEMENT_SECS, or :data:`AGREEMENT_SECS`.

    Raises:
        ConfigError: It is no number of seconds above 0.
    """
    text = environ.get(SECS_VARIABLE, "").strip()
    if not text:
        return AGREEMENT_SECS
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ConfigError(
        f"{SECS_VARIABLE}={text!r} is no number of seconds above 0",
        code="environment/bad-value",
        hint=f"for example {SECS_VARIABLE}=600, or leave it unset",
    )


def own_address(environ: Mapping[str, str], *, known: str | None, hostname: str) -> str:
    """The host by which the other tasks reach this one.

    ESTIMATOR_PIPELINE_HOST, else what the environment says, else this machine's address towards the network, else its
    name. A machine with several networks may want the first.
    """
    return environ.get(HOST_VARIABLE, "").strip() or known or _network_address() or hostname


def _network_address() -> str | None:
    """The address that this machine sends from. Nothing is sent: connecting a datagram socket only looks up a route."""
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
    """Binds a port, tells it to the other tasks, and waits until all know all.

    Args:
        folder: See :func:`folder_for`; made where it is not there.
        rank: This task's.
        size: How many tasks there are.
        host: The name or address by which the others reach this host.
        timeout: Seconds to wait for the others.
        hint: What a person should look at if they do not come.
        addresses: Where each task can be asked whether it is there, by rank, while it waits; None: nobody knows.

    Raises:
        ClusterError: The folder cannot be written, another process has the same rank, or the others count other tasks;
            or another task waits in another folder of the same name.
        WaitError: Not all tasks came in time; the message names those that are missing.
    """
    from estimator_pipeline.cluster.ports import hold_ports

    held = hold_ports(1)
    with contextlib.ExitStack() as undo:
        undo.callback(held.release)
        word = secrets.token_hex(8)
        address = f"[{host}]:{held.ports[0]}" if host.count(":") > 1 else f"{host}:{held.ports[0]}"
        exchange = _AddressExchange(folder, rank=rank, size=size, word=word)
        exchange.tell({"address": address, "word": word, "size": size, "pid": os.getpid()})
        found = exchange.wait(timeout, hint, addresses)
        undo.pop_all()
    words = "".join(found[i]["word"] for i in range(size))
    return Agreement(
        addresses=tuple(str(found[i]["address"]) for i in range(size)),
        start_id=hashlib.sha256(words.encode()).hexdigest()[:12],
        held=held,
    )


class _AddressExchange:
    """The files of one agreement, as one task sees them."""

    def __init__(self, folder: Path, *, rank: int, size: int, word: str) -> None:
        self.folder, self.rank, self.size, self.word = folder, rank, size, word
        self._told: dict[str, str] | None = None
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
            return None  # Not there yet, or not yet whole on this host; the next look will tell.
        return document if isinstance(document, dict) else None

    def tell(self, document: Mapping[str, Any]) -> None:
        """Writes this task's own file."""
        self._document = dict(document)
        self.write(f"{self.rank}.json", document)

    def wait(self, timeout: float, hint: str, addresses: Sequence[str] | None) -> dict[int, dict[str, Any]]:
        begun = time.monotonic()
        deadline, line = begun + timeout, begun + _LINE_SECS
        missing = list(range(self.size))
        with contextlib.ExitStack() as asking:
            neighbours: Neighbours | None = None
            for pause in _pauses():
                found, missing = self._look()
                if not missing:
                    return found
                now = time.monotonic()
                if now > deadline:
                    break
                absent = [rank for rank in missing if rank not in found]
                if addresses is not None and neighbours is None and absent and now - begun > _ALONE_SECS:
                    neighbours = Neighbours(
                        self.folder.name, rank=self.rank, folder=str(self.folder), addresses=addresses
                    )
                    asking.callback(neighbours.close)
                if neighbours is not None and (why := neighbours.apart(absent)) is not None:
                    self._refuse_apart(why, neighbours, absent)
                if now > line:
                    line += _LINE_SECS
                    self._say(now - begun, timeout, missing, absent)
                time.sleep(min(pause, max(deadline - time.monotonic(), 0.0) + 0.01))
        there = self.size - len(missing)
        raise WaitError(
            f"rank {self.rank} waited {timeout:.0f} s for the other tasks to tell their ports, and "
            f"{there} of {self.size} did",
            found=f"missing: {_ranks(missing)}; the folder is {self.folder}",
            hint=(f"{hint} " if hint else "") + "See the logs of the missing tasks and whether they reach that folder; "
            f"{SECS_VARIABLE} gives them longer.",
        )

    def _look(self) -> tuple[dict[int, dict[str, Any]], list[int]]:
        """What is there now; the ranks that are missing, or that have not yet seen what this task sees."""
        # Listing a folder makes a network file system look again for files that it remembers as absent.
        with contextlib.suppress(OSError):
            os.listdir(self.folder)
        found = {i: document for i in range(self.size) if (document := self.read(f"{i}.json")) is not None}
        own = found.get(self.rank)
        if own is not None and own.get("word") != self.word:
            raise ClusterError(
                f"two processes have the rank {self.rank}.",
                code="cluster/contradiction",
                found=f"this one, and one at {own.get('address')}, in {self.folder}",
                hint="start each task once; where a scheduler starts a process for each core, ask for one a host.",
            )
        missing = [i for i in range(self.size) if i not in found]
        if missing:
            return found, missing
        words = {str(i): str(found[i].get("word")) for i in range(self.size)}
        if words != self._told:
            self.write(f"{self.rank}.seen.json", {"words": words})
            self._told = words
        seen = {i: (self.read(f"{i}.seen.json") or {}).get("words") for i in range(self.size)}
        behind = [i for i in range(self.size) if seen[i] != words]
        if not behind:
            self._check_sizes(found)
        return found, behind

    def _refuse_apart(self, why: str, neighbours: Neighbours, absent: list[int]) -> None:
        # Writing into it makes a network file system look at the folder again.
        self.tell(self._document)
        found, _ = self._look()
        if neighbours.apart([rank for rank in absent if rank not in found]) is None:
            return
        raise ClusterError(
            f"the tasks do not share the folder {self.folder}: rank {self.rank} waits there on {socket.gethostname()}.",
            code="cluster/folder-not-shared",
            found=why,
            hint="give a run.model_dir (or ESTIMATOR_PIPELINE_SHARED_DIR) that is the same folder on every node, by "
            "the same path, such as one of NFS or Lustre; folders below /tmp mostly are each node's own.",
        )

    def _say(self, waited: float, timeout: float, missing: list[int], absent: list[int]) -> None:
        known = f"; nothing of {_ranks(absent)} is there: not started yet, or it has another folder" if absent else ""
        print(
            f"rank {self.rank} has waited {waited:.0f} s for the ports of {_ranks(missing)} in {self.folder}{known} "
            f"(it gives up after {timeout:.0f} s, {SECS_VARIABLE})",
            file=sys.stderr,
            flush=True,
        )

    def _check_sizes(self, found: Mapping[int, Mapping[str, Any]]) -> None:
        other = next((i for i, document in found.items() if document.get("size") != self.size), None)
        if other is not None:
            raise ClusterError(
                f"rank {self.rank} is one of {self.size} tasks, and rank {other} of {found[other].get('size')}.",
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
    """ranks 1, 3 to 5: short for many."""
    parts, start = [], 0
    for i in range(1, len(ranks) + 1):
        if i == len(ranks) or ranks[i] != ranks[i - 1] + 1:
            first, last = ranks[start], ranks[i - 1]
            parts.append(str(first) if first == last else f"{first} to {last}")
            start = i
    return f"rank{'s'[: len(ranks) != 1]} {', '.join(parts)}"
