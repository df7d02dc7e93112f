"""Checks of host names, of this task's port and, with `connect`, of the other tasks' ports."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from estimator_pipeline.cluster import Task, own_port
from estimator_pipeline.cluster.addresses import host_of, is_loopback
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, info, ok, warning
from estimator_pipeline.utils.text import few

__all__ = ["check_addresses", "check_ports", "connect_to", "in_parallel", "resolve"]

_AT_ONCE = 32  # Threads at a time; a cluster may have hundreds of tasks.

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(function: Callable[[T], R], items: Sequence[T], *, timeout: float) -> list[R | None]:
    """Call `function` for each item in threads; None where it took more than `timeout` seconds.

    A name lookup has no timeout and cannot be cancelled, so the threads are daemons and may outlive the call.
    """
    results: list[R | None] = [None] * len(items)

    def work(index: int) -> None:
        results[index] = function(items[index])

    for first in range(0, len(items), _AT_ONCE):
        threads = [
            threading.Thread(target=work, args=(index,), daemon=True, name="estimator_pipeline-doctor")
            for index in range(first, min(first + _AT_ONCE, len(items)))
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    return list(results)


def resolve(hosts: Sequence[str], *, timeout: float) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return each host's IP addresses, and the reason where it has none."""

    def look_up(host: str) -> tuple[tuple[str, ...], str]:
        try:
            entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:
            return (), str(getattr(problem, "strerror", None) or problem)
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)), ""

    late = ((), f"no answer within {timeout:g} s")
    return dict(zip(hosts, (result or late for result in in_parallel(look_up, hosts, timeout=timeout)), strict=True))


def connect_to(addresses: Sequence[str], *, timeout: float) -> list[str]:
    """Return why each "host:port" refuses a connection; "" where it accepts one."""

    def connect(address: str) -> str:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout):
                return ""
        except TimeoutError:
            return f"no answer within {timeout:g} s"
        except (OSError, UnicodeError) as problem:
            return str(getattr(problem, "strerror", None) or problem)

    # A connection may include a name lookup, and the name may have several addresses.
    reasons = in_parallel(connect, addresses, timeout=3 * timeout)
    return [f"no answer within {3 * timeout:g} s" if reason is None else reason for reason in reasons]


def check_addresses(context: Context) -> Iterator[DoctorFinding]:
    """Check that every host name of the cluster resolves."""
    part = context.part
    addresses = part.addresses
    hosts = list(dict.fromkeys(map(host_of, addresses.values()))) or list(dict.fromkeys(part.hosts or ()))
    if not hosts:
        raise CheckSkipped("no addresses" if part.error is None else "no readable TF_CONFIG")
    ips_of = resolve(hosts, timeout=context.timeout)
    by_reason: dict[str, list[str]] = {}
    for host, (_, why) in ips_of.items():
        if why:
            by_reason.setdefault(why, []).append(host)
    for why, names in by_reason.items():
        tasks = few(task for task, address in addresses.items() if host_of(address) in names)
        # The names of a document that was passed explicitly may resolve only on the machines that it is for.
        yield (error if part.here else warning)(
            f"{few(names)} cannot be resolved here: {why}" + (f" ({tasks})" if tasks else ""),
            "this task cannot reach the others, and waits for them until its timeout",
            "correct the name, or add it to DNS or /etc/hosts of every host; in Kubernetes the names need a headless "
            "Service, and pod names resolve only when the pods are ready (or with publishNotReadyAddresses: true)",
        )
    yield from _duplicate_addresses(addresses, ips_of)
    yield from _loopback_names(addresses, ips_of)
    good = len(hosts) - sum(map(len, by_reason.values()))
    if good:
        shown = ", ".join(f"{host} = {ips[0]}" for host, (ips, _) in list(ips_of.items())[:4] if ips)
        yield ok(f"{good} of {len(hosts)} host name(s) resolved: {shown}{', ...' if len(hosts) > 4 else ''}")


def _duplicate_addresses(
    addresses: dict[Task, str], ips_of: dict[str, tuple[tuple[str, ...], str]]
) -> Iterator[DoctorFinding]:
    seen: dict[tuple[str, str], Task] = {}
    for task, address in addresses.items():
        if task.type == "evaluator":
            continue  # It has no server.
        port = address.rpartition(":")[2]
        for ip in ips_of[host_of(address)][0]:
            key = ("127.0.0.1" if ip.startswith("127.") or ip == "::1" else ip, port)
            other = seen.setdefault(key, task)
            if other != task:
                yield error(
                    f"{other} at {addresses[other]} and {task} at {address} have the same address: {ip}, port {port}",
                    "two tasks cannot listen on the same port of a host",
                    f"give {task} a different port or host",
                )
                break


def _loopback_names(
    addresses: dict[Task, str], ips_of: dict[str, tuple[tuple[str, ...], str]]
) -> Iterator[DoctorFinding]:
    """Report host names that resolve to a loopback address here: Debian maps a host's name to 127.0.1.1."""
    several = len({host_of(address) for address in addresses.values()}) > 1
    for host, (ips, _) in ips_of.items():
        if several and ips and not is_loopback(host) and all(ip.startswith("127.") or ip == "::1" for ip in ips):
            yield warning(
                f"{host} resolves to {', '.join(ips)} here",
                "the name points to this machine only; this works only if the others resolve it to its real address",
                "remove the line from /etc/hosts, or use the address at which the others reach this host",
            )


def check_ports(context: Context) -> Iterator[DoctorFinding]:
    """Check that this task can listen on its port and, with `connect`, that the other tasks answer."""
    part = context.part
    addresses = part.addresses
    if not addresses:
        agreed = part.ports == "agreed" and part.tasks
        raise CheckSkipped("the tasks agree on ports when they start" if agreed else "no addresses")
    if not part.here and not context.connect:
        raise CheckSkipped("the tasks of this document run elsewhere")
    if part.here and part.task is not None and part.task in addresses and part.task.type != "evaluator":
        address = addresses[part.task]
        ips, _ = resolve([host_of(address)], timeout=context.timeout)[host_of(address)]
        yield from _port_of_task(part.task, address, here=own_port.is_local(ips))
    if context.connect:
        yield from _others(context, addresses)
    elif part.here and len(addresses) > 1 and not context.shared:
        yield info("the ports of the other tasks were not checked", hint="use --connect once the other tasks listen")


def _port_of_task(task: Task, address: str, *, here: bool) -> Iterator[DoctorFinding]:
    port = address.rpartition(":")[2]
    why = _taken(address)
    if why:
        yield error(
            f"{task} should listen at {address}, and the port {port} is not free on this host: {why}",
            "the task's server cannot start",
            "stop the process that listens there, or use a different port; in job files cluster.ports: agreed "
            "picks free ports",
        )
    elif not here:
        yield warning(
            f"{task} is at {address}, which is not an address of this host",
            "the others connect to a different machine, unless a Service or NAT forwards to this one",
            f"set the address of {task} to this host, or start this task there",
        )
    else:
        yield ok(f"{task} can listen at {address}")


def _taken(address: str) -> str:
    """Return why a server cannot listen on this port of this host; "" where it can."""
    port = int(address.rpartition(":")[2])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            probe.listen()
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            return f"in use{_listener(port)}"
        return problem.strerror or str(problem)
    return ""


def _listener(port: int) -> str:
    """Return the process that listens on a port, if this user may see it."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            local: Any = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local.port == port and connection.pid:
                return f": {psutil.Process(connection.pid).name()}, process {connection.pid}"
    return ""


def _others(context: Context, addresses: dict[Task, str]) -> Iterator[DoctorFinding]:
    here = context.part.task if context.part.here else None
    # An evaluator has no server.
    others = [task for task in addresses if task != here and task.type != "evaluator"]
    answers = connect_to([addresses[task] for task in others], timeout=context.timeout)
    silent = [(task, why) for task, why in zip(others, answers, strict=True) if why]
    for why, count in Counter(why for _, why in silent).items():
        tasks = [task for task, other in silent if other == why]
        yield warning(
            f"{count} of {len(others)} other task(s) cannot be reached: {why} ({few(tasks)} at "
            f"{addresses[tasks[0]]}{', ...' if count > 1 else ''})",
            "a task that has not started refuses connections too; a host that does not answer is down or "
            "behind a firewall",
            "start the other tasks and try again, or run `doctor --shared` on all tasks, which then listen on "
            "their ports",
        )
    if len(silent) < len(others):
        answered = [task for task, why in zip(others, answers, strict=True) if not why]
        yield ok(f"{len(answered)} of {len(others)} other task(s) answer: {few(answered, 8)}")
