"""What every section of the job file shares: strictness, and how several mistakes are told at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

__all__ = ["Factor", "FunctionRef", "Name", "Paths", "Problem", "Section", "explained"]


class Problem(NamedTuple):
    """One mistake: where (keys and list indices below the section), what, what was found, the hint, and the code of
    the error that it becomes."""

    path: tuple[str | int, ...]
    text: str
    found: str | None = None
    hint: str | None = None
    code: str = "job/conflict"


class Section(BaseModel):
    """A mapping of the job file. Unknown keys are refused, and values are not converted: "5" is no number."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        validate_default=False,
    )

    def problems(self) -> Iterator[Problem]:
        """The mistakes that only show when several fields are seen together."""
        return iter(())

    @model_validator(mode="after")
    def _refuse_problems(self):
        found = list(self.problems())
        if found:
            raise PydanticCustomError("problems", "fields that do not go together", {"problems": found})
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


def _name(value: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*", value):
        raise explained(
            "this is not a name.",
            found=f"{value!r}; allowed: letters, digits and underscores, beginning with a letter",
            hint="write the bare name, without a path or a file's ending.",
        )
    return value


def _factor(value: Any) -> Any:
    """ "1/255" -> the number; anything else is left to pydantic."""
    parts = value.split("/") if isinstance(value, str) else []
    try:
        return float(parts[0]) / float(parts[1]) if len(parts) == 2 else value
    except (ValueError, ZeroDivisionError):
        return value


def explained(text: str, *, found: str, hint: str) -> PydanticCustomError:
    """For the validator of a field to raise: what is wrong with a single value."""
    return PydanticCustomError(
        "problems", "a wrong value", {"problems": [Problem((), text, found, hint, "job/bad-value")]}
    )


Factor = Annotated[float, BeforeValidator(_factor), Field(gt=0)]
"""A positive number, or a fraction as text, such as 1/255."""

FunctionRef = Annotated[str, AfterValidator(_function_ref)]
"""A function by its place: "package.module:function" or "path/to/file.py:function"."""

Name = Annotated[str, AfterValidator(_name)]
"""A Python identifier."""

Paths = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list), Field(min_length=1)]
"""File names or glob patterns; a single one may be written without the list."""
