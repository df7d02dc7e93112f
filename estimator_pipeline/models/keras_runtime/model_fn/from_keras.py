"""A compiled Keras model as the model of a model_fn: what `tf.keras.estimator.model_to_estimator` made of one."""

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
    """Return a ModelFnModel with the layers, loss, metrics and optimizer of a compiled Keras model, and its weights.

    Keras changes its classes for layers in graphs: layers and models that were made before are not to be called any
    more, the given one among them, as after a conversion to an Estimator.

    Args:
        keras_model: Sequential or functional, compiled.
        keras_model_path: the file or folder of one, in place of it.
        custom_objects: name -> class or function that the model needs.
        model_dir: the folder of checkpoints and event files; None: that of `config`, or a temporary one.
        config: how the model is trained and kept.
        checkpoint_format: has no meaning here: checkpoints have the names of variables, as those of "saver".
        use_v2_estimator: has no meaning here.
        metric_names_map: name of a metric of the Keras model -> its name in evaluations.
        export_outputs: name of an output -> class of what a SavedModel gives under that name as well.

    Raises:
        ConfigError: neither a model nor a path or both, a model that is not compiled, a subclassed one, or a
            metric_names_map that is not of the model's metrics.
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
            f"the Keras model {keras_model.name!r} has no inputs that are known beforehand",
            code="argument/bad-value",
            found=type(keras_model).__name__,
            hint="give a functional model, or a Sequential one with the shape of its input",
        )
    optimizer = getattr(keras_model, "optimizer", None)
    if not optimizer:
        raise ConfigError(
            f"the Keras model {keras_model.name!r} is not compiled", code="argument/bad-value", hint="call compile"
        )
    if isinstance(optimizer, tf.keras.optimizers.experimental.Optimizer):
        # The clone's optimizer makes operations of a graph.
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
        # Means of the outputs' losses are not among the metrics. No checkpoint has any of these.
        counted = [*clone.metrics, *(one.output_loss_metric for one in clone._training_endpoints)]
        for variable in [one for metric in counted if metric is not None for one in metric.variables]:
            v1.add_to_collection(v1.GraphKeys.LOCAL_VARIABLES, variable)
        metrics = _named(clone, names)
        if mode == "eval":
            clone._make_test_function()
            return ModelFnSpec(mode, predictions, clone.total_loss, eval_metric_ops=metrics)
        clone._make_train_function()
        return ModelFnSpec(mode, predictions, clone.total_loss, clone.train_function.updates_op, metrics)

    return model_fn


class _Cloned:
    """What a Keras model is compiled with, asked for before there is a graph, and clones of it."""

    def __init__(self, keras_model: Any, custom_objects: Any) -> None:
        self._model, self._objects = keras_model, custom_objects or {}
        self._compiled = keras_model._get_compile_args()
        self._optimizer = self._compiled.pop("optimizer")

    def clone(self, mode: str, features: Any = None, labels: Any = None) -> Any:
        """Return the model in the graph that is the default one, compiled where it is not for predictions."""
        tf = compat.tensorflow()
        tf.keras.backend.set_learning_phase(mode == "train")
        with tf.keras.utils.custom_object_scope(self._objects):
            clone = tf.keras.models.clone_model(self._model, _listed(features, self._model.input_names))
            if mode == "infer":
                return clone
            optimizer = type(self._optimizer).from_config(self._optimizer.get_config())
            optimizer.iterations = tf.compat.v1.train.get_or_create_global_step()
            given = tf.nest.map_structure(_another, self._compiled)
            clone.compile(optimizer, **given, target_tensors=_listed(labels, self._model.output_names))
        return clone


def _another(one: Any) -> Any:
    """Return a metric that counts by itself; all else as it is."""
    return type(one).from_config(one.get_config()) if isinstance(one, compat.tensorflow().keras.metrics.Metric) else one


def _listed(given: Any, names: list[str]) -> list[Any] | None:
    """Tensors in the order of names."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        missing = [name for name in names if name not in given]
        if missing:
            raise ConfigError(
                "the data lacks inputs or outputs of the Keras model",
                code="argument/missing",
                found=f"{', '.join(sorted(given))}; missing: {', '.join(missing)}",
                hint="name features after the model's inputs, labels after its outputs",
            )
        return [given[name] for name in names]
    return list(given) if isinstance(given, list | tuple) else [given]


def _named(clone: Any, names: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the metrics by their names in evaluations."""
    found = {metric.name: metric for metric in clone._compile_metric_functions}
    if names and set(names) != set(found):
        raise ConfigError(
            "metric_names_map is not of the Keras model's metrics",
            code="argument/bad-value",
            found=f"given: {', '.join(sorted(names))}; the model has {', '.join(sorted(found))}",
            hint="name each of the model's metrics, and no other",
        )
    return {names[name]: metric for name, metric in found.items()} if names else found


def _weights(cloned: _Cloned, values: list[Any], folder: str) -> WarmStartSettings | None:
    """Return the model's weights as a checkpoint, by the names that they have in a graph."""
    tf = compat.tensorflow()
    with tf.Graph().as_default():
        clone = cloned.clone("infer")
        names = [one.name.partition(":")[0] for one in clone.weights]
    if not names:
        return None
    named = {name: tf.Variable(one) for name, one in zip(names, values, strict=True)}
    path = os.path.join(folder, "keras", "keras_model.ckpt")
    tf.io.gfile.makedirs(os.path.dirname(path))
    tf.compat.v1.train.Saver(named).save(None, path, write_meta_graph=False)
    return WarmStartSettings(path, [f"{re.escape(name)}:0$" for name in names])
