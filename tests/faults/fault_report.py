"""A campaign as a document."""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version

from fault_jobs import ROOT, SHAPES, Fault

_HEAD = """\
# The fault campaign

Made by `make faults` (`tests/faults/campaign.py`; `blows.py` beside it has each fault, `fault_judging.py` how jobs are
judged). A job has several faults, one after the other, at random moments. When it has ended it is held against what
the documents promise, and against a job of the same kind that nobody disturbed:

- **Weights** ([resuming.md](resuming.md)): the same bits in synchronous jobs; equal but for rounding where the job went
  on with another number of workers. **Final metrics** ([evaluation.md](evaluation.md)) likewise.
- **Exports** ([evaluation.md](evaluation.md)): the last one is of the final checkpoint, and has its values and those of
  the undisturbed job; each that is kept loads and answers; there are no more than `exports_to_keep`.
- **Records** ([ledger.md](ledger.md)): each once at its step in synchronous jobs; each worker by its plan under
  parameter servers.
- **Updates under parameter servers** ([preemption.md](preemption.md)): an attempt that was asked to end loses none,
  unless a worker has not said in time that it stands still; one that has come to its end none up to `max_steps`; of
  one that was killed none is lost that is in a checkpoint; each worker goes on at its share.
- **Checkpoints** ([resuming.md](resuming.md)): those that a fault has damaged are in `damaged/`, and nothing else; no
  half one is left.
- **The history** ([restarts.md](restarts.md)): every line of `events.jsonl` can be read; each attempt, its end and its
  restart are told; the end comes last; `summary.json` says the same.
- **Signals** ([preemption.md](preemption.md)): a launcher that gets one ends with the code that is written there, and
  its tasks end by themselves; an attempt of which a task was asked to end ends as preempted.
- **A stop while one is under way** ([preemption.md](preemption.md)): asked again, of another task or the launcher, it
  loses no step; where a task is killed meanwhile, no more than is said.
- **Exit code 0 before the end** ([restarts.md](restarts.md)): the task is named, and started again.
- **Data** ([inputs.md](inputs.md)): a record with a bit turned, and a file that another one of its name, size and
  number of records has replaced, end the job with exit code 2, which names them. Put right, it goes on.
- **Checkpoints that are gone between two attempts** ([restarts.md](restarts.md)): exit code 2; once they are back, the
  job goes on from them. An empty state file, or garbage, is made anew ([resuming.md](resuming.md)).
- **Tasks on several machines** ([clusters.md](clusters.md)), started by hand, without a launcher. Of different jobs:
  each ends with exit code 2, which names the field, and nothing is trained. One that never comes: the other names it,
  and ends. A process that is stopped, or a network that is cut (namespaces): for some seconds, they go on; for longer
  than the grace (ten seconds here), each ends and names the other. A launcher goes on from where they stood.
- **A full log disk** ([restarts.md](restarts.md)): training goes on, and nothing is started again.
- **Processes** ([restarts.md](restarts.md)): none is left.

Less is promised, and so judged, of this:

- A half file of the rendezvous (`estimator_pipeline/*.tmp`) of a process that was killed stays for a day.
- A launcher that is killed tells no end, and may leave its last event broken off. Events for which a disk had no room
  are lost; so is the summary of a launcher that ended while it was full.
- Of the records of parameter-server jobs nothing is promised beyond the share: how many a worker leaves out or reads
  again when it goes on there is measured alone.
- Of the updates that a killed attempt had made since its last checkpoint nothing is promised: measured alone.
- A bit that was turned in a checkpoint's index may be one that nobody reads; one in its values must be found.
"""


def versions() -> str:
    """The commit, and what it ran on."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short", "HEAD") or "none that is known"
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
        f"{len(found)} faults in {len({fault.job for fault in found})} jobs; jobs in which something was found: "
        f"{len(bad)}.",
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
    lines = ["| measured, for a job | the most | jobs in which it was measured | in which it was not 0 |",
             "| --- | --- | --- | --- |"]  # fmt: skip
    for name, values in sorted(numbers.items()):
        lines.append(f"| {name} | {max(values):.3g} | {len(values)} | {sum(value != 0 for value in values)} |")
    return lines
