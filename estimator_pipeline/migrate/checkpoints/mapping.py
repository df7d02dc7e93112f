"""Which variable of a checkpoint is which of the target: by hand, by name, by layer order, by shape. NumPy only.

Each way is tried on what the one before left:

1. **By hand**: the names of `--mapping`.
2. **By name.** Layers without a name of their own are numbered as they are made (`dense`, `dense_1`), and a program
   that made other layers before counts from another number. So where names that differ in such numbers alone do not
   fit as they are, they are taken in the order of their numbers, which is the order of the layers; as many on both
   sides, or none of them.
3. **Without a scope** that all of one side begin with: `tower/dense/kernel` is `dense/kernel`.
4. **By what they are and their shape**, where there is exactly one on each side: the only kernel of [8, 10].

What is left, or would fit twice, is for the caller to refuse.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["MappedVariable", "VariableMatch", "match_variables"]

_NUMBER = re.compile(r"_(\d+)(?=/|$)")
# Endings of names -> what the variable is.
_ROLES = {
    "kernel": "kernel", "weights": "kernel", "weight": "kernel", "w": "kernel",
    "bias": "bias", "biases": "bias", "b": "bias",
    "embeddings": "embeddings", "embedding": "embeddings", "embedding_weights": "embeddings",
    "gamma": "gamma", "beta": "beta", "moving_mean": "moving mean", "moving_variance": "moving variance",
    "depthwise_kernel": "depthwise kernel", "pointwise_kernel": "pointwise kernel",
    "recurrent_kernel": "recurrent kernel",
}  # fmt: skip


class MappedVariable(NamedTuple):
    """What a variable is matched by."""

    shape: tuple[int, ...]
    dtype: str


class VariableMatch(NamedTuple):
    """The variable of the checkpoint that a target's is, and how that was found: "mapping", "name", "order", "scope"
    or "shape"."""

    source: str
    how: str


def match_variables(
    source: Mapping[str, MappedVariable],
    target: Mapping[str, MappedVariable],
    *,
    by_hand: Mapping[str, str] | None = None,
) -> dict[str, VariableMatch]:
    """Target's name -> the variable of the checkpoint; what has no counterpart, or more than one, is left out.

    Args:
        source: name -> variable of the checkpoint.
        target: the same of the target.
        by_hand: target's name -> name in the checkpoint; both must be there.
    """
    found = {name: VariableMatch(given, "mapping") for name, given in (by_hand or {}).items()}
    left_source, left_target = _left(source, target, found)
    found |= _by_name(left_source, left_target, how="name")
    left_source, left_target = _left(source, target, found)
    if left_source and left_target:
        found |= _without_scope(left_source, left_target)
        left_source, left_target = _left(source, target, found)
        found |= _by_shape(left_source, left_target)
    return found


def _left(
    source: Mapping[str, MappedVariable], target: Mapping[str, MappedVariable], found: Mapping[str, VariableMatch]
) -> tuple[dict[str, MappedVariable], dict[str, MappedVariable]]:
    taken = {match.source for match in found.values()}
    return (
        {name: one for name, one in source.items() if name not in taken},
        {name: one for name, one in target.items() if name not in found},
    )


def _by_name(
    source: Mapping[str, MappedVariable], target: Mapping[str, MappedVariable], *, how: str
) -> dict[str, VariableMatch]:
    """By the same names, and numbered ones in the order of their numbers."""
    found: dict[str, VariableMatch] = {}
    families: dict[str, tuple[list[str], list[str]]] = collections.defaultdict(lambda: ([], []))
    for side, names in enumerate((source, target)):
        for name in names:
            families[_NUMBER.sub("", name)][side].append(name)
    for theirs, ours in families.values():
        alone = (set(theirs) - set(ours), set(ours) - set(theirs))
        if not (alone[0] and alone[1]):
            found |= {name: VariableMatch(name, how) for name in ours if name in source}
        elif len(theirs) == len(ours):
            pairs = list(zip(sorted(ours, key=_numbers), sorted(theirs, key=_numbers), strict=True))
            # One that does not fit says that the order is not the same: then it says nothing of the others.
            if all(source[given].shape == target[name].shape for name, given in pairs):
                found |= {name: VariableMatch(given, "order") for name, given in pairs}
    return found


def _numbers(name: str) -> tuple[tuple[str, int], ...]:
    """`block_2/dense_10/kernel` comes after `block_2/dense_9/kernel`."""
    parts = []
    for part in name.split("/"):
        match = re.fullmatch(r"(.*?)(?:_(\d+))?", part)
        assert match is not None
        parts.append((match[1], -1 if match[2] is None else int(match[2])))
    return tuple(parts)


def _without_scope(
    source: Mapping[str, MappedVariable], target: Mapping[str, MappedVariable]
) -> dict[str, VariableMatch]:
    theirs, ours = _scope(source), _scope(target)
    if not theirs and not ours:
        return {}
    shorter_source = {name.removeprefix(theirs): one for name, one in source.items()}
    shorter_target = {name.removeprefix(ours): one for name, one in target.items()}
    # The scope of one side may begin the other's names as well: the least is taken away that makes them the same.
    for one, other, before in (
        (shorter_source, dict(target), (theirs, "")),
        (dict(source), shorter_target, ("", ours)),
        (shorter_source, shorter_target, (theirs, ours)),
    ):
        found = _by_name(one, other, how="scope")
        if len(found) == min(len(one), len(other)) and found:
            return {
                before[1] + name: VariableMatch(
                    before[0] + match.source, "scope" if match.how == "scope" else match.how
                )
                for name, match in found.items()
            }
    return {}


def _scope(names: Mapping[str, MappedVariable]) -> str:
    """Return what all names begin with, up to a slash: "tower/"."""
    split = [name.split("/")[:-1] for name in names]
    common: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return "".join(f"{part}/" for part in common)


def _by_shape(source: Mapping[str, MappedVariable], target: Mapping[str, MappedVariable]) -> dict[str, VariableMatch]:
    found: dict[str, VariableMatch] = {}
    for with_role in (True, False):
        groups: dict[tuple[str, ...], tuple[list[str], list[str]]] = collections.defaultdict(lambda: ([], []))
        left_source, left_target = _left(source, target, found)
        for side, names in enumerate((left_source, left_target)):
            for name, one in names.items():
                key = (role_of(name),) if with_role else ()
                groups[(*key, str(one.shape), one.dtype)][side].append(name)
        for theirs, ours in groups.values():
            if len(theirs) == len(ours) == 1 and _may_be(theirs[0], ours[0]):
                found[ours[0]] = VariableMatch(theirs[0], "shape")
    return found


def role_of(name: str) -> str:
    """Return what a variable is, by the ending of its name; the ending itself where it is none of the usual ones."""
    last = _NUMBER.sub("", name.rpartition("/")[2])
    return _ROLES.get(last.lower(), last)


def _may_be(one: str, other: str) -> bool:
    """Return whether two names may belong to one variable: not a bias and a gamma."""
    known = set(_ROLES.values())
    roles = {role_of(one), role_of(other)}
    return len(roles) == 1 or not roles <= known
