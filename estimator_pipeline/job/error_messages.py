"""From pydantic's list of errors to the one message that a person reads."""

from __future__ import annotations

import re
import textwrap
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.base import Problem
from estimator_pipeline.job.schema import Job
from estimator_pipeline.utils.text import nearest

__all__ = ["MistakesError", "Path", "Places", "config_error", "problems_error", "problems_of"]

Path = tuple[str | int, ...]

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
}


class MistakesError(ConfigError):
    """Several mistakes in one job file.

    Attributes:
        mistakes: each as an error of its own.
    """

    code = "job/several-mistakes"
    mistakes: tuple[ConfigError, ...] = ()

    @property
    def headline(self) -> str:
        """Each mistake has a code of its own; that of the whole would stand behind the last of them."""
        return self.message

    @classmethod
    def of(cls, head: str, mistakes: Sequence[ConfigError]) -> MistakesError:
        """One error: a line with how many there are, and each below it."""
        error = cls("\n".join([head, *(textwrap.indent(str(mistake), "  ") for mistake in mistakes)]))
        error.mistakes = tuple(mistakes)
        return error


class Places:
    """Where each field of a job was written: a line of the file, or an override.

    Args:
        source: The file's name, or another name for where the job came from.

    Attributes:
        count: How many values were read.
    """

    def __init__(self, source: str) -> None:
        self.source, self.count = source, 0
        self._lines: dict[Path, tuple[int, int]] = {}
        self._overrides: dict[Path, str] = {}

    def note(self, container: Any, key: Any, path: Path) -> None:
        """Remembers where `container`, read by ruamel, has its key or list item."""
        lines = getattr(container, "lc", None)
        # A key that came in by a merge (<<) has no line of its own here; its mapping's is taken.
        at = (lines.data or {}).get(key) if lines is not None else None
        if at is not None:
            step = key if isinstance(key, int) and isinstance(container, list) else str(key)
            self._lines[(*path, step)] = (at[0] + 1, at[1] + 1)

    def override(self, path: Path, label: str) -> None:
        """Remembers that the field and all below it were set by an override."""
        for known in [known for known in (*self._lines, *self._overrides) if known[: len(path)] == path]:
            self._lines.pop(known, None)
            self._overrides.pop(known, None)
        self._overrides[path] = label

    def rank(self, path: Path) -> tuple[int, int, int]:
        """For sorting: by line and column, overrides last."""
        known = self._nearest(path)
        if known in self._overrides:
            return (1, list(self._overrides).index(known), 0)
        return (0, *self._lines.get(known, (0, 0)))

    def of(self, path: Path, *, with_source: bool = True) -> str:
        """The place of a field, or of the nearest section above it that was written."""
        known = self._nearest(path)
        if known in self._overrides:
            return self._overrides[known]
        at = f"line {self._lines[known][0]}, column {self._lines[known][1]}" if known in self._lines else ""
        if not with_source:
            return at
        return f"{self.source}, {at}" if at else self.source

    def _nearest(self, path: Path) -> Path:
        for length in range(len(path), -1, -1):
            if path[:length] in self._lines or path[:length] in self._overrides:
                return path[:length]
        return ()


def config_error(error: ValidationError, data: dict[str, Any], places: Places) -> ConfigError:
    """One error for all that pydantic found, sorted by line.

    Args:
        error: What validation raised.
        data: What was validated.
        places: Where each field was written.
    """
    return problems_error(problems_of(error, data), places)


def problems_of(error: ValidationError, data: dict[str, Any], *, sections_only: bool = False) -> list[Problem]:
    """All that pydantic found, in our words, with paths from the top of the job.

    Args:
        error: What validation raised.
        data: What was validated.
        sections_only: Leave out what only shows between several sections.
    """
    items = [item for item in error.errors(include_url=False) if item["loc"] or not sections_only]
    return [problem for item in items for problem in _problems(item, data)]


def problems_error(problems: list[Problem], places: Places) -> ConfigError:
    """One error for several mistakes, sorted by line."""
    problems = sorted(problems, key=lambda problem: places.rank(problem.path))
    several = len(problems) > 1
    errors = []
    for problem in problems:
        place = places.of(problem.path, with_source=not several)
        what = f"{place}: {_headed(problem)}" if place else _headed(problem)
        errors.append(ConfigError(what, code=problem.code, found=problem.found, hint=problem.hint))
    if not several:
        return errors[0]
    return MistakesError.of(f"{places.source} has {len(problems)} mistakes:", errors)


def _headed(problem: Problem) -> str:
    field = ".".join(str(part) for part in problem.path)
    return f"{field}: {problem.text}" if field else problem.text


def _problems(item: Any, data: dict[str, Any]) -> Iterator[Problem]:
    """Pydantic's description of one mistake, in our words."""
    path: Path = tuple(part for part in item["loc"] if not _is_tag(part))
    kind, given, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "problems":
        for problem in context["problems"]:
            yield problem._replace(path=(*path, *problem.path))
        return
    section = _section_at(item["loc"])
    if kind == "extra_forbidden":
        allowed = list(section.model_fields) if section else []
        close = nearest(path[-1], allowed)
        # A list of forty names hides the one that was meant.
        others = "" if close and len(allowed) > 20 else f"; allowed: {', '.join(allowed)}"
        yield Problem(
            path,
            "unknown field.",
            f"{path[-1]!r} with the value {_shown(given)}{others}",
            f"did you mean {close!r}?" if close else "leave it out, or move it to the section that it belongs to.",
            code="job/unknown-field",
        )
    elif kind == "missing":
        yield _missing(path, section, data)
    elif kind == "choose":
        yield _choice(path, given, key=context["key"], choices=context["choices"].split(", "))
    elif kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        close = nearest(given, choices) if isinstance(given, str) else None
        hint = f"did you mean {close!r}?" if close else f"set {path[-1]} to one of these."
        found = f"{_shown(given)}; allowed: {', '.join(choices)}"
        yield Problem(path, "this value is not allowed.", found, hint, code="job/bad-value")
    elif kind in ("model_type", "model_attributes_type", "dataclass_type"):
        inner = _section_at((*item["loc"], ""))
        names = f" with the fields {', '.join(inner.model_fields)}" if inner else ""
        yield Problem(
            path,
            f"{_shown(given)} is not a mapping.",
            f"a value of type {_type(given)}; allowed: a mapping{names}",
            "write the fields below it, one a line and indented.",
            code="job/wrong-type",
        )
    elif kind in _KINDS:
        yield Problem(
            path,
            f"{_shown(given)} is not {_KINDS[kind]}.",
            f"a value of type {_type(given)}; allowed: {_KINDS[kind]}",
            _hint_type(kind, given),
            code="job/wrong-type",
        )
    else:
        found = f"{_shown(given)}; allowed: {_limit(kind, context, item['msg'])}"
        yield Problem(
            path, "this value is not allowed.", found, f"give {path[-1]} another value.", code="job/bad-value"
        )


def _missing(path: Path, section: type[BaseModel] | None, data: dict[str, Any]) -> Problem:
    there: Any = data
    for part in path[:-1]:
        there = there[part]
    given = ", ".join(map(str, there)) if isinstance(there, dict) and there else "nothing"
    above = ".".join(map(str, path[:-1])) or "the job"
    known = section.model_fields[str(path[-1])] if section and str(path[-1]) in section.model_fields else None
    inner = _sections_in(known.annotation) if known else []
    what = "section" if inner or path in (("model",), ("input",), ("run",)) else "field"
    return Problem(
        path,
        f"the {what} is missing.",
        f"in {above}: {given}",
        f"add {path[-1]}"
        + (f", with {', '.join(_required(inner[0]))}." if len(inner) == 1 and _required(inner[0]) else "."),
        code="job/missing-field",
    )


def _required(section: type[BaseModel]) -> list[str]:
    return [name for name, field in section.model_fields.items() if field.is_required()]


def _choice(path: Path, given: Any, *, key: str, choices: list[str]) -> Problem:
    allowed = f"allowed: {', '.join(choices)}"
    if not isinstance(given, dict):
        return Problem(
            path,
            f"{_shown(given)} is not a mapping.",
            f"a value of type {_type(given)}; allowed: a mapping with the field {key}: {', '.join(choices)}",
            f"write {key} and its fields below it, indented.",
            code="job/wrong-type",
        )
    if key not in given:
        return Problem(
            (*path, key),
            "the field is missing.",
            f"no {key}; {allowed}",
            f"add {key}, and the fields that go with it.",
            code="job/missing-field",
        )
    close = nearest(given[key], choices) if isinstance(given[key], str) else None
    hint = f"did you mean {close!r}?" if close else f"set {key} to one of these."
    found = f"{_shown(given[key])}; {allowed}"
    return Problem((*path, key), "this value is not allowed.", found, hint, code="job/bad-value")


def _hint_type(kind: str, given: Any) -> str:
    if isinstance(given, str) and kind in ("int_type", "float_type") and re.fullmatch(r"[-+\d._eE]+", given):
        return "write the number without quotes."
    if kind == "bool_type" and str(given).lower() in ("yes", "no", "on", "off", "1", "0"):
        return f"write {'true' if str(given).lower() in ('yes', 'on', '1') else 'false'}."
    if kind == "string_type" and isinstance(given, int | float):
        return f'write it in quotes: "{_shown(given)}".'
    if kind == "list_type":
        return "write it in brackets: [a, b], or one item a line after '- '."
    if given is None:
        return "give it a value, or leave the field out."
    return f"write {_KINDS[kind]}."


def _limit(kind: str, context: dict[str, Any], message: str) -> str:
    words = {
        "greater_than": "more than {gt}",
        "greater_than_equal": "{ge} or more",
        "less_than": "less than {lt}",
        "less_than_equal": "{le} or less",
        "string_too_short": "text of at least {min_length} character",
        "string_too_long": "text of at most {max_length} character",
        "too_short": "at least {min_length} item(s)",
    }
    return words[kind].format(**context) if kind in words else message


def _is_tag(part: str | int) -> bool:
    # Tags of the schema's unions; "[key]" is how pydantic marks a mapping's key instead of its value.
    return isinstance(part, str) and (part.startswith("~") or part == "[key]")


def _section_at(loc: Path) -> type[BaseModel] | None:
    """The section whose field the last part of a pydantic location names."""
    at: list[type[BaseModel]] = [Job]
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        if part.startswith("~"):
            # The only section that there is needs no tag of its own.
            at = at if len(at) == 1 else [one for one in at if part[1:] in _discriminators(one)]
            continue
        fields = [one.model_fields[part] for one in at if part in one.model_fields]
        # A part that names no field is the key of a mapping, such as a feature's name: stay with its values.
        at = [inner for field in fields for inner in _sections_in(field.annotation)] if fields else at
    return at[0] if len(at) == 1 else None


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    # list[int] is an instance of type on Python 3.10, and not a class.
    parts = typing.get_args(annotation)
    if not parts and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [inner for part in parts for inner in _sections_in(part)]


def _discriminators(section: type[BaseModel]) -> tuple[Any, ...]:
    for key in ("source", "kind"):
        if key in section.model_fields:
            return typing.get_args(section.model_fields[key].annotation)
    return ()


def _shown(value: Any) -> str:
    text = {None: "null", True: "true", False: "false"}.get(value) if value is None or isinstance(value, bool) else None
    text = text or repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _type(value: Any) -> str:
    names = {"str": "text", "int": "whole number", "float": "number", "bool": "true/false", "dict": "mapping"}
    return "null" if value is None else names.get(type(value).__name__, type(value).__name__)
