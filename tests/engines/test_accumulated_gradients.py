"""Two workers that add gradients up come to what they come to with bigger batches."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.processes import ROOT, environment

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]


def launched(model_dir, **settings):
    command = [sys.executable, "-m", "estimator_pipeline", "launch", "legacy_configs/multi_worker_estimator.yaml"]
    common = {"model.name": "dnn", "model.clip_norm": 0.5, "run.model_dir": model_dir, "eval.during_training": "false"}
    for name, value in {**common, **settings}.items():
        command += ["--set", f"{name.replace('__', '.')}={value}"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((model_dir / "estimator_pipeline" / "result.json").read_text())


@pytest.mark.parametrize("engine", ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3)])
def test_two_workers_come_to_what_they_come_to_with_bigger_batches(engine, tmp_path):
    adam = "{name: adam, learning_rate: 0.01%s}"
    big = launched(
        tmp_path / "big", run__engine=engine, train__max_steps=10, input__global_batch_size=64,
        model__optimizer=adam % "",
    )  # fmt: skip
    small = launched(
        tmp_path / "small", run__engine=engine, train__max_steps=20, input__global_batch_size=32,
        model__optimizer=adam % ", gradient_accumulation_steps: 2",
    )  # fmt: skip
    one, other = big["result"], small["result"]
    assert (one["global_step"], other["global_step"]) == (10, 20)
    assert one["metrics"]["average_loss"] < 1.0, "it was trained"
    assert other["metrics"]["average_loss"] == pytest.approx(one["metrics"]["average_loss"], rel=1e-4)
