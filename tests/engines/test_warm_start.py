"""A new run whose variables start from the checkpoint of a different run: `run.warm_start_from`."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

LAYERS = """
import estimator_pipeline as ep


def layers(params):
    tf = ep.compat.tensorflow()
    return tf.keras.Sequential([
        tf.keras.layers.Input((8, 8, 1), name="image"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(4, name=params.get("hidden", "hidden")),
        tf.keras.layers.BatchNormalization(name="norm", momentum=params["momentum"]),
        tf.keras.layers.Dense(params["classes"], name="head"),
    ])
"""
# A step with this learning rate changes no weight.
STILL = "name: momentum, learning_rate: 1.0e-30"
MIRRORED = ["run.train_distribute=mirrored", "run.num_devices=2"]


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory):
    from estimator_pipeline.inputs.sources.digits import prepare

    folder = tmp_path_factory.mktemp("tfds")
    prepare(str(folder))
    return folder


@pytest.fixture
def job_file(tmp_path, digits_dir):
    (tmp_path / "warm_start_layers.py").write_text(LAYERS)
    path = tmp_path / "job.yaml"
    path.write_text(
        f"model: {{function: '{tmp_path}/warm_start_layers.py:layers', loss: sparse_categorical_crossentropy,\n"
        "        optimizer: {name: momentum, learning_rate: 0.1}}\n"
        f"input: {{source: tfds, name: digits, data_dir: '{digits_dir}', global_batch_size: 64}}\n"
        "train: {max_steps: 3}\neval: {steps: 1}\n"
        f"run: {{model_dir: '{tmp_path}/old', seed: 1, save_checkpoints_steps: 100}}\n"
    )
    return path


def values(model_dir):
    """Name as in an Estimator's graph -> value, of the newest checkpoint; without what is not the model's."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    number = {"0": "hidden", "1": "norm", "2": "head"}
    stored = {}
    for key in reader.get_variable_to_shape_map():
        name = re.sub(r"^model/|/\.ATTRIBUTES/VARIABLE_VALUE$", "", key).replace(".S", "/")
        name = re.sub(r"^layer_with_weights-(\d)", lambda match: number[match[1]], name)
        if re.fullmatch("(hidden|dense_of_old|norm|head)/[a-z_]+", name):
            stored[name] = reader.get_tensor(key)
    return stored


def new(tmp_path, *settings, steps=1, warm_start="{tmp_path}/old"):
    return [
        f"run.model_dir={tmp_path}/new", f"train.max_steps={steps}", f"model.optimizer={{{STILL}}}",
        "model.params={classes: 12, momentum: 1.0}", f"run.warm_start_from={warm_start.format(tmp_path=tmp_path)}",
        *settings,
    ]  # fmt: skip


OLD = "model.params={classes: 10, momentum: 0.5}"


def check_values(tmp_path, model_dir="new"):
    old, now = values(tmp_path / "old"), values(tmp_path / model_dir)
    assert {"norm/moving_mean", "norm/moving_variance", "hidden/kernel", "head/kernel"} <= now.keys() & old.keys()
    for name, value in now.items():
        if not name.startswith("head/"):
            np.testing.assert_array_equal(value, old[name], err_msg=name)
    assert now["head/kernel"].shape == (4, 12)


@pytest.mark.parametrize(
    ("engine", "settings"),
    [("estimator", []), ("estimator", MIRRORED), ("keras", []), ("keras", MIRRORED)],
    ids=["estimator", "estimator_mirrored", "keras", "keras_mirrored"],
)
def test_a_new_head(job_file, tmp_path, logged, engine, settings):
    """Weights and moving statistics are the old run's to the last bit; the head, of another shape, is new."""
    run = [f"run.engine={engine}"]
    run_job(load_job(job_file, overrides=[*run, OLD]), environ={})
    run_job(load_job(job_file, overrides=new(tmp_path, *run, *settings)), environ={})
    check_values(tmp_path)
    (line,) = [record.getMessage() for record in logged.records if "Warm start" in record.getMessage()]
    assert "6 of 8 variables take its values" in line
    assert "head/kernel [4, 12], there [4, 10]" in line and "head/bias [12], there [10]" in line
    logged.clear()
    # A resume has its own values, whether or not the old run is still there.
    resumed = new(tmp_path, *run, *settings, steps=2, warm_start="{tmp_path}/gone")
    assert run_job(load_job(job_file, overrides=resumed), environ={}).global_step == 2
    (line,) = [record.getMessage() for record in logged.records if "warm_start_from" in record.getMessage()]
    assert "ignores run.warm_start_from" in line
    check_values(tmp_path)


@pytest.mark.keras_3
def test_a_new_head_with_keras_3(job_file, tmp_path, run_python):
    run = ["run.engine=keras3"]
    asked = [
        [str(job_file), [*run, OLD]],
        [str(job_file), new(tmp_path, *run)],
        [str(job_file), new(tmp_path, *run, *MIRRORED, f"run.model_dir={tmp_path}/mirrored")],
        [str(job_file), new(tmp_path, *run, f"run.model_dir={tmp_path}/none",
                            warm_start="{{path: {tmp_path}/old, variables: [nothing]}}")],
    ]  # fmt: skip
    done = run_python([KERAS3_PROCESS, "jobs"], {"PYTHONPATH": str(ROOT)}, stdin=json.dumps(asked))
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert [result.get("global_step") for result in results] == [3, 1, 1, None], results
    assert results[-1]["exit_code"] == 2 and "hidden/kernel" in results[-1]["error"]
    check_values(tmp_path)
    check_values(tmp_path, "mirrored")


@pytest.mark.cluster
@pytest.mark.gate("keras")
@pytest.mark.parametrize(
    ("engine", "options", "settings"),
    [
        ("estimator", ["--workers", "2"], ["run.train_distribute=multi_worker_mirrored"]),
        ("estimator", ["--workers", "1", "--chief", "--ps", "1"], ["run.train_distribute=parameter_server"]),
        ("keras", ["--workers", "2"], ["run.train_distribute=multi_worker_mirrored"]),
    ],
    ids=["estimator", "estimator_ps", "keras"],
)
def test_a_cluster(job_file, tmp_path, launch, monkeypatch, engine, options, settings):
    """Every worker starts with the values of the checkpoint."""
    monkeypatch.setenv("FIRST_VALUES", str(tmp_path))
    run = [f"run.engine={engine}"]
    run_job(load_job(job_file, overrides=[*run, OLD]), environ={})
    if engine == "keras":
        settings = [*settings, f"keras.callbacks=['{ROOT / 'tests' / 'programs' / 'first_values.py'}:callback']"]
    launch(job_file, *options, settings=new(tmp_path, *run, *settings))
    check_values(tmp_path, "model")
    if engine == "keras":
        first, other = (dict(np.load(tmp_path / f"{task}-0.npz")) for task in (0, 1))
        np.testing.assert_array_equal(first["hidden/kernel"], values(tmp_path / "old")["hidden/kernel"])
        for name, value in first.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_names_and_refusals(job_file, tmp_path, engine, logged):
    """Patterns select, `map` renames; what selects nothing or names nothing is refused with the names of both."""
    run = [f"run.engine={engine}"]
    params = "model.params={classes: 10, momentum: 0.5, hidden: dense_of_old}"
    run_job(load_job(job_file, overrides=[*run, params]), environ={})
    kernel = "map: {{hidden/kernel: dense_of_old/kernel}}"
    for section, code, text in (
        ("{{path: {tmp_path}/old, variables: [body/]}}", "argument/unknown-name", "dense_of_old/"),
        ("{{path: {tmp_path}/old, map: {{hiden/kernel: dense_of_old/kernel}}}}", "argument/unknown-name", "hidden/"),
        ("{{path: {tmp_path}/old, variables: norm, " + kernel + "}}", "argument/unknown-name", "hidden/kernel"),
        ("{tmp_path}/none/model.ckpt-3", "file/not-found", "no checkpoint"),
    ):
        with pytest.raises(ConfigError) as refused:
            run_job(load_job(job_file, overrides=new(tmp_path, *run, warm_start=section)), environ={})
        assert refused.value.code == code and text in str(refused.value) and refused.value.hint
    path = tf.train.latest_checkpoint(str(tmp_path / "old"))
    section = "{{path: " + path + ", variables: [hidden/, norm/gamma], " + kernel + "}}"
    run_job(load_job(job_file, overrides=new(tmp_path, *run, warm_start=section)), environ={})
    old, now = values(tmp_path / "old"), values(tmp_path / "new")
    # Keras stores the first layer without its name.
    kernel = old["hidden/kernel" if engine == "keras" else "dense_of_old/kernel"]
    np.testing.assert_array_equal(now["hidden/kernel"], kernel)
    assert not np.array_equal(now["norm/moving_mean"], old["norm/moving_mean"])
    assert "2 of 8 variables" in logged.text and "not in the checkpoint: hidden/bias" in logged.text
