"""Who reads what, in words: the text of `Inputs.describe`."""

from __future__ import annotations

from typing import Any

from estimator_pipeline.inputs.sharding import EvalShards, ShardOptions, TrainShards

__all__ = ["describe"]

_NAMED = 3  # Files named one by one in a line; more are counted.


def describe(data: Any, num_pipelines: int, replicas_per_pipeline: int, asynchronous: bool) -> str:
    """The text of `Inputs.describe`."""
    replicas = replicas_per_pipeline * (1 if asynchronous else num_pipelines)
    everyone = [ShardOptions(num_pipelines, p, replicas, asynchronous) for p in range(num_pipelines)]
    lines: list[str] = []
    if data._train is not None:
        lines += _training(data._train, [data.train_shards(who) for who in everyone])
    if data._eval is not None:
        lines += _evaluation(data._eval, [data.eval_shards(who) for who in everyone])
    return "\n".join(lines)


def _training(reader: Any, plans: list[TrainShards]) -> list[str]:
    plan, options, source = plans[0], reader.options, reader.source
    who = plan.replicas
    place = "held in memory" if reader.in_memory else "read from disk by record"
    parts = f"{source.num_records} records in {len(source.part_records)} part(s)"
    lines = [
        f"training: {source.what}, {parts}, {place}",
        f"  policy {plan.policy}: {plan.why}",
    ]
    if who.asynchronous:
        lines.append(f"  each worker steps on its own: {options.global_batch_size} records at each of its steps")
    else:
        lines.append(
            f"  a step reads {options.global_batch_size} records over {who.num_replicas} replica(s), {plan.batch} each"
        )
    for one in plans:
        if one.policy == "data":
            share = one.replicas.local * one.batch
            first = one.replicas.pipeline * share
            lines.append(
                f"  pipeline {one.replicas.pipeline}: records {first} to {first + share - 1} of each "
                f"{share * one.replicas.num_pipelines} of the one stream"
            )
        elif one.policy == "hint":
            every = one.replicas.num_pipelines
            lines.append(f"  pipeline {one.replicas.pipeline}: record {one.replicas.pipeline} of each {every} in turn")
        elif one.policy == "file":
            lines.append(f"  pipeline {one.replicas.pipeline}: {_files(source, one.parts)}")
        else:
            lines.append(f"  pipeline {one.replicas.pipeline}: all records, with the seed {one.sampler.seed}")
    lines.append(f"  order: {_order(plan)}")
    if plan.full_steps is None:
        lines.append("  the stream has no end: a step at the end of an epoch goes on with the next, nothing is lost")
    else:
        lines.append(f"  {options.epochs} epoch(s): {plan.full_steps} full steps, {_remainder(plans)}")
    lines.append(f"  {_promise(plans)}")
    return lines


def _evaluation(reader: Any, plans: list[EvalShards]) -> list[str]:
    source = reader.source
    steps = f"in {plans[0].steps} step(s) of at most {plans[0].batch} records a replica"
    lines = [f"evaluation: {source.what}, {source.num_records} records, each exactly once, {steps}"]
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
    shown = ", ".join(name.replace("\\", "/").rsplit("/", 1)[-1] for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    records = sum(source.part_records[index] for index in parts)
    return f"{len(names)} file(s) with {records} records of its own: {shown}{more}"


def _order(plan: TrainShards) -> str:
    if not plan.sampler.shuffle:
        return "as the records lie, the same in each epoch"
    if plan.sampler.block_records is not None:
        window = f"files shuffled, then records within windows of {plan.sampler.window}"
        return f"{window}, anew in each epoch (seed {plan.sampler.seed})"
    return f"all records shuffled, anew in each epoch (seed {plan.sampler.seed})"


def _remainder(plans: list[TrainShards]) -> str:
    plan = plans[0]
    if not plan.remainder:
        return "nothing left over"
    if not plan.tail_steps:
        return f"{plan.remainder} record(s) at the end fill no batch and are dropped"
    sizes = [len(batch) for one in plans for batch in one.tail_ids()]
    fewer = [index for index, size in enumerate(sizes) if size < max(sizes)]
    text = f"then {plan.tail_steps} step(s) with the {plan.remainder} record(s) left over, {max(sizes)} a batch"
    if fewer and plan.tail_steps == 1:
        text += f", on replica(s) {', '.join(map(str, fewer))} {min(sizes)}"
    return text


def _promise(plans: list[TrainShards]) -> str:
    plan = plans[0]
    if plan.replicas.asynchronous:
        return (
            "not promised: workers that step on their own read at their own pace, so a restart goes on "
            "at about, not exactly, the records that come next"
        )
    if plan.policy in ("data", "hint"):
        return "promised: what a step reads depends on the seed and the step alone, for any number of workers"
    if plan.policy == "file":
        counts = [one.sampler.num_records for one in plans]
        text = (
            "promised: what a step reads depends on the seed and the step, for this number of workers; "
            "another number shares the files anew"
        )
        if min(counts) != max(counts):
            text += (
                f"; pipelines hold {min(counts)} to {max(counts)} records, so records of the smaller ones "
                f"come up to {max(counts) / min(counts):.2f} times as often"
            )
        return text
    distinct = len({one.sampler.seed for one in plans}) > 1
    return (
        f"promised: what a worker reads depends on the seed and the step; all workers read all records, "
        f"{'each in its own order' if distinct else 'the same ones at the same step'}"
    )
