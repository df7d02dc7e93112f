"""The Keras engine in one process: the Estimator engine's numbers, checkpoints, resume, exports, the end of data."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from estimator_pipeline.results.comparison import compare_runs
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
JOB = ROOT / "legacy_configs" / "single.yaml"
SMALL = ["train.max_steps=20", "run.save_checkpoints_steps=10", "run.log_step_count_steps=10"]


@pytest.fixture
def run(tmp_path, digits_dir):
    def run(*settings, folder="model", job=JOB, environ=None):
        changes = [*SMALL, f"run.model_dir={tmp_path / folder}", *settings]
        if job is JOB:
            changes[:0] = ["model.name=linear", f"input.data_dir={digits_dir}"]
        return run_job(load_job(job, overrides=changes), environ={} if environ is None else environ)

    return run


def variables(model_dir, prefix=""):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    names = [n for n, shape in reader.get_variable_to_shape_map().items() if n.startswith(prefix) and shape]
    return {name: reader.get_tensor(name) for name in names}


@pytest.mark.gate("cnn-mirrored")
@pytest.mark.parametrize("strategy", ["none", "mirrored"])
@pytest.mark.parametrize("model", ["cnn", "resnet"])
def test_m1_k1_the_estimators_numbers(run, tmp_path, model, strategy):
    """The same job by both engines: every evaluation, and every number of the final model, whatever it is called."""
    settings = [f"model.name={model}", f"run.train_distribute={strategy}", "run.seed=3", "run.save_summary_steps=10"]
    if strategy == "mirrored":
        settings.append("run.num_devices=2")
    theirs = run(*settings, folder="estimator")
    ours = run(*settings, "run.engine=keras", folder="keras")
    assert [e.global_step for e in ours.evaluations] == [e.global_step for e in theirs.evaluations] == [10, 20]
    for one, other in zip(ours.evaluations, theirs.evaluations, strict=True):
        assert one.metrics["average_loss"] == pytest.approx(other.metrics["average_loss"], rel=1e-5)
        assert one.metrics["accuracy"] == other.metrics["accuracy"]
    keras, estimator = variables(tmp_path / "keras", "model/"), variables(tmp_path / "estimator")
    assert sorted(total(keras)) == pytest.approx(
        sorted(total({n: v for n, v in estimator.items() if "Momentum" not in n})), rel=1e-3, abs=1e-4
    )
    assert ours.tasks == theirs.tasks and ours.ended == theirs.ended
    # What `compare` reads afterwards, without TensorFlow.
    compared = compare_runs([str(tmp_path / folder) for folder in ("estimator", "keras")]).runs
    assert {kept_run.settings["run.engine"] for kept_run in compared} == {"estimator", "keras"}
    assert all(set(kept_run.settings) == {"run.engine"} for kept_run in compared)
    for kept_run in compared:
        outcome = ours if kept_run.run.engine == "keras" else theirs
        for evaluation in outcome.evaluations:
            numbers = {name: value for name, value in evaluation.metrics.items() if name != "global_step"}
            assert kept_run.run.evaluations[evaluation.global_step] == pytest.approx(numbers, rel=1e-6)
        assert kept_run.run.step == kept_run.evaluated == 20 and len(kept_run.run.losses) == 2


def total(values):
    """The sum of each array, whatever its name; those of a step counter left out."""
    return [float(np.sum(v)) for n, v in values.items() if v.ndim and "SLOT" not in n]


@pytest.mark.gate("resnet")
@pytest.mark.parametrize("model", ["cnn", "resnet"])
def test_k8_k11_a_resumed_run_ends_bit_equal(run, tmp_path, model):
    """Stopped at 10 and gone on to 20, against 20 at once: weights, momentum, moving statistics."""
    settings = ["run.engine=keras", "run.seed=3", f"model.name={model}", "model.optimizer.name=momentum"]
    run(*settings, folder="whole")
    run(*settings, "train.max_steps=10", folder="parts")
    second = run(*settings, folder="parts")
    assert second.tasks["worker:0"].steps == 10
    whole, parts = variables(tmp_path / "whole"), variables(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)
    assert any("OPTIMIZER_SLOT" in name for name in whole)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_a_finished_job_does_not_export_again(engine, run, tmp_path):
    """Not the same checkpoint, that is; what was removed comes back, and other signatures are another export."""
    exporters = "eval.exporters=[{kind: final}, {kind: latest, exports_to_keep: 2}]"
    settings = [f"run.engine={engine}", "train.max_steps=4", exporters]

    def there():
        folders = (tmp_path / "model" / "export" / name for name in ("final", "latest"))
        return [sorted(path.name for path in folder.iterdir() if path.is_dir()) for folder in folders]

    first = run(*settings)
    once = there()
    assert [len(names) for names in once] == [1, 1]
    again = run(*settings)
    assert there() == once and again.exporters == first.exporters and again.metrics == first.metrics
    shutil.rmtree(first.exporters["final"])
    anew = run(*settings)
    assert [len(names) for names in there()] == [1, 1] and os.path.isdir(anew.exporters["final"])
    assert anew.exporters["latest"] == first.exporters["latest"]
    changed = run(*settings, "model.export.signatures=[predict, classify]")
    assert [len(names) for names in there()] == [2, 2]
    assert "classification" in tf.saved_model.load(changed.exporters["final"]).signatures
    further = run(f"run.engine={engine}", "train.max_steps=6", exporters)
    assert [len(names) for names in there()] == [3, 2] and further.global_step == 6
    (tmp_path / "model" / "export" / "final.last.json").write_text("{torn")
    run(f"run.engine={engine}", "train.max_steps=6", exporters)
    assert [len(names) for names in there()] == [4, 2]


def test_a_run_that_is_done_trains_no_more(run):
    first = run("run.engine=keras")
    again = run("run.engine=keras")
    assert again.tasks["worker:0"].steps == 0 and again.global_step == 20
    assert again.metrics["accuracy"] == first.metrics["accuracy"]


def test_k12_k9_checkpoints_are_kept_as_asked(run, tmp_path):
    run("run.engine=keras", "run.save_checkpoints_steps=5", "run.keep_checkpoint_max=2")
    assert sorted(path.name for path in (tmp_path / "model").glob("ckpt-*.index")) == ["ckpt-15.index", "ckpt-20.index"]


def test_m3_m6_summaries_and_schedule(run, tmp_path):
    """The chief's TensorBoard run has the loss of training, the validation's, and the evaluations.

    These whatever steps of training are recorded: 10 and 20 are no multiples of 7.
    """
    rate = "{kind: exponential, initial_learning_rate: 0.5, decay_steps: 5, decay_rate: 0.5}"
    run("run.engine=keras", f"model.optimizer.learning_rate={rate}", "run.save_summary_steps=7")
    found, rates = {}, {}
    for file in (tmp_path / "model").rglob("events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found.setdefault(f"{file.parent.name}/{value.tag}", []).append(event.step)
                if "learning_rate" in value.tag:
                    rates[event.step] = float(tf.make_ndarray(value.tensor))
    # After epochs of 10 steps: 0.5 halved twice, and four times.
    assert rates == pytest.approx({0: 0.125, 1: 0.03125})
    assert {"train/epoch_loss", "validation/epoch_accuracy", "eval/accuracy"} <= set(found), sorted(found)
    assert found["eval/accuracy"] == [10, 20]


def test_summaries_of_a_resumed_run_go_by_the_global_step(run, tmp_path):
    """At the multiples of 4, with several steps at a time; `Model.fit` by itself would count from 1 once more."""
    settings = ["run.engine=keras", "run.save_summary_steps=4", "run.save_checkpoints_steps=100", "model.name=linear",
                "train.steps_per_execution=3", "run.histograms=[weights, gradients]"]  # fmt: skip
    for steps in (6, 14):
        tf.keras.backend.clear_session()  # or the layers of the second one have other names
        run(*settings, f"train.max_steps={steps}")
    found = {}
    for file in sorted((tmp_path / "model" / "train").iterdir(), key=lambda file: file.stat().st_mtime_ns):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    shown = {
        "batch_loss",
        *(f"{kind}/dense/{name}" for kind in ("weights", "gradients") for name in ("kernel", "bias")),
    }
    assert {tag: steps for tag, steps in found.items() if tag in shown} == {tag: [4, 8, 12] for tag in shown}


def test_each_engine_refuses_the_others_checkpoints(run):
    run("run.engine=keras", "train.max_steps=2", folder="a")
    with pytest.raises(ConfigError, match="cannot resume from a checkpoint of the Keras engine"):
        run(folder="a")
    run("train.max_steps=2", folder="b")
    with pytest.raises(ConfigError, match="cannot resume from an Estimator's checkpoint"):
        run("run.engine=keras", folder="b")


def test_a_checkpoint_of_another_model(run):
    run("run.engine=keras", "train.max_steps=2", "model.name=dnn")
    other = ("run.engine=keras", "model.name=dnn", "model.params={hidden_units: [3, 3]}")
    with pytest.raises(ConfigError, match=r"model.params.hidden_units was not given and is \[3, 3\]"):
        run(*other)
    with pytest.raises(ConfigError, match=r"ckpt-2 is not this model's") as told:
        run(*other, "run.accept_changes=true")
    assert "a different model_dir" in str(told.value)


@pytest.mark.gate("[predict, classify]")
@pytest.mark.parametrize("signatures", ["[predict]", "[predict, classify]"])
def test_exports_answer_as_the_estimators_do(run, signatures):
    """K10: the same signatures, inputs and outputs; the same answers where the weights are the same."""
    settings = [
        "model.name=linear", "run.seed=1", f"model.export.signatures={signatures}",
        "eval.exporters=[{kind: final}, {kind: best, metric: accuracy, mode: max}]",
    ]  # fmt: skip
    theirs, ours = run(*settings, folder="estimator"), run(*settings, "run.engine=keras", folder="keras")
    assert set(ours.exporters) == {"final", "best"}
    one, other = (tf.saved_model.load(r.exporters["final"]) for r in (ours, theirs))
    assert set(one.signatures) == set(other.signatures)
    pixels = np.random.default_rng(1).random((3, 8, 8, 1)).astype(np.float32)
    for key in one.signatures:
        function, expected = one.signatures[key], other.signatures[key]
        (name, spec), *rest = function.structured_input_signature[1].items()
        assert list(expected.structured_input_signature[1]) == [name] and not rest
        given = tf.constant(pixels)
        if spec.dtype == tf.string:
            feature = {"image": tf.train.Feature(float_list=tf.train.FloatList(value=pixels[0].ravel()))}
            record = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
            given = tf.constant([record])
        answers, wanted = function(**{name: given}), expected(**{name: given})
        assert set(answers) == set(wanted), key
        for output, value in wanted.items():
            if value.dtype == tf.string:
                assert answers[output].numpy().tolist() == value.numpy().tolist()
            else:
                np.testing.assert_allclose(answers[output], value, rtol=1e-4, atol=1e-5)


def test_moving_averages_are_evaluated_and_exported(run, tmp_path):
    """Both engines evaluate them at each checkpoint and export them, and train as without them."""
    optimizer = "model.optimizer={name: momentum, learning_rate: 0.05%s}"
    settings = ["model.name=linear", "run.seed=1", "eval.exporters=[{kind: final}]"]
    theirs, ours, plain = (
        run(*settings, optimizer % more, f"run.engine={engine}", folder=folder)
        for folder, engine, more in (
            ("estimator", "estimator", ", ema_momentum: 0.9"), ("keras", "keras", ", ema_momentum: 0.9"),
            ("plain", "keras", ""),
        )
    )  # fmt: skip
    for one, other, raw in zip(ours.evaluations, theirs.evaluations, plain.evaluations, strict=True):
        assert one.metrics["average_loss"] == pytest.approx(other.metrics["average_loss"], rel=1e-3)
        assert one.metrics["average_loss"] > raw.metrics["average_loss"] + 0.05, "they come behind"
    keras = variables(tmp_path / "keras", "model/")
    for name, value in variables(tmp_path / "plain", "model/").items():
        np.testing.assert_array_equal(keras[name], value, err_msg=name)
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "estimator")))
    kernel, bias = (reader.get_tensor(f"dense/{part}/ExponentialMovingAverage") for part in ("kernel", "bias"))
    pixels = np.random.default_rng(1).random((3, 8, 8, 1)).astype(np.float32)
    wanted = pixels.reshape(3, 64) @ kernel + bias
    for result in (theirs, ours):
        function = tf.saved_model.load(result.exporters["final"]).signatures["predict"]
        (name,) = function.structured_input_signature[1]
        answers = function(**{name: tf.constant(pixels)})
        np.testing.assert_allclose(answers["logits"], wanted, rtol=1e-3, atol=1e-3)
    whole = ep.load_keras_model(str(tmp_path / "keras" / "model.keras"))
    np.testing.assert_allclose(whole(pixels), wanted, rtol=1e-3, atol=1e-3)
    with pytest.raises(ConfigError, match=r"model\.optimizer keeps averages was true and is false"):
        run(*settings, optimizer % "", "train.max_steps=30", folder="estimator")


@pytest.mark.nightly
def test_a_job_of_several_labels(run, tmp_path):
    """Metrics of both engines, and what both exports answer."""
    random = np.random.default_rng(5)
    image = random.random((96, 8, 8, 1), np.float32)
    tags = np.stack([image.mean((1, 2, 3)) > 0.5, image[:, 0, 0, 0] > 0.3, image[:, 7, 7, 0] > 0.6], 1).astype(np.int64)
    file = str(tmp_path / "tags.npz")
    np.savez(file, image=image, tags=tags)
    job = {
        "name": "tags",
        "model": {
            "name": "linear", "params": {"classes": 3}, "loss": "binary_crossentropy", "head": "multi_label",
            "metrics": ["accuracy", "precision", "recall", "auc"], "export": {"signatures": ["classify"]},
            "optimizer": {"name": "momentum", "learning_rate": 0.1, "warmup_steps": 5},
        },
        "input": {"source": "arrays", "train": file, "eval": file, "label_key": "tags", "global_batch_size": 32},
        "train": {"max_steps": 20},
        "eval": {"exporters": [{"kind": "final"}]},
        "run": {"seed": 1},
    }  # fmt: skip
    (tmp_path / "tags.yaml").write_text(json.dumps(job))
    theirs, ours = (run(f"run.engine={engine}", folder=engine, job=tmp_path / "tags.yaml")
                    for engine in ("estimator", "keras"))  # fmt: skip
    for name in ("average_loss", "accuracy", "precision", "recall", "auc"):
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=1e-5), name
    feature = {"features": tf.train.Feature(float_list=tf.train.FloatList(value=image[0].ravel()))}
    record = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    scores = []
    for result in (ours, theirs):
        loaded = tf.saved_model.load(result.exporters["final"])
        assert set(loaded.signatures) == {"classification", "serving_default"}
        scores.append(loaded.signatures["classification"](inputs=tf.constant([record]))["scores"].numpy())
    np.testing.assert_allclose(*scores, rtol=1e-5)
    assert scores[0].shape == (1, 3)


@pytest.mark.nightly
def test_a_job_with_weights_of_records_and_classes(run, tmp_path):
    """Both engines train to the same weights and count the metrics alike; also the workers' own evaluation."""
    random = np.random.default_rng(5)
    file = str(tmp_path / "weighted.npz")
    image = random.random((96, 8, 8, 1), np.float32)
    label = (image.mean((1, 2, 3)) * 40).astype(np.int64) % 3
    np.savez(file, image=image, label=label, weight=random.random(96) * 2)
    job = {
        "model": {
            "name": "cnn", "class_weights": {"1": 5.0}, "params": {"classes": 3}, "optimizer": {"name": "momentum"},
        },
        "input": {"source": "arrays", "train": file, "eval": file, "weight_key": "weight", "global_batch_size": 32,
                  "eval_batch_size": 20},
        "train": {"max_steps": 20},
        "run": {"seed": 1, "train_distribute": "mirrored", "num_devices": 2},
    }  # fmt: skip
    (tmp_path / "weighted.yaml").write_text(json.dumps(job))
    without = _without_weight(file)
    runs = {
        "estimator": ["run.engine=estimator"],
        "keras": ["run.engine=keras"],
        "during": ["run.engine=keras", "eval.during_training=true", "run.save_checkpoints_steps=10"],
        "plain": ["run.engine=keras", "input.weight_key=null", f"input.train={without}", f"input.eval={without}"],
    }
    found = [run(*more, folder=folder, job=tmp_path / "weighted.yaml") for folder, more in runs.items()]
    theirs, ours, during, plain = (one.metrics for one in found)
    for name in ("average_loss", "accuracy"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
        assert during[name] == pytest.approx(theirs[name], rel=1e-5), name
    assert plain["average_loss"] != pytest.approx(theirs["average_loss"], rel=1e-3), "the weights matter"


def _without_weight(file):
    with np.load(file) as arrays:
        rest = {name: arrays[name] for name in arrays.files if name != "weight"}
    np.savez(file.replace("weighted", "plain"), **rest)
    return file.replace("weighted", "plain")


def test_m4_m5_k11_the_keras_file_trains_on(run, tmp_path):
    """Loaded, it evaluates to what the job said, and trains on to what the job comes to that goes on: bit-equal."""
    settings = ("run.engine=keras", "model.name=cnn", "model.optimizer.name=momentum")
    result = run(*settings)
    path = tmp_path / "model" / "model.keras"
    assert str(path) in result.exports
    model = ep.load_keras_model(str(path))
    data = ep.inputs.from_tfds("digits", data_dir=str(digits_of(tmp_path)), global_batch_size=64, scale=1 / 16, seed=1)
    found = model.evaluate(data.eval_input_fn(), return_dict=True, verbose=0)
    assert found["average_loss"] == pytest.approx(result.metrics["average_loss"], rel=1e-5)
    assert int(model.optimizer.iterations) == 20
    model.fit(data.train_input_fn().skip(20).take(6), verbose=0)
    run(*settings, "train.max_steps=26")
    further = ep.load_keras_model(str(path))
    assert int(further.optimizer.iterations) == int(model.optimizer.iterations) == 26
    for one, other in zip(everything(model), everything(further), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.name)


def everything(model):
    return [*model.variables, *model.optimizer.variables()]


def digits_of(tmp_path):
    from estimator_pipeline.inputs.sources.digits import prepare

    prepare(str(tmp_path / "tfds"))
    return tmp_path / "tfds"


OWN = """
import tensorflow as tf

def layers(params):
    return tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(3,)), tf.keras.layers.Dense(1)])

def data(input_context=None, batches=7):
    features = tf.random.stateless_uniform([batches * 4, 3], [1, 2])
    dataset = tf.data.Dataset.from_tensor_slices((features, tf.reduce_sum(features, axis=1))).batch(4)
    return dataset.filter(lambda *pair: True) if batches == 5 else dataset

def model_fn(features, labels, mode):
    raise NotImplementedError
"""


@pytest.fixture
def own_job(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    job = tmp_path / "job.yaml"
    job.write_text(
        json.dumps(
            {
                "model": {"function": f"{tmp_path}/own.py:layers", "loss": "mse"},
                "input": {
                    "source": "function",
                    "train": f"{tmp_path}/own.py:data",
                    "eval": f"{tmp_path}/own.py:data",
                    "global_batch_size": 4,
                },
                "run": {"model_dir": "m", "engine": "keras", "save_checkpoints_steps": 3},
            }
        )
    )
    return job


def test_data_that_end(run, own_job):
    """Seven batches and no max_steps: a checkpoint every three steps, and one at the end."""
    settings = ["train.max_steps=null", "run.save_checkpoints_steps=3"]
    result = run(*settings, job=own_job)
    assert (result.global_step, result.ended) == (7, "data ended")
    assert [e.global_step for e in result.evaluations] == [3, 6, 7]


def test_under_a_strategy_the_number_of_batches_must_be_known(run, own_job):
    settings = ["run.eval_distribute=mirrored", "run.num_devices=2", "input.params={batches: 5}"]
    with pytest.raises(ConfigError, match="the number of batches of the input function") as told:
        run(*settings, "run.train_distribute=mirrored", job=own_job)
    assert "eval.steps" in str(told.value)


def test_a_model_fn_is_none_of_keras(run, own_job):
    with pytest.raises(ConfigError, match="is a model_fn, and Keras trains layers"):
        run(f"model.function={Path(own_job).parent}/own.py:model_fn", job=own_job)


def test_parameter_servers_are_refused_with_the_line(run):
    with pytest.raises(ConfigError, match="does not support the Estimator's training with parameter servers"):
        run("run.engine=keras", "run.train_distribute=parameter_server", "cluster.ps=1")


def test_an_evaluation_of_some_batches(run):
    """`validation_steps` of `Model.fit`: `eval.steps`."""
    keras = ["run.engine=keras", "model.name=linear", "eval.during_training=true"]
    whole, some = run(*keras, folder="whole"), run(*keras, "eval.steps=2", folder="some")
    assert len(some.evaluations) == len(whole.evaluations) > 1
    assert some.metrics["average_loss"] != whole.metrics["average_loss"]
