"""Base class and field types of the job file's sections, and the report of several errors at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

__all__ = [
    "Factor", "FunctionRef", "MetricName", "Name", "Paths", "Problem", "Section", "Texts", "explained",
    "piecewise_problems",
]  # fmt: skip


class Problem(NamedTuple):
    """One error in a job file.

    Attributes:
        path: Keys and list indices of the field, below the section.
        text: The message.
        actual: The value in the job file, and the allowed values.
        hint: How to fix it.
        code: The error code.
    """

    path: tuple[str | int, ...]
    text: str
    actual: str | None = None
    hint: str | None = None
    code: str = "job/conflict"


class Section(BaseModel):
    """A mapping of the job file. Unknown keys are rejected, and values are not converted: "5" is not a number."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        validate_default=False,
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the errors that involve several fields."""
        return iter(())

    @model_validator(mode="after")
    def _raise_problems(self):
        problems = list(self.problems())
        if problems:
            raise PydanticCustomError("problems", "conflicting fields", {"problems": problems})
        return self


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _function_ref(value: str) -> str:
    module, colon, function = value.rpartition(":")
    dotted = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
    if not colon or not re.fullmatch(dotted, function) or not (module.endswith(".py") or re.fullmatch(dotted, module)):
        raise explained(
            "this does not name a function.",
            found=f'{value!r}; allowed: "package.module:function" or "path/to/file.py:function"',
            hint="write the module or file, a colon, and the function's name.",
        )
    return value


def _metric_name(value: str) -> str:
    return _function_ref(value) if ":" in value else value


def _name(value: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*", value):
        raise explained(
            "this is not a name.",
            found=f"{value!r}; allowed: letters, digits and underscores, beginning with a letter",
            hint="write only the name, without a path or file extension.",
        )
    return value


def _factor(value: Any) -> Any:
    """Convert "1/255" to a number; pydantic checks everything else."""
    parts = value.split("/") if isinstance(value, str) else []
    try:
        return float(parts[0]) / float(parts[1]) if len(parts) == 2 else value
    except (ValueError, ZeroDivisionError):
        return value


def explained(text: str, *, found: str, hint: str) -> PydanticCustomError:
    """Return the error that a field validator raises for a single value."""
    return PydanticCustomError(
        "problems", "a wrong value", {"problems": [Problem((), text, found, hint, "job/bad-value")]}
    )


Factor = Annotated[float, BeforeValidator(_factor), Field(gt=0)]
"""A positive number, or a fraction as text, such as 1/255."""

FunctionRef = Annotated[str, AfterValidator(_function_ref)]
"""A reference to a function: "package.module:function" or "path/to/file.py:function"."""

MetricName = Annotated[str, Field(min_length=1), AfterValidator(_metric_name)]
"""The name of a metric, or a reference to a user-defined one."""

Name = Annotated[str, AfterValidator(_name)]
"""A Python identifier."""

Texts = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list), Field(min_length=1)]
"""Several texts; a single one may be written without the list."""

Paths = Texts
"""File names or glob patterns; a single one may be written without the list."""


def piecewise_problems(boundaries: Sequence[int], values: Sequence[float], unit: str) -> Iterator[Problem]:
    """Yield the problems of values that change at boundaries, in "steps" or "epochs"."""
    if len(values) != len(boundaries) + 1:
        yield Problem(
            ("values",),
            f"{len(boundaries)} boundaries need {len(boundaries) + 1} values.",
            f"{len(values)} values",
            f"give a value for the {unit} before, between and after the boundaries.",
            code="job/bad-value",
        )
    if sorted(set(boundaries)) != boundaries:
        yield Problem(
            ("boundaries",),
            "the boundaries are not increasing.",
            f"{boundaries}",
            f"write the {unit} in increasing order, each once.",
            code="job/bad-value",
        )
