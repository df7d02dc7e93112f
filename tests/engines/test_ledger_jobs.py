"""The ledger of real clusters: a worker is killed, the job goes on, and every record was consumed once an epoch."""

from __future__ import annotations

import signal
import sys

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs import ledger
from tests.support.launched_jobs import CONFIGS, SMALL
from tests.support.tasks_by_hand import Tasks

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

TRAIN = [sys.executable, "-m", "estimator_pipeline", "train"]


def steps_of(folder, task):
    """How many steps a task has made, while it makes them."""
    try:
        found = ledger.read(folder)
    except ConfigError:
        return 0
    return max((s.end for run in found.runs for t, s in run.segments.items() if t == task), default=0)


def test_a_worker_is_killed_the_job_goes_on_and_then_with_one_worker(tmp_path, run_python):
    folder = tmp_path / "model" / "ledger"
    job = CONFIGS / "multi_worker_estimator.yaml"
    settings = [*SMALL, f"run.model_dir={tmp_path / 'model'}", "cluster.evaluator=false"]
    long = ["train.max_steps=100000", "run.save_checkpoints_steps=60"]
    command = [*TRAIN, job, "--ledger", *(x for s in [*settings, *long] for x in ("--set", s))]
    with Tasks({"worker": 2}, command, tmp_path, env={"ESTIMATOR_PIPELINE_PEER_SECS": "6"}) as running:
        running.wait_for(lambda: steps_of(folder, "worker:1") > 80, "step 80 of worker:1")
        running.processes["worker1"].send_signal(signal.SIGKILL)
        codes = running.wait(timeout=150)
        assert codes["worker1"] == -signal.SIGKILL and codes["worker0"] not in (0, None), running.tails()
    killed = ledger.read(folder)
    (run,) = killed.runs
    assert run.end > 80 and not run.ended and len(run.segments) == 2
    # A synchronous step is made by all: the two ledgers are a step apart at most, though nobody closed either.
    assert abs(run.segments["worker:0"].steps - run.segments["worker:1"].steps) <= 1
    assert ledger.check(killed).well, str(ledger.check(killed))

    saved = 60 * (run.end // 60)
    end = saved + 180
    command = [*TRAIN, job, "--ledger", *(x for s in [*settings, f"train.max_steps={end}"] for x in ("--set", s))]
    with Tasks({"worker": 2}, command, tmp_path) as running:
        assert set(running.wait(timeout=150).values()) == {0}, running.tails()
    alone = [*settings, f"train.max_steps={end + 50}", "run.train_distribute=none", "cluster.workers=1"]
    done = run_python(["-m", "estimator_pipeline", "train", job, "--ledger", *(x for s in alone for x in ("--set", s))])
    assert done.returncode == 0, done.stderr[-4000:]

    found = ledger.read(folder)
    starts = [run.start for run in found.runs]
    assert starts[0] == 0 and starts[1] in (saved, saved - 60) and starts[2] == end
    assert [len(run.segments) for run in found.runs] == [2, 2, 1] and found.last_step == end + 50
    report = ledger.check(found)
    assert report.well, str(report)
    shares = {share.task: share for share in report.shares}
    assert shares["worker:0"].steps == end + 50 and shares["worker:1"].steps == end
    assert shares["worker:1"].again == run.segments["worker:1"].end - starts[1]
    # The same by the command line, held against the job file as well.
    asked = ["inspect", job, "--ledger", folder, *(x for s in alone for x in ("--set", s))]
    done = run_python(["-m", "estimator_pipeline", *asked])
    assert done.returncode == 0 and "all is well" in done.stdout, done.stdout + done.stderr[-2000:]


def test_parameter_servers_promise_no_epochs(launch):
    document = launch(CONFIGS / "chief_workers_ps.yaml", "--no-evaluator", "--ledger")
    found = ledger.read(document["model_dir"] / "ledger")
    assert found.asynchronous and set(found.tasks) == {"chief:0", "worker:0"}
    made = {task: told["steps"] for task, told in document["result"]["tasks"].items()}
    report = ledger.check(found)
    assert report.well, str(report)
    assert {share.task: share.steps for share in report.shares} == made
    assert "epochs are not guaranteed" in str(report)
