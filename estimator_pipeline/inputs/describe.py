"""The text of `Inputs.describe`: which pipeline reads which records."""

from __future__ import annotations

from typing import Any

from estimator_pipeline.inputs.sharding import EvalShards, ShardOptions, TrainShards
from estimator_pipeline.utils.text import few

__all__ = ["describe"]

_NAMED = 3  # Files named in a line; further files are counted.


def describe(data: Any, num_pipelines: int, replicas_per_pipeline: int, asynchronous: bool) -> str:
    """Return the text of `Inputs.describe`."""
    replicas = replicas_per_pipeline * (1 if asynchronous else num_pipelines)
    pipelines = [ShardOptions(num_pipelines, p, replicas, asynchronous) for p in range(num_pipelines)]
    lines: list[str] = []
    if data._train is not None:
        lines += _training(data._train, [data.train_shards(options) for options in pipelines])
    if data._eval is not None:
        lines += _evaluation(data._eval, [data.eval_shards(options) for options in pipelines])
    return "\n".join(lines)


def _training(reader: Any, plans: list[TrainShards]) -> list[str]:
    plan, options, source = plans[0], reader.options, reader.source
    who = plan.replicas
    place = "held in memory" if reader.in_memory else "read from disk by record"
    parts = f"{source.num_records} records in {len(source.part_records)} part(s)"
    lines = [
        f"training: {source.description}, {parts}, {place}",
        f"  policy {plan.policy}: {plan.why}",
    ]
    if who.asynchronous:
        lines.append(f"  workers step independently: {options.global_batch_size} records at each step of a worker")
    else:
        lines.append(
            f"  a step reads {options.global_batch_size} records over {who.num_replicas} replica(s), {plan.batch} each"
        )
    for shards in plans:
        number, count = shards.replicas.pipeline, shards.replicas.num_pipelines
        if shards.policy == "data":
            share = shards.replicas.local * shards.batch
            first = number * share
            lines.append(
                f"  pipeline {number}: records {first} to {first + share - 1} of each {share * count} of the one stream"
            )
        elif shards.policy == "hint":
            lines.append(f"  pipeline {number}: record {number} of each {count} in turn")
        elif shards.policy == "file":
            lines.append(f"  pipeline {number}: {_files(source, shards.parts)}")
        else:
            lines.append(f"  pipeline {number}: all records, with the seed {shards.sampler.seed}")
    lines.append(f"  order: {_order(plan)}")
    if plan.full_steps is None:
        lines.append("  the stream has no end: a step at the end of an epoch continues with the next epoch")
    else:
        lines.append(f"  {options.epochs} epoch(s): {plan.full_steps} full steps, {_remainder(plans)}")
    lines.append(f"  {_promise(plans)}")
    return lines


def _evaluation(reader: Any, plans: list[EvalShards]) -> list[str]:
    source = reader.source
    steps = f"in {plans[0].steps} step(s) of at most {plans[0].batch} records a replica"
    lines = [f"evaluation: {source.description}, {source.num_records} records, each exactly once, {steps}"]
    for plan in plans:
        if plan.policy == "file":
            lines.append(f"  pipeline {plan.replicas.pipeline}: {_files(source, plan.parts)}")
        else:
            last = plan.start + plan.records - 1
            lines.append(f"  pipeline {plan.replicas.pipeline}: records {plan.start} to {last}")
    empty = sum(max(plan.num_batches - plan.records, 0) for plan in plans)
    if empty:
        lines.append(f"  {empty} batch(es) are empty: there are fewer records than batches")
    return lines


def _files(source: Any, parts: tuple[int, ...] | None) -> str:
    parts = parts or ()
    names = [source.part_names[index] for index in parts]
    shown = few((name.replace("\\", "/").rsplit("/", 1)[-1] for name in names), _NAMED)
    records = sum(source.part_records[index] for index in parts)
    return f"{len(names)} file(s) with {records} records: {shown}"


def _order(plan: TrainShards) -> str:
    if not plan.sampler.shuffle:
        return "as stored, the same in each epoch"
    if plan.sampler.block_records is not None:
        window = f"files shuffled, then records within windows of {plan.sampler.window}"
        return f"{window}, differently in each epoch (seed {plan.sampler.seed})"
    return f"all records shuffled, differently in each epoch (seed {plan.sampler.seed})"


def _remainder(plans: list[TrainShards]) -> str:
    plan = plans[0]
    if not plan.remainder:
        return "nothing left over"
    if not plan.tail_steps:
        return f"{plan.remainder} record(s) at the end fill no batch and are dropped"
    sizes = [len(batch) for shards in plans for batch in shards.tail_ids()]
    fewer = [index for index, size in enumerate(sizes) if size < max(sizes)]
    text = f"then {plan.tail_steps} step(s) with the {plan.remainder} record(s) left over, {max(sizes)} a batch"
    if fewer and plan.tail_steps == 1:
        text += f", on replica(s) {', '.join(map(str, fewer))} {min(sizes)}"
    return text


def _promise(plans: list[TrainShards]) -> str:
    plan = plans[0]
    if plan.replicas.asynchronous:
        return (
            "not guaranteed: workers that step independently read at different speeds, so a restart resumes near "
            "the next records, not exactly there"
        )
    if plan.policy in ("data", "hint"):
        return "guaranteed: the records of a step depend only on the seed and the step, for any number of workers"
    if plan.policy == "file":
        counts = [shards.sampler.num_records for shards in plans]
        text = (
            "guaranteed: the records of a step depend on the seed and the step, for this number of workers; "
            "a different number shards the files differently"
        )
        if min(counts) != max(counts):
            text += (
                f"; pipelines hold {min(counts)} to {max(counts)} records, so records of the smaller ones "
                f"come up to {max(counts) / min(counts):.2f} times as often"
            )
        return text
    distinct = len({shards.sampler.seed for shards in plans}) > 1
    return (
        f"guaranteed: the records of a worker depend on the seed and the step; all workers read all records, "
        f"{'each in a different order' if distinct else 'the same records at the same step'}"
    )
