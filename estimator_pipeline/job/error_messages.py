"""Conversion of pydantic's errors to one readable message."""

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
        mistakes: One error for each mistake.
    """

    code = "job/several-mistakes"
    mistakes: tuple[ConfigError, ...] = ()

    @property
    def headline(self) -> str:
        """The message without a code: each mistake shows its code."""
        return self.message

    @classmethod
    def of(cls, head: str, mistakes: Sequence[ConfigError]) -> MistakesError:
        """Return one error with a headline and the mistakes below it."""
        error = cls("\n".join([head, *(textwrap.indent(str(mistake), "  ") for mistake in mistakes)]))
        error.mistakes = tuple(mistakes)
        return error


class Places:
    """The location of each field of a job: a line of the file, or an override.

    Args:
        source: Name of the file, or of another origin of the job.

    Attributes:
        count: Number of values that were read.
    """

    def __init__(self, source: str) -> None:
        self.source, self.count = source, 0
        self._lines: dict[Path, tuple[int, int]] = {}
        self._overrides: dict[Path, str] = {}

    def note(self, container: Any, key: Any, path: Path) -> None:
        """Record the location of a key or list item of `container`, which ruamel has read."""
        lines = getattr(container, "lc", None)
        # A key from a merge (<<) has no line here; the line of its mapping counts.
        at = (lines.data or {}).get(key) if lines is not None else None
        if at is not None:
            step = key if isinstance(key, int) and isinstance(container, list) else str(key)
            self._lines[(*path, step)] = (at[0] + 1, at[1] + 1)

    def override(self, path: Path, label: str) -> None:
        """Record that an override has set the field and everything below it."""
        for known in [known for known in (*self._lines, *self._overrides) if known[: len(path)] == path]:
            self._lines.pop(known, None)
            self._overrides.pop(known, None)
        self._overrides[path] = label

    def rank(self, path: Path) -> tuple[int, int, int]:
        """Return a sort key: by line and column, overrides last."""
        known = self._nearest(path)
        if known in self._overrides:
            return (1, list(self._overrides).index(known), 0)
        return (0, *self._lines.get(known, (0, 0)))

    def of(self, path: Path, *, with_source: bool = True) -> str:
        """Return the location of a field, or of the nearest section above it that the file contains."""
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
    """Return one error for all of pydantic's errors, sorted by line.

    Args:
        error: The validation error.
        data: The validated data.
        places: The location of each field.
    """
    return problems_error(problems_of(error, data), places)


def problems_of(error: ValidationError, data: dict[str, Any], *, sections_only: bool = False) -> list[Problem]:
    """Return pydantic's errors as problems with readable messages, with paths from the top of the job.

    Args:
        error: The validation error.
        data: The validated data.
        sections_only: Whether to leave out errors that involve several sections.
    """
    items = [item for item in error.errors(include_url=False) if item["loc"] or not sections_only]
    return [problem for item in items for problem in _problems(item, data)]


def problems_error(problems: list[Problem], places: Places) -> ConfigError:
    """Return one error for several problems, sorted by line."""
    problems = sorted(problems, key=lambda problem: places.rank(problem.path))
    several = len(problems) > 1
    errors = []
    for problem in problems:
        place = places.of(problem.path, with_source=not several)
        message = f"{place}: {_headed(problem)}" if place else _headed(problem)
        errors.append(ConfigError(message, code=problem.code, found=problem.actual, hint=problem.hint))
    if not several:
        return errors[0]
    return MistakesError.of(f"{places.source} has {len(problems)} mistakes:", errors)


def _headed(problem: Problem) -> str:
    field = ".".join(str(part) for part in problem.path)
    return f"{field}: {problem.text}" if field else problem.text


def _problems(item: Any, data: dict[str, Any]) -> Iterator[Problem]:
    """Yield the problems of one of pydantic's errors."""
    path: Path = tuple(part for part in item["loc"] if not _is_tag(part))
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "problems":
        for problem in context["problems"]:
            yield problem._replace(path=(*path, *problem.path))
        return
    section = _section_at(item["loc"])
    if kind == "extra_forbidden":
        allowed = list(section.model_fields) if section else []
        close = nearest(path[-1], allowed)
        # A list of forty names would hide the suggestion.
        others = "" if close and len(allowed) > 20 else f"; allowed: {', '.join(allowed)}"
        yield Problem(
            path,
            "unknown field.",
            f"{path[-1]!r} with the value {_shown(value)}{others}",
            f"did you mean {close!r}?" if close else "leave it out, or move it to its section.",
            code="job/unknown-field",
        )
    elif kind == "missing":
        yield _missing(path, section, data)
    elif kind == "choose":
        yield _choice(path, value, key=context["key"], choices=context["choices"].split(", "))
    elif kind == "literal_error":
        choices = [choice.strip("'") for choice in re.findall(r"'[^']*'|\d+", context["expected"])]
        close = nearest(value, choices) if isinstance(value, str) else None
        hint = f"did you mean {close!r}?" if close else f"set {path[-1]} to one of these."
        options = f"{_shown(value)}; allowed: {', '.join(choices)}"
        yield Problem(path, "this value is not allowed.", options, hint, code="job/bad-value")
    elif kind in ("model_type", "model_attributes_type", "dataclass_type"):
        inner = _section_at((*item["loc"], ""))
        names = f" with the fields {', '.join(inner.model_fields)}" if inner else ""
        yield Problem(
            path,
            f"{_shown(value)} is not a mapping.",
            f"a value of type {_type(value)}; allowed: a mapping{names}",
            "write the fields below it, one per line and indented.",
            code="job/wrong-type",
        )
    elif kind in _KINDS:
        yield Problem(
            path,
            f"{_shown(value)} is not {_KINDS[kind]}.",
            f"a value of type {_type(value)}; allowed: {_KINDS[kind]}",
            _hint_type(kind, value),
            code="job/wrong-type",
        )
    else:
        limit = f"{_shown(value)}; allowed: {_limit(kind, context, item['msg'])}"
        yield Problem(path, "this value is not allowed.", limit, "use an allowed value.", code="job/bad-value")


def _missing(path: Path, section: type[BaseModel] | None, data: dict[str, Any]) -> Problem:
    parent: Any = data
    for part in path[:-1]:
        parent = parent[part]
    fields = ", ".join(map(str, parent)) if isinstance(parent, dict) and parent else "nothing"
    name = ".".join(map(str, path[:-1])) or "the job"
    known = section.model_fields[str(path[-1])] if section and str(path[-1]) in section.model_fields else None
    inner = _sections_in(known.annotation) if known else []
    noun = "section" if inner or path in (("model",), ("input",), ("run",)) else "field"
    return Problem(
        path,
        f"the {noun} is missing.",
        f"in {name}: {fields}",
        f"add {path[-1]}"
        + (f", with {', '.join(_required(inner[0]))}." if len(inner) == 1 and _required(inner[0]) else "."),
        code="job/missing-field",
    )


def _required(section: type[BaseModel]) -> list[str]:
    return [name for name, field in section.model_fields.items() if field.is_required()]


def _choice(path: Path, value: Any, *, key: str, choices: list[str]) -> Problem:
    allowed = f"allowed: {', '.join(choices)}"
    if not isinstance(value, dict):
        return Problem(
            path,
            f"{_shown(value)} is not a mapping.",
            f"a value of type {_type(value)}; allowed: a mapping with the field {key}: {', '.join(choices)}",
            f"write {key} and its fields below it, indented.",
            code="job/wrong-type",
        )
    if key not in value:
        return Problem(
            (*path, key),
            "the field is missing.",
            f"no {key}; {allowed}",
            f"add {key} and its fields.",
            code="job/missing-field",
        )
    close = nearest(value[key], choices) if isinstance(value[key], str) else None
    hint = f"did you mean {close!r}?" if close else f"set {key} to one of these."
    options = f"{_shown(value[key])}; {allowed}"
    return Problem((*path, key), "this value is not allowed.", options, hint, code="job/bad-value")


def _hint_type(kind: str, value: Any) -> str:
    if isinstance(value, str) and kind in ("int_type", "float_type") and re.fullmatch(r"[-+\d._eE]+", value):
        return "write the number without quotes."
    if kind == "bool_type" and str(value).lower() in ("yes", "no", "on", "off", "1", "0"):
        return f"write {'true' if str(value).lower() in ('yes', 'on', '1') else 'false'}."
    if kind == "string_type" and isinstance(value, int | float):
        return f'write it in quotes: "{_shown(value)}".'
    if kind == "list_type":
        return "write it in brackets: [a, b], or one item per line after '- '."
    if value is None:
        return "set a value, or leave the field out."
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
    # Tags of the schema's unions; pydantic marks a mapping's key, instead of its value, with "[key]".
    return isinstance(part, str) and (part.startswith("~") or part == "[key]")


def _section_at(loc: Path) -> type[BaseModel] | None:
    """Return the section of the field that the last part of a pydantic location names."""
    at: list[type[BaseModel]] = [Job]
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        if part.startswith("~"):
            # A single section needs no tag.
            at = at if len(at) == 1 else [section for section in at if part[1:] in _discriminators(section)]
            continue
        fields = [section.model_fields[part] for section in at if part in section.model_fields]
        # A part that is not a field is the key of a mapping, such as a feature's name: keep the values' section.
        at = [inner for field in fields for inner in _sections_in(field.annotation)] if fields else at
    return at[0] if len(at) == 1 else None


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    # On Python 3.10 list[int] is an instance of type, but not a class.
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
