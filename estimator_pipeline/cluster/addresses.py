"""Parsing and checks of the addresses in a cluster description.

Separate from tasks and documents, because code that builds a cluster from other sources checks single
addresses. Imports no TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from estimator_pipeline.errors import ClusterError
from estimator_pipeline.utils.text import few

__all__ = [
    "check_address",
    "check_distinct",
    "check_jobs",
    "check_loopback",
    "host_of",
    "is_loopback",
    "read_addresses",
]

_HOST = re.compile(r"[^\s/:@,;'\"\[\]]+")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+(%[^\]\s]+)?\]")


def check_address(address: object, *, where: str) -> str:
    """Check one "host:port" and return it without outer whitespace.

    Args:
        address: The value of the address in the document.
        where: The prefix of messages ("TF_CONFIG: worker:1").

    Returns:
        The address, with an IPv6 host in brackets, as gRPC requires, and the port without leading zeros.

    Raises:
        ClusterError: The address is not text, has a scheme, no host, no port, or a port outside 1 to 65535.
    """
    if not isinstance(address, str):
        raise ClusterError(
            f"{where} has the address {address!r}, which is not text.",
            code="cluster/bad-address",
            found=f'a value of type {type(address).__name__}; allowed: text of the form "host:port"',
            hint='write the address in quotes, for example "localhost:2222".',
        )
    text = address.strip()
    if "://" in text:
        bare = text.split("://", 1)[1].rstrip("/")
        raise ClusterError(
            f"{where} has the address {text!r}, which begins with a scheme.",
            code="cluster/bad-address",
            found=f'{text!r}; allowed: only "host:port", TensorFlow adds the scheme',
            hint=f'write {bare!r}; a transport other than grpc goes into the top-level key "rpc_layer".',
        )
    host, colon, port = text.rpartition(":")
    if not text.startswith("[") and text.count(":") > 1:
        raise ClusterError(
            f"{where} has the address {text!r}, which has more than one colon.",
            code="cluster/bad-address",
            found=f'{text!r}; allowed: "host:port", with an IPv6 host in brackets',
            hint='write an IPv6 address as "[::1]:2222"; give any other host one port.',
        )
    if not colon or (text.startswith("[") and text.endswith("]")):
        raise ClusterError(
            f"{where} has the address {text!r}, which has no port.",
            code="cluster/bad-address",
            found=f'{text!r}; allowed: "host:port"',
            hint=f'add the port that the task listens on, for example "{text or "localhost"}:2222".',
        )
    if not (_HOST.fullmatch(host) or _IPV6.fullmatch(host)):
        raise ClusterError(
            f"{where} has the address {text!r}, whose host {host!r} cannot be one.",
            code="cluster/bad-address",
            found=f"{host!r}; allowed: a host name, an IPv4 address, or an IPv6 address in brackets",
            hint='write the host at which the other tasks reach it, for example "node-1:2222".',
        )
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ClusterError(
            f"{where} has the address {text!r}, whose port {port!r} cannot be one.",
            code="cluster/bad-address",
            found=f"{port!r}; allowed: a whole number from 1 to 65535",
            hint="write the port that the task listens on; 0 (any port) is not possible, as others must know it.",
        )
    return f"{host}:{int(port)}"


def read_addresses(value: object, *, job: str, source: str) -> tuple[str, ...]:
    """Read one job's addresses from a list, or from an object with the addresses by index.

    Args:
        value: `["a:1", "b:1"]`, or `{"0": "a:1", "1": "b:1"}` (which TensorFlow's ClusterSpec also accepts).
        job: The job's name, for messages.
        source: Where the document came from, for messages.

    Returns:
        The addresses in order of their index, each checked.

    Raises:
        ClusterError: The value is not a list, is empty, lacks an index, or has an invalid address.
    """
    where = f"{source}: job {job!r}"
    if isinstance(value, Mapping):
        value = _dense(value, where=where)
    if not isinstance(value, (list, tuple)):
        raise ClusterError(
            f"{where} is {value!r}, which is not a list of addresses.",
            code="cluster/bad-address",
            found=f"a value of type {type(value).__name__}; allowed: a list, one address per task",
            hint=f'write "{job}": ["host:port", ...], with brackets also for a single task.',
        )
    if not value:
        raise ClusterError(
            f"{where} is an empty list.",
            code="cluster/bad-address",
            found="0 addresses; allowed: at least one",
            hint=f'leave the key "{job}" out, or name its tasks.',
        )
    return tuple(check_address(item, where=f"{source}: {job}:{i}") for i, item in enumerate(value))


def check_jobs(jobs: Mapping[str, Iterable[str]], *, source: str) -> None:
    """Check the addresses of the servers of a cluster, as for a TF_CONFIG document.

    Args:
        jobs: The addresses by job, without the evaluator.
        source: Where they came from, for messages.

    Raises:
        ClusterError: An address is invalid, two tasks share one, or some are loopback addresses and others are not.
    """
    checked = {
        job: [check_address(address, where=f"{source}: {job}:{i}") for i, address in enumerate(addresses)]
        for job, addresses in jobs.items()
    }
    check_distinct(checked, source=source)
    check_loopback(checked, source=source)


def check_distinct(jobs: Mapping[str, Iterable[str]], *, source: str) -> None:
    """Reject two tasks with the same address.

    TensorFlow's server listens on all interfaces, so all names of the local machine are one host.

    Raises:
        ClusterError: Two tasks have the same address.
    """
    seen: dict[tuple[str, str], str] = {}
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            task, host = f"{job}:{index}", host_of(address)
            key = ("localhost" if is_loopback(host) else host.rstrip("."), address.rpartition(":")[2])
            other = seen.setdefault(key, task)
            if other != task:
                raise ClusterError(
                    f"{source}: {other} and {task} have the same address {address!r}.",
                    code="cluster/bad-address",
                    found="two tasks at one port; allowed: a different address for each task",
                    hint=f"give {task} a different host or port.",
                )


def check_loopback(jobs: Mapping[str, Iterable[str]], *, source: str) -> None:
    """Reject loopback names beside other hosts, because each machine connects to itself at such a name.

    Args:
        jobs: The addresses of the tasks that others connect to, by job; the evaluator has no server.
        source: Where the document came from, for messages.

    Raises:
        ClusterError: Some tasks have a loopback address, and others do not.
    """
    addresses = {f"{job}:{index}": a for job, tasks in jobs.items() for index, a in enumerate(tasks)}
    local = [task for task, address in addresses.items() if is_loopback(host_of(address))]
    others = [task for task in addresses if task not in local]
    if local and others:
        host = addresses[local[0]].rpartition(":")[0]
        raise ClusterError(
            f"{source}: {few(local)} at {addresses[local[0]]}, and {few(others)} at {addresses[others[0]]}.",
            code="cluster/bad-address",
            found=f"{host}, which on each machine means that machine: the other tasks would connect to themselves, "
            "and hang",
            hint=f"write the host name or IP address of {few(local)} that the other machines use, the same in the "
            "TF_CONFIG of every task.",
        )


def _dense(value: Mapping[Any, Any], *, where: str) -> list[Any]:
    """Convert {"0": a, "1": b} to [a, b]; gaps are rejected, because ranks follow from the indices."""
    by_index: dict[int, Any] = {}
    for key, address in value.items():
        if isinstance(key, bool) or not re.fullmatch(r"\d+", str(key)):
            raise ClusterError(
                f"{where} has the index {key!r}, which is not a number.",
                code="cluster/bad-address",
                found=f"{key!r}; allowed: a list, or an object from the indices 0, 1, ... to addresses",
                hint='write the job as a list: ["host:port", ...].',
            )
        by_index[int(str(key))] = address
    missing = sorted(set(range(max(by_index, default=-1) + 1)) - set(by_index))
    if missing or len(by_index) != len(value):
        raise ClusterError(
            f"{where} leaves out the index {missing[0]}." if missing else f"{where} names one index twice.",
            code="cluster/bad-address",
            found=f"the indices {sorted(by_index)}; allowed: every index from 0 on, once",
            hint="name all tasks of the job; synchronous training on a sparse cluster is not possible, because the "
            "other tasks would never be connected.",
        )
    return [by_index[i] for i in range(len(by_index))]


_LOOPBACK = ("localhost", "::1", "ip6-localhost")


def host_of(address: str) -> str:
    """Return the host of "host:port", an IPv6 host without brackets."""
    return address.rpartition(":")[0].strip("[]").lower()


def is_loopback(host: str) -> bool:
    """Return whether a name or address means "this machine" on every machine."""
    return host.startswith("127.") or host in _LOOPBACK or host.endswith(".localhost")
