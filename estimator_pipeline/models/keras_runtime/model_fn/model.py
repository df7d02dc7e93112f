"""A Keras model with the network, loss, metrics and optimizer of a model_fn.

The model_fn is called once for each mode, each time in a new graph. A step of `fit`, `evaluate` or `predict` runs that
graph like a session. So the numbers and variable names are those of the Estimator, and each can read the checkpoints of
the other.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.eager_blocks import eager_block, eagerly
from estimator_pipeline.errors import ConfigError, DivergedError
from estimator_pipeline.models.keras_runtime.model_fn.checkpoints import NamedCheckpoints, saving_callbacks
from estimator_pipeline.models.keras_runtime.model_fn.graphs import ModeGraph, Variables
from estimator_pipeline.models.keras_runtime.model_fn.hooks import HookedSteps, Session
from estimator_pipeline.models.keras_runtime.model_fn.inputs import dataset
from estimator_pipeline.models.keras_runtime.model_fn.settings import ModelFnRunConfig as RunConfig

__all__ = ["ModelFnModel", "predictions", "tpu_model"]


@eagerly
def ModelFnModel(
    model_fn: Callable[..., Any], model_dir: str | None = None, config: RunConfig | None = None, params: Any = None,
    warm_start_from: Any = None,
) -> Any:  # fmt: skip
    """Return the Keras model of a model_fn.

    `fit` resumes from the latest checkpoint of `model_dir`, and writes checkpoints and summaries there as set in
    `config`. In addition to Keras's arguments, it takes `hooks` and `max_steps`, the global step at which training
    ends. `evaluate` and `predict` restore the latest checkpoint if the model was not trained in this process.

    Args:
        model_fn: A function of features and any of labels, mode, params and config that returns a `ModelFnSpec`.
        model_dir: The folder of checkpoints and event files; None: that of `config`, or a temporary one.
        config: The RunConfig of the training.
        params: The argument `params` of the model_fn.
        warm_start_from: A checkpoint or settings, used if there is no checkpoint to resume from.

    Returns:
        A compiled `tf.keras.Model` with `model_dir`, `config` and `params`.

    Raises:
        ClusterError: The default config finds a cluster in TF_CONFIG; such a model trains in one process.
    """
    config = config if config is not None else RunConfig()
    folder = model_dir or config.model_dir or tempfile.mkdtemp()
    if config.model_dir != folder:
        config = config.replace(model_dir=folder)
    return _model_class()(model_fn, config, params, warm_start_from)


def tpu_model(
    model_fn: Callable[..., Any], model_dir: str | None = None, config: RunConfig | None = None, params: Any = None,
    use_tpu: bool = True, train_batch_size: int | None = None, eval_batch_size: int | None = None,
    predict_batch_size: int | None = None, warm_start_from: Any = None, **of_tpus: Any,
) -> Any:  # fmt: skip
    """Return the Keras model of a TPUEstimator's model_fn, on a CPU or a GPU. See `ModelFnModel`.

    Args:
        use_tpu: Must be False, as for a TPUEstimator on other devices.
        train_batch_size, eval_batch_size, predict_batch_size: The value of `params["batch_size"]` in each mode.
        of_tpus: Ignored.

    Raises:
        ConfigError: `use_tpu` is True.
    """
    if use_tpu:
        raise ConfigError(
            "a model_fn that is still TensorFlow 1 code does not train on TPUs",
            code="training/unsupported",
            hint="set use_tpu=False, or convert the model to Keras layers and train it under TPUStrategy",
        )
    model = ModelFnModel(model_fn, model_dir, config, params, warm_start_from)
    sizes = {"train": train_batch_size, "eval": eval_batch_size or train_batch_size, "infer": predict_batch_size}
    model.batch_sizes = {mode: size for mode, size in sizes.items() if size is not None}
    return model


def predictions(
    model: Any, data: Any, predict_keys: Sequence[str] | str | None = None, yield_single_examples: bool = True
) -> Iterator[Any]:
    """Yield the predictions of a model for each example, as NumPy arrays.

    Args:
        model: A ModelFnModel.
        data: A dataset of features, or of features and labels; or an input function.
        predict_keys: The keys to yield from a dict of predictions; None: all.
        yield_single_examples: Whether to yield single examples, or batches.
    """
    keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
    with eager_block():  # not across a yield: the program's own code runs between two values
        data = model.data_of("infer", data)
        graph, batches = model.graph_of("infer", data), iter(data)
    while True:
        with eager_block():
            element = next(batches, None)
            if element is None:
                return
            batch = model.predict_on_batch(element, graph)
        if isinstance(batch, Mapping) and keys:
            batch = {name: batch[name] for name in batch if name in keys}
        if not yield_single_examples:
            yield batch
            continue
        arrays = list(batch.values()) if isinstance(batch, Mapping) else [batch]
        for place in range(len(arrays[0])):
            yield {name: array[place] for name, array in batch.items()} if isinstance(batch, Mapping) else batch[place]


@functools.cache
def _model_class() -> Callable[..., Any]:
    tf = compat.tensorflow()

    class ModelFnModel(tf.keras.Model):  # type: ignore[misc,name-defined]
        """See the function of the same name."""

        def __init__(self, model_fn: Callable[..., Any], config: RunConfig, params: Any, warm_start_from: Any) -> None:
            super().__init__()
            self.model_fn, self.config = model_fn, config
            self.params = params if params is not None else {}  # as the Estimator
            self.model_dir = config.model_dir
            self.batch_sizes: dict[str, int] = {}
            self._by_name = Variables()
            self._graphs: dict[tuple[str, str], ModeGraph] = {}
            self._of_evaluation: dict[tuple[str, str], tuple[dict[str, Any], list[Any]]] = {}
            self._hooked: HookedSteps | None = None
            self._predict_graph: ModeGraph | None = None
            self.checkpoints = NamedCheckpoints(self.model_dir, config.keep_checkpoint_max, warm_start_from)
            self._is_restored = False
            # The model_fn has its own optimizer; this one only reports the step to callbacks.
            self.compile(optimizer=tf.keras.optimizers.legacy.SGD())

        # The graphs

        def call_model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            """Call the model_fn in the current default graph and return its spec."""
            names = inspect.signature(self.model_fn).parameters
            arguments = {"labels": labels, "mode": mode, "params": self.params_of(mode), "config": self.config}
            if labels is not None and "labels" not in names:
                raise ConfigError(
                    "the model_fn has no parameter labels, and the data have labels",
                    code="argument/bad-value",
                    hint="return only features from the input function",
                )
            return self.model_fn(features, **{name: value for name, value in arguments.items() if name in names})

        def params_of(self, mode: str) -> Any:
            """Return the argument `params` of the model_fn and of input functions."""
            params = dict(self.params) if isinstance(self.params, dict) else self.params
            return {**params, "batch_size": self.batch_sizes[mode]} if mode in self.batch_sizes else params

        def data_of(self, mode: str, data: Any) -> Any:
            """Return the dataset of an input function; other data unchanged."""
            return dataset(data, mode, self) if callable(data) else data

        def graph_of(self, mode: str, data: Any) -> ModeGraph:
            """Return the graph of a mode for datasets with the same spec, with its variables restored."""
            spec = data.element_spec if hasattr(data, "element_spec") else tf.nest.map_structure(_spec_of, data)
            # A model_fn gets no labels in PREDICT.
            spec = spec[0] if mode == "infer" and isinstance(spec, tuple) else spec
            key = (mode, str(spec))
            if key not in self._graphs:
                self._graphs[key] = self._build_graph(key, mode, spec)
            if not self._is_restored:
                self._restore(self._graphs[key], mode)
            return self._graphs[key]

        def _build_graph(self, key: tuple[str, str], mode: str, spec: Any) -> ModeGraph:
            if self.config.tf_random_seed is not None and not self._by_name.by_name:
                tf.random.set_seed(self.config.tf_random_seed)  # for the initial values
            before = set(self._by_name.by_name)

            def build(inputs: Any) -> Any:
                features, labels = inputs if isinstance(inputs, tuple) and len(inputs) == 2 else (inputs, None)
                spec = self.call_model_fn(features, labels, mode)
                if mode == "train":
                    _summarize_loss(spec.loss)
                # The results of Keras metrics must be created as operations within the graph.
                self._of_evaluation[key] = _metrics(spec) if mode == "eval" else ({}, [])
                return spec

            graph = ModeGraph(build, spec, self._by_name, self.config.tf_random_seed)
            graph.local += [variable for metric in _keras_metrics(graph.result) for variable in metric.variables]
            local = {id(variable) for variable in graph.local}
            new = {name: variable for name, variable in self._by_name.by_name.items() if name not in before}
            kept = {name: variable for name, variable in new.items() if id(variable) not in local}
            self.checkpoints.variables |= kept
            self._own_weights = list(self.checkpoints.variables.values())
            if "global_step" in kept:
                self.optimizer.iterations = kept["global_step"]
            if kept and self.checkpoints.last:
                self._is_restored = False  # the new variables are in the checkpoint, too
            return graph

        def _restore(self, graph: ModeGraph, mode: str) -> None:
            self._is_restored = True
            if self.checkpoints.restore():
                return
            initial = graph.initial_values()
            if initial:
                graph.run(initial)
            self.checkpoints.warm_start()
            init_fn = getattr(getattr(graph.result, "scaffold", None), "init_fn", None)
            if init_fn is not None and mode == "train":
                with graph.graph.as_default():
                    init_fn(Session(graph))

        @property
        @eagerly
        def global_step(self) -> int:
            """The number of training steps, including those of earlier processes."""
            variable = self._by_name.by_name.get("global_step")
            return int(variable.numpy()) if variable is not None else self.checkpoints.last_step()

        # Training

        @eagerly
        def fit(
            self, x: Any = None, *arguments: Any, steps_per_epoch: float | None = None, max_steps: float | None = None,
            hooks: Sequence[Any] | None = None, saving_listeners: Sequence[Any] | None = None, verbose: Any = 0,
            callbacks: Any = None, **options: Any,
        ) -> Any:  # fmt: skip
            """Train on a dataset. See `tf.keras.Model.fit` for the other arguments.

            Args:
                x: The dataset, or an input function; see `dataset`.
                steps_per_epoch: Steps of this call; None: to the end of the data.
                max_steps: The global step at which training ends; a model that has reached it is not trained.
                hooks: Hooks of the type `tf.compat.v1.train.SessionRunHook`.
                saving_listeners: Listeners of checkpoints, of the type `tf.compat.v1.train.CheckpointSaverListener`.
                verbose: Of Keras's progress lines; the model writes its own, see `config.log_step_count_steps`.
            """
            x = self.data_of("train", x)
            graph = self.graph_of("train", x)
            spec, self.step = graph.result, self.global_step
            all_hooks = [*(hooks or ()), *(spec.training_hooks or ()), *(spec.training_chief_hooks or ())]
            last = [_last_step(hook, self.step) for hook in all_hooks]
            all_hooks = [hook for hook, step in zip(all_hooks, last, strict=True) if step is None]
            left = [step - self.step for step in (max_steps, *last) if step is not None]
            left += [steps_per_epoch] if steps_per_epoch is not None else []
            # Fractions are rounded up, as in an Estimator: programs divide numbers of records by batch sizes.
            steps_per_epoch = math.ceil(min(left)) if left else None
            if steps_per_epoch is not None and steps_per_epoch <= 0:
                return None
            self._hooked, self._train_graph = HookedSteps(all_hooks, graph), graph
            self._hooked.begin()
            saver = saving_callbacks().Keeping(self.checkpoints, self.config, saving_listeners or (), Session(graph))
            history = super().fit(
                x, *arguments, steps_per_epoch=steps_per_epoch, verbose=verbose,
                callbacks=[saver, *(callbacks or ())], **options,
            )  # fmt: skip
            self._hooked.end()
            return history

        def make_train_function(self, force: bool = False) -> Callable[[Any], Any]:
            """Return the step without compiling it, because it already is a graph function."""
            self.train_function = lambda iterator: self.train_step(next(iterator))
            return self.train_function

        def train_step(self, data: Any) -> dict[str, Any]:
            """Run the train_op of the model_fn for one step, and return its loss."""
            spec, graph = self._train_graph.result, self._train_graph
            fetches = {"loss": spec.loss, "train_op": spec.train_op}
            every = self.config.save_summary_steps
            if every and self.step % every == 0:
                fetches["summary"] = graph.summary
            assert self._hooked is not None
            values = self._hooked.run(fetches, data)
            self.step = self.global_step
            if not bool(tf.math.is_finite(values["loss"])):
                raise DivergedError(
                    f"the loss is {float(values['loss'])} at step {self.step}",
                    code="training/diverged",
                    hint="try a smaller learning rate; the latest checkpoint is from before this step",
                )
            self.last_summary = values.get("summary")
            if self._hooked.stopped:
                self.stop_training = True
            return {"loss": values["loss"]}

        # Evaluation

        @eagerly
        def evaluate(self, x: Any = None, *arguments: Any, return_dict: bool = False, steps: float | None = None,
                     hooks: Sequence[Any] | None = None, checkpoint_path: str | None = None, name: str | None = None,
                     verbose: Any = 0, input_fn: Any = None, **options: Any) -> Any:  # fmt: skip
            """Return the metrics of the model_fn, the mean of its loss, and the global step.

            Args:
                x: The dataset, or an input function.
                return_dict: Whether to return a dict by name; always for an input function.
                input_fn: The same as `x`, with the Estimator's name of the argument.
                steps: The number of batches; None: all.
                hooks: Hooks of the type `tf.compat.v1.train.SessionRunHook`.
                checkpoint_path: The checkpoint to evaluate; None: the latest.
                name: The name of the evaluation, if there are several: its event files are in `eval_NAME`.
            """
            x = input_fn if input_fn is not None else x
            return_dict, x = return_dict or callable(x), self.data_of("eval", x)
            graph = self.graph_of("eval", x)
            if checkpoint_path is not None:
                self.checkpoints.restore(checkpoint_path)
            for variable in graph.local:
                variable.assign(tf.zeros_like(variable))
            values, updates = next(self._of_evaluation[key] for key, known in self._graphs.items() if known is graph)
            self._evaluated = HookedSteps([*(hooks or ()), *(graph.result.evaluation_hooks or ())], graph)
            self._eval_graph, self._updates = graph, {"loss": graph.result.loss, "updates": updates}
            self._losses: list[Any] = []
            self._evaluated.begin()
            super().evaluate(x, *arguments, return_dict=True, verbose=verbose,
                             steps=math.ceil(steps) if steps is not None else None, **options)  # fmt: skip
            self._evaluated.end()
            metrics = {key: float(value) if not value.shape.rank else value.numpy()
                       for key, value in graph.run(values).items()}  # fmt: skip
            # In float32, as the metric of an Estimator.
            metrics["loss"] = float(sum(self._losses, np.float32(0)) / np.float32(max(len(self._losses), 1)))
            metrics["global_step"] = self.global_step
            metrics = {key: metrics[key] for key in sorted(metrics)}
            with tf.summary.create_file_writer(self.eval_dir(name)).as_default():
                for key, value in metrics.items():
                    if isinstance(value, float):
                        tf.summary.scalar(key, value, metrics["global_step"])
            return metrics if return_dict else list(metrics.values())

        def make_test_function(self, force: bool = False) -> Callable[[Any], Any]:
            """See `make_train_function`."""
            self.test_function = lambda iterator: self.test_step(next(iterator))
            return self.test_function

        def test_step(self, data: Any) -> dict[str, Any]:
            """Evaluate one batch."""
            values = self._evaluated.run(self._updates, data)
            self._losses.append(values["loss"].numpy())
            return {"loss": values["loss"]}

        # Predictions

        @eagerly
        def predict(
            self, x: Any = None, *arguments: Any, input_fn: Any = None, predict_keys: Any = None,
            yield_single_examples: bool = True, **options: Any,
        ) -> Any:  # fmt: skip
            """Return the predictions of the model_fn for a dataset or an input function.

            Args:
                x: The dataset, or an input function.
                input_fn: Use instead of `x` to get a generator of predictions, as from an Estimator.
                predict_keys, yield_single_examples: With `input_fn`, see `predictions`.
            """
            if input_fn is not None:
                return predictions(self, input_fn, predict_keys, yield_single_examples)
            x = self.data_of("infer", x)
            self._predict_graph = self.graph_of("infer", x) if hasattr(x, "element_spec") else None
            return super().predict(x, *arguments, **options)

        def make_predict_function(self, force: bool = False) -> Callable[[Any], Any]:
            """See `make_train_function`."""
            self.predict_function = lambda iterator: self.predict_step(next(iterator))
            return self.predict_function

        def predict_step(self, data: Any) -> Any:
            """Return the predictions for one batch."""
            graph, features = self._predict_graph, data[0] if isinstance(data, tuple) else data
            graph = graph if graph is not None else self.graph_of("infer", features)
            return graph.run(graph.result.predictions, features)

        @eagerly
        def predict_on_batch(self, x: Any, graph: ModeGraph | None = None) -> Any:
            """Return the predictions for one batch, as NumPy arrays; `graph` comes from `graph_of`."""
            self._predict_graph = graph
            return tf.nest.map_structure(lambda tensor: tensor.numpy(), self.predict_step(x))

        # As an Estimator

        def train(
            self, input_fn: Callable[..., Any], hooks: Any = None, steps: float | None = None,
            max_steps: float | None = None, saving_listeners: Any = None,
        ) -> Any:  # fmt: skip
            """Call `fit` with the arguments of an Estimator, for code that takes either."""
            self.fit(input_fn, steps_per_epoch=steps, max_steps=max_steps, hooks=hooks,
                     saving_listeners=saving_listeners)  # fmt: skip
            return self

        def get_variable_names(self) -> list[str]:
            """Return the names of the latest checkpoint's variables."""
            return self.checkpoints.names()

        def get_variable_value(self, name: str) -> Any:
            """Return the value of a variable in the latest checkpoint."""
            return self.checkpoints.value(name)

        def latest_checkpoint(self) -> str | None:
            """Return the latest checkpoint of `model_dir`."""
            return tf.train.latest_checkpoint(self.model_dir) if self.model_dir else None

        def eval_dir(self, name: str | None = None) -> str:
            """Return the folder of an evaluation's event files."""
            return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    for name in ("get_weights", "set_weights", "save_weights", "load_weights", "save"):
        setattr(ModelFnModel, name, eagerly(getattr(ModelFnModel, name)))
    return ModelFnModel


def _spec_of(value: Any) -> Any:
    """Return the type spec of a batch, for any batch size."""
    tf = compat.tensorflow()
    if isinstance(value, tf.Tensor):
        return tf.TensorSpec([None, *value.shape[1:]] if value.shape.rank else value.shape, value.dtype)
    return tf.type_spec_from_value(value)


def _last_step(hook: Any, now: int) -> int | None:
    """Return the step at which a StopAtStepHook stops training; None for other hooks."""
    if type(hook).__name__ != "StopAtStepHook":
        return None
    return hook._last_step if hook._last_step is not None else now + hook._num_steps


def _summarize_loss(loss: Any) -> None:
    """Add the loss summary if the model_fn has none, as an Estimator does; hooks fetch it by name."""
    v1 = compat.tensorflow().compat.v1
    if not any(summary.op.name == "loss" for summary in v1.get_collection(v1.GraphKeys.SUMMARIES)):
        v1.summary.scalar("loss", loss)


def _keras_metrics(spec: Any) -> list[Any]:
    tf = compat.tensorflow()
    metrics = (getattr(spec, "eval_metric_ops", None) or {}).values()
    return [metric for metric in metrics if isinstance(metric, tf.keras.metrics.Metric)]


def _metrics(spec: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return (the values of the metrics, their update operations)."""
    tf = compat.tensorflow()
    values, updates = {}, []
    for name, metric in (spec.eval_metric_ops or {}).items():
        if isinstance(metric, tf.keras.metrics.Metric):
            values[name] = metric.result()
            updates += metric.updates
        else:
            values[name] = metric[0]
            updates += tf.nest.flatten(metric[1])
    return values, updates
