"""Checks of a task's own address before TensorFlow's server starts.

TensorFlow's message "Could not start gRPC server" names neither the port nor the process that listens there. The server
listens on all interfaces and ignores the host of this task's address, so a task with the address of a different machine
starts, and waits for peers that connect to that machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence

import psutil

from estimator_pipeline.cluster.addresses import check_jobs, host_of
from estimator_pipeline.cluster.roles import PORT_BASE_VARIABLE
from estimator_pipeline.errors import PortError
from estimator_pipeline.utils.logger import logger

__all__ = ["REUSE_VARIABLE", "check_server", "holder_of", "is_local", "problem_of", "require_free"]

# With "1" TensorFlow's server shares its port with the process that holds it for the task; with "0" or unset it does
# not. If the variable is set, this package has chosen the port: "0" if it is derived from the id of a scheduler's job,
# or if the launcher has released it.
REUSE_VARIABLE = "TF_GRPC_REUSE_PORT"
# A process of the previous attempt may still be shutting down.
_GRACE_SECS = 5.0
_LOOK_SECS = 0.2
_SHOWN = 80


def check_server(jobs: Mapping[str, Sequence[str]], address: str, task: str, environ: Mapping[str, str]) -> None:
    """Check the addresses of a cluster whose server is about to start in this process, and require this task's port.

    TensorFlow reads the cluster of a strategy from TF_CONFIG itself, and waits for tasks that cannot be reached.

    Args:
        jobs: The addresses by job.
        address: The address of this task.
        task: The task, such as "worker:0".
        environ: As for `require_free`.

    Raises:
        ClusterError: The addresses cannot work as a cluster.
        PortError: As for `require_free`.
    """
    if sum(map(len, jobs.values())) > 1:
        check_jobs(jobs, source="the cluster in TF_CONFIG")
    require_free(address, task, environ)


def require_free(address: str, task: str, environ: Mapping[str, str]) -> None:
    """Wait a moment for the port of a task whose server is about to start in this process.

    A host that is not this machine is only a warning: a Kubernetes Service, NAT or a container's port mapping may
    forward to this machine.

    Args:
        address: The address of the task: "host:port".
        task: The task, such as "worker:0".
        environ: The variables, which may contain TF_GRPC_REUSE_PORT.

    Raises:
        PortError: A different process listens there. Its exit code is 2 if the user has set the port (TF_CONFIG,
            ESTIMATOR_PIPELINE_PORT_BASE), and 1 if this package has chosen it: then the next start uses a different
            port.
    """
    # A name lookup may take long.
    threading.Thread(target=_warn_if_elsewhere, args=(address, task), daemon=True).start()
    port = int(address.rpartition(":")[2])
    reuse = environ.get(REUSE_VARIABLE)
    deadline = time.monotonic() + _GRACE_SECS
    while (problem := problem_of(port, shared=reuse == "1")) is not None:
        holder, pid = holder_of(port)
        if pid == os.getpid():
            return  # the server of an earlier training
        if time.monotonic() > deadline or problem.errno != errno.EADDRINUSE:
            based = reuse == "0" and bool(environ.get(PORT_BASE_VARIABLE, "").strip())
            raise PortError(
                f"{task} should listen at {address}, but the port {port} is not available on this host",
                found=f"{os.strerror(problem.errno or 0)}{holder and f': {holder} listens there'}",
                hint=_hint(reuse, based=based),
                restartable=reuse is not None and not based,
            ) from problem
        time.sleep(_LOOK_SECS)


def is_local(ips: Sequence[str]) -> bool:
    """Return whether one of these IP addresses is an address of this machine."""
    return any(_can_bind(ip) for ip in ips)


def _can_bind(ip: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((ip, 0))
    except OSError as error:
        # Any other failure, such as IPv6 being disabled, leaves it open.
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _warn_if_elsewhere(address: str, task: str) -> None:
    try:
        entries = socket.getaddrinfo(host_of(address), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return  # The others may be able to resolve it.
    ips = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    if not is_local(ips):
        resolved = "" if ips == [host_of(address)] else f" ({', '.join(ips)})"
        logger.warning(
            "%s is at %s%s, which is not an address of this machine (%s): the other tasks connect there, and wait "
            "unless a Service or NAT forwards to this machine; otherwise correct the address of %s in the TF_CONFIG of "
            "every task, or start %s there",
            *(task, address, resolved, socket.gethostname(), task, task),
        )


def _hint(reuse: str | None, *, based: bool) -> str:
    if reuse is None:
        return "stop that process, or set a different port for this task in the TF_CONFIG of every task"
    agreed = "under a scheduler set cluster.ports: agreed (`exec --ports agreed`), so that each task uses a free port"
    if based:
        return f"{agreed}, or set a different {PORT_BASE_VARIABLE}, the same on every task"
    again = "start the job again: it uses a different port"
    return again if reuse == "1" else f"{again}; {agreed}"


def problem_of(port: int, *, shared: bool = False) -> OSError | None:
    """Return why a server cannot listen at a port of this host, on all addresses like gRPC; None if it can.

    Args:
        port: The port; 0 is always free.
        shared: Whether the server sets SO_REUSEPORT.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # Like servers: a port in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(("", port))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        return error
    return None


def holder_of(port: int) -> tuple[str, int | None]:
    """Return the process that listens at a port of this host: its command and pid as text, and the pid.

    The result is ("", None) if it is not known, as for a different user's process.
    """
    with contextlib.suppress(psutil.Error):
        for entry in psutil.net_connections("tcp"):
            if entry.pid is not None and entry.status == psutil.CONN_LISTEN and entry.laddr[1:2] == (port,):
                words = " ".join(psutil.Process(entry.pid).cmdline())
                return f"{words[:_SHOWN]!r} (process {entry.pid})", entry.pid
    return "", None
