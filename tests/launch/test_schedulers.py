"""What every scheduler does: the tests that a new one must pass, with recorded answers of its commands.

A new scheduler adds its `Recorded` to RECORDED: commands in a folder that answer as the real ones do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from estimator_pipeline.cli import main as cli
from estimator_pipeline.doctor.checks import CHECKS
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch.job_status import JobRow, JobStatus, status_json, status_lines
from estimator_pipeline.launch.scheduler import (
    COMMON_OPTIONS,
    JobReference,
    ListRequest,
    LogFolder,
    LogRequest,
    Scheduler,
    SubmitRequest,
)
from estimator_pipeline.launch.schedulers import SCHEDULERS, find_scheduler, list_jobs, reference_of, scheduler_named
from tests.launch.kubernetes.test_kubernetes_jobs import RUNNING, WORKERS, Cluster
from tests.launch.pbs.test_pbs_scripts import Pbs
from tests.launch.slurm.test_second_submission import CONFIG, Slurm
from tests.support.processes import ROOT, environment

TASK = "worker:0"


@dataclass(frozen=True)
class Recorded:
    """A job file, and commands that answer for it.

    Attributes:
        environ: An environment with these commands.
        file: The job file.
        settings: The changes of --set.
        runs: Called after the submission: from then on the job runs, and its task has logged a line "one".
        ends: Called after `cancel`: what the commands show then.
        close: Called after the test.
    """

    environ: dict[str, str]
    file: Path
    settings: tuple[str, ...]
    runs: Callable[[], None]
    ends: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None


def slurm(folder: Path) -> Recorded:
    commands, model_dir = Slurm(folder / "slurm commands"), folder / "m"

    def show(state: str) -> str:
        (script,) = (model_dir / "slurm").glob("*/job.sh")
        commands.show(f"1 JobState={state} Command={script}")
        return str(script.parent)

    def runs() -> None:
        run = Path(show("RUNNING")) / "run-0"
        run.mkdir()
        (run / "task-0.log").write_text("one\n")

    return Recorded(
        environ={"PATH": f"{commands.folder}:/bin:/usr/bin"},
        file=CONFIG,
        settings=(f"run.model_dir={model_dir}", "cluster.workers=2", "run.train_distribute=multi_worker_mirrored"),
        runs=runs,
        ends=lambda: show("CANCELLED") and None,
    )


def pbs(folder: Path) -> Recorded:
    commands, model_dir = Pbs(folder / "pbs commands"), folder / "m"

    def show(name: str) -> Path:
        (script,) = (model_dir / "pbs").glob("*/job.sh")
        commands.show(name, script.parent)
        return script.parent

    def runs() -> None:
        run = show("running") / "run-0"
        run.mkdir()
        (run / "task-0.log").write_text("one\n")

    return Recorded(
        environ=commands.environ,
        file=CONFIG,
        settings=(
            f"run.model_dir={model_dir}",
            "cluster.workers=2",
            "run.train_distribute=multi_worker_mirrored",
            "pbs.queue=q",
        ),
        runs=runs,
        ends=lambda: show("deleted") and None,
    )


def kubernetes(folder: Path) -> Recorded:
    (folder / "cluster").mkdir()
    cluster = Cluster(folder / "cluster")

    def runs() -> None:
        for host in range(3):
            cluster.pod(f"digits-cnn-{host}", RUNNING)
        cluster.save(grace=0)  # pods that are deleted are gone at the first look
        cluster.say("digits-cnn-0-abcde", "one\n")

    return Recorded(environ=cluster.env, file=WORKERS, settings=(), runs=runs)


NOTHING = "/nonexistent"
"""A PATH without the commands of any scheduler, which this machine may have."""
# In place of `train`, which imports TensorFlow: a task that has started, and stops with a checkpoint. Python runs this
# before the module of its command line.
_TASK = """
import os, signal, sys
if "train" in sys.orig_argv and "ESTIMATOR_PIPELINE_TASK" in os.environ:
    from estimator_pipeline.progress.progress_file import from_environ
    events = from_environ(os.environ)
    def stop(*_):
        events.emit("end", status="preempted")
        os._exit(75)
    signal.signal(signal.SIGTERM, stop)
    print("one", flush=True)
    events.emit("start", task=os.environ["ESTIMATOR_PIPELINE_TASK"])
    while True:
        signal.pause()
"""


def local(folder: Path) -> Recorded:
    """A real launch, of tasks that do not train."""
    (folder / "startup").mkdir()
    (folder / "startup" / "sitecustomize.py").write_text(_TASK)
    logs = folder / "m" / "logs"

    def runs() -> None:
        deadline = time.monotonic() + 120.0
        while not any(logs.glob("*/worker-0.progress.jsonl")):
            assert time.monotonic() < deadline, "the task did not start"
            time.sleep(0.02)

    def close() -> None:
        for record in logs.glob("*/launch.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)  # its tasks end with it

    return Recorded(
        environ={**environment(), "PATH": NOTHING, "PYTHONPATH": f"{folder / 'startup'}:{ROOT}"},
        file=CONFIG,
        settings=(f"run.model_dir={folder / 'm'}", "cluster.workers=1", "cluster.chief=false"),
        runs=runs,
        close=close,
    )


RECORDED = {"slurm": slurm, "pbs": pbs, "kubernetes": kubernetes, "local": local}
EVERY = pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: scheduler.name)


@pytest.fixture
def recorded(scheduler, tmp_path, monkeypatch) -> Iterator[Recorded]:
    monkeypatch.chdir(tmp_path)
    jobs = RECORDED[scheduler.name](tmp_path)
    yield jobs
    jobs.close()


def submitted(scheduler: Scheduler[Any], recorded: Recorded) -> tuple[Any, JobReference]:
    plan = scheduler.plan(SubmitRequest(recorded.file, recorded.settings))
    scheduler.submit(plan, environ=recorded.environ)
    recorded.runs()
    reference = reference_of(str(recorded.file), recorded.settings)
    return scheduler.find(reference, environ=recorded.environ), reference


def logged(scheduler: Scheduler[Any], job: Any, environ: dict[str, str], *, element: int | None = None, **more: Any):
    lines: list[str] = []
    request = LogRequest(**{"task": None, "failed": False, "follow": False, "lines": 20, **more}, write=lines.append)
    scheduler.logs(job, reference_of("x", None, element=element), request, environ=environ)
    return lines


@EVERY
def test_it_is_declared(scheduler):
    """Its command, its options, its checks."""
    assert scheduler_named(scheduler.name) is scheduler
    (submit,) = [entry for entry in cli.COMMANDS if entry.name == "submit"]
    assert scheduler.name in [entry.name for entry in submit.group]
    names = [option.name for option in (*scheduler.submit_options, *COMMON_OPTIONS)]
    assert len(names) == len(set(names))
    assert scheduler.submit_help.splitlines()[0].endswith(".") and scheduler.location.endswith(scheduler.title)
    assert set(scheduler.checks) <= {check.name for check in CHECKS}


@EVERY
def test_a_plan_needs_no_commands_and_writes_nothing(scheduler, recorded, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    plan = scheduler.plan(SubmitRequest(recorded.file, recorded.settings))
    assert plan.text.strip() and json.loads(plan.json) and [job.name for job in plan.jobs]
    assert sorted(tmp_path.rglob("*")) == before
    assert scheduler.is_available(recorded.environ)
    if not scheduler.program:
        return
    nothing = {"PATH": str(tmp_path / "nothing")}
    assert not scheduler.is_available(nothing)
    with pytest.raises(ConfigError) as caught:
        scheduler.submit(plan, environ=nothing)
    assert caught.value.code == "scheduler/unavailable" and caught.value.hint


@EVERY
def test_a_job_is_submitted_once_and_found_by_its_file_and_its_id(scheduler, recorded):
    job, reference = submitted(scheduler, recorded)
    assert find_scheduler(reference) is scheduler
    with pytest.raises(ConfigError) as caught:
        changed = SubmitRequest(recorded.file, (*recorded.settings, "train.max_steps=7"))
        scheduler.submit(scheduler.plan(changed), environ=recorded.environ)
    assert caught.value.code == "jobs/exists"
    (status,) = scheduler.status(job, environ=recorded.environ).jobs
    same = reference_of(status.job_id, None)
    assert find_scheduler(same) is scheduler and scheduler.find(same, environ=recorded.environ) == job


@EVERY
def test_its_result_is_lines_and_a_document(scheduler, recorded):
    result = scheduler.submit(scheduler.plan(SubmitRequest(recorded.file, recorded.settings)), environ=recorded.environ)
    assert json.loads(json.dumps(result.document)) and all(isinstance(line, str) for line, _ in result.messages)
    assert not all(is_error for _, is_error in result.messages)


@EVERY
def test_a_status_is_lines_a_row_and_a_document(scheduler, recorded):
    job, _ = submitted(scheduler, recorded)
    entry = scheduler.status(job, environ=recorded.environ)
    (status,) = entry.jobs
    assert entry.submission["scheduler"] == scheduler.name
    assert (status.phase, status.over, status.ended, status.failed) == ("running", False, False, False)
    assert status.lines()[0].startswith((status.job_id, f"job {status.job_id}")) and status.text in status.lines()[0]
    assert isinstance(status.row(), JobRow) and status.row().job == status.job_id
    document = json.loads(status_json([entry], single=True))["jobs"][0]
    assert set(document) >= set(JobStatus.__annotations__)
    assert document["state"] == status.state and status.text in "\n".join(status_lines([entry], single=True))


@EVERY
def test_its_jobs_are_listed(scheduler, recorded):
    submitted(scheduler, recorded)
    (entry,) = scheduler.list_jobs(ListRequest(), environ=recorded.environ).entries
    assert status_lines([entry], single=False)[1].startswith(entry.jobs[0].job_id)
    # Where only this scheduler's commands are, its jobs are in the list of all.
    assert list_jobs(ListRequest(), environ=recorded.environ).entries == [entry]


@EVERY
def test_logs(scheduler, recorded):
    job, _ = submitted(scheduler, recorded)
    assert logged(scheduler, job, recorded.environ, task=TASK) == ["one"]
    lines = logged(scheduler, job, recorded.environ)
    assert [line.split() for line in lines if "one" in line] == [[TASK, "|", "one"]]
    for more, code in [
        ({"task": "worker:17"}, "jobs/not-found"),
        ({"failed": True}, "jobs/not-found"),  # nothing has failed
        ({"failed": True, "follow": True}, "argument/conflict"),
        ({"element": 3}, "argument/not-applicable"),
    ]:
        with pytest.raises(ConfigError) as caught:
            logged(scheduler, job, recorded.environ, **more)
        assert caught.value.code == code, more


@EVERY
def test_stacks_are_in_a_folder_or_out_of_reach(scheduler, recorded):
    job, reference = submitted(scheduler, recorded)
    try:
        folder = scheduler.stacks(job, reference)
    except ConfigError as error:
        assert error.code == "argument/not-applicable" and error.hint
    else:
        assert isinstance(folder, LogFolder) and folder.path.is_dir() and TASK in folder.tasks


@EVERY
def test_a_job_is_cancelled(scheduler, recorded):
    job, reference = submitted(scheduler, recorded)
    lines: list[str] = []
    scheduler.cancel(job, reference, environ=recorded.environ, report=lines.append)
    assert lines
    recorded.ends()
    try:
        (status,) = scheduler.status(job, environ=recorded.environ).jobs
    except ConfigError as error:
        assert error.code == "jobs/not-found"
    else:
        assert status.ended and not status.failed


@EVERY
@pytest.mark.parametrize("option", ["element", "checkpoint", "now", "namespace", "folder"])
def test_an_option_is_supported_or_rejected(scheduler, option, monkeypatch):
    """None is ignored: the error names the jobs that the option is for."""
    for other in SCHEDULERS:
        monkeypatch.setattr(type(other), "claims", lambda self, reference: self is scheduler)
    reference = JobReference("17", options={option: "x"})
    if option in scheduler.options:
        assert find_scheduler(reference) is scheduler
        return
    with pytest.raises(ConfigError) as caught:
        find_scheduler(reference)
    assert caught.value.code == "argument/not-applicable" and caught.value.message.startswith(
        f"--{option} is for jobs "
    )


def test_options_of_two_schedulers_contradict_each_other():
    with pytest.raises(ConfigError, match=r"--folder is for jobs of Slurm, and --namespace for those in Kubernetes\."):
        list_jobs(ListRequest({"folder": Path(), "namespace": "x"}), environ={})


def test_every_scheduler_has_recorded_answers():
    assert list(RECORDED) == [scheduler.name for scheduler in SCHEDULERS]
