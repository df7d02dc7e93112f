"""A fault campaign: jobs that are killed, stopped, starved and torn at random moments, and what became of them.

    python tests/faults/campaign.py --faults 200 --seed 7 --results faults.jsonl --report docs/fault-campaign.md

Each job is a real cluster under `estimator-pipeline launch --max-restarts`, on real data, with a ledger. While it
trains, faults hit it at random moments; the seed is printed, and chooses jobs, kinds and delays. The kinds that a shape
of job has met least come first, so that a long campaign has all of them several times. A fault that came too late (the
process had gone, the checkpoint was written) is told, and does not count as landed. When a job has ended it is judged:
does it end at all, before its deadline; is any process of it left; are the final weights those of a job that nobody
disturbed, bit by bit (synchronous jobs); has each record been consumed once at its step (the ledger). The exit code is
0 when nothing was found.

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from blows import FAULTS
from fault_jobs import DEADLINE_SECS, ROOT, SHAPES, WEIGHTS, Fault, Hang, Job, Shape, until

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
        steps, hit = _first_steps(job), time.monotonic()
        try:
            blow = FAULTS[kind](job, rng)
            fault.landed = blow.landed
            if blow.launcher:
                job.start()
                steps = 0
            # Without its evaluator an attempt goes on.
            before = (fault.step or 0) if kind == "term evaluator" else math.inf
            until(
                "a step, or the end",
                lambda steps=steps, before=before: (
                    _first_steps(job) > steps or (job.step() or 0) > before or not job.running
                ),
            )
            fault.seconds = round(time.monotonic() - hit, 1)
        except Hang as hang:
            fault.problem = f"hang: {hang}"
            yield fault
            return
        yield fault
    # What the last fault began is let come to its end by the caller.


def _first_steps(job: Job) -> int:
    return sum(event["event"] == "first_step" for event in job.events())


def _is_training(job: Job) -> bool:
    return _first_steps(job) > 0 and not job.attempts_ended


def _trains(job: Job) -> bool:
    """Waits until the attempt has made a step; False when the job is over."""
    until("the first step of an attempt", lambda: not job.running or _is_training(job))
    return job.running


def judge(job: Job, reference: Path | None) -> list[str]:
    """What is wrong with a job that has been let come to its end."""
    problems = []
    try:
        until("the job's end", lambda: not job.running, seconds=2 * DEADLINE_SECS)
    except Hang as hang:
        job.end()
        return [f"hang: {hang}"]
    if job.process.returncode != 0:
        return [f"exit code {job.process.returncode}: {_last_lines(job.logs / 'launch.out')}"]
    if left := job.orphans():
        problems.append(f"orphans: {left}")
    asked = [sys.executable, "-m", "estimator_pipeline", "inspect", str(job.file), "--ledger",
             str(job.model_dir / "ledger"),
             *(word for change in (*job.shape.changes, f"run.model_dir={job.model_dir}")
               for word in ("--set", change))]  # fmt: skip
    done = subprocess.run(asked, capture_output=True, text=True, env=job.environ, cwd=ROOT, timeout=120)
    if done.returncode != 0:
        problems.append(f"ledger: {done.stdout.strip()[-500:]} {done.stderr.strip()[-300:]}")
    if reference is not None:
        problems += _differences(reference, job.model_dir)
    return problems


_COMPARE = """
import sys
import numpy as np
import tensorflow as tf
one, other = (tf.train.load_checkpoint(tf.train.latest_checkpoint(folder)) for folder in sys.argv[1:])
names, others = (
    {name for name in each.get_variable_to_shape_map() if "save_counter" not in name and "OBJECT_GRAPH" not in name}
    for each in (one, other)
)
assert names == others, names ^ others
bad = [name for name in sorted(names) if not np.array_equal(one.get_tensor(name), other.get_tensor(name))]
print("differ:", ", ".join(bad) if bad else "nothing")
"""


def _differences(reference: Path, model_dir: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, str(reference), str(model_dir)], capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        return [f"weights: {done.stderr.strip()[-300:]}"]
    told = done.stdout.strip().splitlines()[-1]
    return [] if told == "differ: nothing" else [f"weights {told}"]


def _last_lines(path: Path) -> str:
    return " | ".join(path.read_text(errors="replace").strip().splitlines()[-6:])[-600:]


def undisturbed(folder: Path, shape: Shape, environ: dict[str, str]) -> Path:
    """The model directory of a job of this shape that nobody touches."""
    job = Job(folder, shape, environ)
    job.start()
    problems = judge(job, None)
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
        chosen = _least_met(possible, shape, found, rng)[: min(FAULTS_A_JOB, faults - len(found))]
        if shape.exact and shape.name not in references:
            references[shape.name] = undisturbed(folder / f"undisturbed-{len(references)}", shape, environ)
        job = Job(folder / f"job-{number}", shape, environ)
        if "full disk" in chosen:
            job.mount()
            if not job.mounted:
                chosen = [kind for kind in chosen if kind != "full disk"]
        hits: list[Fault] = []
        problems: list[str] = []
        try:
            for fault in attack(job, chosen, rng, first=len(found) + 1, number=number):
                hits.append(fault)
                found.append(fault)
                tell(_line(fault))
            if not any(fault.problem for fault in hits):
                problems = judge(job, references.get(shape.name))
        except Hang as hang:
            problems = [f"hang: {hang}"]
        finally:
            job.end()
            kept = job.folder / "kept"
            if (problems or any(fault.problem for fault in hits)) and job.mounted:
                shutil.copytree(job.disk, kept, dirs_exist_ok=True)
            job.unmount()
        if problems and not hits:
            # Before the first fault: a job that never came to its first step counts as well.
            hits.append(Fault(len(found) + 1, number, shape.name, "none"))
            found += hits
        if hits:
            hits[-1].problem = "; ".join([*filter(None, [hits[-1].problem]), *problems])
        said = "; ".join(problems) or (hits and hits[-1].problem) or "as if nothing had been"
        tell(f"  job {number} ({shape.name}), {len(hits)} faults: {said}")
        judged(hits)
        if hits and not hits[-1].problem:
            shutil.rmtree(job.folder, ignore_errors=True)
    return found


def _least_met(kinds: Sequence[str], shape: Shape, found: Sequence[Fault], rng: random.Random) -> list[str]:
    """The kinds in random order, those that a shape of job has met least before the others."""
    met = collections.Counter(fault.kind for fault in found if fault.shape == shape.name and fault.landed)
    return sorted(kinds, key=lambda kind: (met[kind], rng.random()))


def _line(fault: Fault) -> str:
    again = "" if fault.seconds is None else f", {fault.seconds} s to the next step"
    where = f"at step {fault.step}, checkpoint {fault.checkpoint}"
    late = "" if fault.landed else ", came too late"
    return f"{fault.number:4d} {fault.shape:24s} {fault.kind:20s} {where}{again}{late} {fault.problem}"


def report(found: list[Fault], *, seed: int, versions: str) -> str:
    """The campaign as a document."""
    bad = [fault for fault in found if fault.problem]
    jobs = len({fault.job for fault in found})
    lines = [
        "# The fault campaign",
        "",
        "Made by `make faults` (`tests/faults/campaign.py`, where it is written how jobs are judged; `blows.py` beside",
        "it has each fault). A job has several faults, one after the other, at random moments. When it has ended, the",
        "final weights are compared with those of a job that nobody disturbed, bit by bit (synchronous jobs), its",
        "ledger is checked for records that were consumed twice or never, and the machine is searched for processes",
        "that were left.",
        "",
        f"Seed {seed}; {versions}; two cores. {len(found)} faults in {jobs} jobs; jobs in which something was found: "
        f"{len({fault.job for fault in bad})}.",
        f"`make faults FAULTS={len(found)} SEED={seed}` makes the same choices.",
        "",
        "*Landed* are those that met what they were meant for; the others came too late (the process had just ended,",
        "the checkpoint was written already), and hit the job all the same.",
        "",
        "| fault | number | landed | seconds to the next step, median | longest | found |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    by_kind: dict[str, list[Fault]] = collections.defaultdict(list)
    for fault in found:
        by_kind[fault.kind].append(fault)
    for kind, faults in sorted(by_kind.items()):
        seconds = sorted(fault.seconds for fault in faults if fault.seconds is not None)
        middle = f"{seconds[len(seconds) // 2]:.1f}" if seconds else ""
        longest = f"{seconds[-1]:.1f}" if seconds else ""
        problems = "; ".join(f"job {fault.job}: {fault.problem[:160]}" for fault in faults if fault.problem)
        landed = sum(fault.landed for fault in faults)
        lines.append(f"| {kind} | {len(faults)} | {landed} | {middle} | {longest} | {problems or 'nothing'} |")
    lines += ["", "| job | faults | jobs |", "| --- | --- | --- |"]
    for shape in SHAPES:
        faults = [fault for fault in found if fault.shape == shape.name]
        lines.append(f"| {shape.name} | {len(faults)} | {len({fault.job for fault in faults})} |")
    return "\n".join(lines) + "\n"


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
        from importlib.metadata import version

        told = f"TensorFlow {version('tensorflow')}, Python {sys.version_info.major}.{sys.version_info.minor}"
        options.report.write_text(report(found, seed=options.seed, versions=told))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
