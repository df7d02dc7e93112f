"""Conversion of a source's named values to (features, labels): selection, structure and scaling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from estimator_pipeline.errors import InputError

__all__ = ["FeatureLayout", "TableTransform", "labels_of"]


def labels_of(label_key: str | Sequence[str], weight_key: str | None) -> str | tuple[str, ...]:
    """Return the names of the labels, including the record weights, if any."""
    labels = (label_key,) if isinstance(label_key, str) else tuple(label_key)
    if weight_key is None:
        return label_key if isinstance(label_key, str) else labels
    if weight_key in labels:
        raise InputError(
            f"{weight_key!r} is a label and cannot be the record weight as well",
            code="argument/conflict",
            hint="name a different feature",
        )
    return (*labels, weight_key)


class TableTransform(Protocol):
    """A transformation of columns to the inputs of a model; see `estimator_pipeline.models.features`."""

    @property
    def serving_names(self) -> dict[str, str]:
        """Column -> its name in an exported model."""

    def specs(self, tf: Any) -> dict[str, Any]:
        """Return the specs of the model's inputs, batch axis first."""

    def raw_specs(self, tf: Any) -> dict[str, Any]:
        """Return the specs of the columns of one record, by their names in an exported model."""

    def bind(self, tf: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """Return the transformation in the current graph."""


@dataclass(frozen=True)
class FeatureLayout:
    """The structure of a model's features and labels.

    Args:
        features_key: One name for a tensor, several for a dict of tensors, None for a dict of everything except
            the labels.
        label_key: One name for a tensor, several for a dict.
        scale: See InputOptions.
        transform: Converts the dict of features.
    """

    features_key: str | Sequence[str] | None
    label_key: str | Sequence[str]
    scale: float | Mapping[str, float] | None = None
    transform: TableTransform | None = None

    @property
    def single_feature(self) -> str | None:
        """The name of the feature that is passed as a single tensor, or None."""
        return self.features_key if isinstance(self.features_key, str) else None

    def packer(self, tf: Any) -> Callable[[Mapping[str, Any]], tuple[Any, Any]]:
        """Return a function that converts a batch's tensors to (features, labels); lookup tables are in this graph."""
        bound = None if self.transform is None else self.transform.bind(tf)

        def pack(values: Mapping[str, Any]) -> tuple[Any, Any]:
            features, labels = self._packed(values, functools.partial(self._scaled, tf))
            return (features if bound is None else bound(features)), labels

        return pack

    def pack_specs(self, tf: Any, specs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return (features, labels) of tensor specs; builds no operations.

        Raises:
            InputError: A name is missing.
        """

        def scaled(name: str, spec: Any) -> Any:
            plain = isinstance(spec, (tf.TensorSpec, tf.SparseTensorSpec))
            factor = self._factor(tf, name, spec.dtype) if plain else None
            return spec if factor is None else type(spec)(spec.shape, tf.float32)

        features, labels = self._packed(specs, scaled)
        return (features if self.transform is None else self.transform.specs(tf)), labels

    def scaled(self, tf: Any, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of features, scaled."""
        return {name: self._scaled(tf, name, value) for name, value in features.items()}

    def _scaled(self, tf: Any, name: str, value: Any) -> Any:
        factor = self._factor(tf, name, value.dtype)
        return value if factor is None else tf.cast(value, tf.float32) * np.float32(factor)

    def names(self, values: Collection[str]) -> tuple[list[str], list[str]]:
        """Return the names of the features and of the labels among those of all values."""
        labels = [self.label_key] if isinstance(self.label_key, str) else list(self.label_key)
        if self.features_key is None:
            return [name for name in values if name not in labels], labels
        return [self.features_key] if isinstance(self.features_key, str) else list(self.features_key), labels

    def _packed(self, values: Mapping[str, Any], scaled: Any) -> tuple[Any, Any]:
        names, labels = self.names(values)
        for kind, wanted in (("feature", names), ("label", labels)):
            for name in wanted:
                if name not in values:
                    raise InputError(
                        f"The data has no {kind} {name!r}",
                        code="data/missing-feature",
                        found=f"it has {', '.join(sorted(values))}",
                        hint=f"give one of these as {'features_key' if kind == 'feature' else 'label_key'}",
                    )
        if not names:
            raise InputError("No features are left beside the labels", code="data/empty", hint="give features_key")
        unknown = sorted(set(self.scale) - set(names)) if isinstance(self.scale, Mapping) else []
        if unknown:
            raise InputError(
                f"scale names the unknown feature {unknown[0]!r}",
                code="data/missing-feature",
                found=f"features {', '.join(names)}",
                hint="use their names",
            )
        features = {name: scaled(name, values[name]) for name in names}
        label = {name: values[name] for name in labels}
        return (
            features[self.features_key] if isinstance(self.features_key, str) else features,
            label[self.label_key] if isinstance(self.label_key, str) else label,
        )

    def _factor(self, tf: Any, name: str, dtype: Any) -> float | None:
        if isinstance(self.scale, Mapping):
            return self.scale.get(name)
        return None if dtype in (tf.string, tf.bool) else self.scale
