"""The tolerances of a comparison, by name, which of them counts for what, and what bounds them. NumPy only."""

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


def rounding(reason: str = "the same sums in another order") -> Tolerance:
    """For the same numbers, rounded otherwise: errors of a few units in the last place grow with each step."""
    return Tolerance(rtol=1e-4, rtol_of_max=1e-4, atol=1e-7, atol_share=1e-4, reason=reason)


ROUNDING = rounding()
AMPLIFIED = Tolerance(
    rtol=2e-2,
    rtol_of_max=2e-2,
    atol=1e-5,
    atol_share=2e-2,
    reason="rounding that a ReLU's kink, or a division by a small mean square, makes larger with each step",
)
NAMED: Mapping[str, Tolerance] = {"bit_equal": BIT_EQUAL, "rounding": ROUNDING, "amplified": AMPLIFIED}

KINDS = ("loss", "learning_rate", "update_norm", "weights", "statistics", "slots", "metrics", "predictions")
_DEFAULTS = {
    **dict.fromkeys(KINDS, ROUNDING),
    "learning_rate": Tolerance(ulp=4, reason="a schedule's powers and cosines, by another compiler"),
    # A change is the difference of two weights, each rounded.
    "update_norm": Tolerance(
        rtol=1e-3, atol=1e-7, atol_share=1e-3, reason="a change keeps fewer digits than the weights it leads to"
    ),
}
# What a person may write of one; how an absolute part is bounded is a matter of those that have names.
_FIELDS = ("ulp", "rtol", "rtol_of_max", "atol", "reason")
_STATISTICS = ("moving_mean", "moving_variance")
# What no word of KINDS has: it is a pattern, or the name of a variable in a scope.
_OF_VARIABLES = "*?[/@"


def kind_of(variable: str) -> str:
    """What a variable of a record is, by its canonical name: "weights", "statistics", "slots" or "step"."""
    if variable == GLOBAL_STEP:
        return "step"
    if " @" in variable:
        return "slots"
    return "statistics" if variable.rpartition("/")[2] in _STATISTICS else "weights"


class Sizes:
    """How large the numbers of each series are, as far as it has come: what bounds the absolute part of a tolerance.

    A series is one of :data:`KINDS`, of slots those of one name. All weights are one, for a single one of them may be
    rounding alone, as the gradient of a bias before BatchNormalization is, and then is so beside the others.
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}

    def add(self, series: str, *values: Any) -> None:
        """Counts numbers or arrays to a series; what is no finite number does not count."""
        for value in values:
            sizes = np.abs(np.asarray(value, np.float64))
            largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
            self._largest[series] = max(self._largest.get(series, 0.0), largest)

    def add_variables(self, *sides: Mapping[str, np.ndarray]) -> None:
        """Counts variables to their series, by their canonical names; whole numbers are those of counters."""
        for variables in sides:
            for name, value in variables.items():
                if value.dtype.kind == "f":
                    self.add(_series_of(name), value)

    def of(self, series: str) -> float:
        """The largest absolute value of a series; 0 for one that is not known."""
        return self._largest.get(series, 0.0)


def _series_of(variable: str) -> str:
    kind = kind_of(variable)
    return f"slots {variable.rpartition(' @')[2]}" if kind == "slots" else kind


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """What each thing that is compared may differ by.

    Attributes:
        given: what is compared (one of :data:`KINDS`, or a pattern of variables' names) -> tolerance. The last that
            fits counts; what nothing fits has the default.
        defaults: kind -> tolerance, in the place of those for rounding; see
            :mod:`estimator_pipeline.parity.jobs.default_tolerances`.
    """

    given: Mapping[str, Tolerance] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Tolerance] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, given: Any = None, *, defaults: Mapping[str, Tolerance] | None = None) -> Tolerances:
        """From what a person writes.

        Args:
            given: None; a tolerance or its name, for everything but learning rates; or a mapping of what is compared
                to a tolerance, its name, or a mapping of its fields.
            defaults: of what it does not name, see the attribute.

        Raises:
            ConfigError: a name that is not known, a misspelt kind, a limit without its reason.
        """
        if isinstance(given, Tolerances):
            return given
        if given is None:
            found = {}
        elif isinstance(given, Mapping):
            for what, value in given.items():
                _refuse_misspelt(what, value)
            found = {str(what): _tolerance(what, value) for what, value in given.items()}
        else:
            found = dict.fromkeys((kind for kind in KINDS if kind != "learning_rate"), _tolerance("all", given))
        return cls(found, defaults or {})

    def number(self, kind: str, sizes: Sizes | None = None) -> Tolerance:
        """Of one of :data:`KINDS`; bounded by the size of its series where that is known."""
        found = self.given.get(kind, self._default(kind))
        return found if sizes is None else found.of_series(sizes.of(kind))

    def _default(self, kind: str) -> Tolerance:
        return self.defaults.get(kind, _DEFAULTS[kind])

    def variable(self, name: str, sizes: Sizes | None = None) -> Tolerance:
        """Of a variable, by its canonical name; bounded by the size of its series where that is known."""
        kind = kind_of(name)
        if kind == "step":
            return BIT_EQUAL
        found = self._default(kind)
        for what, tolerance in self.given.items():
            if what == kind or (what not in KINDS and fnmatch.fnmatchcase(name, what)):
                found = tolerance
        return found if sizes is None else found.of_series(sizes.of(_series_of(name)))

    def unused(self, variables: Any) -> tuple[str, ...]:
        """Patterns that fit none of these variables: a name that was written wrongly allows nothing."""
        patterns = [what for what in self.given if what not in KINDS]
        return tuple(p for p in patterns if not any(fnmatch.fnmatchcase(name, p) for name in variables))

    def told(self) -> Mapping[str, str]:
        """What is compared -> its tolerance in words."""
        found = {kind: str(self.number(kind)) for kind in KINDS}
        return {**found, **{what: str(tolerance) for what, tolerance in self.given.items() if what not in KINDS}}


def _refuse_misspelt(what: Any, value: Any) -> None:
    """Refuses what is meant as a kind, and as a pattern would fit no variable.

    A word alone may be a variable's name; one that is nearly that of a kind is not taken for it.
    """
    word = str(what)
    if word in ("parity", "tolerances") and isinstance(value, Mapping):
        raise ConfigError(
            f"tolerances.{word}: this is the name of the section",
            code="job/unknown-field",
            found=f"below it: {', '.join(map(str, value)) or 'nothing'}",
            hint="give what stands below it alone, such as {loss: rounding}",
        )
    if word in KINDS or any(mark in word for mark in _OF_VARIABLES):
        return
    close = nearest(word.lower(), KINDS)
    if close:
        raise ConfigError(
            f"tolerances.{word}: {word!r} is none of what is compared",
            code="argument/unknown-name",
            found=f"compared are: {', '.join(KINDS)}; or a pattern of variables' names",
            hint=f"did you mean {close!r}? For a variable of that name write {word + '*'!r}",
        )


def _tolerance(what: Any, given: Any) -> Tolerance:
    if isinstance(given, Tolerance):
        return given
    if isinstance(given, str):
        if given in NAMED:
            return NAMED[given]
        close = nearest(given, NAMED)
        raise ConfigError(
            f"tolerances.{what}: {given!r} is the name of no tolerance",
            code="argument/unknown-name",
            found=f"the names: {', '.join(NAMED)}",
            hint=f"did you mean {close!r}?" if close else "use one of them, or give limits with a reason",
        )
    if isinstance(given, Mapping):
        if unknown := [name for name in given if name not in _FIELDS]:
            close = nearest(unknown[0], _FIELDS)
            raise ConfigError(
                f"tolerances.{what}: a tolerance has no field {unknown[0]!r}",
                code="job/unknown-field",
                found=f"the fields: {', '.join(_FIELDS)}",
                hint=f"did you mean {close!r}?" if close else "leave it out",
            )
        try:
            return Tolerance(**given)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"tolerances.{what}: {error}",
                code="job/bad-value",
                hint="for example {rtol: 1e-3, reason: why they need not be the same}",
            ) from error
    raise ConfigError(
        f"tolerances.{what} is a {type(given).__name__}", code="job/wrong-type", hint="a name, or limits with a reason"
    )
