"""What a plan of :mod:`estimator_pipeline.inputs.sharding` was made of, as plain values: enough to make it again.

A ledger bears these facts, so that it can be checked without the data and without the job file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.inputs.sampler import IndexSampler
from estimator_pipeline.inputs.sharding import ShardOptions, TrainShards, train_shards

__all__ = ["differences", "facts_of", "global_ids", "plan_of", "step_ids"]

# What decides who reads what, in the words of the job file and of InputOptions.
_COMPARED = ("records", "policy", "global_batch_size", "seed", "shuffle", "epochs", "drop_remainder", "worker_seeds",
             "shuffle_window")  # fmt: skip


def facts_of(
    plan: TrainShards,
    *,
    sampler: IndexSampler,
    part_records: Sequence[int],
    global_batch_size: int,
    worker_seeds: str,
    start_step: int = 0,
    what: str = "",
) -> dict[str, Any]:
    """What a plan was made of.

    Args:
        plan: of one pipeline.
        sampler: of all the records, before the plan took its part of them.
        part_records: records in each part of the data.
        global_batch_size: as it was asked for.
        worker_seeds: as it was asked for.
        start_step: the global step at which reading begins.
        what: the data in words.
    """
    who = plan.replicas
    return {
        "what": what,
        "records": sampler.num_records,
        "part_records": [int(count) for count in part_records],
        "policy": plan.policy,
        "global_batch_size": global_batch_size,
        "seed": sampler.seed,
        "shuffle": sampler.shuffle,
        "epochs": sampler.epochs,
        "drop_remainder": sampler.drop_remainder,
        "worker_seeds": worker_seeds,
        "shuffle_window": sampler.window,
        "pipelines": who.num_pipelines,
        "pipeline": who.pipeline,
        "replicas": who.num_replicas,
        "asynchronous": who.asynchronous,
        "start_step": start_step,
        "first": plan.first_step(start_step),
    }


def plan_of(facts: Mapping[str, Any]) -> TrainShards:
    """The plan that these facts make."""
    window = facts["shuffle_window"]
    sampler = IndexSampler(
        facts["records"],
        seed=facts["seed"],
        shuffle=facts["shuffle"],
        epochs=facts["epochs"],
        drop_remainder=facts["drop_remainder"],
        block_records=None if window is None else tuple(facts["part_records"]),
        window=window,
    )
    who = ShardOptions(facts["pipelines"], facts["pipeline"], facts["replicas"], facts["asynchronous"])
    return train_shards(
        facts["part_records"],
        who,
        global_batch=facts["global_batch_size"],
        sampler=sampler,
        policy=facts["policy"],
        worker_seeds=facts["worker_seeds"],
    )


def global_ids(ids: np.ndarray, parts: Sequence[int] | None, part_records: Sequence[int]) -> np.ndarray:
    """Ids that count within some parts, as ids that count through all of them."""
    if parts is None:
        return ids
    counts = np.asarray(part_records, dtype=np.int64)
    own = counts[list(parts)]
    ends = np.cumsum(own)
    starts = (np.cumsum(counts) - counts)[list(parts)]
    part = np.searchsorted(ends, ids, side="right")
    return ids - (ends - own)[part] + starts[part]


def step_ids(plan: TrainShards, part_records: Sequence[int], step: int) -> np.ndarray:
    """The ids that a pipeline reads at a step, in the order of reading, counted through all parts.

    Args:
        plan: the pipeline's.
        part_records: records in each part of the data.
        step: the step's number as a log tells it: the first one is 1.

    Returns:
        int64 array; empty where the data have ended.
    """
    local = plan.replicas.local
    if plan.full_steps is None or step <= plan.full_steps:
        ids = plan.ids(step - 1).ravel()
    else:
        batches = plan.tail_ids(step - 1)[:local]
        ids = np.concatenate(batches) if batches else np.empty(0, np.int64)
    return global_ids(ids, plan.parts, part_records)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The facts that decide who reads what, and that are not the same: name -> both values."""
    found = {name: (one[name], other[name]) for name in _COMPARED if one[name] != other[name]}
    if "auto" in found.get("policy", ()):
        del found["policy"]  # what it is, the run's beginning says
    blocks = one["shuffle_window"] is not None or "file" in (one["policy"], other["policy"])
    if blocks and "records" not in found and one["part_records"] != other["part_records"]:
        found["part_records"] = (one["part_records"], other["part_records"])
    return found
