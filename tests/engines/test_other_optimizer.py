"""A run that goes on with another optimizer: what fits in the checkpoint is kept to the last bit, the rest begins."""

from __future__ import annotations

import json

import numpy as np
import pytest

from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
FIRST_VALUES = ROOT / "tests" / "programs" / "first_values.py"
WEIGHTS = {"dense/kernel", "dense/bias"}
ACCEPTED = "run.accept_changes=true"
MIRRORED = ["run.train_distribute=mirrored", "run.num_devices=2"]

# Before -> after, what is kept by the names of Keras, and what is new: name of the slot -> its first value. None: the
# weight's.
CASES = {
    "sgd_adam": ("name: sgd", "name: adam", (), {"m": 0, "v": 0}),
    "adam_sgd": ("name: adam", "name: sgd", (), {}),
    "nesterov": ("name: momentum", "name: nesterov", ("momentum",), {}),
    "adamw": ("name: adam", "name: adamw, learning_rate: 0.002", ("m", "v"), {}),
    "keras": ("name: momentum, api: keras", "name: adagrad, api: keras, learning_rate: 0.5", (), {"accumulator": 0.1}),
    "rate": ("name: adam, api: keras", "name: adam, api: keras, learning_rate: 0.5", ("m", "v"), {}),
    "of_another_meaning": ("name: momentum", "name: momentum, api: keras", (), {"momentum": 0}),
    "rmsprop": ("name: momentum, api: keras", "name: rmsprop, options: {momentum: 0.5}", (), {"rms": 1, "momentum": 0}),
    "averages": ("name: momentum", "name: momentum, ema_momentum: 0.5", ("momentum",),
                 {"ExponentialMovingAverage": None}),
    "no_averages": ("name: momentum, ema_momentum: 0.5", "name: momentum", ("momentum",), {}),
    "sums": ("name: momentum", "name: momentum, gradient_accumulation_steps: 3", ("momentum",), {"gradient_sum": 0}),
    "no_sums": ("name: adam, gradient_accumulation_steps: 2", "name: adam", ("m", "v"), {}),
    "all": ("name: sgd", "name: adam, gradient_accumulation_steps: 2, ema_momentum: 0.5", (),
            {"m": 0, "v": 0, "gradient_sum": 0, "ExponentialMovingAverage": None}),
}  # fmt: skip
# What tf.compat.v1.train calls slots, and Keras.
V1_NAMES = {"Adam": "m", "Adam_1": "v", "Momentum": "momentum", "RMSProp": "rms", "RMSProp_1": "momentum"}


@pytest.fixture
def settings(tmp_path, digits_dir, monkeypatch):
    """The settings of a job of an engine, which tells the values that it begins with."""
    monkeypatch.setenv("FIRST_VALUES", str(tmp_path))

    def settings(engine, *more):
        told = [f"keras.callbacks=['{FIRST_VALUES}:callback']"] if engine == "keras" else []
        return [
            *(f"run.model_dir={tmp_path / 'model'}", f"run.engine={engine}", "model.name=linear", "run.seed=1"),
            *(f"input.data_dir={digits_dir}", "run.save_checkpoints_steps=100", "eval.steps=1", *told, *more),
        ]

    return settings


@pytest.fixture
def run(settings):
    def run(engine, optimizer, steps, *more):
        tf.keras.backend.clear_session()  # or the layers of the second one have other names
        changes = [f"model.optimizer={{{optimizer}}}", f"train.max_steps={steps}", *more]
        return run_job(load_job(ROOT / "legacy_configs" / "single.yaml", overrides=settings(engine, *changes)),
                       environ={})  # fmt: skip

    return run


def checkpoint(model_dir, step):
    (path,) = [str(one)[: -len(".index")] for one in model_dir.glob(f"*-{step}.index")]
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def by_one_name(values, engine):
    """Values of a checkpoint by the names that the table has."""
    found = {}
    for name, value in values.items():
        parts = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        if engine == "keras" and parts[0] == "model":
            parts = ["dense", parts[2], *parts[5:]]
        elif engine == "keras3":
            parts = parts[-1].replace(".S", "/").split("/")
        elif "dense" in parts:
            parts = [V1_NAMES.get(part, part) for part in parts[parts.index("dense") :]]
        found["learning_rate" if parts[-1] == "learning_rate" else "/".join(parts)] = value
    return found


def check(before, begun, case, told):
    """What training began with, against the checkpoint; `told` is what was logged."""
    _, after, kept, new = CASES[case]
    names = {name for name in begun if name.rpartition("/")[0] in WEIGHTS}
    assert {name.rpartition("/")[2] for name in names} == {*kept, *new}, "no slot of the optimizer before is left"
    for weight in WEIGHTS:
        np.testing.assert_array_equal(begun[weight], before[weight])
        for slot in kept:
            assert np.any(before[f"{weight}/{slot}"])
            np.testing.assert_array_equal(begun[f"{weight}/{slot}"], before[f"{weight}/{slot}"])
        for slot, value in new.items():
            expected = before[weight] if value is None else np.full_like(before[weight], value)
            np.testing.assert_array_equal(begun[f"{weight}/{slot}"], expected)
    if "learning_rate" in begun and "learning_rate: " in after:
        assert begun["learning_rate"] == np.float32(after.partition("learning_rate: ")[2])
    told_of = [line for line in told.splitlines() if "was written with another optimizer" in line]
    assert len(told_of) == (case not in ("nesterov", "adamw", "rate")), told_of
    for slot in new:
        names = [slot, *(name for name, one in V1_NAMES.items() if one == slot)]
        said = told_of[0].partition("New: ")[2].partition(" Left: ")[0]
        assert any(f"dense/bias/{name}" in said for name in names)


def go_on(run, model_dir, engine, case, *more):
    """The values of the checkpoint that training went on from, and those that it began with."""
    before, after, *_ = CASES[case]
    run(engine, before, 3, *more)
    found = by_one_name(checkpoint(model_dir, 3), engine)
    run(engine, after, 6, ACCEPTED, *more)
    if engine == "estimator":  # it writes a checkpoint when it begins
        return found, by_one_name(checkpoint(model_dir, 3), engine)
    return found, dict(np.load(model_dir.parent / "0-1.npz"))


@pytest.mark.gate("all-estimator", "of_another_meaning-keras")
@pytest.mark.parametrize("engine", ["estimator", "keras"])
@pytest.mark.parametrize("case", CASES)
def test_what_fits_is_kept_and_the_rest_begins(run, tmp_path, logged, engine, case):
    before, begun = go_on(run, tmp_path / "model", engine, case)
    check(before, begun, case, logged.text)
    after = by_one_name(checkpoint(tmp_path / "model", 6), engine)
    assert not np.array_equal(after["dense/bias"], before["dense/bias"]), "it has trained"


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["estimator", "keras"])
@pytest.mark.parametrize("case", ["all", "keras", "of_another_meaning", "rate"])
def test_two_replicas(run, tmp_path, logged, engine, case):
    check(*go_on(run, tmp_path / "model", engine, case, *MIRRORED), case, logged.text)


@pytest.mark.nightly
def test_another_optimizer_is_refused_unless_it_is_accepted(run, tmp_path):
    run("estimator", "name: sgd", 2)
    with pytest.raises(ConfigError, match=r"model.optimizer was sgd \(v1\) and is adam \(v1\)"):
        run("estimator", "name: adam", 4)
    assert not (tmp_path / "model" / "model.ckpt-4.index").exists()


@pytest.mark.nightly
def test_options_that_need_other_slots(run, tmp_path):
    """TensorFlow numbers the slots of RMSProp: the second one is the momentum, or the mean gradient."""
    options = "name: rmsprop, options: {{momentum: 0.5, centered: {}}}".format
    run("estimator", options("false"), 3)
    before = checkpoint(tmp_path / "model", 3)
    with pytest.raises(ConfigError, match=r"it does not have dense/bias/RMSProp_2, dense/kernel/RMSProp_2"):
        run("estimator", options("true"), 5)
    run("estimator", options("true"), 5, ACCEPTED)
    begun = checkpoint(tmp_path / "model", 3)
    np.testing.assert_array_equal(begun["dense/kernel/RMSProp"], before["dense/kernel/RMSProp"])
    assert np.any(before["dense/kernel/RMSProp_1"])
    assert not np.any(begun["dense/kernel/RMSProp_1"]) and not np.any(begun["dense/kernel/RMSProp_2"])


@pytest.mark.nightly
def test_a_run_that_ended_before_its_first_checkpoint(run, settings, tmp_path, logged):
    """The change stays known: what is restored then is still the checkpoint of the optimizer before."""
    path = tmp_path / "model" / "estimator_pipeline" / "identity.json"
    run("keras", "name: momentum", 3)
    before = by_one_name(checkpoint(tmp_path / "model", 3), "keras")
    run("keras", CASES["of_another_meaning"][1], 5, ACCEPTED)
    (change,) = json.loads(path.read_text())["changes"]
    assert change["optimizer"] == {"model.optimizer": ["momentum (v1)", "momentum (keras)"]}
    for file in (tmp_path / "model").glob("ckpt-5.*"):
        file.unlink()
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path / "model"), str(tmp_path / "model" / "ckpt-3"))
    logged.clear()
    run("keras", CASES["of_another_meaning"][1], 5)
    check(before, dict(np.load(tmp_path / "0-2.npz")), "of_another_meaning", logged.text)


@pytest.mark.nightly
@pytest.mark.keras_3
@pytest.mark.parametrize("replicas", [1, 2])
def test_keras_3(run_python, settings, tmp_path, replicas):
    """TensorFlow has Keras 2 or Keras 3 for the whole of a process."""

    def jobs(steps, number, *more):
        where = {case: tmp_path / case / "model" for case in CASES}
        for folder in where.values():
            folder.parent.mkdir(exist_ok=True)
        asked = [
            [str(ROOT / "legacy_configs" / "single.yaml"),
             settings("keras3", f"model.optimizer={{{CASES[case][number]}}}", f"train.max_steps={steps}", *more,
                      f"run.model_dir={folder}", *(MIRRORED if replicas > 1 else ()))]
            for case, folder in where.items()
        ]  # fmt: skip
        done = run_python([KERAS3_PROCESS, "jobs"], stdin=json.dumps(asked), timeout=280,
                          env={"PYTHONPATH": str(ROOT), "FIRST_VALUES": str(tmp_path)})  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert [one.get("error") for one in found] == [None] * len(found)
        return where, done.stderr

    where, _ = jobs(3, 0)
    before = {case: by_one_name(checkpoint(folder, 3), "keras3") for case, folder in where.items()}
    _, told = jobs(5, 1, ACCEPTED)
    for number, (case, folder) in enumerate(where.items(), start=len(CASES)):
        # TensorFlow's logger has a handler of its own, which repeats what is said.
        lines = {line for line in told.splitlines() if str(folder) in line}
        check(before[case], dict(np.load(tmp_path / f"0-{number}.npz")), case, "\n".join(lines))
