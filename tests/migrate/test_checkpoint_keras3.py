"""`migrate checkpoint` to Keras 3 and back: round trips, training that goes on, what Keras 3 itself has saved."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from estimator_pipeline.migrate import migrate_checkpoint
from estimator_pipeline.migrate.checkpoints.read import read_state
from estimator_pipeline.parity.step_records import StepReader
from tests.migrate.test_checkpoint import ROUNDING, trained
from tests.support.migrated_jobs import OPTIMIZERS, assert_same_bits, optimizer, values, write_job
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
pytestmark = pytest.mark.keras_3
GOES_ON = ("adam-v1", "momentum-keras")
NAMED = "model.params={names: true}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("keras3")


@pytest.fixture(scope="module")
def job(folder):
    from estimator_pipeline.inputs.sources.digits import prepare

    prepare(str(folder / "tfds"))
    return write_job(folder, folder / "tfds")


@pytest.fixture(scope="module")
def chosen(request):
    """(name of a test, its case) of what this run asks for."""
    items = [item for item in request.session.items if item.path == request.path]
    params = [item.callspec.params if hasattr(item, "callspec") else {} for item in items]
    return {(item.originalname, *params.values()) for item, params in zip(items, params, strict=True)}


@pytest.fixture(scope="module")
def answers(run_python, folder, job, chosen):
    """All that one process with Keras 3 does for these tests, and no more."""
    everything = (test_what_is_named_for_the_other_keras.__name__,) in chosen
    read = test_a_checkpoint_of_keras_3s_own_is_read_without_its_model.__name__
    asked = [{"programs": [str(folder), *(name for name in SLOTS if everything or (read, name) in chosen)]}]
    back = test_there_and_back_bit_equal.__name__
    on = test_training_goes_on_with_the_same_loss_and_records.__name__
    for case in OPTIMIZERS:
        if {(back, case), (on, case)}.isdisjoint(chosen):
            continue
        first = trained(job, folder / case / "estimator", optimizer(case), NAMED)
        settings = [optimizer(case), NAMED]
        moved = {"source": first, "to": "keras3", "job": str(job), "settings": settings}
        if (back, case) in chosen:
            asked.append({"migrate": {**moved, "output": str(folder / case / "keras3")}})
        if (on, case) in chosen:
            asked.append({"migrate": {**moved, "output": str(folder / case / "on")}})
            changes = [*settings, "run.engine=keras3", f"run.model_dir={folder / case / 'on'}", "train.max_steps=8"]
            asked.append({"train": [str(job), changes, str(folder / case / "record")]})
    done = run_python([ROOT / "tests" / "migrate" / "keras3_migrations.py"], stdin=json.dumps(asked),
                      env={"PYTHONPATH": str(ROOT)}, timeout=280)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    return dict(zip([json.dumps(one) for one in asked], told, strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_there_and_back_bit_equal(answers, folder, job, case):
    """Estimator -> Keras 3 -> Estimator: powers of beta, which Keras 3 does not keep, are worked out again."""
    done = next(told for asked, told in answers.items() if f"{case}/keras3" in asked)
    assert isinstance(done, dict), done
    settings = [optimizer(case), NAMED]
    back = migrate_checkpoint(folder / case / "keras3", to="estimator", job=job, settings=settings,
                              output=folder / case / "back")  # fmt: skip
    assert done["step"] == back.step == 4
    assert_same_bits(values(tf, folder / case / "estimator" / "model.ckpt-4"), values(tf, back.output))
    if case == "adagrad-keras":
        assert any("Keras 3 adds its epsilon under the root" in note for note in done["notes"])


@pytest.mark.nightly
@pytest.mark.parametrize("case", GOES_ON)
def test_training_goes_on_with_the_same_loss_and_records(answers, folder, job, case):
    """The Estimator from step 4 to 8, and Keras 3 from what was migrated: losses, weights and slots, to rounding."""
    assert answers
    import functools

    from estimator_pipeline.engines.recording.step_recorder import StepRecorder
    from estimator_pipeline.parity.step_records import BatchWriter, StepWriter
    from estimator_pipeline.utils.variable_names import canonical

    record = folder / case / "estimator-record"
    shutil.copytree(folder / case / "estimator", folder / case / "same")
    changes = [optimizer(case), NAMED, f"run.model_dir={folder / case / 'same'}", "train.max_steps=8"]
    recording = StepRecorder(writer=functools.partial(StepWriter, record), canonical=canonical,
                          batches=lambda task: BatchWriter(record, task).batch)  # fmt: skip
    run_job(load_job(job, overrides=changes), recording=recording, environ={})
    theirs, ours = StepReader(record), StepReader(folder / case / "record")
    read = [next(iter(one.batches().values()))[:4] for one in (theirs, ours)]
    assert read[0] == read[1] and len(read[0]) == 4
    assert list(theirs.losses) == list(ours.losses) == [5, 6, 7, 8]
    np.testing.assert_allclose(list(ours.losses.values()), list(theirs.losses.values()), **ROUNDING)
    for step in (5, 6, 7, 8):
        left, right = theirs.variables(step), ours.variables(step)
        assert set(left) == set(right)
        for name, value in left.items():
            # Keras 3's is that of the batch, not of the sample; training does not see it.
            if "moving_variance" not in name:
                np.testing.assert_allclose(right[name], value, rtol=2e-5, atol=1e-6, err_msg=f"{name} after {step}")


# Slot of Keras 3 -> the slot here.
SLOTS = {
    "adam": {"momentum": "m", "velocity": "v"},
    "amsgrad": {"momentum": "m", "velocity": "v", "velocity_hat": "vhat"},
    "sgd": {"momentum": "momentum"},
    "rmsprop": {"velocity": "rms", "momentum": "momentum", "average_gradient": "mg"},
    "ftrl": {"accumulator": "accumulator", "linear": "linear"},
}


@pytest.mark.gate("adam", "rmsprop")
@pytest.mark.parametrize("name", SLOTS)
def test_a_checkpoint_of_keras_3s_own_is_read_without_its_model(answers, folder, name):
    """`tf.train.Checkpoint(model=model, optimizer=optimizer)`: every weight and slot, by names that both sides have."""
    assert answers
    state = read_state(str(folder / name))
    with np.load(folder / f"{name}.npz") as saved:
        told = {path.replace("|", "/"): saved[path] for path in saved.files}
    weights = {path.partition("/")[2]: value for path, value in told.items() if path.startswith("sequential")}
    seeds = [path for path in weights if path.endswith("seed_generator_state")]
    for path in seeds:
        del weights[path]
    assert {n: one.value.tobytes() for n, one in state.weights.items()} == {n: v.tobytes() for n, v in weights.items()}
    found = {}
    for weight, slots in state.slots.items():
        for slot, one in slots.items():
            theirs = {ours: theirs for theirs, ours in SLOTS[name].items()}[slot]
            found[f"{weight.replace('/', '_')}_{theirs}"] = one.value.tobytes()
    kept = {}
    for path, value in told.items():
        if not path.startswith("sequential") and path.endswith(tuple(SLOTS[name])):
            # adam/sequential_1_hidden_kernel_momentum
            kept[re.sub(r"^\w+/sequential(_\d+)?_", "", path)] = value.tobytes()
    assert found == kept
    assert set(state.steps.values()) == {2} and state.style in ("keras", None)


@pytest.mark.nightly
def test_what_is_named_for_the_other_keras(answers, folder, job, tmp_path):
    """Functions cannot go to another process; a `.keras` file is of one Keras; names as text are taken along."""
    assert answers
    with pytest.raises(ConfigError, match="name it as text: model="):
        migrate_checkpoint(folder / "adam", to="keras3", model=lambda: None, output=tmp_path / "x")
    with pytest.raises(ConfigError, match=r"(?s)was written by Keras 3.*--to keras3 --model"):
        migrate_checkpoint(
            folder / "ftrl.keras", to="keras", model=lambda: tf.keras.Sequential(), output=tmp_path / "x"
        )
    program = f"{ROOT / 'tests' / 'migrate' / 'keras3_migrations.py'}:model_adam"
    done = migrate_checkpoint(folder / "adam", to="keras3", model=program, output=tmp_path / "adam.keras")
    assert done.step == 2 and (tmp_path / "adam.keras").exists()
    with pytest.raises(ConfigError, match="optimizer is rmsprop"):
        migrate_checkpoint(folder / "rmsprop", to="keras3", model=program, output=tmp_path / "x")
