"""The result of comparing two trainings. NumPy only."""

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
    """One step: the numbers that both recorded, and their variables after it.

    Attributes:
        step: the global step after it.
        losses: of the global batch, before the step.
        learning_rates: learning rates of the step, where they are known.
        update_norms: norms of the change of all weights.
        variables: weights, moving statistics and optimizer slots after it.
    """

    step: int
    losses: tuple[float, float]
    learning_rates: tuple[float | None, float | None]
    update_norms: tuple[float, float]
    variables: Comparison


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity:
    """The result of a comparison.

    Attributes:
        steps: each step that both ran, in order.
        initial: what both started from.
        records: step -> the records that both read for it; empty where that was not recorded.
        records_in_part: whether only a part of each record was compared: what has the same format on both sides.
        metrics: the final evaluation's metrics, compared.
        answers: outputs of both for the same inputs, by signature; None where nothing was exported.
        numbers: step -> comparison of loss, learning rate and update norm.
        tolerances: what was allowed.
        findings: the cause of the differences, or the first difference.
        notes: what was not compared and why; known differences, and the setting that removes them.
        folder: where both runs and their records are.
        only: steps that only one engine ran, with its name.
        asked: number of requested steps; None: as many as both ran, at least one.
        about: what was run, by name; see `estimator_pipeline.parity.jobs.metadata.about`.
        environments: engine -> where it ran; see
            `estimator_pipeline.engines.recording.environment.environment_of`.
        finals: engine -> all metrics of the final evaluation, compared or not.
        arrays: engine -> variable -> its shape and type before the first step.
        slots_kept: whether an optimizer has any slots, compared or not.
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
        """Whether everything is within its tolerance, and both ran the requested steps."""
        return self.first_fault is None and not self.only and not self.is_short

    @property
    def differs(self) -> bool:
        """Whether anything is not bit-equal, within its tolerance or not."""
        return any(comparison.differences for _, comparison in self._in_order())

    @property
    def is_short(self) -> bool:
        """Whether fewer steps were compared than requested, or none."""
        return len(self.steps) < (1 if self.asked is None else self.asked)

    @property
    def first_fault(self) -> tuple[int, Difference] | None:
        """The first step that differs, and its largest difference; step 0 is the start."""
        for step, comparison in self._in_order():
            if comparison.largest_fault is not None:
                return step, comparison.largest_fault
        return None

    def _in_order(self) -> list[tuple[int, Comparison]]:
        comparisons = [(0, self.initial)]
        for step in self.steps:
            read = self.records.get(step.step)
            comparisons += [] if read is None else [(step.step, read)]
            numbers = self.numbers[step.step]
            # A variable that differs is more informative than the norm of all changes.
            comparisons += [(step.step, numbers.less("update_norm")), (step.step, step.variables), (step.step, numbers)]
        last = self.steps[-1].step if self.steps else 0
        return [*comparisons, (last, self.metrics), *([] if self.answers is None else [(last, self.answers)])]
