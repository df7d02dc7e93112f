"""Updates and records of a parameter-server job: what its ledger says was made, and what its checkpoints have kept.

No two asynchronous runs are alike, so there are no weights to compare. What is promised instead
(docs/guides/preemption.md, docs/guides/resuming.md), and judged here:

- An attempt that was asked to end loses no update: its tasks have made no more steps than its checkpoint is ahead of
  the one before. A worker that has not said in time that it stands still may lose some.
- So does one that has come to its end, but for updates beyond `max_steps`: a worker that was in a step when the chief
  wrote the final checkpoint still adds it.
- The records of every update stand in the ledger: no checkpoint is further ahead than its tasks have made steps. Each
  task may have one more than it has counted, as where it dies between a step and its count. An attempt may begin at a
  checkpoint that was written in the midst of training, which holds updates that came after the step of its name: as
  many as lie before the first step that a task reports.
- Each worker goes on at its share of the steps of the checkpoint that it has found. (One that comes late may find a
  later one than the chief.)

How many records a worker leaves out or reads again as it goes on at its share, nothing bounds: that is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fault_jobs import BATCH, Job, events_of

# Said by the chief of a worker whose updates it did not wait for.
SLOW = "has not reported that it has stopped"


@dataclasses.dataclass
class Made:
    """One attempt that trained.

    Attributes:
        run_id: its own.
        begins: task -> the global step of the checkpoint that it has found.
        starts: task -> the step of its own at which it began to read.
        steps: task -> how many it made.
        reason: why the attempt ended, as the history says; None where that is not told.
        slow: whether a worker was not waited for.
        starved: whether its disk was full, so that its ledger may have ended before it.
        first: the global step of the first report; None if there is no report.
    """

    run_id: str
    begins: dict[str, int] = dataclasses.field(default_factory=dict)
    starts: dict[str, int] = dataclasses.field(default_factory=dict)
    steps: dict[str, int] = dataclasses.field(default_factory=dict)
    reason: str | None = None
    slow: bool = False
    starved: bool = False
    first: int | None = None

    @property
    def checkpoint(self) -> int:
        """The global step that the attempt began at."""
        return min(self.begins.values())


def of_updates(job: Job) -> tuple[list[str], dict[str, float]]:
    """What is wrong, and the most that was lost or doubled at one restart."""
    attempts, final = read_attempts(job), job.checkpoint()
    if not attempts or final is None:
        return ["no attempt stands in the ledger"], {}
    return check(attempts, final=final, last=job.shape.most_steps, records_per_step=BATCH)


def read_attempts(job: Job) -> list[Made]:
    """The attempts that stand in the ledger, in their order."""
    from estimator_pipeline.inputs import ledger

    found: dict[str, Made] = {}
    for run in ledger.read(job.model_dir / "ledger").runs:
        for task, segment in run.segments.items():
            plan = segment.facts.get("plan")
            if segment.run_id is None or plan is None:
                continue
            made = found.setdefault(segment.run_id, Made(segment.run_id))
            made.begins.setdefault(task, int(plan["start_step"]))
            made.starts.setdefault(task, segment.start)
            made.steps[task] = made.steps.get(task, 0) + segment.steps
    order: list[str] = []
    for launch in job.launches:
        events = events_of(launch.logs)
        ended = {event["attempt"]: event["reason"] for event in events if event["event"] == "attempt_ended"}
        first = {event["attempt"]: event["step"] for event in events if event["event"] == "first_step"}
        for event in events:
            made = found.get(str(event.get("run_id"))) if event["event"] == "attempt_started" else None
            if made is None:
                continue
            order.append(made.run_id)
            made.reason, made.first = ended.get(event["attempt"]), first.get(event["attempt"])
            made.starved = made.run_id in job.starved
            logs = (launch.logs / f"attempt-{event['attempt']}").glob("*.log")
            made.slow = any(SLOW in path.read_text(errors="replace") for path in logs)
    if len(order) < len(found):
        # Of attempts whose history found no room there is no word; they go on from checkpoints all the same.
        return sorted(found.values(), key=lambda made: made.checkpoint)
    return [found[name] for name in order]


def check(
    attempts: Sequence[Made], *, final: int, last: int, records_per_step: int
) -> tuple[list[str], dict[str, float]]:
    """The same, of attempts that were read.

    Args:
        attempts: in their order.
        final: the global step of the last checkpoint, which is `max_steps` or beyond.
        last: the step of the last update, at the most.
        records_per_step: that a worker reads for one step of its own.
    """
    problems: list[str] = []
    most: dict[str, float] = dict.fromkeys(
        ("updates lost when asked", "updates lost when killed", "updates beyond the end", "updates not counted",
         "records left out", "records read again"), 0
    )  # fmt: skip

    def measure(name: str, number: float) -> None:
        most[name] = max(most[name], number)

    tasks = len({task for made in attempts for task in made.starts})
    ends = [*(made.checkpoint for made in attempts[1:]), final]
    for made, end, after in zip(attempts, ends, [*attempts[1:], None], strict=True):
        if made.starved:
            continue
        kept, done = end - made.checkpoint, sum(made.steps.values())
        asked = made.reason in ("preempted", "done")
        name = {"preempted": "updates lost when asked", "done": "updates beyond the end"}
        measure(name.get(str(made.reason), "updates lost when killed"), done - kept)
        measure("updates not counted", kept - done)
        # What comes after the final checkpoint is beyond `max_steps`, for that is of it or beyond.
        allowed = last - final if made.reason == "done" else 0
        if asked and done - kept > allowed and not made.slow:
            problems.append(
                f"updates: attempt {made.run_id} ({made.reason}) made {done} steps and kept {kept}: {done - kept} "
                "were lost"
            )
        unnamed = 0 if made.first is None else max(0, made.first - 1 - made.checkpoint)
        if kept - done > len(made.steps) + unnamed:
            problems.append(
                f"updates: attempt {made.run_id} made {done} steps by its ledger, and its checkpoint has {kept}"
            )
        shares = {task: start for task, start in made.starts.items() if start != made.begins[task] // tasks}
        if shares:
            problems.append(f"records: {shares} began at another step than their share of {made.begins}")
        if asked and after is not None:
            for task in made.steps.keys() & after.starts.keys():
                gap = (after.starts[task] - made.starts[task] - made.steps[task]) * records_per_step
                measure("records left out" if gap > 0 else "records read again", abs(gap))
    return problems, most
