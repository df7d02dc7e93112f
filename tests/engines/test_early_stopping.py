"""Training that stops when the evaluations no longer improve: `eval.early_stopping`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from estimator_pipeline.engines.core.early_stopping import EarlyStopping, Verdict, judge
from estimator_pipeline.engines.jobs.loaded import LoadedJob
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from estimator_pipeline.job.sections.training import EarlyStoppingSection
from estimator_pipeline.results.comparison import best_step
from estimator_pipeline.results.run import read_run
from tests.support.contexts import task_context
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

REASON = "loss has not improved for 2 evaluations"


@pytest.mark.parametrize(
    ("values", "criterion", "best", "stops"),
    [
        ([3, 2, 1, 1, 1], {"patience": 2}, 3, True),
        ([3, 2, 1, 1, 1], {"patience": 3}, 3, False),
        ([3, 2, 4, 4, 1], {"patience": 2}, 5, True),  # a better one after the decision does not revoke it
        ([1, 2, 3, 3], {"patience": 2, "metric": "accuracy"}, 3, False),
        ([3, 2, 1], {"patience": 2, "metric": "accuracy"}, 1, True),
        ([3, 2, 1], {"patience": 2, "metric": "score", "mode": "max"}, 1, True),
        ([3, 2.9, 2.8, 2.7], {"patience": 3, "min_delta": 0.5}, 4, True),
        ([3, 2.8, 2.6, 2.4], {"patience": 3, "min_delta": 0.5}, 4, False),  # small improvements add up
        ([1, 2, 3], {"patience": 1, "min_steps": 4}, 1, False),
        ([1, 2, 3, 4], {"patience": 1, "min_steps": 4}, 1, True),
        ([float("nan"), float("nan")], {"patience": 2}, None, True),
        ([float("nan"), 1, float("nan")], {"patience": 2}, 2, False),
        ([], {"patience": 1}, None, False),
    ],
)
def test_the_decision(values, criterion, best, stops):
    verdict = judge(dict(enumerate(map(float, values), 1)), EarlyStoppingSection(**criterion))
    assert (verdict.best_step, bool(verdict.reason)) == (best, stops)


def early_of(model_dir, **criterion):
    """Early stopping of a task that starts now, as after a kill of the one before, and its session."""
    context = task_context(model_dir, environ={"TF_CONFIG": ""})
    return EarlyStopping(context, EarlyStoppingSection(**criterion)), context.rendezvous


def test_a_task_that_is_started_again_continues_the_count(tmp_path):
    early, chief = early_of(tmp_path, patience=3)
    for step in (10, 20, 30):
        early.record(step, {"loss": 1.0})
    assert not early.verdict().reason
    again, rendezvous = early_of(tmp_path, patience=3)
    rendezvous.session = chief.session
    again.record(40, {"loss": 1.0})
    assert again.verdict() == Verdict(best_step=10, reason="loss has not improved for 3 evaluations")
    # The next session counts what was evaluated up to the step from which it resumes; a new run in the folder, nothing.
    later, _ = early_of(tmp_path, patience=3)
    assert [later.verdict(from_step=step).reason != "" for step in (40, 30, 0)] == [True, False, False]
    assert sorted(later.evaluations(from_step=30)) == [10, 20, 30] and not later.evaluations(from_step=0)


@pytest.fixture
def job_file(tmp_path, digits_dir):
    """A job whose steps change nothing: no evaluation is better than the first one, of step 4."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {name: linear, optimizer: {name: sgd, learning_rate: 1.0e-30}}\n"
        f"input: {{source: tfds, name: digits, data_dir: '{digits_dir}', global_batch_size: 64}}\n"
        "train: {max_steps: 1000000}\n"
        "eval: {early_stopping: {patience: 2}, exporters: [{kind: final}]}\n"
        f"run: {{model_dir: '{tmp_path}/model', seed: 1, save_checkpoints_steps: 4, keep_checkpoint_max: 1}}\n"
    )
    return path


def check(result, model_dir):
    """The result of a run of one process that has stopped early."""
    prefix = {"model.ckpt", "ckpt", "keras3"} & {Path(result["checkpoint"]).name.rpartition("-")[0]}
    assert result["ended"] == "stopped early" and result["reason"] == REASON
    assert result["best_step"] == result["metrics"]["global_step"] == 4
    assert 12 < result["global_step"] <= 16  # a call of several steps ends with each evaluated step
    assert result["checkpoint"] == f"{model_dir}/best_checkpoint/{prefix.pop()}-4"
    # The chief keeps one checkpoint, and the best one is still there.
    assert len(list(Path(model_dir).glob("*.index"))) == 1
    assert tf.train.latest_checkpoint(f"{model_dir}/best_checkpoint") == result["checkpoint"]
    assert len(list(Path(model_dir, "best_checkpoint").glob("*.index"))) == 1
    assert json.loads(Path(model_dir, "export", "final.last.json").read_text())["checkpoint"].endswith("-4")


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_a_run_stops_and_stays_stopped(job_file, tmp_path, engine):
    def run(*settings):
        return run_job(load_job(job_file, overrides=[f"run.engine={engine}", *settings]), environ={})

    first = run()
    check(first.to_dict(), tmp_path / "model")
    assert re.search(rf"^best step 4 of {first.global_step} \(stopped early\): .*loss", str(first))
    assert f"stopped early at step {first.global_step}: {REASON}" in str(first)
    best = str(best_step(read_run(str(tmp_path / "model"))))
    assert LoadedJob(load_job(job_file, overrides=[f"run.engine={engine}"])).checkpoint(best) == first.checkpoint
    again = run()
    check(again.to_dict(), tmp_path / "model")
    assert (again.global_step, again.exports[0]) == (first.global_step, first.exports[0])
    # A changed criterion counts the recorded evaluations, too.
    longer = run("eval.early_stopping.patience=4")
    assert longer.reason.endswith("4 evaluations") and longer.best_step == 4
    assert first.global_step < longer.global_step <= 24
    last = longer.global_step + 3
    removed = run("eval.early_stopping=null", f"train.max_steps={last}")
    assert (removed.ended, removed.global_step, removed.best_step) == ("max_steps reached", last, None)
    if engine == "estimator":
        with pytest.raises(ConfigError) as refused:
            run("eval.early_stopping.metric=acuracy", "eval.early_stopping.mode=max", f"run.model_dir={tmp_path}/other")
        assert refused.value.hint == "did you mean 'accuracy'?"


@pytest.mark.keras_3
def test_a_run_with_keras_3(job_file, tmp_path, run_python):
    asked = [[str(job_file), ["run.engine=keras3"]]] * 2
    done = run_python([KERAS3_PROCESS, "jobs"], {"PYTHONPATH": str(ROOT)}, stdin=json.dumps(asked))
    assert done.returncode == 0, done.stderr[-4000:]
    first, again = json.loads(done.stdout.splitlines()[-1])
    check(first, tmp_path / "model")
    check(again, tmp_path / "model")
    assert best_step(read_run(str(tmp_path / "model"))) == 4
    assert again["global_step"] == first["global_step"] and again["tasks"]["worker:0"]["steps"] == 0


@pytest.mark.cluster
@pytest.mark.gate("estimator")
@pytest.mark.parametrize(
    ("engine", "options", "settings"),
    [
        ("estimator", ["--workers", "2", "--evaluator"], ["run.train_distribute=multi_worker_mirrored"]),
        ("estimator", ["--workers", "2", "--no-evaluator"], ["run.train_distribute=multi_worker_mirrored"]),
        ("estimator", ["--chief", "--workers", "1", "--ps", "1", "--evaluator"],
         ["run.train_distribute=parameter_server"]),
        ("keras", ["--workers", "2", "--evaluator"], ["run.train_distribute=multi_worker_mirrored"]),
        ("keras", ["--workers", "2", "--no-evaluator"], ["run.train_distribute=multi_worker_mirrored"]),
        pytest.param("keras3", ["--workers", "2", "--evaluator"], ["run.train_distribute=multi_worker_mirrored"],
                     marks=pytest.mark.keras_3),
    ],
    ids=["estimator", "estimator_chief_evaluates", "estimator_ps", "keras", "keras_chief_evaluates", "keras3"],
)  # fmt: skip
def test_a_cluster_stops_at_one_step(job_file, launch, engine, options, settings):
    """All tasks end well, with the result of the best step; started again, the job trains no step."""
    results = []
    settings = [*settings, "run.save_checkpoints_steps=20"]
    for _ in range(2):
        document = launch(job_file, *options, "--engine", engine, settings=settings)
        assert {task["state"] for task in document["tasks"]} == {"done"}
        results.append(document["result"])
    for result in results:
        assert (result["status"], result["reason"]) == ("stopped early", REASON)
        assert result["best_step"] == result["metrics"]["global_step"]
    first, again = results
    steps = [task["steps"] for task in first["tasks"].values()]
    if "--ps" not in options:
        assert steps == [first["global_step"]] * 2
    assert again["global_step"] == first["global_step"] and again["best_step"] == first["best_step"]
    assert {task["steps"] for task in again["tasks"].values()} == {0}
