"""The lines of `slurm.setup`: signals that arrive while they run, lines that fail, lines that end the script."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from estimator_pipeline.job import load_job, make_job
from estimator_pipeline.launch.batch.submission import Submission
from estimator_pipeline.launch.slurm.scheduler import SlurmScheduler
from estimator_pipeline.launch.slurm.script import plan_slurm
from tests.support.command_line import call

CONFIG = Path(__file__).resolve().parents[3] / "legacy_configs" / "digits_cnn_two_workers.yaml"
# In place of `estimator-pipeline supervise`.
_STARTED = ["sh", "-c", 'echo "tasks start: $KEPT $PWD"']


@pytest.fixture
def submitted(tmp_path):
    """A function that writes the script of a job with this section `slurm`, as a submission."""

    def write(**slurm):
        base = load_job(CONFIG)
        job = make_job({**base.model_dump(exclude_defaults=True), "name": "digits", "slurm": slurm})
        plan = plan_slurm(job, folder=str(tmp_path / "job"), working_dir=str(tmp_path), command=_STARTED, version="1")
        submission = Submission("7", tmp_path / "job", "digits", tasks=("worker:0", "worker:1"))
        submission.folder.mkdir()
        (submission.folder / "job.sh").write_text(plan.script)
        (submission.folder / "submission.json").write_text(json.dumps(submission.document()))
        (tmp_path / "bin").mkdir()
        program(tmp_path, "scontrol", "echo $* >>called")
        return submission

    return write


def program(tmp_path, name, text):
    path = tmp_path / "bin" / name
    path.write_text(f"#!{shutil.which('sh')}\n{text}\n")
    path.chmod(0o755)


def started(tmp_path, run=0):
    variables = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    with open(tmp_path / "job" / "output.log", "a") as output:
        return subprocess.Popen(
            ["bash", "job/job.sh"],
            cwd=tmp_path,
            env=variables | {"SLURM_RESTART_COUNT": str(run)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def ran(tmp_path):
    """The exit code of the script and its output."""
    script = started(tmp_path)
    script.communicate(timeout=60)
    return script.returncode, (tmp_path / "job" / "output.log").read_text()


def stopped(tmp_path, number, run=0):
    """The exit code of a script that got this signal while a long command of its setup ran, and its output."""
    pid = tmp_path / "pid"
    pid.unlink(missing_ok=True)
    script = started(tmp_path, run)
    try:
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text().endswith("\n")):
            assert time.monotonic() < deadline and script.poll() is None
            time.sleep(0.02)
        # Slurm sends it to the script only.
        script.send_signal(number)
        script.communicate(timeout=60)
        assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    finally:
        with contextlib.suppress(ProcessLookupError, ValueError, FileNotFoundError):
            os.kill(int(pid.read_text()), signal.SIGKILL)
    return script.returncode, (tmp_path / "job" / "output.log").read_text()


def status(tmp_path, submission, record):
    """The lines of `status`, and whether it counts as a failure, if Slurm has this record."""
    program(tmp_path, "scontrol", f"echo 'JobId=7 {record}'")
    (job,) = SlurmScheduler().status(submission, environ={"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin"}).jobs
    return job.lines(), job.failed


# A copy that takes hours.
_COPY = ["for file in one two; do", "  sh -c 'echo $$ >pid; exec sleep 3600'", "done || true"]


def test_a_signal_before_the_time_limit_during_setup(submitted, tmp_path):
    """The job is requeued as one that is stopped before training: three times in a row are too many."""
    submission = submitted(setup=_COPY, teardown=["touch torn"])
    for run in (0, 1):
        code, output = stopped(tmp_path, signal.SIGUSR1, run)
        assert code == 75 and output.count("job 7: asked to stop during slurm.setup\n") == run + 1, output
        assert (tmp_path / "called").read_text() == "requeue 7\n" * (run + 1)
        assert "warning" not in output and "tasks start" not in output
    waits = status(tmp_path, submission, "JobState=PENDING Reason=BeginTime Restarts=2")
    assert waits == (
        ["job 7 (digits): waiting in the queue (BeginTime), requeued 2 times", "  asked to stop during slurm.setup"],
        False,
    )
    program(tmp_path, "scontrol", "echo $* >>called")
    code, output = stopped(tmp_path, signal.SIGUSR1, 2)
    assert code == 75 and "stopped before training 3 times in a row" in output
    assert (tmp_path / "called").read_text() == "requeue 7\n" * 2
    assert status(tmp_path, submission, "JobState=FAILED ExitCode=75:0") == (
        ["job 7 (digits): asked to stop during slurm.setup, and not requeued (exit code 75)"], True
    )  # fmt: skip
    # Its variables may not be set.
    assert not (tmp_path / "torn").exists()


def test_a_signal_during_setup_without_requeues(submitted, tmp_path):
    submission = submitted(setup=_COPY, max_requeues=0)
    code, output = stopped(tmp_path, signal.SIGUSR1)
    assert code == 75 and "not requeued, since slurm.max_requeues is 0" in output and not (tmp_path / "called").exists()
    (line,), failed = status(tmp_path, submission, "JobState=FAILED ExitCode=75:0")
    assert line == "job 7 (digits): asked to stop during slurm.setup, and not requeued (exit code 75)" and failed


def test_a_cancel_during_setup(submitted, tmp_path):
    submission = submitted(setup=_COPY)
    code, output = stopped(tmp_path, signal.SIGTERM)
    assert code == 143 and "asked to stop during slurm.setup" in output and not (tmp_path / "called").exists()
    lines, failed = status(tmp_path, submission, "JobState=FAILED ExitCode=143:0")
    assert lines[0].startswith("job 7 (digits): stopped as asked") and not failed
    assert lines[1] == "  asked to stop during slurm.setup"


def test_a_line_that_fails_is_a_warning(submitted, tmp_path):
    """The tasks start all the same, as in earlier versions."""
    submission = submitted(setup=["export KEPT=kept", "moduule load cuda/12", "cd bin"])
    code, output = ran(tmp_path)
    warning = "warning: a line of slurm.setup failed with exit code 127: moduule load cuda/12"
    assert code == 0 and f" job 7: {warning}\n" in output and f"tasks start: kept {tmp_path / 'bin'}\n" in output
    assert status(tmp_path, submission, "JobState=RUNNING") == (["job 7 (digits): running", f"  {warning}"], False)
    program(tmp_path, "scontrol", "echo JobId=7 JobState=RUNNING")
    environ = {"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin"}
    (document,) = json.loads(call("status", submission.folder, "--json", env=environ).stdout)["jobs"]
    assert document["setup"] == [warning]
    done = call("logs", submission.folder, "--failed", env=environ)
    assert done.returncode == 2 and f"found: {warning}" in done.stderr


# Lines, and those that are reported: with their exit codes and as they are written.
_FAILING = [
    (["f() {", "  false", "  return 6", "}", "f 1"], ["6: f 1"]),
    ([". ./library.sh", "from_library cuda", "from_library cuda"], ["3: from_library cuda"] * 2),
    (["for i in 1 2 3; do", "  ls /none/$i", "done"], ["2:   ls /none/$i"]),
    (["if true; then", "  ( exit 4 )", "fi"], ["4:   ( exit 4 )"]),
    (["cat <<X | grep none", "text", "X", "x=$(exit 7)"], ["1: cat <<X | grep none", "7: x=$(exit 7)"]),
    (["test a = \\", "  b"], ["1: test a = b"]),
    (["false\ntrue\ntest 1 = 2"], ["1: false", "1: test 1 = 2"]),
    (["set -E", "f() { ls /none; }", "f", "x=$(ls /none)"], ["2: f", "2: x=$(ls /none)"]),
    (["false || true", "if false; then :; fi", "! true", "false && true", "while false; do :; done"], []),
    (["set -o pipefail; shopt -s extglob expand_aliases", "echo !(x)", "alias greet='echo hello'", "greet"], []),
    (["cat <<'X'", "it's \"$quoted\"", "X", "folder=1 ep=2 logs=3 code=4 restarts=5 again=6 child=7 job=8"], []),
    (["set -eu", "export KEPT=kept", "true && true"], []),
]  # fmt: skip


def test_what_counts_as_a_failure(submitted, tmp_path):
    """Not what is a condition; each line once. The shell is one, and reads line after line."""
    (tmp_path / "library.sh").write_text("false\nfrom_library() { false; return 3; }\n")
    submission = submitted()
    for setup, failing in _FAILING:
        shutil.rmtree(submission.folder)
        shutil.rmtree(tmp_path / "bin")
        submission = submitted(setup=[*setup, "export KEPT=kept"])
        code, output = ran(tmp_path)
        warnings = [line.partition(" exit code ")[2] for line in output.splitlines() if "warning: a line" in line]
        assert (code, warnings) == (0, failing), output
        assert "tasks start: kept" in output and "ended with exit code 0" in output, output


def test_teardown_has_the_shell_of_setup(submitted, tmp_path):
    lines = ["shopt -s extglob", "declare -A where=([data]=/scratch)", "free() { echo freed $1; }"]
    submitted(setup=lines, teardown=["echo !(job|torn) >torn", "free ${where[data]} >>torn"])
    code, output = ran(tmp_path)
    assert code == 0 and (tmp_path / "torn").read_text() == "bin\nfreed /scratch\n", output


@pytest.mark.parametrize(
    ("setup", "exit_code", "warning"),
    [
        (["exit 9"], 9, None),
        (["cd /none || exit 4"], 4, None),
        (["set -e", "cd /no", "touch started"], 1, "warning: a line of slurm.setup failed with exit code 1: cd /no"),
        (["if true; then", "touch started"], 2, None),
    ],
)  # fmt: skip
def test_a_setup_that_ends_the_script(submitted, tmp_path, setup, exit_code, warning):
    submission = submitted(setup=setup)
    code, output = ran(tmp_path)
    ended = f"slurm.setup ended the script with exit code {exit_code}"
    assert code == exit_code and output.endswith(f" job 7: {ended}\n") and "tasks start" not in output
    assert not (tmp_path / "started").exists()
    lines, failed = status(tmp_path, submission, f"JobState=FAILED ExitCode={exit_code}:0")
    assert lines == [f"job 7 (digits): failed: {ended} (output.log)", *([f"  {warning}"] if warning else [])] and failed
    done = call("logs", submission.folder, "--failed", "--lines", "1", env={"PATH": "/bin:/usr/bin"})
    shown = done.stdout.splitlines()
    assert done.returncode == 0 and shown[:-1] == [f"{ended} (output.log)", *([warning] if warning else [])]
    assert shown[-1].endswith(f"job 7: {ended}")
