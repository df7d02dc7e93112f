"""`tf.contrib.learn.Estimator`: a `tf.estimator.Estimator` for a model_fn that returns ModelFnOps, or a tuple."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_pipeline.compat.tf1.contrib import files

__all__ = ["Estimator", "MetricSpec", "ModelFnOps", "as_hooks"]

_v1: Any = tf.compat.v1
_Fields = namedtuple(
    "_Fields",
    ["predictions", "loss", "train_op", "eval_metric_ops", "output_alternatives", "training_chief_hooks",
     "training_hooks", "scaffold", "mode"],
)  # fmt: skip


class ModelFnOps(_Fields):
    """The result of a model_fn of `tf.contrib.learn`.

    Args:
        mode: The mode of the call.
        predictions: A tensor, or name -> tensor.
        loss: Scalar.
        train_op: One step of training.
        eval_metric_ops: Name -> (value, update).
        output_alternatives: Name -> (problem type, name -> tensor): the outputs of an export.
        training_chief_hooks: Hooks of the chief.
        training_hooks: Hooks of every worker.
        scaffold: The session's scaffold.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Any = None,
        output_alternatives: Any = None,
        training_chief_hooks: Any = None,
        training_hooks: Any = None,
        scaffold: Any = None,
    ) -> ModelFnOps:
        return super().__new__(
            cls, predictions, loss, train_op, eval_metric_ops or {}, output_alternatives,
            training_chief_hooks or [], training_hooks or [], scaffold, mode,
        )  # fmt: skip

    def estimator_spec(self, default_serving_output_alternative_key: str | None = None) -> Any:
        """Return the equivalent `tf.estimator.EstimatorSpec`."""
        outputs = {
            name: tf.estimator.export.PredictOutput(tensors)
            for name, (_, tensors) in (self.output_alternatives or {}).items()
        }
        predictions = self.predictions
        if not outputs and predictions is not None:
            outputs = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        if outputs and "serving_default" not in outputs:
            key = default_serving_output_alternative_key or next(iter(outputs))
            outputs["serving_default"] = outputs[key]
        return _v1.estimator.EstimatorSpec(
            self.mode,
            predictions=predictions,
            loss=None if self.loss is None else tf.reshape(self.loss, []),
            train_op=self.train_op,
            eval_metric_ops=self.eval_metric_ops or None,
            export_outputs=outputs if self.mode == "infer" else None,
            training_chief_hooks=self.training_chief_hooks,
            training_hooks=self.training_hooks,
            scaffold=self.scaffold,
        )


class MetricSpec:
    """A metric of a model's predictions and labels.

    Args:
        metric_fn: Called with predictions, labels and, if set, weights; returns (value, update).
        prediction_key: The key of the prediction, if there are several.
        label_key: The key of the label.
        weight_key: The key of the feature with the weight.
    """

    def __init__(
        self,
        metric_fn: Callable[..., Any],
        prediction_key: str | None = None,
        label_key: str | None = None,
        weight_key: str | None = None,
    ) -> None:
        self.metric_fn = metric_fn
        self.prediction_key, self.label_key, self.weight_key = prediction_key, label_key, weight_key

    def create_metric_ops(self, inputs: Any, labels: Any, predictions: Any) -> Any:
        """Return (value, update).

        Raises:
            ValueError: There are several predictions or labels, and no key.
        """
        prediction = _select(predictions, self.prediction_key, "prediction_key")
        label = _select(labels, self.label_key, "label_key")
        options = {} if self.weight_key is None else {"weights": inputs[self.weight_key]}
        names = inspect.signature(self.metric_fn).parameters
        if "predictions" in names and "labels" in names:
            return self.metric_fn(predictions=prediction, labels=label, **options)
        return self.metric_fn(prediction, label, **options)


def _select(values: Any, key: str | None, argument: str) -> Any:
    if not isinstance(values, dict):
        return values
    if key is None and len(values) == 1:
        return next(iter(values.values()))
    if key not in values:
        raise ValueError(f"MetricSpec with {argument}={key!r}, and the model has {sorted(values)}")
    return values[key]


class _WithArrays(_v1.estimator.Estimator):
    """The methods of `Estimator`: the estimator package rejects a direct subclass that overrides them."""

    _specs: Mapping[str, Any]

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[[], Any] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        monitors: Iterable[Any] | None = None,
        max_steps: int | None = None,
    ) -> _WithArrays:
        """Train, with either arrays `x` and `y` or an input_fn."""
        input_fn = input_fn or _of_arrays(x, y, batch_size, epochs=None, shuffle=True)
        self.train(input_fn, hooks=as_hooks(monitors, self), steps=steps, max_steps=max_steps)
        return self

    def evaluate(  # type: ignore[override]
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[[], Any] | None = None,
        feed_fn: Any = None,
        batch_size: int | None = None,
        steps: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        name: str | None = None,
        checkpoint_path: str | None = None,
        hooks: Sequence[Any] | None = None,
    ) -> dict[str, Any]:
        """Evaluate the metrics of the model and of `metrics`, with either arrays or an input_fn."""
        if callable(x) and input_fn is None:
            input_fn, x = x, None  # as tf.estimator calls it
        self._specs = dict(metrics or {})
        try:
            return super().evaluate(
                input_fn or _of_arrays(x, y, batch_size, epochs=1, shuffle=False), steps, hooks, checkpoint_path, name
            )
        finally:
            self._specs = {}

    def predict(  # type: ignore[override]
        self,
        x: Any = None,
        input_fn: Callable[[], Any] | None = None,
        batch_size: int | None = None,
        outputs: Sequence[str] | None = None,
        as_iterable: bool = True,
        iterate_batches: bool = False,
    ) -> Any:
        """Return an iterator of predictions, or with `as_iterable=False` an array or name -> array."""
        predictions = super().predict(
            input_fn or _of_arrays(x, None, batch_size, epochs=1, shuffle=False),
            predict_keys=outputs,
            yield_single_examples=not iterate_batches,
        )
        if as_iterable:
            return predictions
        rows = list(predictions)
        join = np.concatenate if iterate_batches else np.stack
        if rows and isinstance(rows[0], dict):
            return {name: join([row[name] for row in rows]) for name in rows[0]}
        return join(rows)


class Estimator(_WithArrays):
    """An Estimator with a model_fn of `tf.contrib.learn`.

    Args:
        model_fn: Called with features, labels and, if it has these parameters, mode, params, config, model_dir; it
            returns `ModelFnOps`, an EstimatorSpec, or (predictions, loss, train_op).
        model_dir: The directory for checkpoints.
        config: A RunConfig.
        params: Passed to the model_fn.
        feature_engineering_fn: Called with features and labels, and returns new ones.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        feature_engineering_fn: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        self._specs = {}
        taken = inspect.signature(model_fn).parameters
        self._hparams = params
        # tf.estimator requires a dictionary or HParams, and passes a copy; the model_fn gets the original object.
        original_params = params

        def as_estimator_spec(features: Any, labels: Any, mode: str, config: Any) -> Any:
            if feature_engineering_fn is not None:
                features, labels = feature_engineering_fn(features, labels)
            options = {"mode": mode, "params": original_params, "config": config, "model_dir": self.model_dir}
            ops = model_fn(features, labels, **{name: value for name, value in options.items() if name in taken})
            if isinstance(ops, _v1.estimator.EstimatorSpec):
                return ops
            if not isinstance(ops, ModelFnOps):
                predictions, loss, train_op = ops
                ops = ModelFnOps(mode, predictions, loss, train_op)
            if mode == "eval":
                metrics = {
                    name: spec.create_metric_ops(features, labels, ops.predictions)
                    if isinstance(spec, MetricSpec)
                    else spec(ops.predictions, labels)
                    for name, spec in self._specs.items()
                }
                ops = ops._replace(eval_metric_ops={**ops.eval_metric_ops, **metrics})
            return ops.estimator_spec()

        super().__init__(as_estimator_spec, model_dir, config)


def as_hooks(monitors: Iterable[Any] | None, estimator: Any) -> list[Any]:
    """Convert monitors of `tf.contrib.learn`, which are in TensorFlow 1.15's files, to hooks."""
    hooks = list(monitors or [])
    if all(isinstance(hook, _v1.train.SessionRunHook) for hook in hooks):
        return hooks
    module: Any = files.load("learn.python.learn.monitors")
    replaced: list[Any] = module.replace_monitors_with_hooks(hooks, estimator)
    return replaced


def _of_arrays(x: Any, y: Any, batch_size: int | None, *, epochs: int | None, shuffle: bool) -> Callable[[], Any]:
    if x is None:
        raise ValueError("Either x or input_fn must be provided.")
    if isinstance(x, dict):
        return _v1.estimator.inputs.numpy_input_fn(x, y, batch_size or 128, epochs, shuffle)
    named = _v1.estimator.inputs.numpy_input_fn({"x": np.asarray(x)}, y, batch_size or 128, epochs, shuffle)

    def input_fn() -> Any:
        batch = named()
        return batch["x"] if y is None else (batch[0]["x"], batch[1])

    return input_fn
