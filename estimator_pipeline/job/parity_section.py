"""The section `parity` of a job file: how far apart its two engines may come, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from estimator_pipeline.job.base import Problem, Section

__all__ = ["TOLERANCE_NAMES", "Limits", "ParitySection"]

# What each allows is said in estimator_pipeline/parity/tolerances.py.
ToleranceName = Literal["bit_equal", "rounding", "amplified"]
TOLERANCE_NAMES: tuple[ToleranceName, ...] = ("bit_equal", "rounding", "amplified")


class Limits(Section):
    """A tolerance of one's own. It is met where any of its limits is.

    Fields:
        ulp: Numbers of the type between the two values.
        rtol: The error relative to the larger of the two.
        of_largest: The error relative to the largest value of the array.
        atol: The absolute error.
        reason: Why the two need not be the same.
    """

    ulp: Annotated[int, Field(ge=0)] = 0
    rtol: Annotated[float, Field(ge=0)] = 0.0
    of_largest: Annotated[float, Field(ge=0)] = 0.0
    atol: Annotated[float, Field(ge=0)] = 0.0
    reason: Annotated[str, Field(min_length=1)]

    def problems(self) -> Iterator[Problem]:
        if not (self.ulp or self.rtol or self.of_largest or self.atol):
            yield Problem(
                (), "a tolerance allows nothing.", "all of its limits are 0", "give a limit, or say bit_equal."
            )


class ParitySection(Section):
    """What `estimator-pipeline parity` compares this job by.

    Fields:
        steps: Training steps.
        tolerances: What is compared -> a tolerance's name, or limits with their reason. What is compared is one of
            loss, learning_rate, update_norm, weights, statistics, slots, metrics and predictions, or a pattern of
            variables' names such as "dense_1/*". The last that fits counts.
    """

    steps: Annotated[int, Field(ge=1)] = 50
    tolerances: dict[str, ToleranceName | Limits] = Field(default_factory=dict)
