"""The words of messages: what a person is told of bad input, in texts/*.txt, which `make messages` takes as they are.

One case each of what a person meets first; the codes are held beside them, so that a code cannot change its meaning.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_fns
from estimator_pipeline import inputs
from estimator_pipeline.cluster import own_port
from estimator_pipeline.cluster.detection import detect
from estimator_pipeline.cluster.spec import build_tf_config, parse_tf_config
from estimator_pipeline.distribute.strategies import Communication
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.inputs.sampler import check_global_batch, split_files
from estimator_pipeline.job import load_job
from estimator_pipeline.job.user_code import load_function
from estimator_pipeline.models.model_fn import takes_params
from estimator_pipeline.models.optimizers.spec import Optimizer
from estimator_pipeline.parity.step_records import StepReader
from estimator_pipeline.progress.preemption_signals import SIGNALS_VARIABLE, signals_of
from tests.support.bad_cases import CASES, GOOD_JOB
from tests.support.command_line import call
from tests.support.messages import hold

OVERRIDES = {
    "train.max_step=5": "job/unknown-field",
    "trian.max_steps=5": "job/unknown-field",
    "train.max_steps=many": "job/wrong-type",
    "train.max_steps": "job/bad-override",
    "train.max_steps.x=1": "job/bad-override",
    "model.metrics.0=a": "job/wrong-type",
    "input.global_batch_size=3": "job/conflict",
    "run.devices=[a": "job/not-yaml",
}


def _text(error: PipelineError, folder: Path) -> str:
    return str(error).replace(f"{folder}/", "").replace(str(folder), ".")


@pytest.mark.parametrize("kind", ["job", "tf_config"])
def test_documents(kind, tmp_path):
    path = tmp_path / "job.yaml"
    texts = {}
    for case in CASES:
        if case.kind == kind:
            path.write_text(case.text, encoding="utf-8")
            with pytest.raises(PipelineError) as caught:
                load_job(path) if kind == "job" else parse_tf_config(case.text)
            texts[case.id.partition("-")[2]] = _text(caught.value, tmp_path)
    hold(kind, texts)


def test_overrides(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(GOOD_JOB, encoding="utf-8")
    texts = {}
    for override, code in OVERRIDES.items():
        with pytest.raises(PipelineError) as caught:
            load_job(path, overrides=[override])
        assert caught.value.code == code, override
        texts[f"--set {override}"] = _text(caught.value, tmp_path)
    hold("overrides", texts)


COMMANDS = {
    "train missing.yaml": "file/not-found",
    "train .": "file/unreadable",
    "doctor --set run.seed=1": "argument/not-applicable",
    "doctor --shared": "argument/missing",
    "doctor job.yaml --only storage": "argument/unknown-name",
    "doctor job.yaml --tf-config nothere.json": "file/not-found",
    "launch": "argument/missing",
    "launch job.yaml -- python x.py": "argument/conflict",
    "launch --ledger -- python x.py": "argument/not-applicable",
    "launch --workers 2 -- nosuchprogram": "launch/cannot-start",
    "launch --tf-config nothere.json -- python x.py": "file/not-found",
    "launch job.yaml --metrics /proc/x/y.prom": "file/unwritable",
    "launch job.yaml --workers 0": "job/bad-value",
    "exec": "argument/missing",
    "exec --nothing train.py": "argument/unknown-name",
    "exec missing.py": "file/not-found",
    "inspect": "argument/missing",
    "inspect job.yaml --input-fn a:b": "argument/conflict",
    "inspect job.yaml --steps x": "argument/bad-value",
    "inspect job.yaml --count-data": "argument/not-applicable",
    "inspect --ledger full": "file/not-found",
    "index nowhere.tfrecord": "data/not-found",
    "supervise": "argument/missing",
    "parity": "argument/missing",
    "parity job.yaml --estimator a:b": "argument/conflict",
    "parity job.yaml --engines estimator": "argument/missing",
    "parity job.yaml --engines estimator,estimator": "argument/conflict",
    "migrate scan nowhere": "file/not-found",
    "migrate scan job.yaml": "file/bad-format",
    "migrate scan program.py --fail-on sometimes": "argument/unknown-name",
    "migrate convert program.py": "argument/missing",
    "migrate convert program.py --output full": "file/exists",
    "migrate config nowhere.json": "file/not-found",
    "migrate config fields.json": "migrate/unknown-format",
    "migrate config job.yaml": "migrate/unknown-format",
    "migrate config settings.json": "migrate/unknown-format",
    "migrate config broken.json": "file/bad-format",
    "migrate checkpoint nowhere --to keras": "argument/missing",
    "migrate checkpoint nowhere --to torch --job job.yaml --output x": "argument/unknown-name",
    "migrate export nowhere --output x": "argument/missing",
    "submit slurm job.yaml --at-once 3": "argument/not-applicable",
    "submit kubernetes job.yaml": "job/missing-field",
    "submit kubernetes job.yaml --dry-run --set kubernetes.image=a": "kubernetes/no-volume",
    "submit kubernetes job.yaml --dry-run --set kubernetes.image=a --set run.model_dir=gs://b/m --name X_Y": (
        "kubernetes/bad-name"
    ),
    "status nowhere": "jobs/not-found",
    "status job.yaml --folder x": "argument/not-applicable",
    "logs job.yaml": "jobs/not-found",
    "cancel job.yaml --now --checkpoint": "argument/conflict",
    "stacks job.yaml": "jobs/not-found",
    "clean nowhere": "file/not-found",
    "explain job/unknown-feld": "argument/unknown-name",
}
IN_SLURM = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}


def test_commands(tmp_path):
    """Each is told in one message and exit code 2, without a traceback, before TensorFlow is imported."""
    (tmp_path / "job.yaml").write_text(GOOD_JOB, encoding="utf-8")
    (tmp_path / "program.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x", encoding="utf-8")
    (tmp_path / "fields.json").write_text('{"a": {"b": 1}}\n', encoding="utf-8")
    (tmp_path / "settings.json").write_text('{"learning_rate": 0.1, "hidden": [10, 20]}\n', encoding="utf-8")
    (tmp_path / "broken.json").write_text('{"a": 1,\n b', encoding="utf-8")
    texts = {}
    for command, code in {**COMMANDS, "train job.yaml": "cluster/not-started"}.items():
        done = call(*command.split(), cwd=tmp_path, env=IN_SLURM if command == "train job.yaml" else None)
        assert done.returncode == 2, (command, done.stderr)
        assert done.stdout == "" and done.stderr.count("error: ") == 1, (command, done.stdout, done.stderr)
        assert re.findall(r"\[([a-z-]+/[a-z-]+)\]$", done.stderr, re.MULTILINE) == [code], (command, done.stderr)
        texts[command] = done.stderr.rstrip("\n").replace(f"{tmp_path}/", "").replace(str(tmp_path), ".")
    hold("commands", texts)


CALLS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a batch that cannot be shared": ("data/cannot-shard", lambda _: check_global_batch(32, 3)),
    "fewer files than input pipelines": ("data/cannot-shard", lambda _: split_files([5, 5], 3)),
    "an option that there is not": (
        "argument/unknown-name",
        lambda _: inputs.from_arrays((np.zeros(4), np.zeros(4)), global_batch_size=2, shufle=True),
    ),
    "no batch size": ("argument/missing", lambda _: inputs.from_arrays((np.zeros(4), np.zeros(4)))),
    "arrays of two lengths": (
        "data/bad-feature",
        lambda _: inputs.from_arrays((np.zeros(4), np.zeros(3)), global_batch_size=2),
    ),
    "no arrays": ("argument/missing", lambda _: inputs.from_arrays(global_batch_size=2)),
    "a pattern without files": (
        "data/not-found",
        lambda folder: inputs.from_tfrecord(str(folder / "*.tfrecord"), features={}, global_batch_size=2),
    ),
    "files named twice": (
        "argument/conflict",
        lambda folder: inputs.from_csv([_csv(folder), _csv(folder)], label_key="y", global_batch_size=2),
    ),
    "a row with a cell too few": (
        "data/bad-record",
        lambda folder: inputs.from_csv(_csv(folder, "1"), label_key="y", global_batch_size=2),
    ),
    "a label that there is not": (
        "data/missing-feature",
        lambda folder: inputs.from_csv(_csv(folder), label_key="z", global_batch_size=2),
    ),
    "a CSV file without records": (
        "data/empty",
        lambda folder: inputs.from_csv(_csv(folder, None), label_key="y", global_batch_size=2),
    ),
    "a damaged TFRecord file": (
        "data/unreadable",
        lambda folder: inputs.from_tfrecord(_damaged(folder), features={"label": "float32"}, global_batch_size=1),
    ),
    "a folder without a partition": ("file/not-found", lambda folder: inputs.from_partition(folder / "parts")),
    "a task that there is not": ("argument/bad-value", lambda _: build_tf_config(5, 2)),
    "an unknown way to communicate": ("argument/bad-value", lambda _: Communication(implementation="mpi")),
    "an optimizer that there is not": ("argument/unknown-name", lambda _: Optimizer(name="adm")),
    "a decay below 0": ("model/bad-optimizer", lambda _: Optimizer(name="adam", weight_decay=-1)),
    "a model that there is not": ("argument/unknown-name", lambda _: model_fns.get("cmm")),
    "columns that the data do not give": (
        "model/features-mismatch",
        lambda _: model_fns.for_data("wide_deep", {"numeric": ["a"]}, shapes={"b": []}),
    ),
    "a module that there is not": ("job/bad-function", lambda _: load_function("nowhere:f", field="model.function")),
    "layers that are a list": ("model/bad-function", lambda _: takes_params([])),
    "a signal that there is not": ("environment/bad-value", lambda _: signals_of(None, {SIGNALS_VARIABLE: "SIGFOO"})),
    "no record of a run": ("parity/bad-record", StepReader),
    "a rank beyond the last": ("cluster/contradiction", lambda _: detect(_slurm_step(rank=5, tasks=2))),
    "a port that is taken": ("cluster/port-in-use", lambda _: _on_a_taken_port()),
}


def _slurm_step(*, rank: int, tasks: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": "a",
        "SLURM_STEP_TASKS_PER_NODE": str(tasks),
    }


def _on_a_taken_port() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        own_port.require_free(f"node1:{other.getsockname()[1]}", "worker:1", {})


def _csv(folder: Path, row: str | None = "1,2") -> str:
    path = folder / "data.csv"
    path.write_text("x,y\n" + ("" if row is None else f"{row}\n"), encoding="utf-8")
    return str(path)


def _damaged(folder: Path) -> str:
    path = folder / "data.tfrecord"
    path.write_bytes(b"no record at all")
    return str(path)


@pytest.mark.tf  # reading data imports it
def test_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {}
    for what, (code, function) in CALLS.items():
        with pytest.raises(PipelineError) as caught:
            function(tmp_path)
        assert caught.value.code == code, (what, caught.value)
        # Which port was free, and which process has it, is another each time.
        texts[what] = re.sub(r"\b(port |process |node1:)\d+", r"\1N", _text(caught.value, tmp_path))
    hold("calls", texts)
