"""`parity JOB.yaml` as people call it: own code beside a file, what an engine refuses, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from estimator_pipeline.cli import main as cli
from tests.support.processes import ROOT

JOB = str(ROOT / "legacy_configs" / "single.yaml")

OWN_JOB = """
model: {function: sib/layers_here.py:layers, loss: sparse_categorical_crossentropy}
input: {source: function, train: data_here.py:train, eval: data_here.py:evaluate, global_batch_size: 16}
run: {model_dir: runs/x, seed: 1}
parity: {steps: 2}
"""
LAYERS = """
import sizes_here
import estimator_pipeline as ep

def layers(params):
    import lazy_here
    tf = ep.compat.install()
    return tf.keras.Sequential([
        tf.keras.layers.InputLayer(input_shape=(sizes_here.INPUTS,)), tf.keras.layers.Dense(lazy_here.CLASSES)
    ])
"""
DATA = """
import numpy as np
import estimator_pipeline as ep

def train(input_context=None, fail=False):
    if fail:
        return {}["of no record"]
    tf = ep.compat.install()
    x = np.random.RandomState(0).uniform(size=[64, 4]).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, (x.sum(axis=1) > 2).astype("int64"))).batch(16)

evaluate = train
"""


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "work"
    (folder / "sib").mkdir(parents=True)
    (folder / "job.yaml").write_text(OWN_JOB)
    (folder / "data_here.py").write_text(DATA)
    for name, text in {"layers_here": LAYERS, "sizes_here": "INPUTS = 4\n", "lazy_here": "CLASSES = 2\n"}.items():
        (folder / "sib" / f"{name}.py").write_text(text)
    return folder


def entry_point() -> list[str]:
    """The installed command, whose own folder Python puts first on the path; without one, its three lines."""
    command = Path(sys.executable).with_name("estimator-pipeline")
    if command.exists():
        return [str(command)]
    return [sys.executable, "-P", "-c", "from estimator_pipeline.cli.main import main; main()"]


@pytest.mark.nightly
def test_own_code_beside_its_file_in_every_process(own, run_environment):
    """The tasks of both engines, and the process that asks both models, load it; paths begin where it is started."""
    done = subprocess.run(
        [*entry_point(), "parity", "job.yaml", "--folder", "out", "--json"],
        capture_output=True, text=True, timeout=180, cwd=own, env=run_environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["equal"] is True
    assert "Error" not in (own / "out" / "answers.log").read_text()
    facts = json.loads((own / "out" / "facts.json").read_text())
    assert set(facts["losses"]) == {"average_loss", "loss"}, "the layers were made there as well"


@pytest.mark.nightly
def test_what_own_code_does_wrong_is_told_once(own, run_environment):
    """Exit code 2, no traceback, and nothing is left of the report's folder; the task has told it as an event."""
    done = subprocess.run(
        [*entry_point(), "parity", "job.yaml", "--set", "input.params={fail: true}", "--folder", "out",
         "--report", "report/inner"],
        capture_output=True, text=True, timeout=180, cwd=own, env=run_environment,
    )  # fmt: skip
    assert done.returncode == 2 and not done.stdout
    message = done.stderr[done.stderr.rindex("error: ") :]
    what, found, hint = message.splitlines()
    assert "input.train: data_here.py:train" in what and what.endswith("KeyError: 'of no record' [data/bad-input-fn]")
    at = f'{own}/data_here.py, line 7: return {{}}["of no record"]'
    assert found == f"  found: {at}; its logs: {own}/out/keras/logs" and hint == "  hint: correct it there"
    assert not (own / "report").exists()
    events = (own / "out" / "keras" / "logs" / "worker-0.progress.jsonl").read_text().splitlines()
    end = json.loads(events[-1])
    assert end["event"] == "end" and end["refusal"]["hint"] == "correct it there"


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or os.name == "nt", reason="signals of POSIX")
def test_ctrl_c(own, run_environment, tmp_path):
    process = subprocess.Popen(
        [*entry_point(), "parity", "job.yaml", "--folder", "out", "--report", "report"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=own, env=run_environment,
        start_new_session=True,
        # Where the tests were put into the background by a script, it is ignored, and a child would ignore it too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        log = own / "out" / "keras" / "logs" / "worker-0.log"
        end = time.monotonic() + 180
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=180)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130
    assert "error: the run of the engine keras was stopped by the user (SIGINT) [" in said
    assert "failed" not in said[said.rindex("error: ") :] and not (own / "report").exists()


# In this process: nothing is started ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engines", "keras"], "[argument/missing]\n  found: named: keras; engines: estimator, keras, keras3"),
        (["--engines", ""], "[argument/missing]\n  found: named: none"),
        (["--engines", "keras,keras3,estimator"], "[argument/missing]\n  found: named: keras, keras3, estimator"),
        (["--engines", "keras, torch"], "not known: 'torch'"),
        (["--timeout", "nan"], "--timeout is nan, which is not a number of seconds"),
        (
            ["--workers", "2", "--set", "run.train_distribute=mirrored"],
            "'mirrored' trains in one process, and 2 workers",
        ),
        (["--set", "parity.tolerances={weights: roundin}"], "did you mean 'rounding'"),
        (["--set", "input.shard_policy=hint", "--set", "run.seed=1"], "does not apply the hint"),
    ],
)
def test_bad_input(arguments, says, tmp_path):
    folders = ["--folder", str(tmp_path / "runs" / "one"), "--report", str(tmp_path / "report" / "two")]
    done = CliRunner().invoke(cli.app, ["parity", JOB, *folders, *arguments])
    assert done.exit_code == 2 and says in done.output, done.output
    assert not os.listdir(tmp_path), "no folder was made for nothing"


@pytest.mark.parametrize("what", [["JOB"], ["--estimator", "a.py:f", "--model", "a.py:f", "--input-fn", "a.py:f"]])
def test_a_folder_that_is_a_file(what, tmp_path):
    (tmp_path / "file").write_text("")
    arguments = [JOB if one == "JOB" else one for one in what]
    done = CliRunner().invoke(cli.app, ["parity", *arguments, "--folder", str(tmp_path / "file")])
    assert done.exit_code == 2
    assert done.output.startswith(
        f"error: --folder {tmp_path}/file: the runs and their records cannot be written there"
    )
    assert "  found: it is a file\n" in done.output and "log-dir" not in done.output


def test_ctrl_c_while_nothing_runs(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("estimator_pipeline.parity.jobs.run.run_parity", interrupted)
    done = CliRunner().invoke(cli.app, ["parity", JOB, "--report", str(tmp_path / "report")])
    assert done.exit_code == 130 and "error: the comparison was stopped by the user (SIGINT) [" in done.output
    assert not os.listdir(tmp_path)
