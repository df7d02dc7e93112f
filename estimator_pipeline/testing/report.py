"""Check outcomes, the report, and the error that a failed suite raises.

A suite is a list of small named checks on one subject. A check that cannot run is skipped, with the reason. If the
reason is a different failed check, its name is reported. So one fault causes one failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.user_code import describe_error, place_in

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


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of one check.

    Attributes:
        name: The check's name.
        state: "passed", "failed" or "skipped".
        found: Failed: what was found, with values. Skipped: the reason. Passed: a note, often empty.
        hint: Failed: what to change.
        error: The exception of the code under test, if there was one.
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
    """The outcomes of a suite, in the order of its checks; `str()` formats them.

    Attributes:
        subject: What was checked.
        outcomes: The outcome of each check.
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
        """The checks that could not run, or were skipped on request."""
        return self._in(SKIPPED)

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def raise_on_failure(self) -> ComplianceReport:
        """Raise ComplianceError if a check failed; return the report otherwise."""
        if self.failed:
            raise ComplianceError(self) from self.failed[0].error
        return self

    def __str__(self) -> str:
        counts = f"{len(self.failed)} failed, {len(self.passed)} passed, {len(self.skipped)} skipped"
        ordered = [*self.failed, *self.skipped, *self.passed]
        return "\n".join([f"{self.subject}: {counts}", *map(str, ordered)])


class ComplianceError(AssertionError):
    """Raised if checks failed; the message has each failed check with its finding and a hint.

    Attributes:
        report: The complete report.
    """

    def __init__(self, report: ComplianceReport) -> None:
        self.report = report
        failed = report.failed
        count = f"{len(failed)} check{'s' if len(failed) > 1 else ''} of {len(report.outcomes)} failed"
        super().__init__("\n".join([f"{report.subject}: {count}", *map(str, failed)]))


class ComplianceFinding(Exception):
    """Raised by a check that fails."""

    def __init__(self, message: str, *, hint: str, error: BaseException | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.error = error


class Skip(Exception):
    """Raised by a check that cannot run; the text is the reason and, if possible, a hint."""


class Blocked(Exception):
    """Raised if a value that several checks need is not available; the check `owner` reports it."""

    def __init__(self, owner: str, finding: ComplianceFinding) -> None:
        super().__init__(owner)
        self.owner = owner
        self.finding = finding


def shared(owner: str, *, hint: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a method of a subject to run once per set of arguments; the check `owner` reports its failure.

    Args:
        owner: The check that reports the failure. Other checks that need the value are skipped.
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
                    kept[key] = (
                        None,
                        Blocked(owner, ComplianceFinding(format_exception(error), hint=hint, error=error)),
                    )
            value, failure = kept[key]
            if failure is not None:
                raise failure.with_traceback(None)
            return value

        return once

    return decorate


def format_exception(error: BaseException) -> str:
    """Format an exception in one line: its type, the start of its text, and the line of user code that led to it."""
    place = place_in(error)
    return f"{describe_error(error)} ({place})" if place else describe_error(error)


@dataclass(frozen=True)
class Definition:
    """A check: `run(subject)` returns a note or None, or raises ComplianceFinding or Skip."""

    name: str
    description: str
    run: Callable[[Any], str | None]


def define(table: list[Definition]) -> Callable[[Callable[[Any], str | None]], Callable[[Any], str | None]]:
    """Return a decorator that adds a function to a table of checks, with its name and its docstring's first line."""

    def add(function: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        description = (function.__doc__ or "").strip().splitlines()[0]
        table.append(Definition(function.__name__, description, function))
        return function

    return add


class ComplianceCheck:
    """One check of one subject. The checks of a suite share their data and runs, so each is cheap.

    Attributes:
        name: The check's name, for `skip=` and `only=`.
        description: The property that it checks, in one sentence.
    """

    def __init__(self, definition: Definition, suite: Suite) -> None:
        self.name = definition.name
        self.description = definition.description
        self._definition = definition
        self.suite = suite

    def run(self) -> CheckOutcome:
        """Run the check and return its outcome; a failure is not raised."""
        suite = self.suite
        if self.name in suite.skip:
            return CheckOutcome(self.name, SKIPPED, "skipped by skip=")
        subject = suite.subject()
        try:
            note = self._definition.run(subject)
        except Skip as skip:
            return CheckOutcome(self.name, SKIPPED, str(skip))
        except ComplianceFinding as finding:
            return CheckOutcome(self.name, FAILED, finding.message, finding.hint, finding.error)
        except Blocked as blocked:
            cause = blocked.finding
            is_reported = blocked.owner != self.name and blocked.owner in suite.running
            if is_reported:
                return CheckOutcome(self.name, SKIPPED, f"cannot run; see the failure of {blocked.owner}")
            return CheckOutcome(self.name, FAILED, cause.message, cause.hint, cause.error)
        except Exception as error:
            hint = "see the exception that caused this error; it came from the code under test or its data"
            return CheckOutcome(self.name, FAILED, format_exception(error), hint, error)
        return CheckOutcome(self.name, PASSED, note or "")

    def __call__(self) -> CheckOutcome:
        """Run the check.

        Raises:
            ComplianceError: The check failed.
        """
        outcome = self.run()
        ComplianceReport(self.suite.title, (outcome,)).raise_on_failure()
        return outcome

    def __repr__(self) -> str:
        return f"<check {self.name} of {self.suite.title}>"


class Suite:
    """The selected checks of one subject."""

    def __init__(
        self,
        title: str,
        definitions: Sequence[Definition],
        make_subject: Callable[[], Any],
        *,
        skip: Iterable[str],
        only: Iterable[str] | None,
        known: Sequence[Definition],
    ) -> None:
        self.title = title
        names = [definition.name for definition in known]
        self.skip = _names(skip, "skip", names)
        wanted = None if only is None else _names(only, "only", names)
        self._chosen = [d for d in definitions if wanted is None or d.name in wanted]
        self.running = {d.name for d in self._chosen} - self.skip
        self._make = make_subject
        self._subject: Any = None

    def subject(self) -> Any:
        """Return the subject, created when the first check runs: the list of checks needs no TensorFlow."""
        if self._subject is None:
            self._subject = self._make()
        return self._subject

    def checks(self) -> tuple[ComplianceCheck, ...]:
        return tuple(ComplianceCheck(definition, self) for definition in self._chosen)

    def close(self) -> None:
        if hasattr(self._subject, "close"):
            self._subject.close()


def run_checks(checks: Sequence[ComplianceCheck], *, raise_on_failure: bool) -> ComplianceReport:
    """Run the checks of one suite and return their report, or raise an error if a check fails."""
    if not checks:
        return ComplianceReport("no checks", ())
    suite = checks[0].suite
    try:
        report = ComplianceReport(suite.title, tuple(check.run() for check in checks))
    finally:
        suite.close()
    return report.raise_on_failure() if raise_on_failure else report


def _names(value: Iterable[str], argument: str, known: Sequence[str]) -> set[str]:
    names = {value} if isinstance(value, str) else set(value)
    unknown = sorted(names - set(known))
    if unknown:
        raise ConfigError(
            f"{argument}= names checks that do not exist: {', '.join(unknown)}",
            code="argument/unknown-name",
            found=f"checks: {', '.join(known)}",
        )
    return names


def parametrize_with_checks(checks: Iterable[ComplianceCheck]) -> Any:
    """Return a pytest decorator that makes a test of each check, with the check's name as its id.

        @testing.parametrize_with_checks(testing.input_fn_checks(input_fn, global_batch_size=64))
        def test_input_fn(check):
            check()

    A check that cannot run is shown as skipped, with its reason.

    Args:
        checks: The checks that `input_fn_checks` or `model_fn_checks` return, or both.

    Returns:
        A `pytest.mark.parametrize` for the argument `check`.
    """
    import pytest

    def runner(check: ComplianceCheck) -> Callable[[], None]:
        def run() -> None:
            outcome = check()
            if outcome.state == SKIPPED:
                pytest.skip(outcome.found)

        return run

    return pytest.mark.parametrize("check", [pytest.param(runner(check), id=check.name) for check in checks])
