"""BestExporter over restarts: real Estimators, a new exporter object for each process that would have been started.

`unpatched` runs the same with tf.estimator's own method: the faults are there without the patch. Evaluations are
made once for all tests; a run gets what each gave back, and the event file that it left.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.patches import best_exporter
from tests.support.export_stamps import quick_stamps  # noqa: F401

pytestmark = pytest.mark.usefixtures("quick_stamps")
tf = compat.install()
v1 = tf.compat.v1
best_exporter.apply()
PATCHED = tf.estimator.BestExporter.export
FEATURES = np.arange(8, dtype=np.float32)[:, None]


def model_fn(features, labels, mode, params):
    """One weight, which "training" sets to the next of `params`; the loss is its distance from 0."""
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    step = v1.train.get_or_create_global_step()
    predictions = {"y": features["x"] * weight}
    if mode == tf.estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    values = tf.constant(params["weights"], tf.float32)
    train_op = tf.group(v1.assign(weight, tf.gather(values, step)), v1.assign_add(step, 1))
    return tf.estimator.EstimatorSpec(
        mode,
        # An evaluation ends where its data does, so it has to read them.
        loss=tf.abs(weight) + 0 * tf.reduce_sum(features["x"]),
        train_op=train_op,
        eval_metric_ops={"weight": v1.metrics.mean(weight)},
    )


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": FEATURES}, FEATURES)).batch(8)


def receiver():
    x = v1.placeholder(tf.float32, [None, 1])
    return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


@pytest.fixture
def unpatched(monkeypatch):
    monkeypatch.setattr(tf.estimator.BestExporter, "export", PATCHED.__wrapped__)


LOSSES = [0.5, 0.3, 0.9, 0.7, 0.2]  # of steps 1 to 5


def estimator_in(model_dir):
    config = tf.estimator.RunConfig(str(model_dir), save_checkpoints_steps=1, keep_checkpoint_max=None)
    return tf.estimator.Estimator(model_fn, config=config, params={"weights": LOSSES})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with a checkpoint of each step, and what each evaluates to: step -> metrics, event file."""
    model_dir = tmp_path_factory.mktemp("trained")
    estimator = estimator_in(model_dir)
    estimator.train(lambda: input_fn().repeat(), steps=len(LOSSES))
    evaluated = {}
    for step in range(1, len(LOSSES) + 1):
        checkpoint = str(model_dir / f"model.ckpt-{step}")
        metrics = estimator.evaluate(input_fn, checkpoint_path=checkpoint, name=f"of_{step}")
        v1.summary.FileWriterCache.clear()
        (folder,) = model_dir.glob("eval_*")
        (events,) = folder.rename(tmp_path_factory.mktemp("events") / "eval").iterdir()
        evaluated[step] = metrics, events
    return model_dir, evaluated


class Runs:
    """Processes' worth of evaluation and export in one model directory."""

    def __init__(self, model_dir: Path, evaluated):
        self.model_dir, self.directory = model_dir, model_dir / "export" / "best"
        self.record = model_dir / "export" / "best.best.json"
        self.estimator, self.evaluated = estimator_in(model_dir), evaluated

    def evaluate(self, step, *, name=None):
        """What an evaluation gives back, and leaves in the directory."""
        metrics, events = self.evaluated[step]
        folder = Path(self.estimator.eval_dir(name))
        folder.mkdir(exist_ok=True)
        shutil.copy(events, folder / f"{events.name}.{step}")
        return metrics

    def process(self, *steps, name=None, **options):
        """What a process that evaluates these steps exports: step -> whether."""
        options = {"serving_input_receiver_fn": receiver, **options}
        exporter = tf.estimator.BestExporter("best", **options)
        exported = {}
        for step in steps:
            path = exporter.export(
                estimator=self.estimator,
                export_path=str(self.directory),
                checkpoint_path=str(self.model_dir / f"model.ckpt-{step}"),
                eval_result=self.evaluate(step, name=name),
                is_the_final_export=False,
            )
            exported[step] = path is not None
        return exported

    def on_disk(self):
        """The losses of the exported models, oldest first, read from the SavedModels themselves."""
        found = []
        for path in sorted(p for p in self.directory.iterdir() if p.name.isdigit()):
            reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
            found.append(round(abs(float(reader.get_tensor("weight"))), 3))
        return found


@pytest.fixture
def runs(trained, tmp_path):
    model_dir, evaluated = trained
    shutil.copytree(model_dir, tmp_path, dirs_exist_ok=True)
    return Runs(tmp_path, evaluated)


def test_a_restart_exports_nothing_worse(runs):
    assert runs.process(1, 2, 3) == {1: True, 2: True, 3: False}
    assert runs.process(3, 4) == {3: False, 4: False}, "after a restart 0.3 is still the best"
    assert runs.process(4, 5) == {4: False, 5: True}
    assert runs.on_disk() == [0.5, 0.3, 0.2]
    record = json.loads(runs.record.read_text())
    assert record["exported"]["checkpoint"] == "model.ckpt-5"
    assert {p.name for p in runs.record.parent.iterdir()} == {"best", "best.best.json"}, "no temporary file is left"


def test_without_the_patch_it_does(runs, unpatched):
    runs.process(1, 2, 3)
    assert runs.process(4) == {4: True}
    assert runs.on_disk() == [0.5, 0.3, 0.7]


def test_the_record_is_exact(runs):
    """Metrics come back with their types and to the last bit, arrays and serialized summaries included."""
    metrics = {
        "loss": np.float32(0.1),
        "big": np.float64(1) / 3,
        "global_step": np.int64(2**53 + 1),
        "nan": np.float32("nan"),
        "curve": np.array([[0.1, 0.2]], np.float32),
        "image": b"\x00\xff",
        "flag": np.bool_(True),
        "half": np.float16(0.1),
    }
    record = best_exporter._Record(str(runs.directory))
    (runs.directory / "1700000000").mkdir(parents=True)
    record.begin(metrics, "model.ckpt-1")
    record.finish(b"somewhere/1700000000/")
    back = best_exporter._Record(str(runs.directory)).best(["1700000000"])
    assert list(back) == list(metrics)
    for name, value in metrics.items():
        assert type(back[name]) is type(value), name
        np.testing.assert_array_equal(back[name], value)


def test_exports_to_keep_holds(runs):
    runs.process(1, 2, exports_to_keep=2)
    runs.process(5, exports_to_keep=2)
    assert runs.on_disk() == [0.3, 0.2]
    assert runs.process(4, exports_to_keep=2) == {4: False}


@pytest.mark.parametrize("name", [None, "valid"])
def test_exports_of_an_older_program(runs, monkeypatch, name, warnings):
    """Made without the patch: the event files say how good they are, also those of an evaluation with a name."""
    with monkeypatch.context() as patch:
        patch.setattr(tf.estimator.BestExporter, "export", PATCHED.__wrapped__)
        runs.process(1, 2, name=name)
    assert not runs.record.exists()
    assert runs.process(4, name=name) == {4: False}
    assert runs.process(5, name=name) == {5: True}, "its own result is among the event files already"
    assert not warnings


def test_event_files_with_a_damaged_end(runs, monkeypatch, warnings):
    with monkeypatch.context() as patch:
        patch.setattr(tf.estimator.BestExporter, "export", PATCHED.__wrapped__)
        runs.process(1, 2)
    *_, last = sorted((runs.model_dir / "eval").iterdir())
    with last.open("ab") as file:
        file.write(b"half an event, as of a process that was killed")
    assert runs.process(4) == {4: False}
    assert any("is read up to its damaged part" in text for text in warnings)


def test_nothing_says_how_good_they_are(runs, warnings):
    (runs.directory / "1600000000").mkdir(parents=True)
    assert runs.process(4, 3, event_file_pattern=None) == {4: True, 3: False}
    (text,) = warnings
    assert "The results of the exports" in text and "is exported, whether it is better or not" in text


@pytest.mark.parametrize("damage", ["{", "null", '{"version": 1}', '{"version": 9, "exported": null}'])
def test_a_damaged_record_is_one_warning(runs, warnings, damage):
    runs.process(1, 2)
    runs.record.write_text(damage)
    assert runs.process(4, 5) == {4: False, 5: True}, "the event files are asked instead"
    (text,) = warnings
    assert "best.best.json is damaged and not used" in text and "Delete it" in text
    assert json.loads(runs.record.read_text())["exported"]["checkpoint"] == "model.ckpt-5", "and it is whole again"


def test_died_while_exporting(runs):
    """The model was not exported: the one before it is the best on disk."""

    def fails():
        raise ArithmeticError("planted")

    runs.process(1)
    with pytest.raises(ArithmeticError):
        runs.process(2, serving_input_receiver_fn=fails)
    assert runs.process(2) == {2: True}
    assert runs.on_disk() == [0.5, 0.3]


def test_died_after_exporting(runs, monkeypatch):
    """The model was exported, and the process died before it could say so: the directory says it."""

    def dies(self, path):
        raise KeyboardInterrupt

    runs.process(1)
    with monkeypatch.context() as patch:
        patch.setattr(best_exporter._Record, "finish", dies)
        with pytest.raises(KeyboardInterrupt):
            runs.process(5)
    assert "exporting" in json.loads(runs.record.read_text())
    assert runs.process(2, 4, event_file_pattern=None) == {2: False, 4: False}


def test_exports_that_somebody_deleted_bind_nobody(runs):
    runs.process(1, 2)
    tf.io.gfile.rmtree(str(runs.directory))
    assert runs.process(4) == {4: True}


def test_a_compare_function_of_ones_own(runs, warnings):
    """Other metrics after a restart: what can't be compared is told, not a crash."""

    def heavier(best_eval_result, current_eval_result):
        return current_eval_result["weight"] > best_eval_result["weight"]

    assert runs.process(1, 2, 3, compare_fn=heavier) == {1: True, 2: False, 3: True}
    assert runs.process(4, compare_fn=heavier) == {4: False}

    def other(best_eval_result, current_eval_result):
        return current_eval_result["auc"] > best_eval_result["auc"]

    assert runs.process(4, compare_fn=other, event_file_pattern=None) == {4: True}
    (text,) = warnings
    assert "cannot be compared" in text and "'weight'" in text


NAN = float("nan")


def higher(best_eval_result, current_eval_result):
    return current_eval_result["score"] > best_eval_result["score"]


def scored(runs, **scores):
    """The evaluations with another metric, step_1=... and so on; None: one that gave nothing at all."""
    runs.evaluated = dict(runs.evaluated)
    for name, score in scores.items():
        metrics, events = runs.evaluated[int(name[5:])]
        value = None if score is None else {**metrics, "score": np.float32(score)}
        runs.evaluated[int(name[5:])] = value, events


def test_a_nan_is_never_the_best(runs, warnings):
    """tensorflow#47396, #30276: nothing is greater than NaN, so that as the best so far it would stay that for ever."""
    scored(runs, step_1=NAN, step_2=0.3, step_3=NAN, step_4=0.7, step_5=0.5)
    assert runs.process(1, compare_fn=higher) == {1: False}
    assert runs.process(2, 3, 4, compare_fn=higher) == {2: True, 3: False, 4: True}
    assert runs.process(3, 5, compare_fn=higher) == {3: False, 5: False}
    (text,) = warnings
    assert "model.ckpt-1 is not exported as the best model" in text and "(score)" in text


def test_a_nan_of_an_earlier_version_is_replaced(runs):
    """It was exported and recorded as the best one, which no later result could then be."""
    record = best_exporter._Record(str(runs.directory))
    (runs.directory / "1600000000").mkdir(parents=True)
    record.begin({"loss": np.float32(0.1), "score": np.float32(NAN)}, "model.ckpt-1")
    record.finish(str(runs.directory / "1600000000"))
    scored(runs, step_2=NAN, step_3=0.1, step_4=0.05)
    assert runs.process(2, 3, 4, compare_fn=higher) == {2: False, 3: True, 4: False}


def test_an_evaluation_without_metrics(runs):
    """As in tf.estimator it is exported where nothing has been, and it is no best result."""
    scored(runs, step_1=None, step_3=None)
    assert runs.process(1, 2, 3, 4) == {1: True, 2: True, 3: False, 4: False}
    assert runs.process(3, 5) == {3: False, 5: True}


def test_applied_once():
    best_exporter.apply()
    assert tf.estimator.BestExporter.export is PATCHED
    assert best_exporter.NAME == "best-exporter" and "\n" not in best_exporter.WHAT
