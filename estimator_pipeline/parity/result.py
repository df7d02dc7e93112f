"""What came of holding two trainings against each other. NumPy only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.parity.findings import ParityFinding
from estimator_pipeline.utils.arrays import Comparison, Difference

__all__ = ["ENGINES", "Parity", "StepParity"]

ENGINES = ("estimator", "keras")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepParity:
    """One step: what both tell of it, and their variables after it.

    Attributes:
        step: the global step after it.
        losses: of the global batch, before the step.
        learning_rates: that it was made with, where that is known.
        update_norms: the length of the change of all weights together.
        variables: weights, moving statistics and optimizer slots after it.
    """

    step: int
    losses: tuple[float, float]
    learning_rates: tuple[float | None, float | None]
    update_norms: tuple[float, float]
    variables: Comparison

    @property
    def worst(self) -> Difference | None:
        """The largest difference of a variable."""
        return self.variables.worst


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity:
    """What came of it.

    Attributes:
        steps: each step that both made, in order.
        initial: what both started from.
        records: step -> the records that both read for it; empty where that was not recorded.
        records_in_part: whether a part of each record was compared: what has the same form on both sides.
        metrics: the final evaluation's metrics, compared.
        answers: what both answer to the same inputs, by signature; None where nothing was exported.
        numbers: step -> comparison of loss, learning rate and update norm.
        tolerances: what was allowed.
        findings: the cause of the differences by its name, or the first of them.
        notes: what was not compared and why; where the two differ by nature, and the setting that makes them equal.
        folder: where both runs and their records are.
        only: steps that one engine alone has made, with its name.
        asked: how many steps were to be made; None: as many as both have made, one at least.
        about: what was run, by name; see `estimator_pipeline.parity.jobs.metadata.about`.
        environments: engine -> where it ran; see
            `estimator_pipeline.engines.recording.environment.environment_of`.
        finals: engine -> the final evaluation's metrics, those too that are not compared.
        arrays: engine -> variable -> its shape and type before the first step.
        slots_kept: whether an optimizer of theirs keeps any slots, compared or not.
    """

    steps: tuple[StepParity, ...]
    initial: Comparison
    metrics: Comparison
    numbers: Mapping[int, Comparison]
    folder: Path
    records: Mapping[int, Comparison] = dataclasses.field(default_factory=dict)
    records_in_part: bool = False
    answers: Comparison | None = None
    tolerances: Tolerances = dataclasses.field(default_factory=Tolerances)
    findings: tuple[ParityFinding, ...] = ()
    notes: tuple[str, ...] = ()
    only: tuple[tuple[str, int], ...] = ()
    asked: int | None = None
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environments: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    finals: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, tuple[tuple[int, ...], str]]] = dataclasses.field(default_factory=dict)
    slots_kept: bool = False

    @property
    def equal(self) -> bool:
        """Whether all of it is within its tolerances, and both made the steps that were asked for."""
        return self.first_fault is None and not self.only and not self.is_short

    @property
    def differs(self) -> bool:
        """Whether anything at all is not bit-equal, within its tolerance or not."""
        return any(comparison.differences for _, comparison in self._in_order())

    @property
    def is_short(self) -> bool:
        """Whether fewer steps were compared than asked for: of none nothing can be said."""
        return len(self.steps) < (1 if self.asked is None else self.asked)

    @property
    def first_fault(self) -> tuple[int, Difference] | None:
        """The first step at which they part, and the largest of its differences; step 0 is the start."""
        for step, comparison in self._in_order():
            if comparison.largest_fault is not None:
                return step, comparison.largest_fault
        return None

    def _in_order(self) -> list[tuple[int, Comparison]]:
        found = [(0, self.initial)]
        for one in self.steps:
            read = self.records.get(one.step)
            found += [] if read is None else [(one.step, read)]
            numbers = self.numbers[one.step]
            # The length of the change says less than the variable that has changed otherwise.
            found += [(one.step, numbers.less("update_norm")), (one.step, one.variables), (one.step, numbers)]
        last = self.steps[-1].step if self.steps else 0
        return [*found, (last, self.metrics), *([] if self.answers is None else [(last, self.answers)])]
