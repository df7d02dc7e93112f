"""A feature of a table, with its statistics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["FeatureSpec", "identifier"]


@dataclass(frozen=True)
class FeatureSpec:
    """A feature with its statistics.

    Attributes:
        name: Its name in the job file.
        kind: "numeric", "categorical", "bucketized" or "crossed".
        output: Its name as an input of the model, a valid name of an operation.
        sources: The columns of the table that it reads; of a crossed feature also bucketized features.
        missing: The number in place of a missing one.
        log: Whether log(1 + x) is taken first.
        shift: Is subtracted from a numeric feature.
        scale: The difference is divided by it.
        boundaries: Of a bucketized feature.
        vocabulary: The values of a categorical feature, in the order of their ids; None for ids by a hash.
        oov_buckets: The ids for all other values, after those of the vocabulary.
        hash_buckets: The number of ids by a hash.
        embedding_dim: The size of the embedding; None for that of the model.
    """

    name: str
    kind: str
    output: str
    sources: tuple[str, ...]
    missing: float = 0.0
    log: bool = False
    shift: float = 0.0
    scale: float = 1.0
    boundaries: tuple[float, ...] = ()
    vocabulary: tuple[str, ...] | None = None
    oov_buckets: int = 1
    hash_buckets: int | None = None
    embedding_dim: int | None = None

    @property
    def buckets(self) -> int | None:
        """The number of ids; None for a numeric feature."""
        if self.kind == "numeric":
            return None
        if self.kind == "bucketized":
            return len(self.boundaries) + 1
        return self.hash_buckets or len(self.vocabulary or ()) + self.oov_buckets


def identifier(name: str, taken: Iterable[str]) -> str:
    """Return a name for a column that operations and arguments can have, and that is not taken."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII)
    base = base if re.match(r"[A-Za-z]", base) else f"column_{base}"
    others, unique, number = set(taken), base, 1
    while unique in others:
        number += 1
        unique = f"{base}_{number}"
    return unique
