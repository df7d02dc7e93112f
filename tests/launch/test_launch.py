"""Local clusters of real processes: what they are given, how they end, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from estimator_pipeline.cluster.spec import Task, parse_tf_config
from estimator_pipeline.errors import ClusterError, ConfigError
from estimator_pipeline.launch import LaunchOutcome, LaunchShape, late_exit, plan_local
from estimator_pipeline.launch.local.cores import share_cores, thread_environment
from estimator_pipeline.launch.local.task import WriteProbe
from estimator_pipeline.launch.local.timeouts import TaskTimeouts
from estimator_pipeline.launch.local.view import View, summary
from estimator_pipeline.utils.system_limits import available_cores
from tests.support.launched_jobs import launch_local

# What every program of these tests begins with: its task, and a file by which the test sees how far it is.
_BEGIN = """
import json, os, pathlib, signal, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = "%(type)s-%(index)d" % config["task"]
here = pathlib.Path(sys.argv[1])
def tell(text):
    # Renamed into place, so that a reader sees all of it or nothing.
    (here / (me + ".half")).write_text(text)
    (here / (me + ".half")).rename(here / (me + ".told"))
def told(name):
    while not (here / (name + ".told")).exists():
        time.sleep(0.01)
    return (here / (name + ".told")).read_text()
def blame(task):
    with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
        print(json.dumps({"time": 1.0, "event": "end", "status": "failed", "caused_by": task}), file=file)
def result():
    with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
        print(json.dumps({"time": 1.0, "event": "result"}), file=file)
def for_ever():
    while True:
        time.sleep(3600)
"""

# A grandchild in a session of its own that ignores SIGTERM: no group signal reaches it.
_GRANDCHILD = """
child = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
     "print('deaf', flush=True); time.sleep(3600)"],
    start_new_session=True, stdout=subprocess.PIPE,
)
child.stdout.readline()
tell(str(child.pid))
"""


@pytest.fixture(autouse=True)
def _no_test_hangs_or_leaves_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For the day that a test fails: it ends, and what it left behind goes too. Who waits looks more often."""
    monkeypatch.setattr("estimator_pipeline.launch.local.run._POLL", 0.02)

    def fail(*_: object) -> None:
        raise AssertionError("the test did not end within 120 s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ESTIMATOR_PIPELINE_PROGRESS", "").startswith(f"{tmp_path}/"):
                process.kill()


def _program(folder: Path, body: str) -> list[str]:
    path = folder / "program.py"
    path.write_text(_BEGIN + textwrap.dedent(body))
    return [sys.executable, str(path), str(folder)]


def _until(condition: Callable[[], object], *, what: str, seconds: float = 60.0) -> None:
    """Poll; the deadline is for a test that would hang, never a thing that is measured."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.01)


def _of_run(run_id: str) -> list[psutil.Process]:
    """Every living process that has the run id in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get("ESTIMATOR_PIPELINE_RUN_ID") == run_id:
                found.append(process)
    return found


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _nothing_left(outcome: LaunchOutcome) -> None:
    assert _of_run(outcome.run_id) == []
    for task in outcome.tasks:
        assert not psutil.pid_exists(task.pid)


def _run(folder: Path, body: str, *, shape: LaunchShape | None = None, **options: object) -> LaunchOutcome:
    settings = {"log_dir": folder / "logs", "timeout": 120.0, **options}
    outcome = launch_local(_program(folder, body), shape=shape or LaunchShape(workers=2), **settings)
    _nothing_left(outcome)
    return outcome


# Cores --------------------------------------------------------------------------------------------

_W = [Task("worker", index) for index in range(4)]
_E, _P, _C = Task("evaluator", 0), [Task("ps", 0), Task("ps", 1)], Task("chief", 0)

_SHARES = [
    # tasks, CPUs, share of each: in the order of the tasks
    (_W[:2], 2, [[0], [1]]),
    (_W[:2], 5, [[0, 1, 2], [3, 4]]),  # one over: to the first, which is the chief
    (_W[:1], 3, [[0, 1, 2]]),
    ([*_W[:2], _E], 3, [[0], [1], [2]]),
    ([*_W[:2], _E], 8, [[0, 1, 2, 3], [4, 5, 6], [7]]),
    ([*_W[:2], _E], 2, [[0], [1], [0, 1]]),  # too few for the evaluator: it runs beside the workers
    ([_C, _W[0], *_P], 4, [[0], [1], [2], [3]]),
    ([_C, _W[0], *_P], 3, [[0, 1], [2], [0, 1, 2], [0, 1, 2]]),
    (_W[:3], 2, [[0, 1], [0, 1], [0, 1]]),  # too few for the workers: nobody is pinned
]


@pytest.mark.parametrize(("tasks", "count", "expected"), _SHARES)
def test_cores_are_shared_out_training_tasks_first(tasks, count, expected):
    shares = share_cores(tasks, range(count))
    assert [list(shares[task]) for task in tasks] == expected


_THREADS = [
    # tasks, CPUs, threads within an operation
    (_W[:2], 8, [4, 4]),
    ([*_W[:2], _E], 8, [4, 3, 1]),
    ([*_W[:2], _E], 2, [1, 1, 1]),
    ([_W[0], *_P], 2, [2, 1, 1]),
    (_W[:3], 2, [1, 1, 1]),
    (_W[:3], 7, [3, 2, 2]),
]


@pytest.mark.parametrize(("tasks", "count", "expected"), _THREADS)
def test_threads_fit_the_cores(tasks, count, expected):
    variables = thread_environment(share_cores(tasks, range(count)), environ={})
    assert [int(variables[task]["TF_NUM_INTRAOP_THREADS"]) for task in tasks] == expected
    assert [int(variables[task]["OMP_NUM_THREADS"]) for task in tasks] == expected
    assert all(int(variables[task]["TF_NUM_INTEROP_THREADS"]) >= 2 for task in tasks)


def test_threads_that_the_user_set_stay():
    variables = thread_environment({_W[0]: (0, 1)}, environ={"OMP_NUM_THREADS": "7"})
    assert variables[_W[0]] == {"TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}


# Plans --------------------------------------------------------------------------------------------


def _plan(**changes: object):
    given = {
        "shape": LaunchShape(workers=1, evaluator=True),
        "ports": [4001, 4002],
        "log_dir": "/logs",
        "run_id": "r1",
        "environ": {},
        "available": [0, 1],
        **changes,
    }
    return plan_local(["train me", "--fast"], **given)


def test_a_plan_as_text():
    cluster = '"cluster": {"worker": ["localhost:4001"]}'
    assert _plan().text().splitlines() == [
        "run r1: 2 tasks on the ports 4001, 4002",
        "logs in /logs",
        "",
        "environment of every task",
        "  ESTIMATOR_PIPELINE_EVALUATOR=1",
        "  ESTIMATOR_PIPELINE_RUN_ID=r1",
        "  OMP_NUM_THREADS=1",
        "  PYTHONFAULTHANDLER=1",
        "  PYTHONUNBUFFERED=1",
        "  TF_CPP_MIN_LOG_LEVEL=1",
        "  TF_GRPC_REUSE_PORT=1",
        "  TF_NUM_INTEROP_THREADS=2",
        "  TF_NUM_INTRAOP_THREADS=1",
        "",
        "worker:0",
        "  command  'train me' --fast",
        "  cores    0",
        "  log      /logs/worker-0.log",
        "  ESTIMATOR_PIPELINE_PROGRESS=/logs/worker-0.progress.jsonl",
        "  ESTIMATOR_PIPELINE_TASK=worker:0",
        f'  TF_CONFIG=\'{{{cluster}, "task": {{"type": "worker", "index": 0}}}}\'',
        "",
        "evaluator:0",
        "  command  'train me' --fast",
        "  cores    1",
        "  log      /logs/evaluator-0.log",
        "  ESTIMATOR_PIPELINE_PROGRESS=/logs/evaluator-0.progress.jsonl",
        "  ESTIMATOR_PIPELINE_TASK=evaluator:0",
        f'  TF_CONFIG=\'{{{cluster}, "task": {{"type": "evaluator", "index": 0}}}}\'',
    ]


def test_a_plan_as_json():
    document = json.loads(json.dumps(_plan().document()))
    assert document["ports"] == [4001, 4002]
    worker = document["tasks"][0]
    assert worker["command"] == ["train me", "--fast"]
    assert worker["tf_config"] == json.loads(worker["environ"]["TF_CONFIG"])
    assert worker["tf_config"]["task"] == {"type": "worker", "index": 0}
    assert (worker["cores"], worker["log"]) == ([0], "/logs/worker-0.log")


def test_the_files_of_a_plan_are_printed_with_it():
    plan = _plan(files={Path("/logs/job.yaml"): "name: small\nrun:\n  seed: 1\n"})
    assert plan.text().splitlines()[-4:] == ["/logs/job.yaml", "  name: small", "  run:", "    seed: 1"]
    assert plan.document()["files"] == {"/logs/job.yaml": "name: small\nrun:\n  seed: 1\n"}


def test_what_the_user_set_stays_out_of_a_plan():
    environ = _plan(environ={"TF_CPP_MIN_LOG_LEVEL": "0", "OMP_NUM_THREADS": "3"}).tasks[0].environ
    assert not {"TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS"} & set(environ)


def test_shared_cores_pin_nobody_and_ports_that_are_not_held_are_not_shared():
    task = _plan(cores="share", hold_ports=False).tasks[0]
    assert task.cores == ()
    assert not {"OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"} & set(task.environ)
    assert task.environ["TF_GRPC_REUSE_PORT"] == "0"


def test_a_plan_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="cores is 'some'"):
        _plan(cores="some")
    with pytest.raises(ConfigError, match="The command is empty"):
        plan_local([], shape=LaunchShape(), ports=[1, 2], log_dir="/l", run_id="r", environ={})
    with pytest.raises(ClusterError):
        _plan(shape=LaunchShape(workers=0))


_DOCUMENTS = [
    ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}, LaunchShape(workers=2)),
    (
        {"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "d:1"]}, "task": {"type": "chief"}},
        LaunchShape(workers=1, chief=True, ps=2),
    ),
    (
        {"cluster": {"master": ["a:1"], "worker": ["b:1"]}, "task": {"type": "master", "index": 0}},
        LaunchShape(workers=1, chief=True, dialect="master"),
    ),
    (
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}},
        LaunchShape(workers=1, evaluator=True),
    ),
    (
        {"cluster": {"worker": ["a:1"], "evaluator": ["b:1"]}, "task": {"type": "worker", "index": 0}},
        LaunchShape(workers=1, evaluator=True, dialect="evaluator_in_cluster"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("document", "shape"), _DOCUMENTS)
def test_the_shape_of_a_document_is_rehearsed_in_its_own_dialect(document, shape):
    assert LaunchShape.of(parse_tf_config(document)) == shape
    local = shape.documents(range(4001, 4001 + shape.ports))
    again = [LaunchShape.of(parse_tf_config(one)) for one in local.values()]
    assert shape in again
    assert {len(jobs) for one in local.values() for jobs in [one["cluster"]]} == {len(document["cluster"])}


def test_a_document_without_a_cluster_has_no_shape():
    with pytest.raises(ClusterError, match="describes no cluster"):
        LaunchShape.of(parse_tf_config({"task": {"type": "worker", "index": 0}}))


# What a task is given -----------------------------------------------------------------------------


def test_each_task_has_its_part_its_cores_its_log_and_its_progress_file(tmp_path):
    outcome = _run(
        tmp_path,
        """
        print(json.dumps({
            "task": os.environ["ESTIMATOR_PIPELINE_TASK"],
            "index": config["task"]["index"],
            "cores": sorted(os.sched_getaffinity(0)),
            "group": os.getpgid(0) == os.getsid(0) == os.getpid(),
            "pipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
            "ports": config["cluster"]["worker"],
        }))
        print("to the same log", file=sys.stderr)
        with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as progress:
            print(json.dumps({"event": "result", "global_step": 7, "metrics": {"loss": 0.5}}), file=progress)
        """,
    )
    assert (outcome.reason, outcome.exit_code, outcome.failure) == ("done", 0, None)
    told = []
    for index, task in enumerate(outcome.tasks):
        assert (task.state, task.exit_code, task.log.name) == ("done", 0, f"worker-{index}.log")
        first, second = task.log.read_text().splitlines()
        assert second == "to the same log"
        told.append(json.loads(first))
    assert [(one["task"], one["index"], one["group"]) for one in told] == [
        ("worker:0", 0, True),
        ("worker:1", 1, True),
    ]
    assert len(set(told[0]["ports"])) == 2
    assert told[0]["ports"] == told[1]["ports"]
    shares = share_cores(_W[:2], available_cores())
    assert [one["cores"] for one in told] == [list(shares[task]) for task in _W[:2]]
    assert outcome.result["global_step"] == 7
    assert outcome.result["source"] == "result"


def test_a_program_that_is_no_python_gets_the_default_of_sigpipe(tmp_path):
    # An interpreter ignores SIGPIPE and would hand that on: `yes | head` would then complain.
    outcome = launch_local(
        ["sh", "-c", "yes | head -n 1"], shape=LaunchShape(workers=1), log_dir=tmp_path, timeout=60.0
    )
    assert outcome.ok
    assert outcome.tasks[0].log.read_text() == "y\n"


def test_logs_are_appended_and_a_failure_shows_its_own_lines_only(tmp_path):
    first = """
        print("the first run")
        with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as progress:
            print(json.dumps({"event": "result", "global_step": 7}), file=progress)
    """
    assert _run(tmp_path, first, shape=LaunchShape(workers=1)).result["global_step"] == 7
    outcome = _run(tmp_path, "sys.exit('the second run')", shape=LaunchShape(workers=1))
    assert outcome.failure.tail == ("the second run",)
    assert outcome.result is None
    assert outcome.failure.log.read_text() == "the first run\nthe second run\n"


def test_a_legacy_program_is_followed_by_its_log(tmp_path):
    outcome = _run(
        tmp_path,
        """
        print("INFO:tensorflow:loss = 0.31, step = 100 (0.8 sec)")
        print("INFO:tensorflow:Saving dict for global step 200: accuracy = 0.97, loss = 0.1")
        """,
        shape=LaunchShape(workers=1),
    )
    assert outcome.result["global_step"] == 200
    assert outcome.result["metrics"] == {"accuracy": 0.97, "loss": 0.1}
    assert outcome.tasks[0].step == 100


def test_a_warning_of_several_tasks_is_shown_once(tmp_path):
    class Notes(View):
        seen: ClassVar[list[str]] = []

        def note(self, text):
            self.seen.append(text)

    outcome = _run(
        tmp_path,
        """
        with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
            for text in ("the data ended", ["no", "text"], "of " + me):
                print(json.dumps({"time": 1.0, "event": "warning", "text": text}), file=file)
        """,
        shape=LaunchShape(workers=2),
        view=Notes(),
    )
    of_all = [text for text in Notes.seen if text.endswith(" warns: the data ended")]
    assert len(of_all) == 1 and sorted(set(Notes.seen) - set(of_all)) == [
        "worker:0 warns: of worker-0", "worker:1 warns: of worker-1"]  # fmt: skip
    # Again at the end, where they are seen after a long training.
    assert sorted(outcome.warnings) == sorted(Notes.seen) == sorted(outcome.document()["warnings"])
    assert set(outcome.warnings) < set(summary(outcome).splitlines())


def test_a_log_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="The logs cannot be written to"):
        launch_local(["true"], shape=LaunchShape(workers=1), log_dir=tmp_path / "file" / "logs")


def test_files_of_a_plan_that_cannot_be_written_are_refused(tmp_path, monkeypatch):
    """With the message for logs. A file that is there is not written again: the disk may be full by then."""
    path = tmp_path / "logs" / "job.yaml"

    def launched(text):
        return launch_local(["cat", path], shape=LaunchShape(workers=1), log_dir=path.parent, files={path: text})

    assert launched("seed: 1\n").tasks[0].log.read_text() == "seed: 1\n"

    def full(*_: object, **__: object):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    assert launched("seed: 1\n").ok
    with pytest.raises(ConfigError, match="The logs cannot be written to"):
        launched("seed: 2\n")
    assert path.read_text() == "seed: 1\n" and len(list(path.parent.glob("*job.yaml*"))) == 1


# Failures -----------------------------------------------------------------------------------------


def test_the_first_failure_is_shown_and_ends_the_others(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "worker-1":
            told("worker-0")
            for line in range(30):
                print("line", line)
            sys.exit(3)
        tell("waiting")
        for_ever()
        """,
    )
    assert (outcome.reason, outcome.exit_code) == ("failed", 1)
    assert (outcome.failure.task, outcome.failure.exit_code) == ("worker:1", 3)
    assert outcome.failure.tail == tuple(f"line {number}" for number in range(10, 30))
    assert [(task.state, task.exit_code) for task in outcome.tasks] == [("stopped", -15), ("failed", 3)]


def test_a_task_that_fails_because_of_the_first_is_not_the_one_that_is_shown(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "worker-1":
            told("worker-0")
            print("the cause")
            tell(str(os.getpid()))
            sys.exit(3)
        tell("ready")
        first = pathlib.Path("/proc", told("worker-1"), "stat")
        logs = [here / "logs" / name for name in ("worker-0.log", "worker-1.log")]
        while not logs[0].stat().st_mtime_ns > logs[1].stat().st_mtime_ns > 0:
            print("the consequence")  # as a process does that lost its peer: its log is the younger
        while first.read_text().rpartition(")")[2].split()[0] != "Z":  # it has ended, and its launcher may see it
            time.sleep(0.01)
        sys.exit(4)
        """,
    )
    assert (outcome.failure.task, outcome.failure.tail) == ("worker:1", ("the cause",))


def test_a_task_that_ended_before_the_one_it_failed_because_of(tmp_path):
    """The culprit has told the others, and its own process takes its time to end."""
    outcome = _run(
        tmp_path,
        """
        if me == "worker-1":
            told("worker-0")
            time.sleep(0.5)
            sys.exit(3)
        blame("worker:1")
        tell("ended")
        sys.exit(4)
        """,
    )
    assert (outcome.failure.task, outcome.failure.exit_code) == ("worker:1", 3)
    assert [task.state for task in outcome.tasks] == ["failed", "failed"]


def test_a_task_that_blames_one_that_ends_well(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "worker-1":
            told("worker-0")
            sys.exit(0)
        blame("worker:1")
        tell("ended")
        sys.exit(4)
        """,
    )
    assert (outcome.failure.task, outcome.failure.exit_code) == ("worker:0", 4)


_TELLS = """
def emit(event, **fields):
    with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
        print(json.dumps({"time": 1.0, "event": event, **fields}), file=file)
"""


def test_a_task_with_bad_input_is_the_cause_of_an_echo(tmp_path):
    """The other task fails first, and only because of it. That a log has NaN is a symptom."""
    body = """
    emit("start", task=me.replace("-", ":"))
    if me == "worker-0":
        emit("raised", error="connection lost", echo=True)
        tell("ended")
        sys.exit(1)
    told("worker-0")
    time.sleep(0.5)
    print("training has diverged")
    emit("end", status="failed", error="x is NaN", refusal={"code": "data/not-finite", "what": "x is NaN"})
    sys.exit(2)
    """
    outcome = _run(tmp_path, _TELLS + textwrap.dedent(body), foreign=False)
    assert (outcome.reason, outcome.exit_code) == ("failed", 2)
    assert (outcome.failure.task, outcome.failure.refusal["code"]) == ("worker:1", "data/not-finite")


def test_a_task_that_leaves_with_exit_code_0_before_its_end_has_failed(tmp_path, monkeypatch):
    """It is named, and not the healthy one that ends because of it."""
    body = """
    emit("start", task=me.replace("-", ":"))
    if me == "worker-1":
        emit("step", step=3)
        (here / "left").touch()
        os._exit(0)
    while not (here / "left").exists():
        time.sleep(0.01)
    blame("worker:1")
    sys.exit(1)
    """
    outcome = _run(tmp_path, _TELLS + textwrap.dedent(body), foreign=False)
    assert (outcome.reason, outcome.exit_code) == ("failed", 1)
    assert outcome.failure.head == "worker:1 left with exit code 0 at step 3 before the end of training"
    assert (outcome.tasks[1].state, outcome.tasks[1].exit_code) == ("failed", 0)
    assert "failed, exit code 0" in summary(outcome)
    # Nobody can tell anything where there is no room.
    monkeypatch.setattr(WriteProbe, "_try", lambda room: OSError(errno.ENOSPC, "No space left on device"))
    outcome = _run(tmp_path, "", shape=LaunchShape(workers=1), foreign=False)
    assert outcome.ok, outcome
    assert "worker:0 could not report its end: its exit code 0 counts" in outcome.notes[0]


def test_bad_input_of_a_task_is_bad_input_of_the_launch(tmp_path):
    assert _run(tmp_path, "sys.exit(2)", shape=LaunchShape(workers=1)).exit_code == 2


def test_a_signal_that_ended_a_task_is_named(tmp_path):
    outcome = _run(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)", shape=LaunchShape(workers=1))
    assert outcome.exit_code == 1
    assert outcome.failure.text().startswith("worker:0 failed with signal SIGSEGV.")


def test_a_program_that_is_not_there_says_so_in_its_log(tmp_path):
    outcome = launch_local(["/no/such/program"], shape=LaunchShape(workers=1), log_dir=tmp_path)
    assert outcome.failure.exit_code == 127
    assert outcome.failure.tail == ("launch: /no/such/program cannot be run: No such file or directory",)


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "worker-1":
            told("worker-0")
            sys.exit(3)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell("deaf")
        for_ever()
        """,
        grace=0.2,
    )
    assert outcome.tasks[0].exit_code == -signal.SIGKILL
    assert "worker:0 did not end within 0.2 s; killing it" in outcome.notes


def test_a_task_may_end_in_its_own_way_within_the_grace(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "worker-1":
            told("worker-0")
            sys.exit(3)
        def save(*_):
            print("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        tell("ready")
        for_ever()
        """,
        grace=60.0,
    )
    assert outcome.exit_code == 1
    assert outcome.tasks[0].exit_code == 0
    assert outcome.tasks[0].log.read_text() == "saved\n"


def test_a_job_that_takes_too_long_is_ended(tmp_path):
    outcome = _run(tmp_path, "for_ever()", timeout=0.3)
    assert (outcome.reason, outcome.exit_code, outcome.failure) == ("timeout", 1, None)
    assert {task.state for task in outcome.tasks} == {"stopped"}


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit(3)"])
def test_grandchildren_end_with_the_job_however_it_ended(tmp_path, end):
    outcome = _run(tmp_path, _GRANDCHILD + end, shape=LaunchShape(workers=1), grace=0.2)
    assert outcome.exit_code == (1 if "3" in end else 0)
    assert _gone(int((tmp_path / "worker-0.told").read_text()))
    assert "1 process that the tasks had left running: killed" in outcome.notes


# ps and evaluator after the training --------------------------------------------------------------


def test_a_ps_of_a_foreign_program_is_ended_quietly_after_the_training(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "ps-0":
            for_ever()
        """,
        shape=LaunchShape(workers=1, ps=1),
        linger=0.2,
    )
    assert (outcome.reason, outcome.exit_code) == ("done", 0)
    assert [(task.task, task.state) for task in outcome.tasks] == [("worker:0", "done"), ("ps:0", "released")]
    assert "training has ended and ps:0 is still running; stopping it" in outcome.notes


def test_workers_that_only_serve_the_chief_are_ended_after_it(tmp_path):
    """They joined their servers, for ever; worker 1 works on after the chief, longer than worker 0 may be idle."""
    outcome = _run(
        tmp_path,
        """
        if me == "worker-0":
            tell(str(os.getpid()))
        if me in ("worker-0", "ps-0"):
            for_ever()
        if me == "worker-1":
            told("chief-0")
            left = 25
            while left:
                print("works", flush=True)
                time.sleep(0.02)
                left -= not pathlib.Path("/proc", told("worker-0"), "cmdline").read_text()  # "" for a zombie
        tell("done")
        """,
        shape=LaunchShape(chief=True, workers=2, ps=1),
        linger=1.0,
    )
    assert (outcome.reason, outcome.exit_code) == ("done", 0)
    states = {task.task: task.state for task in outcome.tasks}
    assert states == {"chief:0": "done", "worker:0": "released", "worker:1": "done", "ps:0": "released"}
    assert "chief:0 is done and worker:0 does nothing; stopping it" in outcome.notes


def test_servers_without_a_chief_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("estimator_pipeline.launch.local.run._IDLE_SECS", 0.6)

    class Teller(View):
        def note(self, text):
            if "no task coordinates them: start the job with --chief" in text:
                (tmp_path / "test.told").touch()

    outcome = _run(tmp_path, 'told("test")', shape=LaunchShape(workers=1, ps=1), view=Teller())
    assert (outcome.reason, outcome.exit_code) == ("done", 0)


# A command of this package whose interpreter does not shut down.
_LATE = """
import atexit, sys, threading
from estimator_pipeline.cli.main import main
from estimator_pipeline.launch import late_exit

late_exit._LOOK_SECS = 0.02

def for_ever():
    with open(sys.argv.pop()) as fifo:  # which has no writer
        fifo.read()

{begin}
main()
"""


@pytest.mark.parametrize(("command", "code"), [("--version", 0), ("no-such-command", 2)])
@pytest.mark.parametrize("begin", ["threading.Thread(target=for_ever).start()", "atexit.register(for_ever)"])
def test_an_interpreter_that_does_not_shut_down_ends_itself_with_the_code_of_its_command(
    tmp_path, begin, command, code
):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "late.py").write_text(_LATE.format(begin=begin))
    outcome = launch_local(
        [sys.executable, str(tmp_path / "late.py"), command, str(tmp_path / "fifo")],
        shape=LaunchShape(workers=1),
        log_dir=tmp_path / "logs",
        timeout=120.0,
    )
    assert [(task.state, task.exit_code) for task in outcome.tasks] == [("failed" if code else "done", code)]
    (warning,) = outcome.warnings
    assert f"did not exit: it was at {tmp_path / 'late.py'}, line 9, in for_ever" in warning
    assert "in for_ever" in outcome.tasks[0].log.read_text()


def test_a_process_that_still_works_is_not_ended(tmp_path):
    """Each kind of work takes longer than an idle process has."""
    (tmp_path / "keras.py").write_text("def fit(ends): ends.wait()\n")
    outcome = _run(
        tmp_path,
        """
        import threading
        from estimator_pipeline.launch import late_exit
        import keras

        looks, ends = 0, threading.Event()
        look = late_exit._work

        def counted():
            global looks
            looks += 1
            if looks % 15 == 0:
                ends.set()
            return look()

        def work():
            while not ends.is_set():
                pass
            ends.clear()
            while not ends.is_set():
                print("at work", flush=True)
                time.sleep(0.01)
            ends.clear()
            with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
                ends.wait()
                child.kill()
            ends.clear()
            keras.fit(ends)  # waits for other tasks
            tell("done")

        late_exit._LOOK_SECS, late_exit._IDLE_LOOKS, late_exit._work = 0.02, 10, counted
        threading.Thread(target=work).start()
        late_exit.end_if_idle(0)
        """,
        shape=LaunchShape(workers=1),
    )
    assert outcome.ok and (tmp_path / "worker-0.told").exists() and not outcome.warnings, outcome


def test_a_child_that_waits_for_a_processor_is_at_work():
    """Of a busy machine it may get none for many looks."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            deadline = time.monotonic() + 60
            while not late_exit._is_runnable() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert time.monotonic() < deadline
        finally:
            child.kill()


def test_an_evaluator_that_ends_by_itself_is_waited_for(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "worker-0":
            tell("trained")
        else:
            told("worker-0")
            time.sleep(0.5)  # longer than the linger that binds only foreign programs
            print("evaluated")
        result()
        """,
        shape=LaunchShape(workers=1, evaluator=True),
        foreign=False,
        linger=0.0,
    )
    assert outcome.ok
    assert outcome.tasks[1].state == "done"
    assert outcome.tasks[1].log.read_text() == "evaluated\n"


def test_an_evaluator_of_a_foreign_program_that_never_ends_is_ended(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "evaluator-0":
            for_ever()
        """,
        shape=LaunchShape(workers=1, evaluator=True),
        linger=0.2,
    )
    assert outcome.ok
    assert outcome.tasks[1].state == "released"


@pytest.mark.parametrize(("foreign", "when"), [(False, "before"), (False, "after"), (True, "before")])
def test_an_evaluator_that_somebody_asks_to_end(tmp_path, foreign, when):
    """While ours trains, the job goes on without it; what it had left to do afterwards, the next run does."""

    class Tells(View):
        def ended(self, state):
            (tmp_path / f"launcher-{state.task.partition(':')[0]}.told").touch()

    outcome = _run(
        tmp_path,
        f"""
        if me == "evaluator-0":
            if {when!r} == "after":
                told("launcher-worker")
            sys.exit(75)
        if {when!r} == "before":
            told("launcher-evaluator")
        result()
        """,
        shape=LaunchShape(workers=1, evaluator=True),
        foreign=foreign,
        view=Tells(),
    )
    goes_on = not foreign and when == "before"
    assert (outcome.reason, outcome.exit_code) == (("done", 0) if goes_on else ("preempted", 75)), outcome.notes
    assert outcome.tasks[1].state == "preempted"
    said = "evaluator:0 was stopped from outside the job: training continues without it"
    assert (said in outcome.notes) == goes_on


# An evaluator of this package's engines reports its start.
_REPORTS = """
def start(*events):
    with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
        print(json.dumps({"time": 1.0, "event": "start", "task": me.replace("-", ":")}), file=file)
        for event in events or ("raised",):
            print(json.dumps({"time": 1.0, "event": event, "error": "OSError: no room"}), file=file)
"""


@pytest.mark.parametrize(("code", "goes_on"), [(1, True), (2, False), (3, False)])
def test_an_evaluator_that_fails_while_ours_trains(tmp_path, code, goes_on):
    class Signals(View):
        def ended(self, state):
            (tmp_path / f"launcher-{state.task.partition(':')[0]}.told").touch()

    outcome = _run(
        tmp_path,
        _REPORTS
        + f"""
if me == "evaluator-0":
    start()
    sys.exit({code})
told("launcher-evaluator")
if {goes_on}:
    result()
else:
    for_ever()
""",
        shape=LaunchShape(workers=1, evaluator=True),
        view=Signals(),
    )
    assert outcome.ok == goes_on
    warning = (
        "evaluator:0 failed (exit code 1): OSError: no room. Without it, the chief evaluates the last checkpoint only"
    )
    assert outcome.warnings == ((warning,) if goes_on else ())
    assert [task.state for task in outcome.tasks] == (["done", "failed"] if goes_on else ["stopped", "failed"])


def test_an_evaluator_that_is_killed_is_started_again_alone(tmp_path):
    outcome = _run(
        tmp_path,
        _REPORTS
        + """
if me == "worker-0":
    told("evaluator-0")
    result()
elif not (here / "first").exists():
    (here / "first").touch()
    start()
    os.kill(os.getpid(), signal.SIGKILL)
else:
    tell("evaluated")
    result()
""",
        shape=LaunchShape(workers=1, evaluator=True),
    )
    assert outcome.ok and [task.state for task in outcome.tasks] == ["done", "done"]


def test_an_evaluator_that_stalls_is_ended_and_started_again(tmp_path):
    seen = []

    class Sees(View):
        def note(self, text):
            seen.extend([text] if text.startswith("evaluator:0 ") else [])

    outcome = _run(
        tmp_path,
        _REPORTS
        + """
if me == "worker-0":
    told("evaluator-0")
    result()
elif not (here / "first").exists():
    (here / "first").touch()
    start("evaluating")
    for_ever()
else:
    tell("evaluated")
    result()
""",
        shape=LaunchShape(workers=1, evaluator=True),
        timeouts=TaskTimeouts(step=0.2),
        view=Sees(),
    )
    assert outcome.ok, outcome.failure
    stalled, killed = seen
    assert stalled.startswith("evaluator:0 evaluated no batch for ") and stalled.endswith(" s; ending it")
    assert killed.startswith("evaluator:0 hung at ")
    assert killed.endswith(", in for_ever; starting it again")


def test_an_evaluator_that_is_killed_again_and_again(tmp_path):
    outcome = _run(
        tmp_path,
        _REPORTS
        + """
starts = here / (me + ".starts")
if me == "evaluator-0":
    with starts.open("a") as file:
        file.write("x")
    start()
    os.kill(os.getpid(), signal.SIGKILL)
while not (here / "over").exists():
    time.sleep(0.01)
result()
""",
        shape=LaunchShape(workers=1, evaluator=True),
        view=_ends_with_warning(tmp_path),
    )
    assert outcome.ok and (tmp_path / "evaluator-0.starts").read_text() == "xxxx"
    assert "evaluator:0 failed (signal SIGKILL)" in outcome.warnings[0]
    assert (tmp_path / "logs" / "evaluator-0.given-up").exists()


def _ends_with_warning(folder: Path) -> View:
    class Ends(View):
        def note(self, text):
            if "Without it" in text:
                (folder / "over").touch()

    return Ends()


def test_an_evaluator_that_fails_after_the_training_is_a_failure(tmp_path):
    outcome = _run(
        tmp_path,
        """
        if me == "evaluator-0":
            told("worker-0")
            sys.exit(5)
        tell("trained")
        """,
        shape=LaunchShape(workers=1, evaluator=True),
    )
    assert (outcome.exit_code, outcome.failure.task) == (1, "evaluator:0")


# Signals, and the death of the launcher -----------------------------------------------------------


# Tests that run in the background of a script inherit an ignored SIGINT, which the launcher respects. This
# resets it in the launcher's own process, which a preexec_fn should not do beside the threads of other tests.
_HEARS_SIGNALS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@contextlib.contextmanager
def _launcher(folder: Path, body: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process group of its own, as a shell would start it."""
    command = [sys.executable, "-c", _HEARS_SIGNALS, "-m", "estimator_pipeline", "launch", *options]
    launcher = subprocess.Popen(
        [*command, "--log-dir", str(folder / "logs"), "--", *_program(folder, body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for worker in ("worker-0", "worker-1"):
            _until(lambda w=worker: (folder / f"{w}.told").exists(), what=f"the start of {worker}")
        yield launcher
    finally:
        launcher.kill()
        launcher.communicate()


def _family(launcher: subprocess.Popen[str]) -> tuple[str, list[int]]:
    """The run id of a launcher, and the ids of all processes it started: tasks, guard, grandchildren."""
    children = psutil.Process(launcher.pid).children(recursive=True)
    environs = [child.environ() for child in children]
    (run_id,) = {one["ESTIMATOR_PIPELINE_RUN_ID"] for one in environs if "ESTIMATOR_PIPELINE_TASK" in one}
    return run_id, [child.pid for child in {*children, *_of_run(run_id)}]


def _all_gone(run_id: str, pids: list[int]) -> None:
    _until(lambda: all(_gone(pid) for pid in pids), what="the end of every process")
    assert _of_run(run_id) == []


_WAIT = _GRANDCHILD + "for_ever()"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_to_the_launchers_group_ends_every_process(tmp_path, number, code):
    with _launcher(tmp_path, _WAIT, "--grace", "0.3") as launcher:
        run_id, pids = _family(launcher)
        assert len(pids) == 5  # two tasks, two grandchildren, the guard
        os.killpg(launcher.pid, number)
        output, errors = launcher.communicate(timeout=60)
        assert launcher.returncode == code
        assert all(_gone(pid) for pid in pids)
        assert _of_run(run_id) == []
        assert f"{signal.Signals(number).name}: stopping every task" in output
        assert "Traceback" not in errors


def test_a_second_signal_does_not_wait_for_the_grace(tmp_path):
    body = "signal.signal(signal.SIGTERM, lambda *_: tell('asked'))\ntell('ready')\nfor_ever()"
    with _launcher(tmp_path, body, "--grace", "3600") as launcher:
        run_id, pids = _family(launcher)
        os.killpg(launcher.pid, signal.SIGINT)
        for worker in ("worker-0", "worker-1"):
            _until(lambda w=worker: (tmp_path / f"{w}.told").read_text() == "asked", what=f"SIGTERM to {worker}")
        os.killpg(launcher.pid, signal.SIGINT)
        assert launcher.wait(timeout=60) == 130
        _all_gone(run_id, pids)


# A task that was asked to end, tells that it writes a checkpoint, and ends when it has.
_WRITES_A_CHECKPOINT = """
from estimator_pipeline.progress import progress_file as progress

def save(*_):
    writer = progress.from_environ(os.environ)
    writer.emit("heartbeat", preempting="SIGTERM", seconds=60.0)
    tell("asked")
    while not (here / "saved").exists():
        time.sleep(0.01)
    writer.emit("end", status="preempted")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
tell("ready")
for_ever()
"""


@pytest.mark.gate("15-75-preempted")
@pytest.mark.parametrize(("number", "code", "reason"), [(signal.SIGTERM, 75, "preempted"), (signal.SIGINT, 130, "")])
def test_a_task_that_writes_its_last_checkpoint_has_the_time_for_it(tmp_path, number, code, reason):
    """Past the grace, and past a second SIGTERM: schedulers repeat themselves."""
    with _launcher(tmp_path, _WRITES_A_CHECKPOINT, "--grace", "1", "--json") as launcher:
        os.kill(launcher.pid, number)
        for worker in ("worker-0", "worker-1"):
            _until(lambda w=worker: (tmp_path / f"{w}.told").read_text() == "asked", what=f"SIGTERM to {worker}")
        os.kill(launcher.pid, signal.SIGTERM)
        time.sleep(1.5)
        assert launcher.poll() is None
        (tmp_path / "saved").touch()
        output, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == code, errors
    document = json.loads(output)
    assert document["reason"] == (reason or "interrupted")
    assert [task["exit_code"] for task in document["tasks"]] == [75, 75]


@pytest.mark.parametrize(("foreign", "told"), [(False, ("preempted", 75)), (True, ("interrupted", 143))])
def test_a_task_that_dies_before_its_first_word_had_nothing_to_save(tmp_path, foreign, told):
    """Of a program of ours; another one may have been in the middle of anything."""

    def ask():
        _until((tmp_path / "worker-0.told").exists, what="worker:0")
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    outcome = _run(
        tmp_path,
        """
        if me == "worker-1":
            tell("imports")
            for_ever()
        def save(*_):
            with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
                print(json.dumps({"time": 1.0, "event": "end", "status": "preempted"}), file=file)
            sys.exit(75)
        signal.signal(signal.SIGTERM, save)
        told("worker-1")
        tell("ready")
        for_ever()
        """,
        foreign=foreign,
    )
    asking.join()
    assert [task.exit_code for task in outcome.tasks] == [75, -signal.SIGTERM]
    assert (outcome.reason, outcome.exit_code) == told


@pytest.mark.nightly
def test_one_task_that_was_preempted_is_no_failure_of_the_job(tmp_path):
    """The signal did not come through the launcher."""
    outcome = _run(
        tmp_path, "sys.exit(75) if me == 'worker-1' else for_ever()", shape=LaunchShape(workers=2), grace=0.3
    )
    assert (outcome.reason, outcome.exit_code, outcome.failure.task) == ("preempted", 75, "worker:1")


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path):
    with _launcher(tmp_path, _WAIT) as launcher:
        run_id, pids = _family(launcher)
        launcher.kill()
        launcher.wait()
        _all_gone(run_id, pids)


def test_tasks_die_with_the_launcher_even_without_the_guard(tmp_path):
    with _launcher(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('up')\nfor_ever()") as launcher:
        run_id, pids = _family(launcher)
        (guard,) = (pid for pid in pids if "guard.py" in " ".join(psutil.Process(pid).cmdline()))
        os.kill(guard, signal.SIGKILL)
        _until(lambda: _gone(guard), what="the end of the guard")
        launcher.kill()
        launcher.wait()
        _all_gone(run_id, pids)


def test_a_guard_that_was_killed_does_not_fail_the_job(tmp_path):
    body = "tell('up')\nwhile not (here / 'go').exists():\n    time.sleep(0.01)"
    with _launcher(tmp_path, body) as launcher:
        _, pids = _family(launcher)
        (guard,) = (pid for pid in pids if "guard.py" in " ".join(psutil.Process(pid).cmdline()))
        os.kill(guard, signal.SIGKILL)
        (tmp_path / "go").touch()
        launcher.communicate(timeout=60)
        assert launcher.returncode == 0
