"""Job files of models with several outputs: the same evaluations, exports and answers from every engine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.output_job import KEYS, several_outputs
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()


@pytest.fixture
def job(tmp_path):
    return several_outputs(tmp_path)


def loaded(job, engine, *changes):
    return load_job(job, overrides=[f"run.engine={engine}", f"run.model_dir={job.parent / engine}", *changes])


@pytest.mark.nightly
def test_every_engine_comes_to_the_same(job, run_python, tmp_path, native):
    results = {engine: run_job(loaded(job, engine), environ={}) for engine in ("estimator", "keras")}
    metrics = {engine: result.metrics for engine, result in results.items()}
    exported = {engine: result.exporters["final"] for engine, result in results.items()}
    if not native:
        mirrored = ["run.train_distribute=mirrored", "run.num_devices=2"]
        asked = [[str(job), ["run.engine=keras3", f"run.model_dir={tmp_path}/{folder}", *more]]
                 for folder, more in (("keras3", []), ("keras3-mirrored", mirrored))]  # fmt: skip
        done = run_python([KERAS3_PROCESS, "jobs"], stdin=json.dumps(asked), timeout=200,
                          env={"PYTHONPATH": str(ROOT)})  # fmt: skip
        for (_, (_, folder, *_)), found in zip(asked, json.loads(done.stdout.splitlines()[-1]), strict=True):
            metrics[folder], exported[folder] = found["metrics"], found["exporters"]["final"]
    rows = np.load(tmp_path / "data.npz")["rows"][:5]
    answers = {}
    for engine, found in metrics.items():
        assert set(found) == KEYS, engine
        for name in KEYS - {"loss", "global_step"}:
            assert found[name] == pytest.approx(metrics["estimator"][name], rel=1e-4), f"{engine}: {name}"
        assert found["average_loss"] == pytest.approx(found["kind_average_loss"] + 0.5 * found["sign_average_loss"])
        served = tf.saved_model.load(exported[engine]).signatures
        assert set(served) == {"serving_default", "predict", "kind/predict", "sign/predict"}, engine
        (name,) = served["predict"].structured_input_signature[1]
        answers[engine] = {key: value.numpy() for key, value in served["predict"](**{name: tf.constant(rows)}).items()}
        assert set(answers[engine]["kind/classes"][:, 0]) <= {b"small", b"middle", b"big"}
    for found in answers.values():
        assert found.keys() == answers["estimator"].keys()
        np.testing.assert_allclose(found["kind/logits"], answers["estimator"]["kind/logits"], rtol=1e-3, atol=1e-4)
    assert metrics["estimator"]["kind_accuracy"] > 0.5


@pytest.mark.nightly
def test_the_parity_of_both(job, run_python):
    """Step by step, with the signatures' answers."""
    command = ["-m", "estimator_pipeline", "parity", job, "--steps", "5", "--json"]
    done = run_python(command, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout)["equal"] is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.loss=mse"], "model.loss: the model has several outputs, and each needs a separate value"),
        (["input.label_key=kind"], "model.outputs.sign: there are no labels for this output"),
        (["input.label_key=[kind, kind]"], "input.label_key: a label is named twice"),
        (
            ["model.outputs.kind.class_weights={huge: 2.0}"],
            "model.outputs.kind.class_weights.huge: this is not a class",
        ),
        (["model.outputs.kind.loss_weight=-1"], "model.outputs.kind.loss_weight"),
        (["model.outputs.kind.metric=[accuracy]"], "model.outputs.kind.metric"),
    ],
)
def test_what_a_job_file_cannot_say(job, changes, message):
    with pytest.raises(ConfigError) as told:
        loaded(job, "estimator", *changes)
    assert message in str(told.value)


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_several_labels_for_one_output(job, engine):
    with pytest.raises(
        ConfigError, match=r"the data have several labels, and the model has one output|the model returns several"
    ):
        run_job(loaded(job, engine, "model.outputs={}", "model.loss=mse"), environ={})
