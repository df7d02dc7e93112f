"""The report of a fault campaign, as Markdown."""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version

from fault_jobs import ROOT, SHAPES, Fault

_HEAD = """\
# Fault campaign

`make faults` (`tests/faults/campaign.py`) injects several faults per job, at random moments, and verifies each job
against the documentation and an uninterrupted job of the same kind. `blows.py` contains the faults, `fault_judging.py`
the checks:

- Weights and final metrics ([resuming](../guides/resuming.md), [evaluation](../guides/evaluation.md)): bit-identical in
  synchronous jobs; equal except for rounding after a change of the number of workers.
- Exports ([evaluation](../guides/evaluation.md)): the last one is of the final checkpoint, with its values and those of
  the uninterrupted job; each one loads and predicts; no more than `exports_to_keep`.
- Records ([ledger](../guides/ledger.md)): synchronous: each once at its step; parameter servers: each worker by its
  plan.
- Updates of parameter servers ([preemption](../guides/preemption.md)): a stopped attempt loses none, unless a worker
  did not confirm in time that it has stopped; a finished one none up to `max_steps`; a killed one none that is in a
  checkpoint; each worker resumes at its share.
- Checkpoints ([resuming](../guides/resuming.md)): damaged ones, and only those, are in `damaged/`; no partial one
  remains.
- History ([restarts](../guides/restarts.md)): every line of `events.jsonl` is readable; each attempt, its end and its
  restart are recorded; the end is last; `summary.json` agrees.
- Signals ([preemption](../guides/preemption.md)): the launcher exits with the documented code and its tasks exit on
  their own; an attempt with a stopped task ends as preempted.
- A second stop request to a task or the launcher ([preemption](../guides/preemption.md)): no step is lost; if a task is
  killed meanwhile, no more than documented.
- Exit code 0 before the end ([restarts](../guides/restarts.md)): the task is named and restarted.
- Data ([inputs](../guides/inputs.md)): a flipped bit in a record, or a replaced file of the same name, size and number
  of records, ends the job with exit code 2, which names them; after the repair, training resumes.
- Checkpoints missing between two attempts ([restarts](../guides/restarts.md), [resuming](../guides/resuming.md)): exit
  code 2; when they are back, training resumes. An empty or corrupt state file is rebuilt.
- Tasks on several machines, without a launcher ([clusters](../guides/clusters.md)): different jobs: each exits with
  code 2 and names the field, nothing is trained. A missing task is named by the other, which exits. A stopped process
  or cut network (namespaces): for a few seconds, training continues; beyond the grace period (ten seconds here), each
  exits and names the other, and a launcher resumes.
- Full log disk ([restarts](../guides/restarts.md)): training continues without a restart.
- Processes ([restarts](../guides/restarts.md)): none remains.

Weaker guarantees:

- A temporary rendezvous file (`estimator_pipeline/*.tmp`) of a killed process remains for a day.
- A killed launcher records no end, and its last event may be truncated. Events are lost while the disk is full, and so
  is the summary of a launcher that ends then.
- For parameter servers, records beyond the share (left out or read again after a resume), and updates of a killed
  attempt since its last checkpoint, are only measured.
- A flipped bit in a checkpoint's index may be in an unused byte; one in its values must be detected.
"""


def versions() -> str:
    """The commit, and what it ran on."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    # The report itself is what such a run changes.
    changed = [line for line in git("status", "--porcelain").splitlines() if not line.endswith("fault-campaign.md")]
    return (
        f"commit {commit}{' with changes' if changed else ''}; TensorFlow {version('tensorflow')}, "
        f"Python {sys.version_info.major}.{sys.version_info.minor}"
    )


def report(found: Sequence[Fault], *, seed: int, versions: str) -> str:
    """The document.

    Args:
        found: every fault.
        seed: of the campaign.
        versions: see `versions`.
    """
    bad = {fault.job for fault in found if fault.problem}
    lines = [
        _HEAD,
        f"Seed {seed}; {versions}; two cores.",
        f"{len(found)} faults in {len({fault.job for fault in found})} jobs; jobs with problems: {len(bad)}.",
        f"`make faults FAULTS={len(found)} SEED={seed}` repeats the same choices.",
        "",
        "A fault *landed* if it hit its target in time. The others hit the job later (the process had just ended, the",
        "checkpoint was already written).",
        "",
        "| fault | number | landed | seconds to the next step, median | longest | problems |",
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
    lines += ["", *_measured(found)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _measured(found: Sequence[Fault]) -> list[str]:
    """The most of each number, and in how many jobs there was any."""
    numbers: dict[str, list[float]] = collections.defaultdict(list)
    for fault in found:
        for name, value in fault.measured.items():
            numbers[name].append(value)
    if not numbers:
        return []
    lines = ["| measured per job | maximum | jobs measured | not 0 |",
             "| --- | --- | --- | --- |"]  # fmt: skip
    for name, values in sorted(numbers.items()):
        lines.append(f"| {name} | {max(values):.3g} | {len(values)} | {sum(value != 0 for value in values)} |")
    return lines
