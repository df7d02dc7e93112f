"""Ports that no other process can take between their selection and the start of a server.

If a port picker closes its socket, any program may get the same port before the server starts. The launcher
therefore keeps each port bound, without listening, for the life of the job. TensorFlow's gRPC server shares
the port because both sides set SO_REUSEPORT: the launcher on its socket, the server if TF_GRPC_REUSE_PORT=1
is set in its environment. A socket that does not listen gets no connections, so all go to the server. The
kernel denies the port to processes without SO_REUSEPORT and to other users, and never assigns a bound port,
neither to `bind(0)` nor to an outgoing connection.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from types import TracebackType

from estimator_pipeline.errors import ClusterError

__all__ = ["REUSE_VARIABLE", "HeldPorts", "hold_ports"]

REUSE_VARIABLE = "TF_GRPC_REUSE_PORT"
"""The variable of TensorFlow's gRPC server (2.15 and 2.21): without it the server does not share a port."""


class HeldPorts:
    """Ports bound by this process until `release`, or until a `with` block ends.

    Attributes:
        ports: The port numbers, all different.
    """

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self.ports: tuple[int, ...] = tuple(held.getsockname()[1] for held in sockets)

    def release(self) -> None:
        """Release all ports. May be called again."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def hold_ports(count: int) -> HeldPorts:
    """Select free ports and keep them bound on the wildcard address of IPv4 and IPv6, like gRPC.

    Args:
        count: The number of ports.

    Returns:
        The held ports. Set TF_GRPC_REUSE_PORT=1 for the servers' processes.

    Raises:
        ClusterError: No port is free, or the system has no SO_REUSEPORT.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ClusterError(
            "Ports cannot be held for a local cluster on this system.",
            code="cluster/no-ports",
            found="a socket module without SO_REUSEPORT",
            hint="Launch on Linux or macOS.",
        )
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sockets.append(_bound_socket())
    except OSError as error:
        for held in sockets:
            held.close()
        raise ClusterError(
            f"{count} free ports were asked for and {len(sockets)} could be had.",
            code="cluster/no-ports",
            found=str(error),
            hint="Launch fewer tasks, or raise net.ipv4.ip_local_port_range and the limit of open files.",
        ) from error
    return HeldPorts(sockets)


def _bound_socket() -> socket.socket:
    """Return a socket on a free port, for both IPv4 and IPv6 if possible."""
    try:
        return _bind(socket.AF_INET6, "::")
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT):
            raise
    return _bind(socket.AF_INET, "0.0.0.0")  # The servers that share the port bind the same address.


def _bind(family: int, address: str) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    with contextlib.ExitStack() as undo:
        undo.callback(bound.close)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((address, 0))
        undo.pop_all()
    return bound
