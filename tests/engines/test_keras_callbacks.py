"""Callbacks of `Model.fit`, from job files and by themselves: checkpoints, backups, the learning rate."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.engines.keras_common import callbacks as keras_callbacks
from estimator_pipeline.engines.keras_common.backup import Backup
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from estimator_pipeline.models.optimizers.inspection import step_of
from estimator_pipeline.utils.logger import logger
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
JOB = ROOT / "legacy_configs" / "single.yaml"
SMALL = ["run.engine=keras", "run.seed=3", "train.max_steps=20", "run.save_checkpoints_steps=10"]
TWO_WORKERS = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory):
    from estimator_pipeline.inputs.sources.digits import prepare

    folder = tmp_path_factory.mktemp("tfds")
    prepare(str(folder))
    return folder


@pytest.fixture
def run(tmp_path, digits_dir):
    def run(*settings, folder="model"):
        small = [*SMALL, "model.name=linear", f"run.model_dir={tmp_path / folder}"]
        changes = [*small, f"input.data_dir={digits_dir}", *settings]
        return run_job(load_job(JOB, overrides=changes), environ={})

    return run


@pytest.fixture
def said():
    """Lines of the log."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def variables(model_dir):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    return {n: reader.get_tensor(n) for n, shape in reader.get_variable_to_shape_map().items() if shape}


def names(folder):
    return sorted(path.name.removesuffix(".index") for path in Path(folder).glob("*.index"))


def small_model(rate=0.5, **options):
    model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(2,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.legacy.SGD(rate, momentum=0.5), "mse", **options)
    return model


def small_data():
    return tf.data.Dataset.from_tensor_slices((np.ones([24, 2], np.float32), np.ones([24], np.float32))).batch(4)


# Checkpoints ---------------------------------------------------------------------------------------------------


def test_k9_m3_model_checkpoint_beside_the_engines(run, tmp_path):
    """Named by epoch, with weights that are those of the engine's checkpoint of the same step."""
    run("keras.model_checkpoint={}", "run.save_checkpoints_steps=5", "model.name=cnn")
    folder = tmp_path / "model" / "model_checkpoints"
    assert names(folder) == ["ckpt_1", "ckpt_2", "ckpt_3", "ckpt_4"]
    assert names(tmp_path / "model") == ["ckpt-10", "ckpt-15", "ckpt-20", "ckpt-5"]
    assert tf.train.latest_checkpoint(str(tmp_path / "model")).endswith("ckpt-20")
    for epoch, step in ((1, 5), (4, 20)):
        ours = tf.train.load_checkpoint(str(tmp_path / "model" / f"ckpt-{step}"))
        theirs = tf.train.load_checkpoint(str(folder / f"ckpt_{epoch}"))
        kernels = [n for n in theirs.get_variable_to_shape_map() if n.endswith("kernel/.ATTRIBUTES/VARIABLE_VALUE")]
        assert len(kernels) >= 3
        for name in kernels:
            np.testing.assert_array_equal(theirs.get_tensor(name), ours.get_tensor(f"model/{name}"), err_msg=name)


def test_k9_m3_epochs_go_on_after_a_restart(run, tmp_path):
    settings = ["keras.model_checkpoint={}", "run.save_checkpoints_steps=5"]
    run(*settings, "train.max_steps=10")
    before = (tmp_path / "model" / "model_checkpoints" / "ckpt_2.index").stat().st_mtime_ns
    run(*settings)
    folder = tmp_path / "model" / "model_checkpoints"
    assert names(folder) == ["ckpt_1", "ckpt_2", "ckpt_3", "ckpt_4"]
    assert (folder / "ckpt_2.index").stat().st_mtime_ns == before, "written by the first run alone"


@pytest.mark.nightly
def test_k9_the_best_alone_is_saved(run, tmp_path):
    path = f"{tmp_path}/best/{{epoch}}_{{val_accuracy:.4f}}"
    best = f"keras.model_checkpoint={{save_best_only: true, monitor: val_accuracy, path: '{path}'}}"
    result = run(best, "model.name=cnn", "run.save_checkpoints_steps=2", "eval.during_training=true")
    accuracies = [e.metrics["accuracy"] for e in result.evaluations]
    # Of 360 records each epoch evaluates all.
    rising = [f"{i}_{a:.4f}" for i, a in enumerate(accuracies, 1) if a > max([0, *accuracies[: i - 1]])]
    assert names(tmp_path / "best") == sorted(rising) and 1 < len(rising) < 10


@pytest.mark.parametrize(
    ("monitor", "settings", "says"),
    [
        ("val_acuracy", ["eval.during_training=true"], "did you mean 'val_accuracy'?"),
        ("acuracy", ["eval.during_training=false"], "did you mean 'accuracy'?"),
        ("F1", [], "values: loss, average_loss, accuracy"),
    ],
)
def test_the_best_by_a_value_that_there_is_not(run, tmp_path, monitor, settings, says):
    """It is refused before anything is trained."""
    with pytest.raises(ConfigError, match=f"monitor is '{monitor}', and no such value") as told:
        run(f"keras.model_checkpoint={{save_best_only: true, monitor: {monitor}}}", *settings)
    assert says in str(told.value)
    assert not [*tmp_path.glob("model/**/*ckpt*")]


@pytest.mark.nightly
def test_a_value_that_a_callback_of_ones_own_might_add(run, tmp_path):
    """Then it is seen at an epoch's end whether it does."""
    (tmp_path / "own_adding.py").write_text(ADDING)
    best = "keras.model_checkpoint={save_best_only: true, monitor: MONITOR, mode: max}"
    own = f"keras.callbacks=[{tmp_path}/own_adding.py:make]"
    with pytest.raises(ConfigError, match="'f2', and the epoch has no such value") as told:
        run(best.replace("MONITOR", "f2"), own)
    assert "accuracy" in str(told.value)


ADDING = """
import tensorflow as tf

class Adding(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["f1"] = float(epoch)

def make():
    return Adding()
"""


def test_d3_each_so_many_batches_and_after_a_restart_at_the_same_steps(run, tmp_path):
    settings = ["keras.chief_checkpoint={every: 4}", "run.save_checkpoints_steps=5"]
    run(*settings, "train.max_steps=10")
    folder = tmp_path / "model" / "chief_checkpoints"
    assert names(folder) == ["ckpt_4", "ckpt_8"]
    run(*settings)
    assert names(folder) == ["ckpt_12", "ckpt_16", "ckpt_20", "ckpt_4", "ckpt_8"]


def test_d3_the_weights_and_the_optimizer_come_back(tmp_path):
    model = small_model()
    callback = ep.callbacks.chief_checkpoint(str(tmp_path / "w" / "{epoch}"), environ={})
    model.fit(small_data(), epochs=2, verbose=0, callbacks=[callback])
    assert names(tmp_path / "w") == ["1", "2"]
    other = small_model()
    other.load_weights(tf.train.latest_checkpoint(str(tmp_path / "w"))).expect_partial()
    other.fit(small_data(), epochs=1, verbose=0)
    model.fit(small_data(), epochs=1, verbose=0)
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert int(other.optimizer.iterations) == 18


def test_d3_several_steps_in_one_call(tmp_path):
    model = small_model(steps_per_execution=3)
    model.fit(small_data(), epochs=2, verbose=0, callbacks=[
        ep.callbacks.chief_checkpoint(str(tmp_path / "{step}"), every=4, environ={})
    ])  # fmt: skip
    # Between the calls, after the steps 4 and 8 and at 12.
    assert names(tmp_path) == ["12", "6", "9"]


def test_d3_a_worker_keeps_nothing(tmp_path):
    """This process as the second of two workers: it writes beside the chief's files, and removes it."""
    written = []

    class Model(tf.keras.Sequential):
        def save_weights(self, path, *args, **kwargs):
            super().save_weights(path, *args, **kwargs)
            written.append((path, Path(f"{path}.index").is_file()))

    model = Model([tf.keras.layers.InputLayer(input_shape=(2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    environ = {"TF_CONFIG": json.dumps(TWO_WORKERS)}
    callback = ep.callbacks.chief_checkpoint(str(tmp_path / "w" / "{epoch}"), environ=environ)
    model.fit(small_data(), verbose=0, callbacks=[callback])
    assert written == [(f"{tmp_path}/w/tmp_worker_1/1", True)]
    assert list((tmp_path / "w").iterdir()) == []


# The learning rate ---------------------------------------------------------------------------------------------


def test_m3_the_rate_by_epoch_is_printed(run, said):
    run(
        "keras.learning_rate_by_epoch={boundaries: [1, 3], values: [0.1, 0.01, 0.001]}",
        "keras.print_learning_rate=true",
        "run.save_checkpoints_steps=5",
    )
    rates = [line for line in said if line.startswith("Learning rate")]
    expected = ((1, 0.1), (2, 0.01), (3, 0.01), (4, 0.001))
    assert rates == [f"Learning rate for epoch {n} is {rate}" for n, rate in expected]


@pytest.mark.nightly
def test_m3_the_rate_of_an_epoch_is_the_same_after_a_restart(run, tmp_path):
    settings = ["keras.learning_rate_by_epoch={boundaries: [1, 3], values: [0.1, 0.01, 0.001]}"]
    settings += ["run.save_checkpoints_steps=5", "model.optimizer.name=momentum"]
    run(*settings, folder="whole")
    run(*settings, "train.max_steps=10", folder="parts")
    run(*settings, folder="parts")
    whole, parts = variables(tmp_path / "whole"), variables(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_m3_the_rate_is_said_by_the_chief_alone(capsys):
    for environ in ({"TF_CONFIG": json.dumps(TWO_WORKERS)}, {}):
        rate = tf.keras.optimizers.schedules.ExponentialDecay(0.5, 6, 0.5)
        small_model(rate).fit(
            small_data(), epochs=2, verbose=0, callbacks=[ep.callbacks.print_learning_rate(environ=environ)]
        )
        expected = "Learning rate for epoch 1 is 0.25\nLearning rate for epoch 2 is 0.125\n"
        assert capsys.readouterr().out == ("" if environ else expected)


# Backups -------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """What ends a run in its middle."""


def killed(run, monkeypatch, *settings, at):
    """A run in the folder "parts" that is killed after the step `at`."""

    def killed_at(max_steps, *, start_step):
        class Kill(tf.keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if step_of(self.model) == at:
                    raise Killed

        return Kill()

    with monkeypatch.context() as patched:
        patched.setattr("estimator_pipeline.engines.keras_common.training.stop_callback", killed_at)
        with pytest.raises(Killed):
            run(*settings, folder="parts")


@pytest.mark.parametrize(
    ("checkpoint", "max_steps", "epoch_steps", "goes_on_from"),
    [(10, 20, 5, 12), (10, None, 5, 12), (12, 20, 5, None), (15, 20, 5, None), (10, 12, 5, None), (10, 20, 2, None)],
)
def test_which_backup_is_gone_on_from(tmp_path, checkpoint, max_steps, epoch_steps, goes_on_from):
    """One of step 12, the second of its epoch: later than the checkpoint, before the end, within an epoch."""
    optimizer = tf.train.Checkpoint(iter=tf.Variable(12))
    saved = tf.train.Checkpoint(model=tf.train.Checkpoint(optimizer=optimizer), ckpt_saved_batch=tf.Variable(2))
    tf.train.CheckpointManager(saved, str(tmp_path / "chief"), max_to_keep=1).save()
    found = Backup(folder=str(tmp_path)).step_after(checkpoint, max_steps=max_steps, epoch_steps=epoch_steps)
    assert found == goes_on_from


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("every", "at", "goes_on_from"), [("3", 8, 6), ("epoch", 18, 10), ("5", 10, 10), ("4", 19, 16), ("7", 12, 10)]
)
def test_k8_a_run_goes_on_from_its_backup(run, tmp_path, monkeypatch, every, at, goes_on_from):
    """Killed after the step `at`: the second run begins at the newest of backup and checkpoint, and ends bit-equal."""
    settings = [f"keras.backup={{every: {every}}}", "model.name=resnet", "model.optimizer.name=momentum"]
    run(*settings, folder="whole")
    assert not (tmp_path / "whole" / "backup" / "chief").exists(), "Keras removes it when all went well"
    killed(run, monkeypatch, *settings, at=at)
    second = run(*settings, folder="parts")
    assert second.tasks["worker:0"].steps == 20 - goes_on_from
    assert names(tmp_path / "parts") == names(tmp_path / "whole") == ["ckpt-10", "ckpt-20"]
    whole, parts = variables(tmp_path / "whole"), variables(tmp_path / "parts")
    assert whole.keys() == parts.keys() and any("OPTIMIZER_SLOT" in name for name in whole)
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)
    assert not (tmp_path / "parts" / "backup" / "chief").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("cut", [0, 100, -1])
def test_k8_a_damaged_backup_is_left_for_the_checkpoint(run, tmp_path, monkeypatch, said, cut):
    settings = ["keras.backup={every: 3}"]
    run(*settings, folder="whole")
    killed(run, monkeypatch, *settings, at=14)
    (data,) = (tmp_path / "parts" / "backup" / "chief").glob("*.data-*")
    data.write_bytes(data.read_bytes()[:cut])
    second = run(*settings, folder="parts")
    assert second.tasks["worker:0"].steps == 10, "from the checkpoint of step 10, not from the backup of step 12"
    assert any("is damaged" in line and "is not used" in line for line in said)
    whole, parts = variables(tmp_path / "whole"), variables(tmp_path / "parts")
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_k8_a_backup_at_the_end_of_an_epoch_whose_checkpoint_is_missing(run, tmp_path, monkeypatch):
    """Killed between the two: the checkpoint is made first of all, before training goes on."""
    settings = ["keras.backup={every: 5}"]
    run(*settings, folder="whole")

    def fails(*args, **kwargs):
        callback = keras_callbacks.checkpoint_callback(*args, **kwargs)

        def on_epoch_end(epoch, logs=None):
            raise Killed

        callback.on_epoch_end = on_epoch_end
        return callback

    with monkeypatch.context() as patched:
        patched.setattr("estimator_pipeline.engines.keras_common.training.checkpoint_callback", fails)
        with pytest.raises(Killed):
            run(*settings, folder="parts")
    assert names(tmp_path / "parts") == []
    assert run(*settings, folder="parts").tasks["worker:0"].steps == 10
    assert names(tmp_path / "parts") == ["ckpt-10", "ckpt-20"]
    for step in (10, 20):
        whole, parts = (tf.train.load_checkpoint(str(tmp_path / f / f"ckpt-{step}")) for f in ("whole", "parts"))
        for name in whole.get_variable_to_shape_map():
            if "kernel" in name:
                np.testing.assert_array_equal(parts.get_tensor(name), whole.get_tensor(name), err_msg=name)


# Callbacks of one's own, and mistakes --------------------------------------------------------------------------

OWN = """
import tensorflow as tf

class Count(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with open({path!r}, "a") as file:
            file.write(f"{{epoch}} {{int(self.model.optimizer.iterations)}}\\n")

def one():
    return Count()

def several():
    return [Count(), Count()]

def none():
    return "callback"

def nothing():
    pass

def the_class():
    return Count

def needs(path):
    return Count()

def raises():
    return {{}}["gone"]
"""


def test_own_callbacks(run, tmp_path):
    (tmp_path / "own.py").write_text(OWN.format(path=str(tmp_path / "seen")))
    run(f"keras.callbacks=['{tmp_path}/own.py:one', '{tmp_path}/own.py:several']")
    assert (tmp_path / "seen").read_text() == "0 10\n" * 3 + "1 20\n" * 3
    with pytest.raises(ConfigError, match="did not return callbacks"):
        run(f"keras.callbacks=['{tmp_path}/own.py:none']", "train.max_steps=30")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", ["did not return callbacks", "found: None", "return a tf.keras.callbacks.Callback"]),
        ("the_class", ["did not return callbacks", "found: the class Count, and not an object of it"]),
        (
            "needs",
            ["own_bad.py:needs is called without arguments", "found: needs(path)", "give each parameter a default"],
        ),
        ("raises", ["own_bad.py:raises fails: KeyError: 'gone'", 'line 28: return {}["gone"]']),
    ],
)
def test_own_callbacks_that_are_none(run, tmp_path, name, says):
    """Before the first step: nothing is written."""
    (tmp_path / "own_bad.py").write_text(OWN.format(path=str(tmp_path / "seen")))
    with pytest.raises(ConfigError) as error:
        run(f"keras.callbacks=['{tmp_path}/own_bad.py:{name}']")
    assert "keras.callbacks: " in str(error.value) and all(one in str(error.value) for one in says)
    assert not (tmp_path / "seen").exists() and not names(tmp_path / "model")


@pytest.mark.parametrize(
    ("settings", "names_one", "values"),
    [
        (["path: 'X/{nope}'"], "{nope}", "values: epoch, loss, average_loss, accuracy, val_loss, val_average_loss"),
        (["path: 'X/{epoch}_{val_acuracy:.2f}'"], "{val_acuracy}", "val_accuracy"),
        (["path: 'X/{val_loss}'", "every: 5"], "{val_loss}", "values: epoch, batch, loss, average_loss, accuracy"),
        (["path: 'X/{lr}'"], "{lr}", "values: epoch, loss"),
    ],
)
def test_a_path_that_names_a_value_that_is_not_there(run, tmp_path, settings, names_one, values):
    section = ", ".join(settings).replace("X", str(tmp_path / "best"))
    with pytest.raises(ConfigError, match="and no such value is logged when it is saved") as error:
        run(f"keras.model_checkpoint={{{section}}}")
    assert f"names {names_one}" in error.value.what and values in error.value.found
    assert not names(tmp_path / "model")


def test_a_path_of_values_that_are_there(run, tmp_path, warnings):
    path = f"{tmp_path}/best/{{epoch:02d}}_{{val_accuracy:.1f}}_{{average_loss:.0f}}_{{lr}}"
    rate = "keras.learning_rate_by_epoch={boundaries: [1], values: [0.0, 0.0]}"
    run(f"keras.model_checkpoint={{path: '{path}'}}", rate, "eval.during_training=true")
    found = names(tmp_path / "best")
    assert len(found) == 2 and found[0].startswith("01_0.") and found[0].endswith("_0.0")
    assert not [line for line in warnings if "overwrites the previous one" in line]


def test_one_file_for_all_saves_is_said_once(run, tmp_path, warnings):
    path = tmp_path / "newest" / "ckpt"
    run(f"keras.model_checkpoint={{path: '{path}'}}")
    assert names(path.parent) == ["ckpt"]
    told = [line for line in warnings if "overwrites the previous one" in line]
    assert told == [
        f"keras.model_checkpoint.path is {path}, without {{epoch}}: each save overwrites the previous one, and only "
        "the newest is kept"
    ]


def test_an_empty_folder_of_backups_is_taken_away(run, tmp_path):
    run("keras.backup={every: 5}", "train.max_steps=10")
    assert not (tmp_path / "model" / "backup").exists()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "README").write_text("a person's")
    run(f"keras.backup={{every: 5, dir: {tmp_path}/kept}}", "train.max_steps=20")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["README"]


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("model_checkpoint={path: 'a/{}'}", "this path cannot be formatted: a field in braces has no name"),
        ("model_checkpoint={path: 'a/{0}'}", "a field in braces has no name"),
        ("model_checkpoint={path: 'a/{epoch'}", "this path cannot be formatted"),
        ("model_checkpoint={path: 'a/{epoch:zz}'}", "this path cannot be formatted"),
        ("model_checkpoint={path: 'a/{epoch.nothing}'}", "this path cannot be formatted"),
        ("model_checkpoint={path: 'a/{step}'}", "{step} is not available for this path"),
        ("model_checkpoint={path: 'a/{batch}'}", "{batch} is not available for this path"),
        ("chief_checkpoint={path: 'a/{batch}'}", "allowed: {epoch}, {step}"),
        ("chief_checkpoint={path: 'a/{loss}'}", "{loss} is not available for this path"),
    ],
)
def test_paths_are_looked_at_when_the_job_is_loaded(section, says):
    with pytest.raises(ConfigError) as error:
        load_job(JOB, overrides=[*SMALL, f"keras.{section}"])
    assert says in str(error.value) and ".path: " in str(error.value) and "hint: " in str(error.value)
    for good in ("model_checkpoint={path: 'a/{batch:03d}', every: 5}", "chief_checkpoint={path: 'a/{step}_{epoch}'}"):
        load_job(JOB, overrides=[*SMALL, f"keras.{good}"])


def test_the_engine_estimator_says_that_the_section_means_nothing_there(run, warnings):
    run("run.engine=estimator", "train.max_steps=2", "keras.print_learning_rate=true", "keras.backup={every: 3}")
    told = [line for line in warnings if "section keras" in line]
    assert told == ["The engine estimator ignores the section keras: backup, print_learning_rate"]


BAD = [
    (lambda c: c.chief_checkpoint("a/{batch}"), ["the field {batch}", "{epoch} and {step}"]),
    (lambda c: c.chief_checkpoint("a", every=0), ["every is 0", "1 or more"]),
    (lambda c: c.model_checkpoint("a", every="batch"), ["every is 'batch'", "'epoch'"]),
    (lambda c: c.learning_rate_by_epoch(boundaries=[3, 1], values=[1, 2, 3]), ["increasing boundaries", "[3, 1]"]),
    (lambda c: c.learning_rate_by_epoch(boundaries=[3], values=[1]), ["one value more", "values [1.0]"]),
]


@pytest.mark.parametrize(("call", "fragments"), BAD)
def test_bad_arguments(call, fragments):
    with pytest.raises(ConfigError) as told:
        call(ep.callbacks)
    for fragment in fragments:
        assert fragment in str(told.value)


def test_a_rate_by_epoch_and_a_schedule_by_step():
    model = small_model(tf.keras.optimizers.schedules.ExponentialDecay(0.5, 6, 0.5))
    with pytest.raises(ConfigError, match="ExponentialDecay"):
        callback = ep.callbacks.learning_rate_by_epoch(boundaries=[1], values=[1, 2])
        model.fit(small_data(), verbose=0, callbacks=[callback])
