"""A Keras model whose network, loss, metrics and optimizer are those of a model_fn.

The model_fn is called once for each mode, in a graph of its own; a step of `fit`, `evaluate` or `predict` runs that
graph as a session did. So its numbers are the Estimator's, its variables have their names, and checkpoints of the one
are read by the other.
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

    `fit` goes on from the last checkpoint of `model_dir`, writes checkpoints and summaries there as `config` says, and
    takes `max_steps`, the global step until which it trains, and `hooks` besides what Keras takes. `evaluate` and
    `predict` take the last checkpoint where the model was not trained in this process.

    Args:
        model_fn: of features and, as far as it has such parameters, labels, mode, params and config; it gives a
            `ModelFnSpec`.
        model_dir: the folder of checkpoints and event files; None: that of `config`, or a temporary one.
        config: how the model is trained and kept.
        params: what the model_fn gets as `params`.
        warm_start_from: a checkpoint or settings, for a training that begins anew.

    Returns:
        A `tf.keras.Model`, compiled, with `model_dir`, `config` and `params`.

    Raises:
        ClusterError: of the config: such a model trains in one process.
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
        use_tpu: has to be False, as it was for all but TPUs.
        train_batch_size, eval_batch_size, predict_batch_size: what `params["batch_size"]` is in each mode.
        of_tpus: has no meaning here.

    Raises:
        ConfigError: `use_tpu`.
    """
    if use_tpu:
        raise ConfigError(
            "a model_fn that stays a function of TensorFlow 1 does not train on TPUs",
            code="training/unsupported",
            hint="say use_tpu=False, or convert the model to Keras layers and train it under TPUStrategy",
        )
    model = ModelFnModel(model_fn, model_dir, config, params, warm_start_from)
    sizes = {"train": train_batch_size, "eval": eval_batch_size or train_batch_size, "infer": predict_batch_size}
    model.batch_sizes = {mode: size for mode, size in sizes.items() if size is not None}
    return model


def predictions(
    model: Any, data: Any, predict_keys: Sequence[str] | str | None = None, yield_single_examples: bool = True
) -> Iterator[Any]:
    """Yield the predictions of a model, one example after another, as NumPy arrays.

    Args:
        model: a ModelFnModel.
        data: a data set of features, or of features and labels; or an input function.
        predict_keys: of a dict of predictions those that are wanted; None: all.
        yield_single_examples: whether each example comes by itself, or each batch.
    """
    keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
    with eager_block():  # and no longer than a batch: a program goes on between two values
        data = model.data_of("infer", data)
        graph, batches = model.graph_of("infer", data), iter(data)
    while True:
        with eager_block():
            element = next(batches, None)
            if element is None:
                return
            found = model.predict_on_batch(element, graph)
        if isinstance(found, Mapping) and keys:
            found = {name: found[name] for name in found if name in keys}
        if not yield_single_examples:
            yield found
            continue
        arrays = list(found.values()) if isinstance(found, Mapping) else [found]
        for place in range(len(arrays[0])):
            yield {name: one[place] for name, one in found.items()} if isinstance(found, Mapping) else found[place]


@functools.cache
def _model_class() -> Callable[..., Any]:
    tf = compat.tensorflow()

    class ModelFnModel(tf.keras.Model):  # type: ignore[misc,name-defined]
        """See the function of this name."""

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
            # The model_fn has its own optimizer; this one tells callbacks which step it is.
            self.compile(optimizer=tf.keras.optimizers.legacy.SGD())

        # The graphs

        def call_model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            """Return the spec of a mode, made in the graph that is the default one."""
            names = inspect.signature(self.model_fn).parameters
            given = {"labels": labels, "mode": mode, "params": self.params_of(mode), "config": self.config}
            if labels is not None and "labels" not in names:
                raise ConfigError(
                    "the model_fn has no parameter labels, and the data has labels",
                    code="argument/bad-value",
                    hint="let the input function give features alone",
                )
            return self.model_fn(features, **{name: value for name, value in given.items() if name in names})

        def params_of(self, mode: str) -> Any:
            """Return what the model_fn and input functions get as `params`."""
            params = dict(self.params) if isinstance(self.params, dict) else self.params
            return {**params, "batch_size": self.batch_sizes[mode]} if mode in self.batch_sizes else params

        def data_of(self, mode: str, data: Any) -> Any:
            """Return the data set that an input function gives; other data as they are."""
            return dataset(data, mode, self) if callable(data) else data

        def graph_of(self, mode: str, data: Any) -> ModeGraph:
            """Return the graph of a mode for data sets like the one given, its variables with the last values."""
            spec = data.element_spec if hasattr(data, "element_spec") else tf.nest.map_structure(_spec_of, data)
            # A model_fn gets no labels where it predicts.
            spec = spec[0] if mode == "infer" and isinstance(spec, tuple) else spec
            key = (mode, str(spec))
            if key not in self._graphs:
                self._graphs[key] = self._made(key, mode, spec)
            if not self._is_restored:
                self._restore(self._graphs[key], mode)
            return self._graphs[key]

        def _made(self, key: tuple[str, str], mode: str, spec: Any) -> ModeGraph:
            if self.config.tf_random_seed is not None and not self._by_name.by_name:
                tf.random.set_seed(self.config.tf_random_seed)  # of the initial values
            before = set(self._by_name.by_name)

            def build(given: Any) -> Any:
                features, labels = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
                spec = self.call_model_fn(features, labels, mode)
                if mode == "train":
                    _summarize_loss(spec.loss)
                # Metrics of Keras make operations of the graph where they are asked for their values.
                self._of_evaluation[key] = _metrics(spec) if mode == "eval" else ({}, [])
                return spec

            made = ModeGraph(build, spec, self._by_name, self.config.tf_random_seed)
            made.local += [one for metric in _keras_metrics(made.found) for one in metric.variables]
            local = {id(one) for one in made.local}
            new = {name: one for name, one in self._by_name.by_name.items() if name not in before}
            kept = {name: one for name, one in new.items() if id(one) not in local}
            self.checkpoints.variables |= kept
            self._own_weights = list(self.checkpoints.variables.values())
            if "global_step" in kept:
                self.optimizer.iterations = kept["global_step"]
            if kept and self.checkpoints.last:
                self._is_restored = False  # what is new is in the checkpoint, too
            return made

        def _restore(self, graph: ModeGraph, mode: str) -> None:
            self._is_restored = True
            if self.checkpoints.restore():
                return
            initial = graph.initial_values()
            if initial:
                graph.run(initial)
            self.checkpoints.warm_start()
            init_fn = getattr(getattr(graph.found, "scaffold", None), "init_fn", None)
            if init_fn is not None and mode == "train":
                with graph.graph.as_default():
                    init_fn(Session(graph))

        @property
        @eagerly
        def global_step(self) -> int:
            """Steps that were trained, those of earlier processes included."""
            found = self._by_name.by_name.get("global_step")
            return int(found.numpy()) if found is not None else self.checkpoints.last_step()

        # Training

        @eagerly
        def fit(
            self, x: Any = None, *arguments: Any, steps_per_epoch: float | None = None, max_steps: float | None = None,
            hooks: Sequence[Any] | None = None, saving_listeners: Sequence[Any] | None = None, verbose: Any = 0,
            callbacks: Any = None, **options: Any,
        ) -> Any:  # fmt: skip
            """Trains on a data set. See `tf.keras.Model.fit` for what is not here.

            Args:
                x: the data set, or an input function; see `dataset`.
                steps_per_epoch: steps of this call; None: to the end of the data.
                max_steps: the global step until which it trains; a model that has come so far is not trained.
                hooks: as of `tf.compat.v1.train.SessionRunHook`.
                saving_listeners: told of each checkpoint, as of `tf.compat.v1.train.CheckpointSaverListener`.
                verbose: of Keras's own lines; the model has its own by `config.log_step_count_steps`.
            """
            x = self.data_of("train", x)
            graph = self.graph_of("train", x)
            spec, self.step = graph.found, self.global_step
            told = [*(hooks or ()), *(spec.training_hooks or ()), *(spec.training_chief_hooks or ())]
            last = [_last_step(hook, self.step) for hook in told]
            told = [hook for hook, step in zip(told, last, strict=True) if step is None]
            left = [step - self.step for step in (max_steps, *last) if step is not None]
            left += [steps_per_epoch] if steps_per_epoch is not None else []
            # A share of a step is one, as for an Estimator: programs divide numbers of records by sizes of batches.
            steps_per_epoch = math.ceil(min(left)) if left else None
            if steps_per_epoch is not None and steps_per_epoch <= 0:
                return None
            self._hooked, self._train_graph = HookedSteps(told, graph), graph
            self._hooked.begin()
            saver = saving_callbacks().Keeping(self.checkpoints, self.config, saving_listeners or (), Session(graph))
            history = super().fit(
                x, *arguments, steps_per_epoch=steps_per_epoch, verbose=verbose,
                callbacks=[saver, *(callbacks or ())], **options,
            )  # fmt: skip
            self._hooked.end()
            return history

        def make_train_function(self, force: bool = False) -> Callable[[Any], Any]:
            """Return the step; it is a graph function, so nothing has to be compiled around it."""
            self.train_function = lambda iterator: self.train_step(next(iterator))
            return self.train_function

        def train_step(self, data: Any) -> dict[str, Any]:
            """One step: the train_op of the model_fn, and its loss."""
            spec, graph = self._train_graph.found, self._train_graph
            fetches = {"loss": spec.loss, "train_op": spec.train_op}
            every = self.config.save_summary_steps
            if every and self.step % every == 0:
                fetches["summary"] = graph.summary
            assert self._hooked is not None
            found = self._hooked.run(fetches, data)
            self.step = self.global_step
            if not bool(tf.math.is_finite(found["loss"])):
                raise DivergedError(
                    f"the loss is {float(found['loss'])} at step {self.step}",
                    code="training/diverged",
                    hint="try a smaller learning rate; the last checkpoint is that of before",
                )
            self.last_summary = found.get("summary")
            if self._hooked.stopped:
                self.stop_training = True
            return {"loss": found["loss"]}

        # Evaluation

        @eagerly
        def evaluate(self, x: Any = None, *arguments: Any, return_dict: bool = False, steps: float | None = None,
                     hooks: Sequence[Any] | None = None, checkpoint_path: str | None = None, name: str | None = None,
                     verbose: Any = 0, input_fn: Any = None, **options: Any) -> Any:  # fmt: skip
            """Return the metrics of the model_fn, the mean of its loss, and the global step.

            Args:
                x: the data set, or an input function.
                return_dict: whether they come by their names; of an input function they do.
                input_fn: the same as `x`, by the Estimator's name for it.
                steps: how many batches; None: all.
                hooks: as of `tf.compat.v1.train.SessionRunHook`.
                checkpoint_path: another checkpoint than the last.
                name: of the evaluation, where there are several: its event files are in `eval_NAME`.
            """
            x = input_fn if input_fn is not None else x
            return_dict, x = return_dict or callable(x), self.data_of("eval", x)
            graph = self.graph_of("eval", x)
            if checkpoint_path is not None:
                self.checkpoints.restore(checkpoint_path)
            for one in graph.local:
                one.assign(tf.zeros_like(one))
            values, updates = next(self._of_evaluation[key] for key, one in self._graphs.items() if one is graph)
            self._evaluated = HookedSteps([*(hooks or ()), *(graph.found.evaluation_hooks or ())], graph)
            self._eval_graph, self._updates = graph, {"loss": graph.found.loss, "updates": updates}
            self._losses: list[Any] = []
            self._evaluated.begin()
            super().evaluate(x, *arguments, return_dict=True, verbose=verbose,
                             steps=math.ceil(steps) if steps is not None else None, **options)  # fmt: skip
            self._evaluated.end()
            found = {key: float(one) if not one.shape.rank else one.numpy()
                     for key, one in graph.run(values).items()}  # fmt: skip
            # As the metric of an Estimator: by numbers of 32 bits.
            found["loss"] = float(sum(self._losses, np.float32(0)) / np.float32(max(len(self._losses), 1)))
            found["global_step"] = self.global_step
            found = {key: found[key] for key in sorted(found)}
            with tf.summary.create_file_writer(self.eval_dir(name)).as_default():
                for key, value in found.items():
                    if isinstance(value, float):
                        tf.summary.scalar(key, value, found["global_step"])
            return found if return_dict else list(found.values())

        def make_test_function(self, force: bool = False) -> Callable[[Any], Any]:
            """See `make_train_function`."""
            self.test_function = lambda iterator: self.test_step(next(iterator))
            return self.test_function

        def test_step(self, data: Any) -> dict[str, Any]:
            """One batch of an evaluation."""
            found = self._evaluated.run(self._updates, data)
            self._losses.append(found["loss"].numpy())
            return {"loss": found["loss"]}

        # Predictions

        @eagerly
        def predict(
            self, x: Any = None, *arguments: Any, input_fn: Any = None, predict_keys: Any = None,
            yield_single_examples: bool = True, **options: Any,
        ) -> Any:  # fmt: skip
            """The predictions of the model_fn for all records of a data set, or of what an input function gives.

            Args:
                x: the data set, or an input function.
                input_fn: in place of `x`: they come one after another, as an Estimator gave them.
                predict_keys, yield_single_examples: then, see `predictions`.
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
            return graph.run(graph.found.predictions, features)

        @eagerly
        def predict_on_batch(self, x: Any, graph: ModeGraph | None = None) -> Any:
            """Return the predictions for one batch, as NumPy arrays; the graph is one of `graph_of`."""
            self._predict_graph = graph
            return tf.nest.map_structure(lambda one: one.numpy(), self.predict_step(x))

        # As an Estimator

        def train(
            self, input_fn: Callable[..., Any], hooks: Any = None, steps: float | None = None,
            max_steps: float | None = None, saving_listeners: Any = None,
        ) -> Any:  # fmt: skip
            """`fit` by the arguments of an Estimator, for code that is handed one of several kinds."""
            self.fit(input_fn, steps_per_epoch=steps, max_steps=max_steps, hooks=hooks,
                     saving_listeners=saving_listeners)  # fmt: skip
            return self

        def get_variable_names(self) -> list[str]:
            """Return the names of the last checkpoint's variables."""
            return self.checkpoints.names()

        def get_variable_value(self, name: str) -> Any:
            """Return the value of a variable in the last checkpoint."""
            return self.checkpoints.value(name)

        def latest_checkpoint(self) -> str | None:
            """Return the last checkpoint of `model_dir`."""
            return tf.train.latest_checkpoint(self.model_dir) if self.model_dir else None

        def eval_dir(self, name: str | None = None) -> str:
            """Return the folder of an evaluation's event files."""
            return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    for name in ("get_weights", "set_weights", "save_weights", "load_weights", "save"):
        setattr(ModelFnModel, name, eagerly(getattr(ModelFnModel, name)))
    return ModelFnModel


def _spec_of(one: Any) -> Any:
    """Return the kind of a batch, of any size."""
    tf = compat.tensorflow()
    if isinstance(one, tf.Tensor):
        return tf.TensorSpec([None, *one.shape[1:]] if one.shape.rank else one.shape, one.dtype)
    return tf.type_spec_from_value(one)


def _last_step(hook: Any, now: int) -> int | None:
    """Return the step at which a StopAtStepHook ends the training; None for other hooks."""
    if type(hook).__name__ != "StopAtStepHook":
        return None
    return hook._last_step if hook._last_step is not None else now + hook._num_steps


def _summarize_loss(loss: Any) -> None:
    """The summary of the loss, which an Estimator adds where a model_fn has none; hooks ask for it by its name."""
    v1 = compat.tensorflow().compat.v1
    if not any(one.op.name == "loss" for one in v1.get_collection(v1.GraphKeys.SUMMARIES)):
        v1.summary.scalar("loss", loss)


def _keras_metrics(spec: Any) -> list[Any]:
    tf = compat.tensorflow()
    metrics = (getattr(spec, "eval_metric_ops", None) or {}).values()
    return [one for one in metrics if isinstance(one, tf.keras.metrics.Metric)]


def _metrics(spec: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return (the values of metrics, what updates them)."""
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
