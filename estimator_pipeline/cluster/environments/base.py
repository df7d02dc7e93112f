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
    """A scheduler's description of one start of a job and of this process.

    Attributes:
        environment: The environment's name.
        job_id: The same on every task of the job, and different for other jobs that may share a host.
        rank: The number of this process among the tasks, from 0.
        size: The number of tasks; None if the environment does not set it (then the job file does).
        hosts: The host of each task, by rank; None if the environment does not set it.
        host_pattern: instead of `hosts`: a host name with `{index}`, and with `{role}` where `role` is given.
        own_host: the name or address by which this process's host is known to the others, where that is known.
        role: The task type, if the environment assigns it; `rank` is then the index of the task.
        restart: The number of restarts of this job.
        start_id: A text that is unique to this start; None if unknown.
        inferred: Whether the rank was inferred from the position of this host in a list, because the processes are
            not numbered. A process that was started only once looks the same.
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
        """Read the allocation from the variables.

        Args:
            environ: The environment variables.
            hostname: what this machine calls itself.

        Raises:
            ClusterError: A variable is missing, or contradicts another.
        """


def contradiction(source: str, message: str, *, found: str, hint: str) -> ClusterError:
    """Return an error of an environment, with the values and a hint."""
    return ClusterError(f"{source}: {message}.", code="cluster/contradiction", found=found, hint=hint)


def required(environ: Mapping[str, str], name: str, *, source: str) -> str:
    """Return a variable's text without outer whitespace.

    Raises:
        ClusterError: It is not set, or empty.
    """
    text = environ.get(name, "").strip()
    if not text:
        raise contradiction(
            source,
            f"the variable {name} is {'empty' if name in environ else 'not set'}",
            found=f"an environment that looks like a task of {source} otherwise",
            hint=f"start the task so that {name} is set, or set --environment none if it is not a task.",
        )
    return text


def whole_number(environ: Mapping[str, str], name: str, *, source: str, default: int | None = None) -> int:
    """Return a variable that holds a whole number from 0 on; `default` where it is not set.

    Raises:
        ClusterError: It is something else, or not set and without a default.
    """
    if default is not None and not environ.get(name, "").strip():
        return default
    text = required(environ, name, source=source)
    if not re.fullmatch(r"[0-9]+", text):
        raise contradiction(
            source,
            f"{name}={text!r} is not a whole number from 0 on",
            found=repr(text),
            hint=f"leave {name} as {source} sets it.",
        )
    return int(text)


def in_file(environ: Mapping[str, str], name: str, *, source: str) -> list[list[str]]:
    """Return the words of each line of the file that a variable names; empty lines are left out.

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
    """Return the index of this machine in a list of distinct hosts; domain names are optional on either side.

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
        hint="start one task on each host of the job, or set --environment none to train in one process.",
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
    """Return the allocation of a scheduler that lists hosts only: one task a host, in its order."""
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


def _equal(first: str, second: str) -> bool:
    return first.lower() == second.lower()


def _equal_but_for_the_domain(first: str, second: str) -> bool:
    parts, others = first.lower().split("."), second.lower().split(".")
    # Two full names with different domains are two hosts.
    return parts[0] == others[0] and (len(parts) == 1 or len(others) == 1)
