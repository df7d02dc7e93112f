"""Check of a ledger: was every record of every epoch consumed once, at its step, by its worker?

There are two independent checks. If all workers read one stream, the records of a step, concatenated in the order of
the workers, are the next positions of the stream, and the stream is a sequence of epochs. So each interval of `records`
positions must contain each record once, for any shuffle. And the plan, recomputed from the metadata in the ledger,
must yield the recorded ids for each step and worker.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline.inputs.ledger.epochs import Epochs
from estimator_pipeline.inputs.ledger.plans import differences, global_ids, plan_of, step_ids
from estimator_pipeline.inputs.ledger.reading import Ledger, LedgerRun, Segment, read
from estimator_pipeline.inputs.ledger.record_counts import check_fingerprints
from estimator_pipeline.inputs.ledger.report import LedgerReport, Share, ranges

__all__ = ["check"]

_CHUNK = 64  # Steps computed at once from a plan.


def check(
    ledger: Ledger | str | os.PathLike[str],
    *,
    facts: Mapping[str, Any] | None = None,
    counts: Mapping[int, int] | None = None,
) -> LedgerReport:
    """Check a ledger.

    Args:
        ledger: The ledger, or its folder.
        facts: The job's metadata of its data (`Inputs.train_facts()`), to compare with the ledger's. The policy
            "auto" matches the policy under which a run began.
        counts: For a ledger of fingerprints: how often each occurs in the data. Required to find missing records.

    Returns:
        The report. If a later attempt repeated a step, only the later attempt counts.

    Raises:
        ConfigError: There is no ledger in the folder.
    """
    if not isinstance(ledger, Ledger):
        ledger = read(ledger)
    report = LedgerReport()
    _summarize(ledger, report)
    if ledger.kind == "fingerprints":
        _check_present(ledger, report)
        check_fingerprints(ledger, report, counts)
    elif ledger.asynchronous:
        _check_present(ledger, report)
        _check_plans(ledger, report, facts)
        _count(ledger, report)
    else:
        _check_present(ledger, report)
        _check_plans(ledger, report, facts)
        _check_epochs(ledger, report)
    return report


def _summarize(ledger: Ledger, report: LedgerReport) -> None:
    """Add the content of the ledger to the report: runs, shares, truncated files."""
    steps = ledger.last_step
    kind = "each worker counts its steps" if ledger.asynchronous else f"steps 1 to {steps} count"
    first = min((run.start for run in ledger.runs), default=0)
    if not ledger.asynchronous and first:
        kind = f"steps {first + 1} to {steps} count"
    report.about.append(f"{ledger.folder}: {len(ledger.runs)} run(s), {len(ledger.attempts)} file(s); {kind}")
    for run in ledger.runs:
        who = f"{len(run.tasks)} worker(s)" if not ledger.asynchronous else run.tasks[0]
        end = "completed" if run.ended else "interrupted, or still running"
        kept = "all count" if run.counts >= run.end else f"up to {run.counts} count" if run.counts > run.start else ""
        report.about.append(
            f"run {run.number}: {who}, steps {run.start + 1} to {run.end}, {end}; {kept or 'none counts'}"
        )
    for attempt in ledger.attempts:
        if attempt.torn:
            report.notes.append(
                f"{attempt.path.name} is truncated: its last {attempt.torn} bytes are an incomplete block"
            )
    for path, why in ledger.unreadable.items():
        if path in ledger.unbegun:
            # The process was killed, or the disk was full, during the creation. Missing steps are reported elsewhere.
            report.notes.append(f"{path.name} is empty: its process ended before it counted a step")
        else:
            report.find("missing", f"{path.name} cannot be read: {why}")
    if not any(run.counts > run.start for run in ledger.runs):
        report.find("missing", "the ledger has no steps")
    done: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    for run in ledger.runs:
        for task, segment in run.segments.items():
            done[task] += segment.steps
            attempts[task] += 1
    counted: Counter[str] = Counter()
    records: Counter[str] = Counter()
    for run, step in ledger.counted():
        for task, ids in run.ids(step).items():
            if ids is not None:
                counted[task] += 1
                records[task] += len(ids)
    report.shares = [
        Share(task, attempts[task], counted[task], records[task], max(done[task] - counted[task], 0))
        for task in sorted(ledger.tasks)
    ]


def _check_present(ledger: Ledger, report: LedgerReport) -> None:
    """Check that every counted step of every worker is in the ledger."""
    end = None
    for run in ledger.runs:
        if end is not None and run.start > end and run.counts > run.start and not ledger.asynchronous:
            report.find("missing", f"there is no ledger of the steps {end + 1} to {run.start}")
        end = max(end or 0, run.counts)
        missing: dict[str, list[int]] = {}
        for step in range(run.start + 1, run.counts + 1):
            for task, ids in run.ids(step).items():
                if ids is None:
                    missing.setdefault(task, []).append(step)
        for task, steps in missing.items():
            why = "it has no file of that run" if task not in run.segments else "its blocks were lost"
            report.find(
                "missing", f"{task}: the records of the steps {ranges(steps)} of run {run.number} are missing: {why}"
            )


def _check_plans(ledger: Ledger, report: LedgerReport, facts: Mapping[str, Any] | None) -> None:
    """Check that each worker read the records of its plan."""
    changes: set[str] = set()
    # The data with which the run began, and those of each continuation, by its number.
    before: dict[int, Mapping[str, Any]] = {}
    for run in ledger.runs:
        if run.counts == run.start:
            continue
        moved: dict[str, list[tuple[int, str]]] = {}
        for task, segment in sorted(run.segments.items()):
            plan_facts = _plan_facts(segment)
            if plan_facts is None:
                continue
            number = plan_facts.get("continuation", 0)
            if facts is not None and number == facts.get("continuation", 0):
                for name, (written, current) in differences(plan_facts, facts).items():
                    changes.add(f"the ledger was written with {name} {written}, but the job has {current}")
            if number in before:
                for name, (earlier, later) in differences(before[number], plan_facts).items():
                    if name != "policy":
                        changes.add(
                            f"run {run.number} reads different data than the last one: {name} {earlier}, then {later}"
                        )
            before[number] = plan_facts
            if not ledger.asynchronous and plan_facts["start_step"] != segment.start:
                report.find(
                    "start",
                    f"{task}: run {run.number} starts after step {segment.start}, but its data starts at step "
                    f"{plan_facts['start_step'] + 1}: records are read twice or never",
                )
            moved[task] = list(_moved(run, task, plan_facts))
        for task, steps in moved.items():
            if steps:
                first, text = steps[0]
                report.find(
                    "moved",
                    f"{task} did not read its records at the steps {ranges(s for s, _ in steps)}: step {first}: {text}",
                )
    for text in sorted(changes):
        report.find("data", text)


def _moved(run: LedgerRun, task: str, facts: Mapping[str, Any]) -> Iterable[tuple[int, str]]:
    """Yield the steps at which a worker deviated from its plan, with a description."""
    part_records, pipelines = facts["part_records"], facts["pipelines"]
    plans = [plan_of({**facts, "pipeline": p}) for p in range(pipelines)]
    plan, origin = plans[facts["pipeline"]], facts.get("origin", 0)
    wanted: dict[int, np.ndarray] = {}
    for step in range(run.start + 1, run.counts + 1):
        ids = run.ids(step)[task]
        if ids is None:
            continue
        within = step - origin
        if within not in wanted:
            wanted = _chunk(plan, part_records, within)
        if np.array_equal(ids, wanted[within]):
            continue
        others = [p for p in range(pipelines) if p != facts["pipeline"]]
        alike = [p for p in others if np.array_equal(ids, step_ids(plans[p], part_records, within))]
        if alike:
            yield step, f"it read the records of pipeline {alike[0]}"
        else:
            extra = sorted(set(ids.tolist()) - set(wanted[within].tolist()))
            lost = sorted(set(wanted[within].tolist()) - set(ids.tolist()))
            same = "" if extra or lost else "the same records in a different order, or a different number of times"
            yield step, same or f"records {ranges(extra) or 'none'} instead of {ranges(lost) or 'none'}"


def _chunk(plan: Any, part_records: Any, step: int) -> dict[int, np.ndarray]:
    """Return the ids of a plan for some steps from `step` on."""
    count = _CHUNK if plan.full_steps is None else min(_CHUNK, plan.full_steps - step + 1)
    if count < 1:
        return {step: step_ids(plan, part_records, step)}
    ids = plan.ids(step - 1, count)
    ids = global_ids(ids.ravel(), plan.parts, part_records).reshape(count, -1)
    return {step + n: row for n, row in enumerate(ids)}


def _plan_facts(segment: Segment) -> Mapping[str, Any] | None:
    plan = segment.facts.get("plan")
    if plan is None:
        return None
    if "records_per_step" in segment.facts:
        # TensorFlow sharded the records, and the pipeline is known only from the records that were read.
        who = segment.facts
        plan = {**plan, "pipelines": who["pipelines"], "pipeline": who["pipeline"], "replicas": who["pipelines"]}
    return plan


def _check_epochs(ledger: Ledger, report: LedgerReport) -> None:
    """Check that each epoch contains each record once."""
    # The stream of each continuation of the run, by its number, and of each task whose records are separate.
    streams: dict[tuple[int, str], Epochs] = {}
    layouts: dict[int, tuple[Any, ...]] = {}
    number = 0
    for run in ledger.runs:
        facts = {task: _plan_facts(segment) for task, segment in run.segments.items()}
        known = {task: plan for task, plan in facts.items() if plan is not None}
        if run.counts == run.start or not known:
            continue
        some = next(iter(known.values()))
        number, origin = some.get("continuation", 0), some.get("origin", 0)
        shared = some["policy"] in ("data", "hint")
        now = (some["records"], shared) if shared else (some["records"], some["policy"], some["pipelines"])
        mine = {name: stream for (of, name), stream in streams.items() if of == number}
        if now != layouts.get(number, now):
            # Different shards or different data: epochs start over.
            for name, stream in mine.items():
                stream.close()
                del streams[number, name]
            report.notes.append(
                f"run {run.number} shards the data differently than the previous one: a record of the current "
                "epoch may be read twice or never; nothing else is guaranteed (docs/guides/inputs.md)"
            )
            mine = {}
        layouts[number] = now
        for name, stream in mine.items():
            stream.follow(some if shared else known.get(name, some))
        order = sorted(known, key=lambda task: known[task]["pipeline"])
        for step in range(run.start + 1, run.counts + 1):
            consumed = run.ids(step)
            if shared:
                stream = streams.setdefault((number, "all"), Epochs(some, report, number=number))
                parts = {task: consumed[task] for task in order}
                stream.add(step - origin, parts if len(known) == len(run.tasks) else {**parts, "": None})
            else:
                for task in order:
                    stream = streams.setdefault((number, task), Epochs(known[task], report, who=task, number=number))
                    stream.add(step - origin, {task: consumed[task]})
    for (of, _), stream in streams.items():
        stream.close()
        if of and of != number:
            stream.require_end()


def _count(ledger: Ledger, report: LedgerReport) -> None:
    """Note how often workers that step independently read each record, which is not guaranteed."""
    total = max(
        (f["records"] for run in ledger.runs for s in run.segments.values() if (f := _plan_facts(s))), default=0
    )
    counts = np.zeros(total, dtype=np.int64)
    for run, step in ledger.counted():
        for ids in run.ids(step).values():
            if ids is not None:
                np.add.at(counts, ids[(ids >= 0) & (ids < total)], 1)
    if total:
        never = int(np.count_nonzero(counts == 0))
        report.notes.append(
            "workers that step independently read at different speeds, and epochs are not guaranteed: "
            f"{counts.sum()} reads of {total} records, each read {counts.min()} to {counts.max()} times, "
            f"{never} not yet"
        )
