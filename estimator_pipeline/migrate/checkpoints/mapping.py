"""Matching of a checkpoint's variables with those of the target, by name, layer order and shape. NumPy only.

Each rule applies to the variables that the rules before it did not match:

1. Explicit names of `--mapping`.
2. Name. Layers without explicit names are numbered in order of creation (`dense`, `dense_1`), and the numbers depend
   on the layers created before. If names differ only in such numbers, they are matched in the order of the numbers,
   which is the order of the layers. Both sides must have equally many, otherwise none is matched.
3. Name without a scope that all variables of one side share: `tower/dense/kernel` is `dense/kernel`.
4. Role and shape, if exactly one variable on each side has them: the only kernel of shape [8, 10].

The caller rejects variables without a match, and ambiguous ones.
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
    """The properties by which a variable is matched."""

    shape: tuple[int, ...]
    dtype: str


class VariableMatch(NamedTuple):
    """A variable of the checkpoint, and the rule that matched it.

    Attributes:
        source: Its name in the checkpoint.
        how: "mapping", "name", "order", "scope" or "shape".
    """

    source: str
    how: str


def match_variables(
    source: Mapping[str, MappedVariable],
    target: Mapping[str, MappedVariable],
    *,
    explicit: Mapping[str, str] | None = None,
) -> dict[str, VariableMatch]:
    """Match variables by all rules; omit unmatched and ambiguous variables.

    Args:
        source: Name -> variable of the checkpoint.
        target: Name -> variable of the target.
        explicit: Name in the target -> name in the checkpoint; both must exist.

    Returns:
        Name in the target -> match.
    """
    matches = {name: VariableMatch(original, "mapping") for name, original in (explicit or {}).items()}
    left_source, left_target = _unmatched(source, target, matches)
    matches |= _by_name(left_source, left_target, how="name")
    left_source, left_target = _unmatched(source, target, matches)
    if left_source and left_target:
        matches |= _without_scope(left_source, left_target)
        left_source, left_target = _unmatched(source, target, matches)
        matches |= _by_shape(left_source, left_target)
    return matches


def _unmatched(
    source: Mapping[str, MappedVariable], target: Mapping[str, MappedVariable], matches: Mapping[str, VariableMatch]
) -> tuple[dict[str, MappedVariable], dict[str, MappedVariable]]:
    taken = {match.source for match in matches.values()}
    return (
        {name: variable for name, variable in source.items() if name not in taken},
        {name: variable for name, variable in target.items() if name not in matches},
    )


def _by_name(
    source: Mapping[str, MappedVariable], target: Mapping[str, MappedVariable], *, how: str
) -> dict[str, VariableMatch]:
    """Match equal names, and numbered names in the order of their numbers."""
    matches: dict[str, VariableMatch] = {}
    families: dict[str, tuple[list[str], list[str]]] = collections.defaultdict(lambda: ([], []))
    for side, names in enumerate((source, target)):
        for name in names:
            families[_NUMBER.sub("", name)][side].append(name)
    for theirs, ours in families.values():
        without_match = (set(theirs) - set(ours), set(ours) - set(theirs))
        if not (without_match[0] and without_match[1]):
            matches |= {name: VariableMatch(name, how) for name in ours if name in source}
        elif len(theirs) == len(ours):
            pairs = list(zip(sorted(ours, key=_numbers), sorted(theirs, key=_numbers), strict=True))
            # If one shape differs, the order of the layers differs, so no match by order is reliable.
            if all(source[original].shape == target[name].shape for name, original in pairs):
                matches |= {name: VariableMatch(original, "order") for name, original in pairs}
    return matches


def _numbers(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key that puts `dense_10/kernel` after `dense_9/kernel`."""
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
    shorter_source = {name.removeprefix(theirs): variable for name, variable in source.items()}
    shorter_target = {name.removeprefix(ours): variable for name, variable in target.items()}
    # The other side's names may start with the same scope, so remove the scope of one side first, then of both.
    for tried_source, tried_target, scopes in (
        (shorter_source, dict(target), (theirs, "")),
        (dict(source), shorter_target, ("", ours)),
        (shorter_source, shorter_target, (theirs, ours)),
    ):
        matches = _by_name(tried_source, tried_target, how="scope")
        if len(matches) == min(len(tried_source), len(tried_target)) and matches:
            return {
                scopes[1] + name: VariableMatch(
                    scopes[0] + match.source, "scope" if match.how == "scope" else match.how
                )
                for name, match in matches.items()
            }
    return {}


def _scope(names: Mapping[str, MappedVariable]) -> str:
    """Return the common scope of all names: "tower/"."""
    split = [name.split("/")[:-1] for name in names]
    common: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return "".join(f"{part}/" for part in common)


def _by_shape(source: Mapping[str, MappedVariable], target: Mapping[str, MappedVariable]) -> dict[str, VariableMatch]:
    matches: dict[str, VariableMatch] = {}
    for with_role in (True, False):
        groups: dict[tuple[str, ...], tuple[list[str], list[str]]] = collections.defaultdict(lambda: ([], []))
        left_source, left_target = _unmatched(source, target, matches)
        for side, variables in enumerate((left_source, left_target)):
            for name, variable in variables.items():
                key = (role_of(name),) if with_role else ()
                groups[(*key, str(variable.shape), variable.dtype)][side].append(name)
        for theirs, ours in groups.values():
            if len(theirs) == len(ours) == 1 and _may_match(theirs[0], ours[0]):
                matches[ours[0]] = VariableMatch(theirs[0], "shape")
    return matches


def role_of(name: str) -> str:
    """Return the role of a variable, or the last part of an unusual name."""
    last = _NUMBER.sub("", name.rpartition("/")[2])
    return _ROLES.get(last.lower(), last)


def _may_match(source: str, target: str) -> bool:
    """Return whether two names can match, unlike a bias and a gamma."""
    known = set(_ROLES.values())
    roles = {role_of(source), role_of(target)}
    return len(roles) == 1 or not roles <= known
