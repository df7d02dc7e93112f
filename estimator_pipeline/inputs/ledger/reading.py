"""Reading of a ledger: which records each task consumed at which step and attempt, and which attempts count.

A killed job resumes from its latest checkpoint and repeats the steps after it. The ledger holds both attempts. The
final weights depend on the last attempt, on the steps of the previous attempt before the start of the last one, and so
on: those steps *count*.
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
    """The batches of one iterator over the data.

    Attributes:
        facts: Metadata of the data; see `estimator_pipeline.inputs.ledger.LedgerWriter.stream`.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self._payloads: list[bytes] = []
        self._rows: dict[int, blocks.Rows] = {}

    def add(self, payload: bytes) -> None:
        self._payloads.append(payload)

    @cached_property
    def _edges(self) -> np.ndarray:
        """The number of records before each batch, and in total."""
        sizes = [blocks.sizes_of(payload) for payload in self._payloads]
        return np.concatenate([[0], np.cumsum(np.concatenate(sizes))]) if sizes else np.zeros(1, np.int64)

    @cached_property
    def _starts(self) -> list[int]:
        """The number of records before each block."""
        return [int(self._edges[blocks.first_of(payload)]) for payload in self._payloads]

    @property
    def steps(self) -> int:
        """The number of steps with records."""
        if "records_per_step" in self.facts:
            return -(-int(self._edges[-1]) // int(self.facts["records_per_step"]))
        return -(-(len(self._edges) - 1) // int(self.facts["batches_per_step"]))

    def ids(self, step: int) -> np.ndarray | None:
        """Return the ids of this generation's step `step`, from 0; None after its end."""
        if not 0 <= step < self.steps:
            return None
        if "records_per_step" in self.facts:
            size = int(self.facts["records_per_step"])
            start, stop = step * size, min((step + 1) * size, int(self._edges[-1]))
        else:
            count = int(self.facts["batches_per_step"])
            start, stop = (int(self._edges[min(n * count, len(self._edges) - 1)]) for n in (step, step + 1))
        at = max(bisect.bisect_right(self._starts, start) - 1, 0)
        parts = []
        while start < stop:
            rows = self._decoded(at)
            cut = rows.ids[start - self._starts[at] : stop - self._starts[at]]
            parts.append(cut)
            start += len(cut)
            at += 1
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _decoded(self, number: int) -> blocks.Rows:
        if number not in self._rows:
            if len(self._rows) > 4:
                self._rows.clear()
            self._rows[number] = blocks.decode_rows(self._payloads[number])
        return self._rows[number]


@dataclass
class Segment:
    """Uninterrupted steps of one task.

    Attributes:
        task: The task, such as "worker:0".
        attempt: The number of the task's process, from 1.
        start: The global step before the first step.
        steps: The number of steps.
        time: The time of the start, in seconds since 1970 by the task's clock.
        run_id: The id of the job's start, the same for all its tasks; None if it has no id.
        ended: Whether training completed.
        generations: The iterators of its records.
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
        """Metadata of its data; empty without data."""
        return self.generations[0].facts if self.generations else {}

    def generation(self, step: int) -> tuple[Generation, int] | None:
        """Return the generation of a global step, and the step's number in it."""
        number = step - self.start - 1
        for generation in self.generations[:-1]:
            if number < generation.steps:
                return generation, number
            number -= generation.steps
        return (self.generations[-1], number) if self.generations else None

    def ids(self, step: int) -> np.ndarray | None:
        """Return the records that the task consumed at a global step, counted from 1; None if unknown."""
        source = self.generation(step)
        return source[0].ids(source[1]) if source is not None and step > self.start else None


@dataclass
class LedgerAttempt:
    """One file of the ledger.

    Attributes:
        path: The file.
        task: The task that wrote it.
        number: The number of the task's process, from 1.
        tasks: All tasks of the training.
        asynchronous: Whether the tasks step independently.
        segments: The training steps.
        torn: Unreadable bytes at the end; 0 for a complete file.
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
    """A training of all tasks together; of an asynchronous worker, one training of this worker.

    Attributes:
        number: The number of the run, from 1.
        tasks: The tasks of the cluster.
        segments: The steps of each task.
        start: The global step before the first step.
        end: The last step of any task.
        counts: The last step that counts; `start` if none does.
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
        """Whether every task completed."""
        return all(segment.ended for segment in self.segments.values()) and set(self.segments) >= set(self.tasks)

    def ids(self, step: int) -> dict[str, np.ndarray | None]:
        """Return the ids that each task consumed at a step; None if the ledger has no entry.

        All workers make a synchronous step, or none: if a process died between the step and its entry, the ledger has
        the step's records as fetched.
        """
        consumed: dict[str, np.ndarray | None] = {}
        for task in self.tasks:
            segment = self.segments.get(task)
            seen = segment is not None and step <= segment.end + 1
            consumed[task] = segment.ids(step) if segment is not None and seen else None
        return consumed


@dataclass
class Ledger:
    """A ledger.

    Attributes:
        folder: The folder.
        attempts: The files, by task and number.
        runs: The runs, in order of time.
        unreadable: Files that cannot be read, with the reason.
        unbegun: Unreadable files without a counted step, because their process ended while it created them.
    """

    folder: Path
    attempts: list[LedgerAttempt]
    runs: list[LedgerRun]
    unreadable: dict[Path, str] = field(default_factory=dict)
    unbegun: tuple[Path, ...] = ()

    @property
    def asynchronous(self) -> bool:
        """Whether workers step independently; each task then counts its steps."""
        return any(attempt.asynchronous for attempt in self.attempts)

    @property
    def kind(self) -> str:
        """The kind of ids: "records" (numbers) or "fingerprints" of their content."""
        kinds = {s.facts["kind"] for run in self.runs for s in run.segments.values() if s.facts}
        return "fingerprints" if "fingerprints" in kinds else "records"

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks in the ledger."""
        return tuple(dict.fromkeys(task for run in self.runs for task in run.tasks))

    @property
    def last_step(self) -> int:
        """The last counted step; 0 without any."""
        return max((run.counts for run in self.runs if run.counts > run.start), default=0)

    def counted(self) -> Iterator[tuple[LedgerRun, int]]:
        """Yield each counted step with its run."""
        for run in self.runs:
            for step in range(run.start + 1, run.counts + 1):
                yield run, step

    def ids(self, step: int) -> dict[str, np.ndarray]:
        """Return the records that each task consumed at a counted step: int64 numbers, or uint64 fingerprints.

        Args:
            step: The step's number in logs: the first step is 1.
        """
        consumed: dict[str, np.ndarray] = {}
        for run in self.runs:
            if run.start < step <= run.counts:
                consumed |= {task: ids for task, ids in run.ids(step).items() if ids is not None}
        return consumed


def read(folder: str | os.PathLike[str]) -> Ledger:
    """Read a ledger.

    Args:
        folder: The folder of the ledger.

    Raises:
        ConfigError: There is no ledger in the folder.
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
    """A file without a header.

    Attributes:
        steps: Whether its counter shows steps, or may have shown some.
    """

    def __init__(self, message: str, *, steps: bool) -> None:
        super().__init__(message)
        self.steps = steps


def _read_file(path: Path, task: str, number: int) -> LedgerAttempt:
    data = path.read_bytes()
    if len(data) < blocks.BEGIN or not data.startswith(blocks.MAGIC):
        # A file with a different start is not a ledger, or is damaged.
        damaged = not blocks.MAGIC.startswith(data[: len(blocks.MAGIC)]) or any(data[blocks.COUNTER : blocks.BEGIN])
        raise _NoHeader("it is not a ledger file, or truncated within its first bytes", steps=damaged)
    segment_now, steps_now = blocks.split_word(int.from_bytes(data[blocks.COUNTER : blocks.BEGIN], sys.byteorder))
    about: dict[str, Any] = {}
    begun: list[dict[str, Any]] = []
    ended: set[int] = set()
    done: dict[int, int] = {}
    generations: list[Generation] = []
    torn = 0
    for block in blocks.parse(data):
        if isinstance(block, int):
            torn = len(data) - block
        elif block.kind == blocks.HEADER:
            about = json.loads(block.payload)
        elif block.kind == blocks.GENERATION:
            generations.append(Generation(json.loads(zlib.decompress(block.payload))))
        elif block.kind == blocks.ROWS:
            generations[blocks.generation_of(block.payload)].add(block.payload)
        elif block.kind == blocks.SEGMENT:
            begun.append(json.loads(block.payload))
        elif block.kind == blocks.END:
            end = json.loads(block.payload)
            ended.add(end["segment"])
            done[end["segment"]] = end["steps"]
    if not about:
        raise _NoHeader("its header cannot be read", steps=bool(segment_now or steps_now))
    done.setdefault(segment_now, steps_now)
    segments = []
    for at, entry in enumerate(begun):
        after = begun[at + 1] if at + 1 < len(begun) else None
        last = len(generations) if after is None else after["after"] + 1
        # The counter belongs to the last segment; the start of the next segment has the steps of this one.
        steps = done.get(entry["segment"], after["made"] if after else 0)
        iterators = generations[entry["after"] + 1 : last]
        plan = iterators[0].facts.get("plan") if iterators else None
        segments.append(
            Segment(
                task=about["task"],
                attempt=number,
                # Workers that step independently resume at their share of the global step, like their data.
                start=plan["first"] if plan is not None and about["asynchronous"] else entry["start"],
                steps=steps,
                time=entry["time"],
                ended=entry["segment"] in ended,
                generations=iterators,
                run_id=entry.get("run"),
            )
        )
    return LedgerAttempt(path, about["task"], number, tuple(about["tasks"]), about["asynchronous"], segments, torn)


_Entry = tuple[Segment, LedgerAttempt]
"""A segment, and its file."""


def _runs(attempts: Sequence[LedgerAttempt]) -> list[LedgerRun]:
    """Group the segments that were trained together, and determine how far each run counts."""
    asynchronous = any(attempt.asynchronous for attempt in attempts)
    queues: dict[str, list[_Entry]] = {attempt.task: [] for attempt in attempts}
    for attempt in attempts:
        queues[attempt.task] += [(segment, attempt) for segment in attempt.segments]
    runs: list[LedgerRun] = []
    while any(queues.values()):
        entry = _next(queues)
        first, attempt = entry
        queues[first.task].pop(0)
        run = LedgerRun(0, (first.task,) if attempt.asynchronous else attempt.tasks, {first.task: first})
        later = _alike(queues[first.task], entry)
        for task in run.tasks:
            if task == first.task or not queues.get(task) or not _together(queues[task][0], entry):
                continue
            other = queues[task][0][0]
            # A task that started there less often than this one may have missed this start.
            missed = len(_alike(queues[task], entry)) <= len(later)
            if not (missed and any(abs(other.time - next_.time) < abs(other.time - first.time) for next_ in later)):
                run.segments[task] = other
                queues[task].pop(0)
        if run.end > run.start:
            runs.append(run)
    for number, run in enumerate(runs, 1):
        run.number = number
    limits: dict[str, int] = {}
    for run in reversed(runs):
        # Each worker that steps independently has a separate chain of attempts, if its data has the start.
        chain = run.tasks[0] if asynchronous else ""
        limit = limits.get(chain)
        if asynchronous and "plan" not in next(iter(run.segments.values())).facts:
            limit = None
        run.counts = max(run.start, run.end if limit is None else min(run.end, limit))
        if limit == run.end + 1 and all(ids is not None for ids in run.ids(limit).values()):
            # The later run began there, so there was a checkpoint of a step that was not counted.
            run.counts = limit
        limits[chain] = run.start if limit is None else min(limit, run.start)
    if asynchronous:
        _exclude_repeated_steps(runs)
    return runs


def _exclude_repeated_steps(runs: Sequence[LedgerRun]) -> None:
    """Limit independent workers that made no step in the start that resumed from a checkpoint.

    The next step of such a worker belongs to a later start, which does not show what was lost before. All tasks of a
    start begin at the same share of its checkpoint, so the start of a different task is used.
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
        later = [started[run_id] for run_id in order[order.index(segment.run_id) + 1 :] if task not in started[run_id]]
        limit = min((start for starts in later for start in starts.values()), default=run.counts)
        run.counts = max(run.start, min(run.counts, limit))


def _in_order(runs: Sequence[LedgerRun], run_ids: Sequence[str]) -> list[str]:
    """Return the starts of a job in the order of each task's files, regardless of the clocks."""
    before: dict[str, set[str]] = {run_id: set() for run_id in run_ids}
    last: dict[str, str] = {}
    for run in runs:
        for task, segment in run.segments.items():
            if segment.run_id in before:
                if last.get(task, segment.run_id) != segment.run_id:
                    before[segment.run_id].add(last[task])
                last[task] = segment.run_id
    # Starts without an order in the files follow the clocks; a cycle of ids cannot be sorted.
    with contextlib.suppress(graphlib.CycleError):
        return list(graphlib.TopologicalSorter(before).static_order())
    return list(run_ids)


def _next(queues: Mapping[str, Sequence[_Entry]]) -> _Entry:
    """Return the next segment.

    The files of a task are in order, regardless of its clock. So a segment waits if its counterpart has earlier
    segments. Clocks, which may jump or differ, decide between the remaining segments.
    """
    heads = sorted((queue[0] for queue in queues.values() if queue), key=lambda entry: entry[0].time)
    return next((entry for entry in heads if not _waits(entry, queues)), heads[0])


def _waits(entry: _Entry, queues: Mapping[str, Sequence[_Entry]]) -> bool:
    """Return whether the counterpart of a segment is not the next of its task."""
    segment, attempt = entry
    if attempt.asynchronous:
        return False
    others = [queues[task] for task in attempt.tasks if task != segment.task and queues.get(task)]
    return any(
        not _together(queue[0], entry) and any(_together(other, entry) for other in queue[1:]) for queue in others
    )


def _together(first: _Entry, second: _Entry) -> bool:
    """Return whether two segments, of two tasks or of one, may belong to the same run."""
    (a, its), (b, others) = first, second
    # Ledgers of earlier versions and clusters that are started manually have no run ids.
    same = a.run_id is None or b.run_id is None or a.run_id == b.run_id
    return same and a.start == b.start and its.tasks == others.tasks


def _alike(queue: Sequence[_Entry], entry: _Entry) -> list[Segment]:
    """Return the next segments of a task that may belong to the same run."""
    return [segment for segment, _ in itertools.takewhile(lambda other: _together(other, entry), queue)]
