"""Reading the data of an `input_fn` like an Estimator, with an identity for each record."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from estimator_pipeline.inputs.ledger.hashing import Sparse, fingerprints
from estimator_pipeline.testing.report import ComplianceFinding

__all__ = ["Leaf", "Stream", "build", "first_batch", "leaves", "read", "rows_of", "running"]


@dataclass(frozen=True)
class Leaf:
    """One tensor of the structure that an input_fn returns.

    Attributes:
        path: Such as `features['image']` or `labels`.
        dtype: The dtype's name.
        shape: The shape of a batch; None: the rank is unknown.
    """

    path: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def of_record(self) -> tuple[str, str, tuple[int | None, ...] | None]:
        """The properties that must be the same in every call: all but the batch size."""
        return self.path, self.dtype, self.shape if self.shape is None else self.shape[1:]

    def __str__(self) -> str:
        return f"{self.path}: {self.dtype} {'of unknown rank' if self.shape is None else list(self.shape)}"


@dataclass
class Stream:
    """The data of one call of an input_fn.

    Attributes:
        who: The pipeline, for messages.
        spec: The structure of the data.
        batches: The records' identities, batch by batch, in the order of reading.
        sizes: The number of records of each batch.
        ended: Whether the data ended; otherwise reading was stopped.
        whole: Whether all data was presumably read at least once.
        declared: The dataset's declared number of batches; -1: infinite; None: unknown.
        uneven: A description of the first batch whose tensors have different numbers of rows.
        texts: Identity -> the beginning of the record's content.
        last_new: The number of records that were read up to the last new one.
    """

    who: str
    spec: tuple[Leaf, ...] = ()
    batches: list[list[Hashable]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    ended: bool = False
    whole: bool = False
    declared: int | None = None
    uneven: str | None = None
    texts: dict[Hashable, str] = field(default_factory=dict)
    last_new: int = 0

    @property
    def records(self) -> list[Hashable]:
        return [record for batch in self.batches for record in batch]

    @property
    def counts(self) -> Counter[Hashable]:
        return Counter(self.records)

    @property
    def static_batch(self) -> int | None:
        """The batch size if it is fixed (`drop_remainder=True`)."""
        sizes = {leaf.shape[0] for leaf in self.spec if leaf.shape}
        return sizes.pop() if len(sizes) == 1 else None


def split(tf: Any, result: Any) -> tuple[Any, Any]:
    """Split the result of an input_fn or a dataset's element into (features, labels); labels may be None."""
    if isinstance(result, (tuple, list)):
        if len(result) != 2:
            raise ComplianceFinding(
                f"a {type(result).__name__} of {len(result)} values was returned",
                hint="return features, or the pair (features, labels)",
            )
        return result[0], result[1]
    return result, None


def leaves(tf: Any, value: Any, path: str) -> list[tuple[str, Any]]:
    """Flatten a nested structure into (path, tensor or array); sparse and ragged values are one leaf."""
    single = (tf.compat.v1.SparseTensorValue, tf.compat.v1.ragged.RaggedTensorValue)
    if isinstance(value, Mapping):
        return [leaf for name in sorted(value, key=str) for leaf in leaves(tf, value[name], f"{path}[{name!r}]")]
    if isinstance(value, (tuple, list)) and not isinstance(value, single):
        return [leaf for i, part in enumerate(value) for leaf in leaves(tf, part, f"{path}[{i}]")]
    return [(path, value)]


def _leaves_of_pair(tf: Any, pair: tuple[Any, Any]) -> list[tuple[str, Any]]:
    features, labels = pair
    return leaves(tf, features, "features") + ([] if labels is None else leaves(tf, labels, "labels"))


def build(tf: Any, call: Callable[[], Any]) -> tuple[Any, Any, tuple[Leaf, ...], int | None]:
    """Call an input_fn in the current graph.

    Returns:
        (features, labels, structure, declared number of batches). The iterator is initialised by the session.

    Raises:
        ComplianceFinding: Estimator cannot use the result.
    """
    with tf.compat.v1.device("/cpu:0"):
        result = call()
    declared = None
    if isinstance(result, tf.data.Dataset):
        size = tf.get_static_value(tf.data.experimental.cardinality(result))
        if size is None:
            with tf.compat.v1.Session() as session:
                size = session.run(tf.data.experimental.cardinality(result))
        declared = None if size == tf.data.experimental.UNKNOWN_CARDINALITY else int(size)
        # The autotune thread of tf.data can delay the close of a session by seconds.
        options = tf.data.Options()
        options.autotune.enabled = False
        iterator = tf.compat.v1.data.make_initializable_iterator(result.with_options(options))
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        result = iterator.get_next()
    pair = split(tf, result)
    flat = _leaves_of_pair(tf, pair)
    kinds = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)
    other = [(path, leaf) for path, leaf in flat if not isinstance(leaf, kinds)]
    wrong = [f"{path} is {'None' if leaf is None else type(leaf).__name__}" for path, leaf in other]
    if wrong or not flat:
        raise ComplianceFinding(
            "; ".join(wrong) or "no tensor was returned",
            hint="return a tf.data.Dataset of features or (features, labels), or the tensors of one batch",
        )
    if isinstance(pair[0], Mapping) and not all(isinstance(name, str) for name in pair[0]):
        raise ComplianceFinding(f"the features have the names {list(pair[0])}", hint="use strings as names of features")
    spec = tuple(
        Leaf(path, leaf.dtype.name, tuple(leaf.shape.as_list()) if leaf.shape.rank is not None else None)
        for path, leaf in flat
    )
    return *pair, spec, declared


@contextlib.contextmanager
def running(tf: Any) -> Iterator[Any]:
    """Open a session with all variables and tables initialized and queue runners started."""
    v1 = tf.compat.v1
    config = v1.ConfigProto()
    # For a few runs, optimizing the graph takes longer than running it. tf.data has a separate optimizer.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with v1.Session(config=config) as session:
        session.run((v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()))
        coordinator = tf.train.Coordinator()
        queues = bool(v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS))
        threads = v1.train.start_queue_runners(session, coordinator) if queues else []
        try:
            yield session
        finally:
            coordinator.request_stop()
            # Threads that wait for space in a queue wake up when the session closes.
            coordinator.join(threads, stop_grace_period_secs=5, ignore_live_threads=True)


def first_batch(tf: Any, call: Callable[[], Any], *, seed: int | None) -> tuple[Any, Any, tuple[Leaf, ...]]:
    """Return (features, labels, structure) of the first batch, as arrays."""
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(seed)
        features, labels, spec, _ = build(tf, call)
        fetches = {"features": features} if labels is None else {"features": features, "labels": labels}
        with running(tf) as session:
            values = session.run(fetches)
    return values["features"], values.get("labels"), spec


def read(
    tf: Any,
    call: Callable[[], Any],
    *,
    who: str,
    steps: int,
    seed: int | None,
    key: Callable[[Any, Any], Hashable] | None,
    to_the_end: bool,
) -> Stream:
    """Call an input_fn in a new graph and read at most `steps` batches.

    Args:
        tf: The tensorflow module.
        call: Calls the input_fn with its arguments.
        who: The pipeline, for messages.
        steps: The largest number of batches to read.
        seed: The graph seed, which Estimator takes from its RunConfig.
        key: Returns the identity of a record; None: its content.
        to_the_end: Whether to continue after every record was read repeatedly (evaluation).
    """
    stream = Stream(who)
    with tf.Graph().as_default() as graph:
        tf.compat.v1.set_random_seed(seed)
        tf.compat.v1.train.create_global_step(graph)
        features, labels, stream.spec, stream.declared = build(tf, call)
        fetches = {"features": features} if labels is None else {"features": features, "labels": labels}
        if stream.declared == 0:
            stream.ended = stream.whole = True
            return stream
        if to_the_end and stream.declared == -1:
            steps = min(steps, 10)  # The data is endless; a few batches are enough for the checks.
        with running(tf) as session:
            while len(stream.batches) < steps:
                try:
                    values = session.run(fetches)
                except tf.errors.OutOfRangeError:
                    stream.ended = stream.whole = True
                    break
                _add(tf, stream, values["features"], values.get("labels"), key)
                if not to_the_end and _seen_again(stream):
                    stream.whole = True
                    break
    return stream


def _seen_again(stream: Stream) -> bool:
    """Whether endless data has repeated often enough that no new records are expected.

    That is after three times as many records as different ones, with no new record in the last third. If pipelines take
    turns in a common order, a pipeline reads its last new record very late, so six times as many are enough. The
    minimum of ten batches is for data that starts with many records of equal content.
    """
    total, different = sum(stream.sizes), len(stream.texts)
    if len(stream.batches) < 10 or total < 3 * different:
        return False
    return total >= 1.5 * stream.last_new or total >= 6 * different


def _add(tf: Any, stream: Stream, features: Any, labels: Any, key: Any) -> None:
    flat = _leaves_of_pair(tf, (features, labels))
    rows = {path: rows_of(tf, leaf) for path, leaf in flat}
    if stream.uneven is None and (len(set(rows.values())) > 1 or None in rows.values()):
        details = ", ".join(
            f"{path} has {'no batch dimension' if n is None else f'{n} rows'}" for path, n in rows.items()
        )
        stream.uneven = f"batch {len(stream.batches)} of {stream.who}: {details}"
    prints = fingerprints([_leaf(tf, leaf) for _, leaf in flat]).tolist()
    batch: list[Hashable] = []
    for row, identity in enumerate(prints):
        if key is not None:
            identity = _hashable(key(_row(tf, features, row), None if labels is None else _row(tf, labels, row)))
        batch.append(identity)
        if identity not in stream.texts:
            stream.texts[identity] = _text(tf, flat, row) if key is None else f"key {identity!r}"
            stream.last_new = sum(stream.sizes) + row + 1
    stream.batches.append(batch)
    stream.sizes.append(len(batch))


def _leaf(tf: Any, leaf: Any) -> Any:
    """Return a value in a form that `fingerprints` takes."""
    if isinstance(leaf, tf.compat.v1.SparseTensorValue):
        return Sparse(leaf.indices, leaf.values, leaf.dense_shape)
    if isinstance(leaf, tf.compat.v1.ragged.RaggedTensorValue):
        return np.array([repr(row) for row in leaf.to_list()], dtype=object)
    return np.asarray(leaf)


def rows_of(tf: Any, leaf: Any) -> int | None:
    if isinstance(leaf, tf.compat.v1.SparseTensorValue):
        return int(leaf.dense_shape[0]) if len(leaf.dense_shape) else None
    if isinstance(leaf, tf.compat.v1.ragged.RaggedTensorValue):
        return len(leaf.row_splits) - 1
    shape = np.shape(leaf)
    return shape[0] if shape else None


def _row(tf: Any, value: Any, row: int) -> Any:
    """Return one record of a batch, in the form that `key` gets."""
    if isinstance(value, Mapping):
        return {name: _row(tf, part, row) for name, part in value.items()}
    if isinstance(value, tf.compat.v1.SparseTensorValue):
        return value.values[value.indices[:, 0] == row]
    if isinstance(value, tf.compat.v1.ragged.RaggedTensorValue):
        return value.to_list()[row]
    if isinstance(value, (tuple, list)):
        return tuple(_row(tf, part, row) for part in value)
    return value[row] if np.shape(value) else value


def _hashable(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        return _hashable(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(part) for part in value)
    return value


def _text(tf: Any, flat: list[tuple[str, Any]], row: int) -> str:
    """Format a record for a message, labels first because they are short."""
    parts = []
    for path, leaf in sorted(flat, key=lambda pair: not pair[0].startswith("labels")):
        value = _row(tf, leaf, row)
        elements = np.ravel(np.asarray(value, dtype=object)).tolist()
        shown = ", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in elements[:4])
        parts.append(f"{path} = {shown}{', …' if len(elements) > 4 else ''}")
        if len(parts) == 3:
            break
    return "; ".join(parts)
