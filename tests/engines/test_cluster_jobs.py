"""Job files run by real processes on loopback: every shape of cluster, every dialect, every file of legacy_configs.

Each test starts its cluster through `estimator-pipeline launch --json`, as a person would, with few steps.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimator_pipeline.cluster import parse_tf_config
from estimator_pipeline.launch.local.plan import LaunchShape
from tests.support.launched_jobs import CONFIGS, SMALL, STEPS, check, tasks_of

pytestmark = pytest.mark.cluster

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


@pytest.mark.gate("e3_chief_worker_two_ps_evaluator")
@pytest.mark.parametrize(("job", "options", "evaluated_by"), SHAPES)
def test_shape(launch, job, options, evaluated_by, monkeypatch):
    # gRPC would ask it for its connections between the tasks, and each would wait for the others.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    settings = [*SMALL, "input.global_batch_size=48"]
    if "--evaluator" in options:
        settings.append("eval.during_training=false")
    document = launch(CONFIGS / f"{job}.yaml", *options, settings=settings)
    result = check(document, evaluated_by=evaluated_by)
    if job == "master_worker":
        # A master evaluates during training, as it always did.
        assert [e["global_step"] for e in result["evaluations"]] == [12, 24]


COVERED = {"multi_worker_estimator", "evaluator_in_cluster", "chief_workers", "chief_workers_ps", "master_worker"}
OTHERS = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem not in COVERED)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OTHERS)
def test_every_legacy_config_runs(launch, name):
    """Every other job file, run small as it is written: mirrored, one device, ring, distinct seeds, precision, …"""
    document = launch(CONFIGS / f"{name}.yaml")
    tasks = tasks_of(document)
    evaluated_by = next((t for t in tasks if t.startswith("evaluator")), tasks[0])
    result = check(document, evaluated_by=evaluated_by)
    if name == "schedule_and_exports":
        assert result["exports"] and all(Path(path).is_dir() for path in result["exports"])


TF_CONFIGS = {path.stem: parse_tf_config(path.read_text()) for path in sorted((CONFIGS / "tf_config").glob("*.json"))}
ALONE = [name for name, config in TF_CONFIGS.items() if config.is_single_process]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALONE)
def test_a_tf_config_of_one_process_runs_as_it_is(run_python, tmp_path, name):
    """Documents without a cluster, or with one machine in it: the process trains, evaluates and ends by itself."""
    text = (CONFIGS / "tf_config" / f"{name}.json").read_text()
    changes = [x for s in [*SMALL, f"run.model_dir={tmp_path}"] for x in ("--set", s)]
    command = ["-m", "estimator_pipeline", "train", CONFIGS / "single.yaml", "--json", *changes]
    done = run_python(command, env={"TF_CONFIG": text})
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["metrics"]["global_step"] == STEPS


# Shape -> a document. What is started follows from the shape alone: documents of one shape are one and the same launch.
REHEARSED = {LaunchShape.of(config): name for name, config in TF_CONFIGS.items() if name not in ALONE}


def test_documents_of_one_shape_are_one_launch():
    """So that one of each has to be rehearsed: the plans are equal but for their ports."""
    for name, config in TF_CONFIGS.items():
        if name not in ALONE:
            ports = range(3000, 3010)
            own, other = (
                LaunchShape.of(each).documents(ports)
                for each in (config, TF_CONFIGS[REHEARSED[LaunchShape.of(config)]])
            )
            assert own == other and len(own) >= len(config.cluster.tasks)
    assert len(REHEARSED) >= 8


@pytest.mark.nightly
@pytest.mark.parametrize("name", REHEARSED.values())
def test_every_tf_config_document_is_rehearsed(launch, name):
    """The cluster of every recorded TF_CONFIG, its shape and dialect, on this machine."""
    path = CONFIGS / "tf_config" / f"{name}.json"
    strategy = "parameter_server" if TF_CONFIGS[name].cluster.num_ps else "multi_worker_mirrored"
    settings = [*SMALL, f"run.train_distribute={strategy}", "model.name=linear", "input.global_batch_size=48"]
    document = launch(CONFIGS / "single.yaml", "--tf-config", path, settings=settings)
    tasks = tasks_of(document)
    evaluated_by = next((t for t in tasks if t.startswith("evaluator")), None)
    check(document, evaluated_by=evaluated_by or next(t for t in tasks if t in ("chief:0", "worker:0")))
