"""Checks a ledger: was every record of every epoch consumed once, at its step, by its worker?

Two checks that do not lean on one another. Where all workers read one stream, the records of a step, laid side by side
in the order of the workers, are the stream's next positions, and the stream is the epochs laid end to end: so each
stretch of `records` positions must hold each record once, whatever the shuffle. And the plan, made again from what the
ledger says of the data, must give for each step and worker the records that stand there.
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

_CHUNK = 64  # Steps that a plan is asked for at once.


def check(
    ledger: Ledger | str | os.PathLike[str],
    *,
    facts: Mapping[str, Any] | None = None,
    counts: Mapping[int, int] | None = None,
) -> LedgerReport:
    """Checks a ledger.

    Args:
        ledger: one that was read, or its folder.
        facts: what the job says of its data (`Inputs.train_facts()`), to be compared with what the ledger says. The
            policy "auto" is whichever a run began under.
        counts: for a ledger of fingerprints: how often each stands in the data. Without it no record can be missed.

    Returns:
        What was found. A step that was done again by a later attempt counts as that attempt did it.

    Raises:
        ConfigError: there is no ledger in the folder.
    """
    if not isinstance(ledger, Ledger):
        ledger = read(ledger)
    report = LedgerReport()
    _tell(ledger, report)
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


def _tell(ledger: Ledger, report: LedgerReport) -> None:
    """What the ledger holds: runs, shares, torn files."""
    steps = ledger.last_step
    kind = "each worker counts its own" if ledger.asynchronous else f"steps 1 to {steps} count"
    first = min((run.start for run in ledger.runs), default=0)
    if not ledger.asynchronous and first:
        kind = f"steps {first + 1} to {steps} count"
    report.about.append(f"{ledger.folder}: {len(ledger.runs)} run(s), {len(ledger.attempts)} file(s); {kind}")
    for run in ledger.runs:
        who = f"{len(run.tasks)} worker(s)" if not ledger.asynchronous else run.tasks[0]
        end = "ended" if run.ended else "broke off, or goes on"
        kept = "all count" if run.counts >= run.end else f"up to {run.counts} count" if run.counts > run.start else ""
        report.about.append(
            f"run {run.number}: {who}, steps {run.start + 1} to {run.end}, {end}; {kept or 'none counts'}"
        )
    for attempt in ledger.attempts:
        if attempt.torn:
            report.notes.append(
                f"{attempt.path.name} breaks off: its last {attempt.torn} bytes are no whole block, and are left out"
            )
    for path, why in ledger.unreadable.items():
        if path in ledger.unbegun:
            # A kill, or a full disk, in the moment in which the file was made. Steps that are missing show elsewhere.
            report.notes.append(f"{path.name} holds nothing: its process ended before a step was counted in it")
        else:
            report.find("missing", f"{path.name} cannot be read: {why}")
    if not any(run.counts > run.start for run in ledger.runs):
        report.find("missing", "no step stands in the ledger")
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
    """Every step that counts, of every worker."""
    end = None
    for run in ledger.runs:
        if end is not None and run.start > end and run.counts > run.start and not ledger.asynchronous:
            report.find("missing", f"no ledger was kept of the steps {end + 1} to {run.start}")
        end = max(end or 0, run.counts)
        missing: dict[str, list[int]] = {}
        for step in range(run.start + 1, run.counts + 1):
            for task, ids in run.ids(step).items():
                if ids is None:
                    missing.setdefault(task, []).append(step)
        for task, steps in missing.items():
            why = "it has no file of that run" if task not in run.segments else "its blocks were lost"
            report.find(
                "missing", f"{task}: what it read at the steps {ranges(steps)} of run {run.number} is not there: {why}"
            )


def _check_plans(ledger: Ledger, report: LedgerReport, facts: Mapping[str, Any] | None) -> None:
    """Whether each worker read what its plan gives it."""
    told: set[str] = set()
    before: Mapping[str, Any] | None = None
    for run in ledger.runs:
        if run.counts == run.start:
            continue
        moved: dict[str, list[tuple[int, str]]] = {}
        for task, segment in sorted(run.segments.items()):
            plan_facts = _plan_facts(segment)
            if plan_facts is None:
                continue
            for name, (one, other) in () if facts is None else differences(plan_facts, facts).items():
                told.add(f"the ledger was written with {name} {one}, and the job says {other}")
            if before is not None:
                for name, (one, other) in differences(before, plan_facts).items():
                    if name != "policy":
                        told.add(f"run {run.number} reads other data than the one before: {name} {one}, then {other}")
            before = plan_facts
            if not ledger.asynchronous and plan_facts["start_step"] != segment.start:
                report.find(
                    "start",
                    f"{task}: run {run.number} begins after step {segment.start}, and its data with those of step "
                    f"{plan_facts['start_step'] + 1}: records are read twice, or never",
                )
            moved[task] = list(_moved(run, task, plan_facts))
        for task, steps in moved.items():
            if steps:
                first, text = steps[0]
                report.find(
                    "moved",
                    f"{task} did not read what is its own at the steps {ranges(s for s, _ in steps)}: step {first}: "
                    f"{text}",
                )
    for text in sorted(told):
        report.find("data", text)


def _moved(run: LedgerRun, task: str, facts: Mapping[str, Any]) -> Iterable[tuple[int, str]]:
    """Steps at which a worker read something else than its plan says, and what."""
    part_records, pipelines = facts["part_records"], facts["pipelines"]
    plans = [plan_of({**facts, "pipeline": p}) for p in range(pipelines)]
    own = plans[facts["pipeline"]]
    wanted: dict[int, np.ndarray] = {}
    for step in range(run.start + 1, run.counts + 1):
        ids = run.ids(step)[task]
        if ids is None:
            continue
        if step not in wanted:
            wanted = _chunk(own, part_records, step)
        if np.array_equal(ids, wanted[step]):
            continue
        others = [p for p in range(pipelines) if p != facts["pipeline"]]
        alike = [p for p in others if np.array_equal(ids, step_ids(plans[p], part_records, step))]
        if alike:
            yield step, f"it read what is pipeline {alike[0]}'s"
        else:
            extra = sorted(set(ids.tolist()) - set(wanted[step].tolist()))
            lost = sorted(set(wanted[step].tolist()) - set(ids.tolist()))
            same = "" if extra or lost else "the same records in another order, or another number of times"
            yield step, same or f"records {ranges(extra) or 'none'} instead of {ranges(lost) or 'none'}"


def _chunk(plan: Any, part_records: Any, step: int) -> dict[int, np.ndarray]:
    """What a plan gives for some steps from `step` on."""
    count = _CHUNK if plan.full_steps is None else min(_CHUNK, plan.full_steps - step + 1)
    if count < 1:
        return {step: step_ids(plan, part_records, step)}
    ids = plan.ids(step - 1, count)
    ids = global_ids(ids.ravel(), plan.parts, part_records).reshape(count, -1)
    return {step + n: row for n, row in enumerate(ids)}


def _plan_facts(segment: Segment) -> Mapping[str, Any] | None:
    found = segment.facts.get("plan")
    if found is None:
        return None
    if "records_per_step" in segment.facts:
        # TensorFlow shared the records out, and who read shows in what was read alone.
        who = segment.facts
        found = {**found, "pipelines": who["pipelines"], "pipeline": who["pipeline"], "replicas": who["pipelines"]}
    return found


def _check_epochs(ledger: Ledger, report: LedgerReport) -> None:
    """Whether each epoch holds each record once."""
    streams: dict[str, Epochs] = {}
    layout: tuple[Any, ...] | None = None
    for run in ledger.runs:
        facts = {task: _plan_facts(segment) for task, segment in run.segments.items()}
        known = {task: found for task, found in facts.items() if found is not None}
        if run.counts == run.start or not known:
            continue
        some = next(iter(known.values()))
        shared = some["policy"] in ("data", "hint")
        now = (some["records"], shared) if shared else (some["records"], some["policy"], some["pipelines"])
        if now != layout:
            # Files shared out anew, or other data: epochs begin anew as well.
            for stream in streams.values():
                stream.close()
            if layout is not None:
                report.notes.append(
                    f"run {run.number} shares the data in another way than the one before: a record of the epoch that "
                    "was begun may come twice or never, which is not promised otherwise (docs/guides/inputs.md)"
                )
            streams, layout = {}, now
        for name, stream in streams.items():
            stream.follow(some if shared else known.get(str(name), some))
        order = sorted(known, key=lambda task: known[task]["pipeline"])
        for step in range(run.start + 1, run.counts + 1):
            found = run.ids(step)
            if shared:
                stream = streams.setdefault("all", Epochs(some, report))
                parts = {task: found[task] for task in order}
                stream.add(step, parts if len(known) == len(run.tasks) else {**parts, "": None})
            else:
                for task in order:
                    stream = streams.setdefault(task, Epochs(known[task], report, who=task))
                    stream.add(step, {task: found[task]})
    for stream in streams.values():
        stream.close()


def _count(ledger: Ledger, report: LedgerReport) -> None:
    """For workers that step on their own: how often each record was read, which nothing promises."""
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
            "workers that step on their own read at their own pace, and nothing is promised of an epoch: "
            f"{counts.sum()} reads of {total} records, each read {counts.min()} to {counts.max()} times, "
            f"{never} not yet"
        )
