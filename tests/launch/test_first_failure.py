"""Which task a failure is of, and what is said of it: in one line, the first of several, in order of time."""

import json
import sys

import pytest

from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.launch import RestartLimits, supervise_command
from estimator_pipeline.launch.history import read_events
from estimator_pipeline.launch.local import task as running
from estimator_pipeline.launch.logs.noise import is_noise
from estimator_pipeline.launch.supervisor.ranks import MEMORY, NO_ALLOCATION, RankFailure, Ranks, numbers
from estimator_pipeline.progress.error_lines import described, error_in, error_line
from estimator_pipeline.progress.progress_file import Tail
from estimator_pipeline.progress.task_events import TaskEvents

TRACEBACK = """\
INFO:tensorflow:Calling model_fn.
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    g()
RuntimeError: no such column 'price'
Error in atexit
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRACEBACK, "RuntimeError: no such column 'price'"),
        ('Traceback (most recent call last):\n  File "a.py"\n    f()\nValueError\n', "ValueError"),
        ('Traceback (most recent call last):\n  File "a.py"\ntf.errors.NotFoundError: gone\n', "NotFoundError: gone"),
        ('Traceback (most recent call last):\n  File "a.py", line 1\n', ""),
        ("no traceback\nError: what a program says\n", ""),
        (
            'Traceback (most recent call last):\n  File "a.py"\nKeyError: in user code:\n\n'
            '    File "b.py", line 4, in f  *\n        raise KeyError("y")\n\n    KeyError: \'y\'\n',
            "KeyError: 'y'",
        ),
    ],
)
def test_the_error_of_a_log(text, said):
    assert error_in(text.splitlines()) == said


def test_an_error_in_one_line():
    assert error_line(ValueError("one\ntwo")) == "ValueError: one"
    assert error_line(ConfigError("the file is gone.", found="a.csv", hint="give it back")) == "the file is gone: a.csv"
    assert len(error_line(ValueError("x" * 5000))) == 300
    assert described("KeyError", "") == "KeyError"


def test_what_tensorflow_says_at_its_start_is_noise():
    noise = [
        "I0000 00:00:1795783016.974277   29243 port.cc:153] oneDNN custom operations are on.",
        "2025-01-02 03:04:05.678901: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.",
        "E0000 00:00:1795783019.873862   29243 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate "
        "compiler flags.",
    ]
    assert all(map(is_noise, noise))
    own = ["INFO:tensorflow:loss = 0.1, step = 100", "RuntimeError: cuda", "E0000 00:00:17 1 x.cc:1] Aborted", ""]
    assert not any(map(is_noise, own))


def ranks_of(tmp_path, events, *prints):
    """Of events, and of what srun prints at a moment each."""
    log = tmp_path / "command.log"
    log.touch()
    ranks = Ranks(Tail(log))
    for event in events:
        ranks.event(event)
    for at, line in prints:
        with open(log, "a") as file:
            file.write(line + "\n")
        ranks.poll(at)
    return ranks


def start(rank):
    return {"event": "start", "task": f"worker:{rank}", "rank": rank, "process": f"n{rank}-7", "time": 0.0}


def raised(rank, at, error, **more):
    return {"event": "raised", "task": f"worker:{rank}", "rank": rank, "error": error, "time": at, **more}


def lost(rank, at, caused_by):
    return {
        "event": "end",
        "status": "failed",
        "task": f"worker:{rank}",
        "error": "gone",
        "caused_by": caused_by,
        "time": at,
    }


KILLED = "srun: error: n1: task 1: Killed"
EXITED = "srun: error: n{0}: task {0}: Exited with exit code 1"
EXCEEDED = "slurmstepd-n1: error: StepId=3.0 exceeded memory limit (415457280 > 314572800), being killed"
TERMINATED = "srun: error: n{0}: task {0}: Terminated"


@pytest.mark.parametrize(
    ("events", "prints", "first"),
    [
        # It raises, and is slower to end than the one that it takes with it.
        (
            [start(0), start(1), raised(1, 5.0, "KeyError: 'x'"), lost(0, 6.0, "worker:1")],
            [(6.2, EXITED.format(0)), (6.4, EXITED.format(1))],
            RankFailure(5.0, "worker:1", 1, error="KeyError: 'x'"),
        ),
        # Killed without a word; the other one fails by that, and says so.
        (
            [start(0), start(1), lost(0, 6.0, "worker:1")],
            [(5.1, KILLED), (6.3, EXITED.format(0))],
            RankFailure(5.1, "worker:1", -9),
        ),
        # The other one does not know whom it has lost.
        (
            [start(0), start(1), raised(0, 6.0, "UnavailableError: socket closed", echo=True)],
            [(5.1, "srun: error: n1: task 1: Segmentation fault (core dumped)"), (6.3, EXITED.format(0))],
            RankFailure(5.1, "worker:1", -11),
        ),
        # It had not come to its name; srun ends the other one.
        ([start(0)], [(5.0, KILLED), (5.2, TERMINATED.format(0))], RankFailure(5.0, "rank 1", -9)),
        (
            [],
            [(5.0, "srun: error: n[1-2]: tasks 1-2: Out Of Memory")],
            RankFailure(5.0, "rank 1", -9, description=MEMORY),
        ),
        (
            [start(1)],
            [(4.0, "slurmstepd: error: Detected 1 oom_kill event in StepId=16.0."), (5.0, KILLED)],
            RankFailure(5.0, "worker:1", -9, description=MEMORY),
        ),
        # Memory that Slurm enforces by accounting: it ends the whole step, and the node of the culprit is named.
        (
            [start(0), start(1)],
            [(4.0, EXCEEDED), (5.0, "srun: error: n0: task 0: Killed"), (5.1, KILLED)],
            RankFailure(5.1, "worker:1", -9, description=MEMORY),
        ),
        (
            [start(1)],
            [(4.0, "slurmstepd-n0: error: Exceeded job memory limit"), (5.0, KILLED)],
            RankFailure(5.0, "worker:1", -9, description=MEMORY),
        ),
        (
            [start(1)],
            [(4.0, EXCEEDED), (5.0, "srun: error: n[1-2]: tasks 1-2: Killed")],
            RankFailure(5.0, "worker:1", -9, description=MEMORY),
        ),
        # Somebody has killed a task, and that is not for want of memory on a different node.
        (
            [start(1)],
            [(4.0, EXCEEDED.replace("n1", "n2")), (5.0, KILLED)],
            RankFailure(5.0, "worker:1", -9),
        ),
        # One that hangs is killed long after the other one has said so.
        (
            [start(0), start(1), lost(0, 70.0, "worker:1")],
            [(71.0, EXITED.format(0)), (101.0, KILLED)],
            RankFailure(70.0, "worker:1", error="gone"),
        ),
        # Somebody has ended a task, and nothing else is known.
        ([start(1)], [(5.0, TERMINATED.format(1))], RankFailure(5.0, "worker:1", -15)),
        # A task that stops as it was asked is no failure.
        ([{"event": "end", "status": "preempted", "task": "worker:0", "error": "asked", "time": 1.0}], [], None),
        ([], [(1.0, "srun: error: Node failure on n2")],
         RankFailure(1.0, "a task", description="ran on the node n2, which failed")),
        ([], [(1.0, "Submitted batch job 7")], None),
    ],
)  # fmt: skip
def test_the_first_failure_counts(tmp_path, events, prints, first):
    assert ranks_of(tmp_path, events, *prints).first() == first


def test_memory_of_which_only_the_log_of_a_task_has_a_message(tmp_path):
    """Where srun writes the tasks' logs, the step daemons write there. Those of earlier attempts do not count."""
    log = tmp_path / "task-1.log"
    log.write_text(f"{EXCEEDED}\n")
    (tmp_path / "command.log").touch()
    for text, first in [
        ("a program prints: oom_kill event\n", RankFailure(5.0, "rank 0", -9)),
        (f"{EXCEEDED}\nslurmstepd-n1: error: *** STEP\n", RankFailure(5.0, "rank 1", -9, description=MEMORY)),
    ]:
        output = Tail(tmp_path / "command.log", offset=(tmp_path / "command.log").stat().st_size)
        ranks = Ranks(output, logs=tmp_path)
        with open(log, "a") as file, open(tmp_path / "command.log", "a") as command:
            file.write(text)
            command.write(f"srun: error: n0: task 0: Killed\n{KILLED}\n")
        ranks.poll(5.0)
        assert ranks.first() == first


def test_a_process_has_the_name_of_its_task(tmp_path):
    ranks = ranks_of(tmp_path, [start(3)])
    assert (ranks.task_of("n3-7"), ranks.task_of("n3-8")) == ("worker:3", "")
    assert numbers("[0-2,5]") == [0, 1, 2, 5] and numbers("N/A") == []


def test_a_task_tells_its_name_and_its_error_once(tmp_path):
    environ = {
        "ESTIMATOR_PIPELINE_PROGRESS": str(tmp_path / "p.jsonl"),
        "SLURM_PROCID": "1",
        "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}),
    }
    events = TaskEvents(environ)
    events.started(100)
    for _ in range(2):
        events.raised(KeyError("x"))
    events.ended(TaskFailedError("lost"), status="failed", caused_by="worker:0")
    told = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [one["event"] for one in told] == ["start", "raised", "end"]
    assert {(one["task"], one["rank"]) for one in told} == {("worker:1", 1)}
    assert told[1]["error"] == "KeyError: 'x'" and told[2]["caused_by"] == "worker:0"
    assert TaskEvents({"TF_CONFIG": "{"})._names == {}, "what is wrong with it, others say"


COMMAND = """\
import json, os, sys, time
def tell(**event):
    with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as file:
        file.write(json.dumps({"time": time.time(), **event}) + "\\n")
tell(event="start", task="worker:1", rank=1)
tell(event="raised", task="worker:1", rank=1, error="RuntimeError: no such column 'price'")
print("srun: error: n1: task 0: Terminated", flush=True)
print("srun: error: n2: task 1: Exited with exit code %CODE", flush=True)
sys.exit(143)
"""


@pytest.mark.parametrize(("code", "attempts"), [(1, 2), (2, 1)])
def test_a_line_of_srun_fails_as_the_first_of_its_tasks(tmp_path, code, attempts):
    """srun itself ends with 143, the highest code of all tasks: that of one that it has ended itself."""
    command = [sys.executable, "-c", COMMAND.replace("%CODE", str(code))]
    outcome = supervise_command(
        command, log_dir=tmp_path, run_id="r", limits=RestartLimits(max_restarts=1, backoff=0.0)
    )
    assert (outcome.exit_code, len(outcome.attempts)) == (code, attempts)
    said = f"worker:1 failed with exit code {code}: RuntimeError: no such column 'price'"
    assert outcome.failure.head == said and outcome.failure.text().startswith(f"{said}. The last lines")
    failed = next(event for event in read_events(tmp_path) if event["event"] == "failed")
    assert (failed["task"], failed["exit_code"], failed["what"]) == ("worker:1", code, said)
    assert failed["error"] == "RuntimeError: no such column 'price'"


REQUEUED = "srun: error: Unable to confirm allocation for job 6: Job is pending execution"
UNREACHABLE = (
    "srun: error: Unable to confirm allocation for job 6: Unable to contact slurm controller (connect failure)"
)
# A node of the job fails, and srun cannot start the tasks again.
SRUN = """\
if [ -e started ]; then
    echo "%ERROR" >&2
    echo "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 6" >&2
else
    echo "srun: error: Node failure on n2" >&2
fi
touch started
exit 1
"""


@pytest.mark.parametrize(("error", "attempts"), [(REQUEUED, 2), (UNREACHABLE, 4)])
def test_a_job_that_slurm_has_taken_back_is_not_restarted(tmp_path, monkeypatch, error, attempts):
    """The last failure remains that of the node. A controller that does not answer may answer again."""
    monkeypatch.chdir(tmp_path)
    outcome = supervise_command(
        ["sh", "-c", SRUN.replace("%ERROR", error)],
        log_dir=tmp_path / "logs",
        run_id="r",
        limits=RestartLimits(max_restarts=3, backoff=0.0, early_failures=9),
    )
    assert (outcome.exit_code, len(outcome.attempts)) == (1, attempts)
    failures = [event["what"] for event in read_events(tmp_path / "logs") if event["event"] == "failed"]
    assert failures[0] == "a task ran on the node n2, which failed"
    assert len(failures) == (1 if error == REQUEUED else 4)
    if error == REQUEUED:
        assert outcome.gave_up == "Slurm has requeued or ended the job"
        assert outcome.attempts[-1].why == f"command {NO_ALLOCATION}"


def test_a_process_that_the_kernel_killed_for_want_of_memory(tmp_path, monkeypatch):
    kills = iter([3, 4])
    monkeypatch.setattr(running, "memory_kills", lambda: next(kills))
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    outcome = supervise_command(command, log_dir=tmp_path, run_id="r", limits=RestartLimits())
    assert outcome.failure.head == f"command {MEMORY}"


def test_a_command_of_one_process_says_what_it_raised(tmp_path):
    command = [sys.executable, "-c", "{}['price']"]
    outcome = supervise_command(command, log_dir=tmp_path, run_id="r", limits=RestartLimits())
    assert outcome.failure.head == "command failed with exit code 1: KeyError: 'price'"
