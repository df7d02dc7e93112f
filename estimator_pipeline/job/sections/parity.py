"""The section `parity` of a job file: the tolerances between its two engines, with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from estimator_pipeline.job.base import Problem, Section
from estimator_pipeline.utils.text import nearest

__all__ = ["TOLERANCE_NAMES", "LimitsSection", "ParitySection"]

# Defined in estimator_pipeline/job/tolerances.py.
ToleranceName = Literal["bit_equal", "rounding", "amplified"]
TOLERANCE_NAMES: tuple[ToleranceName, ...] = get_args(ToleranceName)


class LimitsSection(Section):
    """A custom tolerance. A value is within the tolerance if it meets any of the limits.

    Fields:
        ulp: Maximum difference in units in the last place.
        rtol: Maximum error relative to the larger value.
        rtol_of_max: Maximum error relative to the largest value of the array.
        atol: Maximum absolute error.
        reason: Why the values may differ.
    """

    ulp: Annotated[int, Field(ge=0)] = 0
    rtol: Annotated[float, Field(ge=0)] = 0.0
    rtol_of_max: Annotated[float, Field(ge=0)] = 0.0
    atol: Annotated[float, Field(ge=0)] = 0.0
    reason: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, data: Any) -> Any:
        """Accept `of_largest`, the old name of `rtol_of_max`."""
        if not isinstance(data, dict) or "of_largest" not in data or "rtol_of_max" in data:
            return data
        return {"rtol_of_max" if key == "of_largest" else key: value for key, value in data.items()}

    def problems(self) -> Iterator[Problem]:
        if not (self.ulp or self.rtol or self.rtol_of_max or self.atol):
            yield Problem(
                (),
                "a tolerance allows nothing.",
                "all of its limits are 0",
                "set a limit, or use bit_equal.",
                code="job/bad-value",
            )


def _tag(value: Any) -> str:
    """Return a union tag; it starts with "~", which distinguishes it from field names in an error's location."""
    return "~limits" if isinstance(value, dict | LimitsSection) else "~name"


def _name(value: Any) -> Any:
    if isinstance(value, str) and value in TOLERANCE_NAMES:
        return value
    names = ", ".join(TOLERANCE_NAMES)
    close = nearest(value, TOLERANCE_NAMES) if isinstance(value, str) else None
    problem = Problem(
        (),
        f"{value!r} is not the name of a tolerance." if isinstance(value, str) else "this is not a tolerance.",
        f"the names: {names}",
        f"did you mean {close!r}?" if close else "use one of them, or set limits with a reason.",
        code="job/bad-value",
    )
    raise PydanticCustomError("problems", "a wrong value", {"problems": [problem]})


# A mapping is validated as limits, anything else as a name, so that the message concerns only one of the two.
ToleranceValue = Annotated[
    Annotated[LimitsSection, Tag("~limits")] | Annotated[Any, AfterValidator(_name), Tag("~name")], Discriminator(_tag)
]


class ParitySection(Section):
    """Steps and tolerances of `estimator-pipeline parity` for this job.

    Fields:
        steps: Training steps.
        tolerances: Tolerance of each kind of value: bit_equal, rounding, amplified, or limits with a reason; values are
            within it if any limit holds. Kinds: loss, learning_rate, update_norm, weights, statistics, slots, metrics,
            predictions, or a pattern of variable names such as `"dense_1/*"`. The last match applies.
    """

    steps: Annotated[int, Field(ge=1)] = 50
    tolerances: dict[str, ToleranceValue] = Field(default_factory=dict)
