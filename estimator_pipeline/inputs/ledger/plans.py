"""Metadata of a plan of `estimator_pipeline.inputs.sharding`, as plain values from which it can be recomputed.

A ledger stores this metadata, so that it can be checked without the data and the job file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.sampler import IndexSampler
from estimator_pipeline.inputs.sharding import ShardOptions, TrainShards, train_shards

__all__ = ["differences", "facts_of", "global_ids", "plan_of", "step_ids"]

# The settings that decide which task reads which records, named as in the job file and InputOptions.
_COMPARED = ("records", "policy", "global_batch_size", "seed", "shuffle", "epochs", "drop_remainder", "worker_seeds",
             "shuffle_window")  # fmt: skip


def facts_of(
    plan: TrainShards,
    *,
    sampler: IndexSampler,
    part_records: Sequence[int],
    options: InputOptions,
    start_step: int = 0,
    description: str = "",
) -> dict[str, Any]:
    """Return the metadata of a plan.

    Args:
        plan: The plan of one pipeline.
        sampler: The sampler of all records.
        part_records: Records in each part of the data.
        options: The options of the data.
        start_step: The global step at which reading begins.
        description: Name of the data, for messages.
    """
    who, origin = plan.replicas, options.origin
    # Ledgers of runs that are not continued are those of earlier versions.
    continued = {"origin": origin, "continuation": options.continuation} if origin else {}
    if options.merge_remainder:
        continued["merge_remainder"] = True
    return {
        "what": description,
        "records": sampler.num_records,
        "part_records": [int(count) for count in part_records],
        "policy": plan.policy,
        "global_batch_size": options.global_batch_size,
        "seed": sampler.seed,
        "shuffle": sampler.shuffle,
        "epochs": sampler.epochs,
        "drop_remainder": sampler.drop_remainder,
        "worker_seeds": options.worker_seeds,
        "shuffle_window": sampler.window,
        "pipelines": who.num_pipelines,
        "pipeline": who.pipeline,
        "replicas": who.num_replicas,
        "asynchronous": who.asynchronous,
        "start_step": start_step,
        "first": plan.first_step(max(0, start_step - origin)),
        **continued,
    }


def plan_of(facts: Mapping[str, Any]) -> TrainShards:
    """Return the plan of this metadata."""
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
        merge_remainder=facts.get("merge_remainder", False),
    )


def global_ids(ids: np.ndarray, parts: Sequence[int] | None, part_records: Sequence[int]) -> np.ndarray:
    """Convert ids that count within some parts to ids that count through all parts."""
    if parts is None:
        return ids
    counts = np.asarray(part_records, dtype=np.int64)
    sizes = counts[list(parts)]
    ends = np.cumsum(sizes)
    starts = (np.cumsum(counts) - counts)[list(parts)]
    part = np.searchsorted(ends, ids, side="right")
    return ids - (ends - sizes)[part] + starts[part]


def step_ids(plan: TrainShards, part_records: Sequence[int], step: int) -> np.ndarray:
    """Return the ids that a pipeline reads at a step, in the order of reading, counted through all parts.

    Args:
        plan: The plan of the pipeline.
        part_records: Records in each part of the data.
        step: The number of the step in these data: the first step is 1.

    Returns:
        int64 array; empty after the end of the data.
    """
    local = plan.replicas.local
    if plan.full_steps is None or step <= plan.full_steps:
        ids = plan.ids(step - 1).ravel()
    else:
        batches = plan.tail_ids(step - 1)[:local]
        ids = np.concatenate(batches) if batches else np.empty(0, np.int64)
    return global_ids(ids, plan.parts, part_records)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that decide which task reads which records and that differ: name -> both values."""
    changed = {name: (first[name], second[name]) for name in _COMPARED if first[name] != second[name]}
    if "auto" in changed.get("policy", ()):
        del changed["policy"]  # the start of the run decides what "auto" is
    blocks = first["shuffle_window"] is not None or "file" in (first["policy"], second["policy"])
    if blocks and "records" not in changed and first["part_records"] != second["part_records"]:
        changed["part_records"] = (first["part_records"], second["part_records"])
    return changed
