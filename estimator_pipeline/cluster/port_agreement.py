"""Agreed ports: each task binds a port, and the tasks publish their addresses in a shared folder.

There is no race: a port is bound before it is published, and remains bound until the process ends, so no other process
can get it. TensorFlow's server shares it (see `estimator_pipeline.cluster.ports`).

The tasks exchange their addresses by `document_exchange`. Its random words together identify the start
(`Agreement.start_id`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from estimator_pipeline.cluster.document_exchange import DocumentExchange, SharedDocuments, format_ranks
from estimator_pipeline.cluster.peers import seconds_in
from estimator_pipeline.errors import ClusterError, ConfigError

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
# The interval of the log lines of a task that waits.
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
    return seconds_in(SECS_VARIABLE, AGREEMENT_SECS, environ)


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
) -> Agreement:
    """Bind a port, publish it to the other tasks, and wait until all tasks know all ports.

    Args:
        folder: See `folder_for`; created if it does not exist.
        rank: The rank of this task.
        size: The number of tasks.
        host: The name or address at which the others reach this host.
        timeout: Seconds to wait for the others.
        hint: The hint of the error if tasks are missing.

    Raises:
        ClusterError: The folder cannot be written, two processes have the same rank, or the numbers of tasks differ.
        WaitError: Tasks are missing after the timeout; the message names them.
    """
    from estimator_pipeline.cluster.ports import hold_ports

    held = hold_ports(1)
    address = f"[{host}]:{held.ports[0]}" if host.count(":") > 1 else f"{host}:{held.ports[0]}"
    with contextlib.ExitStack() as undo:
        undo.callback(held.release)
        try:
            exchange = DocumentExchange(
                SharedDocuments(folder),
                rank=rank,
                size=size,
                name=f"rank {rank}",
                timeout=timeout,
                event="publish their ports",
                hint=f"{hint} See the logs of the missing tasks, and whether they share that folder (those below /tmp "
                f"are usually local to a node); raise {SECS_VARIABLE} if they need longer.".lstrip(),
            )
            documents = exchange.agree(
                {"address": address, "pid": os.getpid()}, on_wait=_log_lines(exchange, folder, rank)
            )
        except OSError as error:
            raise ClusterError(
                f"the tasks cannot agree on ports in {folder}.",
                code="cluster/no-ports",
                found=str(error),
                hint="let every task write to run.model_dir, or set ESTIMATOR_PIPELINE_SHARED_DIR to a folder that "
                "they all share.",
            ) from error
        undo.pop_all()
    words = "".join(document["word"] for document in documents.values())
    return Agreement(
        addresses=tuple(str(document["address"]) for document in documents.values()),
        start_id=hashlib.sha256(words.encode()).hexdigest()[:12],
        held=held,
    )


def _log_lines(exchange: DocumentExchange, folder: Path, rank: int) -> Callable[[float, Sequence[int]], None]:
    """Return a function that logs which tasks are missing, once a minute."""
    due = [_LINE_SECS]

    def log(waited: float, missing: Sequence[int]) -> None:
        if waited <= due[0]:
            return
        due[0] += _LINE_SECS
        absent = exchange.absent()
        known = f"; no file of {format_ranks(absent)}: not started yet, or in a different folder" if absent else ""
        print(
            f"rank {rank} has waited {waited:.0f} s for the ports of {format_ranks(missing)} in {folder}{known} "
            f"(timeout {exchange.deadline.seconds:.0f} s, {SECS_VARIABLE})",
            file=sys.stderr,
            flush=True,
        )

    return log
