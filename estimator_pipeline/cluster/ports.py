"""Ports that nobody else can take between the moment they are picked and the moment a server listens.

A port picker that closes its socket again leaves a gap in which any program may get the same number. Here
the launcher keeps each port bound, without listening, for the life of the job. TensorFlow's gRPC server
shares the port because both sides set SO_REUSEPORT: the launcher on its socket, the server when it finds
TF_GRPC_REUSE_PORT=1 in its environment. A socket that does not listen gets no connections, so all go to
the server. The kernel refuses the port to everyone without SO_REUSEPORT, to other users in any case, and
never gives a bound port out as a free one, neither to `bind(0)` nor to an outgoing connection.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from types import TracebackType

from estimator_pipeline.errors import ClusterError

__all__ = ["REUSE_VARIABLE", "HeldPorts", "hold_ports"]

REUSE_VARIABLE = "TF_GRPC_REUSE_PORT"
"""What TensorFlow's gRPC server reads (2.15 and 2.21): without it the server refuses to share a port."""


class HeldPorts:
    """Ports bound by this process until :meth:`release`, or until a `with` block ends.

    Attributes:
        ports: The port numbers, all different.
    """

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self.ports: tuple[int, ...] = tuple(held.getsockname()[1] for held in sockets)

    def release(self) -> None:
        """Let all ports go. May be called again."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def hold_ports(count: int) -> HeldPorts:
    """Pick free ports and keep them bound on the wildcard address of IPv4 and IPv6, as gRPC binds them.

    Args:
        count: How many ports.

    Returns:
        The held ports. Give the servers' processes TF_GRPC_REUSE_PORT=1.

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
    """One socket on a free port; a socket of both families, so that one choice settles both."""
    try:
        return _bind(socket.AF_INET6, "::")
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT):
            raise
    return _bind(socket.AF_INET, "0.0.0.0")  # The servers that share it bind the same.


def _bind(family: int, address: str) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    with contextlib.ExitStack() as undo:
        undo.callback(made.close)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((address, 0))
        undo.pop_all()
    return made
