"""The common parts of two input functions' records, where their formats differ.

A legacy model_fn reads features by name, a Keras model often one array; labels are integers in one and floats in the
other. Parts with the same name and the same number of values per record are the same data and identify the records.
Notes name the other parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.parity.findings import format_names

__all__ = ["RecordFormats", "common_formats"]

# The parts of an element, in order.
_FEATURES, _LABELS, _WEIGHTS = "features", "labels", "weights"
_SHOWN = 6
Path = tuple[Any, ...]
Chosen = Callable[..., list[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordFormats:
    """How the records of both sides are compared.

    Attributes:
        chosen: for each side, a function from an element to the compared tensors; None: the whole element.
        compared: whether the records are compared.
        notes: what was left out, and why.
    """

    chosen: tuple[Chosen | None, Chosen | None] = (None, None)
    compared: bool = True
    notes: tuple[str, ...] = ()


def common_formats(theirs: Any, ours: Any) -> RecordFormats:
    """Return the common parts of both sides' records.

    Args:
        theirs: the `element_spec` of the Estimator's dataset; None: unknown.
        ours: the `element_spec` of Keras's dataset; None: unknown.
    """
    if theirs is None or ours is None or theirs == ours:
        return RecordFormats()
    sides = [_leaves(_parts(spec)) for spec in (theirs, ours)]
    pairs = _pairs(*sides)
    both = [(first, second) for first, second in pairs if _alike(sides[0][first], sides[1][second])]
    left = [{path: leaf for path, leaf in side.items() if path not in {pair[number] for pair in both}}
            for number, side in enumerate(sides)]  # fmt: skip
    notes: tuple[str, ...] = ()
    if any(left):
        unmatched = _describe_unmatched(left)
        if both:
            names = format_names([_name(first) for first, _ in both], _SHOWN)
            notes = (f"of the records only {names} were compared: {unmatched}",)
        else:
            notes = (
                "the records that were read were not compared, because no part has the same format in both: "
                f"{unmatched}",
            )
    return RecordFormats(
        chosen=(_choice([first for first, _ in both], sides[0]), _choice([second for _, second in both], sides[1])),
        compared=bool(both),
        notes=notes,
    )


def _describe_unmatched(left: list[dict[Path, Any]]) -> str:
    """Return, in words, the parts without a counterpart."""
    theirs, ours = (_described(side) for side in left)
    if not (theirs and ours):
        return f"only {'the Estimator' if theirs else 'Keras'} reads {theirs or ours}"
    of_features = all(path[0] == _FEATURES for side in left for path in side)
    subject = "the features" if of_features else "the rest"
    return f"Keras reads {subject} in a different format ({theirs} in the Estimator; {ours} in Keras)"


def _parts(element: Any) -> tuple[Any, ...]:
    return tuple(element) if isinstance(element, list | tuple) else (element,)


def _leaves(parts: Iterable[Any]) -> dict[Path, Any]:
    """Return path -> leaf of an element or of its specification."""
    leaves: dict[Path, Any] = {}

    def walk(part: Any, path: Path) -> None:
        if isinstance(part, Mapping):
            for key in sorted(part, key=str):
                walk(part[key], (*path, key))
        elif isinstance(part, list | tuple):
            for number, element_part in enumerate(part):
                walk(element_part, (*path, number))
        elif part is not None:
            leaves[path] = part

    for number, part in enumerate(parts):
        walk(part, ((_FEATURES, _LABELS, _WEIGHTS)[number] if number < 3 else f"part {number + 1}",))
    return leaves


def _pairs(first: Mapping[Path, Any], second: Mapping[Path, Any]) -> list[tuple[Path, Path]]:
    """Return pairs with equal paths, and single leaves of a part, whatever their names."""
    pairs = [(path, path) for path in first if path in second]
    for part in dict.fromkeys(path[0] for path in first):
        mine, yours = ([path for path in side if path[0] == part] for side in (first, second))
        if len(mine) == len(yours) == 1 and mine != yours:
            pairs.append((mine[0], yours[0]))
    return pairs


def _alike(first: Any, second: Any) -> bool:
    """Whether two leaves can hold the same data: numbers or strings, equally many per record."""
    if _kind(first) is None or _kind(first) != _kind(second):
        return False
    sizes = [leaf.shape[1:].num_elements() if leaf.shape.rank else None for leaf in (first, second)]
    return None in sizes or sizes[0] == sizes[1]


def _kind(leaf: Any) -> str | None:
    tf: Any = compat.tensorflow()
    if not isinstance(leaf, tf.TensorSpec):
        return None  # sparse and ragged tensors have several components
    if leaf.dtype == tf.string:
        return "text"
    return "numbers" if leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool else None


def _choice(paths: list[Path], specs: Mapping[Path, Any]) -> Chosen:
    """Return a function from an element to these leaves, numbers as float32."""
    tf: Any = compat.tensorflow()

    def chosen(*element: Any) -> list[Any]:
        leaves = _leaves(element)
        # Adding 0 turns -0 into 0, which has different bytes.
        return [leaves[path] if _kind(specs[path]) == "text" else tf.cast(leaves[path], tf.float32) + 0.0
                for path in paths]  # fmt: skip

    return chosen


def _name(path: Path) -> str:
    part, *keys = path
    named = "/".join(map(str, keys))
    return named if part == _FEATURES and named else "/".join(filter(None, (part, named)))


def _described(leaves: Mapping[Path, Any]) -> str:
    """Return `a, b: float32 [1]; x: float32 [6]`."""
    formats: dict[str, list[str]] = {}
    for path, leaf in leaves.items():
        formats.setdefault(_form(leaf), []).append(_name(path))
    return ", ".join(f"{format_names(names, _SHOWN)}: {form}" for form, names in formats.items())


def _form(leaf: Any) -> str:
    tf: Any = compat.tensorflow()
    if not isinstance(leaf, tf.TensorSpec):
        return str(type(leaf).__name__).removesuffix("Spec")
    sizes = leaf.shape[1:].as_list() if leaf.shape.rank else "?"
    return f"{leaf.dtype.name} {sizes}"
