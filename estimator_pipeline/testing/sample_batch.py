"""The sample batch for the checks of a `model_fn`, from an input_fn or from arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.testing import calling
from estimator_pipeline.testing import record_stream as streams

__all__ = ["Sample", "take"]


@dataclass(frozen=True)
class Sample:
    """One batch.

    Attributes:
        features: An array [B, ...] or a dict of arrays; sparse and ragged values are allowed.
        labels: Like `features`, or None.
        rows: The batch size B.
        fixed_batch: Whether the data has a static batch size, on which the model may depend.
    """

    features: Any
    labels: Any
    rows: int
    fixed_batch: bool

    def dataset(self, tf: Any, *, rows: int, copies: int = 1, with_labels: bool = True) -> Any:
        """Return an endless dataset of this batch in batches of `rows` rows, with `copies` copies in a row.

        `rows` = B and 2 copies give two equal batches. `rows` = 2B and 2 copies give both in one batch. `rows` =
        B/2 and 1 copy give the two halves in turn.
        """
        element = (self.features, self.labels) if with_labels and self.labels is not None else self.features
        dataset = (
            tf.data.Dataset.from_tensors(_tensors(tf, element))
            .repeat(copies if copies > 1 else None)
            .unbatch()
            .repeat()
        )
        return dataset.batch(rows, drop_remainder=self.fixed_batch)

    @property
    def simple_features(self) -> dict[str, np.ndarray] | None:
        """Features by name (a single one as "features"); None if any is sparse or ragged."""
        named = dict(self.features) if isinstance(self.features, Mapping) else {"features": self.features}
        if any(hasattr(value, "dense_shape") or hasattr(value, "row_splits") for value in named.values()):
            return None
        return {name: np.asarray(value) for name, value in named.items()}


def _tensors(tf: Any, value: Any) -> Any:
    """Return constants in the current graph, in the structure of the value."""
    if isinstance(value, Mapping):
        return {name: _tensors(tf, part) for name, part in value.items()}
    if isinstance(value, tf.compat.v1.SparseTensorValue):
        return tf.SparseTensor.from_value(value)
    if isinstance(value, tf.compat.v1.ragged.RaggedTensorValue):
        return tf.RaggedTensor.from_nested_row_splits(value.flat_values, value.nested_row_splits)
    if isinstance(value, (tuple, list)):
        return tuple(_tensors(tf, part) for part in value)
    return tf.constant(value)


def take(tf: Any, data: Any, *, params: Any, config: Any, seed: int | None) -> Sample:
    """Return the sample: the first training batch of an input_fn, or a pair of arrays."""
    fixed = False
    if callable(data):
        takes = calling.parameters(data)
        known = {"mode": "train", "params": params, "config": config}
        arguments = {name: value for name, value in known.items() if name in takes}
        features, labels, spec = streams.first_batch(tf, lambda: data(**arguments), seed=seed)
        fixed = all(leaf.shape and leaf.shape[0] is not None for leaf in spec)
    else:
        features, labels = data
    leaves = streams.leaves(tf, features, "features") + ([] if labels is None else streams.leaves(tf, labels, "labels"))
    sizes = {path: streams.rows_of(tf, leaf) for path, leaf in leaves}
    (rows,) = set(sizes.values()) if len(set(sizes.values())) == 1 else (None,)
    if not rows:
        raise ConfigError(
            "the sample is not a batch",
            code="data/empty",
            found=", ".join(f"{path}: {'no' if size is None else size} rows" for path, size in sizes.items()),
            hint="use features and labels with a batch axis and the same number of rows",
        )
    return Sample(features, labels, rows, fixed)


def calls(sample: Sample, tf: Any, **how: Any) -> Callable[[], Any]:
    """Return an input_fn for the sample, with the arguments of `Sample.dataset`."""
    return lambda: sample.dataset(tf, **how)
