"""Models of several outputs, trained by two workers: what one process comes to."""

from __future__ import annotations

import pytest

from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.job import load_job
from tests.support.output_job import KEYS, several_outputs

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]


@pytest.mark.parametrize("engine", ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3)])
def test_two_workers(launch, tmp_path, engine):
    job = several_outputs(tmp_path)
    settings = [f"run.engine={engine}", "run.train_distribute=multi_worker_mirrored", "eval.exporters=[]"]
    found = launch(job, "--workers", "2", "--no-evaluator", settings=settings)["result"]["metrics"]
    wanted = run_job(load_job(job, overrides=["eval.exporters=[]"]), environ={}).metrics
    assert set(found) == KEYS
    for name in KEYS - {"loss"}:
        assert found[name] == pytest.approx(wanted[name], rel=1e-3), name
