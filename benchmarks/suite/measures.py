"""Kinds of measurements: each runs one contender in new processes and returns figures. Imports no TensorFlow."""

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
# Seconds; a cluster that hangs must not block the others.
TIMEOUT = 300.0
# An uncached pipeline is warm after so many records.
_WARM_RECORDS = 4096
EVALUATED = 1024
_PROGRAMS = {
    "plain_estimator": "plain_estimator",
    "estimator": "estimator_engine",
    "plain_keras": "plain_keras",
    "keras": "keras_engine",
    "limit": "limit",
}


def data_of(run: Path) -> dict[str, Path]:
    """Return the folders of the data sets of a run."""
    return {name: run / "data" / name for name in ("train", "evaluation", "stream")}


def prepare(run: Path, profile: Profile) -> None:
    """Write the data sets of a run, unless they exist."""
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
    process = Started(name="prepare", command=command, environ=environment(run), cores=(), out=done)
    run_processes([process], folder=run / "data", timeout=TIMEOUT)


def training(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Measure the records per second of all workers between two marks within training, and the peak memory."""
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
        # No contender writes a checkpoint between the two marks, since it would be part of the measured time.
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
            stopping.wait_for = [process.out.with_suffix(".warm") for process in processes if process.out is not None]
        documents = run_processes(processes, folder=folder, timeout=TIMEOUT, meanwhile=stopping or (lambda: None))
    tasks = list(documents.values())
    figures: Figures = {
        "peak_mib": max(task["peak_mib"] for task in tasks),
        "final_step": max(task["final_step"] for task in tasks),
        "batch": tasks[0]["batch"],
        "tasks": len(tasks),
        "parameters": tasks[0]["parameters"],
        "patches": tasks[0]["patches"],
    }
    if contender == "limit":
        figures["steps_per_sec"] = max(tasks[0]["singly"], tasks[0]["looped"])
        figures |= {"singly": tasks[0]["singly"], "looped": tasks[0]["looped"]}
    else:
        try:
            if kind == "ps":
                begun, ended = window([task["marks"][WARM_MARKS:] for task in tasks], warm=0)
            else:
                begun, ended = window([task["marks"] for task in tasks], warm=warm)
            # The marks have the global step, which is the same for all tasks.
            figures["steps_per_sec"] = rate_of(tasks[0]["marks"], begun, ended)
        except ValueError as error:
            raise TaskFailedError(
                f"the steps of {contender} cannot be timed: {error}", hint="measure more steps: a larger --size"
            ) from error
        figures["window_secs"] = ended - begun
    # A step with a parameter server reads the batch of one worker, a synchronous step the batches of all workers.
    per_step = tasks[0]["batch"] * (len(tasks) if kind == "workers" else 1)
    figures["records_per_sec"] = figures["steps_per_sec"] * per_step
    if all("calls" in task for task in tasks):
        # Session calls of all tasks: fewer than steps if a call makes several steps.
        figures["calls"] = sum(task["calls"] for task in tasks)
    if kind != "ps":
        figures["records"] = figures["final_step"] * per_step
    return figures


class _Stopping:
    """Stop of an asynchronous training some seconds after all tasks are warm, by a file that their clocks check."""

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
    """Measure the median seconds of an evaluation cycle without the first one, and the seconds of the first one."""
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
    figures = _alone("evaluation", spec, folder, run)
    return {
        "seconds": statistics.median(figures["seconds"][1:]),
        "first": figures["seconds"][0],
        "peak_mib": figures["peak_mib"],
        "accuracy": figures["metrics"]["accuracy"],
        "evaluations": len(figures["seconds"]),
    }


def _alone(program: str, spec: Mapping[str, Any], folder: Path, run: Path, **environ: str) -> Figures:
    """Run a program in one process on one core, and return its figures."""
    out = folder / "found.json"
    with task_environments("single", 1, run) as places:
        (place,) = places.values()
        command = child(program, {**spec, "out": str(out)}, folder=folder)
        variables = {**place.environ, **environ}
        process = Started(name="process", command=command, environ=variables, cores=place.cores, out=out)
        figures: Figures = run_processes([process], folder=folder, timeout=TIMEOUT)["process"]
    return figures


def first_step(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Measure the seconds from process start to the end of the first step; the engines run as a job file."""
    from benchmarks.suite.programs.keras_engine import job_of
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
    out = folder / "first_step.json"
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
        environ = {**place.environ, FIRST_STEP_VARIABLE: str(out), PROGRESS_VARIABLE: str(progress)}
        process = Started(name="process", command=command, environ=environ, cores=place.cores, out=out)
        begun, begun_wall = time.monotonic(), time.time()
        # A job file names no hooks, so the Estimator engine's progress file has the time of the first step.
        seconds = _wait_for_step(process, folder, progress if contender == "estimator" else None, begun, begun_wall)
    return {"seconds": seconds}


def _wait_for_step(process: Started, folder: Path, progress: Path | None, begun: float, begun_wall: float) -> float:
    from benchmarks.suite.measuring import POLL_SECS, process_error

    deadline = begun + TIMEOUT
    events = None if progress is None else ProgressReader(progress)
    with started([process], folder=folder) as running:
        while time.monotonic() < deadline:
            if progress is None and process.out is not None and process.out.exists():
                ended: float = json.loads(process.out.read_text())["time"]
                return ended - begun
            for event in () if events is None else events.read():
                if event["event"] == "step":
                    wall: float = event["time"]
                    return wall - begun_wall
            if running[process.name].poll():
                raise process_error(process.name, "ended before its first step", folder)
            time.sleep(POLL_SECS)
    raise process_error(process.name, f"made no step within {TIMEOUT:g} s", folder)


def restart(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Measure the seconds from the detected death of one of two workers to the next step, and of the first start."""
    from benchmarks.suite.programs.keras_engine import job_of

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
    times = restart_of(path, contender, folder, environ=environment(run), timeout=TIMEOUT)
    return {
        "seconds": times["restart"],
        "first": times["cold"],
        "in_starts": times["restart"] / times["cold"],
        "from_step": times["from_step"],
    }


def pipeline(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Measure the records per second of an input pipeline without training."""
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
    """Measure the bytes that worker 0 of 2 reads in one pass over its share of the records."""
    is_package = contender.startswith("inputs")
    spec = {
        "contender": "inputs" if is_package else "plain",
        "cached": False,
        "policy": "data" if contender == "inputs_by_record" else "file",
        "pass": True,
        "workers": 2,
        "data": str(_indexed(folder, run) if contender == "inputs_indexed" else data_of(run)["stream"]),
        "records": profile.stream_records,
    }
    # A first start has no index of the files; the caches of other cases may have one, so this one is separate.
    cache = folder / "cache"
    for _ in range(1 if contender in ("plain", "inputs_first", "inputs_indexed") else 2):
        (folder / "found.json").unlink(missing_ok=True)
        figures = _alone("pipeline", spec, folder, run, XDG_CACHE_HOME=str(cache))
    return {"of_share": figures["bytes"] / figures["share"], "one": 1.0, **figures}


def _indexed(folder: Path, run: Path) -> Path:
    """Link the files into a new folder with an index for each: the other contenders must not see an index."""
    there = folder / "indexed" / "images"
    there.mkdir(parents=True)
    for path in (data_of(run)["stream"] / "images").glob("*.tfrecord"):
        (there / path.name).hardlink_to(path)
        write_index(str(there / path.name))
    return folder / "indexed"


def simulated(contender: str, profile: Profile, folder: Path, run: Path, settings: Mapping[str, Any]) -> Figures:
    """Measure the seconds and bytes of the shard arithmetic along each axis."""
    full = profile.name != "tiny"
    largest = {
        "workers": 4096 if full else 64,
        "records": 10**12 if full else 10**6,
        "files": 10**5 if full else 100,
        "steps": 10**9 if full else 10**4,
    }
    figures = _alone("simulated", {"largest": largest}, folder, run)
    step = [row for row in figures["rows"] if row["axis"] in ("records", "workers", "steps")]
    return {
        "slowest": max(row["seconds"] for row in step),
        "most_kib": max(row["bytes"] for row in step) / 1024,
        "rows": figures["rows"],
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
"""Name in a case -> `measure(contender, profile, folder, run, settings)` with a new, empty folder."""

WITHOUT_DATA = ("simulated",)
"""Measures that read no data."""
