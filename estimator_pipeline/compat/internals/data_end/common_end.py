"""Where the data of one worker end first: all workers of a synchronous training stop after the last step for which each
has a batch.

A step of MultiWorkerMirroredStrategy is one of all workers: whoever has no batch for it leaves the others waiting for
his gradients, for ever. Before the first step the workers tell each other how many batches each has, as `cardinality()`
knows it: where all know it, or have data without an end, so is the last step, and training costs nothing more.

Where one does not know (files of records, a filter), with each batch goes whether another round follows it (the dataset
is read one round ahead), and with each step the workers sum up who has one: a collective of one number a worker, which
nobody waits for before the step's end. Where one has none the step is the last one, on all of them, and the checkpoint
is written together as ever. That is asked before the first step in any case: a shard may be empty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline.utils.logger import logger

__all__ = ["CommonEnd", "Following", "told_end", "with_following"]


def with_following(dataset: Any, replicas: int) -> Any:
    """The same elements, each as (element, whether there is one `replicas` after it), behind as many empty ones.

    The empty ones say whether there are first ones. Reads as far ahead.

    Args:
        dataset: a `tf.data.Dataset`.
        replicas: of this worker, which take an element each for a step.

    Returns:
        The dataset, or None where its elements are of a kind that cannot be carried so (datasets in a dataset).
    """
    import tensorflow as tf

    untouched = tf.autograph.experimental.do_not_convert
    spec = dataset.element_spec
    if not all(_can_be_empty(leaf) for leaf in tf.nest.flatten(spec)):
        return None

    # Bare tensors: `scan` does not take optionals in what it holds.
    def bare(element: Any) -> Any:
        return tf.nest.flatten(tf.experimental.Optional.from_value(element), expand_composites=True)[0]

    def optional(tensor: Any) -> Any:
        return tf.nest.pack_sequence_as(tf.OptionalSpec(spec), [tensor], expand_composites=True)

    def some(*element: Any) -> Any:
        # `map` hands over a tuple in parts.
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
    """A value of a spec whose sizes are 0 where it does not tell them."""
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
    """Which workers have a batch for another step, as tensors of the graph.

    Args:
        strategy: the training strategy, in whose scope this is made.
        follows: of each local replica whether it has one; bool [].
        batches: how many this worker has, as `Dataset.cardinality` has it; int64 [].
        worker: the number of this worker.
        workers: how many there are.

    Attributes:
        counts: of each worker how many of its replicas have one, float32 [workers]; a collective.
        replicas: of a worker.
        batches: of each worker how many batches each of its replicas has, as `cardinality` has it, int64 [workers]; a
            collective.
    """

    def __init__(self, strategy: Any, follows: Any, batches: Any, *, worker: int, workers: int) -> None:
        import tensorflow as tf

        replicas = len(strategy.extended.worker_devices)
        # Sums of numbers of which all workers but one have 0; UNKNOWN_CARDINALITY is the least there is.
        least = tf.data.UNKNOWN_CARDINALITY

        def of_replica(has_one: Any) -> Any:
            one_of = functools.partial(tf.one_hot, worker, workers)
            share = tf.where(batches < 0, batches, batches // replicas) - least
            return one_of(dtype=tf.float32) * tf.cast(has_one, tf.float32), one_of(dtype=tf.int64) * share

        self.replicas = replicas
        # In a scope: these operations come before the model, and a layer of the name of one of them, such as "concat",
        # would have variables of other names than in an evaluation.
        with tf.compat.v1.name_scope("estimator_pipeline_common_end"):
            counts, shares = strategy.extended.call_for_each_replica(of_replica, args=(follows,))
            self.counts = strategy.reduce(tf.distribute.ReduceOp.SUM, counts, axis=None)
            self.batches = strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None) // replicas + least


class CommonEnd:
    """One training of one worker.

    Args:
        strategy: the training strategy.
        tasks: the names of all training tasks, in the order of their pipelines.
        on_end: called when training stops because data ended.
        last: whether training stops at a global step whatever the data.
        starts_within: whether training may begin behind the first batch, so that how many there are tells no end.
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
        # Of the graph that is being built, once it has its input.
        self.following: Any = None

    def watched(self, found: Any, context: Any) -> Any:
        """What an input function gives, so that it tells its end.

        Args:
            found: a dataset; anything else stays as it is.
            context: its `tf.distribute.InputContext`.
        """
        import tensorflow as tf

        if not isinstance(found, tf.data.Dataset):
            return found
        made = with_following(found, len(self._strategy.extended.worker_devices))
        if made is None:
            logger.info("Elements of this dataset cannot be read ahead: %s", found.element_spec)
            return found
        self._worker = context.input_pipeline_id
        self._batches = found.cardinality()
        return made

    def next_of(self, iterator: Any) -> Any:
        """The iterator's next element, as the model gets it. To be called once, in the strategy's scope."""
        element = iterator.get_next()
        if self._worker is None:
            return element
        element, follows = element
        self.following = Following(
            self._strategy, follows, self._batches, worker=self._worker, workers=len(self._tasks)
        )
        return element

    def hook(self) -> Any:
        """A session hook that stops training; to come after the one that initializes the iterator."""
        import tensorflow

        v1: Any = tensorflow.compat.v1
        base: Any = v1.train.SessionRunHook
        end = self

        class CommonEndHook(base):
            def __init__(self) -> None:
                # Whether the data of a worker may end; how many steps all have batches for, where that is known.
                self.watching, self._most = False, None
                self._made = 0

            @property
            def following(self) -> Following | None:
                return end.following

            def begin(self):
                self._global_step = v1.train.get_global_step()

            def after_create_session(self, session, coord):
                if end.following is None:
                    return
                counts, batches = session.run([end.following.counts, end.following.batches])
                self._batches, self._made = list(batches), 0
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
                self._made += 1
                if not self.watching:
                    return
                if self._most is None:
                    lacking = [count < end.following.replicas for count in run_values.results]
                else:
                    lacking = [0 <= count <= self._made for count in self._batches]
                if self.ends(run_context.session, lacking):
                    run_context.request_stop()

            def steps_passed(self, count):
                """It looks at the steps of a longer call when that has ended."""

            def ends(self, session: Any, lacking: Sequence[bool]) -> bool:
                """Whether no step can follow; tells why.

                Args:
                    session: to read the global step.
                    lacking: of each worker whether it has no batch.
                """
                if not any(lacking):
                    return False
                step = int(session.run(self._global_step))
                if end._worker == 0 and not all(lacking) and not end._last(step):
                    logger.warning("%s", told_end(end._tasks, lacking, step))
                end._on_end()
                return True

        return CommonEndHook()


def told_end(tasks: Sequence[str], lacking: Sequence[bool], step: int) -> str:
    """The warning that training stops because the data of some workers ended.

    Args:
        tasks: names of all.
        lacking: which have no data for another step.
        step: the global step.
    """
    ended = [task for task, lacks in zip(tasks, lacking, strict=True) if lacks]
    others = [task for task, lacks in zip(tasks, lacking, strict=True) if not lacks]
    where = f"ended after step {step}" if step else "have no batch for the first step"
    return (
        f"the training data of {', '.join(ended)} {where}, and {', '.join(others)} had more: all tasks stop there. "
        "Give every worker as many batches, or repeat() the data and set max_steps"
    )
