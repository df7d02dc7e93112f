"""Reading of a source: in memory or from disk, the shard policy, the order and the pipelines."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.sampler import IndexSampler
from estimator_pipeline.inputs.sharding import (
    EvalShards,
    ShardOptions,
    TrainShards,
    choose_policy,
    eval_shards,
    train_shards,
)
from estimator_pipeline.inputs.source import ArraySource, Source, contents, fingerprint

__all__ = ["InMemory", "Reader", "replicas_of"]


class Reader:
    """A source, whether it is held in memory, and its selected parts."""

    def __init__(self, source: Source, options: InputOptions) -> None:
        self.source = source
        self.options = options
        size = source.loaded_bytes() if not source.in_memory else 0
        self.in_memory = size is not None and (source.in_memory or size <= options.memory_limit)
        self._selected: dict[tuple[int, ...] | None, Source] = {}
        self._followed: str | None = None

    @functools.cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.source)

    @functools.cached_property
    def contents(self) -> dict[str, str]:
        return contents(self.source)

    def with_policy(self, policy: str) -> Reader:
        """See `Inputs.with_policy`."""
        if self.options.shard_policy != "auto" or self.source.part_names is None:
            return self
        other = copy.copy(self)  # The records in memory are shared.
        other._followed = policy
        return other

    def policy(self, num_pipelines: int) -> tuple[str, str]:
        """Return the shard policy and its reason."""
        if self._followed is not None:
            return self._followed, "this run began under it"
        parts = self.source.part_records if self.source.part_names is not None else None
        return choose_policy(self.options.shard_policy, parts, num_pipelines, self.in_memory)

    def sampler(self) -> IndexSampler:
        """Return the sampler of all training records."""
        options = self.options
        window = options.shuffle_window if not self.in_memory and options.shuffle else None
        return IndexSampler(
            self.source.num_records,
            seed=options.seed,
            shuffle=options.shuffle,
            epochs=options.epochs,
            drop_remainder=options.drop_remainder,
            block_records=None if window is None else self.source.part_records,
            window=window,
        )

    def train_shards(self, replicas: ShardOptions) -> TrainShards:
        policy, why = self.policy(replicas.num_pipelines)
        return train_shards(
            self.source.part_records,
            replicas,
            global_batch=self.options.global_batch_size,
            sampler=self.sampler(),
            policy=policy,
            why=why,
            worker_seeds=self.options.worker_seeds,
            merge_remainder=self.options.merge_remainder,
        )

    def eval_shards(self, replicas: ShardOptions) -> EvalShards:
        # "auto" splits evenly: a range of records is in few files, and no pipeline waits for a longer one.
        if self.options.shard_policy == "file":
            self.policy(replicas.num_pipelines)
        size = self.options.eval_batch_size or self.options.global_batch_size
        return eval_shards(self.source.part_records, replicas, global_batch=size, policy=self.options.shard_policy)

    def selected(self, parts: tuple[int, ...] | None) -> Source:
        if parts not in self._selected:
            source = self.source if parts is None else self.source.select(parts)
            self._selected[parts] = InMemory(source) if self.in_memory and not source.in_memory else source
        return self._selected[parts]


class InMemory(Source):
    """A source that is decoded into memory when its first record is read.

    It is not decoded at construction: that is within the `input_fn`, before the Estimator creates its session, and the
    first session of a process determines the number of threads for all of them.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loaded: ArraySource | None = None
        self._lock = threading.Lock()
        self.description = source.description
        self.part_names = source.part_names
        self.part_records = source.part_records
        self._specs = source.specs()
        self.raw_specs = tuple((spec.dtype.as_numpy_dtype, tuple(spec.shape[1:])) for spec in self._specs.values())

    @property
    def in_memory(self) -> bool:
        return True

    def select(self, parts: Sequence[int]) -> Source:
        return InMemory(self._source.select(parts))

    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._source.load()
        return [self._loaded.arrays[name].take(ids, axis=0) for name in self._specs]

    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._specs, raw, strict=True))

    def specs(self) -> dict[str, Any]:
        return self._specs


def replicas_of(tf: Any, context: Any) -> ShardOptions:
    """Return the shard options of an InputContext and the current strategy.

    Args:
        tf: TensorFlow.
        context: tf.distribute.InputContext, or None.

    Returns:
        The options; asynchronous under a parameter-server strategy, which counts only the replicas of one worker.
    """
    if context is None:
        return ShardOptions()
    pipelines, replicas = context.num_input_pipelines, context.num_replicas_in_sync
    kind = type(tf.distribute.get_strategy()).__name__
    asynchronous = "ParameterServer" in kind or replicas < pipelines
    return ShardOptions(pipelines, context.input_pipeline_id, replicas, asynchronous)
