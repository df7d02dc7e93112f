"""The Keras 3 engine in one process: resume, checkpoints, summaries, exports, `.keras` files, errors, optimizers.

TensorFlow has Keras 2 or Keras 3 for the whole of a process, and this one has Keras 2: jobs run in others, several in
one where they can (tests/support/keras3_process.py).
"""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from estimator_pipeline.engines.jobs import keras as keras_job
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.job import load_job
from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
from estimator_pipeline.models.optimizers.spec import NAMES, Optimizer
from tests.models.test_histograms import entries
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
JOB = ROOT / "legacy_configs" / "single.yaml"
SMALL = ["train.max_steps=20", "run.save_checkpoints_steps=10", "run.log_step_count_steps=10", "run.engine=keras3"]
MIRRORED = ["run.train_distribute=mirrored", "run.num_devices=2"]


@pytest.fixture(scope="module")
def process(run_python):
    def process(what, asked):
        done = run_python([KERAS3_PROCESS, what], stdin=json.dumps(asked),
                          env={"PYTHONPATH": str(ROOT)}, timeout=200)  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        process.told = done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return process


@pytest.fixture
def run(process, tmp_path, digits_dir):
    """`run([folder, *settings], ...)`: jobs in one process with Keras 3, a result for each."""

    def run(*jobs, job=JOB):
        own = [] if job is not JOB else [f"input.data_dir={digits_dir}"]
        found = process("jobs", asked(job, tmp_path, *([folder, *own, *rest] for folder, *rest in jobs)))
        run.told = process.told
        return found

    return run


def asked(job, where, *jobs):
    return [[str(job), [*SMALL, f"run.model_dir={where / folder}", *rest]] for folder, *rest in jobs]


HALVED = "{kind: exponential, initial_learning_rate: 0.5, decay_steps: 5, decay_rate: 0.5}"
OFTEN = ["run.save_checkpoints_steps=5", "run.keep_checkpoint_max=2", "run.save_summary_steps=5",
         "eval.during_training=true", f"model.optimizer.learning_rate={HALVED}"]  # fmt: skip
CLIPPED = ["model.name=dnn", "model.optimizer={name: momentum, learning_rate: 0.5}", "model.clip_norm=0.5",
           "train.max_steps=4"]  # fmt: skip
HALVES = ["model.optimizer.gradient_accumulation_steps=2", "input.global_batch_size=32", "train.max_steps=8"]


@pytest.fixture(scope="module")
def in_one_process(process, digits_dir, tmp_path_factory):
    """The folder of the jobs of several tests, and what came of each."""
    where, own = tmp_path_factory.mktemp("jobs"), f"input.data_dir={digits_dir}"
    jobs = [
        ("model", *OFTEN),
        ("model", *OFTEN),
        ("one", *CLIPPED),
        ("two", *CLIPPED, *MIRRORED),
        ("part", *CLIPPED, "train.max_steps=2"),
        ("part", *CLIPPED),
        ("halves", *CLIPPED, *MIRRORED, *HALVES),
    ]
    return where, process("jobs", asked(JOB, where, *([folder, own, *rest] for folder, *rest in jobs)))


def variables(model_dir, step=20):
    reader = tf.train.load_checkpoint(str(model_dir / f"keras3-{step}"))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(("model/", "optimizer/"))]
    return {name.partition("/.ATTRIBUTES")[0].replace(".S", "/"): reader.get_tensor(name) for name in names}


@pytest.mark.nightly
@pytest.mark.keras_3
def test_a_resumed_run_ends_bit_equal(run, tmp_path):
    """Stopped at 10 and gone on to 20, against 20 at once: weights, momentum, moving statistics, seeds of dropout.

    What a job says of Keras 2's backups counts for nothing: one was made, restored beside the checkpoint and its step,
    and the run went on from the backup's weights with the checkpoint's data.
    """
    kinds = {
        "cnn": ["model.optimizer.name=momentum", "keras.backup={every: 3}"],
        "dropout": ["model.name=dnn", "model.params={dropout: 0.3}", "model.optimizer={name: adam, api: keras}"],
        "mirrored": ["model.name=resnet", *MIRRORED, "model.optimizer.name=momentum"],
        "mirrored-dropout": ["model.name=dnn", "model.params={dropout: 0.3}", *MIRRORED],
    }
    jobs = []
    for kind, settings in kinds.items():
        jobs += [(f"{kind}-whole", *settings), (f"{kind}-parts", "train.max_steps=10", *settings),
                 (f"{kind}-parts", *settings)]  # fmt: skip
    results = run(*jobs)
    for number, kind in enumerate(kinds):
        whole, first, second = results[3 * number : 3 * number + 3]
        assert [r["tasks"]["worker:0"]["steps"] for r in (whole, first, second)] == [20, 10, 10], kind
        one, other = variables(tmp_path / f"{kind}-whole"), variables(tmp_path / f"{kind}-parts")
        assert one.keys() == other.keys() and one["optimizer/iter"] == 20
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value, err_msg=f"{kind}: {name}")
    assert not [*tmp_path.rglob("backup")] and "section keras: backup" in run.told
    assert "optimizer/conv2d/kernel/momentum" in variables(tmp_path / "cnn-whole")
    assert "model/batch_normalization/moving_mean" in variables(tmp_path / "mirrored-whole")
    seeds = [v for n, v in variables(tmp_path / "dropout-whole").items() if "seed" in n]
    assert len(seeds) == 2 and all(seed[1] == 20 for seed in seeds), "dropout was drawn in each of the steps"


@pytest.mark.nightly
@pytest.mark.keras_3
def test_what_a_job_says_of_keras_2_is_not_in_the_plan(digits_dir, tmp_path):
    """A run that ends by itself removes its backups, so that no file of them would show."""
    own = [f"input.data_dir={digits_dir}", f"run.model_dir={tmp_path}", "keras.backup={every: 3}"]
    job = load_job(JOB, overrides=[*SMALL, *own])
    built = BuiltJob(job)
    assert keras_job.plan_of(built).backup is None
    # That of Keras 2 has them from its own run: see tests/engines/test_keras_callbacks.py.


@pytest.mark.keras_3
def test_two_replicas_make_the_steps_of_one_and_a_resumed_run_goes_on(in_one_process):
    """Clipped: it is the gradient of all replicas that has the norm."""
    where, _ = in_one_process
    one, two, resumed = (variables(where / folder, step=4) for folder in ("one", "two", "part"))
    assert one.keys() == two.keys() == resumed.keys() and any(name.startswith("optimizer/") for name in one)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=0, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    halves = variables(where / "halves", step=8)
    for name in (name for name in one if name.startswith("model/")):
        np.testing.assert_allclose(halves[name], one[name], rtol=0, atol=1e-5, err_msg=f"added up: {name}")


@pytest.mark.keras_3
def test_checkpoints_summaries_and_a_run_that_is_done(in_one_process):
    where, (first, again, *_) = in_one_process
    assert [e["global_step"] for e in first["evaluations"]] == [5, 10, 15, 20]
    assert first["ended"] == "max_steps reached" and first["evaluated_by"] == "worker:0"
    assert first["tasks"]["worker:0"] == {"steps": 20, "records": 1280}
    assert again["tasks"]["worker:0"]["steps"] == 0 and again["metrics"] == first["metrics"]
    model = where / "model"
    assert sorted(path.name for path in model.glob("*.index")) == ["keras3-15.index", "keras3-20.index"]
    found = {}
    for file in sorted(model.rglob("events.out.tfevents.*"), key=lambda file: file.stat().st_mtime_ns):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                key = f"{file.parent.name}/{value.tag}"
                found.setdefault(key, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    assert [step for step, _ in found["train/loss"]] == [5, 10, 15, 20]
    # The rate of the step to come: halved every five.
    assert [value for _, value in found["train/learning_rate"]] == pytest.approx([0.25, 0.125, 0.0625, 0.03125])
    assert {step for step, _ in found["eval/accuracy"]} == {5, 10, 15, 20}


@pytest.mark.nightly
@pytest.mark.keras_3
def test_histograms_are_those_of_the_other_engines(run, tmp_path):
    """Of weights and gradients, on one replica and two, clipped; a run that is resumed goes on with the same ones."""
    settings = ["model.name=dnn", "run.seed=3", "run.save_summary_steps=1", "train.max_steps=5",
                "run.histograms=[weights, gradients]", "model.clip_norm=0.1"]  # fmt: skip
    run(("one", *settings), ("mirrored", *settings, *MIRRORED), ("parts", *settings, "train.max_steps=3"),
        ("parts", *settings, "train.steps_per_execution=2"))  # fmt: skip
    for engine in ("estimator", "keras"):
        for name, more in (("one", []), ("mirrored", MIRRORED)):
            folder = f"run.model_dir={tmp_path}/{engine}-{name}"
            tf.keras.backend.clear_session()  # or the layers of the next one have other names
            job = load_job(JOB, overrides=[*SMALL, *settings, *more, f"run.engine={engine}", folder])
            run_job(job, environ={})
    wanted = entries(tmp_path / "estimator-one")
    assert len(wanted) == 5 * 2 * 6
    for name in ("estimator-mirrored", "keras-one", "keras-mirrored", "one", "mirrored", "parts"):
        found = {(step, tag.replace("/sequential", "")): seen for (step, tag), seen in entries(tmp_path / name).items()}
        assert found.keys() == wanted.keys(), name
        for key, seen in wanted.items():
            np.testing.assert_allclose(found[key], seen, rtol=1e-3, atol=1e-5, err_msg=f"{name}: {key}")


@pytest.mark.nightly
@pytest.mark.keras_3
def test_exports_and_the_keras_file(run, run_python, tmp_path):
    """SavedModels that plain TensorFlow serves; the best one over a restart; a `.keras` file that plain Keras reads."""
    exporters = "eval.exporters=[{kind: final}, {kind: latest, exports_to_keep: 1}, {kind: best, metric: average_loss}]"
    settings = ["model.export.signatures=[predict, classify]", exporters, "eval.during_training=true",
                "model.optimizer={name: sgd, learning_rate: 0.1}"]  # fmt: skip
    # A rate that makes all worse: the second run has no better model than the first.
    worse = "model.optimizer={name: sgd, learning_rate: 100.0}"
    first, second = run(("model", *settings), ("model", *settings, "train.max_steps=40", worse))
    assert set(first["exporters"]) == {"final", "latest", "best"}
    assert second["metrics"]["average_loss"] > first["metrics"]["average_loss"]
    assert "best" not in second["exporters"], "a worse model is not exported over a better one"
    export = tmp_path / "model" / "export"
    assert [len(list((export / name).iterdir())) for name in ("final", "latest", "best")] == [2, 1, 2]
    best = json.loads((export / "best.best.json").read_text())
    assert best["metrics"]["average_loss"] == first["metrics"]["average_loss"]

    served = tf.saved_model.load(first["exporters"]["best"])
    assert set(served.signatures) == {"serving_default", "predict", "classification"}
    pixels = np.random.default_rng(1).random((8, 8, 1)).astype(np.float32)
    feature = {"image": tf.train.Feature(float_list=tf.train.FloatList(value=pixels.ravel()))}
    record = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    answer = served.signatures["predict"](image=tf.constant(pixels[None]))
    assert answer["logits"].shape == (1, 10) and answer["classes"].dtype == tf.string
    scores = served.signatures["classification"](inputs=tf.constant([record]))["scores"]
    np.testing.assert_allclose(scores, answer["probabilities"], rtol=1e-6)

    # The first run's model was trained for 20 steps; the file is the last one's. No package of ours is imported.
    code = """
import sys, numpy as np, keras
model = keras.saving.load_model(sys.argv[1])
assert "estimator_pipeline" not in sys.modules
logits = model(np.load(sys.argv[2])[None])
print(int(model.optimizer.iterations), type(model.optimizer).__name__, model.loss.name, model.layers[-1].name)
np.save(sys.argv[3], logits)
"""
    np.save(tmp_path / "pixels.npy", pixels)
    file = second["exports"][-1]
    assert file == str(tmp_path / "model" / "model.keras")
    done = run_python(["-c", code, file, tmp_path / "pixels.npy", tmp_path / "logits.npy"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["40", "SGD", "sparse_categorical_crossentropy", "dense_1"]
    final = tf.saved_model.load(second["exporters"]["final"]).signatures["predict"]
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), final(image=tf.constant(pixels[None]))["logits"],
                               rtol=1e-5, atol=1e-6)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.keras_3
def test_each_engine_refuses_the_others_checkpoints(run, run_python, tmp_path):
    own = [str(JOB), "--set", "train.max_steps=2", "--set", f"run.model_dir={tmp_path / 'two'}", "--engine", "keras"]
    assert run_python(["-m", "estimator_pipeline", "train", *own]).returncode == 0
    two, three, other = run(
        ("two",), ("three", "train.max_steps=2", "model.name=dnn"),
        ("three", "model.name=dnn", "model.params={hidden_units: [3, 3]}", "run.accept_changes=true"),
    )  # fmt: skip
    assert two["error"].startswith("the Keras 3 engine cannot resume from a checkpoint of the Keras engine")
    assert three["global_step"] == 2
    assert "keras3-2 is not this model's" in other["error"] and "a different model_dir" in other["error"]
    own[4] = f"run.model_dir={tmp_path / 'three'}"
    for engine, name in (("keras", "Keras"), ("estimator", "Estimator")):
        done = run_python(["-m", "estimator_pipeline", "train", *own[:-1], engine])
        assert done.returncode == 2
        assert f"error: the {name} engine cannot resume from a checkpoint of the Keras 3 engine" in done.stderr


OWN = """
import tensorflow as tf

def layers(params):
    if params.get("subclass"):
        return Own()
    # Nothing says what they take in: it is seen from the data.
    return tf.keras.Sequential([tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)])

class Own(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = tf.keras.layers.Dense(1)

    def call(self, features):
        return self.inner(features)

def data(input_context=None, batches=7):
    features = tf.random.stateless_uniform([batches * 4, 3], [1, 2])
    return tf.data.Dataset.from_tensor_slices((features, tf.reduce_mean(features, axis=1))).batch(4)
"""


@pytest.fixture
def own_job(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    job = tmp_path / "job.yaml"
    data = f"{tmp_path}/own.py:data"
    job.write_text(
        json.dumps(
            {
                "model": {"function": f"{tmp_path}/own.py:layers", "loss": "mse"},
                "input": {"source": "function", "train": data, "eval": data, "global_batch_size": 4},
                "run": {"model_dir": "m"},
            }
        )
    )
    return job


@pytest.mark.nightly
@pytest.mark.keras_3
def test_layers_of_ones_own_and_data_that_end(run, own_job, tmp_path):
    """`tf.keras` in a job's own file is Keras 3; layers without an input's shape; seven batches and no max_steps."""
    whole = ["train.max_steps=null", "run.save_checkpoints_steps=3", "eval.during_training=true"]
    one, other, mirrored, exporting = run(
        ("one", *whole), ("other", *whole, "model.params={subclass: true}"), ("mirrored", *whole, *MIRRORED),
        ("export", *whole, "eval.exporters=[{kind: final}]"), job=own_job,
    )  # fmt: skip
    for result in (one, other):
        assert (result["global_step"], result["ended"]) == (7, "data ended")
        assert [e["global_step"] for e in result["evaluations"]] == [3, 6, 7]
        assert result["metrics"]["loss"] == pytest.approx(result["metrics"]["average_loss"], rel=1e-5)
    # Two of its seven batches make a step: the last one has a replica without data.
    assert (mirrored["global_step"], mirrored["ended"]) == (4, "data ended")
    assert np.isfinite(mirrored["metrics"]["loss"])
    assert exporting["error"].startswith("eval.exporters: final cannot be exported") and exporting["exit_code"] == 2


@pytest.mark.nightly
@pytest.mark.keras_3
def test_replicas_drop_different_units(run, own_job, tmp_path):
    """With one seed for all, both replicas of a batch that is twice the same would compute the same."""
    (tmp_path / "own.py").write_text(
        OWN.replace("[tf.keras.layers.BatchNormalization(), ", "[Seen(), ").replace(
            "def layers",
            """
class Seen(tf.keras.layers.Layer):
    def build(self, shape):
        self.dropout = tf.keras.layers.Dropout(0.5)
        self.seen = self.add_weight(shape=(100,), initializer="zeros", trainable=False, name="seen")

    def call(self, features, training=False):
        mask = self.dropout(tf.ones([100]), training=training)
        if training:
            self.seen.assign(mask)
        return features

def layers""",
        )
    )
    (result,) = run(("m", "train.max_steps=3", *MIRRORED), job=own_job)
    assert result["global_step"] == 3
    seen = {n: v for n, v in variables(tmp_path / "m", 3).items() if n.endswith("/seen")}
    ((_, mean),) = seen.items()
    # A mask has zeros and twos. The mean of two different ones has ones as well.
    assert set(np.unique(mean)) == {0.0, 1.0, 2.0}


@pytest.mark.nightly
@pytest.mark.keras_3
def test_precision_clipping_and_metrics_of_each_head(run, own_job):
    clipped = [
        "train.max_steps=3",
        "model.loss=binary_crossentropy",
        "model.metrics=[accuracy, precision, recall, auc]",
    ]
    binary, half, brain = run(
        ("binary", *clipped, "model.clip_norm=0.1", *MIRRORED), ("half", "train.max_steps=3",
        "model.mixed_precision=true", "model.clip_value=0.1", *MIRRORED),
        ("brain", "train.max_steps=3", "model.mixed_precision=true", "model.metrics=[label_mean, prediction_mean]"),
        job=own_job,
    )  # fmt: skip
    assert not [r["error"] for r in (binary, half, brain) if "error" in r]
    assert {"accuracy", "precision", "recall", "auc"} <= set(binary["metrics"])
    assert half["metrics"]["loss"] > 0 and {"label_mean", "prediction_mean"} <= set(brain["metrics"])


@pytest.mark.nightly
@pytest.mark.keras_3
def test_weights_of_records_and_classes(run, tmp_path):
    """The numbers of the other engines, also of two replicas, and of the metrics that weigh."""
    random = np.random.default_rng(5)
    image = random.random((96, 6)).astype(np.float32)
    label, weight = (image.sum(1) * 5).astype(np.int64) % 2, random.random(96) * 2
    np.savez(tmp_path / "weighted.npz", image=image, label=label, weight=weight)
    (tmp_path / "own.py").write_text(
        "import tensorflow as tf\n\ndef layers():\n"
        "    return tf.keras.Sequential([tf.keras.Input([6]), tf.keras.layers.Dense(1, kernel_initializer='zeros')])\n"
    )
    data = {"train": str(tmp_path / "weighted.npz"), "eval": str(tmp_path / "weighted.npz")}
    job = {
        "model": {"function": f"{tmp_path}/own.py:layers", "loss": "binary_crossentropy", "class_weights": [1.0, 3.0],
                  "metrics": ["accuracy", "precision", "recall", "auc"], "optimizer": {"learning_rate": 0.5}},
        "input": {"source": "arrays", "weight_key": "weight", "global_batch_size": 32, "eval_batch_size": 20, **data},
        "run": {"model_dir": "m"},
    }  # fmt: skip
    path = tmp_path / "weighted.yaml"
    path.write_text(json.dumps(job))
    one, mirrored = run(("one",), ("mirrored", *MIRRORED), job=path)
    settings = [*SMALL[:-1], "run.engine=estimator", f"run.model_dir={tmp_path / 'estimator'}"]
    theirs = run_job(load_job(str(path), overrides=settings), environ={}).metrics
    for metrics in (one["metrics"], mirrored["metrics"]):
        for name in ("average_loss", "accuracy", "precision", "recall", "auc"):
            assert metrics[name] == pytest.approx(theirs[name], rel=1e-5), name


@pytest.mark.nightly
@pytest.mark.keras_3
def test_gradients_are_added_up(run, tmp_path):
    """Two batches of 32 make the step of one of 64, on one replica and two, clipped too; resumed in between."""
    optimizer = "{name: adamw, api: keras, learning_rate: 0.01, exclude_from_weight_decay: [bias]%s}"
    big = ["model.name=dnn", f"model.optimizer={optimizer % ''}", "train.max_steps=10"]
    twice = f"model.optimizer={optimizer % ', gradient_accumulation_steps: 2'}"
    small = ["model.name=dnn", twice, "input.global_batch_size=32"]
    clip = "model.clip_norm=0.05"
    results = run(
        ("big", *big), ("small", *small), ("mirrored", *small, *MIRRORED), ("part", *small, "train.max_steps=7"),
        ("part", *small), ("big-clipped", *big, clip), ("clipped", *small, clip),
        ("mirrored-clipped", *small, clip, *MIRRORED),
    )  # fmt: skip
    assert [r["tasks"]["worker:0"]["steps"] for r in results] == [10, 20, 20, 7, 13, 10, 20, 20]
    whole = variables(tmp_path / "small")
    assert any(name.endswith("/gradient_sum") for name in whole)
    for name, value in variables(tmp_path / "part").items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)
    for wanted, found in (("big", "small"), ("big", "mirrored"), ("big-clipped", "clipped"),
                          ("big-clipped", "mirrored-clipped")):  # fmt: skip
        ours = variables(tmp_path / found)
        for name, value in variables(tmp_path / wanted, step=10).items():
            if name.startswith("model/"):
                np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-5, err_msg=f"{found}: {name}")
    free, clipped = (variables(tmp_path / one)["model/dense/kernel"] for one in ("small", "clipped"))
    assert np.abs(free - clipped).max() > 1e-4, "it is clipped"


@pytest.mark.nightly
@pytest.mark.keras_3
def test_moving_averages(run, tmp_path):
    """By their definition, at each step; evaluated and exported; on one replica and two, with gradients added up, too.
    A run that is resumed ends with the same bits."""
    optimizer = "model.optimizer={name: adam, api: keras, learning_rate: 0.01, ema_momentum: 0.8%s}"
    twice = optimizer % ", gradient_accumulation_steps: 2"
    settings = ["model.name=linear", "train.max_steps=6", "run.save_checkpoints_steps=1", "run.keep_checkpoint_max=0",
                "run.seed=3", "eval.exporters=[{kind: final}]"]  # fmt: skip
    results = run(
        ("one", *settings, optimizer % ""), ("mirrored", *settings, optimizer % "", *MIRRORED),
        ("added-up", *settings, twice, *MIRRORED), ("part", *settings, optimizer % "", "train.max_steps=3"),
        ("part", *settings, optimizer % ""),
    )  # fmt: skip
    pixels = np.random.default_rng(1).random((3, 8, 8, 1)).astype(np.float32)
    for folder, result, every in zip(("one", "mirrored", "added-up"), results, (1, 1, 2), strict=False):
        steps = [variables(tmp_path / folder, step=step) for step in range(1, 7)]
        last = {}
        for part in ("kernel", "bias"):
            weight = f"model/dense/{part}"
            (average,) = (name for name in steps[0] if name.endswith(f"{part}/ExponentialMovingAverage"))
            for number, (before, after) in enumerate(itertools.pairwise(steps), start=2):
                share = 0.2 if number % every == 0 else 0.0
                wanted = before[average] + (after[weight] - before[average]) * share
                np.testing.assert_allclose(after[average], wanted, rtol=1e-5, atol=1e-7, err_msg=f"{folder} {number}")
            last[part] = steps[-1][average]
        assert np.abs(last["kernel"] - steps[-1]["model/dense/kernel"]).max() > 1e-3, "they are not the weights"
        function = tf.saved_model.load(result["exporters"]["final"]).signatures["predict"]
        (name,) = function.structured_input_signature[1]
        logits = function(**{name: tf.constant(pixels)})["logits"].numpy()
        np.testing.assert_allclose(logits, pixels.reshape(3, 64) @ last["kernel"] + last["bias"], rtol=1e-4, atol=1e-4)
    assert results[0]["metrics"]["average_loss"] == pytest.approx(results[1]["metrics"]["average_loss"], rel=1e-4)
    for name, value in variables(tmp_path / "part", step=6).items():
        np.testing.assert_array_equal(value, variables(tmp_path / "one", step=6)[name], err_msg=name)


@pytest.mark.nightly
@pytest.mark.keras_3
def test_16_bits_train_as_32_do(process, digits_dir):
    """The loss scale of float16 is taken out again, before gradients are clipped to a norm."""
    cases = [(policy, norm) for norm in (None, 0.1) for policy in (False, "mixed_float16", "mixed_bfloat16")]
    found = process("precision", {"data_dir": str(digits_dir), "cases": cases})
    for full, *halves in (found[:3], found[3:]):
        assert len(full) == 20 and full[-1] < full[0] - 0.1
        for half, reason in zip(halves, (2e-3, 1e-2), strict=True):  # 11 and 8 bits
            assert half == pytest.approx(full, rel=reason) and half != full
    assert found[0][-1] < found[3][-1], "clipping takes effect"


@pytest.mark.nightly
@pytest.mark.keras_3
def test_what_cannot_be_is_said(run_python, tmp_path):
    train = ["-m", "estimator_pipeline", "train", JOB, "--engine", "keras3", "--set", f"run.model_dir={tmp_path}/m"]
    done = run_python(train, env={"KERAS_BACKEND": "jax"})
    assert done.returncode == 2
    assert done.stderr.startswith("error: KERAS_BACKEND=jax is set, and the engine keras3 trains with TensorFlow")
    done = run_python([*train, "--set", "run.train_distribute=parameter_server", "--set", "cluster.ps=1"])
    assert done.returncode == 2
    assert "the training loop for Keras 3 does not support the Estimator's training with" in done.stderr
    code = """
import estimator_pipeline as ep
tf = ep.compat.install()
from estimator_pipeline.engines.jobs.run import run_job
try:
    run_job(load_job("legacy_configs/single.yaml", overrides=["run.engine=keras3"]), environ={})
except ep.errors.CompatError as error:
    print(error)
"""
    done = run_python(["-c", code])
    assert "is already loaded in this process, with Keras 2" in done.stdout, done.stderr[-2000:]
    code = """
import estimator_pipeline as ep
tf = ep.compat.use_keras_3()
assert ep.compat.install() is tf and tf.keras.layers.Dense.__module__.startswith("keras.src")
print(ep.compat.status())
from estimator_pipeline.engines.jobs.run import run_job
try:
    run_job(load_job("legacy_configs/single.yaml"), environ={})
except ep.errors.CompatError as error:
    print(error)
"""
    # What another process left in the environment does not decide here.
    done = run_python(["-c", code], env={"TF_USE_LEGACY_KERAS": "1"})
    assert "tf.keras: keras 3." in done.stdout, done.stderr[-2000:]
    assert "this process has Keras 3, and the engine estimator is built on Keras 2" in done.stdout


@pytest.mark.nightly
@pytest.mark.only_2_15
def test_on_2_15_there_is_no_keras_3(run_python, tmp_path):
    done = run_python(["-m", "estimator_pipeline", "train", JOB, "--engine", "keras3",
                       "--set", f"run.model_dir={tmp_path}/m"])  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: the engine keras3 needs TensorFlow 2.16 or later"), done.stderr[-2000:]
    assert "found: TensorFlow 2.15" in done.stderr and "keep the engine keras" in done.stderr


# Optimizers ---------------------------------------------------------------------------------------------------

STEPS, ROWS = 12, 7
RATE = {"kind": "exponential", "initial_learning_rate": 0.2, "decay_steps": 5, "decay_rate": 0.5}
OPTIONS = {
    "momentum": {"momentum": 0.8},
    "nesterov": {"momentum": 0.8},
    "adam": {"beta1": 0.8, "epsilon": 1e-4},
    "adagrad": {"initial_accumulator_value": 0.3},
    "rmsprop": {"decay": 0.7, "momentum": 0.6, "epsilon": 1e-3, "centered": True},
    "ftrl": {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02},
}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    random = np.random.default_rng(7)
    arrays = {
        "start": random.normal(size=(ROWS, 3)).astype(np.float32),
        "values": random.normal(size=(STEPS, ROWS, 3)).astype(np.float32),
        # One of them twice, and not the same ones in each step.
        "rows": np.array([[1, 4, 1, step % ROWS] for step in range(STEPS)], np.int64),
    }
    # Small ones show what is added to a root.
    arrays["values"][:, :, 2] *= 1e-6
    path = tmp_path_factory.mktemp("given") / "given.npz"
    np.savez(path, **arrays)
    return path, arrays


def steps_in_a_session(optimizer, arrays, sparse):
    """What the Estimator's optimizer does with the same gradients."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.train.get_or_create_global_step()
        variable = tf.compat.v1.get_variable("bias", initializer=arrays["start"], use_resource=True)
        made, _ = optimizer.make(step)
        value = tf.compat.v1.placeholder(tf.float32, [ROWS, 3])
        rows = tf.compat.v1.placeholder(tf.int64, [4])
        gradient = tf.IndexedSlices(value[:4], rows, [ROWS, 3]) if sparse else value
        counted = {"global_step": step} if isinstance(made, tf.compat.v1.train.Optimizer) else {}
        train = made.apply_gradients([(gradient, variable)], **counted)
        session.run(tf.compat.v1.global_variables_initializer())
        after = []
        for one, named in zip(arrays["values"], arrays["rows"], strict=True):
            session.run(train, {value: one, rows: named})
            after.append(session.run(variable))
        return np.stack(after)


@pytest.mark.nightly
@pytest.mark.keras_3
@pytest.mark.parametrize("replicas", [1, 2])
def test_optimizers_have_the_arithmetic_that_was_asked_for(process, given, tmp_path, replicas):
    """`api: v1` against tf.compat.v1.train, `api: keras` against tf.keras.optimizers.legacy; dense and sparse."""
    path, arrays = given
    cases = []
    for name in NAMES:
        for rate in (0.1, RATE):
            for api, options in (("v1", {}), ("v1", OPTIONS.get(name, {})), ("keras", {})):
                for sparse in (False, True):
                    cases.append(({"name": name, "learning_rate": rate, "api": api, "options": options}, sparse))
    warmed_up = {"learning_rate": RATE, "warmup_steps": 6, "warmup_from": 0.01, "options": {}}
    cases += [({"name": "momentum", "api": api, **warmed_up}, False) for api in ("v1", "keras")]
    decaying = {"learning_rate": RATE, "options": {}, "weight_decay": 0.03}
    for name in NAMES:
        ways = [(api, sparse) for api in ("v1", "keras") for sparse in (False, True)] if name != "ftrl" else []
        cases += [({"name": name, "api": api, **decaying}, sparse) for api, sparse in ways]
    excluding = {"name": "adamw", "api": "keras", "learning_rate": RATE, "exclude_from_weight_decay": ["bias"]}
    cases.append((excluding, False))
    file = tmp_path / "after.npz"
    process("steps", {"given": str(path), "optimizers": cases, "replicas": replicas, "file": str(file)})
    exact = {}
    with np.load(file) as found:
        for number, (fields, sparse) in enumerate(cases):
            optimizer = Optimizer(**fields)
            theirs, ours = steps_in_a_session(optimizer, arrays, sparse), found[str(number)]
            where = f"{fields}, sparse {sparse}"
            if keras3_optimizers.differences(optimizer, rows=sparse) is not None:
                assert np.abs(ours - theirs).max() > 1e-8, f"{where}: there is a difference to tell of"
                continue
            # Composed of several operations, the last bits may differ: 1e-4 of a step.
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5, err_msg=where)
            if fields["api"] == "v1":
                exact.setdefault((fields["name"], sparse), []).append(np.array_equal(ours, theirs))
    # Adam is Keras's own. A row that is named twice is summed in another order where replicas share it.
    assert set(exact) == {(name, sparse) for name in NAMES for sparse in (False, True)}
    for (name, sparse), equal in exact.items():
        assert all(equal) or name == "adam" or (sparse and replicas > 1), f"{name}, sparse {sparse}: to the last bit"


@pytest.mark.nightly
def test_differences_are_named():
    assert keras3_optimizers.differences(Optimizer(name="adagrad", api="v1")) is None
    assert "under the root" in str(keras3_optimizers.differences(Optimizer(name="adagrad", api="keras")))
    with_momentum = Optimizer(name="rmsprop", api="keras", options={"momentum": 0.9})
    assert keras3_optimizers.differences(with_momentum) is None
    assert keras3_optimizers.differences(Optimizer(name="rmsprop", api="keras")) is not None
    assert "every row" in str(keras3_optimizers.differences(Optimizer(name="ftrl", api="keras"), rows=True))
