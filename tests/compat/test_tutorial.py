"""The program of the tutorial "Multi-worker training with Estimator", unchanged, on two TF_CONFIG workers.

tests/programs/tutorial_estimator.py knows nothing of this package. It loads its data by TFDS name; `digits` stands in
for `mnist`, which has to be downloaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from estimator_pipeline import compat
from estimator_pipeline.inputs.sources.digits import prepare
from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_DEADLINE = 200  # seconds, for a cluster that hangs; a run takes some fifteen
_RECORDS, _BATCH = 1437, 64


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory):
    """`digits` prepared as TFDS files, from which plain tfds.load reads it by name without our code."""
    compat.install()  # before this process has TensorFlow, whose Keras is settled by then
    folder = tmp_path_factory.mktemp("tfds")
    prepare(folder)
    return folder


@pytest.fixture
def program(programs, digits_dir, tmp_path):
    """The command line after `python`, without what a test adds."""
    data = ["--dataset", "digits", "--data_dir", digits_dir, "--highest", "16", "--learning_rate", "0.1"]
    return [str(part) for part in (programs / "tutorial_estimator.py", tmp_path / "model", *data)]


def _end(process):
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _steps_and_losses(log):
    """step -> loss of what Estimator logs, on the chief and on the other worker alike."""
    return {int(step): float(loss) for loss, step in re.findall(r"loss = (\S+), step = (\d+)", log)}


def _last_loss(log):
    return float(re.findall(r"Loss for final step: ([\d.e+-]+?)\.?$", log, re.M)[-1])


def _evaluated(log):
    """The steps that a task evaluated, as Estimator logs them; TFDS makes every line of the log come twice."""
    return {int(step) for step in re.findall(r"Saving dict for global step (\d+): ", log)}


def _read(trace):
    """What a worker trained on: one line for each image, in hexadecimal."""
    return trace.read_text().splitlines()


def _check(logs, model_dir, traces, last_step, read_by):
    for index, log in enumerate(logs):
        assert f"pipeline {index} of 2" in log
    # The same steps, and after each all-reduce the same loss: neither worker trained alone.
    first, second = map(_steps_and_losses, logs)
    assert first == second and set(first) == set(range(0, last_step, 100))
    assert _last_loss(logs[0]) == _last_loss(logs[1])
    assert _last_loss(logs[0]) < first[0] / 2

    saved = sorted(path.name for path in model_dir.glob("model.ckpt-*.index"))
    assert saved[-1] == f"model.ckpt-{last_step}.index"
    assert f'model_checkpoint_path: "model.ckpt-{last_step}"' in (model_dir / "checkpoint").read_text()

    read = [_read(trace) for trace in traces]
    assert [len(lines) for lines in read] == list(read_by)
    assert not set(read[0]) & set(read[1]), "both workers read the same record"
    assert len(set(read[0]) | set(read[1])) == _RECORDS

    # No evaluator in the cluster: the chief evaluates what is final, and only it.
    assert [_evaluated(log) for log in logs] == [{last_step}, set()]


@pytest.mark.gate("max_steps")
@pytest.mark.parametrize("until", ["the data end", "max_steps"])
def test_e1_e3_e4_e5_e6_tutorial_on_two_workers(until, program, tmp_path):
    """As the page has it, one pass over the data; and with `max_steps`, the data repeated."""
    more = [] if until == "the data end" else ["--epochs", "50", "--max_steps", "101"]
    traces = [tmp_path / f"trace-{index}" for index in range(2)]

    def command(job, index):
        return [*EXEC, *program, *more, "--trace", traces[index]]

    with Tasks({"worker": 2}, command, tmp_path) as running:
        assert running.wait(timeout=_DEADLINE) == {"worker0": 0, "worker1": 0}, running.tails()
        logs = [running.log(name) for name in running.processes]
    # Each worker reads one half: 719 and 718 records, 12 batches either way, the last one short.
    last_step = 12 if until == "the data end" else 101
    _check(logs, tmp_path / "model", traces, last_step, (719, 718))


@pytest.mark.nightly
def test_tutorial_launched_by_one_command(program, tmp_path, run_environment):
    """The same program, started as a local cluster: `launch --workers 2 -- estimator-pipeline exec PROGRAM`."""
    logs, trace = tmp_path / "logs", tmp_path / "trace"
    command = [sys.executable, "-m", "estimator_pipeline", "launch", "--workers", "2", "--log-dir", str(logs)]
    inner = [*EXEC, *program, "--epochs", "50", "--max_steps", "150", "--trace", str(trace)]
    process = subprocess.Popen(
        [*command, "--timeout", str(_DEADLINE), "--", *inner],
        env=run_environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        shown, _ = process.communicate(timeout=_DEADLINE + 60)
    finally:
        _end(process)
    assert process.returncode == 0, shown
    texts = [log.read_text() for log in sorted(logs.glob("worker*.log"))]
    assert len(texts) == 2, sorted(logs.iterdir())
    # Both wrote to one trace file here, a line at a time: every record is in it, none twice.
    read = _read(trace)
    assert len(read) == len(set(read)) == _RECORDS
    first, second = map(_steps_and_losses, texts)
    assert first == second and set(first) == {0, 100}
    assert _last_loss(texts[0]) == _last_loss(texts[1]) < first[0] / 2
    assert (tmp_path / "model" / "model.ckpt-150.index").is_file()
