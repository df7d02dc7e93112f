"""Tolerances of a comparison: their names, defaults, assignment and bounds. Imports only NumPy."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.arrays import BIT_EQUAL, Tolerance
from estimator_pipeline.utils.text import nearest
from estimator_pipeline.utils.variable_names import GLOBAL_STEP

__all__ = ["KINDS", "NAMED", "Sizes", "Tolerances", "kind_of", "rounding"]


def rounding(reason: str = "the same sums in a different order") -> Tolerance:
    """Return the tolerance for rounding: errors of a few units in the last place grow with each step."""
    return Tolerance(rtol=1e-4, rtol_of_max=1e-4, atol=1e-7, atol_share=1e-4, reason=reason)


ROUNDING = rounding()
AMPLIFIED = Tolerance(
    rtol=2e-2,
    rtol_of_max=2e-2,
    atol=1e-5,
    atol_share=2e-2,
    reason="rounding that a ReLU near 0, or a division by a small mean square, amplifies with each step",
)
NAMED: Mapping[str, Tolerance] = {"bit_equal": BIT_EQUAL, "rounding": ROUNDING, "amplified": AMPLIFIED}

KINDS = ("loss", "learning_rate", "update_norm", "weights", "statistics", "slots", "metrics", "predictions")
_DEFAULTS = {
    **dict.fromkeys(KINDS, ROUNDING),
    "learning_rate": Tolerance(ulp=4, reason="a schedule's powers and cosines, compiled differently"),
    # An update is the difference of two rounded weights.
    "update_norm": Tolerance(
        rtol=1e-3, atol=1e-7, atol_share=1e-3, reason="an update keeps fewer digits than the weights"
    ),
}
# The fields that users may set; the bound of the absolute part is fixed for named tolerances.
_FIELDS = ("ulp", "rtol", "rtol_of_max", "atol", "reason")
_STATISTICS = ("moving_mean", "moving_variance")
# Characters of patterns and scoped variable names; no word of KINDS has one.
_OF_VARIABLES = "*?[/@"


def kind_of(variable: str) -> str:
    """Return the kind of a variable by its canonical name: "weights", "statistics", "slots" or "step"."""
    if variable == GLOBAL_STEP:
        return "step"
    if " @" in variable:
        return "slots"
    return "statistics" if variable.rpartition("/")[2] in _STATISTICS else "weights"


class Sizes:
    """The largest magnitude in each series so far, which bounds the absolute part of a tolerance.

    A series is one of `KINDS`; slots have a series for each slot name. All weights share a series: a single
    weight may be pure rounding noise, such as a bias before BatchNormalization, and is measured against the others.
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}

    def add(self, series: str, *values: Any) -> None:
        """Add numbers or arrays to a series, without values that are not finite."""
        for value in values:
            sizes = np.abs(np.asarray(value, np.float64))
            largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
            self._largest[series] = max(self._largest.get(series, 0.0), largest)

    def add_variables(self, *sides: Mapping[str, np.ndarray]) -> None:
        """Add floating-point variables to their series, by canonical name; integers are counters."""
        for variables in sides:
            for name, value in variables.items():
                if value.dtype.kind == "f":
                    self.add(_series_of(name), value)

    def of(self, series: str) -> float:
        """Return the largest absolute value of a series; 0 for an unknown series."""
        return self._largest.get(series, 0.0)


def _series_of(variable: str) -> str:
    kind = kind_of(variable)
    return f"slots {variable.rpartition(' @')[2]}" if kind == "slots" else kind


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """The tolerance of each compared quantity.

    Attributes:
        explicit: Maps a compared quantity (one of `KINDS`, or a pattern of variable names) to its tolerance. The
            last match counts; without a match the default applies.
        defaults: Maps kinds to tolerances, instead of those for rounding; see
            `estimator_pipeline.parity.jobs.default_tolerances`.
    """

    explicit: Mapping[str, Tolerance] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Tolerance] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, value: Any = None, *, defaults: Mapping[str, Tolerance] | None = None) -> Tolerances:
        """Convert a user's value to tolerances.

        Args:
            value: None; a tolerance or its name, for everything except learning rates; or a mapping from compared
                quantities to a tolerance, its name, or a mapping of its fields.
            defaults: The defaults of other quantities; see the attribute.

        Raises:
            ConfigError: An unknown name, a misspelt kind, or a limit without a reason.
        """
        if isinstance(value, Tolerances):
            return value
        if value is None:
            explicit = {}
        elif isinstance(value, Mapping):
            for name, tolerance in value.items():
                _check_spelling(name, tolerance)
            explicit = {str(name): _tolerance(name, tolerance) for name, tolerance in value.items()}
        else:
            explicit = dict.fromkeys((kind for kind in KINDS if kind != "learning_rate"), _tolerance("all", value))
        return cls(explicit, defaults or {})

    def number(self, kind: str, sizes: Sizes | None = None) -> Tolerance:
        """Return the tolerance of one of `KINDS`, bounded by the size of its series if `sizes` is set."""
        tolerance = self.explicit.get(kind, self._default(kind))
        return tolerance if sizes is None else tolerance.of_series(sizes.of(kind))

    def _default(self, kind: str) -> Tolerance:
        return self.defaults.get(kind, _DEFAULTS[kind])

    def variable(self, name: str, sizes: Sizes | None = None) -> Tolerance:
        """Return the tolerance of a variable by canonical name, bounded by the size of its series if `sizes` is set."""
        kind = kind_of(name)
        if kind == "step":
            return BIT_EQUAL
        tolerance = self._default(kind)
        for pattern, explicit in self.explicit.items():
            if pattern == kind or (pattern not in KINDS and fnmatch.fnmatchcase(name, pattern)):
                tolerance = explicit
        return tolerance if sizes is None else tolerance.of_series(sizes.of(_series_of(name)))

    def unused(self, variables: Any) -> tuple[str, ...]:
        """Return the patterns that match none of these variables, such as misspelt names."""
        patterns = [pattern for pattern in self.explicit if pattern not in KINDS]
        return tuple(p for p in patterns if not any(fnmatch.fnmatchcase(name, p) for name in variables))

    def described(self) -> Mapping[str, str]:
        """Return the compared quantities with their tolerances as text."""
        kinds = {kind: str(self.number(kind)) for kind in KINDS}
        patterns = {name: str(tolerance) for name, tolerance in self.explicit.items() if name not in KINDS}
        return {**kinds, **patterns}


def _check_spelling(name: Any, value: Any) -> None:
    """Reject misspelt kinds, which would be patterns that match no variable.

    A single word may be the name of a variable, unless it is close to the name of a kind.
    """
    word = str(name)
    if word in ("parity", "tolerances") and isinstance(value, Mapping):
        raise ConfigError(
            f"tolerances.{word}: this is the name of the section",
            code="job/unknown-field",
            found=f"below it: {', '.join(map(str, value)) or 'nothing'}",
            hint="pass only the content of the section, such as {loss: rounding}",
        )
    if word in KINDS or any(mark in word for mark in _OF_VARIABLES):
        return
    close = nearest(word.lower(), KINDS)
    if close:
        raise ConfigError(
            f"tolerances.{word}: {word!r} is not a compared quantity",
            code="argument/unknown-name",
            found=f"compared: {', '.join(KINDS)}; or a pattern of variable names",
            hint=f"did you mean {close!r}? For a variable of that name write {word + '*'!r}",
        )


def _tolerance(name: Any, value: Any) -> Tolerance:
    if isinstance(value, Tolerance):
        return value
    if isinstance(value, str):
        if value in NAMED:
            return NAMED[value]
        close = nearest(value, NAMED)
        raise ConfigError(
            f"tolerances.{name}: {value!r} is not the name of a tolerance",
            code="argument/unknown-name",
            found=f"the names: {', '.join(NAMED)}",
            hint=f"did you mean {close!r}?" if close else "use one of them, or set limits with a reason",
        )
    if isinstance(value, Mapping):
        if unknown := [field for field in value if field not in _FIELDS]:
            close = nearest(unknown[0], _FIELDS)
            raise ConfigError(
                f"tolerances.{name}: a tolerance has no field {unknown[0]!r}",
                code="job/unknown-field",
                found=f"the fields: {', '.join(_FIELDS)}",
                hint=f"did you mean {close!r}?" if close else "leave it out",
            )
        try:
            return Tolerance(**value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"tolerances.{name}: {error}",
                code="job/bad-value",
                hint="write for example {rtol: 1e-3, reason: why they may differ}",
            ) from error
    raise ConfigError(
        f"tolerances.{name} is a {type(value).__name__}",
        code="job/wrong-type",
        hint="write a name, or limits with a reason",
    )
