"""A program's functions, called so that what is wrong with one is told in a sentence; its input functions above all.

An Estimator calls an input function in a graph, and fills its parameters by their names; Keras is given a dataset that
the same function makes eagerly. One that returns (features, labels) as tensors, as programs of TensorFlow 1 have it, is
read for Keras in a session of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import seeds
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.user_code import describe_type, own_code

__all__ = ["ComparedInputFn", "called", "dataset_for_fit", "features_of", "name_of"]

# What an Estimator fills by its name, beside `input_context`, which is another one in each call.
_FILLED = ("mode", "params", "config")
# A few of what this package's own input functions carry; see `engines.recording.step_recorder.recorded_batches`.
_CARRIED = ("start_step", "rebatched", "ledger")


class ComparedInputFn:
    """An input function of a program, for the Estimator, for Keras, or for both.

    Args:
        input_fn: it.
        name: what it is called among the arguments, such as "eval_input_fn".
        estimator: whose `params` and `config` it is given, where it asks for them.
        mode: a `tf.estimator.ModeKeys`, where it asks for it.
        batches: how many are read of what it gives; None: all. What it gives as tensors ends for Keras alone: an
            Estimator is to be told its steps.

    Attributes:
        name: as given.
        title: the name and that of the function, for messages.
        element_spec: of the dataset that it has returned; None: of none yet.

    Raises:
        ConfigError: it is no function, or needs a parameter that no Estimator fills.
    """

    def __init__(self, input_fn: Any, *, name: str, estimator: Any, mode: str, batches: int | None = None) -> None:
        option = "--" + name.replace("_", "-")
        if not callable(input_fn):
            is_dataset = isinstance(input_fn, _datasets())
            raise ConfigError(
                f"{name} is no function",
                code="argument/bad-value",
                found=describe_type(input_fn),
                hint=f"give a function that makes the dataset and returns it ({option} FILE.py:NAME)"
                if is_dataset
                else f"give a function that returns a tf.data.Dataset ({option} FILE.py:NAME)",
            )
        self.name, self.title = name, f"{name} ({name_of(input_fn)})"
        self._input_fn = input_fn
        _refuse_unfilled(input_fn, self.title, (*_FILLED, "input_context"))
        asks = _parameters(input_fn)
        given = {"mode": mode, "params": estimator.params, "config": estimator.config}
        self._arguments = {name: value for name, value in given.items() if name in asks}
        self._takes_context = "input_context" in asks
        self._is_distributed = estimator.config.train_distribute is not None
        self._gives_tensors = False
        self._seed = estimator.config.tf_random_seed
        self._is_evaluation = mode == compat.tensorflow().estimator.ModeKeys.EVAL
        self.element_spec: Any = None
        self._batches = batches
        self._first: Any = None

    def for_estimator(self) -> Callable[..., Any]:
        """Return the function that an Estimator is given; what it returns is looked at whenever it is called."""

        def given(**context: Any) -> Any:
            found = called(self._input_fn, self.title, **self._arguments, **context)
            if isinstance(found, _datasets()):
                return self._looked_at(found)
            self._refuse(found)
            if self._is_distributed:
                raise ConfigError(
                    f"{self.title} returns tensors, and the Estimator has a strategy",
                    code="data/bad-input-fn",
                    hint="return a tf.data.Dataset of (features, labels)",
                )
            self._gives_tensors = True
            return found

        return self._with_its_signature(given)

    def for_keras(self) -> Callable[..., Any]:
        """Return the function that makes a dataset for Keras."""

        def given(**context: Any) -> Any:
            if self._gives_tensors:
                return self._cut(self._read_in_a_session())
            with seeds.global_seed(self._seed):
                found = called(self._input_fn, self.title, **self._arguments, **context)
            if not isinstance(found, _datasets()):
                self._refuse(found)
                raise ConfigError(
                    f"{self.title} returns tensors, which Keras cannot read",
                    code="data/bad-input-fn",
                    hint=self._hint(),
                )
            return self._looked_at(found)

        return self._with_its_signature(given)

    def for_model_fn(self) -> Callable[..., Any]:
        """Return the function that makes a dataset, or tensors, for a Keras model that calls a model_fn."""

        def given(**context: Any) -> Any:
            with seeds.global_seed(self._seed):
                found = self._input_fn(**self._arguments, **context)
            return self._looked_at(found) if isinstance(found, _datasets()) else found

        return self._with_its_signature(given)

    def first_features(self) -> Any:
        """Return the features of the first batch that a Keras model is given, which is read once.

        Raises:
            ConfigError: there is none, or reading it fails.
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
                f"{self.title} gives no batch",
                code="data/empty",
                hint="look at the data that it reads: nothing can be compared",
            )
        return self._first[0]

    def _cut(self, dataset: Any) -> Any:
        return dataset if self._batches is None else dataset.take(self._batches)

    def _looked_at(self, dataset: Any) -> Any:
        """Return a dataset that the function has returned; one for an evaluation has to end."""
        self.element_spec = dataset.element_spec
        dataset = self._cut(dataset)
        if self._is_evaluation and _is_endless(dataset):
            raise ConfigError(
                f"{self.title} gives a dataset without end, and an evaluation reads all of it",
                code="data/endless",
                hint="leave .repeat() out of it, or say how many batches are evaluated: eval_steps (--eval-steps N)",
            )
        return dataset

    def _with_its_signature(self, given: Callable[..., Any]) -> Callable[..., Any]:
        def with_context(input_context: Any = None) -> Any:
            return given(input_context=input_context)

        def without_context() -> Any:
            return given()

        outer: Any = with_context if self._takes_context else without_context
        for name in _CARRIED:
            if hasattr(self._input_fn, name):
                setattr(outer, name, getattr(self._input_fn, name))
        return outer

    def _hint(self) -> str:
        if self.name.startswith("keras"):
            return "return a tf.data.Dataset of (features, labels)"
        option = "--keras-" + self.name.replace("_", "-")
        return f"give the Keras model its data by keras_{self.name} ({option}), a function that returns a dataset"

    def _refuse(self, found: Any) -> None:
        """Raise for what is neither a dataset nor (features, labels) as tensors."""
        tf = compat.tensorflow()
        parts = [part for part in tf.nest.flatten(found) if part is not None]
        pair = not isinstance(found, list | tuple) or (len(found) == 2 and found[0] is not None)
        if parts and pair and all(tf.is_tensor(part) for part in parts):
            return
        what = describe_type(found)
        if isinstance(found, list | tuple):
            what += f" of {', '.join(type(part).__name__ for part in found[:4])}" if found else " of nothing"
        raise ConfigError(
            f"{self.title} returns {what}",
            code="data/bad-input-fn",
            hint="return a tf.data.Dataset of (features, labels), in batches: "
            "tf.data.Dataset.from_tensor_slices((features, labels)).batch(32)",
        )

    def _read_in_a_session(self) -> Any:
        """Yield a dataset of what the tensors of a graph of its own come to, one after the other."""
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
            graph, found = tensors()
            # Not `as_default` around a `yield`: the next batch may be asked for by another thread.
            with graph.as_default():
                session = tf.compat.v1.train.MonitoredSession(tf.compat.v1.train.ChiefSessionCreator())
            try:
                while True:
                    yield tuple(session.run(tf.nest.flatten(found)))
            except tf.errors.OutOfRangeError:
                return
            finally:
                session.close()

        signature = tuple(tf.TensorSpec(part.shape, part.dtype) for part in flat)
        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
        structure = tuple(sample) if isinstance(sample, list) else sample
        return dataset.map(lambda *parts: tf.nest.pack_sequence_as(structure, list(parts)))


def called(function: Callable[..., Any], what: str, **arguments: Any) -> Any:
    """Return what a function of the program returns.

    Args:
        function: it.
        what: how messages name it.
        **arguments: by name; there is none beside them.

    Raises:
        ConfigError: it needs other arguments, or raises; what it raised is the cause, and its place is told.
    """
    _refuse_unfilled(function, what, arguments)
    with own_code(what):
        return function(**arguments)


def name_of(function: Any) -> str:
    """Return a function's name, also where some of its arguments are bound."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def features_of(found: Any) -> Any:
    """Return the features of what an input function returned: of a dataset's first batch, or of a pair of tensors."""
    if not isinstance(found, _datasets()):
        return found[0] if isinstance(found, list | tuple) else found
    first = found.take(1)
    pairs = isinstance(first.element_spec, tuple)
    return first.map(lambda features, *_: features) if pairs else first


def _is_endless(dataset: Any) -> bool:
    tf: Any = compat.tensorflow()
    found = tf.data.experimental.cardinality(dataset)
    if not tf.executing_eagerly():
        # In a graph it is a tensor, which needs nothing of the program's session.
        try:
            without_gpus = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
            with tf.compat.v1.Session(graph=found.graph, config=without_gpus) as session:
                found = session.run(found)
        except tf.errors.OpError:
            return False
    return int(found) == tf.data.INFINITE_CARDINALITY


def _datasets() -> tuple[Any, ...]:
    tf: Any = compat.tensorflow()
    return tf.data.Dataset, tf.compat.v1.data.Dataset


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a function in C nothing is known
        return {}


def _refuse_unfilled(function: Any, what: str, filled: Collection[str]) -> None:
    asks = _parameters(function)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needs = [
        name
        for name, one in asks.items()
        if one.default is one.empty
        and one.kind not in kinds
        and (name not in filled or one.kind is one.POSITIONAL_ONLY)
    ]
    if needs:
        raise ConfigError(
            f"{what} needs arguments that it is not given: {', '.join(needs)}",
            code="data/bad-input-fn",
            found=f"{name_of(function)}{inspect.signature(function)}",
            hint="give them defaults, or bind them with functools.partial",
        )


def dataset_for_fit(input_fn: Callable[..., Any], strategy: Any) -> Any:
    """Return what `fit` gets: the dataset, or one for each pipeline of a strategy."""
    if strategy.num_replicas_in_sync > 1:
        return strategy.distribute_datasets_from_function(functools.partial(_called, input_fn))
    return _called(input_fn)


def _called(input_fn: Callable[..., Any], context: Any = None) -> Any:
    return input_fn(input_context=context) if "input_context" in inspect.signature(input_fn).parameters else input_fn()
