"""What the records of two input functions have in common, where each gives them in a form of its own.

A legacy model_fn reads features by name, a Keras model often one array; labels are whole numbers here and floating
point there. What stands under the same name in both, and is as many numbers a record, is the same data: it is what the
records are known by. The rest is told.
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
    """How the records of both are told.

    Attributes:
        chosen: of each side, what makes of an element the tensors that count; None: all of it counts, as it is.
        told: whether the records are compared at all.
        notes: what was left out, and why.
    """

    chosen: tuple[Chosen | None, Chosen | None] = (None, None)
    told: bool = True
    notes: tuple[str, ...] = ()


def common_formats(theirs: Any, ours: Any) -> RecordFormats:
    """Return what both sides' records have in common.

    Args:
        theirs: the `element_spec` of the Estimator's dataset; None: it is not known.
        ours: of Keras's.
    """
    if theirs is None or ours is None or theirs == ours:
        return RecordFormats()
    sides = [_leaves(_parts(spec)) for spec in (theirs, ours)]
    pairs = _pairs(*sides)
    both = [(one, other) for one, other in pairs if _alike(sides[0][one], sides[1][other])]
    left = [{path: leaf for path, leaf in side.items() if path not in {pair[number] for pair in both}}
            for number, side in enumerate(sides)]  # fmt: skip
    notes: tuple[str, ...] = ()
    if any(left):
        what = _told(left)
        if both:
            names = format_names([_name(one) for one, _ in both], _SHOWN)
            notes = (f"of the records only {names} were compared: {what}",)
        else:
            notes = (f"which records were read was not compared, for nothing is in the same form in both: {what}",)
    return RecordFormats(
        chosen=(_choice([one for one, _ in both], sides[0]), _choice([other for _, other in both], sides[1])),
        told=bool(both),
        notes=notes,
    )


def _told(left: list[dict[Path, Any]]) -> str:
    """In words, what stands on either side without its counterpart."""
    theirs, ours = (_described(side) for side in left)
    if not (theirs and ours):
        return f"{'the Estimator' if theirs else 'Keras'} alone is given {theirs or ours}"
    of_features = all(path[0] == _FEATURES for side in left for path in side)
    what = "the features" if of_features else "the rest"
    return f"Keras is given {what} in another form ({theirs} in the Estimator; {ours} in Keras)"


def _parts(element: Any) -> tuple[Any, ...]:
    return tuple(element) if isinstance(element, list | tuple) else (element,)


def _leaves(parts: Iterable[Any]) -> dict[Path, Any]:
    """Path -> leaf, of an element or of its specification."""
    found: dict[Path, Any] = {}

    def walk(part: Any, path: Path) -> None:
        if isinstance(part, Mapping):
            for key in sorted(part, key=str):
                walk(part[key], (*path, key))
        elif isinstance(part, list | tuple):
            for number, one in enumerate(part):
                walk(one, (*path, number))
        elif part is not None:
            found[path] = part

    for number, part in enumerate(parts):
        walk(part, ((_FEATURES, _LABELS, _WEIGHTS)[number] if number < 3 else f"part {number + 1}",))
    return found


def _pairs(one: Mapping[Path, Any], other: Mapping[Path, Any]) -> list[tuple[Path, Path]]:
    """Those of one path; and the only ones of a part, whatever they are called."""
    found = [(path, path) for path in one if path in other]
    for part in dict.fromkeys(path[0] for path in one):
        mine, yours = ([path for path in side if path[0] == part] for side in (one, other))
        if len(mine) == len(yours) == 1 and mine != yours:
            found.append((mine[0], yours[0]))
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether two leaves can hold the same: numbers or texts, as many a record."""
    if _kind(one) is None or _kind(one) != _kind(other):
        return False
    sizes = [leaf.shape[1:].num_elements() if leaf.shape.rank else None for leaf in (one, other)]
    return None in sizes or sizes[0] == sizes[1]


def _kind(leaf: Any) -> str | None:
    tf: Any = compat.tensorflow()
    if not isinstance(leaf, tf.TensorSpec):
        return None  # sparse and ragged ones are made of several tensors
    if leaf.dtype == tf.string:
        return "text"
    return "numbers" if leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool else None


def _choice(paths: list[Path], specs: Mapping[Path, Any]) -> Chosen:
    """Return what makes of an element these of its leaves, numbers as float32."""
    tf: Any = compat.tensorflow()

    def chosen(*element: Any) -> list[Any]:
        leaves = _leaves(element)
        # 0 is added, for -0 has other bytes.
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
