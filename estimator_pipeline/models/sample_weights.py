"""Sample weights and class weights in the loss and in the metrics.

The loss of a batch is `sum(weight * loss) / batch`, as in the heads of tf.estimator and in Keras. It is the mean over
the examples, not over the weights, so a replica's share of the gradient does not depend on the other replicas' weights.
`average_loss` and the metrics are weighted means: `sum(weight * value) / sum(weight)`.

Sample weights are part of the data: one of the labels (`{"label": …, "weight": …}`) or, as in canned Estimators, one of
the features. They are removed before the model and the loss see the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = ["ClassWeights", "Weighting", "weighting_of"]

# One weight for each class, or a mapping from class numbers or names.
ClassWeights = Sequence[float] | Mapping[int, float] | Mapping[str, float]

# The heads in which each example has exactly one class.
_OF_CLASSES = ("multi_class", "one_hot", "binary")


@dataclass(frozen=True)
class Weighting:
    """The source of an example's weight: sample weight, class weight, or their product.

    Attributes:
        column: The name of the sample weights in the data; None: the data have none.
        classes: The weight of each class, by its number; empty: all classes have weight 1.
        others: The weight of a class beyond those; None: there are no other classes.
        kind: The head, which defines how labels name classes.
    """

    column: str | None = None
    classes: tuple[float, ...] = ()
    others: float | None = None
    kind: str | None = None

    def check_units(self, units: int | None) -> None:
        """Check the number of class weights against the model's number of classes.

        Args:
            units: The size of the model's last axis; None: unknown.

        Raises:
            ConfigError: The numbers differ.
        """
        if not self.classes or units is None:
            return
        classes = 2 if self.kind == "binary" else units
        if len(self.classes) > classes or (self.others is None and len(self.classes) < classes):
            raise ConfigError(
                f"class_weights has weights for {len(self.classes)} classes, and the model has {classes} classes",
                code="model/labels-mismatch",
                hint="give one weight for each class, in order, or a mapping from class numbers to weights",
            )

    def features_without_weights(self, features: Any) -> Any:
        """Return the features without the sample weights."""
        if not isinstance(features, Mapping) or self.column not in features:
            return features
        return {name: value for name, value in features.items() if name != self.column}

    def split(
        self, features: Any, labels: Any, numbered: Callable[[Any], Any] = lambda labels: labels
    ) -> tuple[Any, Any, Any]:
        """Split a batch into (features, labels, weights).

        Where only one label is left beside the weights, it is returned as a tensor instead of a dictionary.

        Args:
            features: The features of the batch.
            labels: The labels of the batch.
            numbered: Converts labels to class numbers; see `Head.numbering` in
                `estimator_pipeline.models.heads`.

        Returns:
            Features, labels and weights; the weights are float32 [B], or None.

        Raises:
            ConfigError: The data have no weights, or not one for each example.
        """
        tf = compat.tensorflow()
        weights = None
        if self.column is not None:
            if isinstance(labels, Mapping) and self.column in labels and len(labels) > 1:
                weights = labels[self.column]
                labels = {name: value for name, value in labels.items() if name != self.column}
                labels = next(iter(labels.values())) if len(labels) == 1 else labels
            elif isinstance(features, Mapping) and self.column in features and len(features) > 1:
                weights, features = features[self.column], self.features_without_weights(features)
            else:
                raise ConfigError(
                    f"the data have no weights named {self.column!r}",
                    code="data/missing-feature",
                    found=f"features: {_names(features)}; labels: {_names(labels)}",
                    hint='give the labels as a dictionary, {"label": labels, "'
                    f'{self.column}": weights}}, in training and in evaluation',
                )
            weights = _of_records(tf, weights, self.column)
        labels = numbered(labels)
        if self.classes:
            of_class = self._of_classes(tf, labels)
            weights = of_class if weights is None else weights * of_class
        return features, labels, weights

    def _of_classes(self, tf: Any, labels: Any) -> Any:
        if isinstance(labels, Mapping):
            raise ConfigError(
                "class_weights need a single label, and the data have several",
                code="model/labels-mismatch",
                found=_names(labels),
                hint="keep only the label that is the class, and the sample weights",
            )
        labels = tf.convert_to_tensor(labels)
        numbers = tf.argmax(labels, axis=-1) if self.kind == "one_hot" else tf.cast(tf.reshape(labels, [-1]), tf.int64)
        weights = tf.constant(self.classes, tf.float32)
        if self.others is None:
            return tf.gather(weights, numbers)
        known = numbers < len(self.classes)
        return tf.where(known, tf.gather(weights, tf.where(known, numbers, 0)), self.others)


def weighting_of(
    kind: str | None,
    *,
    weight_column: str | None = None,
    class_weights: ClassWeights | None = None,
    label_vocabulary: Sequence[str] = (),
) -> Weighting | None:
    """Return the checked weighting; None: every example has weight 1.

    Args:
        kind: One of `estimator_pipeline.models.heads.HEADS`; None: unknown.
        label_vocabulary: The class names that `class_weights` may use as keys.
        weight_column: The key of the weights in the dictionary of labels or, if not there, of features.
        class_weights: The weight of each class in order, or a mapping from class numbers or names to weights; the
            other classes have weight 1.

    Raises:
        ConfigError: A weight is invalid, or the head does not have the class.
    """
    if weight_column is not None and (not isinstance(weight_column, str) or not weight_column):
        raise ConfigError(
            f"weight_column is {weight_column!r}",
            code="argument/bad-value",
            hint="give the name of the weights in the data",
        )
    if class_weights is None:
        return None if weight_column is None else Weighting(weight_column, kind=kind)
    if kind not in _OF_CLASSES:
        target = "a custom loss function without a head" if kind is None else f"the head {kind!r}"
        raise ConfigError(
            f"class_weights is set, and with {target} an example does not have exactly one class",
            code="argument/conflict",
            found=f"heads with classes: {', '.join(_OF_CLASSES)}",
            hint="use sample weights (weight_column), or one of these heads",
        )
    classes, others = _checked(class_weights, label_vocabulary)
    if kind == "binary" and len(classes) > 2:
        raise ConfigError(
            f"class_weights has weights for {len(classes)} classes, and the head 'binary' has two",
            code="model/labels-mismatch",
            hint="give two",
        )
    return Weighting(weight_column, classes, others, kind)


def _of_records(tf: Any, weights: Any, column: str) -> Any:
    weights = tf.convert_to_tensor(weights)
    shape = weights.shape
    if shape.rank == 2 and shape[1] == 1:
        weights = tf.squeeze(weights, axis=1)
    elif shape.rank not in (1, None):
        raise ConfigError(
            f"the weights {column!r} are not one number for each record",
            code="data/bad-feature",
            found=f"a batch of the shape {shape}",
            hint="give them as [batch] or [batch, 1]",
        )
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise ConfigError(
            f"the weights {column!r} are not numbers",
            code="data/bad-feature",
            found=weights.dtype.name,
            hint="give numbers",
        )
    return tf.cast(weights, tf.float32)


def _checked(value: Any, vocabulary: Sequence[str]) -> tuple[tuple[float, ...], float | None]:
    """Return the weights in the order of the classes, and the weight of all other classes."""
    mapping = isinstance(value, Mapping)
    if not mapping and (not isinstance(value, Sequence) or isinstance(value, str)):
        raise ConfigError(
            f"class_weights is {value!r}",
            code="argument/bad-value",
            hint="give a list of weights, or a mapping from class numbers to weights",
        )
    names: dict[Any, Any] = {name: number for number, name in enumerate(vocabulary)}
    pairs: dict[Any, Any] = {
        names.get(key, key): weight for key, weight in (value.items() if mapping else enumerate(value))
    }
    for number, weight in pairs.items():
        if type(number) is not int or number < 0:
            raise ConfigError(
                f"class_weights names the class {number!r}",
                code="argument/bad-value",
                found=f"label_vocabulary: {', '.join(vocabulary)}" if vocabulary else "",
                hint="name classes by number, starting at 0, or by their name in label_vocabulary",
            )
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise ConfigError(
                f"class_weights: class {number} has weight {weight!r}",
                code="argument/bad-value",
                hint="give numbers of 0 or more",
            )
    if not any(pairs.values()):
        raise ConfigError(
            f"class_weights is {value!r}", code="argument/bad-value", hint="give at least one weight above 0"
        )
    return tuple(float(pairs.get(n, 1.0)) for n in range(max(pairs) + 1)), 1.0 if mapping else None


def _names(values: Any) -> str:
    return ", ".join(map(str, values)) if isinstance(values, Mapping) else "one tensor"
