"""A migration of a checkpoint while it is planned: what was chosen, and a row for each value."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.state import StateEntry, TrainingState

__all__ = ["Choices", "MigrationPlan", "PlanDraft", "PlanRow"]

_SHOWN = 8
_HINTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices:
    """What a person has said of it.

    Attributes:
        mapping: Keras weight -> the other side's variable; where both sides are Keras, the target's -> the source's.
        allow_leftover: names or patterns of what the checkpoint has and the target does not need.
        initialize: names or patterns of what the target begins anew with.
        accept: names or patterns of what does not fit the step, or the target's settings, and is right all the same.
        drop_optimizer_state: the optimizer begins anew.
        use_ema_weights: weights are their moving averages.
        learning_rate: the constant one that the checkpoint was trained with.
        may_initialize: whether the command has `--initialize`; that of exports has not.
        momentum: what the checkpoint's momentum is a sum of, "v1" or "keras", where its names do not say it.
        step: where the checkpoint holds no step, or more than one.
    """

    mapping: Mapping[str, str] = dataclasses.field(default_factory=dict)
    allow_leftover: tuple[str, ...] = ()
    initialize: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    drop_optimizer_state: bool = False
    use_ema_weights: bool = False
    learning_rate: float | None = None
    momentum: str | None = None
    step: int | None = None
    may_initialize: bool = True


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """What became of one variable.

    Attributes:
        target: its name in the target; "" for what is left behind.
        source: the checkpoint's name for it; "" where it is not from there.
        shape: of it.
        dtype: of it.
        how: where its value is from.
    """

    target: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    how: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """What the target is given.

    Attributes:
        step: the global step.
        values: the target's name, as given -> value.
        rows: what became of each variable, in the target's order.
        weights: the target's weight -> the checkpoint's, as given.
        notes: what a person should know of it.
    """

    step: int
    values: Mapping[str, np.ndarray]
    rows: tuple[PlanRow, ...]
    weights: Mapping[str, str]
    notes: tuple[str, ...]


_NAMED = re.compile(r"(--(?:initialize|allow-leftover|accept)) \S+")


def _hints(hints: list[str]) -> list[str]:
    """Each hint once. Of many that differ in a variable's name alone there is one, with NAME in its place."""
    named: dict[str, list[str]] = {}
    for hint in hints:
        named.setdefault(_NAMED.sub(r"\1 NAME", hint), []).append(hint)
    return [
        hint
        for alike, given in named.items()
        for hint in (dict.fromkeys(given) if len(set(given)) <= _HINTS else [alike])
    ]


class PlanDraft:
    """A plan in the making: values, rows, and all that stands against it."""

    def __init__(self, source: TrainingState, target: TrainingState, choices: Choices) -> None:
        self.source, self.target, self.choices = source, target, choices
        self.values: dict[str, np.ndarray] = {}
        self.rows: list[PlanRow] = []
        self.notes: list[str] = []
        self._problems: dict[str, str] = {}
        self._used: set[str] = set()

    def give(self, entry: StateEntry, value: np.ndarray, *, source: str, how: str) -> None:
        """Give a variable of the target its value."""
        self.values[entry.given] = value
        self.rows.append(PlanRow(entry.given, source, entry.shape, entry.dtype, how))

    def take(self, entry: StateEntry, given: StateEntry, *, how: str) -> None:
        """Give a variable of the target the value of one of the checkpoint, of the same shape and type."""
        value = given.fitted(entry.shape)
        if tuple(value.shape) != entry.shape:
            self.refuse(
                f"{entry.given} is {list(entry.shape)} in the target, and {given.given} is {list(given.shape)} in the "
                "checkpoint",
                "give the parameters of the model that was trained, or --mapping where it is another variable",
            )
        elif value.dtype != entry.value.dtype:
            self.refuse(
                f"{entry.given} is {entry.dtype} in the target, and {given.given} is {given.dtype} in the checkpoint",
                f"make the target's {given.dtype}: a cast would not give the same training",
            )
        else:
            self.give(entry, value, source=given.given, how=how)

    def keep(self, entry: StateEntry, *, how: str) -> None:
        """Leaves a variable of the target as the target begins with it."""
        self.rows.append(PlanRow(entry.given, "", entry.shape, entry.dtype, how))

    def leave(self, given: StateEntry, *, how: str) -> None:
        """Leaves a variable of the checkpoint behind."""
        self.rows.append(PlanRow("", given.given, given.shape, given.dtype, how))

    def refuse(self, what: str, hint: str) -> None:
        """Note what stands against it."""
        self._problems.setdefault(what, hint)

    def may(self, option: str, *names: str) -> bool:
        """Whether an option names one of these names of a variable."""
        patterns = getattr(self.choices, option)
        found = [one for one in patterns if any(name == one or fnmatch.fnmatchcase(name, one) for name in names)]
        self._used.update(f"{option} {one}" for one in found)
        return bool(found)

    def finish(self, step: int, weights: Mapping[str, str]) -> MigrationPlan:
        """Return the plan.

        Raises:
            ConfigError: something stands against it.
        """
        for option in ("allow_leftover", "initialize", "accept"):
            for pattern in getattr(self.choices, option):
                if f"{option} {pattern}" not in self._used:
                    flag = "--" + option.replace("_", "-")
                    self.refuse(f"{flag} {pattern} fits no variable that it is for", f"leave {flag} {pattern} out")
        if self._problems:
            texts = list(self._problems)
            lines = "".join(f"\n  {text}" for text in texts)
            told = texts[0] if len(texts) == 1 else f"{len(texts)} things do not fit:{lines}"
            raise ConfigError(
                f"{self.source.source} cannot go on as {self.target.source}: {told}",
                code="migrate/mismatch",
                hint="; ".join(_hints(list(self._problems.values()))),
            )
        return MigrationPlan(
            step=step, values=self.values, rows=tuple(self.rows), weights=weights, notes=tuple(self.notes)
        )
