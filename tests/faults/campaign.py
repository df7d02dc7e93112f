"""A fault campaign: jobs that are killed, stopped, starved and torn at random moments, and what became of them.

    python tests/faults/campaign.py --faults 200 --seed 7 --results faults.jsonl --report report.md

Each job is a real cluster under `estimator-pipeline launch --max-restarts`, on real data, with a ledger. While it
trains, faults hit it at random moments; the seed is printed, and chooses jobs, kinds and delays. The kinds that a shape
of job has met least come first, so that a long campaign has all of them several times. A fault that came too late (the
process had gone, the checkpoint was written) is told, and does not count as landed. When a job has ended it is judged
by what the documents promise (`fault_judging.py`). The exit code is 0 when nothing was found.

`--results` keeps every fault of a job that has been judged; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from blows import ASKED, FAULTS
from fault_hands import has_networks
from fault_jobs import (
    BY_HAND,
    NEEDS_DISKS,
    NEEDS_NETWORKS,
    ROOT,
    SHAPES,
    WEIGHTS,
    Fault,
    Hang,
    Job,
    Launch,
    Shape,
    events_of,
    until,
)
from fault_judging import Judgement, judge
from fault_report import report, versions

FAULTS_A_JOB = 10


def attack(job: Job, kinds: list[str], rng: random.Random, *, first: int, number: int) -> Iterator[Fault]:
    """Runs a job, and hits it with one fault after the other while it trains."""
    job.start()
    for kind in kinds:
        if not _trains(job):
            return
        time.sleep(rng.uniform(0, 1.5))
        if not job.running:
            return
        fault = Fault(first, number, job.shape.name, kind, job.step(), job.checkpoint())
        first += 1
        steps, launch, hit = _first_steps(job), job.launches[-1], time.monotonic()
        attempt, can_stop = job.attempt(), _all_train(job)
        try:
            blow = FAULTS[kind](job, rng)
            fault.landed, fault.problem = blow.landed, blow.problem
            if fault.problem:
                yield fault
                return
            if blow.launcher:
                job.start()
            steps = steps if launch is job.launches[-1] else 0
            # Without its evaluator an attempt goes on, and so it does without its logs, or where nothing hit it.
            before = (job.step() or 0) if kind in ("term evaluator", "full log disk", *BY_HAND) else math.inf
            until(
                "a step, or the end",
                lambda steps=steps, before=before: (
                    _first_steps(job) > steps or (job.step() or 0) > before or not job.running
                ),
            )
            fault.seconds = round(time.monotonic() - hit, 1)
            if kind in ASKED and fault.landed and can_stop:
                fault.problem = _not_asked(job, launch, attempt)
            if blow.goes_on:
                fault.problem = began_anew(job.events(), blow.goes_on)
        except Hang as hang:
            fault.problem = f"hang: {hang}"
        job.calm = time.time()
        yield fault
        if fault.problem:
            return
    # What the last fault began is let come to its end by the caller.


def _all_train(job: Job) -> bool:
    """Whether every training task has made a step: one that still imports has nothing to save."""
    return all(job.has_stepped(task) for task in job.tasks() if not task.startswith(("ps", "evaluator")))


def _not_asked(job: Job, launch: Launch, attempt: Path | None) -> str:
    """What is wrong with the end of an attempt of which a task was asked to end; nothing where it had ended before."""
    number = 0 if attempt is None else int(attempt.name.rpartition("-")[2])
    ends = [
        event["reason"]
        for event in events_of(launch.logs)
        if event["event"] == "attempt_ended" and event["attempt"] == number
    ]
    if ends in ([], ["preempted"], ["done"]):
        return ""
    return f"a task was asked to end, and attempt {number} ended as {ends[0]}"


def began_anew(events: Sequence[dict[str, Any]], goes_on: int) -> str:
    """What is wrong with where a launch went on from; nothing where it had no step to make."""
    first = [event for event in events if event["event"] == "first_step"]
    # Where it is not known, as beside parameter servers, the first step itself is no earlier one.
    begun = [event["step"] if event["from_step"] is None else event["from_step"] for event in first]
    if not begun or begun[0] >= goes_on:
        return ""
    return f"training went on from step {begun[0]}, and there was a checkpoint of step {goes_on}"


def _first_steps(job: Job) -> int:
    return sum(event["event"] == "first_step" for event in job.events())


def _is_training(job: Job) -> bool:
    return _first_steps(job) > 0 and not job.attempts_ended


def _trains(job: Job) -> bool:
    """Waits until the attempt has made a step; False when the job is over."""
    until("the first step of an attempt", lambda: not job.running or _is_training(job))
    return job.running


def undisturbed(folder: Path, shape: Shape, environ: dict[str, str]) -> Path:
    """The model directory of a job of this shape that nobody touches."""
    job = Job(folder, shape, environ)
    job.start()
    problems = judge(job, None).problems
    job.end()
    if problems:
        raise SystemExit(f"the undisturbed job ({shape.name}) failed: {problems}; see {folder}")
    return job.model_dir


def campaign(
    folder: Path,
    *,
    faults: int,
    seed: int,
    kinds: tuple[str, ...] | None = None,
    shapes: tuple[Shape, ...] = SHAPES,
    changes: tuple[str, ...] = (),
    seconds: float = float("inf"),
    before: Sequence[Fault] = (),
    judged: Callable[[list[Fault]], None] = lambda hits: None,
    tell: Callable[[str], None] = print,
) -> list[Fault]:
    """Runs jobs until `faults` have hit, or time is up; every fault, with what was found.

    Args:
        folder: for the jobs; those in which something was found stay there.
        faults: how many.
        seed: of all choices.
        kinds: of these alone.
        shapes: of jobs.
        changes: to all job files.
        seconds: no new job is begun after so many.
        before: the faults of the same campaign so far; it goes on with the job after theirs.
        judged: gets the faults of each job, when it has been judged.
        tell: gets a line for each fault.
    """
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    shapes = tuple(dataclasses.replace(shape, changes=(*shape.changes, *changes)) for shape in shapes)
    references: dict[str, Path] = {}
    found = list(before)
    number, ends = max((fault.job for fault in found), default=0), time.monotonic() + seconds
    tell(f"fault campaign: {faults} faults, seed {seed}" + (f"; {len(found)} are done" if found else ""))
    while len(found) < faults and time.monotonic() < ends:
        number += 1
        rng = random.Random(f"{seed}/{number}")
        shape = rng.choices(shapes, WEIGHTS[: len(shapes)])[0]
        possible = [kind for kind in shape.kinds if kinds is None or kind in kinds]
        # A few kinds alone come several times.
        chosen = _least_met(possible, shape, found, rng) * FAULTS_A_JOB
        chosen = chosen[: min(FAULTS_A_JOB, faults - len(found))]
        if shape.exact and shape.name not in references:
            references[shape.name] = undisturbed(folder / f"undisturbed-{len(references)}", shape, environ)
        job = Job(folder / f"job-{number}", shape, environ)
        if NEEDS_DISKS & set(chosen) and not job.mount():
            chosen = [kind for kind in chosen if kind not in NEEDS_DISKS]
        if NEEDS_NETWORKS & set(chosen) and not has_networks():
            chosen = [kind for kind in chosen if kind not in NEEDS_NETWORKS]
        hits: list[Fault] = []
        found_in = Judgement()
        try:
            for fault in attack(job, chosen, rng, first=len(found) + 1, number=number):
                hits.append(fault)
                found.append(fault)
                tell(_line(fault))
            if not any(fault.problem for fault in hits):
                found_in = judge(job, references.get(shape.name))
        except Hang as hang:
            found_in.problems.append(f"hang: {hang}")
        finally:
            job.end()
            if found_in.problems or any(fault.problem for fault in hits):
                for disk in job.mounted:
                    shutil.copytree(disk, job.folder / "kept" / disk.name, dirs_exist_ok=True)
            job.unmount()
        if found_in.problems and not hits:
            # Before the first fault: a job that never came to its first step counts as well.
            hits.append(Fault(len(found) + 1, number, shape.name, "none"))
            found += hits
        if hits:
            hits[-1].problem = "; ".join([*filter(None, [hits[-1].problem]), *found_in.problems])
            hits[-1].measured = found_in.measured
        said = (hits and hits[-1].problem) or "as if nothing had been"
        told = ", ".join(f"{name} {value:.3g}" for name, value in found_in.measured.items() if value)
        tell(f"  job {number} ({shape.name}), {len(hits)} faults: {said}" + (f" ({told})" if told else ""))
        judged(hits)
        if hits and not hits[-1].problem:
            shutil.rmtree(job.folder, ignore_errors=True)
    return found


def _least_met(kinds: Sequence[str], shape: Shape, found: Sequence[Fault], rng: random.Random) -> list[str]:
    """The kinds in random order, those that a shape of job has met least, by their weights, before the others."""
    met = collections.Counter(fault.kind for fault in found if fault.shape == shape.name and fault.landed)

    def place(kind: str) -> tuple[float, float]:
        weight = shape.weights.get(kind, 1.0)
        return met[kind] / weight, rng.random() ** weight

    return sorted(kinds, key=place)


def _line(fault: Fault) -> str:
    again = "" if fault.seconds is None else f", {fault.seconds} s to the next step"
    where = f"at step {fault.step}, checkpoint {fault.checkpoint}"
    late = "" if fault.landed else ", came too late"
    return f"{fault.number:4d} {fault.shape:24s} {fault.kind:20s} {where}{again}{late} {fault.problem}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no job after so many")
    parser.add_argument("--kinds", help="of these alone, with commas between")
    parser.add_argument("--results", type=Path, help="keep each fault here, and go on from it by its seed")
    parser.add_argument("--report", type=Path, help="write the table here")
    parser.add_argument("--keep", type=Path, help="the folder of the jobs; otherwise a temporary one")
    options = parser.parse_args()
    # In the background of a shell it is ignored, and what is started inherits that: no launcher would hear it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The job that runs is ended with the campaign.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = options.keep or Path(tempfile.mkdtemp(prefix="faults-"))
    kinds = tuple(options.kinds.split(",")) if options.kinds else None
    unknown = set(kinds or ()) - set(FAULTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    shapes = tuple(shape for shape in SHAPES if kinds is None or set(kinds) & set(shape.kinds))
    before: list[Fault] = []
    if options.results and options.results.exists():
        first, *rest = options.results.read_text().splitlines()
        options.seed = json.loads(first)["seed"]
        before = [Fault(**json.loads(line)) for line in rest]
    elif options.results:
        options.results.write_text(json.dumps({"seed": options.seed}) + "\n")

    def judged(hits: list[Fault]) -> None:
        if options.results:
            with open(options.results, "a") as file:
                file.writelines(json.dumps(dataclasses.asdict(fault)) + "\n" for fault in hits)

    found = campaign(
        folder,
        faults=options.faults,
        seed=options.seed,
        kinds=kinds,
        shapes=shapes,
        seconds=60 * options.minutes,
        before=before,
        judged=judged,
        tell=lambda line: print(line, flush=True),
    )
    bad = [fault for fault in found if fault.problem]
    print(
        f"{len(found)} faults, {len(bad)} jobs in which something was found"
        + (f"; they are in {folder}" if bad else "")
    )
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    if options.report:
        options.report.write_text(report(found, seed=options.seed, versions=versions()))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
