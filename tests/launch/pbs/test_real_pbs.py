"""Jobs on a real PBS, if there is one: OpenPBS is not in Debian. Its hosts need this folder, this Python and /tmp."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import pytest

from tests.support.processes import ROOT, environment

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

DEMO = ROOT / "legacy_configs" / "digits_cnn_two_workers.yaml"
COMMON = ("pbs.place=free", "pbs.signal_seconds=60", f"pbs.env={{PYTHONPATH: '{ROOT}', OMP_NUM_THREADS: 1}}")


@pytest.fixture(scope="module", autouse=True)
def _server():
    if shutil.which("qsub") is None:
        pytest.skip("PBS is not installed (qsub is missing)")
    done = subprocess.run(["qstat", "-B"], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(f"no server of PBS answers: {done.stderr.strip()}")


def cli(*words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "estimator_pipeline", *map(str, words)],
        env=environment({"PYTHONPATH": str(ROOT)}), cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def submit(tmp_path):
    """Submits the demo, and deletes the job after the test."""
    job_ids = []

    def submit(*settings):
        changes = (f"run.model_dir={tmp_path}/m", *COMMON, *settings)
        job_ids.append(cli("submit", "pbs", DEMO, *(f"--set={change}" for change in changes)).strip())
        return job_ids[-1]

    yield submit
    for job_id in job_ids:
        subprocess.run(["qdel", job_id], capture_output=True, check=False, timeout=60)


def wait_for(condition, tmp_path):
    deadline = time.monotonic() + 400
    while not condition():
        logs = "\n".join(path.read_text(errors="replace")[-2500:] for path in tmp_path.rglob("*.log"))
        assert time.monotonic() < deadline, logs
        time.sleep(1)


def test_the_demo(submit, tmp_path):
    job_id = submit("train.max_steps=60")
    wait_for((tmp_path / "m" / "estimator_pipeline" / "result.json").exists, tmp_path)
    wait_for(lambda: f"job {job_id} (digits_cnn_two_workers): done" in cli("status", tmp_path / "m"), tmp_path)
    assert "step 60, loss " in cli("status", job_id)
    assert "worker:1    | " in cli("logs", job_id)


def test_cancelled_with_a_checkpoint(submit, tmp_path):
    job_id = submit("train.max_steps=1000000", "cluster.evaluator=false")
    wait_for((tmp_path / "m" / "model.ckpt-200.index").exists, tmp_path)
    assert cli("cancel", job_id, "--checkpoint") == f"job {job_id}: asked to stop with a checkpoint\n"
    training = json.loads((tmp_path / "m" / "estimator_pipeline" / "training.json").read_text())
    assert training["state"] == "preempted" and training["global_step"] > 200
    # PBS reports the end of the job a moment before the script has written its last line.
    wait_for(lambda: "stopped as asked; the next submission resumes" in cli("status", tmp_path / "m"), tmp_path)
