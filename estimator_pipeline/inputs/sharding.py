"""The records that each input pipeline reads under each shard policy.

An *input pipeline* is one call of an `input_fn`, one per worker. It feeds the worker's `local_replicas` devices,
distributing its batches to them in turn. A *part* is a file (or, for arrays, all data).

The policies and their guarantees:

- ``data``: by record. One stream for all; each pipeline takes its slice of each global batch. The records of a
  step do not depend on the number of workers.
- ``file``: each pipeline reads only its files, in a separate order. The records of a step are still a function of
  the seed and the step, for one number of workers; a different number shards the files differently.
- ``hint``: by record, sharded by TensorFlow: the dataset has `SHARD_HINT` instead of a worker's index, and
  `Strategy.experimental_distribute_dataset` replaces it in each worker. Pipeline p of P takes each P-th position of
  the stream, starting at p, so that a step reads the same records as under ``data``.
- ``off``: each pipeline reads everything, in the same order or (``worker_seeds="distinct"``) in different orders.

This module is on floor 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sampler import (
    IndexSampler,
    check_global_batch,
    derive_seed,
    eval_slice,
    even_split,
    records_at,
    split_files,
    steps_per_epoch,
)
from estimator_pipeline.utils.fixes import fix

__all__ = ["EvalShards", "ShardOptions", "TrainShards", "check_policy", "choose_policy", "eval_shards", "train_shards"]

POLICIES = ("auto", "file", "data", "hint", "off")


@dataclass(frozen=True)
class ShardOptions:
    """The number of pipelines and replicas, as in an InputContext.

    Args:
        num_pipelines: Input pipelines in the job (workers).
        pipeline: Which of them this is.
        num_replicas: Replicas that step together, over all pipelines.
        asynchronous: Whether the pipelines step independently (parameter servers); `num_replicas` then counts
            only this pipeline's replicas, as in TensorFlow's parameter-server strategy.

    Raises:
        InputError: The numbers are inconsistent.
    """

    num_pipelines: int = 1
    pipeline: int = 0
    num_replicas: int = 1
    asynchronous: bool = False

    def __post_init__(self) -> None:
        good = 0 <= self.pipeline < self.num_pipelines and self.num_replicas >= 1
        if good and not self.asynchronous:
            good = self.num_replicas % self.num_pipelines == 0
        if not good:
            raise InputError(
                "The numbers of an input context are inconsistent",
                code="argument/bad-value",
                found=f"pipeline {self.pipeline} of {self.num_pipelines}, {self.num_replicas} replicas",
                hint="give each worker the same number of devices, and a valid pipeline id",
            )

    @property
    def local(self) -> int:
        """Replicas that this pipeline feeds."""
        return self.num_replicas if self.asynchronous else self.num_replicas // self.num_pipelines


@dataclass(frozen=True)
class TrainShards:
    """The records that one pipeline reads in training.

    Attributes:
        policy: "data", "file", "hint" or "off"; never "auto".
        why: The reason for the policy.
        replicas: The pipeline and its replicas.
        batch: Records in the batch of one replica.
        sampler: The order of the records of `parts`, whose ids count from 0 within them.
        parts: Indices of the parts that this pipeline opens; None for all.
        full_steps: Steps with full batches; None for a stream without an end.
        tail_steps: Steps with smaller batches after them (a finite stream that keeps its remainder).
        remainder: Records, over all pipelines, that do not fill full batches on every pipeline.
    """

    policy: str
    why: str
    replicas: ShardOptions
    batch: int
    sampler: IndexSampler
    parts: tuple[int, ...] | None
    full_steps: int | None
    tail_steps: int
    remainder: int

    def first_step(self, start_step: int) -> int:
        """Return this pipeline's step at the global step `start_step`.

        Asynchronous workers increment a common global step, so that each has made about its share of it.
        """
        return start_step // self.replicas.num_pipelines if self.replicas.asynchronous else start_step

    def ids(self, step: int, count: int = 1) -> np.ndarray:
        """Return the record ids (within `parts`) of `count` steps from `step` on.

        Returns:
            int64 array of shape (count * replicas.local, batch): one row per batch, in order.
        """
        share = self.replicas.local * self.batch
        stride, offset = share, 0
        if self.policy == "data":
            stride, offset = share * self.replicas.num_pipelines, share * self.replicas.pipeline
        starts = np.arange(step, step + count, dtype=np.int64) * stride + offset
        positions = starts[:, np.newaxis] + np.arange(share, dtype=np.int64)
        if self.policy == "hint":
            positions = positions * self.replicas.num_pipelines + self.replicas.pipeline
        return records_at(self.sampler, positions).reshape(count * self.replicas.local, self.batch)

    def tail_ids(self, start_step: int = 0) -> list[np.ndarray]:
        """Return the ids of the batches after the full ones, from step `start_step` on; their sizes may differ."""
        if not self.tail_steps or self.full_steps is None or self.sampler.total is None:
            return []
        local, pipelines, full = self.replicas.local, self.replicas.num_pipelines, self.full_steps
        if self.policy == "data":
            start = full * local * self.batch * pipelines
            pieces, first = local * pipelines, local * self.replicas.pipeline
        else:
            start = full * local * self.batch
            pieces, first = local * self.tail_steps, 0
        rest = self.sampler.total - start
        batches = []
        for index in range(local * self.tail_steps):
            if full + index // local < start_step:
                continue
            cut = even_split(rest, pieces, first + index)
            positions = np.arange(start + cut.start, start + cut.stop, dtype=np.int64)
            batches.append(records_at(self.sampler, positions))
        return batches


@dataclass(frozen=True)
class EvalShards:
    """The records that one pipeline reads in evaluation; all pipelines together read each record exactly once.

    Every pipeline returns the same number of batches, so that none waits for a pipeline that has ended. The batches
    are as even in size as possible, and not larger than requested: an Estimator averages the losses of batches
    without weights, and with even batches that is the mean over the records. A batch is empty only if there are
    fewer records than batches.

    Attributes:
        policy: "data" or "file".
        replicas: The pipeline and its replicas.
        batch: The maximum number of records in the batch of one replica.
        parts: Indices of the parts that this pipeline opens; None for all.
        start: The first of its record ids, within `parts`.
        records: How many it reads.
        steps: Steps; each is `replicas.local` batches.
    """

    policy: str
    replicas: ShardOptions
    batch: int
    parts: tuple[int, ...] | None
    start: int
    records: int
    steps: int

    @property
    def num_batches(self) -> int:
        """Batches of this pipeline."""
        return self.steps * self.replicas.local

    def ids(self, index: int) -> np.ndarray:
        """Return the record ids of batch `index` of this pipeline; int64."""
        cut = even_split(self.records, self.num_batches, index)
        return np.arange(self.start + cut.start, self.start + cut.stop, dtype=np.int64)


def choose_policy(
    policy: str, part_records: Sequence[int] | None, num_pipelines: int, in_memory: bool
) -> tuple[str, str]:
    """Resolve "auto" to a policy with its reason, and check an explicit policy.

    Args:
        policy: One of POLICIES.
        part_records: Records in each file of the data; None for data without files (arrays).
        num_pipelines: Input pipelines.
        in_memory: Whether the data is held in memory.

    Returns:
        "file", "data", "hint" or "off", and the reason.

    Raises:
        InputError: The policy is unknown, or cannot be applied.
    """
    check_policy(policy)
    if policy == "file":
        if part_records is None:
            raise InputError(
                "shard_policy='file' needs data in files",
                code="data/cannot-shard",
                found="arrays in memory, or a file for each record",
                hint="use shard_policy='data' or 'auto'",
            )
        split_files(part_records, num_pipelines)  # raises with the counts and the hint
        return "file", "set explicitly"
    if policy != "auto":
        return policy, "set explicitly"
    if in_memory:
        return "data", "the data is held in memory, so that any record can be read at no cost"
    return "data", "any record can be read by its number, so that any number of workers can resume"


def check_policy(policy: str) -> None:
    """Reject an unknown policy.

    Raises:
        InputError: The policy is not one of POLICIES.
    """
    if policy not in POLICIES:
        raise InputError(
            "An unknown shard policy",
            code="argument/unknown-name",
            found=f"shard_policy={policy!r}",
            hint=f"use one of {', '.join(POLICIES)}",
        )


def train_shards(
    part_records: Sequence[int],
    replicas: ShardOptions,
    *,
    global_batch: int,
    sampler: IndexSampler,
    policy: str,
    why: str = "set explicitly",
    worker_seeds: str = "same",
    merge_remainder: bool = False,
) -> TrainShards:
    """Return the records that one pipeline reads in training.

    Args:
        part_records: Records in each part.
        replicas: The pipeline and its replicas.
        global_batch: Records per step over all replicas (of this worker only, if workers are asynchronous).
        sampler: The order of all records. The blocks of a two-level order are the parts.
        policy: "data", "file", "hint" or "off".
        why: The reason for the policy.
        worker_seeds: "same", or "distinct" for a different seed in each pipeline; requires the policy "off".
        merge_remainder: See `InputOptions`.

    Returns:
        The plan.

    Raises:
        InputError: The batch or the policy doesn't fit.
    """
    batch = check_global_batch(global_batch, replicas.num_replicas)
    if worker_seeds not in ("same", "distinct"):
        raise InputError(
            "Unknown worker_seeds",
            code="argument/unknown-name",
            found=f"worker_seeds={worker_seeds!r}",
            hint="use 'same' or 'distinct'",
        )
    if worker_seeds == "distinct" and policy != "off":
        raise InputError(
            "Distinct seeds need every worker to read all the data",
            code="argument/conflict",
            found=f"worker_seeds='distinct' with the shard policy {policy!r}",
            hint="add shard_policy='off', or leave worker_seeds at 'same'",
        )
    share, parts = replicas.local * batch, None
    if policy == "file":
        shares = split_files(part_records, replicas.num_pipelines)
        totals = [sum(part_records[index] for index in mine) for mine in shares]
        if min(totals) == 0:
            empty = totals.index(0)
            raise InputError(
                f"Input pipeline {empty} of {replicas.num_pipelines} would get files without any record",
                code="data/cannot-shard",
                found=f"{sum(map(bool, part_records))} of {len(part_records)} files hold records",
                hint="use "
                + fix(python="shard_policy='data'", yaml="input: {shard_policy: data}")
                + ", or write at least one file with records a worker",
            )
        parts = shares[replicas.pipeline]
        blocks = tuple(part_records[index] for index in parts) if sampler.block_records is not None else None
        sampler = replace(sampler, num_records=totals[replicas.pipeline], block_records=blocks)
    else:
        totals = [sampler.num_records]
        if policy == "off" and worker_seeds == "distinct":
            sampler = replace(sampler, seed=derive_seed(sampler.seed, replicas.pipeline))

    full, tail, remainder = None, 0, 0
    if sampler.epochs is not None:
        per_step = share * replicas.num_pipelines if policy in ("data", "hint") else share
        totals = [count * sampler.epochs for count in totals]
        full = min(steps_per_epoch(count, per_step).full for count in totals)
        rests = [count - full * per_step for count in totals]
        remainder = sum(rests)
        if not sampler.drop_remainder:
            tail = max(-(-rest // per_step) for rest in rests)
        if merge_remainder and full and 0 < 2 * remainder < per_step:
            full, remainder = full - 1, remainder + per_step
        if merge_remainder and 0 < remainder < replicas.num_replicas:
            raise InputError(
                f"{remainder} records cannot be shared by {replicas.num_replicas} replicas: each needs one",
                code="data/cannot-shard",
                found=f"a global batch of {global_batch} records",
                hint="add records, or train on fewer workers",
            )
    return TrainShards(policy, why, replicas, batch, sampler, parts, full, tail, remainder)


def eval_shards(part_records: Sequence[int], replicas: ShardOptions, *, global_batch: int, policy: str) -> EvalShards:
    """Return the records that one pipeline reads in evaluation.

    Args:
        part_records: Records in each part.
        replicas: The pipeline and its replicas.
        global_batch: Records per step over all replicas.
        policy: With "file" each pipeline opens only its files; any other policy splits the records into even
            ranges. "off" does not apply here: each record is evaluated once.

    Returns:
        The plan.

    Raises:
        InputError: The batch or the policy doesn't fit.
    """
    batch = check_global_batch(global_batch, replicas.num_replicas)
    share = replicas.local * batch
    if policy == "file":
        shares = split_files(part_records, replicas.num_pipelines)
        totals = [sum(part_records[index] for index in mine) for mine in shares]
        steps = max(-(-total // share) for total in totals)
        mine = shares[replicas.pipeline]
        return EvalShards("file", replicas, batch, mine, 0, totals[replicas.pipeline], steps)
    total = sum(part_records)
    steps = -(-total // (share * replicas.num_pipelines))
    cut = eval_slice(total, replicas.pipeline, replicas.num_pipelines)
    return EvalShards("data", replicas, batch, None, cut.start, cut.stop - cut.start, steps)
