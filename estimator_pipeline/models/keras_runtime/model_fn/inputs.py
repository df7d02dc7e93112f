"""Data sets for `fit`, `evaluate` and `predict` from input functions of Estimators."""

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
    """Return what an input function gives, as a data set.

    Args:
        input_fn: gives a data set, or features and labels as tensors of a graph: those of an iterator or of queues.
        mode: what it is told, where it has a parameter of this name.
        model: a ModelFnModel, whose params and config it is told, where it has parameters of these names.

    Returns:
        A `tf.data.Dataset` of what a model is fed with.

    Raises:
        InputError: it gives nothing.
    """
    tf = compat.tensorflow()
    if hasattr(input_fn, "dataset"):
        return input_fn.dataset()
    names = _parameters(input_fn)
    params, config = (model.params_of(mode), model.config) if model is not None else (None, None)
    given = {"mode": mode, "params": params, "config": config, "input_context": tf.distribute.InputContext()}
    told = {name: value for name, value in given.items() if name in names}

    try:
        with no_eager_iterators():
            found = input_fn(**told)
    except RuntimeError as error:  # iterators, placeholders and queues are of graphs alone
        if "eager" not in str(error):
            raise
        found = ()
    if isinstance(found, tf.data.Dataset | tf.compat.v1.data.Dataset):
        return found
    if found is None:
        raise InputError("the input function gives nothing", code="argument/bad-value", hint="let it return a data set")
    graph = tf.Graph()
    with graph.as_default():
        found = input_fn(**told)
    return InputGraph(graph, tuple(found) if isinstance(found, list) else found).dataset()


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


class InputGraph:
    """The graph of an input function that gives tensors, and what is run in a session of it before the first batch.

    Args:
        graph: the graph.
        made: the tensors of a batch, in any structure.
    """

    of: ClassVar[weakref.WeakKeyDictionary[Any, InputGraph]] = weakref.WeakKeyDictionary()

    def __init__(self, graph: Any, made: Any) -> None:
        tf = compat.tensorflow()
        self._graph = graph
        self._spec = tf.nest.map_structure(tf.type_spec_from_value, made)
        self._tensors = tf.nest.flatten(made, expand_composites=True)
        self._scaffold = tf.compat.v1.train.Scaffold()  # of all sessions: the first one closes the graph
        self._first: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self.of[graph] = self

    def run_first(self, fetches: Any, feed_dict: Any) -> Any:
        """What a hook runs: an iterator's initializer; each session runs it before it reads."""
        flat = compat.tensorflow().nest.flatten(fetches)
        self._first[tuple(map(id, flat))] = fetches, feed_dict
        return None

    def dataset(self) -> Any:
        """Return the values of the tensors in one session run after another, until their input ends."""
        tf = compat.tensorflow()
        signature = tuple(tf.TensorSpec(one.shape, one.dtype) for one in self._tensors)
        return tf.data.Dataset.from_generator(self._values, output_signature=signature).map(
            lambda *tensors: tf.nest.pack_sequence_as(self._spec, tensors, expand_composites=True)
        )

    def _values(self) -> Iterator[tuple[Any, ...]]:
        tf = compat.tensorflow()
        with self._graph.as_default():  # and no longer: each value may be asked for by another thread
            session = tf.compat.v1.train.SingularMonitoredSession(scaffold=self._scaffold)
        try:
            for fetches, feed_dict in self._first.values():
                session.raw_session().run(fetches, feed_dict)
            while True:
                try:
                    found = session.run(self._tensors)
                except tf.errors.OutOfRangeError:
                    return
                yield tuple(found)
        finally:
            with self._graph.as_default():
                session.close()


def numpy_input_fn(
    x: Any, y: Any = None, batch_size: int = 128, num_epochs: int | None = 1, shuffle: bool | None = None,
    queue_capacity: int = 1000, num_threads: int = 1,
) -> Callable[[], Any]:  # fmt: skip
    """Return an input function of arrays, for `dataset`; called by another input function, it gives tensors.

    Args:
        x: an array, or a dict of arrays of one length.
        y: labels: an array, a dict of arrays, or None.
        batch_size: of the batches; batches go on over the end of an epoch.
        num_epochs: how often the arrays are read; None: without an end.
        shuffle: whether the records come in random order.
        queue_capacity: among how many records they are shuffled.
        num_threads: has no meaning any more.

    Raises:
        InputError: arrays of different lengths, or `shuffle` not said.
    """
    if not isinstance(shuffle, bool):
        raise InputError(
            "numpy_input_fn: shuffle is neither True nor False",
            code="argument/bad-value",
            hint="say shuffle=True for training",
        )
    arrays = {"features": x} if y is None else {"features": x, "labels": y}
    lengths = {len(one) for one in _leaves(arrays)}
    if len(lengths) != 1:
        raise InputError(
            "numpy_input_fn: x and y have not the same number of records",
            code="argument/bad-value",
            found=f"lengths {', '.join(map(str, sorted(lengths)))}",
        )

    def made() -> Any:
        tf = compat.tensorflow()
        records = tf.data.Dataset.from_tensor_slices(_arrays(x) if y is None else (_arrays(x), _arrays(y)))
        if shuffle:
            records = records.shuffle(max(queue_capacity, batch_size))
        return records.repeat(num_epochs).batch(batch_size)

    def input_fn() -> Any:
        tf = compat.tensorflow()
        if tf.executing_eagerly():
            raise RuntimeError("tensors of an input function of arrays are of a graph, and this is eager execution")
        return tf.compat.v1.data.make_one_shot_iterator(made()).get_next()

    input_fn.dataset = made  # type: ignore[attr-defined]
    return input_fn


def pandas_input_fn(
    x: Any, y: Any = None, batch_size: int = 128, num_epochs: int | None = 1, shuffle: bool | None = None,
    queue_capacity: int = 1000, num_threads: int = 1, target_column: str = "target",
) -> Callable[[], Any]:  # fmt: skip
    """Return an input function of a data frame: features by the names of its columns. See `numpy_input_fn`.

    Args:
        x: a `pandas.DataFrame`.
        y: a `pandas.Series`, a `DataFrame`, or None.
        target_column: has no meaning here.
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
        for one in value.values():
            yield from _leaves(one)
    else:
        yield value


def _arrays(value: Any) -> Any:
    """Arrays that TensorFlow takes: a column of words is one of objects in pandas."""
    if isinstance(value, Mapping):
        return {name: _arrays(one) for name, one in value.items()}
    made = np.asarray(value)
    return made.astype(str) if made.dtype == object else made
