"""What earlier versions have written is read, and goes on: model directories, `.keras` files, ledgers, scripts.

The archives are in stored/, whose README says how each was made.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.engines.jobs import job_identity
from estimator_pipeline.engines.model_dir import run_identity
from estimator_pipeline.job import dump_job, load_job
from tests.support.command_line import call
from tests.support.processes import environment

STORED = Path(__file__).parents[1] / "stored" / "0.1.0"
# Where it was written.
THERE, PYTHON = "/srv/jobs", "/srv/venv/bin/python"
# A rounding of sums in another order: two workers wrote it, one goes on, on another processor.
RTOL = 1e-4
# protobuf 7 writes the features of a record in another order: the same records in files of other content.
WITH_OTHER_BYTES = int((versions.installed("protobuf") or "0").partition(".")[0]) >= 7

_LOAD = """
import sys
import estimator_pipeline as ep
sys.argv[2] == "keras3" and ep.compat.use_keras_3()
model = ep.load_keras_model(sys.argv[1])
print(type(model.optimizer).__name__, int(model.optimizer.iterations), model.count_params())
"""


def unpack(name: str, folder: Path) -> Path:
    with tarfile.open(STORED / f"{name}.tar.gz") as archive:
        if sys.version_info >= (3, 12):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder / name


@pytest.mark.gate("estimator", "keras3", "csv")
@pytest.mark.parametrize("engine", ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3), "csv"])
def test_a_model_directory_goes_on(tmp_path, run_python, engine):
    """To the weights that the version itself came to; the ledger is that of one training."""
    import tensorflow as tf

    folder = unpack(engine, tmp_path)
    more = ["--set", "train.max_steps=30", "--set", "run.train_distribute=none"]
    more += ["--accept-changes"] * WITH_OTHER_BYTES
    # The cache of this user may have files that an environment with a different protobuf has written.
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_python(["-m", "estimator_pipeline", "train", "job.yaml", *more], cwd=folder, env=environ)
    assert done.returncode == 0, done.stderr
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder / "model")))
    with np.load(folder / "after_30_steps.npz") as wanted:
        assert len(wanted.files) == (16 if engine == "csv" else 8)
        for name in wanted.files:
            found = reader.get_tensor(name.replace("|", "/"))
            np.testing.assert_allclose(found, wanted[name], rtol=RTOL, atol=RTOL, err_msg=name)
    done = call("inspect", "--ledger", folder / "model" / "ledger")
    assert done.returncode == 0 and "steps 1 to 30 count" in done.stdout and "all is well" in done.stdout, done.stdout


@pytest.mark.nightly
@pytest.mark.since_2_16  # the Keras of TensorFlow 2.15 reads no files of later ones
@pytest.mark.parametrize("engine", ["keras", "keras3"])
def test_a_keras_file_is_read_with_its_optimizer(tmp_path, run_python, engine):
    folder = unpack(engine, tmp_path)
    done = run_python(["-c", _LOAD, folder / "model" / "model.keras", engine])
    assert done.returncode == 0, done.stderr
    name, steps, count = done.stdout.split()
    assert name.startswith("V1Momentum") and name.endswith("Accumulating") and (steps, count) == ("20", "650")


def test_logs_of_launches_are_known(tmp_path):
    """`clean` finds them where `launch` puts them by itself."""
    folder = unpack("estimator", tmp_path)
    logs = folder / "model" / "logs" / "20261127-153612-00000001"
    logs.parent.mkdir()
    (folder / "logs").rename(logs)
    for path in [logs, *logs.rglob("*")]:
        os.utime(path, (0, 0))
    done = call("clean", "--keep", "0", folder)
    assert done.returncode == 0 and str(logs) in done.stdout, done.stdout


def submission(folder: Path) -> Path:
    """The submission, as if it had been made in this folder and by this Python."""
    unpack("slurm", folder)
    (found,) = (folder / "slurm" / "model" / "slurm").iterdir()
    for path in (found / "job.sh", found / "job.yaml", found / "submission.json", folder / "slurm" / "job.yaml"):
        path.write_text(path.read_text().replace(THERE, str(folder)).replace(PYTHON, sys.executable))
    return found


def program(folder: Path, name: str, text: str) -> dict[str, str]:
    """A program that is first on PATH in this environment."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / name).write_text(f"#!/bin/sh\n{text}\n")
    (tools / name).chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}"}


def test_a_submission_to_slurm_is_known(tmp_path):
    """Once Slurm has forgotten it: by its record, its history and what its tasks told."""
    folder, environ = submission(tmp_path), program(tmp_path, "scontrol", "exit 0")
    done = call("status", folder, "--json", env=environ)
    (job,) = json.loads(done.stdout)["jobs"]
    assert done.returncode == 0 and "the last line of its output" in job["text"], job
    assert (job["progress"]["step"], job["progress"]["checkpoint"]) == (20, 20), job
    done = call("logs", "--lines", "0", folder, env=environ)
    assert done.returncode == 0 and "job 1: ended with exit code 0" in done.stdout


# One task, whose log is where srun would write it.
_SRUN = """
while :; do
    case $1 in --output=*) log=$(echo "${1#*=}" | sed s/%t/0/); shift ;; --*) shift ;; *) break ;; esac
done
exec "$@" >>"$log" 2>&1
"""


def test_a_submitted_script_still_runs(tmp_path):
    """One that waits in the queue while this package is made new."""
    folder, environ = submission(tmp_path), program(tmp_path, "srun", _SRUN)
    environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    job = folder / "job.yaml"
    text = job.read_text().replace("max_steps: 20", "max_steps: 30")
    if WITH_OTHER_BYTES:
        text = re.sub("( +)ledger: true\n", r"\1ledger: true\n\1accept_changes: true\n", text)
    job.write_text(text)
    environ |= {"SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": "1", "SLURM_JOB_NODELIST": "n1"}
    command = ["bash", str(folder / "job.sh")]
    done = subprocess.run(command, env=environment(environ), capture_output=True, text=True, timeout=300)
    log = (folder / "run-1" / "task-0.log").read_text()
    assert done.returncode == 0, done.stdout + log
    assert "step 30 " in log and "torn hello" in done.stdout


@pytest.mark.parametrize("engine", ["estimator", "keras", "keras3"])
def test_a_resolved_job_is_the_same_run(tmp_path, engine):
    """`launch` of that version passed --set to its tasks. A run continues in both directions."""
    folder = unpack(engine, tmp_path)
    settings = ["train.max_steps=30", "run.save_checkpoints_steps=5", "model.optimizer.learning_rate=0.025"]
    options = [word for setting in settings for word in ("--set", setting)]
    done = call("launch", "job.yaml", "--dry-run", "--json", *options, cwd=folder)
    ((_, text),) = json.loads(done.stdout)["files"].items()
    (folder / "resolved.yaml").write_text(text)
    resolved, before = load_job(folder / "resolved.yaml"), load_job(folder / "job.yaml", overrides=settings)
    identity = job_identity.of_job_file(resolved)
    assert identity == job_identity.of_job_file(before)
    stored = run_identity.read_local(str(folder / "model"))
    # The names too, for an earlier version that continues the run.
    assert identity.described.keys() == stored["told"].keys() and identity.fixed.keys() <= stored["fixed"].keys()
    fixed = {name: stored["fixed"][name] for name in identity.fixed}
    changes = run_identity.differences(fixed, run_identity.as_json(identity.fixed))
    changes += run_identity.differences(stored["told"], run_identity.as_json(identity.described))
    assert changes == [("model.optimizer.learning_rate", 0.05, 0.025)]
    shared = [job_identity.shared_by_tasks(job, max_steps=30) for job in (resolved, before)]
    assert shared[0] == shared[1]


def test_job_files_are_read(tmp_path):
    """Each says as much as it said."""
    for path in unpack("legacy_configs", tmp_path).glob("*.yaml"):
        job = load_job(path)
        again = path.with_name("again.yaml")
        again.write_text(dump_job(job))
        assert load_job(again) == job, path.name
