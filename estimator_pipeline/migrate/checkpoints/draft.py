"""The plan of a checkpoint migration: the user's choices, the values, and a row for each variable."""

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
    """The options of a migration.

    Attributes:
        mapping: Keras weight -> variable of the other side. If both sides are Keras: target -> source.
        allow_leftover: Names or patterns of variables of the checkpoint that the target does not need.
        initialize: Names or patterns of variables of the target that keep their initial values.
        accept: Names or patterns of variables that are correct although they do not match the step or the settings.
        drop_optimizer_state: Whether the optimizer starts with its initial state.
        use_ema_weights: Whether the moving averages replace the weights.
        learning_rate: The constant learning rate that the checkpoint was trained with.
        may_initialize: Whether the command has `--initialize`; `migrate export` does not.
        momentum: The convention of the checkpoint's momentum, "v1" or "keras", if its names are ambiguous.
        step: The global step, if the checkpoint has none or several.
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
    """The result for one variable.

    Attributes:
        target: Its name in the target; "" if it is not migrated.
        source: Its name in the checkpoint; "" if its value is not from the checkpoint.
        shape: Its shape.
        dtype: Its dtype.
        how: The origin of its value.
    """

    target: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    how: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """The values for the target.

    Attributes:
        step: The global step.
        values: Name in the target -> value.
        rows: The result for each variable, in the order of the target.
        weights: Weight of the target -> weight of the checkpoint, by their names in the files.
        notes: Remarks for the user.
    """

    step: int
    values: Mapping[str, np.ndarray]
    rows: tuple[PlanRow, ...]
    weights: Mapping[str, str]
    notes: tuple[str, ...]


_NAMED = re.compile(r"(--(?:initialize|allow-leftover|accept)) \S+")


def _hints(hints: list[str]) -> list[str]:
    """Remove duplicate hints; merge many that differ only in a variable's name."""
    named: dict[str, list[str]] = {}
    for hint in hints:
        named.setdefault(_NAMED.sub(r"\1 NAME", hint), []).append(hint)
    return [
        hint
        for merged, originals in named.items()
        for hint in (dict.fromkeys(originals) if len(set(originals)) <= _HINTS else [merged])
    ]


class PlanDraft:
    """A plan under construction: values, rows and problems."""

    def __init__(self, source: TrainingState, target: TrainingState, choices: Choices) -> None:
        self.source, self.target, self.choices = source, target, choices
        self.values: dict[str, np.ndarray] = {}
        self.rows: list[PlanRow] = []
        self.notes: list[str] = []
        self._problems: dict[str, str] = {}
        self._used: set[str] = set()

    def give(self, entry: StateEntry, value: np.ndarray, *, source: str, how: str) -> None:
        """Set the value of a variable of the target."""
        self.values[entry.name] = value
        self.rows.append(PlanRow(entry.name, source, entry.shape, entry.dtype, how))

    def take(self, entry: StateEntry, original: StateEntry, *, how: str) -> None:
        """Set a variable of the target to one of the checkpoint, without a cast."""
        value = original.fitted(entry.shape)
        if tuple(value.shape) != entry.shape:
            self.reject(
                f"{entry.name} is {list(entry.shape)} in the target, but {original.name} is {list(original.shape)} "
                "in the checkpoint",
                "give the target the parameters of the trained model, or map a different variable with --mapping",
            )
        elif value.dtype != entry.value.dtype:
            self.reject(
                f"{entry.name} is {entry.dtype} in the target, but {original.name} is {original.dtype} in the "
                "checkpoint",
                f"change the target's to {original.dtype}: a cast would change the training",
            )
        else:
            self.give(entry, value, source=original.name, how=how)

    def keep(self, entry: StateEntry, *, how: str) -> None:
        """Keep the initial value of a variable of the target."""
        self.rows.append(PlanRow(entry.name, "", entry.shape, entry.dtype, how))

    def skip(self, original: StateEntry, *, how: str) -> None:
        """Skip a variable of the checkpoint."""
        self.rows.append(PlanRow("", original.name, original.shape, original.dtype, how))

    def reject(self, problem: str, hint: str) -> None:
        """Record a problem that prevents the migration."""
        self._problems.setdefault(problem, hint)

    def allows(self, option: str, *names: str) -> bool:
        """Return whether an option matches one of the names of a variable."""
        patterns = getattr(self.choices, option)
        matching = [p for p in patterns if any(name == p or fnmatch.fnmatchcase(name, p) for name in names)]
        self._used.update(f"{option} {pattern}" for pattern in matching)
        return bool(matching)

    def finish(self, step: int, weights: Mapping[str, str]) -> MigrationPlan:
        """Return the plan.

        Raises:
            ConfigError: There are problems. The message lists all of them.
        """
        for option in ("allow_leftover", "initialize", "accept"):
            for pattern in getattr(self.choices, option):
                if f"{option} {pattern}" not in self._used:
                    flag = "--" + option.replace("_", "-")
                    self.reject(f"{flag} {pattern} matches no variable", f"remove {flag} {pattern}")
        if self._problems:
            texts = list(self._problems)
            lines = "".join(f"\n  {text}" for text in texts)
            problems = texts[0] if len(texts) == 1 else f"{len(texts)} problems:{lines}"
            raise ConfigError(
                f"{self.source.source} cannot be migrated to {self.target.source}: {problems}",
                code="migrate/mismatch",
                hint="; ".join(_hints(list(self._problems.values()))),
            )
        return MigrationPlan(
            step=step, values=self.values, rows=tuple(self.rows), weights=weights, notes=tuple(self.notes)
        )
