"""Datasets for `fit`, `evaluate` and `predict` from input functions of Estimators."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.eager_blocks import eagerly, no_eager_iterators
from estimator_pipeline.errors import InputError

__all__ = ["InputGraph", "dataset", "numpy_input_fn", "pandas_input_fn"]


@eagerly
def dataset(input_fn: Callable[..., Any], mode: str = "train", model: Any = None) -> Any:
    """Return a dataset with the batches of an input function.

    Args:
        input_fn: Returns a dataset, or features and labels as graph tensors, from an iterator or queues.
        mode: The argument `mode` of the input function, if it has this parameter.
        model: A ModelFnModel: its `params` and `config` are passed to the input function, if it has these parameters.

    Returns:
        A `tf.data.Dataset` of the model's inputs.

    Raises:
        InputError: The input function returns None.
    """
    tf = compat.tensorflow()
    if hasattr(input_fn, "dataset"):
        return input_fn.dataset()
    names = _parameters(input_fn)
    params, config = (model.params_of(mode), model.config) if model is not None else (None, None)
    available = {"mode": mode, "params": params, "config": config, "input_context": tf.distribute.InputContext()}
    arguments = {name: value for name, value in available.items() if name in names}

    try:
        with no_eager_iterators():
            data = input_fn(**arguments)
    except RuntimeError as error:  # iterators, placeholders and queues work only in graphs
        if "eager" not in str(error):
            raise
        data = ()
    if isinstance(data, tf.data.Dataset | tf.compat.v1.data.Dataset):
        return data
    if data is None:
        raise InputError("the input function returns None", code="argument/bad-value", hint="return a dataset from it")
    graph = tf.Graph()
    with graph.as_default():
        data = input_fn(**arguments)
    return InputGraph(graph, tuple(data) if isinstance(data, list) else data).dataset()


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


class InputGraph:
    """The graph of an input function that returns tensors, and the operations to run before the first batch.

    Args:
        graph: The graph.
        tensors: The tensors of a batch, in any structure.
    """

    of: ClassVar[weakref.WeakKeyDictionary[Any, InputGraph]] = weakref.WeakKeyDictionary()

    def __init__(self, graph: Any, tensors: Any) -> None:
        tf = compat.tensorflow()
        self._graph = graph
        self._spec = tf.nest.map_structure(tf.type_spec_from_value, tensors)
        self._tensors = tf.nest.flatten(tensors, expand_composites=True)
        self._scaffold = tf.compat.v1.train.Scaffold()  # shared by all sessions: the first one finalizes the graph
        self._first: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self.of[graph] = self

    def run_first(self, fetches: Any, feed_dict: Any) -> Any:
        """Run a hook's operation, such as an iterator's initializer, in each session before the first batch."""
        flat = compat.tensorflow().nest.flatten(fetches)
        self._first[tuple(map(id, flat))] = fetches, feed_dict
        return None

    def dataset(self) -> Any:
        """Return a dataset with the tensors' values of successive session runs, until the input ends."""
        tf = compat.tensorflow()
        signature = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self._tensors)
        return tf.data.Dataset.from_generator(self._values, output_signature=signature).map(
            lambda *tensors: tf.nest.pack_sequence_as(self._spec, tensors, expand_composites=True)
        )

    def _values(self) -> Iterator[tuple[Any, ...]]:
        tf = compat.tensorflow()
        with self._graph.as_default():  # only here: each value may be requested from a different thread
            session = tf.compat.v1.train.SingularMonitoredSession(scaffold=self._scaffold)
        try:
            for fetches, feed_dict in self._first.values():
                session.raw_session().run(fetches, feed_dict)
            while True:
                try:
                    values = session.run(self._tensors)
                except tf.errors.OutOfRangeError:
                    return
                yield tuple(values)
        finally:
            with self._graph.as_default():
                session.close()


def numpy_input_fn(
    x: Any, y: Any = None, batch_size: int = 128, num_epochs: int | None = 1, shuffle: bool | None = None,
    queue_capacity: int = 1000, num_threads: int = 1,
) -> Callable[[], Any]:  # fmt: skip
    """Return an input function of arrays, for `dataset`. Within another input function, it returns tensors.

    Args:
        x: An array, or a dict of arrays of the same length.
        y: The labels: an array, a dict of arrays, or None.
        batch_size: The batch size; a batch may contain examples of two epochs.
        num_epochs: How often the arrays are read; None: indefinitely.
        shuffle: Whether to shuffle the examples.
        queue_capacity: The size of the shuffle buffer.
        num_threads: Ignored.

    Raises:
        InputError: The arrays have different lengths, or `shuffle` is not set.
    """
    if not isinstance(shuffle, bool):
        raise InputError(
            "numpy_input_fn: shuffle is neither True nor False",
            code="argument/bad-value",
            hint="set shuffle=True for training",
        )
    arrays = {"features": x} if y is None else {"features": x, "labels": y}
    lengths = {len(array) for array in _leaves(arrays)}
    if len(lengths) != 1:
        raise InputError(
            "numpy_input_fn: x and y do not have the same number of records",
            code="argument/bad-value",
            found=f"lengths {', '.join(map(str, sorted(lengths)))}",
        )

    def build() -> Any:
        tf = compat.tensorflow()
        records = tf.data.Dataset.from_tensor_slices(_arrays(x) if y is None else (_arrays(x), _arrays(y)))
        if shuffle:
            records = records.shuffle(max(queue_capacity, batch_size))
        return records.repeat(num_epochs).batch(batch_size)

    def input_fn() -> Any:
        tf = compat.tensorflow()
        if tf.executing_eagerly():
            raise RuntimeError("an input function of arrays returns graph tensors, which eager execution does not have")
        return tf.compat.v1.data.make_one_shot_iterator(build()).get_next()

    input_fn.dataset = build  # type: ignore[attr-defined]
    return input_fn


def pandas_input_fn(
    x: Any, y: Any = None, batch_size: int = 128, num_epochs: int | None = 1, shuffle: bool | None = None,
    queue_capacity: int = 1000, num_threads: int = 1, target_column: str = "target",
) -> Callable[[], Any]:  # fmt: skip
    """Return an input function of a data frame, with features by column name. See `numpy_input_fn`.

    Args:
        x: A `pandas.DataFrame`.
        y: A `pandas.Series`, a `DataFrame`, or None.
        target_column: Ignored.
    """
    features = {name: x[name].to_numpy() for name in x.columns}
    if y is None:
        labels = None
    elif hasattr(y, "columns"):
        labels = {name: y[name].to_numpy() for name in y.columns}
    else:
        labels = y.to_numpy()
    return numpy_input_fn(features, labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value


def _arrays(value: Any) -> Any:
    """Convert values to arrays for TensorFlow: a text column in pandas has the dtype object."""
    if isinstance(value, Mapping):
        return {name: _arrays(item) for name, item in value.items()}
    array = np.asarray(value)
    return array.astype(str) if array.dtype == object else array
