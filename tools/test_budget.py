"""What the tests of `make test` may take: seconds of processors, by room and tier, in tests/budget.toml.

    TEST_TIMES=FILE make test; python tools/test_budget.py FILE     writes the budget anew, from what was measured

A room is a folder of tests/, or `tests` for the files beside them. .ci/run ends red where all together take more than
`ALLOWED` times the sum, and prints what grew most: a test of more than a second needs a reason, or the mark
`nightly`. Machines differ by more than that, and one that others share does from hour to hour: an import of TensorFlow
is timed before the tests and after them, as it was when the budget was written, and the slower of the two counts.
"""

from __future__ import annotations

import collections
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

BUDGET = Path(__file__).resolve().parents[1] / "tests" / "budget.toml"
ALLOWED = 1.2
WORST = 10

# (seconds, tier, test)
Times = Sequence[tuple[float, str, str]]
# (room, tier) -> seconds
Budget = Mapping[tuple[str, str], float]


def read_times(text: str) -> list[tuple[float, str, str]]:
    """Return what TEST_TIMES holds."""
    fields = (line.split(" ", 3) for line in text.splitlines())
    return [(float(seconds), tier, test) for seconds, _, tier, test in fields if tier != "-"]  # else not even collected


def sums(times: Times) -> dict[tuple[str, str], float]:
    """Seconds by room and tier."""
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for seconds, tier, test in times:
        found[room_of(test), tier] += seconds
    return dict(found)


def room_of(test: str) -> str:
    """Return the folder of a test, by its name."""
    path = test.partition("::")[0].split("/")
    return path[1] if len(path) > 2 else "tests"


def machine_seconds() -> float:
    """What an import of TensorFlow takes here, of several the one in the middle: what tests do is much like it."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, env=environ, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return statistics.median(once() for _ in range(3))


def read(path: Path) -> tuple[float, dict[tuple[str, str], float]]:
    """(seconds of `machine_seconds` where it was written, the budget)."""
    # Python 3.10 has no TOML in its standard library; what `write` writes is lines of one form.
    room, machine, budget = "", 0.0, {}
    for line in path.read_text().splitlines():
        name, found, value = (part.strip() for part in line.partition("#")[0].partition("="))
        if name.startswith("["):
            room = name.strip("[]")
        elif found and name == "machine":
            machine = float(value)
        elif found:
            budget[room, name] = float(value)
    return machine, budget


def text_of(machine: float, budget: Budget) -> str:
    """Return the file."""
    lines = [
        "# Seconds of processors for the tests of `make test`, by room and tier; written by tools/test_budget.py.",
        "",
    ]
    lines += [f"machine = {machine:.2f}  # seconds of an import of TensorFlow, where these were measured"]
    rooms = sorted({room for room, _ in budget})
    for room in rooms:
        lines += ["", f"[{room}]"]
        lines += [f"{tier} = {seconds:.1f}" for (of, tier), seconds in sorted(budget.items()) if of == room]
    return "\n".join(lines) + "\n"


def compared(written: tuple[float, Budget], times: Times, *, machine: float) -> tuple[str, bool]:
    """Return (what to print, whether the budget is kept where `machine_seconds` is `machine`)."""
    reference, budget = written
    speed = machine / reference
    found = sums(times)
    taken, written_sum = sum(found.values()), sum(budget.values())
    allowed = ALLOWED * speed * written_sum
    lines = [
        f"Budget of the tests: {taken:.0f} s taken, {allowed:.0f} s allowed ({ALLOWED:.0%} of {written_sum:.0f} s "
        f"on a machine that takes {speed:.2f} times as long as the one of tests/budget.toml)."
    ]
    if taken > allowed:
        grown = {key: seconds - speed * budget.get(key, 0.0) for key, seconds in found.items()}
        lines.append(f"The {WORST} that grew most:")
        for room, tier in sorted(grown, key=lambda key: -grown[key])[:WORST]:
            told, now = speed * budget.get((room, tier), 0.0), found[room, tier]
            lines.append(f"  {room} ({tier}): {now:.1f} s, of {told:.1f} s")
        lines.append(f"The {WORST} longest tests; one of more than a second needs a reason, or the mark nightly:")
        lines += [f"  {seconds:6.1f} s  {test}" for seconds, _, test in sorted(times, reverse=True)[:WORST]]
    return "\n".join(lines), taken <= allowed


if __name__ == "__main__":
    BUDGET.write_text(text_of(machine_seconds(), sums(read_times(Path(sys.argv[1]).read_text()))))
