"""Slurm's short forms: host lists with ranges, and counts with repetitions.

Checked against `scontrol show hostnames` of Slurm 22.05: the order is that of the text, zero padding is kept, equal
names stay, and of several brackets in one name the last turns fastest. Slurm's own forms are described in
https://slurm.schedmd.com/slurm.conf.html (NodeName) and https://slurm.schedmd.com/sbatch.html (SLURM_TASKS_PER_NODE).
"""

from __future__ import annotations

import itertools
import re

from estimator_pipeline.cluster.environments.base import contradiction
from estimator_pipeline.errors import ClusterError

__all__ = ["MAX_HOSTS", "expand_counts", "expand_hosts"]

MAX_HOSTS = 65536
"""Slurm's own limit for the nodes of a system; a longer list is a typing error."""

_PART = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


def expand_hosts(text: str, *, source: str = "slurm", variable: str = "the host list") -> list[str]:
    """`n[001-002,7],gpu[1-2]-ib0` -> n001, n002, n7, gpu1-ib0, gpu2-ib0.

    Args:
        text: The list, as Slurm writes it.
        source: The environment, for messages.
        variable: Where the text comes from, for messages.

    Returns:
        The names, in the order of the text.

    Raises:
        ClusterError: The text is not a host list, or has more than `MAX_HOSTS` names.
    """
    hosts: list[str] = []
    for item in _split(text, source=source, variable=variable):
        choices: list[list[str]] = []
        size = 1
        for literal, inside in _parts(item):
            choices.append([literal])
            if inside is not None:
                numbers = _numbers(inside, text=text, source=source, variable=variable, room=MAX_HOSTS - len(hosts))
                choices.append(numbers)
                size *= len(numbers)
        if len(hosts) + size > MAX_HOSTS:
            raise _too_many(text, source=source, variable=variable)
        hosts += ["".join(chosen) for chosen in itertools.product(*choices)]
    return hosts


def expand_counts(text: str, *, source: str = "slurm", variable: str = "the counts") -> list[int]:
    """`2(x3),1` -> 2, 2, 2, 1.

    Raises:
        ClusterError: The text is not a list of counts.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = _COUNT.fullmatch(item.strip())
        repeated = int(match[2] or 1) if match else 0
        if match is None or repeated == 0 or len(counts) + repeated > MAX_HOSTS:
            raise contradiction(
                source,
                f"{variable}={text!r} is not a list of tasks for each node",
                found=f"the part {item!r}",
                hint=f'leave {variable} as Slurm sets it, such as "2(x3),1".',
            )
        counts += [int(match[1])] * repeated
    return counts


def _split(text: str, *, source: str, variable: str) -> list[str]:
    """Return the items between the commas outside of brackets."""
    items, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        if depth not in (0, 1):
            break
        if letter == "," and depth == 0:
            items.append(text[start:i])
            start = i + 1
    items.append(text[start:])
    stripped = [item.strip() for item in items]
    if depth != 0 or not all(stripped) or any(re.search(r"\s", item) for item in stripped):
        raise _malformed(text, source=source, variable=variable, part=text)
    return stripped


def _parts(item: str) -> list[tuple[str, str | None]]:
    """`gpu[1-2]-ib[0-1]` -> ("gpu", "1-2"), ("-ib", "0-1")."""
    return [(match[1], match[2]) for match in _PART.finditer(item) if match[0]]


def _numbers(inside: str, *, text: str, source: str, variable: str, room: int) -> list[str]:
    numbers: list[str] = []
    for item in inside.split(","):
        low, dash, high = item.strip().partition("-")
        if not re.fullmatch(r"[0-9]+", low) or (dash and not re.fullmatch(r"[0-9]+", high)):
            raise _malformed(text, source=source, variable=variable, part=f"[{inside}]")
        first, last = int(low), int(high or low)
        if last < first:
            raise _malformed(text, source=source, variable=variable, part=f"[{inside}]")
        if last - first + 1 + len(numbers) > room:
            raise _too_many(text, source=source, variable=variable)
        # The width of the lower end is that of all: [08-10] is 08, 09, 10, and [8-10] is 8, 9, 10.
        numbers += [str(number).zfill(len(low)) for number in range(first, last + 1)]
    return numbers


def _malformed(text: str, *, source: str, variable: str, part: str) -> ClusterError:
    return contradiction(
        source,
        f"{variable}={text!r} is not a host list",
        found=f"the part {part!r}; allowed: names with ranges such as n[001-003,7],gpu1",
        hint=f"leave {variable} as Slurm sets it.",
    )


def _too_many(text: str, *, source: str, variable: str) -> ClusterError:
    return contradiction(
        source,
        f"{variable}={text[:80]!r} names more than {MAX_HOSTS} hosts",
        found="a range that is far too wide",
        hint=f"leave {variable} as Slurm sets it.",
    )
