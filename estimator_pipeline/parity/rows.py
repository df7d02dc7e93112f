"""Rows of embeddings and tables that the two sides use otherwise: vocabularies in another order. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from estimator_pipeline.parity.findings import SAME, Finding, Step, distance, told_names

__all__ = ["has_look_ups", "of_rows", "other_rows"]

Arrays = Mapping[str, np.ndarray]
# Rows that are named one by one.
_SHOWN = 3


def of_rows(sides: tuple[str, str], state: Step, weights: tuple[Arrays, Arrays]) -> Finding | None:
    """Variables of which each row of the one side changes as another row of the other side.

    Args:
        sides: what the two are called.
        state: the step.
        weights: of each side, weight -> its change.
    """
    found = {name: moved for name in weights[0] if (moved := _moved(weights[0][name], weights[1][name]))}
    if not found:
        return None
    name, moved = next(iter(found.items()))
    some = ", ".join(f"row {one} as row {other}" for one, other in list(moved.items())[:_SHOWN])
    more = ", …" if len(moved) > _SHOWN else ""
    return Finding(
        name="variables",
        step=state.step,
        message=f"the rows of {told_names(list(found))} are in another order: of {name} {sides[0]} changes {some} of "
        f"{sides[1]}{more}",
        mend="the vocabulary: its order, where what is not in it goes (num_oov_buckets, default_value), the boundaries "
        "of buckets; or the order in which features are put side by side. What both start from are the Keras model's "
        "values, row by row",
    )


def _moved(one: np.ndarray, other: np.ndarray) -> dict[int, int]:
    """Row of the first -> row of the second that has its change; empty where they are not the same in another order."""
    if one.ndim < 2 or one.shape != other.shape or distance({"": one}, {"": other}) < SAME:
        return {}
    flat = [side.reshape(len(side), -1) for side in (one, other)]
    largest = max(float(np.max(np.abs(side))) for side in flat)
    order = [np.lexsort(np.round(side / largest, 4).T[::-1]) for side in flat]
    if distance({"": flat[0][order[0]]}, {"": flat[1][order[1]]}) >= SAME:
        return {}
    pairs = sorted(zip(order[0].tolist(), order[1].tolist(), strict=True))
    # Rows that do not change are all alike.
    return {mine: theirs for mine, theirs in pairs if mine != theirs and np.any(flat[0][mine])}


def has_look_ups(changes: Arrays) -> bool:
    """Whether there is a variable of which some rows change and others do not, or that is called an embedding."""
    if any("embedding" in name for name in changes):
        return True
    return any(_some(_changed(change)) for change in changes.values() if change.ndim > 1)


def other_rows(sides: tuple[str, str], state: Step) -> str:
    """In words, of which variables as many rows change on both sides, and not the same ones; "" for none.

    Of an embedding those rows change that are looked up, whatever the loss is.
    """
    told = []
    changes = [state.changes(side, "weights") for side in (0, 1)]
    for name in changes[0]:
        if changes[0][name].ndim < 2:
            continue
        one, other = (_changed(side[name]) for side in changes)
        if not _some(one) or np.sum(one) != np.sum(other) or np.all(one == other):
            continue
        alone = [told_names(map(str, np.flatnonzero(odd).tolist()), _SHOWN) for odd in (one & ~other, other & ~one)]
        told.append(f"of {name} the rows {alone[0]} change in {sides[0]} alone, {alone[1]} in {sides[1]} alone")
    return f"; {'; '.join(told)}, as of vocabularies in another order" if told else ""


def _changed(change: np.ndarray) -> np.ndarray:
    """Which rows of a table change: a bool for each."""
    return np.any(change != 0, axis=tuple(range(1, change.ndim)))


def _some(rows: np.ndarray) -> bool:
    """Some, and not all of them."""
    return bool(np.any(rows) and not np.all(rows))
