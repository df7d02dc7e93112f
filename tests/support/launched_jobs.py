"""Jobs started through `estimator-pipeline launch --json`, as a person would, and what holds when one ended well."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import psutil

from estimator_pipeline.launch import new_run_id
from estimator_pipeline.launch.local import run

CONFIGS = Path(__file__).resolve().parents[2] / "legacy_configs"
STEPS = 24
# Asynchronous training overshoots: each training task may finish the step that it is in.
SMALL = [f"train.max_steps={STEPS}", "run.save_checkpoints_steps=12", "run.log_step_count_steps=12"]


def launch_local(command, *, shape, log_dir, environ=None, files=None, foreign=True, **options):
    """A program as every task of a local cluster, to its end: what `launch` does, in this process."""
    environ = dict(os.environ if environ is None else environ)
    with run.planned_cluster(
        command, shape=shape, log_dir=log_dir, run_id=new_run_id(), environ=environ, files=files, foreign=foreign
    ) as plan:
        return run.run_local(plan, environ=environ, **options)


def tasks_of(document):
    return [t["task"] for t in document["tasks"]]


def wait_for_first_words(log_dir, tasks, *, timeout=120):
    """Until each of so many tasks has told that it began: from then on it hears signals."""
    deadline = time.monotonic() + timeout
    while len([f for f in Path(log_dir).glob("*.progress.jsonl") if '"start"' in f.read_text()]) < tasks:
        assert time.monotonic() < deadline, f"{tasks} tasks did not begin within {timeout} s"
        time.sleep(0.05)


def check(document, *, evaluated_by, steps=STEPS):
    """What holds for every job that ended well."""
    assert {t["state"] for t in document["tasks"]} == {"done"}
    asynchronous = any(t.startswith("ps:") for t in tasks_of(document))
    model_dir = document["model_dir"]
    results = {}
    for task in document["tasks"]:
        assert not psutil.pid_exists(task["pid"]), f"{task['task']} is still there"
        events = [json.loads(x) for x in Path(task["log"]).with_suffix(".progress.jsonl").read_text().splitlines()]
        (result,) = [e for e in events if e["event"] == "result"]
        results[task["task"]] = {k: v for k, v in result.items() if k != "time"}
        # A job file's engine calls what TensorFlow means to remove, not who wrote the file.
        log = Path(task["log"]).read_text(errors="replace")
        assert "is deprecated" not in log and "params are not passed" not in log, log[:4000]
    first = next(iter(results.values()))
    assert all(r == first for r in results.values()), "the result is the same on every task"
    assert first["status"] == "max_steps reached"
    assert math.isfinite(first["metrics"]["average_loss"])
    training = [t for t in tasks_of(document) if t.startswith(("chief", "worker"))]
    assert list(first["tasks"]) == training
    if asynchronous:
        assert steps <= first["global_step"] <= steps + 2 * len(training)
        # After the final checkpoint a task may finish the step it is in, and one more if it read the step too early.
        total = sum(t["steps"] for t in first["tasks"].values())
        assert first["global_step"] <= total <= first["global_step"] + 2 * len(training)
    else:
        assert first["global_step"] == steps
        assert [t["steps"] for t in first["tasks"].values()] == [steps] * len(training)
        assert len({t["records"] for t in first["tasks"].values()}) == 1
    result = json.loads((model_dir / "estimator_pipeline" / "result.json").read_text())["result"]
    assert result["evaluated_by"] == evaluated_by
    assert result["evaluations"][-1]["global_step"] == first["global_step"], "the final step was evaluated"
    assert result["metrics"]["global_step"] == first["global_step"]
    assert not list(model_dir.glob("tmp_*")), "workers' temporary checkpoints are removed"
    return result
