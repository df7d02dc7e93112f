"""Job files run by real processes on loopback: every shape of cluster, every dialect, every file of legacy_configs.

Each test starts its cluster through `estimator-pipeline launch --json`, as a person would, with few steps.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import psutil
import pytest

from estimator_pipeline.cluster import parse_tf_config

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "legacy_configs"
STEPS = 24
# Asynchronous training overshoots: each training task may finish the step that it is in.
SMALL = [f"train.max_steps={STEPS}", "run.save_checkpoints_steps=12", "run.log_step_count_steps=12"]


@pytest.fixture
def launch(run_python, tmp_path):
    def run(job, *options, settings=SMALL, timeout=240):
        model_dir = tmp_path / "model"
        changes = [x for s in [*settings, f"run.model_dir={model_dir}"] for x in ("--set", s)]
        done = run_python(
            ["-m", "estimator_pipeline", "launch", job, "--json", "--timeout", timeout - 20, *options, *changes],
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        document = json.loads(done.stdout)
        document["model_dir"] = model_dir
        return document

    return run


def tasks_of(document):
    return [t["task"] for t in document["tasks"]]


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
    board = json.loads((model_dir / "estimator_pipeline" / "result.json").read_text())["result"]
    assert board["evaluated_by"] == evaluated_by
    assert board["evaluations"][-1]["global_step"] == first["global_step"], "the final step was evaluated"
    assert board["metrics"]["global_step"] == first["global_step"]
    assert not list(model_dir.glob("tmp_*")), "workers' temporary checkpoints are removed"
    return board


SHAPES = [
    # (job file, options, the task that evaluates)
    pytest.param("multi_worker_estimator", ["--no-evaluator"], "worker:0", id="e6_two_workers"),
    pytest.param("multi_worker_estimator", ["--evaluator"], "evaluator:0", id="e6_two_workers_evaluator_outside"),
    pytest.param("evaluator_in_cluster", [], "evaluator:0", id="e3_evaluator_inside"),
    pytest.param("chief_workers", ["--workers", "2", "--no-evaluator"], "chief:0", id="e3_chief_and_two_workers"),
    pytest.param(
        "chief_workers", ["--workers", "2", "--evaluator"], "evaluator:0", id="e3_chief_two_workers_evaluator"
    ),
    pytest.param("chief_workers_ps", ["--no-evaluator"], "chief:0", id="e3_chief_worker_two_ps"),
    pytest.param("chief_workers_ps", ["--evaluator"], "evaluator:0", id="e3_chief_worker_two_ps_evaluator"),
    pytest.param("master_worker", [], "chief:0", id="e3_master"),
]


@pytest.mark.parametrize(("job", "options", "evaluated_by"), SHAPES)
def test_shape(launch, job, options, evaluated_by):
    settings = [*SMALL, "input.global_batch_size=48"]
    if "--evaluator" in options:
        settings.append("eval.during_training=false")
    document = launch(CONFIGS / f"{job}.yaml", *options, settings=settings)
    board = check(document, evaluated_by=evaluated_by)
    if job == "master_worker":
        # A master evaluates during training, as it always did.
        assert [e["global_step"] for e in board["evaluations"]] == [12, 24]


COVERED = {"multi_worker_estimator", "evaluator_in_cluster", "chief_workers", "chief_workers_ps", "master_worker"}
OTHERS = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem not in COVERED)


@pytest.mark.parametrize("name", OTHERS)
def test_every_legacy_config_runs(launch, name):
    """Every other job file, run small as it is written: mirrored, one device, ring, distinct seeds, precision, …"""
    document = launch(CONFIGS / f"{name}.yaml")
    tasks = tasks_of(document)
    evaluated_by = next((t for t in tasks if t.startswith("evaluator")), tasks[0])
    board = check(document, evaluated_by=evaluated_by)
    if name == "schedule_and_exports":
        assert board["exports"] and all(Path(path).is_dir() for path in board["exports"])


TF_CONFIGS = {path.stem: parse_tf_config(path.read_text()) for path in sorted((CONFIGS / "tf_config").glob("*.json"))}
ALONE = [name for name, config in TF_CONFIGS.items() if config.is_single_process]


@pytest.mark.parametrize("name", ALONE)
def test_a_tf_config_of_one_process_runs_as_it_is(run_python, tmp_path, name):
    """Documents without a cluster, or with one machine in it: the process trains, evaluates and ends by itself."""
    text = (CONFIGS / "tf_config" / f"{name}.json").read_text()
    changes = [x for s in [*SMALL, f"run.model_dir={tmp_path}"] for x in ("--set", s)]
    command = ["-m", "estimator_pipeline", "train", CONFIGS / "single.yaml", "--json", *changes]
    done = run_python(command, env={"TF_CONFIG": text})
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["metrics"]["global_step"] == STEPS


@pytest.mark.parametrize("name", [name for name in TF_CONFIGS if name not in ALONE])
def test_every_tf_config_document_is_rehearsed(launch, name):
    """The cluster of every recorded TF_CONFIG, its shape and dialect, on this machine."""
    path = CONFIGS / "tf_config" / f"{name}.json"
    strategy = "parameter_server" if TF_CONFIGS[name].cluster.num_ps else "multi_worker_mirrored"
    settings = [*SMALL, f"run.train_distribute={strategy}", "model.name=linear", "input.global_batch_size=48"]
    document = launch(CONFIGS / "single.yaml", "--tf-config", path, settings=settings)
    tasks = tasks_of(document)
    evaluated_by = next((t for t in tasks if t.startswith("evaluator")), None)
    check(document, evaluated_by=evaluated_by or next(t for t in tasks if t in ("chief:0", "worker:0")))
