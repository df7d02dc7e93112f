"""Training that comes to NaN: an error that names the step, in every engine, and no checkpoint of what is left."""

from __future__ import annotations

import functools
import json
import re

import numpy as np
import pytest

from estimator_pipeline.engines.estimator import backend as estimator_engine
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.engines.keras_common import callbacks as keras_callbacks
from estimator_pipeline.engines.keras_common import training as keras_training
from estimator_pipeline.engines.keras_common.backup import Backup
from estimator_pipeline.errors import DivergedError
from estimator_pipeline.job import load_job
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
JOB = ROOT / "legacy_configs" / "single.yaml"
# At this rate the weights of a linear model are no numbers any more after a handful of steps.
WILD = ["model.name=linear", "model.optimizer={name: sgd, learning_rate: 1.0e+38}", "train.max_steps=40",
        "eval.during_training=false"]  # fmt: skip


@pytest.fixture
def diverge(tmp_path, digits_dir):
    """`diverge(engine, every)`: the error of a job that diverges, with a checkpoint each `every` steps."""

    def diverge(engine, every, *settings):
        changes = [*WILD, f"run.engine={engine}", f"run.save_checkpoints_steps={every}"]
        changes += [f"run.model_dir={tmp_path}/model", f"input.data_dir={digits_dir}", *settings]
        job = load_job(JOB, overrides=changes)
        with pytest.raises(DivergedError) as caught:
            run_job(job, environ={"ESTIMATOR_PIPELINE_PROGRESS": str(tmp_path / "worker-0.progress.jsonl")})
        assert caught.value.exit_code == 3
        assert caught.value.hint
        assert caught.value.found == "all training records are finite; no numbers are far from 0"
        return str(caught.value).splitlines()[0]

    return diverge


@pytest.fixture
def reads_the_loss(monkeypatch):
    """`reads_the_loss(seconds)`: how often a Keras job does so. Once a second, what it has come to by then is luck."""

    def reads_the_loss(seconds):
        callback = functools.partial(keras_callbacks.progress_callback, interval_secs=seconds)
        monkeypatch.setattr(keras_training, "progress_callback", callback)

    return reads_the_loss


def finite(path):
    reader = tf.train.load_checkpoint(path)
    values = [reader.get_tensor(n) for n, kind in reader.get_variable_to_dtype_map().items() if kind.is_floating]
    assert len(values) >= 2
    return all(np.isfinite(value).all() for value in values)


def checkpoints(tmp_path):
    return tf.train.get_checkpoint_state(str(tmp_path / "model")).all_model_checkpoint_paths


@pytest.mark.gate("strategy0-estimator", "strategy1-keras")
@pytest.mark.parametrize("engine", ["estimator", "keras"])
@pytest.mark.parametrize("strategy", [["run.train_distribute=none"],
                                      ["run.train_distribute=mirrored", "run.num_devices=2"]])  # fmt: skip
def test_no_checkpoint_of_nan_is_written(diverge, reads_the_loss, tmp_path, engine, strategy):
    """A checkpoint is due just when the weights are no finite numbers any more."""
    reads_the_loss(1e6)
    said = diverge(engine, 1, *strategy)
    assert re.fullmatch(
        r"training has diverged: after step \d+ the variable dense\S*/kernel\S* .*\[training/diverged\]", said
    )
    step = int(said.partition("after step ")[2].split()[0])
    assert checkpoints(tmp_path)[-1].endswith(f"-{step - 1}"), "all steps before have theirs"
    assert all(finite(path) for path in checkpoints(tmp_path))


@pytest.mark.nightly
def test_an_estimator_without_the_look_would_write_one(diverge, tmp_path, monkeypatch):
    """The fault planted: tf.estimator saves before it looks at the loss."""
    monkeypatch.setattr(estimator_engine, "finite_listener", lambda check: tf.compat.v1.train.CheckpointSaverListener())
    assert "the loss of step " in diverge("estimator", 1)
    assert not finite(checkpoints(tmp_path)[-1])


@pytest.mark.nightly
def test_a_keras_job_without_the_look_would_write_one(diverge, reads_the_loss, tmp_path, monkeypatch):
    reads_the_loss(1e6)
    monkeypatch.setattr(keras_training, "check_finite", lambda model, step: None)
    diverge("keras", 1)
    assert not finite(checkpoints(tmp_path)[-1])


def test_the_step_of_a_nan_loss_is_named(diverge, tmp_path):
    """It is the step whose weights are NaN, or the one after: the same event, seen in two ways."""
    loss = int(diverge("estimator", 1000).removeprefix("training has diverged: the loss of step ").split()[0])
    events = [json.loads(line) for line in (tmp_path / "worker-0.progress.jsonl").read_text().splitlines()]
    assert (events[-1]["event"], events[-1]["status"]) == ("end", "diverged")
    weights = diverge("estimator", 1, "run.model_dir=" + str(tmp_path / "other"))
    assert int(weights.removeprefix("training has diverged: after step ").split()[0]) in (loss - 1, loss)


def test_a_loss_that_is_no_number_ends_model_fit(diverge, reads_the_loss, tmp_path):
    reads_the_loss(0.0)
    assert re.fullmatch(r"training has diverged: by step \d the loss is (inf|nan) .*", diverge("keras", 1000))
    assert not list((tmp_path / "model").glob("ckpt-*"))
    # Keras has told its TensorBoard callback nothing of it, which had a condition on every event of this thread.
    with tf.summary.create_file_writer(str(tmp_path / "events")).as_default():
        assert tf.summary.should_record_summaries()
    assert tf.summary.experimental.get_step() is None


def test_no_run_goes_on_from_a_backup_of_nan(diverge, reads_the_loss, tmp_path):
    """Keras backs up each step here, also those after the first NaN, before the loss is read again."""
    reads_the_loss(1e6)
    diverge("keras", 1000, "keras.backup={every: 1}")
    folder = tmp_path / "model" / "backup"
    assert not finite(tf.train.latest_checkpoint(str(folder / "chief")))
    assert Backup(folder=str(folder), every=1).step_after(0, max_steps=None, epoch_steps=1000) is None


@pytest.mark.nightly
@pytest.mark.keras_3
def test_keras_3_on_the_command_line(run_python, tmp_path):
    changes = [
        x for s in [*WILD, "run.save_checkpoints_steps=1", f"run.model_dir={tmp_path}/model"] for x in ("--set", s)
    ]
    done = run_python(["-m", "estimator_pipeline", "train", JOB, "--engine", "keras3", "--quiet", *changes])
    assert done.returncode == 3, done.stderr[-3000:]
    # At the checkpoint; or, on a machine that takes seconds for a step, where the loss is read in between.
    assert re.search(r"error: training has diverged: (after step|by step) \d", done.stderr), done.stderr[-3000:]
    assert checkpoints(tmp_path) and all(finite(path) for path in checkpoints(tmp_path))


def test_checkpoints_are_told_as_they_come(tmp_path, digits_dir):
    for engine in ("estimator", "keras"):
        progress = tmp_path / f"{engine}.progress.jsonl"
        settings = ["train.max_steps=20", "run.save_checkpoints_steps=10", "model.name=linear", f"run.engine={engine}",
                    f"run.model_dir={tmp_path / engine}", f"input.data_dir={digits_dir}"]  # fmt: skip
        run_job(load_job(JOB, overrides=settings), environ={"ESTIMATOR_PIPELINE_PROGRESS": str(progress)})
        events = [json.loads(line) for line in progress.read_text().splitlines()]
        kinds = [event["event"] for event in events]
        assert kinds.index("start") < kinds.index("trained") < kinds.index("result")
        told = [event["step"] for event in events if event["event"] == "checkpoint"]
        # An Estimator's are looked for once a second, the final one after training.
        assert told == [10, 20] or (engine == "estimator" and told == [20])
