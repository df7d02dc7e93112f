"""Budget of CPU seconds for the tests of `make test`, by room and tier, in tests/budget.toml.

    TEST_TIMES=FILE make test; python tools/test_budget.py FILE     write the budget from measured times

A room is a folder of tests/, or `tests` for files outside the folders. .ci/run fails if all tests together take more
than `ALLOWED` times the budget, and prints what grew most: a test of more than a second needs a reason, or the mark
`nightly`. Machines differ by more than that, and a shared machine varies within minutes. Therefore the budget is
scaled by the time of an import of TensorFlow before and after the tests, or by the tests themselves if they show a
slower machine: by the median of their factors, weighted by seconds. Only what grew more than the rest exceeds it.
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
    """Parse the file of TEST_TIMES."""
    fields = (line.split(" ", 3) for line in text.splitlines())
    return [(float(seconds), tier, test) for seconds, _, tier, test in fields if tier != "-"]  # "-": not collected


def sums(times: Times) -> dict[tuple[str, str], float]:
    """Return the seconds by room and tier."""
    seconds_by_key: collections.Counter[tuple[str, str]] = collections.Counter()
    for seconds, tier, test in times:
        seconds_by_key[room_of(test), tier] += seconds
    return dict(seconds_by_key)


def room_of(test: str) -> str:
    """Return the folder of a test, by its name."""
    path = test.partition("::")[0].split("/")
    return path[1] if len(path) > 2 else "tests"


def machine_seconds() -> float:
    """Return the median CPU seconds of an import of TensorFlow, which is typical of the work of tests."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, env=environ, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return statistics.median(once() for _ in range(3))


def read(path: Path) -> tuple[float, dict[tuple[str, str], float]]:
    """Return (`machine_seconds` of the machine that wrote the budget, the budget)."""
    # Python 3.10 has no TOML parser in its standard library; the file has only the lines of `text_of`.
    room, machine, budget = "", 0.0, {}
    for line in path.read_text().splitlines():
        name, separator, value = (part.strip() for part in line.partition("#")[0].partition("="))
        if name.startswith("["):
            room = name.strip("[]")
        elif separator and name == "machine":
            machine = float(value)
        elif separator:
            budget[room, name] = float(value)
    return machine, budget


def text_of(machine: float, budget: Budget) -> str:
    """Return the text of the budget file."""
    lines = [
        "# CPU seconds for the tests of `make test`, by room and tier; written by tools/test_budget.py.",
        "",
    ]
    lines += [f"machine = {machine:.2f}  # seconds of an import of TensorFlow on the machine of the measurement"]
    rooms = sorted({room for room, _ in budget})
    for room in rooms:
        lines += ["", f"[{room}]"]
        lines += [f"{tier} = {seconds:.1f}" for (of, tier), seconds in sorted(budget.items()) if of == room]
    return "\n".join(lines) + "\n"


def speed_of(budget: Budget, measured: Budget) -> float:
    """Return the weighted median of the measured times, relative to the budget."""
    factors = sorted((measured.get(key, 0.0) / seconds, seconds) for key, seconds in budget.items() if seconds)
    half = sum(seconds for _, seconds in factors) / 2
    for factor, seconds in factors:
        half -= seconds
        if half <= 0:
            return factor
    return 0.0


def compare(written: tuple[float, Budget], times: Times, *, machine: float) -> tuple[str, bool]:
    """Return (the report, whether the budget is kept on a machine whose `machine_seconds` is `machine`)."""
    reference, budget = written
    measured = sums(times)
    speed = max(machine / reference, speed_of(budget, measured))
    taken, written_sum = sum(measured.values()), sum(budget.values())
    allowed = ALLOWED * speed * written_sum
    lines = [
        f"Budget of the tests: {taken:.0f} s taken, {allowed:.0f} s allowed ({ALLOWED:.0%} of {written_sum:.0f} s "
        f"on a machine that takes {speed:.2f} times as long as the one of tests/budget.toml)."
    ]
    if taken > allowed:
        grown = {key: seconds - speed * budget.get(key, 0.0) for key, seconds in measured.items()}
        lines.append(f"The {WORST} that grew most:")
        for room, tier in sorted(grown, key=lambda key: -grown[key])[:WORST]:
            budgeted, now = speed * budget.get((room, tier), 0.0), measured[room, tier]
            lines.append(f"  {room} ({tier}): {now:.1f} s, of {budgeted:.1f} s")
        lines.append(f"The {WORST} longest tests; one of more than a second needs a reason, or the mark nightly:")
        lines += [f"  {seconds:6.1f} s  {test}" for seconds, _, test in sorted(times, reverse=True)[:WORST]]
    return "\n".join(lines), taken <= allowed


if __name__ == "__main__":
    BUDGET.write_text(text_of(machine_seconds(), sums(read_times(Path(sys.argv[1]).read_text()))))
