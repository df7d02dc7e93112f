"""What became of a job that was hit, held against what the documents promise; nothing here imports TensorFlow.

=================== ==================================================================================================
`judge`             all of it, once the job has come to its end
`of_history`        `events.jsonl` and `summary.json` of each launch: docs/guides/restarts.md
`of_result`         the rendezvous's word and the final metrics: docs/guides/resuming.md
`of_exports`        the SavedModels that are there: docs/guides/evaluation.md
`of_leftovers`      checkpoints that were set aside, unfinished files: docs/guides/resuming.md
=================== ==================================================================================================

`fault_values.py` reads checkpoints and SavedModels, in a process of its own; `fault_ledger.py` counts the updates and
records of parameter-server jobs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fault_ledger
from fault_jobs import DEADLINE_SECS, EXPORTS_TO_KEEP, ROOT, Hang, Job, Launch, events_of, until

# Metrics of the same weights but for rounding (another number of workers): one record of 360 more or less.
_NEAR = {"rel_tol": 1e-3, "abs_tol": 0.003}
_ENDS = ("done", "interrupted", "timeout", "gave_up")
_FAILURES = ("failed", "hung", "diverged", "preempted")
# What a checkpoint that is written, and the state file, are called until they are whole.
_UNFINISHED = re.compile(r"ckpt-\d+(_temp.*|.*\.tempstate\d+)$|^checkpoint\.((.+\.)?\d+\.tmp|tmp[0-9a-f]+)$")


@dataclasses.dataclass
class Judgement:
    """Of one job.

    Attributes:
        problems: in words; none of a job that is as if nothing had been.
        measured: name -> number, where less is promised than that nothing was lost, or nothing.
    """

    problems: list[str] = dataclasses.field(default_factory=list)
    measured: dict[str, float] = dataclasses.field(default_factory=dict)


def judge(job: Job, reference: Path | None) -> Judgement:
    """What is wrong with a job that has been let come to its end.

    Args:
        job: that was hit.
        reference: the model directory of a job that nobody disturbed; None where there is none to be equal to, as for
            that job itself, whose values are read when others are compared with them.
    """
    try:
        until("the job's end", lambda: not job.running, seconds=2 * DEADLINE_SECS)
    except Hang as hang:
        job.end()
        return Judgement([f"hang: {hang}"])
    last = job.launches[-1]
    if last.returncode != 0:
        return Judgement([f"exit code {last.returncode}: {_last_lines(last.out)}"])
    found = Judgement()
    if left := job.orphans():
        found.problems.append(f"orphans: {left}")
    for number, launch in enumerate(job.launches, 1):
        found.problems += [f"launch {number}: {what}" for what in of_history(launch, last=launch is last)]
    found.problems += of_result(job, reference)
    found.problems += of_exports(job)
    found.problems += of_leftovers(job)
    found.measured |= left_behind(job)
    found.problems += _of_ledger(job)
    if not job.shape.exact:
        told, measured = fault_ledger.of_updates(job)
        found.problems += told
        found.measured |= measured
    if reference is not None or not job.shape.exact:
        told, measured = _of_values(job, reference)
        found.problems += told
        found.measured |= measured
    return found


def _last_lines(path: Path) -> str:
    return " | ".join(path.read_text(errors="replace").strip().splitlines()[-6:])[-600:]


# -- the history -------------------------------------------------------------------------------------------------------


def of_history(launch: Launch, *, last: bool) -> list[str]:
    """Whether a launch's history tells each attempt, each restart and its end, and the summary says the same.

    A launcher that was killed has no end to tell, and may leave its last line broken off. What could not be written to
    a full disk is lost; what comes after it is told.
    """
    events = events_of(launch.logs)
    problems = [] if launch.log_full else _lines_of(launch)
    if not launch.starved:
        problems += _end_of(launch, events, last=last)
    if not launch.log_full:
        problems += _attempts_of(launch, events)
    problems += [f"{path.name} was left" for path in launch.logs.glob(".summary.json.*") if not launch.killed]
    return problems


def _lines_of(launch: Launch) -> list[str]:
    path = launch.logs / "events.jsonl"
    if not path.exists():
        # A launcher that was killed before it had begun.
        return [] if launch.killed else ["no events.jsonl"]
    bad = []
    lines = path.read_text(errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if number == len(lines) and (not line or launch.killed):
            continue
        try:
            json.loads(line)
        except ValueError:
            bad.append(number)
    return [f"events.jsonl: line {number} cannot be read" for number in bad]


def _end_of(launch: Launch, events: list[dict[str, Any]], *, last: bool) -> list[str]:
    if launch.killed:
        return []
    ends = [event for event in events if event["event"] in _ENDS]
    if len(ends) != 1 or events[-1] is not ends[0]:
        return [f"events.jsonl does not end with the run's end, told once: {[event['event'] for event in ends]}"]
    if last or launch.returncode == 0:
        return [] if ends[0]["event"] == "done" else [f"events.jsonl ends with {ends[0]['event']}, and the job is done"]
    if launch.refused:
        told = [] if ends[0]["event"] == "gave_up" else [f"events.jsonl ends with {ends[0]['event']}, and it gave up"]
        return told
    name = signal.Signals(launch.asked).name if launch.asked else "nothing"
    if ends[0]["event"] == "interrupted" or name in str(ends[0].get("why")):
        return []
    return [f"events.jsonl ends with {ends[0]['event']} ({ends[0].get('why')}), and the launcher had got {name}"]


def _attempts_of(launch: Launch, events: list[dict[str, Any]]) -> list[str]:
    """Each attempt has begun, failed, ended and been followed by the next; the summary has the same ones."""
    problems = []
    started = [event for event in events if event["event"] == "attempt_started"]
    if [event["attempt"] for event in started] != list(range(1, len(started) + 1)):
        problems.append(f"attempts {[event['attempt'] for event in started]} are no row")
    told: dict[int, dict[str, dict[str, Any]]] = {}
    for event in events:
        told.setdefault(event["attempt"], {})[event["event"]] = event
    for number in range(1, len(started) + 1):
        of_it = told[number]
        ended = of_it.get("attempt_ended")
        if ended is None:
            if number < len(started) or not launch.killed:
                problems.append(f"the end of attempt {number} is not told")
            continue
        if ended["reason"] in _FAILURES and ended["reason"] not in of_it and launch.asked is None:
            problems.append(f"attempt {number}: {ended['reason']}, and no event says of whom")
        if number < len(started) and "restart_in" not in of_it:
            problems.append(f"attempt {number + 1} began, and no event says why")
    if launch.killed:
        return problems
    return problems + _summary_of(launch, events, started, told)


def _summary_of(
    launch: Launch,
    events: list[dict[str, Any]],
    started: list[dict[str, Any]],
    told: Mapping[int, Mapping[str, Mapping[str, Any]]],
) -> list[str]:
    try:
        summary = json.loads((launch.logs / "summary.json").read_text())
        attempts = summary["attempts"]
        said = [(one["number"], one["run_id"], one["reason"], one["step"], one["checkpoint"]) for one in attempts]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"summary.json cannot be read: {type(error).__name__}: {error}"]
    ended = {number: of_it.get("attempt_ended", {}) for number, of_it in told.items()}
    known = [
        (number, one["run_id"], *(ended.get(number, {}).get(key) for key in ("reason", "step", "checkpoint")))
        for number, one in enumerate(started, 1)
    ]
    problems = [] if said == known else [f"summary.json has the attempts {said}, events.jsonl {known}"]
    if summary["restarts"] != len(started) - 1:
        problems.append(f"summary.json has {summary['restarts']} restarts, events.jsonl {len(started) - 1}")
    if summary["exit_code"] != launch.returncode:
        problems.append(f"summary.json has exit code {summary['exit_code']}, the launcher had {launch.returncode}")
    if (summary["reason"] == "done") != (events[-1]["event"] == "done"):
        problems.append(f"summary.json says {summary['reason']}, events.jsonl {events[-1]['event']}")
    return problems


# -- the model directory -----------------------------------------------------------------------------------------------


def of_result(job: Job, reference: Path | None) -> list[str]:
    """The rendezvous says that training is finished, and its result is of the last step with the reference's
    metrics."""
    folder = job.model_dir / "estimator_pipeline"
    try:
        state = json.loads((folder / "training.json").read_text())["state"]
        result = json.loads((folder / "result.json").read_text())["result"]
        step, metrics = result["global_step"], result["metrics"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"the result cannot be read: {type(error).__name__}: {error}"]
    problems = [] if state == "finished" else [f"training.json says {state}"]
    end = job.shape.max_steps
    if not end <= step <= job.shape.most_steps or job.checkpoint() != step:
        problems.append(f"the result is of step {step}, the last checkpoint of {job.checkpoint()}, the end is {end}")
    if not metrics or not all(math.isfinite(value) for value in metrics.values()):
        problems.append(f"the final metrics are {metrics}")
    if reference is not None and not problems:
        wanted = json.loads((reference / "estimator_pipeline" / "result.json").read_text())["result"]["metrics"]
        if not _alike(metrics, wanted, near=job.resized):
            problems.append(f"the final metrics are {metrics}, undisturbed {wanted}")
    return problems


def _alike(one: Mapping[str, float], other: Mapping[str, float], *, near: bool) -> bool:
    if not near:
        return dict(one) == dict(other)
    return one.keys() == other.keys() and all(math.isclose(one[name], other[name], **_NEAR) for name in one)


def of_exports(job: Job) -> list[str]:
    """The exporter `latest` has made one of the final checkpoint, and kept no more than it should.

    Nothing is left that was begun and not ended, by a process that was killed, or where the checkpoint was deleted
    meanwhile: the next export takes it away.
    """
    folder = job.model_dir / "export"
    if not job.shape.exports:
        return ["there are exports that nobody asked for"] if folder.exists() else []
    try:
        record = json.loads((folder / "latest.last.json").read_text())
        checkpoint, name = record["checkpoint"], record["export"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"export/latest.last.json cannot be read: {type(error).__name__}: {error}"]
    problems = []
    if not str(checkpoint).endswith(f"-{job.checkpoint()}"):
        problems.append(f"the last export is of {checkpoint}, the last checkpoint of step {job.checkpoint()}")
    whole = exports(job.model_dir)
    if not whole or whole[-1].name != name:
        problems.append(f"export {name} is not there, or not the newest: {[path.name for path in whole]}")
    if len(whole) > EXPORTS_TO_KEEP:
        problems.append(f"{len(whole)} exports are kept, of {EXPORTS_TO_KEEP}")
    bad = [path.name for path in whole if not (path / "saved_model.pb").is_file()]
    if bad:
        problems.append(f"exports without a model: {bad}")
    others = [path for path in (*folder.iterdir(), *(folder / "latest").iterdir()) if path not in whole]
    others = [path for path in others if path.name not in ("latest", "latest.last.json")]
    if others:
        problems.append(f"export/ holds what is no export: {sorted(path.name for path in others)}")
    return problems


def exports(model_dir: Path) -> list[Path]:
    """The exports of a job that have their final name, oldest first."""
    found = [path for path in (model_dir / "export" / "latest").glob("*") if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def of_leftovers(job: Job) -> list[str]:
    """Set aside is what faults have damaged, and nothing else; no unfinished file of a checkpoint is left.

    Each start removes unfinished checkpoints. Unfinished files of the rendezvous are removed after a day: those of
    killed processes may be there, and none from the last fault on.
    """
    aside = {path.name for path in (job.model_dir / "damaged").glob("*/*")}
    stems = {name if name == "checkpoint" else re.sub(r"\.(index|meta|data-.*)$", "", name) for name in aside}
    problems = []
    if stems - job.damaged:
        problems.append(f"set aside, though nothing had damaged them: {sorted(stems - job.damaged)}")
    if job.cut - stems:
        problems.append(f"damaged, and not set aside: {sorted(job.cut - stems)}")
    left = [path.name for path in job.model_dir.iterdir() if _UNFINISHED.search(path.name)]
    left += [path.name for path in _rendezvous_parts(job) if path.stat().st_mtime > job.calm]
    if left:
        problems.append(f"unfinished files were left: {sorted(left)}")
    return problems


def _rendezvous_parts(job: Job) -> list[Path]:
    return [path for path in (job.model_dir / "estimator_pipeline").rglob("*.tmp") if path.is_file()]


def left_behind(job: Job) -> dict[str, float]:
    """How much was left that nothing promises to take away."""
    return {"half rendezvous files": len(_rendezvous_parts(job))}


# -- what other processes read -----------------------------------------------------------------------------------------


def _of_ledger(job: Job) -> list[str]:
    """Each record once at its step; under parameter servers: each worker by its plan (docs/guides/ledger.md)."""
    asked = [sys.executable, "-m", "estimator_pipeline", "inspect", str(job.file)]
    asked += ["--ledger", str(job.model_dir / "ledger")]
    asked += job.settings()
    done = subprocess.run(asked, capture_output=True, text=True, env=job.environ, cwd=ROOT, timeout=120)
    found = [line for line in done.stdout.splitlines() if line.startswith("found: ")]
    if job.starved and not job.shape.exact:
        # Updates that are in a checkpoint, made while the ledger had no room, are told and are no fault.
        found = [line for line in found if not line.endswith("its blocks were lost")]
    if done.returncode == 0 or (done.returncode == 1 and not found):
        return []
    return [f"ledger: {done.stdout.strip()[-500:]} {done.stderr.strip()[-300:]}"]


def _of_values(job: Job, reference: Path | None) -> tuple[list[str], dict[str, float]]:
    """Weights and SavedModels, bit by bit, or but for rounding where the job was resized."""
    asked = {
        "model_dir": str(job.model_dir),
        "reference": None if reference is None else str(reference),
        "near": job.resized,
        "exports": [str(path) for path in exports(job.model_dir)],
        "reference_exports": [] if reference is None else [str(path) for path in exports(reference)],
    }
    command = [sys.executable, os.path.join(os.path.dirname(__file__), "fault_values.py"), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, env=job.environ, timeout=180)
    try:
        said = json.loads(done.stdout.strip().splitlines()[-1])
        return list(said["problems"]), dict(said["measured"])
    except (IndexError, ValueError, KeyError):
        return [f"weights and exports cannot be read: {done.stderr.strip()[-300:]}"], {}
