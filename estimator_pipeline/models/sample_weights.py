"""What each record counts for: weights of records and of classes, in the loss and in the metrics.

The loss of a batch is `sum(weight * loss) / batch`, as the heads of tf.estimator and Keras have it: the mean over the
records, not over the weights, so that a replica's share of the gradient does not depend on the others' weights.
`average_loss` and the metrics are means by weight: `sum(weight * value) / sum(weight)`.

Weights of records come with the data, as one of the labels (`{"label": …, "weight": …}`) or, as canned Estimators have
it, as one of the features. Neither the model nor the loss gets to see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = ["ClassWeights", "Weighting", "weighting_of"]

# Of each class, or by the number or the name of some.
ClassWeights = Sequence[float] | Mapping[int, float] | Mapping[str, float]

# The heads whose records are of one class each.
_OF_CLASSES = ("multi_class", "one_hot", "binary")


@dataclass(frozen=True)
class Weighting:
    """Where the weight of a record comes from: of its own, of its class, or both multiplied.

    Attributes:
        column: the name under which the data bring the records' own weights; None: they bring none.
        classes: the weight of each class, by its number; empty: classes weigh alike.
        others: what a class beyond those weighs; None: there is none.
        kind: the head, which says how labels tell of classes.
    """

    column: str | None = None
    classes: tuple[float, ...] = ()
    others: float | None = None
    kind: str | None = None

    def check_units(self, units: int | None) -> None:
        """Hold the classes that have weights against those that the model tells apart.

        Args:
            units: values that the model gives for a record; None: not known.

        Raises:
            ConfigError: they are not the same.
        """
        if not self.classes or units is None:
            return
        classes = 2 if self.kind == "binary" else units
        if len(self.classes) > classes or (self.others is None and len(self.classes) < classes):
            raise ConfigError(
                f"class_weights has weights of {len(self.classes)} classes, and the model tells {classes} apart",
                code="model/labels-mismatch",
                hint="give one for each class, in their order, or a mapping from the numbers of some to their weights",
            )

    def features_alone(self, features: Any) -> Any:
        """Features without the records' weights, where these came with them."""
        if not isinstance(features, Mapping) or self.column not in features:
            return features
        return {name: value for name, value in features.items() if name != self.column}

    def apart(
        self, features: Any, labels: Any, numbered: Callable[[Any], Any] = lambda labels: labels
    ) -> tuple[Any, Any, Any]:
        """(features, labels, weights) of a batch; the weights are float32 [B].

        Labels of which the weights leave a single one are its tensor.

        Args:
            features: of the batch.
            labels: of the batch.
            numbered: from labels to those whose classes are numbers; see `Head.numbering` in
                `estimator_pipeline.models.heads`.

        Raises:
            ConfigError: the data do not bring the weights, or not one for each record.
        """
        tf = compat.tensorflow()
        weights = None
        if self.column is not None:
            if isinstance(labels, Mapping) and self.column in labels and len(labels) > 1:
                weights = labels[self.column]
                labels = {name: value for name, value in labels.items() if name != self.column}
                labels = next(iter(labels.values())) if len(labels) == 1 else labels
            elif isinstance(features, Mapping) and self.column in features and len(features) > 1:
                weights, features = features[self.column], self.features_alone(features)
            else:
                raise ConfigError(
                    f"the data bring no weights under the name {self.column!r}",
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
                "class_weights need labels of one kind, and the data give several",
                code="model/labels-mismatch",
                found=_names(labels),
                hint="keep the one that is the class, and the records' weights",
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
    """Return what is asked for, checked; None: every record counts for one.

    Args:
        kind: of `estimator_pipeline.models.heads.HEADS`; None: not known.
        label_vocabulary: the classes' names, by which `class_weights` may tell of them.
        weight_column: the name under which the labels' dictionary, or else the features', has the weights.
        class_weights: the weight of each class in order, or a mapping from the numbers or names of some to theirs; the
            others weigh 1.

    Raises:
        ConfigError: weights that are none, or of classes that the head does not have.
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
        what = "an own loss function without a head" if kind is None else f"the head {kind!r}"
        raise ConfigError(
            f"class_weights were given, and with {what} a record is not of one class",
            code="argument/conflict",
            found=f"heads of classes: {', '.join(_OF_CLASSES)}",
            hint="give each record a weight of its own (weight_column), or take one of these heads",
        )
    classes, others = _checked(class_weights, label_vocabulary)
    if kind == "binary" and len(classes) > 2:
        raise ConfigError(
            f"class_weights has weights of {len(classes)} classes, and the head 'binary' has two",
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
            f"the weights {column!r} are no numbers",
            code="data/bad-feature",
            found=weights.dtype.name,
            hint="give numbers",
        )
    return tf.cast(weights, tf.float32)


def _checked(given: Any, vocabulary: Sequence[str]) -> tuple[tuple[float, ...], float | None]:
    """Return the weights in the order of the classes, and what the others weigh."""
    mapping = isinstance(given, Mapping)
    if not mapping and (not isinstance(given, Sequence) or isinstance(given, str)):
        raise ConfigError(
            f"class_weights is {given!r}",
            code="argument/bad-value",
            hint="give a list of weights, or a mapping from class numbers to weights",
        )
    names: dict[Any, Any] = {name: number for number, name in enumerate(vocabulary)}
    pairs: dict[Any, Any] = {
        names.get(key, key): weight for key, weight in (given.items() if mapping else enumerate(given))
    }
    for number, weight in pairs.items():
        if type(number) is not int or number < 0:
            raise ConfigError(
                f"class_weights names the class {number!r}",
                code="argument/bad-value",
                found=f"label_vocabulary: {', '.join(vocabulary)}" if vocabulary else "",
                hint="name classes by number, from 0 on, or by what label_vocabulary calls them",
            )
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise ConfigError(
                f"class_weights: class {number} weighs {weight!r}",
                code="argument/bad-value",
                hint="give numbers of 0 or more",
            )
    if not any(pairs.values()):
        raise ConfigError(
            f"class_weights is {given!r}", code="argument/bad-value", hint="give at least one weight above 0"
        )
    return tuple(float(pairs.get(n, 1.0)) for n in range(max(pairs) + 1)), 1.0 if mapping else None


def _names(values: Any) -> str:
    return ", ".join(map(str, values)) if isinstance(values, Mapping) else "one tensor"
