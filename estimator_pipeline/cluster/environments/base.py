"""What every environment gives, and what they share: reading variables and host files, and one kind of error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from estimator_pipeline.cluster.tasks import TFConfig
from estimator_pipeline.errors import ClusterError

__all__ = [
    "Allocation",
    "Environment",
    "contradiction",
    "in_file",
    "on_own_host",
    "own_place",
    "required",
    "whole_number",
]


@dataclass(frozen=True)
class Allocation:
    """What a scheduler says about one start of a job, and about this process in it.

    Attributes:
        environment: the environment's name.
        job_id: the same on every task of the job, and another one for each other job that may share a host with it.
        rank: this process's number among the tasks, from 0.
        size: how many tasks there are; None where the environment does not say (then the job file does).
        hosts: the host of each task, by rank; None where the environment does not say.
        host_pattern: instead of `hosts`: a host name with `{index}`, and with `{role}` where `role` is given.
        own_host: the name or address by which this process's host is known to the others, where that is known.
        role: the task type that the environment itself has given this process; `rank` is then its index.
        restart: how often this job has been started again.
        start_id: a text that no other start of this or of another job has; None where there is none.
        inferred: whether the rank was found by looking for this host in a list, since nothing numbers the processes.
            A process that was started only once looks the same.
        tf_config: the whole cluster, where the environment describes it itself; nothing else is looked at then.
        notes: what a person should know.
    """

    environment: str
    job_id: str
    rank: int = 0
    size: int | None = None
    hosts: tuple[str, ...] | None = None
    host_pattern: str | None = None
    own_host: str | None = None
    role: str | None = None
    restart: int = 0
    start_id: str | None = None
    inferred: bool = False
    tf_config: TFConfig | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.size is not None and not 0 <= self.rank < self.size:
            raise contradiction(
                self.environment,
                f"the rank {self.rank} is not one of {self.size} tasks",
                found=f"ranks 0 to {self.size - 1}" if self.size else "no task at all",
                hint="start all tasks by one call of the scheduler's launcher, which sets these variables itself.",
            )
        if self.hosts is not None and len(self.hosts) != self.size:
            raise contradiction(
                self.environment,
                f"there are {self.size} tasks, and the hosts of {len(self.hosts)}",
                found=f"the hosts {', '.join(self.hosts) or 'of none'}",
                hint="start all tasks by one call of the scheduler's launcher, which sets these variables itself.",
            )


class Environment(Protocol):
    """One scheduler, platform or launcher."""

    @property
    def name(self) -> str:
        """What a person calls it, and what `--environment` takes."""

    @property
    def variables(self) -> tuple[str, ...]:
        """What it reads."""

    def matches(self, environ: Mapping[str, str]) -> bool:
        """Whether this process is a task that this environment has started."""

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        """What the environment says.

        Args:
            environ: the variables.
            hostname: what this machine calls itself.

        Raises:
            ClusterError: A variable is missing, or contradicts another.
        """


def contradiction(source: str, what: str, *, found: str, hint: str) -> ClusterError:
    """The error of an environment: what is wrong, with the values, and what to change."""
    return ClusterError(f"{source}: {what}.", code="cluster/contradiction", found=found, hint=hint)


def required(environ: Mapping[str, str], name: str, *, source: str) -> str:
    """A variable's text without outer whitespace.

    Raises:
        ClusterError: It is not set, or empty.
    """
    text = environ.get(name, "").strip()
    if not text:
        raise contradiction(
            source,
            f"the variable {name} is {'empty' if name in environ else 'not set'}",
            found=f"an environment that looks like a task of {source} otherwise",
            hint=f"start the task so that {name} reaches it, or say --environment none if it is none.",
        )
    return text


def whole_number(environ: Mapping[str, str], name: str, *, source: str, default: int | None = None) -> int:
    """A variable that holds a whole number from 0 on; `default` where it is not set.

    Raises:
        ClusterError: It is something else, or not set and without a default.
    """
    if default is not None and not environ.get(name, "").strip():
        return default
    text = required(environ, name, source=source)
    if not re.fullmatch(r"[0-9]+", text):
        raise contradiction(
            source,
            f"{name}={text!r} is no whole number from 0 on",
            found=repr(text),
            hint=f"leave {name} as {source} sets it.",
        )
    return int(text)


def in_file(environ: Mapping[str, str], name: str, *, source: str) -> list[list[str]]:
    """The words of each line of the file that a variable names; empty lines are left out.

    Raises:
        ClusterError: The variable is not set, the file cannot be read, or has no line.
    """
    path = required(environ, name, source=source)
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise contradiction(
            source,
            f"{name}={path} cannot be read",
            found=str(error),
            hint="run on a host of the job, where the scheduler has written this file.",
        ) from error
    if not lines:
        raise contradiction(source, f"{name}={path} is empty", found="no host", hint="ask the scheduler for a host.")
    return lines


def own_place(hosts: Sequence[str], hostname: str, *, source: str, variable: str) -> int:
    """The place of this machine in a list of hosts, each named once; domain names may be left out on either side.

    Raises:
        ClusterError: It is not in the list, or fits two names of it.
    """
    for same in (_equal, _equal_but_for_the_domain):
        places = [i for i, host in enumerate(hosts) if same(host, hostname)]
        if len(places) == 1:
            return places[0]
    raise contradiction(
        source,
        f"this host {hostname!r} is {'more than once' if places else 'not'} in {variable}",
        found=f"the hosts {', '.join(hosts)}",
        hint="start one task on each host of the job, or say --environment none to train alone.",
    )


def on_own_host(
    source: str,
    hosts: Sequence[str],
    hostname: str,
    *,
    variable: str,
    job_id: str,
    restart: int = 0,
    notes: tuple[str, ...] = (),
) -> Allocation:
    """The allocation of a scheduler that gives hosts and numbers no processes: one task a host, in its order."""
    once = tuple(dict.fromkeys(hosts))
    rank = own_place(once, hostname, source=source, variable=variable)
    return Allocation(
        environment=source,
        job_id=job_id,
        rank=rank,
        size=len(once),
        hosts=once,
        own_host=once[rank],
        restart=restart,
        inferred=True,
        notes=notes,
    )


def _equal(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _equal_but_for_the_domain(one: str, other: str) -> bool:
    first, second = one.lower().split("."), other.lower().split(".")
    # Two full names of different domains are two hosts.
    return first[0] == second[0] and (len(first) == 1 or len(second) == 1)
