"""`clean`: what old runs have left is shown, and removed when that is asked for."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from estimator_pipeline.launch import cleaning
from estimator_pipeline.launch.local.orphan_guard import RUN_ID_VARIABLE
from tests.support.command_line import call

DAY = 86400


def make(path, *, days, size=5000):
    """A file that was last changed so many days ago, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    for one in (path, *path.parents):
        if len(one.parts) > 4:
            os.utime(one, (time.time() - days * DAY,) * 2)


@pytest.fixture
def model_dir(tmp_path):
    """Of three launches, two submissions (of the newer one three runs) and what must stay."""
    model = tmp_path / "models" / "digits"
    for day in (1, 2, 3):
        make(model / "logs" / f"2026010{day}-000000-0000000{day}" / "attempt-1" / "worker-0.log", days=20 - day)
    for number in (1, 2):
        folder = model / "slurm" / f"2026020{number}-000000-0000000{number}"
        for run in range(3 if number == 2 else 1):
            make(folder / f"run-{run}" / "task-0.log", days=10)
        make(folder / "submission.json", days=10)
        text = f'{{"job_id": "{number}", "name": "x", "tasks": [], "model_dirs": [], "array": null, '
        (folder / "submission.json").write_text(text + '"submitted": 1, "stop_seconds": 1}')
        os.utime(folder / "submission.json", (time.time() - 10 * DAY,) * 2)
    make(model / "logs" / "mine" / "notes.txt", days=90)
    make(model / "model.ckpt-800.index", days=90)
    make(model / "estimator_pipeline" / "result.json", days=90)
    return model


def names(found):
    return sorted(str(one.path).split("digits/")[1] for one in found)


def test_what_can_go(model_dir):
    found = cleaning.find(model_dir.parent, keep=1, older_than=7 * DAY)
    old = ["logs/20260101-000000-00000001", "logs/20260102-000000-00000002", "slurm/20260201-000000-00000001"]
    newer = "slurm/20260202-000000-00000002"
    assert names(found) == [*old, f"{newer}/run-0", f"{newer}/run-1"]
    assert all(one.size >= 4096 for one in found)
    # One that still runs stays whole, but for the runs before its newest one.
    running = cleaning.find(model_dir, keep=0, older_than=7 * DAY, in_use=lambda folder: folder.name.endswith("2"))
    assert f"{newer}/run-1" in names(running) and newer not in names(running)
    assert f"{newer}" in names(cleaning.find(model_dir, keep=0, older_than=0))
    assert not cleaning.find(model_dir, keep=0, older_than=60 * DAY)


def test_nothing_of_what_is_in_use(model_dir, tmp_path):
    logs = model_dir / "logs" / "20260101-000000-00000001"
    environ = {**os.environ, RUN_ID_VARIABLE: f"{logs.name}-r1"}
    make(logs / "attempt-2" / "worker-0.log", days=19)
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE) as task:
        assert "logs/20260101-000000-00000001" not in names(cleaning.find(model_dir, keep=0, older_than=0))
        task.communicate(b"\n")
    make(model_dir / "logs" / "20260102-000000-00000002" / "attempt-1" / "worker-0.log", days=0)
    found = names(cleaning.find(model_dir, keep=0, older_than=0))
    assert "logs/20260101-000000-00000001" in found and "logs/20260102-000000-00000002" not in found


def test_the_command(model_dir, tmp_path):
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = call("clean", model_dir, env=environ)
    # Without Slurm nobody can say whether a job of it runs.
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("4 folders, ")
    assert done.stdout.endswith("nothing was removed: give --yes\n") and (model_dir / "slurm").is_dir()
    (tmp_path / "scontrol").write_text(f"#!{shutil.which('sh')}\necho JobId=1 JobState=COMPLETED\n")
    (tmp_path / "scontrol").chmod(0o755)
    done = call("clean", model_dir, "--yes", "--keep", "0", env=environ)
    assert done.returncode == 0 and done.stdout.splitlines()[-1].endswith("removed")
    assert not any((model_dir / "slurm").iterdir())
    assert [one.name for one in (model_dir / "logs").iterdir()] == ["mine"]
    assert (model_dir / "model.ckpt-800.index").exists()
    assert (model_dir / "estimator_pipeline" / "result.json").exists()
    assert call("clean", model_dir, env=environ).stdout == "0 folders, 0 bytes; nothing was removed\n"
    done = call("clean", tmp_path / "none", env=environ)
    assert done.returncode == 2 and "is not a folder" in done.stderr


def test_tables_that_were_not_used_for_long(tmp_path):
    """What training has made of CSV files, wherever their models are."""
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    tables = tmp_path / "cache" / "estimator_pipeline" / "tables"
    make(tables / "old.arrow", days=8)
    make(tables / "new.arrow", days=1)
    done = call("clean", env=environ)
    assert f"{tables}/old.arrow (table in the cache)\n" in done.stdout and "new.arrow" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("0 folders, 1 table, ")
    assert call("clean", "--yes", env=environ).returncode == 0
    assert [path.name for path in tables.iterdir()] == ["new.arrow"]
