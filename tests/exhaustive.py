"""Which tests `make test` leaves out: exhaustive.txt, read and applied.

A line is a pattern of test names, `*` standing for anything; one that begins with `!` takes tests back in. The last
line that fits a test decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

LIST = Path(__file__).with_name("exhaustive.txt")


def rules(text: str) -> list[tuple[str, bool, re.Pattern[str]]]:
    """(line, whether it leaves out, what it fits) of each line that is no comment."""
    lines = [line.strip() for line in text.splitlines()]
    return [
        (line, not line.startswith("!"), re.compile(".*".join(map(re.escape, line.removeprefix("!").split("*"))), re.S))
        for line in lines
        if line and not line.startswith("#")
    ]


def chooser(text: str) -> Callable[[str], bool]:
    """Tells of a test's name whether it is left out."""
    reversed_rules = rules(text)[::-1]

    def is_left_out(name: str) -> bool:
        return next((leaves_out for _, leaves_out, fits in reversed_rules if fits.fullmatch(name)), False)

    return is_left_out


def without_a_test(text: str, names: Iterable[str]) -> list[str]:
    """The lines that fit no test at all: what they were about has another name now."""
    names = list(names)
    return [line for line, _, fits in rules(text) if not any(fits.fullmatch(name) for name in names)]


def idle(text: str, names: Iterable[str]) -> list[str]:
    """The lines without which the same tests were left out: each fits what other lines say as well."""
    listed = rules(text)
    used: set[int] = set()
    for name in names:
        fitting = [number for number, (_, _, fits) in enumerate(listed) if fits.fullmatch(name)]
        if fitting:
            *before, last = fitting
            without = listed[before[-1]][1] if before else False
            if without != listed[last][1]:
                used.add(last)
    return [line for number, (line, _, _) in enumerate(listed) if number not in used]
