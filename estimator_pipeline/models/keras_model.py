"""The compiled Keras model of a job, for Keras 2 or, after `compat.use_keras_3()`, for Keras 3.

`build_keras_model` takes the same arguments as `build_model_fn`. It returns a compiled `tf.keras.Model` that trains to
the same numbers as the `model_fn`:

* **Losses and metrics** are Keras's classes, on logits, wherever Keras has them. The model is plain Keras, and is saved
  and loaded without this package. `average_loss` is the mean over examples, as in the Estimator engine.
* **Loss scaling** is Keras's: the mean over the batch of a replica, divided by the number of replicas. It is the same
  as in `estimator_pipeline.models.model_fn`.
* **Clipping** follows the sum over replicas, as in `tf.keras.optimizers.legacy`.
* **Optimizers** have the requested arithmetic, see `estimator_pipeline.models.optimizers.keras2`.
* **Mixed precision**: the logits are float32 before the loss.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models import keras_file_errors as keras_refusals
from estimator_pipeline.models.heads import Head
from estimator_pipeline.models.metrics import METRICS, custom_classes, is_known, make_metric, metrics_of
from estimator_pipeline.models.mixed_precision import policy_of, precision
from estimator_pipeline.models.model_fn import checked, takes_params
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers.loss_scaling import INITIAL_SCALE
from estimator_pipeline.models.optimizers.spec import Optimizer, optimizer_of
from estimator_pipeline.models.outputs import UNWEIGHTED, Output, Outputs, outputs_of
from estimator_pipeline.models.sample_weights import ClassWeights
from estimator_pipeline.models.user_metrics import UserMetric, wrapper_class
from estimator_pipeline.utils import durable_files as durable

__all__ = ["build_keras_model", "load_keras_model", "save_keras_model"]

# loss name -> class in tf.keras.losses, arguments
_LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sparse_categorical_crossentropy": ("SparseCategoricalCrossentropy", {"from_logits": True}),
    "categorical_crossentropy": ("CategoricalCrossentropy", {"from_logits": True}),
    "binary_crossentropy": ("BinaryCrossentropy", {"from_logits": True}),
    "mean_squared_error": ("MeanSquaredError", {}),
    "mse": ("MeanSquaredError", {}),
    "mean_absolute_error": ("MeanAbsoluteError", {}),
    "mae": ("MeanAbsoluteError", {}),
    "huber": ("Huber", {}),
}


def build_keras_model(
    layers: Callable[..., Any],
    *,
    loss: str | Callable[[Any, Any], Any] | None = None,
    outputs: Mapping[str, Output | Mapping[str, Any]] | None = None,
    optimizer: str | Mapping[str, Any] | Optimizer = "sgd",
    metrics: Sequence[str | Any] | None = None,
    head: str | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    label_smoothing: float = 0.0,
    weight_column: str | None = None,
    class_weights: ClassWeights | None = None,
    label_vocabulary: Sequence[str] = (),
    mixed_precision: bool | str = False,
    params: Mapping[str, Any] | None = None,
    steps_per_execution: int = 1,
) -> Any:
    """Build and compile the Keras model of a job. Call it in the scope of the training strategy.

    Args:
        layers: `layers()` or `layers(params)` returns a Keras model that maps a batch of features to logits (no softmax
            or sigmoid at its end).
        loss: A name (see `estimator_pipeline.models.heads`), or `loss(labels, logits)` -> the loss of each example
            [B].
        outputs: The outputs of a model that returns a dictionary of logits. Replaces `loss`, `head`, `metrics` and the
            other fields of `Output`; see `estimator_pipeline.models.outputs`. `keras_batches` converts the data.
        optimizer: A name, a mapping with the fields of `Optimizer`, or an `Optimizer`.
        metrics: Names, or Keras metrics of (labels, logits). None: the head's first metric.
        head: The meaning of the logits, where the loss does not define it: with a custom loss function, or
            "multi_label" with "binary_crossentropy".
        clip_norm: The global norm to which the summed gradient is clipped.
        clip_value: The absolute value to which each element of the summed gradient is clipped.
        label_smoothing: The share of each label that is spread evenly over the classes, in training and evaluation.
        weight_column: Set if batches are (features, labels, weights): all metrics are then weighted. `keras_batches`
            with the same name creates such batches.
        class_weights: The same, for class weights.
        label_vocabulary: The class names, in order; `keras_batches` converts them to numbers in the data.
        mixed_precision: True or "mixed_bfloat16", or "mixed_float16" (with a dynamic loss scale or, in a process with
            Keras 3, a fixed one).
        params: The argument of `layers(params)`.
        steps_per_execution: Training steps in one call of the compiled function.

    Returns:
        A compiled `tf.keras.Model`; its outputs are logits, float32 [B, ...].

    Raises:
        ConfigError: A name, a type or a combination of arguments is not supported.
    """
    output_spec = outputs_of(
        outputs,
        loss=loss,
        head=head,
        metrics=metrics,
        label_smoothing=label_smoothing,
        weight_column=weight_column,
        class_weights=class_weights,
        label_vocabulary=label_vocabulary,
    )
    if clip_norm is not None and clip_value is not None:
        raise ConfigError(
            "clip_norm and clip_value are both set", code="argument/conflict", hint="set only one of the two"
        )
    policy = policy_of(mixed_precision)
    chosen = optimizer_of(optimizer)
    with precision(policy):
        model = checked(layers(dict(params or {})) if takes_params(layers) else layers())
        model = _with_named_logits(model, output_spec, policy)
        sizes = _check_output(model, output_spec)
        keras_optimizer = keras_optimizers.make(chosen, clip_norm=clip_norm, clip_value=clip_value, whole_rows=True)
        if policy == "mixed_float16":
            keras_optimizer = _with_loss_scale(keras_optimizer)
    # The metrics of a step already cover all replicas; Keras would sum them over the workers again.
    model.distribute_reduction_method = "first"
    losses = {name: _loss(part.head) for name, part in output_spec.parts.items()}
    for name, part in output_spec.parts.items():
        losses[name].loss_weight = part.loss_weight
    counted: dict[str, dict[str, list[Any]]] = {"metrics": {}, "weighted_metrics": {}}
    for name, part in output_spec.parts.items():
        every = [_average_loss(part.head), *_metrics(part.head, part.metrics, sizes[name])]
        weighted = [metric for metric in every if output_spec.weighted and not _is_unweighted(metric)]
        counted["weighted_metrics"][name] = weighted
        counted["metrics"][name] = [metric for metric in every if metric not in weighted]
    model.compile(
        optimizer=keras_optimizer,
        loss=losses[""] if output_spec.is_single else losses,
        loss_weights=None
        if output_spec.is_single
        else {name: part.loss_weight for name, part in output_spec.parts.items()},
        **{
            field: by_output[""] if output_spec.is_single else by_output
            for field, by_output in counted.items()
            if any(by_output.values())
        },
        steps_per_execution=steps_per_execution,
        # Keras 3 would add its dynamic loss scale.
        **({"auto_scale_loss": False} if compat.keras_generation() == 3 else {}),
    )
    return model


def save_keras_model(model: Any, path: str) -> None:
    """Save a compiled model and its optimizer state as a `.keras` file.

    Keras 2 leaves the state of `tf.keras.optimizers.legacy` out of such files. This function stores it as one more
    member of the archive, which Keras ignores and `load_keras_model` reads. Keras 3, and the newer optimizers of
    Keras 2, store the state themselves. The file is replaced atomically: readers see the old file or the complete new
    one.

    Args:
        model: A compiled `tf.keras.Model`.
        path: The path of the file; any that `tf.io.gfile` can write.
    """
    gfile = compat.tensorflow().io.gfile
    keras_optimizers.create_slots(model)
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "model.keras")
        if compat.keras_generation() == 3:
            model.save(local)
        else:
            with _metrics_as_compiled(model):
                model.save(local, save_format="keras")
            if hasattr(model.optimizer, "get_weights"):
                state = io.BytesIO()
                np.savez(state, *model.optimizer.get_weights())
                with zipfile.ZipFile(local, "a") as archive:
                    archive.writestr(_STATE, state.getvalue())
        gfile.copy(local, f"{path}.unfinished", overwrite=True)
    durable.rename(f"{path}.unfinished", path, by=functools.partial(gfile.rename, overwrite=True))


@contextlib.contextmanager
def _metrics_as_compiled(model: Any) -> Iterator[None]:
    """Restore the compiled names of the metrics of named outputs within the block.

    Keras 2 adds the output's name as a prefix and saves the result, so loading the file would add the prefix again.
    """
    renamed = []
    for by_output in (model.compiled_metrics._user_metrics, model.compiled_metrics._user_weighted_metrics):
        for name, metrics in by_output.items() if isinstance(by_output, Mapping) else ():
            renamed += [(metric, metric.name, metric.name.removeprefix(f"{name}_")) for metric in metrics]
    for metric, _, compiled in renamed:
        metric._name = compiled
    try:
        yield
    finally:
        for metric, name, _ in renamed:
            metric._name = name


def load_keras_model(path: str) -> Any:
    """Load a `.keras` file of the Keras engine or of `save_keras_model`, compiled.

    `tf.keras.models.load_model(path, compile=False)` loads it without this package; its compile config may name
    optimizers and metrics of this package. In a strategy's scope, the variables belong to the strategy. Training
    continues with the saved optimizer state: its step and its slots.

    Args:
        path: The path of the file.

    Returns:
        The compiled `tf.keras.Model`.

    Raises:
        ConfigError: The file does not exist, or Keras cannot load it.
    """
    tf = compat.tensorflow()
    _custom_classes()
    custom_classes()
    wrapper_class()
    keras_optimizers.register()
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "model.keras")
        try:
            tf.io.gfile.copy(path, local)
            with zipfile.ZipFile(local) as archive:
                state = archive.read(_STATE) if _STATE in archive.namelist() else None
        except (tf.errors.OpError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"{path} cannot be read as a .keras file: {error}",
                code="model/bad-keras-file",
                hint="give a .keras file that Model.save wrote",
            ) from error
        try:
            model = tf.keras.models.load_model(local)
        except keras_refusals.ERRORS as error:
            raise keras_refusals.explained(path, local, error) from error
    if state is not None:
        keras_optimizers.create_slots(model)
        with np.load(io.BytesIO(state)) as values:
            model.optimizer.set_weights([values[name] for name in values.files])
    return model


# The archive member with the optimizer's weights, in order.
_STATE = "estimator_pipeline/optimizer.npz"


def _with_named_logits(model: Any, output_spec: Outputs, policy: str) -> Any:
    """Return the model with named outputs; under mixed precision its logits are float32."""
    if output_spec.is_single:
        return _with_float32_logits(model, policy)
    keras = compat.tensorflow().keras
    if isinstance(model, keras.Sequential):
        output_spec.check_names(None, None)
    if not getattr(model, "inputs", None):
        # Not a functional model: its call returns the names.
        return model if policy == "float32" else _custom_classes()["float32_outputs"](model)
    output = model.output
    output_spec.check_names(list(output) if isinstance(output, Mapping) else None, output)
    if policy == "float32" and list(model.output_names) == sorted(output):
        return model
    # Keras names outputs by their layers, and the layers of a model have distinct names.
    if not {layer.name for layer in model.layers}.isdisjoint(output):
        output = model(model.input)
    last = {name: keras.layers.Activation("linear", dtype="float32", name=name) for name in output}
    return keras.Model(model.input, {name: last[name](value) for name, value in output.items()})


def _with_float32_logits(model: Any, policy: str) -> Any:
    """Return the model with float32 logits under mixed precision: the loss is computed in float32."""
    if policy == "float32":
        return model
    keras = compat.tensorflow().keras
    last = keras.layers.Activation("linear", dtype="float32", name="float32_logits")
    if isinstance(model, keras.Sequential):
        model.add(last)
        return model
    if getattr(model, "inputs", None):
        return keras.Model(model.input, last(model.output))
    return keras.Sequential([model, last])


def _with_loss_scale(optimizer: Any) -> Any:
    """Return the optimizer with a loss scale: dynamic in Keras 2, fixed in Keras 3."""
    if compat.keras_generation() == 3:
        # Fixed: the training loop over several workers applies the gradients itself.
        optimizer.loss_scale_factor = INITIAL_SCALE
        return optimizer
    wrapper = compat.tensorflow().keras.mixed_precision.LossScaleOptimizer
    return wrapper(optimizer, initial_scale=INITIAL_SCALE)


def _check_output(model: Any, output_spec: Outputs) -> dict[str, int | None]:
    """Check a built model's number of classes against the vocabulary and the class weights.

    Returns:
        The number of logits of an example by output; None: unknown before the model is called.
    """
    sizes: dict[str, int | None] = dict.fromkeys(output_spec.parts)
    if not getattr(model, "inputs", None):
        return sizes
    # Sequential models of Keras 3 have the shape, but no `output` yet.
    output: Any = getattr(model, "output_shape", None) if output_spec.is_single else model.output
    several = isinstance(output, list | tuple) and output and isinstance(output[0], list | tuple)
    output_spec.check_names(list(output) if isinstance(output, Mapping) else None, output if several else None)
    for name, part in output_spec.parts.items():
        shape = output if output_spec.is_single else tuple(output[name].shape)
        if not isinstance(shape, tuple):
            continue
        sizes[name] = shape[-1]
        part.head.check_units(shape[-1])
        if part.classes is not None:
            part.classes.check_units(shape[-1])
        if output_spec.weighted and len(shape) > 2:
            raise ConfigError(
                f"the model's output has the shape {shape}, and Keras would apply sample weights to its other axes",
                code="model/labels-mismatch",
                hint="end the model with one axis beside the batch axis, or remove the weights",
            )
    return sizes


def _arguments(head: Head) -> dict[str, Any]:
    """Return the arguments of a named Keras loss and of its metric."""
    smoothing = {"label_smoothing": head.label_smoothing} if head.label_smoothing else {}
    return {**_LOSSES[head.loss][1], **smoothing}  # type: ignore[index]


def _loss(head: Head) -> Any:
    tf = compat.tensorflow()
    if isinstance(head.loss, str):
        if head.label_smoothing and head.kind == "multi_class":
            return _custom_classes()["smoothed_loss"](head.label_smoothing)
        return getattr(tf.keras.losses, _LOSSES[head.loss][0])(**_arguments(head))

    base: Any = tf.keras.losses.Loss

    class OwnLoss(base):
        def call(self, y_true, y_pred):
            return head.per_example_loss(y_true, y_pred)

    return OwnLoss(name="loss")


def _average_loss(head: Head) -> Any:
    """Return the mean of the loss over all examples."""
    tf = compat.tensorflow()
    if not isinstance(head.loss, str):
        return tf.keras.metrics.MeanMetricWrapper(head.per_example_loss, name="average_loss")
    if head.loss == "huber":
        return custom_classes()["HuberLoss"](name="average_loss")
    if head.loss == "binary_crossentropy" and compat.keras_generation() == 3:
        return _custom_classes()["binary_crossentropy"](name="average_loss", **_arguments(head))
    if head.label_smoothing and head.kind == "multi_class":
        return _custom_classes()["smoothed_mean"](head.label_smoothing, name="average_loss")
    return getattr(tf.keras.metrics, _LOSSES[head.loss][0])(name="average_loss", **_arguments(head))


def _metrics(head: Head, wanted: Sequence[str | Any] | None, size: int | None) -> list[Any]:
    """Return the Keras metrics of an output with this number of logits; None: unknown."""
    known = METRICS.get(head.kind or "", ())
    chosen: list[Any] = []
    for metric in known[:1] if wanted is None else wanted:
        if isinstance(metric, UserMetric):
            chosen.append(metric.build(head.kind))
            continue
        if not isinstance(metric, str):
            chosen.append(metric)
            continue
        plain = metric.removeprefix(UNWEIGHTED)
        if head.kind is None or not is_known(head.kind, plain):
            raise ConfigError(
                f"the metric {metric!r} is not known for the head {head.kind!r}",
                code="argument/unknown-name",
                found=f"allowed: {', '.join(known) or 'none'}",
                hint=f"use some of these, as {UNWEIGHTED}NAME without weights, or Keras metrics of (labels, logits)",
            )
        prefix = UNWEIGHTED if metric.startswith(UNWEIGHTED) else ""
        values = metrics_of(head.kind, plain, size=size, vocabulary=head.label_vocabulary)
        chosen += [make_metric(value, name=prefix + value.name) for value in values]
    return chosen


def _is_unweighted(metric: Any) -> bool:
    return str(getattr(metric, "name", "")).startswith(UNWEIGHTED)


@functools.cache
def _custom_classes() -> Mapping[str, Any]:
    """Return the registered losses, their means and the model class that Keras lacks, by name."""
    tf = compat.tensorflow()
    register = tf.keras.utils.register_keras_serializable(package="estimator_pipeline")

    class FittedBinaryCrossentropy(tf.keras.metrics.BinaryCrossentropy):  # type: ignore[misc, name-defined]
        """Accepts labels [B] with logits [B, 1], as the loss of Keras 3 does and its metric does not."""

        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(tf.reshape(y_true, tf.shape(y_pred)), y_pred, sample_weight)

    def smoothed(labels: Any, logits: Any, share: float) -> Any:
        labels = tf.cast(labels, tf.int32)
        if labels.shape.rank == logits.shape.rank:
            labels = tf.squeeze(labels, axis=-1)
        one_hot = tf.one_hot(labels, tf.shape(logits)[-1])
        return tf.keras.losses.categorical_crossentropy(one_hot, logits, from_logits=True, label_smoothing=share)

    class SmoothedSparseCategoricalCrossentropy(tf.keras.losses.Loss):  # type: ignore[misc, name-defined]
        """Smooths class numbers; Keras smooths only label vectors."""

        def __init__(self, label_smoothing, name="smoothed_sparse_categorical_crossentropy", **kwargs):
            super().__init__(name=name, **kwargs)
            self.label_smoothing = label_smoothing

        def call(self, y_true, y_pred):
            return smoothed(y_true, y_pred, self.label_smoothing)

        def get_config(self):
            return {**super().get_config(), "label_smoothing": self.label_smoothing}

    class MeanSmoothedCrossentropy(tf.keras.metrics.Mean):  # type: ignore[misc, name-defined]
        """The mean of the smoothed loss over all examples."""

        def __init__(self, label_smoothing, name="average_loss", dtype=None):
            super().__init__(name=name, dtype=dtype)
            self.label_smoothing = label_smoothing

        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(smoothed(y_true, y_pred, self.label_smoothing), sample_weight)

        def get_config(self):
            return {**super().get_config(), "label_smoothing": self.label_smoothing}

    class Float32Outputs(tf.keras.Model):  # type: ignore[misc, name-defined]
        """Casts the outputs of a model to float32."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def call(self, features, training=False):
            values = self.model(features, training=training)
            return tf.nest.map_structure(lambda value: tf.cast(value, tf.float32), values)

    return {
        "float32_outputs": Float32Outputs,
        "binary_crossentropy": register(FittedBinaryCrossentropy),
        "smoothed_loss": register(SmoothedSparseCategoricalCrossentropy),
        "smoothed_mean": register(MeanSmoothedCrossentropy),
    }
