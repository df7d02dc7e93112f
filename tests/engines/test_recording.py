"""The records of two engines held against each other, step by step: from the same values, on the same data."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from estimator_pipeline.cluster import from_environ
from estimator_pipeline.distribute.run_config import build_run_config
from estimator_pipeline.engines.jobs import keras as keras_job
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.keras import backend as keras
from estimator_pipeline.engines.recording import step_recorder as recording
from estimator_pipeline.engines.recording.environment import environment_of
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from estimator_pipeline.parity import Tolerance, compare
from estimator_pipeline.parity.step_records import StepReader, StepWriter
from estimator_pipeline.utils.variable_names import canonical
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

STEPS = 12
ROUNDING = Tolerance(rtol=1e-4, atol=2e-6, reason="sums in another order, over a few steps")
RATE = "{kind: exponential, initial_learning_rate: 0.1, decay_steps: 5, decay_rate: 0.5}"
LOWER = RATE.replace("0.1", "0.001")


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory):
    from estimator_pipeline.inputs.sources.digits import prepare

    folder = tmp_path_factory.mktemp("tfds")
    prepare(str(folder))
    return folder


@pytest.fixture
def job_of(tmp_path, digits_dir):
    def job_of(engine, *settings):
        small = [f"train.max_steps={STEPS}", "run.save_checkpoints_steps=100", f"input.data_dir={digits_dir}"]
        changes = [*small, f"run.model_dir={tmp_path / engine}", f"run.engine={engine}", *settings]
        return load_job(ROOT / "legacy_configs" / "single.yaml", overrides=changes)

    return job_of


def by_keras(job, folder, strategy, *, start=None):
    # Layers are numbered through a process, and each engine has one of its own in a real comparison.
    tf.keras.backend.clear_session()
    plan = keras_job.plan_of(BuiltJob(job), strategy=strategy)
    recorder = [recording.keras_callback(StepWriter(folder), canonical=canonical, start=start)]
    keras.train_and_evaluate(
        dataclasses.replace(plan, callbacks=lambda: recorder), tf_config=from_environ({}), environ={}
    )
    return StepReader(folder)


def by_estimator(job, folder, strategy, *, start):
    built = BuiltJob(job)
    config = build_run_config(job.run.model_dir, train_distribute=strategy or "none", environ={}, seed=1)
    hook = recording.estimator_hook(StepWriter(folder), canonical=canonical, start=start)
    built.estimator(config).train(built.data.train_input_fn, max_steps=STEPS, hooks=[hook])
    return StepReader(folder)


def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())


def test_layers_that_do_not_declare_their_input(job_of, tmp_path):
    """They are built from the data, with any batch size, before anything asks for their variables."""
    (tmp_path / "network.py").write_text(
        "import tensorflow as tf\n\ndef layers():\n"
        "    return tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, name='logits')])\n"
    )
    function = [f"model.function={tmp_path / 'network.py'}:layers", "model.loss=sparse_categorical_crossentropy"]
    job = job_of("keras", "model.name=null", "model.params={}", *function)
    model = keras_job.plan_of(BuiltJob(job)).build_model()
    assert [variable.name for variable in model.weights] == ["logits/kernel:0", "logits/bias:0"]
    assert model.input_shape == (None, 8, 8, 1)


@pytest.mark.gate("dnn-rmsprop-schedule-clipped-2")
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        ["model.name=cnn", "model.optimizer.name=momentum", f"model.optimizer.learning_rate={RATE}"],
        ["model.name=resnet", "model.optimizer={name: adam, learning_rate: 0.001}", "model.params={l2: 0.001}"],
        ["model.name=dnn", f"model.optimizer={{name: rmsprop, learning_rate: {LOWER}}}", "model.clip_norm=0.5"],
    ],
    ids=["cnn-momentum-schedule", "resnet-adam-l2", "dnn-rmsprop-schedule-clipped"],
)
def test_step_by_step(job_of, tmp_path, settings, replicas):
    """Losses, rates, weights, slots and moving statistics after every step."""
    strategy = [mirrored() if replicas == 2 else None for _ in range(2)]
    ours = by_keras(job_of("keras", *settings), tmp_path / "ours", strategy[0])
    start = {name: value for name, value in ours.initial().items() if name != "global_step"}
    theirs = by_estimator(job_of("estimator", *settings), tmp_path / "theirs", strategy[1], start=start)
    assert compare(theirs.initial(), ours.initial()).equal, str(compare(theirs.initial(), ours.initial()))
    assert ours.steps == theirs.steps == list(range(1, STEPS + 1))
    for side in (ours, theirs):
        where = side.environment()
        assert where["replicas"] == replicas and where["tensorflow"] == tf.__version__
        assert where["strategy"] == ("none" if replicas == 1 else "MirroredStrategy")
    assert ours.learning_rates == pytest.approx(theirs.learning_rates, rel=1e-6) and len(ours.learning_rates) == STEPS
    for step in ours.steps:
        found = compare(theirs.variables(step), ours.variables(step), tolerance=ROUNDING, sides=("estimator", "keras"))
        assert found.equal, f"step {step}:\n{found}"
        assert ours.losses[step] == pytest.approx(theirs.losses[step], rel=1e-4), step
    first, last = ours.initial(), ours.variables(STEPS)
    assert all(np.any(first[name] != last[name]) for name in first if "kernel" in name), "it was trained"


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ({"nothing/kernel": np.zeros(3)}, "does not have: nothing/kernel"),
        ({"dense/bias": np.zeros(3)}, "for dense/bias has a different shape"),
    ],
    ids=["name", "shape"],
)
@pytest.mark.parametrize("by", [by_keras, by_estimator], ids=["keras", "estimator"])
def test_values_that_do_not_fit(job_of, tmp_path, by, start, says):
    """Training does not begin; which variables the model has is in the record all the same."""
    with pytest.raises(ConfigError, match=says):
        by(job_of(by.__name__.removeprefix("by_")), tmp_path, None, start=start)
    found = StepReader(next(tmp_path.rglob("initial.npz")).parent)
    assert found.steps == [] and "dense/kernel" in found.initial()


def test_the_environment_tells_what_has_a_say_and_no_secret():
    given = {"TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "2", "TF_TOKEN_registry": "secret", "TF_CONFIG": "{}"}
    found = environment_of(tf, strategy=tf.distribute.get_strategy(), environ=given)
    assert found["variables"] == {"TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "2"}
    assert re.fullmatch(r"(tf_)?keras 2\.\d+\.\d+", found["tf.keras"])
    assert found["devices"] == ["CPU"] and found["cpus"] >= found["cpus of the process"] >= 1
    # Asked for by whoever compares two runs: it is told where it is not set, too.
    bare = environment_of(tf, strategy=tf.distribute.get_strategy(), environ={})
    assert bare["variables"] == {"TF_ENABLE_ONEDNN_OPTS": None}
