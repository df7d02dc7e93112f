"""Reads a ledger: which records each task consumed at which step, by which attempt, and which attempts count.

A job that is killed goes on from its latest checkpoint, and does the steps after it again. Both attempts stand in the
ledger. What the final weights have seen is the last attempt, of the one before it the steps up to where the last one
began, and so on: those steps *count*.
"""

from __future__ import annotations

import bisect
import contextlib
import graphlib
import itertools
import json
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.ledger import file_format as blocks
from estimator_pipeline.inputs.ledger.writing import FILE

__all__ = ["Generation", "Ledger", "LedgerAttempt", "LedgerRun", "Segment", "read"]


class Generation:
    """What one iterator over the data gave, batch by batch.

    Attributes:
        facts: what the ledger says of the data; see :meth:`estimator_pipeline.inputs.ledger.LedgerWriter.stream`.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self._payloads: list[bytes] = []
        self._rows: dict[int, blocks.Rows] = {}

    def add(self, payload: bytes) -> None:
        self._payloads.append(payload)

    @cached_property
    def _edges(self) -> np.ndarray:
        """How many records come before each batch, and at last before the end."""
        sizes = [blocks.sizes_of(payload) for payload in self._payloads]
        return np.concatenate([[0], np.cumsum(np.concatenate(sizes))]) if sizes else np.zeros(1, np.int64)

    @cached_property
    def _starts(self) -> list[int]:
        """How many records come before each block."""
        return [int(self._edges[blocks.first_of(payload)]) for payload in self._payloads]

    @property
    def steps(self) -> int:
        """Steps that there are records for."""
        if "records_per_step" in self.facts:
            return -(-int(self._edges[-1]) // int(self.facts["records_per_step"]))
        return -(-(len(self._edges) - 1) // int(self.facts["batches_per_step"]))

    def ids(self, step: int) -> np.ndarray | None:
        """The ids of the step that is this generation's number `step`, from 0; None where there are none."""
        if not 0 <= step < self.steps:
            return None
        if "records_per_step" in self.facts:
            size = int(self.facts["records_per_step"])
            start, stop = step * size, min((step + 1) * size, int(self._edges[-1]))
        else:
            count = int(self.facts["batches_per_step"])
            start, stop = (int(self._edges[min(n * count, len(self._edges) - 1)]) for n in (step, step + 1))
        at = max(bisect.bisect_right(self._starts, start) - 1, 0)
        found = []
        while start < stop:
            rows = self._decoded(at)
            cut = rows.ids[start - self._starts[at] : stop - self._starts[at]]
            found.append(cut)
            start += len(cut)
            at += 1
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _decoded(self, number: int) -> blocks.Rows:
        if number not in self._rows:
            if len(self._rows) > 4:
                self._rows.clear()
            self._rows[number] = blocks.decode_rows(self._payloads[number])
        return self._rows[number]


@dataclass
class Segment:
    """Steps that one task made without a break.

    Attributes:
        task: such as "worker:0".
        attempt: the number of the task's process, from 1.
        start: the global step after which they come.
        steps: how many were made.
        time: when they began; seconds since 1970 by the task's own clock.
        run_id: of the start of the job that they were made in, the same for all its tasks; None where nobody gave one.
        ended: whether training ended as it should.
        generations: what its records came from.
    """

    task: str
    attempt: int
    start: int
    steps: int
    time: float
    ended: bool
    generations: Sequence[Generation]
    run_id: str | None = None

    @property
    def end(self) -> int:
        """The last step."""
        return self.start + self.steps

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of its data; empty where it has read none."""
        return self.generations[0].facts if self.generations else {}

    def generation(self, step: int) -> tuple[Generation, int] | None:
        """Where the records of a global step come from: the generation, and the step's number in it."""
        number = step - self.start - 1
        for generation in self.generations[:-1]:
            if number < generation.steps:
                return generation, number
            number -= generation.steps
        return (self.generations[-1], number) if self.generations else None

    def ids(self, step: int) -> np.ndarray | None:
        """The records that the task consumed at a global step, counted from 1; None where the ledger has none."""
        found = self.generation(step)
        return found[0].ids(found[1]) if found is not None and step > self.start else None


@dataclass
class LedgerAttempt:
    """One file of the ledger.

    Attributes:
        path: of it.
        task: whose it is.
        number: which process of that task, from 1.
        tasks: all tasks that trained with it.
        asynchronous: whether each stepped on its own.
        segments: what was trained.
        torn: bytes at the end that cannot be read, 0 for a file that is whole.
    """

    path: Path
    task: str
    number: int
    tasks: tuple[str, ...]
    asynchronous: bool
    segments: list[Segment]
    torn: int = 0


@dataclass
class LedgerRun:
    """One time that all tasks trained together; of asynchronous workers, one time that one of them trained.

    Attributes:
        number: of the run, from 1.
        tasks: those that should have trained.
        segments: task -> what it did.
        start: the global step after which it begins.
        end: the last step that a task made.
        counts: its last step that the final weights have seen; `start` where they have seen none.
    """

    number: int
    tasks: tuple[str, ...]
    segments: dict[str, Segment] = field(default_factory=dict)
    counts: int = 0

    @property
    def start(self) -> int:
        return next(iter(self.segments.values())).start

    @property
    def end(self) -> int:
        return max(segment.end for segment in self.segments.values())

    @property
    def ended(self) -> bool:
        """Whether every task ended as it should."""
        return all(segment.ended for segment in self.segments.values()) and set(self.segments) >= set(self.tasks)

    def ids(self, step: int) -> dict[str, np.ndarray | None]:
        """Task -> what it consumed at a step; None where its ledger does not say.

        A synchronous step is made by all workers or by none: one whose process died between the step and its entry has
        the step's records in its ledger as fetched.
        """
        found: dict[str, np.ndarray | None] = {}
        for task in self.tasks:
            segment = self.segments.get(task)
            seen = segment is not None and step <= segment.end + 1
            found[task] = segment.ids(step) if segment is not None and seen else None
        return found


@dataclass
class Ledger:
    """A ledger.

    Attributes:
        folder: where it is.
        attempts: its files, by task and number.
        runs: in the order of time.
        unreadable: files that are none of a ledger: path -> why.
        unbegun: those of them in which no step was counted, for their process ended as it made them.
    """

    folder: Path
    attempts: list[LedgerAttempt]
    runs: list[LedgerRun]
    unreadable: dict[Path, str] = field(default_factory=dict)
    unbegun: tuple[Path, ...] = ()

    @property
    def asynchronous(self) -> bool:
        """Whether workers stepped on their own; steps are then each task's own count."""
        return any(attempt.asynchronous for attempt in self.attempts)

    @property
    def kind(self) -> str:
        """What ids are: "records" (numbers) or "fingerprints" of their content."""
        kinds = {s.facts["kind"] for run in self.runs for s in run.segments.values() if s.facts}
        return "fingerprints" if "fingerprints" in kinds else "records"

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks that stand in it."""
        return tuple(dict.fromkeys(task for run in self.runs for task in run.tasks))

    @property
    def last_step(self) -> int:
        """The last step that counts, 0 without any."""
        return max((run.counts for run in self.runs if run.counts > run.start), default=0)

    def counted(self) -> Iterator[tuple[LedgerRun, int]]:
        """Each step that counts, with the run that made it."""
        for run in self.runs:
            for step in range(run.start + 1, run.counts + 1):
                yield run, step

    def ids(self, step: int) -> dict[str, np.ndarray]:
        """Task -> the records that it consumed at a step that counts: int64 numbers, or uint64 fingerprints.

        Args:
            step: as a log tells it: the first one is 1.
        """
        found: dict[str, np.ndarray] = {}
        for run in self.runs:
            if run.start < step <= run.counts:
                found |= {task: ids for task, ids in run.ids(step).items() if ids is not None}
        return found


def read(folder: str | os.PathLike[str]) -> Ledger:
    """Reads a ledger.

    Args:
        folder: where it was written.

    Raises:
        ConfigError: there is none.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(
            f"there is no ledger in {path}",
            code="file/not-found",
            found="no such folder",
            hint="train with --ledger, or name the folder that it was written to",
        )
    attempts: list[LedgerAttempt] = []
    unreadable: dict[Path, str] = {}
    unbegun = []
    for name in sorted(os.listdir(path)):
        match = FILE.fullmatch(name)
        if match is None:
            continue
        try:
            attempts.append(_read_file(path / name, match["task"], int(match["attempt"])))
        except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
            unreadable[path / name] = str(error)
            if isinstance(error, _NoHeader) and not error.steps:
                unbegun.append(path / name)
    if not attempts and not unreadable:
        raise ConfigError(
            f"there is no ledger in {path}",
            code="file/not-found",
            found="no file named like worker-0.1.ledger",
            hint="train with --ledger, or name the folder that it was written to",
        )
    attempts.sort(key=lambda attempt: (attempt.task, attempt.number))
    return Ledger(path, attempts, _runs(attempts), unreadable, tuple(unbegun))


class _NoHeader(ValueError):
    """A file that does not say whose it is.

    Attributes:
        steps: whether its counter says that steps were made, or may have said so.
    """

    def __init__(self, what: str, *, steps: bool) -> None:
        super().__init__(what)
        self.steps = steps


def _read_file(path: Path, task: str, number: int) -> LedgerAttempt:
    data = path.read_bytes()
    if len(data) < blocks.BEGIN or not data.startswith(blocks.MAGIC):
        # What begins otherwise was a file of something else, or was spoilt.
        spoilt = not blocks.MAGIC.startswith(data[: len(blocks.MAGIC)]) or any(data[blocks.COUNTER : blocks.BEGIN])
        raise _NoHeader("it is no file of a ledger, or broken off within its first bytes", steps=spoilt)
    segment_now, steps_now = blocks.split_word(int.from_bytes(data[blocks.COUNTER : blocks.BEGIN], sys.byteorder))
    about: dict[str, Any] = {}
    begun: list[dict[str, Any]] = []
    ended: set[int] = set()
    done: dict[int, int] = {}
    generations: list[Generation] = []
    torn = 0
    for found in blocks.parse(data):
        if isinstance(found, int):
            torn = len(data) - found
        elif found.kind == blocks.HEADER:
            about = json.loads(found.payload)
        elif found.kind == blocks.GENERATION:
            generations.append(Generation(json.loads(zlib.decompress(found.payload))))
        elif found.kind == blocks.ROWS:
            generations[blocks.generation_of(found.payload)].add(found.payload)
        elif found.kind == blocks.SEGMENT:
            begun.append(json.loads(found.payload))
        elif found.kind == blocks.END:
            told = json.loads(found.payload)
            ended.add(told["segment"])
            done[told["segment"]] = told["steps"]
    if not about:
        raise _NoHeader("its header cannot be read", steps=bool(segment_now or steps_now))
    done.setdefault(segment_now, steps_now)
    segments = []
    for at, told in enumerate(begun):
        after = begun[at + 1] if at + 1 < len(begun) else None
        last = len(generations) if after is None else after["after"] + 1
        # The counter is of the last segment; the next one's beginning says how far this one came.
        steps = done.get(told["segment"], after["made"] if after else 0)
        given = generations[told["after"] + 1 : last]
        plan = given[0].facts.get("plan") if given else None
        segments.append(
            Segment(
                task=about["task"],
                attempt=number,
                # Workers that step on their own go on at their share of the global step, as their data do.
                start=plan["first"] if plan is not None and about["asynchronous"] else told["start"],
                steps=steps,
                time=told["time"],
                ended=told["segment"] in ended,
                generations=given,
                run_id=told.get("run"),
            )
        )
    return LedgerAttempt(path, about["task"], number, tuple(about["tasks"]), about["asynchronous"], segments, torn)


_Made = tuple[Segment, LedgerAttempt]
"""A segment, and the file that it stands in."""


def _runs(attempts: Sequence[LedgerAttempt]) -> list[LedgerRun]:
    """Segments that were trained together, and how far each run counts."""
    asynchronous = any(attempt.asynchronous for attempt in attempts)
    queues: dict[str, list[_Made]] = {attempt.task: [] for attempt in attempts}
    for attempt in attempts:
        queues[attempt.task] += [(segment, attempt) for segment in attempt.segments]
    runs: list[LedgerRun] = []
    while any(queues.values()):
        made = _next(queues)
        first, attempt = made
        queues[first.task].pop(0)
        run = LedgerRun(0, (first.task,) if attempt.asynchronous else attempt.tasks, {first.task: first})
        later = _alike(queues[first.task], made)
        for task in run.tasks:
            if task == first.task or not queues.get(task) or not _together(queues[task][0], made):
                continue
            other = queues[task][0][0]
            # Where it has begun there less often than this one, it may have missed this time.
            missed = len(_alike(queues[task], made)) <= len(later)
            if not (missed and any(abs(other.time - one.time) < abs(other.time - first.time) for one in later)):
                run.segments[task] = other
                queues[task].pop(0)
        if run.end > run.start:
            runs.append(run)
    for number, run in enumerate(runs, 1):
        run.number = number
    limits: dict[str, int] = {}
    for run in reversed(runs):
        # Of workers that step on their own each has a chain of attempts of its own, where its data say where it began.
        chain = run.tasks[0] if asynchronous else ""
        limit = limits.get(chain)
        if asynchronous and "plan" not in next(iter(run.segments.values())).facts:
            limit = None
        run.counts = max(run.start, run.end if limit is None else min(run.end, limit))
        if limit == run.end + 1 and all(ids is not None for ids in run.ids(limit).values()):
            # The later run began there, so there was a checkpoint of a step that nobody came to count.
            run.counts = limit
        limits[chain] = run.start if limit is None else min(limit, run.start)
    if asynchronous:
        _leave_out_what_others_did_again(runs)
    return runs


def _leave_out_what_others_did_again(runs: Sequence[LedgerRun]) -> None:
    """Of workers that step on their own: one may have made no step in the start that went on from a checkpoint.

    Then its own next step is of a later start, and says nothing of what was lost before. All tasks of a start begin at
    the same share of its checkpoint, so that of another task will do.
    """
    started: dict[str, dict[str, int]] = {}
    for run in runs:
        for task, segment in run.segments.items():
            if segment.run_id is not None and "plan" in segment.facts:
                started.setdefault(segment.run_id, {}).setdefault(task, segment.start)
    order = _in_order(runs, list(started))
    for run in runs:
        ((task, segment),) = run.segments.items()
        if segment.run_id not in started:
            continue
        later = [started[one] for one in order[order.index(segment.run_id) + 1 :] if task not in started[one]]
        limit = min((start for starts in later for start in starts.values()), default=run.counts)
        run.counts = max(run.start, min(run.counts, limit))


def _in_order(runs: Sequence[LedgerRun], run_ids: Sequence[str]) -> list[str]:
    """The starts of a job in their order: that in which each task's own files have them, whatever the clocks say."""
    before: dict[str, set[str]] = {run_id: set() for run_id in run_ids}
    last: dict[str, str] = {}
    for run in runs:
        for task, segment in run.segments.items():
            if segment.run_id in before:
                if last.get(task, segment.run_id) != segment.run_id:
                    before[segment.run_id].add(last[task])
                last[task] = segment.run_id
    # In the order of the clocks where no task says more; a row of ids that comes back is none that can be sorted.
    with contextlib.suppress(graphlib.CycleError):
        return list(graphlib.TopologicalSorter(before).static_order())
    return list(run_ids)


def _next(queues: Mapping[str, Sequence[_Made]]) -> _Made:
    """The segment that comes next.

    The files of a task are in order, whatever its clock says. So one whose partner has others to come before it has to
    wait for them. Clocks, which may jump or differ, decide where this leaves a choice.
    """
    heads = sorted((queue[0] for queue in queues.values() if queue), key=lambda made: made[0].time)
    return next((one for one in heads if not _waits(one, queues)), heads[0])


def _waits(made: _Made, queues: Mapping[str, Sequence[_Made]]) -> bool:
    """Whether what was made together with it is not the next of its task."""
    segment, attempt = made
    if attempt.asynchronous:
        return False
    others = [queues[task] for task in attempt.tasks if task != segment.task and queues.get(task)]
    return any(not _together(queue[0], made) and any(_together(other, made) for other in queue[1:]) for queue in others)


def _together(one: _Made, other: _Made) -> bool:
    """Whether two segments, of two tasks or of one, may be of the same run."""
    (a, its), (b, others) = one, other
    # A ledger of an earlier version has no run ids, nor has a cluster that somebody starts by hand.
    same = a.run_id is None or b.run_id is None or a.run_id == b.run_id
    return same and a.start == b.start and its.tasks == others.tasks


def _alike(queue: Sequence[_Made], made: _Made) -> list[Segment]:
    """The next segments of a task that may be of the same run."""
    return [one[0] for one in itertools.takewhile(lambda one: _together(one, made), queue)]
