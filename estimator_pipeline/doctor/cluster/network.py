"""Every address resolved, this task's port tried, and, where it is asked for, the ports of the others."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from estimator_pipeline.cluster import Task
from estimator_pipeline.cluster.addresses import host_of, is_loopback
from estimator_pipeline.doctor.cluster.tf_config import few
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, info, ok, warning

__all__ = ["check_addresses", "check_ports", "connected", "in_parallel", "own_ips", "resolved"]

_AT_ONCE = 32  # Threads at a time; a cluster may have hundreds of tasks.

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(function: Callable[[T], R], items: Sequence[T], *, timeout: float) -> list[R | None]:
    """`function` of each item, many at a time; None where it did not end within `timeout` seconds of its own.

    Looking a name up has no time-out of its own, and cannot be broken off: the threads are daemons, left behind.
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


def resolved(hosts: Sequence[str], *, timeout: float) -> dict[str, tuple[tuple[str, ...], str]]:
    """From each host name to its addresses, and to what was wrong where it has none."""

    def look_up(host: str) -> tuple[tuple[str, ...], str]:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:
            return (), str(getattr(problem, "strerror", None) or problem)
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in found)), ""

    late = ((), f"no answer within {timeout:g} s")
    return dict(zip(hosts, (one or late for one in in_parallel(look_up, hosts, timeout=timeout)), strict=True))


def connected(addresses: Sequence[str], *, timeout: float) -> list[str]:
    """For each "host:port" what is wrong with a connection to it; "" where it could be made."""

    def connect(address: str) -> str:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout):
                return ""
        except TimeoutError:
            return f"no answer within {timeout:g} s"
        except (OSError, UnicodeError) as problem:
            return str(getattr(problem, "strerror", None) or problem)

    # A name may be looked up first, and has several addresses at times.
    found = in_parallel(connect, addresses, timeout=3 * timeout)
    return [f"no answer within {3 * timeout:g} s" if one is None else one for one in found]


def own_ips() -> frozenset[str]:
    """The addresses of this machine's interfaces."""
    import psutil

    found = {"127.0.0.1", "::1"}
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                found.add(entry.address.partition("%")[0])
    return frozenset(found)


def is_own(ips: Sequence[str], own: frozenset[str]) -> bool:
    """Whether one of these addresses is this machine's."""
    return any(ip.partition("%")[0] in own or ip.startswith("127.") for ip in ips)


def check_addresses(context: Context) -> Iterator[DoctorFinding]:
    """Every host name of the cluster."""
    part = context.part
    addresses = part.addresses
    hosts = list(dict.fromkeys(map(host_of, addresses.values()))) or list(dict.fromkeys(part.hosts or ()))
    if not hosts:
        raise NotLookedAt("no addresses" if part.error is None else "no TF_CONFIG that can be read")
    found = resolved(hosts, timeout=context.timeout)
    by_reason: dict[str, list[str]] = {}
    for host, (_, why) in found.items():
        if why:
            by_reason.setdefault(why, []).append(host)
    for why, names in by_reason.items():
        tasks = few(task for task, address in addresses.items() if host_of(address) in names)
        # A document that was given by hand may be for machines that know each other, and not for this one.
        yield (error if part.here else warning)(
            f"{few(names)} cannot be resolved here: {why}" + (f" ({tasks})" if tasks else ""),
            "this task cannot reach the others, and waits for them until its time-out",
            "correct the name, or add it to DNS or /etc/hosts of every host; in Kubernetes the names need a headless "
            "Service, and those of pods exist when they are ready (or publishNotReadyAddresses: true)",
        )
    yield from _same_place(addresses, found)
    yield from _loopback_of_own(context, addresses, found)
    good = len(hosts) - sum(map(len, by_reason.values()))
    if good:
        shown = ", ".join(f"{host} = {ips[0]}" for host, (ips, _) in list(found.items())[:4] if ips)
        yield ok(f"{good} of {len(hosts)} host name(s) resolved: {shown}{', ...' if len(hosts) > 4 else ''}")


def _same_place(addresses: dict[Task, str], found: dict[str, tuple[tuple[str, ...], str]]) -> Iterator[DoctorFinding]:
    seen: dict[tuple[str, str], Task] = {}
    for task, address in addresses.items():
        if task.type == "evaluator":
            continue  # It has no server.
        port = address.rpartition(":")[2]
        for ip in found[host_of(address)][0]:
            key = ("127.0.0.1" if ip.startswith("127.") or ip == "::1" else ip, port)
            other = seen.setdefault(key, task)
            if other != task:
                yield error(
                    f"{other} at {addresses[other]} and {task} at {address} are one place: {ip}, port {port}",
                    "two tasks cannot listen at one port of one host",
                    f"give {task} another port or another host",
                )
                break


def _loopback_of_own(
    context: Context, addresses: dict[Task, str], found: dict[str, tuple[tuple[str, ...], str]]
) -> Iterator[DoctorFinding]:
    """A host's own name that /etc/hosts leads to 127.0.1.1 there: Debian does so."""
    several = len({host_of(address) for address in addresses.values()}) > 1
    for host, (ips, _) in found.items():
        if several and ips and not is_loopback(host) and all(ip.startswith("127.") or ip == "::1" for ip in ips):
            yield warning(
                f"{host} is {', '.join(ips)} here",
                "on this machine the name means this machine alone; it is well only if the others resolve it otherwise",
                "take the line out of /etc/hosts, or write the address by which the others reach this host",
            )


def check_ports(context: Context) -> Iterator[DoctorFinding]:
    """Whether this task can listen at its port; with `connect` whether the others' ports answer."""
    part = context.part
    addresses = part.addresses
    if not addresses:
        agreed = part.ports == "agreed" and part.tasks
        raise NotLookedAt("ports are agreed upon at the start" if agreed else "no addresses")
    found = resolved(list(dict.fromkeys(map(host_of, addresses.values()))), timeout=context.timeout)
    own = own_ips()
    here = [task for task, address in addresses.items() if is_own(found[host_of(address)][0], own)]
    if part.here and part.task is not None and part.task in addresses and part.task.type != "evaluator":
        yield from _own_port(part.task, addresses[part.task], here=part.task in here)
    elif not part.here:
        tried = [task for task in here if task.type != "evaluator"]
        taken = {task: why for task in tried if (why := _taken(addresses[task]))}
        for task, why in taken.items():
            yield error(
                f"port {addresses[task].rpartition(':')[2]} of {task} is not free on this host: {why}",
                "the task's server cannot start",
                "end what listens there, or give another port",
            )
        if tried and not taken:
            yield ok(f"free on this host: {', '.join(addresses[task] for task in tried)}")
    if context.connect:
        yield from _others(context, addresses)
    elif part.here and len(addresses) > 1 and not context.shared:
        yield info("the ports of the other tasks were not tried", hint="--connect tries them, once the others listen")


def _own_port(task: Task, address: str, *, here: bool) -> Iterator[DoctorFinding]:
    port = address.rpartition(":")[2]
    why = _taken(address)
    if why:
        yield error(
            f"{task} should listen at {address}, and the port {port} is not free on this host: {why}",
            "its server cannot start",
            "end what listens there, or give another port; in job files cluster.ports: agreed takes free ones",
        )
    elif not here:
        yield warning(
            f"{task} is at {address}, and that is no address of this host",
            "the others connect to another machine, unless something in between leads them here (a Service, NAT)",
            f"write the address of this host for {task}, or start this task there",
        )
    else:
        yield ok(f"{task} can listen at {address}")
    low, high = _outgoing_ports()
    if not why and low <= int(port) <= high:
        yield info(
            f"port {port} is one of those that the system gives to outgoing connections ({low} to {high})",
            "any program may take it until this task starts",
            f"take a port below {low}",
        )


def _taken(address: str) -> str:
    """Why a server cannot listen at this port of this host; "" where it can. The port is free again at once."""
    port = int(address.rpartition(":")[2])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            probe.listen()
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            return f"something listens there{_listener(port)}"
        return problem.strerror or str(problem)
    return ""


def _listener(port: int) -> str:
    """Who listens at a port, as far as this user may know."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            local: Any = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local.port == port and connection.pid:
                return f": {psutil.Process(connection.pid).name()}, process {connection.pid}"
    return ""


def _others(context: Context, addresses: dict[Task, str]) -> Iterator[DoctorFinding]:
    own = context.part.task if context.part.here else None
    # An evaluator has no server.
    others = [task for task in addresses if task != own and task.type != "evaluator"]
    answers = connected([addresses[task] for task in others], timeout=context.timeout)
    silent = [(task, why) for task, why in zip(others, answers, strict=True) if why]
    for why, count in Counter(why for _, why in silent).items():
        tasks = [task for task, other in silent if other == why]
        yield warning(
            f"{count} of {len(others)} other task(s) cannot be reached: {why} ({few(tasks)} at "
            f"{addresses[tasks[0]]}{', ...' if count > 1 else ''})",
            "a task that has not started yet refuses too; one whose host is silent is behind a firewall or down",
            "start the others, then try again; or run `doctor --shared` on all tasks, which listens for the others",
        )
    if len(silent) < len(others):
        answered = [task for task, why in zip(others, answers, strict=True) if not why]
        yield ok(f"{len(answered)} of {len(others)} other task(s) answer: {few(answered, 8)}")


def _outgoing_ports() -> tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = map(int, file.read().split())
            return low, high
    except (OSError, ValueError):
        return 32768, 60999
