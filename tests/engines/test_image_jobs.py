"""A job with `source: images`: trained, evaluated and exported by each engine, with nothing but a model's name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.job import load_job
from tests.support.processes import KERAS3_PROCESS, ROOT

tf = compat.install()


@pytest.fixture
def job(tmp_path):
    for label, name in enumerate(("dark", "light")):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(12):
            pixels = np.full((9, 9, 3), 5 + 230 * label + number, np.uint8)
            (folder / f"{number}.png").write_bytes(tf.io.encode_png(pixels).numpy())
    fields = {
        "model": {"name": "cnn", "export": {"signatures": ["predict", "classify"]}},
        "input": {
            "source": "images",
            "train": str(tmp_path / "images"),
            "eval_fraction": 0.3,
            "size": [8, 8],
            "global_batch_size": 4,
        },
        "train": {"max_steps": 40},
        "eval": {"exporters": [{"kind": "final"}]},
        "run": {"model_dir": str(tmp_path / "model"), "seed": 1},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.nightly
@pytest.mark.gate("estimator")
@pytest.mark.parametrize("engine", ["estimator", "keras", pytest.param("keras3", marks=pytest.mark.keras_3)])
def test_the_export_names_the_classes_of_image_files(engine, job, tmp_path, run_python):
    settings = [f"run.engine={engine}"]
    if engine == "keras3":
        done = run_python([KERAS3_PROCESS, "jobs"], {"PYTHONPATH": str(ROOT)}, stdin=json.dumps([[str(job), settings]]))
        assert done.returncode == 0, done.stderr[-4000:]
        result = json.loads(done.stdout.splitlines()[-1])[0]
    else:
        result = run_job(load_job(job, overrides=settings), environ={}).to_dict()
    signatures = tf.saved_model.load(result["exporters"]["final"]).signatures
    files = [tmp_path / "images" / name / "3.png" for name in ("light", "dark")]
    examples = []
    for file in files:
        example = tf.train.Example()
        example.features.feature["image"].bytes_list.value.append(file.read_bytes())
        examples.append(example.SerializeToString())
    answered = signatures["classification"](tf.constant(examples))
    assert answered["classes"][0].numpy().tolist() == [b"dark", b"light"]
    assert answered["scores"].numpy().argmax(axis=1).tolist() == [1, 0]
    pixels = tf.constant(np.stack([np.full((8, 8, 3), value) for value in (238, 8)]) / 255, tf.float32)
    predicted = signatures["predict"](image=pixels)
    assert predicted["classes"].numpy().ravel().tolist() == [b"light", b"dark"]
    np.testing.assert_allclose(predicted["probabilities"], answered["scores"], rtol=1e-4)
