"""`model_to_estimator`: a compiled Keras model as the model of a model_fn."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.eager_blocks import eagerly
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime.model_fn.model import ModelFnModel
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnRunConfig as RunConfig
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnSpec, PredictOutput
from estimator_pipeline.models.keras_runtime.warm_start import WarmStartSettings

__all__ = ["model_to_estimator"]


@eagerly
def model_to_estimator(
    keras_model: Any = None, keras_model_path: str | None = None, custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | None = None, config: RunConfig | None = None, checkpoint_format: str | None = None,
    use_v2_estimator: bool = False, metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Return a ModelFnModel with the layers, loss, metrics, optimizer and weights of a compiled Keras model.

    Keras switches its classes to layers in graphs. Layers and models that were created before, including `keras_model`,
    can then no longer be called, as after a conversion to an Estimator.

    Args:
        keras_model: A compiled Sequential or functional model.
        keras_model_path: The file or folder of such a model, instead of `keras_model`.
        custom_objects: Name -> class or function that the model needs.
        model_dir: The folder of checkpoints and event files; None: that of `config`, or a temporary one.
        config: The RunConfig of the training.
        checkpoint_format: Ignored: checkpoints use variable names, as with "saver".
        use_v2_estimator: Ignored.
        metric_names_map: Name of a metric of the Keras model -> its name in evaluations.
        export_outputs: Name of an output -> class of an additional SavedModel output of this name.

    Raises:
        ConfigError: There is neither a model nor a path, or both; the model is not compiled, or subclassed; or
            metric_names_map does not match the model's metrics.
    """
    tf = compat.tensorflow()
    if (keras_model is None) == (keras_model_path is None):
        raise ConfigError(
            "model_to_estimator takes a Keras model or the path of one",
            code="argument/conflict" if keras_model is not None else "argument/missing",
            hint="give one of keras_model and keras_model_path",
        )
    if keras_model is None:
        keras_model = tf.keras.models.load_model(keras_model_path, custom_objects=custom_objects)
    if not getattr(keras_model, "_is_graph_network", False):
        raise ConfigError(
            f"the Keras model {keras_model.name!r} has no defined inputs",
            code="argument/bad-value",
            found=type(keras_model).__name__,
            hint="give a functional model, or a Sequential model with an input shape",
        )
    optimizer = getattr(keras_model, "optimizer", None)
    if not optimizer:
        raise ConfigError(
            f"the Keras model {keras_model.name!r} is not compiled", code="argument/bad-value", hint="call compile"
        )
    if isinstance(optimizer, tf.keras.optimizers.experimental.Optimizer):
        # The clone's optimizer must work in a graph.
        keras_model.optimizer = tf.keras.__internal__.optimizers.convert_to_legacy_optimizer(optimizer)
    folder = model_dir or (config.model_dir if config is not None else None) or tempfile.mkdtemp()
    cloned, values = _Cloned(keras_model, custom_objects), keras_model.get_weights()
    model_fn = _model_fn(cloned, metric_names_map, export_outputs)
    return ModelFnModel(model_fn, folder, config, None, _weights(cloned, values, folder))


def _model_fn(
    cloned: _Cloned, names: Mapping[str, str] | None, outputs: Mapping[str, Any] | None
) -> Callable[..., ModelFnSpec]:
    def model_fn(features: Any, labels: Any, mode: str) -> ModelFnSpec:
        v1 = compat.tensorflow().compat.v1
        clone = cloned.clone(mode, features, labels)
        predictions = dict(zip(clone.output_names, clone.outputs, strict=True))
        exports = {"serving_default": PredictOutput(predictions)}
        exports |= {name: kind(predictions[name]) for name, kind in (outputs or {}).items()}
        if mode == "infer":
            return ModelFnSpec(mode, predictions, export_outputs=exports)
        # The mean losses of the outputs are not in `metrics`. Checkpoints contain neither.
        counted = [*clone.metrics, *(endpoint.output_loss_metric for endpoint in clone._training_endpoints)]
        for variable in [variable for metric in counted if metric is not None for variable in metric.variables]:
            v1.add_to_collection(v1.GraphKeys.LOCAL_VARIABLES, variable)
        metrics = _named(clone, names)
        if mode == "eval":
            clone._make_test_function()
            return ModelFnSpec(mode, predictions, clone.total_loss, eval_metric_ops=metrics)
        clone._make_train_function()
        return ModelFnSpec(mode, predictions, clone.total_loss, clone.train_function.updates_op, metrics)

    return model_fn


class _Cloned:
    """The compile arguments of a Keras model, read before the graph exists, and clones of the model."""

    def __init__(self, keras_model: Any, custom_objects: Any) -> None:
        self._model, self._objects = keras_model, custom_objects or {}
        self._compiled = keras_model._get_compile_args()
        self._optimizer = self._compiled.pop("optimizer")

    def clone(self, mode: str, features: Any = None, labels: Any = None) -> Any:
        """Return a clone in the current default graph, compiled except for predictions."""
        tf = compat.tensorflow()
        tf.keras.backend.set_learning_phase(mode == "train")
        with tf.keras.utils.custom_object_scope(self._objects):
            clone = tf.keras.models.clone_model(self._model, _listed(features, self._model.input_names))
            if mode == "infer":
                return clone
            optimizer = type(self._optimizer).from_config(self._optimizer.get_config())
            optimizer.iterations = tf.compat.v1.train.get_or_create_global_step()
            arguments = tf.nest.map_structure(_copied_metric, self._compiled)
            clone.compile(optimizer, **arguments, target_tensors=_listed(labels, self._model.output_names))
        return clone


def _copied_metric(value: Any) -> Any:
    """Return a new copy of a metric; other values unchanged."""
    return (
        type(value).from_config(value.get_config())
        if isinstance(value, compat.tensorflow().keras.metrics.Metric)
        else value
    )


def _listed(values: Any, names: list[str]) -> list[Any] | None:
    """Return tensors in the order of the names."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        missing = [name for name in names if name not in values]
        if missing:
            raise ConfigError(
                "the data lack inputs or outputs of the Keras model",
                code="argument/missing",
                found=f"{', '.join(sorted(values))}; missing: {', '.join(missing)}",
                hint="name features after the model's inputs, labels after its outputs",
            )
        return [values[name] for name in names]
    return list(values) if isinstance(values, list | tuple) else [values]


def _named(clone: Any, names: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the metrics by their names in evaluations."""
    metrics = {metric.name: metric for metric in clone._compile_metric_functions}
    if names and set(names) != set(metrics):
        raise ConfigError(
            "metric_names_map does not match the Keras model's metrics",
            code="argument/bad-value",
            found=f"metric_names_map has {', '.join(sorted(names))}; the model has {', '.join(sorted(metrics))}",
            hint="map each of the model's metrics, and no other",
        )
    return {names[name]: metric for name, metric in metrics.items()} if names else metrics


def _weights(cloned: _Cloned, values: list[Any], folder: str) -> WarmStartSettings | None:
    """Write the model's weights as a checkpoint with their names in a graph, and return its warm-start settings."""
    tf = compat.tensorflow()
    with tf.Graph().as_default():
        clone = cloned.clone("infer")
        names = [weight.name.partition(":")[0] for weight in clone.weights]
    if not names:
        return None
    named = {name: tf.Variable(value) for name, value in zip(names, values, strict=True)}
    path = os.path.join(folder, "keras", "keras_model.ckpt")
    tf.io.gfile.makedirs(os.path.dirname(path))
    tf.compat.v1.train.Saver(named).save(None, path, write_meta_graph=False)
    return WarmStartSettings(path, [f"{re.escape(name)}:0$" for name in names])
