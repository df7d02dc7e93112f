"""Batch scripts for PBS, the starter of the tasks, and the answers of qsub, qstat, qdel and qsig.

The answers in `recorded/` are those of OpenPBS 23.06.06 to `qstat -f` and `qstat -x -f`; paths and user are changed.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job, make_job
from estimator_pipeline.launch.batch.submission import Submission
from estimator_pipeline.launch.job_status import JobStatus
from estimator_pipeline.launch.pbs import tasks
from estimator_pipeline.launch.pbs.scheduler import PbsScheduler
from estimator_pipeline.launch.pbs.script import plan_pbs
from estimator_pipeline.launch.scheduler import JobReference
from estimator_pipeline.launch.schedulers import find_scheduler, reference_of
from tests.support.command_line import call

PBS = PbsScheduler()
HERE = Path(__file__).parent
CONFIGS = Path(__file__).resolve().parents[3] / "legacy_configs"
ACCEPT = "ESTIMATOR_PIPELINE_ACCEPT_GOLDEN"
FULL = {
    "job_name": "night run",
    "account": "vision",
    "project": "digits",
    "queue": "gpu",
    "walltime": "36:00:00",
    "signal_seconds": 300,
    "max_requeues": 20,
    "max_restarts": 5,
    "step_timeout": 900,
    "metrics_dir": "/var/lib/node exporter",
    "ncpus": 8,
    "ngpus": 2,
    "mem": "64gb",
    "resources": {"gpu_model": "a100", "scratch": "100gb"},
    "place": "scatter:excl",
    "dependency": "afterok:12.server",
    "setup": ["module load cuda/12", "source /venv/bin/activate"],
    "teardown": ["rm -rf /scratch/$PBS_JOBID"],
    "env": {"TF_CPP_MIN_LOG_LEVEL": 1, "GREETING": "it's me", "SHARE": 0.5},
    "command": "apptainer exec --nv image.sif estimator-pipeline",
    "qsub": ["-l software=1", "-W umask=022"],
    "mail_user": "me@example.org",
    "mail_points": "ae",
}
ROLES = {
    "queue": "gpu",
    "ncpus": 8,
    "ngpus": 1,
    "place": "free",
    "roles": {"ps": {"ngpus": 0, "mem": "32gb", "ncpus": 4}, "evaluator": {"ngpus": 0, "ncpus": 2}},
}


def job(config="digits_cnn_two_workers", **pbs):
    base = load_job(CONFIGS / f"{config}.yaml", overrides=["run.model_dir=/shared/runs/model"])
    return make_job({**base.model_dump(exclude_defaults=True), "name": base.name, "pbs": pbs})


def plan(loaded, **more):
    place = {
        "folder": "/shared/runs/model/pbs/20260101-000000-00000000",
        "working_dir": "/home/me/my project",
        "command": ["/venv/bin/python", "-m", "estimator_pipeline"],
    }
    return plan_pbs(loaded, **{**place, "version": "0.1.0", **more})


CASES = {
    "plain": lambda: plan(job()),
    "full": lambda: plan(job(**FULL)),
    "roles": lambda: plan(job("chief_workers_ps", **ROLES)),
}


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
    path.chmod(0o755)


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# The script ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_as_it_was(name):
    script, path = CASES[name]().script, HERE / "golden" / f"{name}.sh"
    if os.environ.get(ACCEPT):
        path.write_text(script)
    diff = difflib.unified_diff(path.read_text().splitlines(), script.splitlines(), "golden", "now", lineterm="")
    assert script == path.read_text(), "\n".join(["accept it by " + ACCEPT + "=1:", *diff])
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_dependency_is_of_the_first_submission_only():
    """A script that submits itself again must not name a job that PBS has forgotten."""
    dependent = plan(job(dependency="afterok:12.server"))
    assert dependent.submit_options[-5:] == ("-W", "depend=afterok:12.server", "--", "/bin/bash", "-l")
    assert dependent.has_dependency and "afterok" not in dependent.script
    assert plan(job()).submit_options == (*dependent.submit_options[:-5], "--", "/bin/bash", "-l")


@pytest.mark.parametrize(
    ("pbs", "text"),
    [
        ({"walltime": "1-00:00:00"}, "this is not a time limit of PBS"),
        ({"mem": "64 GB"}, "this is not an amount of memory of PBS"),
        ({"qsub": ["--queue=x"]}, "this is not an option of qsub"),
        ({"qsub": ["-q gpu"]}, "set pbs.queue"),
        ({"qsub": ["-l walltime=1:00:00"]}, "set pbs.walltime"),
        ({"qsub": ["-J 0-3"]}, "PBS arrays are not supported"),
        ({"qsub": ["-W depend=afterok:1"]}, "set pbs.dependency"),
        ({"resources": {"ncpus": 3}}, "set pbs.ncpus"),
        ({"resources": {"mpiprocs": 3}}, "a chunk has one task"),
        ({"env": {"a b": "c"}}, "this is not the name of a variable"),
        ({"roles": {"ps": {"ncpus": 1}}}, "the cluster has no ps"),
    ],
)
def test_mistakes_in_the_section(pbs, text):
    with pytest.raises(ConfigError) as caught:
        job(**pbs)
    assert text in str(caught.value) + str(caught.value.found) + str(caught.value.hint)


def test_dry_run_prints_the_script_and_what_cannot_work(tmp_path):
    model_dir = tmp_path / "m"
    words = ["submit", "pbs", CONFIGS / "single.yaml", "--dry-run", "--set", f"run.model_dir={model_dir}", "--set"]
    done = call(*words, "pbs.walltime='1:00:00'")
    assert done.returncode == 0 and "\n    -l walltime=1:00:00\n" in done.stdout and not model_dir.exists()
    for setting, text in (
        ("pbs.walltime=100", "pbs.walltime is 100 s, and pbs.signal_seconds 120: the tasks are asked to stop as soon"),
        ("pbs.setup=['if true']", "pbs.setup is not a valid shell script"),
        ("pbs.mem=200mb", "pbs.mem 200mb for each worker, and each task needs some 300 MiB"),
    ):
        done = call(*words, setting)
        assert done.returncode == 2 and text in done.stderr, setting
    assert "set pbs.mem to 651mb or more" in done.stderr


# In place of `estimator-pipeline supervise`: runs until it is asked to stop with a checkpoint.
_SUPERVISOR = """
while [ "$1" != --log-dir ]; do shift; done
trap 'touch "$2/preempted"; exit 0' USR1
touch "$2/runs"
while :; do sleep 0.02; done
"""


def started(tmp_path, *, supervisor=None, **pbs):
    """Start the script of a job as PBS does."""
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "supervisor", _SUPERVISOR)
    program(tmp_path / "bin", "qsub", f'echo "$*" >>{tmp_path}/submitted; echo 18.pbs0')
    program(tmp_path / "bin", "qstat", 'echo "    Resource_List.walltime = $(cat "$(dirname "$0")/limit")"')
    (tmp_path / "bin" / "limit").write_text("10:00:00\n")
    (tmp_path / "nodes").write_text("n1\nn2\n")
    folder = tmp_path / "job"
    folder.mkdir()
    command = supervisor or [str(tmp_path / "bin" / "supervisor")]
    script = plan(job(**pbs), folder=str(folder), working_dir=str(tmp_path), command=command).script
    (folder / "job.sh").write_text(script)
    variables = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PBS_JOBID": "17.pbs0"}
    variables |= {"PBS_NODEFILE": str(tmp_path / "nodes"), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def start():
        return subprocess.Popen(["bash", str(folder / "job.sh")], env=variables, start_new_session=True)

    return folder, start


@contextlib.contextmanager
def running(start, folder, run=0):
    process = start()
    try:
        wait_for((folder / f"run-{run}" / "runs").exists)
        yield process
        process.wait(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_at_the_time_limit_it_is_submitted_again(tmp_path):
    """PBS sends no signal before: the script has a timer."""
    folder, start = started(tmp_path, signal_seconds=30)
    (tmp_path / "bin" / "limit").write_text("00:00:31\n")
    with running(start, folder) as process:
        pass
    assert process.returncode == 75 and (tmp_path / "submitted").read_text().endswith(
        f" -- /bin/bash -l {folder}/job.sh\n"
    )
    assert (folder / "resubmitted").read_text() == "18.pbs0\n"
    log = (folder / "output.log").read_text()
    assert "job 17.pbs0: start 0 on n1,n2" in log and "submitted again as job 18.pbs0 (1 of at most 100)" in log
    # The next run has the next folder.
    with running(start, folder, run=1) as process:
        process.send_signal(signal.SIGUSR1)
    assert process.returncode == 75 and "job 17.pbs0: start 1 on" in (folder / "output.log").read_text()


def test_a_cancelled_job_is_not_submitted_again(tmp_path):
    folder, start = started(tmp_path)
    with running(start, folder) as process:
        os.killpg(process.pid, signal.SIGTERM)  # PBS signals all processes of the session
    assert process.returncode == 143 and not (tmp_path / "submitted").exists()
    assert (folder / "output.log").read_text().splitlines()[-1].partition("job ")[2].startswith("17.pbs0: ended as")


def test_a_job_that_pbs_does_not_accept_again(tmp_path):
    folder, start = started(tmp_path, max_requeues=1)
    program(tmp_path / "bin", "qsub", "echo 'qsub: would exceed limit' >&2; exit 1")
    for run, text in ((0, "qsub: would exceed limit"), (1, "not requeued, since pbs.max_requeues is 1")):
        with running(start, folder, run=run) as process:
            process.send_signal(signal.SIGUSR1)
        assert process.returncode == 75 and text in (folder / "output.log").read_text()
    assert not (folder / "resubmitted").exists()


# The starter of the tasks ----------------------------------------------------------------------------------------

# pbs_tmrsh passes on neither the environment nor signals.
_TMRSH = 'shift; exec env -i PATH="$PATH" PBS_JOBID=17.pbs0 PBS_TASKNUM=$RANDOM "$@"'
_TASK = """
trap 'echo stopped; exit 0' USR1
echo "$ESTIMATOR_PIPELINE_RANK $GREETING $PWD $(cat $PBS_NODEFILE | tr '\\n' ' ')$PBS_TASKNUM"
touch started-$ESTIMATOR_PIPELINE_RANK
[ "$ESTIMATOR_PIPELINE_RANK" != "$FAILS" ] || exit 7
[ "$ESTIMATOR_PIPELINE_RANK" != "$DIES" ] || kill -KILL $$
while [ -z "$DONE" ]; do sleep 0.02; done
"""


def run_tasks(tmp_path, *, stop=None, **variables):
    program(tmp_path, "pbs_tmrsh", _TMRSH)
    program(tmp_path, "task", _TASK)
    (tmp_path / "nodes").write_text("n1\nn2\n")
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    environ |= {"GREETING": "it's\nme", "PBS_TASKNUM": "x", "PBS_NODEFILE": str(tmp_path / "nodes"), **variables}
    command = [sys.executable, "-m", "estimator_pipeline.launch.pbs.tasks", str(tmp_path / "logs"), "100"]
    (tmp_path / "logs").mkdir()
    process = subprocess.Popen(
        [*command, str(tmp_path / "task")], env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    if stop is not None:
        wait_for(lambda: all((tmp_path / f"started-{rank}").exists() for rank in (0, 1)))
        process.send_signal(stop)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors, [(tmp_path / "logs" / f"task-{rank}.log").read_text() for rank in (0, 1)]


def test_a_task_has_the_environment_of_the_script_and_its_rank(tmp_path):
    code, errors, logs = run_tasks(tmp_path, DONE="1")
    assert (code, errors) == (0, "")
    for rank, log in enumerate(logs):
        assert log.startswith(f"{rank} it's me {tmp_path} n1 n2 ".replace("it's me", "it's\nme"))
        assert not log.rstrip().endswith("x"), "its own PBS_TASKNUM"
    assert (tmp_path / "logs" / "tasks-1").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_reaches_every_task(tmp_path, number):
    code, errors, logs = run_tasks(tmp_path, stop=number)
    assert (code, errors) == (0, "") and all(log.endswith("stopped\n") for log in logs)


@pytest.mark.parametrize(
    ("variables", "code", "error"),
    [
        ({"FAILS": "1"}, 7, "pbs_tmrsh: error: n2: task 1: Exited with exit code 7\n"),
        ({"DIES": "0"}, 137, "pbs_tmrsh: error: n1: task 0: Killed\n"),
    ],
)
def test_a_task_that_fails_stops_the_others(tmp_path, variables, code, error):
    exit_code, errors, _ = run_tasks(tmp_path, **variables)
    assert exit_code == code and errors.startswith(error) and errors.endswith(": Terminated\n")


def test_a_task_that_never_starts(tmp_path, monkeypatch):
    """PBS does not answer for a host that is down; and nothing waits there for ever for the task."""
    program(tmp_path, "pbs_tmrsh", f'[ "$3" = -c ] || exec sleep 1000; shift; "$@"; echo $? >{tmp_path}/sender')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(tasks, "_START_SECS", 0)
    started = tasks._Tasks(["n1"], tmp_path)
    started.send(signal.SIGUSR1)
    wait_for((tmp_path / "sender").exists)
    assert started.ended() == [(0, None)] and not started


def test_a_host_that_is_up_again(tmp_path, monkeypatch):
    """PBS has ended the task, but does not report it: it rejects to run the command that sends a signal."""
    program(tmp_path, "pbs_tmrsh", '[ "$3" != -c ] || exit 255; exec sleep 1000')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    started = tasks._Tasks(["n1"], tmp_path)
    started.send(signal.SIGTERM)
    ended = []
    wait_for(lambda: ended.extend(started.ended()) or ended)
    assert ended == [(0, None)]


def test_a_job_whose_host_has_failed_is_submitted_again(tmp_path):
    """It does not restart in place: PBS starts no task on the host, also when that is up again."""
    real = [sys.executable, "-m", "estimator_pipeline"]
    folder, start = started(tmp_path, supervisor=real, command=str(tmp_path / "task"))
    program(tmp_path, "task", "while :; do sleep 0.02; done")
    program(tmp_path / "bin", "pbs_tmrsh", f'[ "$1" = n1 ] || exit 255\n{_TMRSH}')
    process = start()
    try:
        assert process.wait(timeout=60) == 75
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    log = (folder / "output.log").read_text()
    assert "pbs_tmrsh: error: Node failure on n2\n" in log and "no further attempt: stopped by SIGUSR1\n" in log
    assert "submitted again as job 18.pbs0" in log and not (folder / "run-0" / "attempt-2").exists()


# Submitted jobs --------------------------------------------------------------------------------------------------


def recorded(name, *, folder="/shared/m/pbs/t", job_id="17.pbs0"):
    text = (HERE / "recorded" / f"{name}.txt").read_text()
    return text.replace("/shared/m/pbs/t", str(folder)).replace("Job Id: 17.pbs0", f"Job Id: {job_id}")


class Pbs:
    """Scripts in place of PBS's commands, which accept each job and show these records."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        program(folder, "qsub", 'cd "${0%/*}"; n=$(ls | grep -c called); echo $* >$n.called; echo $((17 + n)).pbs0')
        # All jobs that have not ended, or the one that is named.
        unknown = "{ echo qstat: Unknown Job Id >&2; exit 153; }"
        program(
            folder, "qstat", f'cd "${{0%/*}}"; if [ "$1" = -x ]; then cat $3.job || {unknown}; else cat *.alive; fi'
        )
        for name in ("qdel", "qsig"):
            program(folder, name, f'echo {name} $* >>"${{0%/*}}/cancelled"')
        (folder / "none.alive").write_text("")
        self.environ = {"PATH": f"{folder}:/bin:/usr/bin"}

    def show(self, name, folder, *, job_id="17.pbs0"):
        text = recorded(name, folder=folder, job_id=job_id)
        (self.folder / f"{job_id}.job").write_text(text)
        if "job_state = F" in text:
            (self.folder / f"{job_id}.alive").unlink(missing_ok=True)
        else:
            (self.folder / f"{job_id}.alive").write_text(text)


@pytest.fixture
def pbs(tmp_path):
    return Pbs(tmp_path / "commands")


def submit(pbs, model_dir, *settings):
    changes = [f"run.model_dir={model_dir}", *settings]
    words = [word for change in changes for word in ("--set", change)]
    return call("submit", "pbs", CONFIGS / "single.yaml", "--no-checks", *words, env=pbs.environ)


def status_of(pbs, folder) -> JobStatus:
    (status,) = PBS.status(Submission("17.pbs0", folder, "x", scheduler="pbs"), environ=pbs.environ).jobs
    return status


@pytest.mark.parametrize(
    ("name", "text", "failed", "exit_code"),
    [
        ("running", "running, 00:00:00 of 00:10:00, on pbs1,pbs2", False, None),
        ("held", "held (afterok:100.pbs0@pbs0)", False, None),
        ("never", "cannot start: Can Never Run: Insufficient amount of resource: ncpus (R: 100 A: 8 T: 8)", True, None),
        ("ending", "ending, 00:00:00, on pbs1", False, None),
        ("done", "done, 00:00:14, on pbs1", False, 0),
        ("failed", "failed: training diverged (exit code 3), 00:00:00, on pbs1", True, 3),
        ("requeued", "stopped with a checkpoint, and not requeued (exit code 75), 00:00:41 of 00:01:10, on", True, 75),
        ("walltime", "ended by its time limit, 00:00:11 of 00:00:05, on pbs1", True, -29),
        ("deleted", "cancelled, ", False, None),
        ("deleted_in_queue", "cancelled", False, None),
    ],
)  # fmt: skip
def test_states_in_words(pbs, tmp_path, name, text, failed, exit_code):
    pbs.show(name, tmp_path)
    status = status_of(pbs, tmp_path)
    assert status.lines()[0].startswith(f"job 17.pbs0 (x): {text}") and status.failed is failed
    assert exit_code is None or status.exit_code == exit_code
    assert status.ended is ("job_state = F" in recorded(name)) and bool(status.hint) is (name == "never")


def test_a_job_that_was_asked_to_stop(pbs, tmp_path):
    """PBS may report the exit code 0 of a script that SIGTERM has ended: the script's last line counts."""
    pbs.show("asked", tmp_path)
    (tmp_path / "output.log").write_text("2026-01-01 00:00:00 job 17.pbs0: ended as asked, exit code 75; the next\n")
    status = status_of(pbs, tmp_path)
    assert (status.state, status.failed, status.exit_code, status.row().state) == ("FAILED", False, 143, "STOPPED")


def test_a_job_that_pbs_has_forgotten_is_known_by_its_files(pbs, tmp_path):
    (tmp_path / "output.log").write_text("the last line\n")
    assert status_of(pbs, tmp_path).text == "PBS no longer knows the job; the last line of its output: the last line"


def test_a_job_is_known_by_the_id_of_each_of_its_runs(pbs, tmp_path):
    done = submit(pbs, tmp_path / "m")
    assert (done.returncode, done.stdout) == (0, "17.pbs0\n")
    (folder,) = (tmp_path / "m" / "pbs").iterdir()
    called = (pbs.folder / "0.called").read_text()
    assert called.startswith("-N single -j oe -o ") and called.endswith(f" -- /bin/bash -l {folder}/job.sh\n")
    (folder / "resubmitted").write_text("18.pbs0\n19.pbs0\n")
    for run in ("run-0", "run-1", "run-2"):
        (folder / run).mkdir()
    pbs.show("requeued", folder)
    pbs.show("running", folder, job_id="19.pbs0")
    for name in ("17.pbs0", "19.pbs0", str(tmp_path / "m"), str(folder)):
        done = call("status", name, env=pbs.environ)
        assert done.stdout.startswith("job 19.pbs0 (single): running") and "requeued 2 times" in done.stdout, name
    table = call("status", "--folder", tmp_path, env=pbs.environ).stdout.splitlines()
    assert len(table) == 2 and table[1].startswith("19.pbs0  single  RUNNING")
    done = submit(pbs, tmp_path / "m")
    assert done.returncode == 2 and "job 19.pbs0 (single) of the same model directory is running" in done.stderr
    assert "pbs.dependency: afterany:19.pbs0" in " ".join(done.stderr.split())
    assert submit(pbs, tmp_path / "m", "pbs.dependency=afterany:19.pbs0").returncode == 0


def test_cancel_and_cancel_with_a_checkpoint(pbs, tmp_path):
    submit(pbs, tmp_path / "m")
    (folder,) = (tmp_path / "m" / "pbs").iterdir()
    pbs.show("running", folder)
    assert call("cancel", "17.pbs0", env=pbs.environ).stdout == "job 17.pbs0: cancelled\n"
    # The job ends by the signal.
    asked = recorded("asked", folder=folder)
    program(pbs.folder, "qsig", f"echo qsig $* >>{pbs.folder}/cancelled; cat >{pbs.folder}/17.pbs0.job <<'X'\n{asked}X")
    done = call("cancel", tmp_path / "m", "--checkpoint", env=pbs.environ)
    assert (done.returncode, done.stdout) == (0, "job 17.pbs0: asked to stop with a checkpoint\n")
    assert (pbs.folder / "cancelled").read_text() == "qdel 17.pbs0\nqsig -s SIGTERM 17.pbs0\n"


def test_a_rejected_job_leaves_nothing(pbs, tmp_path):
    program(pbs.folder, "qsub", "echo 'qsub: Unknown queue' >&2; exit 170")
    done = submit(pbs, tmp_path / "m")
    assert done.returncode == 2 and "PBS rejected the job. [scheduler/refused]" in done.stderr
    assert "found: qsub: Unknown queue" in done.stderr and not list((tmp_path / "m" / "pbs").iterdir())


def test_a_server_that_does_not_answer(pbs, tmp_path):
    submit(pbs, tmp_path / "m")
    program(pbs.folder, "qstat", "echo 'qstat: cannot connect to server pbs0 (errno=15010)' >&2; exit 255")
    done = call("status", tmp_path / "m", env=pbs.environ)
    assert done.returncode == 1 and "PBS does not answer (qstat: cannot connect to server pbs0" in done.stdout


def test_without_a_history_of_jobs(pbs, tmp_path):
    """Then the server rejects -x."""
    pbs.show("running", tmp_path)
    shutil.copy(pbs.folder / "17.pbs0.job", pbs.folder / "job")
    rejected = "{ echo 'qstat: PBS is not configured to maintain job history' >&2; exit 0; }"
    program(pbs.folder, "qstat", f"[ $1 = -f ] && cat {pbs.folder}/job || {rejected}")
    assert status_of(pbs, tmp_path).state == "RUNNING"


def test_the_newest_submission_in_a_folder_decides_the_scheduler(tmp_path):
    for scheduler, when in (("slurm", 1.0), ("pbs", 2.0)):
        folder = tmp_path / scheduler / "t"
        folder.mkdir(parents=True)
        record = Submission("1", folder, "x", submitted=when, scheduler=scheduler).document()
        (folder / "submission.json").write_text(json.dumps(record))
        assert find_scheduler(reference_of(str(tmp_path))).name == scheduler
        assert find_scheduler(reference_of(str(folder))).name == scheduler


def test_an_id_is_not_a_file():
    assert PBS.claims(JobReference("17.pbs0", is_id=True)) and find_scheduler(reference_of("17.pbs0")).name == "pbs"
    for name in ("17", "17_2", "17.yaml", "17.yml", "17.json", "job/17.pbs0"):
        assert not PBS.claims(JobReference(name, is_id=True)), name


def test_a_number_is_an_id_of_pbs_where_only_its_commands_are(pbs, tmp_path):
    submit(pbs, tmp_path / "m")
    (folder,) = (tmp_path / "m" / "pbs").iterdir()
    pbs.show("running", folder)
    shutil.copy(pbs.folder / "17.pbs0.job", pbs.folder / "17.job")  # the server accepts the number
    (pbs.folder / "cat").symlink_to(shutil.which("cat"))
    path = {"PATH": str(pbs.folder)}
    assert find_scheduler(reference_of("17"), environ=path).name == "pbs"
    assert call("status", "17", env=path).stdout.startswith("job 17.pbs0 (single): running")
    program(pbs.folder, "scontrol", "exit 1")
    for environ in (path, {"PATH": str(tmp_path)}):
        assert find_scheduler(reference_of("17"), environ=environ).name == "slurm"
