"""A service's search for hyperparameters, as a sweep: the values that `submit slurm --array` goes through.

A sweep is a grid. A service's search is guided by results, so ranges become grids only where somebody says how many
points they get (`--sweep-points`).
"""

from __future__ import annotations

import math
from typing import Any

from estimator_pipeline.migrate.config.documents import Item, Path
from estimator_pipeline.migrate.config.findings import Draft
from estimator_pipeline.migrate.config.hyperparameters import KNOWN, OPTIMIZERS, normal
from estimator_pipeline.migrate.config.schemas import HyperparameterSpec, ParameterSpec

__all__ = ["convert", "grid"]

DROPPED = {
    "goal": "a grid is gone through whole; which element is best is seen by their results",
    "hyperparameterMetricTag": "a grid is gone through whole; the metric is in each element's result",
    "maxTrials": "a grid has as many elements as its values make",
    "maxFailedTrials": "an element that fails stops none of the others",
    "algorithm": "a grid is gone through whole",
    "resumePreviousJobId": "elements go on from their own checkpoints",
    "enableTrialEarlyStopping": "each element trains to its end",
}


def convert(draft: Draft, given: HyperparameterSpec, path: Path) -> None:
    """Says of each part of a search what becomes of it."""
    for item in draft.document.items(*path):
        name = str(item.path[-1])
        if name == "maxParallelTrials":
            draft.decide(item, f"submit slurm --array SWEEP.yaml --at-once {item.value}")
        elif name in DROPPED:
            draft.drop(item, DROPPED[name])
        elif name == "params":
            for i, parameter in enumerate(given.params):
                _parameter(draft, parameter, draft.document.item(*path, "params", i))


def _parameter(draft: Draft, given: ParameterSpec, item: Item | None) -> None:
    if item is None:
        return
    own = Item(item.path, item.value, item.line, f"hyperparameters.{given.parameterName}")
    name = normal(given.parameterName)
    to, kind = _target(draft, name)
    if to is None:
        why = f"the program's own; if it is a parameter of the model: --param {name}"
        draft.decide(own, why, ("model", "params", name))
        return
    values = _values(given, draft.sweep_points)
    if values is None:
        draft.decide(own, f"a range: --sweep-points N makes N values of it ({_range(given)})", to)
        draft.need(to, f"a search went through it: {_range(given)}")
        return
    if kind == "optimizer":
        values = [OPTIMIZERS.get(str(value).lower().replace("_", ""), value) for value in values]
    if kind in ("int", "batch"):
        values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    if kind == "batch" and draft.training_tasks > 1 and not draft.current("cluster", "ps"):
        draft.decide(own, "whether it is the batch of each worker or of all is the program's own", to)
        draft.need(to, "records of one step over all workers")
        return
    draft.sweep_over(own, to, values)


def _target(draft: Draft, name: str) -> tuple[Path | None, str]:
    if name in {normal(param) for param in draft.params}:
        return ("model", "params", name), ""
    to, kind = KNOWN.get(name, ("", ""))
    return (tuple(to.split(".")) if to else None), kind


def _range(given: ParameterSpec) -> str:
    scale = {"UNIT_LOG_SCALE": ", by powers", "UNIT_REVERSE_LOG_SCALE": ", dense at the upper end"}
    return f"{given.minValue:g} to {given.maxValue:g}{scale.get(given.scaleType or '', '')}" if _bounded(given) else "?"


def _bounded(given: ParameterSpec) -> bool:
    return given.minValue is not None and given.maxValue is not None


def _values(given: ParameterSpec, points: int | None) -> list[Any] | None:
    if given.type == "CATEGORICAL":
        return list(given.categoricalValues or []) or None
    if given.type == "DISCRETE":
        return list(given.discreteValues or []) or None
    if points is None or given.minValue is None or given.maxValue is None or given.minValue > given.maxValue:
        return None
    values = grid(given.minValue, given.maxValue, points, given.scaleType or "NONE")
    return list(dict.fromkeys(round(value) for value in values)) if given.type == "INTEGER" else values


def grid(low: float, high: float, points: int, scale: str) -> list[float]:
    """`points` values from `low` to `high`, both among them: evenly, by powers, or by powers from the upper end.

    The scales are those of AI Platform: UNIT_LINEAR_SCALE, UNIT_LOG_SCALE (wants positive bounds) and
    UNIT_REVERSE_LOG_SCALE.
    """
    if points == 1 or low == high:
        return [low]
    shares = [i / (points - 1) for i in range(points)]
    if scale in ("UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE") and low > 0:
        powers = [math.exp(math.log(low) + share * (math.log(high) - math.log(low))) for share in shares]
        values = powers if scale == "UNIT_LOG_SCALE" else [low + high - value for value in reversed(powers)]
    else:
        values = [low + share * (high - low) for share in shares]
    return [low, *(float(f"{value:.6g}") for value in values[1:-1]), high]
