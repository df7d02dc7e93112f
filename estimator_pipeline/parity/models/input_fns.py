"""Input functions of a program, with checked results and clear errors.

An Estimator calls an input function in a graph, and fills its parameters by their names; for Keras the same function is
called eagerly and returns a dataset. A function that returns (features, labels) as tensors, as in programs of
TensorFlow 1, is read for Keras in a separate session.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import seeds
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.wrapping import wrap_input_fn
from estimator_pipeline.job.user_code import describe_type, own_code

__all__ = ["ComparedInputFn", "called", "dataset_for_fit", "features_of", "name_of"]

# Parameters that an Estimator fills by name, beside `input_context`, which differs in each call.
_FILLED = ("mode", "params", "config")


class ComparedInputFn:
    """An input function of a program, for the Estimator, for Keras, or for both.

    Args:
        input_fn: the function.
        name: its name among the arguments, such as "eval_input_fn".
        estimator: the Estimator whose `params` and `config` are passed to it, if it has these parameters.
        mode: a `tf.estimator.ModeKeys`, passed if it has this parameter.
        batches: number of batches that are read; None: all. Tensors are limited only for Keras: an Estimator needs an
            explicit number of steps.

    Attributes:
        name: as passed.
        title: the name and that of the function, for messages.
        element_spec: element_spec of the returned dataset; None: not called yet.

    Raises:
        ConfigError: it is not callable, or needs a parameter that no Estimator fills.
    """

    def __init__(self, input_fn: Any, *, name: str, estimator: Any, mode: str, batches: int | None = None) -> None:
        option = "--" + name.replace("_", "-")
        if not callable(input_fn):
            is_dataset = isinstance(input_fn, _datasets())
            raise ConfigError(
                f"{name} is not a function",
                code="argument/bad-value",
                found=describe_type(input_fn),
                hint=f"pass a function that creates and returns the dataset ({option} FILE.py:NAME)"
                if is_dataset
                else f"pass a function that returns a tf.data.Dataset ({option} FILE.py:NAME)",
            )
        self.name, self.title = name, f"{name} ({name_of(input_fn)})"
        self._input_fn = input_fn
        _check_parameters(input_fn, self.title, (*_FILLED, "input_context"))
        asks = _parameters(input_fn)
        values = {"mode": mode, "params": estimator.params, "config": estimator.config}
        self._arguments = {name: value for name, value in values.items() if name in asks}
        self._takes_context = "input_context" in asks
        self._is_distributed = estimator.config.train_distribute is not None
        self._gives_tensors = False
        self._seed = estimator.config.tf_random_seed
        self._is_evaluation = mode == compat.tensorflow().estimator.ModeKeys.EVAL
        self.element_spec: Any = None
        self._batches = batches
        self._first: Any = None

    def for_estimator(self) -> Callable[..., Any]:
        """Return the function for an Estimator; its result is checked in each call."""

        def input_fn(inner: Callable[..., Any], **context: Any) -> Any:
            data = called(inner, self.title, **self._arguments, **context)
            if isinstance(data, _datasets()):
                return self._looked_at(data)
            self._check_tensors(data)
            if self._is_distributed:
                raise ConfigError(
                    f"{self.title} returns tensors, and the Estimator has a strategy",
                    code="data/bad-input-fn",
                    hint="return a tf.data.Dataset of (features, labels)",
                )
            self._gives_tensors = True
            return data

        return self._with_its_signature(input_fn)

    def for_keras(self) -> Callable[..., Any]:
        """Return the function that creates a dataset for Keras."""

        def input_fn(inner: Callable[..., Any], **context: Any) -> Any:
            if self._gives_tensors:
                return self._cut(self._read_in_a_session())
            with seeds.global_seed(self._seed):
                data = called(inner, self.title, **self._arguments, **context)
            if not isinstance(data, _datasets()):
                self._check_tensors(data)
                raise ConfigError(
                    f"{self.title} returns tensors, which Keras cannot read",
                    code="data/bad-input-fn",
                    hint=self._hint(),
                )
            return self._looked_at(data)

        return self._with_its_signature(input_fn)

    def first_features(self) -> Any:
        """Return the features of the Keras model's first batch, which is read once.

        Raises:
            ConfigError: there is no batch, or reading it fails.
        """
        if self._first is None:
            with own_code(
                self.title,
                fails=lambda: "fails while its first batch is read",
                hint="correct the function, or the data that it reads",
            ):
                self._first = list(features_of(self.for_keras()()).take(1))
        if not self._first:
            raise ConfigError(
                f"{self.title} returns no batch",
                code="data/empty",
                hint="check the data that it reads: nothing can be compared",
            )
        return self._first[0]

    def _cut(self, dataset: Any) -> Any:
        return dataset if self._batches is None else dataset.take(self._batches)

    def _looked_at(self, dataset: Any) -> Any:
        """Return a checked dataset; a dataset for an evaluation must end."""
        self.element_spec = dataset.element_spec
        dataset = self._cut(dataset)
        if self._is_evaluation and _is_endless(dataset):
            raise ConfigError(
                f"{self.title} returns an endless dataset, and an evaluation reads all of it",
                code="data/endless",
                hint="remove .repeat(), or limit the evaluation: eval_steps (--eval-steps N)",
            )
        return dataset

    def _with_its_signature(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def with_context(inner: Callable[..., Any], input_context: Any = None) -> Any:
            return function(inner, input_context=input_context)

        def without_context(inner: Callable[..., Any]) -> Any:
            return function(inner)

        outer = with_context if self._takes_context else without_context
        signature = inspect.signature(outer)
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        return wrap_input_fn(self._input_fn, outer, signature=signature)

    def _hint(self) -> str:
        if self.name.startswith("keras"):
            return "return a tf.data.Dataset of (features, labels)"
        option = "--keras-" + self.name.replace("_", "-")
        return f"pass keras_{self.name} ({option}), a function that returns a dataset for the Keras model"

    def _check_tensors(self, value: Any) -> None:
        """Raise for a value that is neither a dataset nor (features, labels) as tensors."""
        tf = compat.tensorflow()
        parts = [part for part in tf.nest.flatten(value) if part is not None]
        pair = not isinstance(value, list | tuple) or (len(value) == 2 and value[0] is not None)
        if parts and pair and all(tf.is_tensor(part) for part in parts):
            return
        returned = describe_type(value)
        if isinstance(value, list | tuple):
            returned += f" of {', '.join(type(part).__name__ for part in value[:4])}" if value else " of nothing"
        raise ConfigError(
            f"{self.title} returns {returned}",
            code="data/bad-input-fn",
            hint="return a tf.data.Dataset of (features, labels), in batches: "
            "tf.data.Dataset.from_tensor_slices((features, labels)).batch(32)",
        )

    def _read_in_a_session(self) -> Any:
        """Return a dataset of the values of the function's tensors, read in a separate graph."""
        tf: Any = compat.tensorflow()

        def tensors() -> tuple[Any, Any]:
            graph = tf.Graph()
            with graph.as_default():
                return graph, called(self._input_fn, self.title, **self._arguments)

        _, sample = tensors()
        flat = tf.nest.flatten(sample)
        if not all(isinstance(part, tf.Tensor) for part in flat):
            raise ConfigError(
                f"{self.title} returns tensors that are sparse or missing, which Keras cannot read",
                code="data/bad-input-fn",
                hint=self._hint(),
            )

        def batches() -> Iterator[Any]:
            graph, batch = tensors()
            # Not `as_default` around a `yield`: a different thread may request the next batch.
            with graph.as_default():
                session = tf.compat.v1.train.MonitoredSession(tf.compat.v1.train.ChiefSessionCreator())
            try:
                while True:
                    yield tuple(session.run(tf.nest.flatten(batch)))
            except tf.errors.OutOfRangeError:
                return
            finally:
                session.close()

        signature = tuple(tf.TensorSpec(part.shape, part.dtype) for part in flat)
        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
        structure = tuple(sample) if isinstance(sample, list) else sample
        return dataset.map(lambda *parts: tf.nest.pack_sequence_as(structure, list(parts)))


def called(function: Callable[..., Any], title: str, **arguments: Any) -> Any:
    """Return the result of a function of the program.

    Args:
        function: the function.
        title: its name in messages.
        **arguments: all its arguments, by name.

    Raises:
        ConfigError: it needs other arguments, or raises; the message has the exception and its place.
    """
    _check_parameters(function, title, arguments)
    with own_code(title):
        return function(**arguments)


def name_of(function: Any) -> str:
    """Return a function's name, also through functools.partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def features_of(found: Any) -> Any:
    """Return the features from a dataset's first batch, or from a pair of tensors."""
    if not isinstance(found, _datasets()):
        return found[0] if isinstance(found, list | tuple) else found
    first = found.take(1)
    pairs = isinstance(first.element_spec, tuple)
    return first.map(lambda features, *_: features) if pairs else first


def _is_endless(dataset: Any) -> bool:
    tf: Any = compat.tensorflow()
    cardinality = tf.data.experimental.cardinality(dataset)
    if not tf.executing_eagerly():
        # In a graph it is a tensor that does not depend on the program's session.
        try:
            without_gpus = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
            with tf.compat.v1.Session(graph=cardinality.graph, config=without_gpus) as session:
                cardinality = session.run(cardinality)
        except tf.errors.OpError:
            return False
    return int(cardinality) == tf.data.INFINITE_CARDINALITY


def _datasets() -> tuple[Any, ...]:
    tf: Any = compat.tensorflow()
    return tf.data.Dataset, tf.compat.v1.data.Dataset


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function in C has no signature
        return {}


def _check_parameters(function: Any, title: str, filled: Collection[str]) -> None:
    asks = _parameters(function)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needs = [
        name
        for name, parameter in asks.items()
        if parameter.default is parameter.empty
        and parameter.kind not in kinds
        and (name not in filled or parameter.kind is parameter.POSITIONAL_ONLY)
    ]
    if needs:
        raise ConfigError(
            f"{title} needs arguments that are not passed: {', '.join(needs)}",
            code="data/bad-input-fn",
            found=f"{name_of(function)}{inspect.signature(function)}",
            hint="give them default values, or bind them with functools.partial",
        )


def dataset_for_fit(input_fn: Callable[..., Any], strategy: Any) -> Any:
    """Return the dataset for `fit`, or a distributed one with a dataset for each pipeline of a strategy."""
    if strategy.num_replicas_in_sync > 1:
        return strategy.distribute_datasets_from_function(functools.partial(_called, input_fn))
    return _called(input_fn)


def _called(input_fn: Callable[..., Any], context: Any = None) -> Any:
    return input_fn(input_context=context) if "input_context" in inspect.signature(input_fn).parameters else input_fn()
