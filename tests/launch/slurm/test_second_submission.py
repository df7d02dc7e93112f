"""A model directory whose job waits or runs: no second job is submitted; `status` and `cancel` prefer that job."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import call

CONFIG = Path(__file__).resolve().parents[3] / "legacy_configs" / "single.yaml"


class Slurm:
    """Scripts in place of Slurm's commands, which accept each job and show these records."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        shell = shutil.which("sh")
        for name, text in [
            ("sbatch", "n=$(($(cat submitted) + 1)); echo $n >submitted; echo $n"),
            # All jobs, or the one that is named.
            ("scontrol", 'cat records | if [ -n "$4" ]; then grep "^JobId=$4 "; else cat; fi'),
            ("scancel", "echo $* >>cancelled"),
        ]:
            (folder / name).write_text(f"#!{shell}\ncd '{folder}'\n{text}\n")
            (folder / name).chmod(0o755)
        (folder / "submitted").write_text("0\n")
        self.show()

    @property
    def submitted(self):
        return int((self.folder / "submitted").read_text())

    def show(self, *records):
        (self.folder / "records").write_text("".join(f"JobId={record}\n" for record in records))

    def call(self, command, model_dir, *settings, options=()):
        changes = [f"run.model_dir={model_dir}", *settings]
        words = [word for change in changes for word in ("--set", change)]
        more = ["--no-checks"] if command == "submit" else []
        names = ["submit", "slurm"] if command == "submit" else [command]
        return call(*names, CONFIG, *words, *more, *options, env={"PATH": f"{self.folder}:/bin:/usr/bin"})


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path / "slurm commands")


def script_of(folder):
    (script,) = folder.glob("*/job.sh")
    return script


@pytest.mark.parametrize(
    ("state", "text"), [("PENDING", "waiting in the queue"), ("RUNNING", "running"), ("SUSPENDED", "suspended")]
)
def test_a_job_that_has_not_ended_keeps_its_model_dir(slurm, tmp_path, state, text):
    assert slurm.call("submit", tmp_path / "m").returncode == 0
    slurm.show(f"1 JobState={state} Command={script_of(tmp_path / 'm' / 'slurm')}")
    done = slurm.call("submit", tmp_path / "m")
    assert (done.returncode, done.stdout, slurm.submitted) == (2, "", 1)
    assert f"job 1 (single) of the same model directory is {text}; nothing is submitted. [jobs/exists]" in done.stderr
    assert all(word in done.stderr for word in ("cancel 1`", "run.model_dir", "afterany:1"))
    assert len(list((tmp_path / "m" / "slurm").iterdir())) == 1
    # A path that leads there, from a different folder of submissions.
    (tmp_path / "link").symlink_to(tmp_path / "m")
    assert slurm.call("submit", tmp_path / "link", f"slurm.dir={tmp_path / 'jobs'}").returncode == 2
    # Jobs that wait for it, and those of other model directories.
    for settings in (["slurm.dependency=afterany:1"], ["slurm.sbatch=['--hold --dependency=singleton']"]):
        assert slurm.call("submit", tmp_path / "m", *settings).returncode == 0, settings
    assert slurm.call("submit", tmp_path / "other", f"slurm.dir={tmp_path / 'jobs'}").returncode == 0


@pytest.mark.parametrize(
    "record",
    [
        "1 JobState=FAILED ExitCode=2:0 Command={script}",
        "1 JobState=COMPLETED ExitCode=0:0 Command={script}",
        # After `cancel`: it ends while the next one starts.
        "1 JobState=COMPLETING Command={script}",
        "1 JobState=RUNNING Command=/home/other/job.sh",
        "2 JobState=RUNNING Command=(null)",
    ],
)
def test_a_model_dir_without_a_job_is_free(slurm, tmp_path, record):
    assert slurm.call("submit", tmp_path / "m").returncode == 0
    slurm.show(record.format(script=script_of(tmp_path / "m" / "slurm")))
    assert slurm.call("submit", tmp_path / "m").returncode == 0 and slurm.submitted == 2


def test_where_slurm_shows_no_jobs_its_answer_to_sbatch_counts(slurm, tmp_path):
    assert slurm.call("submit", tmp_path / "m").returncode == 0
    (slurm.folder / "records").unlink()
    assert slurm.call("submit", tmp_path / "m").returncode == 0 and slurm.submitted == 2


def test_elements_of_an_array_have_a_model_dir_each(slurm, tmp_path):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("run.seed: [1, 2, 3]\n")
    array = ["--array", sweep]
    assert slurm.call("submit", tmp_path / "m", options=array).returncode == 0
    script = script_of(tmp_path / "m" / "slurm")
    slurm.show(
        f"2 ArrayJobId=1 ArrayTaskId=0 JobState=COMPLETED Command={script}",
        f"3 ArrayJobId=1 ArrayTaskId=1 JobState=RUNNING Command={script}",
        f"1 ArrayJobId=1 ArrayTaskId=2 JobState=PENDING Command={script}",
    )
    assert "job 1_1 (single)" in slurm.call("submit", tmp_path / "m", options=array).stderr
    assert "job 1_2 (single)" in slurm.call("submit", tmp_path / "m" / "2").stderr
    assert slurm.submitted == 1
    assert slurm.call("submit", tmp_path / "m" / "0").returncode == 0
    assert slurm.call("submit", tmp_path / "m").returncode == 0


def test_status_and_cancel_prefer_the_job_that_has_not_ended(slurm, tmp_path):
    """One that was submitted before a newer one, which ended."""
    for _ in (1, 2):
        assert slurm.call("submit", tmp_path / "m").returncode == 0
    by_id = {}
    for record in (tmp_path / "m" / "slurm").glob("*/submission.json"):
        document = json.loads(record.read_text())
        by_id[document["job_id"]] = record.with_name("job.sh")
        assert document["model_dirs"] == [str(tmp_path / "m")]
    newer = f"2 JobState=FAILED ExitCode=2:0 Command={by_id['2']}"
    slurm.show(f"1 JobState=RUNNING Command={by_id['1']}", newer)
    done = slurm.call("status", tmp_path / "m")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "job 1 (single): running")
    assert slurm.call("cancel", tmp_path / "m").stdout == "job 1: cancelled\n"
    assert (slurm.folder / "cancelled").read_text() == "1\n"
    slurm.show(f"1 JobState=CANCELLED Command={by_id['1']}", newer)
    done = slurm.call("status", tmp_path / "m")
    assert done.returncode == 1 and done.stdout.startswith("job 2 (single): failed")


@pytest.mark.parametrize(("first", "second"), [("m", "other"), ("other", "m")])
def test_submissions_of_several_model_dirs_in_one_folder(slurm, tmp_path, first, second):
    """The job of this model directory counts, not a newer one, nor one that still runs."""
    common = f"slurm.dir={tmp_path / 'jobs'}"
    for name in (first, second):
        assert slurm.call("submit", tmp_path / name, common).returncode == 0
    ours, others = (1, 2) if first == "m" else (2, 1)
    slurm.show(f"{ours} JobState=COMPLETED", f"{others} JobState=RUNNING")
    assert slurm.call("cancel", tmp_path / "m", common).stdout == f"job {ours} has ended already\n"
    assert not (slurm.folder / "cancelled").exists()
