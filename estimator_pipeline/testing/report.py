"""What checks find: outcomes, the report over all of them, and the one error that a failed suite raises.

A suite is a list of small named checks on one subject. A check that cannot be judged is skipped, with the reason; one
that cannot be judged because another check failed says which. So a single fault gives a single failure.
"""

from __future__ import annotations

import functools
import os
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = [
    "CheckOutcome",
    "ComplianceCheck",
    "ComplianceError",
    "ComplianceFinding",
    "ComplianceReport",
    "Skip",
    "parametrize_with_checks",
]

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@dataclass(frozen=True)
class CheckOutcome:
    """What one check came to.

    Attributes:
        name: The check's name.
        state: "passed", "failed" or "skipped".
        found: Failed: what was found, with values. Skipped: why. Passed: what is worth knowing, often empty.
        hint: Failed: what to change.
        error: The exception of the code under test, where that is what was found.
    """

    name: str
    state: str
    found: str = ""
    hint: str = ""
    error: BaseException | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.state}"]
        if self.found:
            lines.append(f"  {'found' if self.state == FAILED else 'note'}: {self.found}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


@dataclass(frozen=True)
class ComplianceReport:
    """The outcomes of a suite, in the order of its checks. `str()` of it is what a person reads.

    Attributes:
        subject: What was checked.
        outcomes: One for each check.
    """

    subject: str
    outcomes: tuple[CheckOutcome, ...]

    def _in(self, state: str) -> tuple[CheckOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.state == state)

    @property
    def passed(self) -> tuple[CheckOutcome, ...]:
        """The checks that passed."""
        return self._in(PASSED)

    @property
    def failed(self) -> tuple[CheckOutcome, ...]:
        """The checks that failed."""
        return self._in(FAILED)

    @property
    def skipped(self) -> tuple[CheckOutcome, ...]:
        """The checks that could not be judged, or were left out."""
        return self._in(SKIPPED)

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def raise_on_failure(self) -> ComplianceReport:
        """Raises ComplianceError if a check failed; returns the report otherwise."""
        if self.failed:
            raise ComplianceError(self) from self.failed[0].error
        return self

    def __str__(self) -> str:
        counts = f"{len(self.failed)} failed, {len(self.passed)} passed, {len(self.skipped)} skipped"
        ordered = [*self.failed, *self.skipped, *self.passed]
        return "\n".join([f"{self.subject}: {counts}", *map(str, ordered)])


class ComplianceError(AssertionError):
    """Checks failed; the message names each of them, with what was found and what to change.

    Attributes:
        report: The whole Report.
    """

    def __init__(self, report: ComplianceReport) -> None:
        self.report = report
        failed = report.failed
        count = f"{len(failed)} check{'s' if len(failed) > 1 else ''} of {len(report.outcomes)} failed"
        super().__init__("\n".join([f"{report.subject}: {count}", *map(str, failed)]))


class ComplianceFinding(Exception):
    """Raised by a check: the subject is at fault."""

    def __init__(self, found: str, *, hint: str, error: BaseException | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.hint = hint
        self.error = error


class Skip(Exception):
    """Raised by a check that cannot be judged; the text says why, and how it could be."""


class Blocked(Exception):
    """What several checks need cannot be had; `owner` is the check whose business it is to tell."""

    def __init__(self, owner: str, finding: ComplianceFinding) -> None:
        super().__init__(owner)
        self.owner = owner
        self.finding = finding


def shared(owner: str, *, hint: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a method of a subject run once for each set of arguments; its failure belongs to the check `owner`.

    Args:
        owner: The check that reports the failure. All others that need the value are skipped.
        hint: What to change when the code under test raises an exception.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def once(self: Any, *args: Any) -> Any:
            kept = self.__dict__.setdefault("_kept", {})
            key = (method.__name__, *args)
            if key not in kept:
                try:
                    kept[key] = (method(self, *args), None)
                except (Blocked, Skip) as error:
                    kept[key] = (None, error)
                except ComplianceFinding as finding:
                    kept[key] = (None, Blocked(owner, finding))
                except Exception as error:
                    kept[key] = (None, Blocked(owner, ComplianceFinding(tell(error), hint=hint, error=error)))
            value, failure = kept[key]
            if failure is not None:
                raise failure.with_traceback(None)
            return value

        return once

    return decorate


def tell(error: BaseException) -> str:
    """An exception in one line: its type, the beginning of its text, and the caller's own line that led to it."""
    # TensorFlow puts the whole stack that led to the operation before what was wrong with it.
    at_node = re.search(r"Node: '[^']*'\n(.*?)(?:\n\t \[\[|\n\nOriginal stack|\Z)", str(error), re.DOTALL)
    lines = [line.strip() for line in (at_node[1] if at_node else str(error)).splitlines() if line.strip()]
    text = " ".join(lines)
    text = text if len(text) <= 400 else text[:400] + "…"
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        foreign = f"{os.sep}site-packages{os.sep}" in frame.filename or frame.filename.startswith(_PACKAGE + os.sep)
        if not foreign and os.path.isfile(frame.filename):
            where = f" (line {frame.lineno} of {os.path.basename(frame.filename)}, in {frame.name})"
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


@dataclass(frozen=True)
class Definition:
    """A check as its module defines it: `run(subject)` returns a note or None, or raises Finding or Skip."""

    name: str
    says: str
    run: Callable[[Any], str | None]


def define(table: list[Definition]) -> Callable[[Callable[[Any], str | None]], Callable[[Any], str | None]]:
    """Decorator: adds a function to a table of checks, under its own name and with its docstring's first line."""

    def add(function: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        says = (function.__doc__ or "").strip().splitlines()[0]
        table.append(Definition(function.__name__, says, function))
        return function

    return add


class ComplianceCheck:
    """One check on one subject. Checks of a suite share what they have read and run, so each is cheap.

    Attributes:
        name: Its name, which `skip=` and `only=` take.
        says: What it holds, in one sentence.
    """

    def __init__(self, definition: Definition, suite: Suite) -> None:
        self.name = definition.name
        self.says = definition.says
        self._definition = definition
        self._suite = suite

    def run(self) -> CheckOutcome:
        """Runs the check; what it finds is returned, not raised."""
        suite = self._suite
        if self.name in suite.skip:
            return CheckOutcome(self.name, SKIPPED, "left out by skip=")
        subject = suite.subject()
        try:
            note = self._definition.run(subject)
        except Skip as skip:
            return CheckOutcome(self.name, SKIPPED, str(skip))
        except ComplianceFinding as finding:
            return CheckOutcome(self.name, FAILED, finding.found, finding.hint, finding.error)
        except Blocked as blocked:
            cause = blocked.finding
            told_there = blocked.owner != self.name and blocked.owner in suite.running
            if told_there:
                return CheckOutcome(self.name, SKIPPED, f"cannot be judged; {blocked.owner} tells why")
            return CheckOutcome(self.name, FAILED, cause.found, cause.hint, cause.error)
        except Exception as error:
            hint = "see the exception, from which this error was raised; it came from the code under test or its data"
            return CheckOutcome(self.name, FAILED, tell(error), hint, error)
        return CheckOutcome(self.name, PASSED, note or "")

    def __call__(self) -> CheckOutcome:
        """Runs the check.

        Raises:
            ComplianceError: it failed.
        """
        outcome = self.run()
        ComplianceReport(self._suite.title, (outcome,)).raise_on_failure()
        return outcome

    def __repr__(self) -> str:
        return f"<check {self.name} of {self._suite.title}>"


class Suite:
    """The checks of one subject, with those that were asked for."""

    def __init__(
        self,
        title: str,
        definitions: Sequence[Definition],
        make_subject: Callable[[], Any],
        *,
        skip: Iterable[str],
        only: Iterable[str] | None,
        known: Iterable[str],
    ) -> None:
        self.title = title
        self.skip = _names(skip, "skip", known)
        wanted = None if only is None else _names(only, "only", known)
        self._chosen = [d for d in definitions if wanted is None or d.name in wanted]
        self.running = {d.name for d in self._chosen} - self.skip
        self._make = make_subject
        self._subject: Any = None

    def subject(self) -> Any:
        """Made when the first check runs: building the list of checks imports no TensorFlow."""
        if self._subject is None:
            self._subject = self._make()
        return self._subject

    def checks(self) -> tuple[ComplianceCheck, ...]:
        return tuple(ComplianceCheck(definition, self) for definition in self._chosen)

    def report(self) -> ComplianceReport:
        try:
            return ComplianceReport(self.title, tuple(check.run() for check in self.checks()))
        finally:
            if hasattr(self._subject, "close"):
                self._subject.close()


def _names(given: Iterable[str], argument: str, known: Iterable[str]) -> set[str]:
    names, allowed = {given} if isinstance(given, str) else set(given), list(known)
    unknown = sorted(names - set(allowed))
    if unknown:
        raise ConfigError(
            f"{argument}= names checks that do not exist: {', '.join(unknown)}",
            code="argument/unknown-name",
            found=f"checks: {', '.join(allowed)}",
        )
    return names


def parametrize_with_checks(checks: Iterable[ComplianceCheck]) -> Any:
    """A pytest decorator: each check becomes a test of its own, with the check's name as its id.

        @testing.parametrize_with_checks(testing.input_fn_checks(input_fn, global_batch_size=64))
        def test_input_fn(check):
            check()

    A check that cannot be judged shows as skipped, with its reason.

    Args:
        checks: What `input_fn_checks` and `model_fn_checks` return, or both of them together.

    Returns:
        A `pytest.mark.parametrize` for the argument `check`. pytest is imported here and nowhere else.
    """
    import pytest

    def runner(check: ComplianceCheck) -> Callable[[], None]:
        def run() -> None:
            outcome = check()
            if outcome.state == SKIPPED:
                pytest.skip(outcome.found)

        return run

    return pytest.mark.parametrize("check", [pytest.param(runner(check), id=check.name) for check in checks])
