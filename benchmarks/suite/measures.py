"""Each kind of measurement: of one contender, in fresh processes, to figures by name. Imports no TensorFlow."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.clock import FIRST_STEP_VARIABLE, WARM_MARKS
from benchmarks.suite.figures import rate_of, window
from benchmarks.suite.measuring import (
    Started,
    child,
    environment,
    run_processes,
    started,
    task_environments,
)
from benchmarks.suite.restarts import restart as restart_of
from benchmarks.suite.work import Profile
from estimator_pipeline.errors import TaskFailedError
from estimator_pipeline.inputs.sources.tfrecord_index import write_index
from estimator_pipeline.progress.progress_file import ProgressReader

__all__ = ["MEASURES", "WITHOUT_DATA", "prepare"]

Figures = dict[str, Any]
# A cluster that hangs must not hold up the others.
TIMEOUT = 300.0
# A pipeline that keeps nothing is warm after so many records.
_WARM_RECORDS = 4096
EVALUATED = 1024
_PROGRAMS = {
    "plain_estimator": "plain_estimator",
    "estimator": "own_estimator",
    "plain_keras": "plain_keras",
    "keras": "own_keras",
    "limit": "limit",
}


def data_of(run: Path) -> dict[str, Path]:
    """Return the folders of a run's data sets."""
    return {name: run / "data" / name for name in ("train", "evaluation", "stream")}


def prepare(run: Path, profile: Profile) -> None:
    """Write the data sets of a run, unless they are there."""
    done = run / "data" / "done.json"
    if done.exists():
        return
    folders = data_of(run)
    sets = [
        (folders["train"], "images", profile.records, work.BATCH),
        (folders["train"], "table", profile.records, work.BATCH),
        (folders["evaluation"], "images", profile.records, EVALUATED),
        (folders["stream"], "images", profile.stream_records, work.BATCH),
    ]
    (run / "data").mkdir(parents=True, exist_ok=True)
    spec = {"sets": [(str(place), *rest) for place, *rest in sets], "out": str(done)}
    command = child("prepare", spec, folder=run / "data", name="prepare")
    one = Started(name="prepare", command=command, environ=environment(run), cores=(), out=done)
    run_processes([one], folder=run / "data", timeout=TIMEOUT)


def training(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Record per second of all workers, between two marks within training; memory at the peak."""
    kind, workers, model = settings["kind"], settings["workers"], work.MODELS[settings["model"]]
    warm, counted = profile.steps(model, workers)
    if contender == "limit":
        kind, workers = "single", 1
    steps = None if kind == "ps" else warm + counted
    spec = {
        "kind": kind,
        "workers": workers,
        "model": settings["model"],
        "data": str(data_of(run)["train"]),
        "model_dir": str(folder / "model"),
        "warm": warm,
        "steps": steps,
        # No checkpoint between the two marks, of anybody: one that belongs to the last step would be in its time.
        "checkpoint_steps": 10**6,
    }
    stopping = _Stopping(folder, 2 * profile.seconds) if kind == "ps" else None
    with task_environments(kind, workers, run) as places:
        processes = []
        for name, place in places.items():
            out = folder / f"{name}.json"
            command = child(_PROGRAMS[contender], {**spec, "out": str(out)}, folder=folder, name=name)
            processes.append(
                Started(
                    name=name,
                    command=command,
                    environ=place.environ,
                    cores=place.cores,
                    out=out if place.trains else None,
                )
            )
        if stopping is not None:
            stopping.wait_for = [one.out.with_suffix(".warm") for one in processes if one.out is not None]
        found = run_processes(processes, folder=folder, timeout=TIMEOUT, meanwhile=stopping or (lambda: None))
    told = list(found.values())
    figures: Figures = {
        "peak_mib": max(one["peak_mib"] for one in told),
        "final_step": max(one["final_step"] for one in told),
        "batch": told[0]["batch"],
        "tasks": len(told),
        "parameters": told[0]["parameters"],
        "patches": told[0]["patches"],
    }
    if contender == "limit":
        figures["steps_per_sec"] = max(told[0]["singly"], told[0]["looped"])
        figures |= {"singly": told[0]["singly"], "looped": told[0]["looped"]}
    else:
        try:
            if kind == "ps":
                begun, ended = window([one["marks"][WARM_MARKS:] for one in told], warm=0)
            else:
                begun, ended = window([one["marks"] for one in told], warm=warm)
            # Marks are of the global step, which is the same for all tasks.
            figures["steps_per_sec"] = rate_of(told[0]["marks"], begun, ended)
        except ValueError as error:
            raise TaskFailedError(
                f"the steps of {contender} cannot be timed: {error}", hint="measure more steps: a larger --size"
            ) from error
        figures["window_secs"] = ended - begun
    # A step of a parameter server's worker reads its own batch, one of workers in step reads all of theirs.
    per_step = told[0]["batch"] * (len(told) if kind == "workers" else 1)
    figures["records_per_sec"] = figures["steps_per_sec"] * per_step
    if all("calls" in one for one in told):
        # Session calls of all tasks: fewer than steps where a call makes several.
        figures["calls"] = sum(one["calls"] for one in told)
    if kind != "ps":
        figures["records"] = figures["final_step"] * per_step
    return figures


class _Stopping:
    """Ends an asynchronous training some seconds after all its tasks are warm, by a file that their clocks look for."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.wait_for: list[Path] = []
        self._due: float | None = None

    def __call__(self) -> None:
        now = time.monotonic()
        if self._due is None:
            if all(path.exists() for path in self.wait_for):
                self._due = now + self.seconds
        elif now >= self._due:
            (self.folder / "stop").touch()


def evaluation(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Seconds of a cycle after the first one, and of the first one."""
    spec = {
        "kind": "single",
        "workers": 1,
        "model": settings["model"],
        "contender": contender,
        "evaluations": profile.evaluations,
        "data": str(data_of(run)["evaluation"]),
        "model_dir": str(folder / "model"),
        "checkpoint_steps": 10**6,
        "steps": 4,
    }
    if contender in ("plain_keras", "keras"):
        (folder / "model").mkdir()
    found = _alone("evaluation", spec, folder, run)
    return {
        "seconds": statistics.median(found["seconds"][1:]),
        "first": found["seconds"][0],
        "peak_mib": found["peak_mib"],
        "accuracy": found["metrics"]["accuracy"],
        "evaluations": len(found["seconds"]),
    }


def _alone(program: str, spec: Mapping[str, Any], folder: Path, run: Path, **environ: str) -> Figures:
    """Return what a program gives that runs by itself, on one core."""
    out = folder / "found.json"
    with task_environments("single", 1, run) as places:
        (place,) = places.values()
        command = child(program, {**spec, "out": str(out)}, folder=folder)
        one = Started(name="process", command=command, environ={**place.environ, **environ}, cores=place.cores, out=out)
        found: Figures = run_processes([one], folder=folder, timeout=TIMEOUT)["process"]
    return found


def first_step(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Seconds from the start of a process to the end of its first step; ours by `estimator-pipeline train`."""
    from benchmarks.suite.programs.own_keras import job_of
    from estimator_pipeline.progress.progress_file import PROGRESS_VARIABLE

    spec = {
        "kind": "single",
        "workers": 1,
        "model": settings["model"],
        "contender": contender,
        "data": str(data_of(run)["train"]),
        "model_dir": str(folder / "model"),
        "warm": 0,
        "steps": 10_000,
        "checkpoint_steps": 10_000,
        "out": str(folder / "unused.json"),
    }
    told = folder / "first_step.json"
    progress = folder / "progress.jsonl"
    if contender in ("estimator", "keras"):
        job = job_of(spec, work.MODELS[settings["model"]], engine=contender)
        if contender == "keras":
            job["keras"] = {"callbacks": ["benchmarks.suite.clock:first_step_callback"]}
        path = folder / "job.yaml"
        path.write_text(json.dumps(job))
        command: tuple[str, ...] = (sys.executable, "-m", "estimator_pipeline", "train", str(path))
    else:
        program = _PROGRAMS.get(contender, "first_step")
        command = child(program, spec, folder=folder)
    with task_environments("single", 1, run) as places:
        (place,) = places.values()
        environ = {**place.environ, FIRST_STEP_VARIABLE: str(told), PROGRESS_VARIABLE: str(progress)}
        one = Started(name="process", command=command, environ=environ, cores=place.cores, out=told)
        begun, begun_wall = time.monotonic(), time.time()
        # The Estimator engine tells the launcher of its first step, and a job file names no hooks.
        seconds = _first(one, folder, progress if contender == "estimator" else None, begun, begun_wall)
    return {"seconds": seconds}


def _first(one: Started, folder: Path, progress: Path | None, begun: float, begun_wall: float) -> float:
    from benchmarks.suite.measuring import POLL_SECS, failed

    deadline = begun + TIMEOUT
    events = None if progress is None else ProgressReader(progress)
    with started([one], folder=folder) as running:
        while time.monotonic() < deadline:
            if progress is None and one.out is not None and one.out.exists():
                found: float = json.loads(one.out.read_text())["time"]
                return found - begun
            for event in () if events is None else events.read():
                if event["event"] == "step":
                    wall: float = event["time"]
                    return wall - begun_wall
            if running[one.name].look():
                raise failed(one.name, "ended before its first step", folder)
            time.sleep(POLL_SECS)
    raise failed(one.name, f"made no step within {TIMEOUT:g} s", folder)


def restart(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Seconds from the death of one of two workers to the next step, and of the first start."""
    from benchmarks.suite.programs.own_keras import job_of

    spec = {
        "kind": "workers",
        "workers": 2,
        "data": str(data_of(run)["train"]),
        "model_dir": str(folder / "model"),
        "steps": 100_000,
        "checkpoint_steps": 20,
    }
    job = {**job_of(spec, work.MODELS["cnn"], engine=contender), "cluster": {"workers": 2}}
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    found = restart_of(path, contender, folder, environ=environment(run), timeout=TIMEOUT)
    return {
        "seconds": found["restart"],
        "first": found["cold"],
        "in_starts": found["restart"] / found["cold"],
        "from_step": found["from_step"],
    }


def pipeline(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Record per second of a pipeline that nobody waits for."""
    cached = contender.endswith("_cached")
    spec = {
        "contender": contender.removesuffix("_cached"),
        "cached": cached,
        "policy": "data",
        "pass": False,
        "workers": 1,
        "data": str(data_of(run)["stream"]),
        "records": min(profile.stream_records, _WARM_RECORDS) if not cached else profile.stream_records,
        "seconds": profile.seconds,
    }
    return _alone("pipeline", spec, folder, run)


def bytes_read(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Return what worker 0 of 2 reads of the files in one pass over its share of the records."""
    own = contender.startswith("inputs")
    spec = {
        "contender": "inputs" if own else "plain",
        "cached": False,
        "policy": "data" if contender == "inputs_by_record" else "file",
        "pass": True,
        "workers": 2,
        "data": str(_indexed(folder, run) if contender == "inputs_indexed" else data_of(run)["stream"]),
        "records": profile.stream_records,
    }
    # A first start has no index of the files yet; the caches of the other cases may hold one.
    cache = folder / "cache"
    for _ in range(1 if contender in ("plain", "inputs_first", "inputs_indexed") else 2):
        (folder / "found.json").unlink(missing_ok=True)
        found = _alone("pipeline", spec, folder, run, XDG_CACHE_HOME=str(cache))
    return {"of_share": found["bytes"] / found["share"], "one": 1.0, **found}


def _indexed(folder: Path, run: Path) -> Path:
    """Return the same files with an index beside each, in a folder of their own: the other contenders have none."""
    there = folder / "indexed" / "images"
    there.mkdir(parents=True)
    for path in (data_of(run)["stream"] / "images").glob("*.tfrecord"):
        (there / path.name).hardlink_to(path)
        write_index(str(there / path.name))
    return folder / "indexed"


def simulated(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Seconds and bytes of the arithmetic along each axis."""
    full = profile.name != "tiny"
    largest = {
        "workers": 4096 if full else 64,
        "records": 10**12 if full else 10**6,
        "files": 10**5 if full else 100,
        "steps": 10**9 if full else 10**4,
    }
    found = _alone("simulated", {"largest": largest}, folder, run)
    step = [row for row in found["rows"] if row["axis"] in ("records", "workers", "steps")]
    return {
        "slowest": max(row["seconds"] for row in step),
        "most_kib": max(row["bytes"] for row in step) / 1024,
        "rows": found["rows"],
        "largest": largest,
    }


MEASURES: dict[str, Callable[[str, Profile, Path, Path, Mapping[str, Any]], Figures]] = {
    "training": training,
    "evaluation": evaluation,
    "first_step": first_step,
    "restart": restart,
    "pipeline": pipeline,
    "bytes_read": bytes_read,
    "simulated": simulated,
}
"""By the name in a case: `measure(contender, profile, folder, run, settings)`, the folder empty and its own."""

WITHOUT_DATA = ("simulated",)
"""Those that read no data."""
