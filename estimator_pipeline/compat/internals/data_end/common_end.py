"""Common end of synchronous training: all workers stop after the last step for which each has a batch.

All workers take part in a step of MultiWorkerMirroredStrategy: if one has no batch, the others wait for its gradients
forever. Before the first step the workers exchange their numbers of batches, from `cardinality()`. If all are known or
infinite, so is the last step, and training has no overhead.

If one is unknown (record files, a filter), each batch has a flag whether the next step has data (the dataset is read
one step ahead), and in each step the workers sum these flags: a collective of one number per worker, which delays only
the end of the step. If a worker has no data, the step is the last one on all workers, which write the checkpoint
together as usual. The flags are also summed before the first step, since a shard may be empty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline.utils.logger import logger

__all__ = ["CommonEnd", "Following", "end_warning", "with_following"]


def with_following(dataset: Any, replicas: int) -> Any:
    """Add to each element the flag whether there is an element `replicas` later.

    The result starts with `replicas` empty elements, whose flags are those of the first elements. It reads `replicas`
    elements ahead.

    Args:
        dataset: A `tf.data.Dataset`.
        replicas: The number of replicas of this worker, each of which takes an element per step.

    Returns:
        The dataset of (element, flag), or None if its elements cannot be carried in this way (nested datasets).
    """
    import tensorflow as tf

    untouched = tf.autograph.experimental.do_not_convert
    spec = dataset.element_spec
    if not all(_can_be_empty(leaf) for leaf in tf.nest.flatten(spec)):
        return None

    # Plain tensors: the state of `scan` cannot have optionals.
    def bare(element: Any) -> Any:
        return tf.nest.flatten(tf.experimental.Optional.from_value(element), expand_composites=True)[0]

    def optional(tensor: Any) -> Any:
        return tf.nest.pack_sequence_as(tf.OptionalSpec(spec), [tensor], expand_composites=True)

    def some(*element: Any) -> Any:
        # `map` unpacks tuples.
        return bare(element if type(spec) is tuple else element[0])

    def held_back(held: tuple[Any, ...], coming: Any) -> Any:
        is_one, empty = optional(held[0]).has_value(), lambda: bare(tf.nest.map_structure(_empty, spec))
        element = optional(tf.cond(is_one, lambda: held[0], empty)).get_value()
        return (*held[1:], coming), (element, optional(coming).has_value())

    (nothing,) = tf.nest.flatten(tf.experimental.Optional.empty(spec), expand_composites=True)
    ended = tf.data.Dataset.from_tensors(nothing).repeat(replicas)
    return dataset.map(untouched(some)).concatenate(ended).scan((nothing,) * replicas, untouched(held_back))


def _can_be_empty(spec: Any) -> bool:
    import tensorflow as tf

    if spec.value_type is type(None):
        return True
    kinds = (tf.TensorSpec, tf.SparseTensorSpec, tf.RaggedTensorSpec)
    return isinstance(spec, kinds) and spec.dtype not in (tf.variant, tf.resource)


def _empty(spec: Any) -> Any:
    """Return an empty value of a spec, with size 0 for unknown dimensions."""
    import tensorflow as tf

    if spec.value_type is type(None):
        return None
    sizes = [size or 0 for size in spec.shape] if spec.shape.rank is not None else [0]
    if isinstance(spec, tf.SparseTensorSpec):
        indices = tf.zeros([0, len(sizes)], tf.int64)
        return tf.SparseTensor(indices, tf.zeros([0], spec.dtype), tf.constant(sizes, tf.int64))
    if isinstance(spec, tf.RaggedTensorSpec):
        rows, splits = sizes[0], []
        for size in sizes[1 : 1 + spec.ragged_rank]:
            splits.append(tf.range(rows + 1, dtype=spec.row_splits_dtype) * size)
            rows *= size
        values = tf.zeros([rows, *sizes[1 + spec.ragged_rank :]], spec.dtype)
        return tf.RaggedTensor.from_nested_row_splits(values, splits)
    return tf.zeros(sizes, spec.dtype)


class Following:
    """The workers that have a batch for the next step, as tensors of the graph.

    Args:
        strategy: The training strategy; this must be created in its scope.
        follows: Whether each local replica has a next batch; bool [].
        batches: This worker's number of batches, as `Dataset.cardinality` returns it; int64 [].
        worker: The index of this worker.
        workers: The number of workers.

    Attributes:
        counts: The number of replicas with a next batch for each worker, float32 [workers]; a collective.
        replicas: The number of replicas of a worker.
        batches: The number of batches per replica for each worker, as `cardinality` returns it, int64 [workers]; a
            collective.
    """

    def __init__(self, strategy: Any, follows: Any, batches: Any, *, worker: int, workers: int) -> None:
        import tensorflow as tf

        replicas = len(strategy.extended.worker_devices)
        # Sums in which all workers but one have 0; UNKNOWN_CARDINALITY is the smallest value.
        least = tf.data.UNKNOWN_CARDINALITY

        def of_replica(has_one: Any) -> Any:
            one_of = functools.partial(tf.one_hot, worker, workers)
            share = tf.where(batches < 0, batches, batches // replicas) - least
            return one_of(dtype=tf.float32) * tf.cast(has_one, tf.float32), one_of(dtype=tf.int64) * share

        self.replicas = replicas
        # In a name scope: these operations precede the model, and a layer with the same name as one of them, such as
        # "concat", would have different variable names than in an evaluation.
        with tf.compat.v1.name_scope("estimator_pipeline_common_end"):
            counts, shares = strategy.extended.call_for_each_replica(of_replica, args=(follows,))
            self.counts = strategy.reduce(tf.distribute.ReduceOp.SUM, counts, axis=None)
            self.batches = strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None) // replicas + least


class CommonEnd:
    """The common end of one training, on one worker.

    Args:
        strategy: The training strategy.
        tasks: The names of all training tasks, in the order of their pipelines.
        on_end: Called when training stops because data ended.
        last: Returns whether training stops at a global step in any case.
        starts_within: Whether training may start after the first batch, so that the number of batches is unreliable.
    """

    def __init__(
        self,
        strategy: Any,
        *,
        tasks: Sequence[str],
        on_end: Callable[[], None],
        last: Callable[[int], bool],
        starts_within: bool = False,
    ) -> None:
        self._strategy, self._tasks, self._on_end, self._last = strategy, list(tasks), on_end, last
        self.starts_within = starts_within
        self._worker: int | None = None
        self._batches: Any = None
        # Set when the graph that is being built has its input.
        self.following: Any = None

    def watched(self, data: Any, context: Any) -> Any:
        """Add the flags to the dataset of an input function.

        Args:
            data: A dataset; other values are returned unchanged.
            context: Its `tf.distribute.InputContext`.
        """
        import tensorflow as tf

        if not isinstance(data, tf.data.Dataset):
            return data
        dataset = with_following(data, len(self._strategy.extended.worker_devices))
        if dataset is None:
            logger.info("Elements of this dataset cannot be read ahead: %s", data.element_spec)
            return data
        self._worker = context.input_pipeline_id
        self._batches = data.cardinality()
        return dataset

    def next_of(self, iterator: Any) -> Any:
        """Return the iterator's next element for the model; call it once, in the strategy's scope."""
        element = iterator.get_next()
        if self._worker is None:
            return element
        element, follows = element
        self.following = Following(
            self._strategy, follows, self._batches, worker=self._worker, workers=len(self._tasks)
        )
        return element

    def hook(self) -> Any:
        """Return a session hook that stops training; it must follow the hook that initializes the iterator."""
        import tensorflow

        v1: Any = tensorflow.compat.v1
        base: Any = v1.train.SessionRunHook
        end = self

        class CommonEndHook(base):
            def __init__(self) -> None:
                # Whether the data of a worker may end, and the number of steps with batches for all, if known.
                self.watching, self._most = False, None
                self._done = 0

            @property
            def following(self) -> Following | None:
                return end.following

            def begin(self):
                self._global_step = v1.train.get_global_step()

            def after_create_session(self, session, coord):
                if end.following is None:
                    return
                counts, batches = session.run([end.following.counts, end.following.batches])
                self._batches, self._done = list(batches), 0
                known = [count for count in batches if count >= 0]
                self.watching = bool(known) or tensorflow.data.UNKNOWN_CARDINALITY in batches
                if tensorflow.data.UNKNOWN_CARDINALITY not in batches and not end.starts_within:
                    self._most = min(known, default=None)
                if self.ends(session, [count < end.following.replicas for count in counts]):
                    coord.request_stop()

            def before_run(self, run_context):
                asks = self.watching and self._most is None
                return v1.train.SessionRunArgs(end.following.counts) if asks else None

            def after_run(self, run_context, run_values):
                self._done += 1
                if not self.watching:
                    return
                if self._most is None:
                    lacking = [count < end.following.replicas for count in run_values.results]
                else:
                    lacking = [0 <= count <= self._done for count in self._batches]
                if self.ends(run_context.session, lacking):
                    run_context.request_stop()

            def steps_passed(self, count):
                """Do nothing: the steps of a multi-step call are checked when it has ended."""

            def ends(self, session: Any, lacking: Sequence[bool]) -> bool:
                """Whether no further step is possible; logs the reason.

                Args:
                    session: Reads the global step.
                    lacking: Whether each worker has no batch.
                """
                if not any(lacking):
                    return False
                step = int(session.run(self._global_step))
                if end._worker == 0 and not all(lacking) and not end._last(step):
                    logger.warning("%s", end_warning(end._tasks, lacking, step))
                end._on_end()
                return True

        return CommonEndHook()


def end_warning(tasks: Sequence[str], lacking: Sequence[bool], step: int) -> str:
    """Format the warning that training stops because the data of some workers ended.

    Args:
        tasks: Names of all tasks.
        lacking: Whether each has no data for the next step.
        step: The global step.
    """
    ended = [task for task, lacks in zip(tasks, lacking, strict=True) if lacks]
    others = [task for task, lacks in zip(tasks, lacking, strict=True) if not lacks]
    where = f"ended after step {step}" if step else "have no batch for the first step"
    return (
        f"the training data of {', '.join(ended)} {where}, and {', '.join(others)} had more: all tasks stop there. "
        "Give all workers the same number of batches, or repeat() the data and set max_steps"
    )
