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
    """What a model_fn of `tf.contrib.learn` returns.

    Args:
        mode: what it was called for.
        predictions: a tensor, or name -> tensor.
        loss: scalar.
        train_op: one step of training.
        eval_metric_ops: name -> (value, update).
        output_alternatives: name -> (problem type, name -> tensor): what an export answers.
        training_chief_hooks: run on the chief.
        training_hooks: run on every worker.
        scaffold: of the session.
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
        """The same as a `tf.estimator.EstimatorSpec`."""
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
        metric_fn: called with predictions, labels and, where it takes them, weights; gives (value, update).
        prediction_key: which of the predictions, where there are several.
        label_key: which of the labels.
        weight_key: which feature is the weight.
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
        """(value, update).

        Raises:
            ValueError: several predictions or labels, and no key that says which.
        """
        prediction = _one(predictions, self.prediction_key, "prediction_key")
        label = _one(labels, self.label_key, "label_key")
        options = {} if self.weight_key is None else {"weights": inputs[self.weight_key]}
        names = inspect.signature(self.metric_fn).parameters
        if "predictions" in names and "labels" in names:
            return self.metric_fn(predictions=prediction, labels=label, **options)
        return self.metric_fn(prediction, label, **options)


def _one(values: Any, key: str | None, what: str) -> Any:
    if not isinstance(values, dict):
        return values
    if key is None and len(values) == 1:
        return next(iter(values.values()))
    if key not in values:
        raise ValueError(f"MetricSpec with {what}={key!r}, and the model has {sorted(values)}")
    return values[key]


class _WithArrays(_v1.estimator.Estimator):
    """The methods of :class:`Estimator`: the estimator package refuses a class that overrides them itself."""

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
        """Trains. Either arrays `x` and `y`, or an input_fn."""
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
        """Evaluates, with the metrics of the model and those named here. Either arrays, or an input_fn."""
        if callable(x) and input_fn is None:
            input_fn, x = x, None  # as tf.estimator itself calls it
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
        """Predictions, one by one, or with `as_iterable=False` as one array or name -> array."""
        made = super().predict(
            input_fn or _of_arrays(x, None, batch_size, epochs=1, shuffle=False),
            predict_keys=outputs,
            yield_single_examples=not iterate_batches,
        )
        if as_iterable:
            return made
        rows = list(made)
        join = np.concatenate if iterate_batches else np.stack
        if rows and isinstance(rows[0], dict):
            return {name: join([row[name] for row in rows]) for name in rows[0]}
        return join(rows)


class Estimator(_WithArrays):
    """A model by its model_fn.

    Args:
        model_fn: called with features, labels and, where it takes them, mode, params, config, model_dir; it returns
            :class:`ModelFnOps`, an EstimatorSpec, or (predictions, loss, train_op).
        model_dir: for checkpoints.
        config: a RunConfig.
        params: passed to the model_fn.
        feature_engineering_fn: called with features and labels, gives both anew.
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
        # tf.estimator asks for a dictionary or HParams, and passes a copy; the model_fn gets the program's own.
        own = params

        def as_estimator_spec(features: Any, labels: Any, mode: str, config: Any) -> Any:
            if feature_engineering_fn is not None:
                features, labels = feature_engineering_fn(features, labels)
            options = {"mode": mode, "params": own, "config": config, "model_dir": self.model_dir}
            made = model_fn(features, labels, **{name: value for name, value in options.items() if name in taken})
            if isinstance(made, _v1.estimator.EstimatorSpec):
                return made
            if not isinstance(made, ModelFnOps):
                predictions, loss, train_op = made
                made = ModelFnOps(mode, predictions, loss, train_op)
            if mode == "eval":
                metrics = {
                    name: spec.create_metric_ops(features, labels, made.predictions)
                    if isinstance(spec, MetricSpec)
                    else spec(made.predictions, labels)
                    for name, spec in self._specs.items()
                }
                made = made._replace(eval_metric_ops={**made.eval_metric_ops, **metrics})
            return made.estimator_spec()

        super().__init__(as_estimator_spec, model_dir, config)


def as_hooks(monitors: Iterable[Any] | None, estimator: Any) -> list[Any]:
    """Hooks, of hooks and of monitors of `tf.contrib.learn`, which are in TensorFlow 1.15's own files."""
    hooks = list(monitors or [])
    if all(isinstance(hook, _v1.train.SessionRunHook) for hook in hooks):
        return hooks
    module: Any = files.load("learn.python.learn.monitors")
    found: list[Any] = module.replace_monitors_with_hooks(hooks, estimator)
    return found


def _of_arrays(x: Any, y: Any, batch_size: int | None, *, epochs: int | None, shuffle: bool) -> Callable[[], Any]:
    if x is None:
        raise ValueError("Either x or input_fn must be provided.")
    if isinstance(x, dict):
        return _v1.estimator.inputs.numpy_input_fn(x, y, batch_size or 128, epochs, shuffle)
    named = _v1.estimator.inputs.numpy_input_fn({"x": np.asarray(x)}, y, batch_size or 128, epochs, shuffle)

    def input_fn() -> Any:
        made = named()
        return made["x"] if y is None else (made[0]["x"], made[1])

    return input_fn
