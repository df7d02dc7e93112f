"""Metrics of job files: the same values from every engine, and those of NumPy and scikit-learn."""

from __future__ import annotations

import json

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.processes import KERAS3_PROCESS, ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
skm = pytest.importorskip("sklearn.metrics")

ROWS, WIDTH = 90, 4
UNITS = {"animal": 3, "sign": 1, "tags": 2, "size": 2}
ANIMALS = ["cat", "big dog", "owl"]
RANDOM = np.random.default_rng(7)
FEATURES = RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32)
KERNELS = {name: RANDOM.normal(size=(WIDTH, units)).round(2) for name, units in UNITS.items()}
# Far from 0: of float32 sums the coefficient of determination would be wrong.
BIASES = {**dict.fromkeys(UNITS, 0.0), "size": 300.0}
LOGITS = {name: FEATURES @ kernel.astype(np.float32) + np.float32(BIASES[name]) for name, kernel in KERNELS.items()}
WEIGHT = RANDOM.random(ROWS).astype(np.float32) * 2
LABELS = {
    "animal": RANDOM.integers(3, size=ROWS),
    "sign": (LOGITS["sign"][:, 0] + RANDOM.normal(size=ROWS) > 0).astype(np.int64),
    "tags": (LOGITS["tags"] + RANDOM.normal(size=(ROWS, 2)) > 0).astype(np.int64),
    "size": (LOGITS["size"] + RANDOM.normal(size=(ROWS, 2))).astype(np.float32),
}
PER_CLASS = ["precision_per_class", "recall_per_class", "f1_per_class"]
RATES = ["f1", "recall_per_class", "auc_precision_recall", "precision_at_recall_0.7", "recall_at_precision_0.6"]
OUTPUTS = {
    "animal": {
        "loss": "sparse_categorical_crossentropy",
        "label_vocabulary": ANIMALS,
        "metrics": ["accuracy", "f1", *PER_CLASS, "unweighted_recall_per_class", "OWN:top_2"],
    },
    "sign": {"loss": "binary_crossentropy", "metrics": [*RATES, "OWN:Brier"]},
    "tags": {"loss": "binary_crossentropy", "head": "multi_label", "metrics": [*RATES, "OWN:macro"]},
    "size": {"loss": "mean_squared_error", "metrics": ["rmse", "r2", "OWN:absolute", "OWN:unweighted_absolute"]},
}
LAYERS = """
import tensorflow as tf

KERNELS, BIASES = {kernels}, {biases}

def layers():
    given, constant = tf.keras.Input([{width}]), tf.keras.initializers.Constant
    return tf.keras.Model(given, {{
        name: tf.keras.layers.Dense(len(kernel[0]), None, True, constant(kernel), constant(BIASES[name]))(given)
        for name, kernel in KERNELS.items()
    }})

class Brier(tf.keras.metrics.Mean):
    def update_state(self, labels, probabilities, weights=None):
        super().update_state((labels - probabilities)[:, 0] ** 2, weights)

def macro():
    return tf.keras.metrics.F1Score(average="macro", threshold=0.5)

def top_2():
    return tf.keras.metrics.SparseTopKCategoricalAccuracy(k=2)

def absolute(name=None):
    return tf.keras.metrics.MeanAbsoluteError(name=name)

unweighted_absolute = tf.keras.metrics.MeanAbsoluteError
"""


def write_job(folder):
    np.savez(folder / "data.npz", rows=FEATURES, weight=WEIGHT, **LABELS)
    text = LAYERS.format(
        width=WIDTH, biases=BIASES, kernels={name: kernel.tolist() for name, kernel in KERNELS.items()}
    )
    (folder / "own.py").write_text(text)
    data = str(folder / "data.npz")
    job = {
        "model": {
            "function": f"{folder}/own.py:layers",
            "optimizer": {"name": "sgd", "learning_rate": 1e-30},
            "outputs": OUTPUTS,
        },
        "input": {"source": "arrays", "train": data, "eval": data, "label_key": list(UNITS), "weight_key": "weight",
                  "global_batch_size": 30, "eval_batch_size": 20},
        "train": {"max_steps": 1},
        "run": {"model_dir": str(folder / "m"), "save_summary_steps": 1},
    }  # fmt: skip
    path = folder / "job.json"
    path.write_text(json.dumps(job).replace("OWN:", f"{folder}/own.py:"))
    return path


def expected():
    """The metrics by scikit-learn, and those at thresholds by NumPy."""
    values = {}
    actual, predicted = LABELS["animal"], LOGITS["animal"].argmax(axis=1)
    options = {"labels": range(3), "sample_weight": WEIGHT, "zero_division": 0}
    values["animal_accuracy"] = skm.accuracy_score(actual, predicted, sample_weight=WEIGHT)
    values["animal_f1"] = skm.f1_score(actual, predicted, average="macro", **options)
    per_class = skm.precision_recall_fscore_support(actual, predicted, **options)
    for name, each in zip(("precision", "recall", "f1"), per_class, strict=False):
        values |= {f"animal_{name}/{title}": value for title, value in zip(ANIMALS, each, strict=True)}
    plain = skm.recall_score(actual, predicted, average=None)
    values |= {f"animal_unweighted_recall/{title}": value for title, value in zip(ANIMALS, plain, strict=True)}
    sign = LABELS["sign"], LOGITS["sign"][:, 0] > 0
    values["sign_f1"] = skm.f1_score(*sign, sample_weight=WEIGHT)
    recalls = skm.recall_score(*sign, average=None, sample_weight=WEIGHT)
    values |= {f"sign_recall/class{number}": value for number, value in enumerate(recalls)}
    tags, pairs = LABELS["tags"], np.repeat(WEIGHT, 2)
    values["tags_f1"] = skm.f1_score(tags.ravel(), LOGITS["tags"].ravel() > 0, sample_weight=pairs)
    recalls = skm.recall_score(tags, LOGITS["tags"] > 0, average=None, sample_weight=WEIGHT)
    values |= {f"tags_recall/class{number}": value for number, value in enumerate(recalls)}
    for name, weight in (("sign", WEIGHT), ("tags", pairs)):
        precision, recall = at_thresholds(LABELS[name].ravel(), LOGITS[name].ravel(), weight)
        values[f"{name}_precision_at_recall_0.7"] = precision[recall >= 0.7].max()
        values[f"{name}_recall_at_precision_0.6"] = recall[precision >= 0.6].max()
    values["size_rmse"] = np.sqrt(np.average((LABELS["size"] - LOGITS["size"]) ** 2, axis=0, weights=WEIGHT).mean())
    values["size_r2"] = skm.r2_score(LABELS["size"], LOGITS["size"], sample_weight=WEIGHT)
    # Those of the user.
    values["animal_top_2"] = skm.top_k_accuracy_score(actual, LOGITS["animal"], k=2, sample_weight=WEIGHT)
    probabilities = 1 / (1 + np.exp(-LOGITS["sign"][:, 0].astype(np.float64)))
    values["sign_Brier"] = skm.brier_score_loss(LABELS["sign"], probabilities, sample_weight=WEIGHT)
    values["tags_macro"] = skm.f1_score(tags, LOGITS["tags"] > 0, average="macro", sample_weight=WEIGHT)
    values["size_absolute"] = skm.mean_absolute_error(LABELS["size"], LOGITS["size"], sample_weight=WEIGHT)
    values["size_unweighted_absolute"] = skm.mean_absolute_error(LABELS["size"], LOGITS["size"])
    return values


def at_thresholds(labels, logits, weights):
    """Precision and recall at the 200 thresholds of Keras."""
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    positive = probabilities[:, None] > np.arange(199) / 199
    both = (positive * (labels * weights)[:, None]).sum(axis=0)
    return both / np.maximum((positive * weights[:, None]).sum(axis=0), 1e-9), both / (labels * weights).sum()


def metrics_of(job, run_python, native, *settings):
    """The metrics of the last evaluation, by engine."""
    asked = {engine: [f"run.engine={engine}", f"run.model_dir={job.parent / engine}", *settings]
             for engine in ("estimator", "keras", "keras3")}  # fmt: skip
    values = {engine: run_job(load_job(job, overrides=asked[engine]), environ={}).metrics
             for engine in ("estimator", "keras")}  # fmt: skip
    if not native:
        text = json.dumps([[str(job), asked["keras3"]]])
        done = run_python([KERAS3_PROCESS, "jobs"], stdin=text, timeout=300, env={"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        (result,) = json.loads(done.stdout.splitlines()[-1])
        assert "metrics" in result, result
        values["keras3"] = result["metrics"]
    return values


def test_every_engine_reports_the_same(tmp_path, run_python, native):
    """One job of all heads, so that each engine starts once."""
    values = metrics_of(write_job(tmp_path), run_python, native)
    wanted = expected()
    for engine, metrics in values.items():
        for name, value in wanted.items():
            assert metrics[name] == pytest.approx(value, rel=1e-4), f"{engine}: {name}"
        for name in ("sign_auc_precision_recall", "tags_auc_precision_recall"):
            assert metrics[name] == pytest.approx(values["estimator"][name], rel=1e-6), f"{engine}: {name}"
        assert metrics.keys() == values["estimator"].keys(), engine
    # Interpolated between the thresholds, while scikit-learn sums steps.
    sums = skm.average_precision_score(LABELS["sign"], LOGITS["sign"][:, 0], sample_weight=WEIGHT)
    assert values["keras"]["sign_auc_precision_recall"] == pytest.approx(sums, abs=0.03)


# Mistakes --------------------------------------------------------------------------------------------------------

BAD = """
import tensorflow as tf

class Fails(tf.keras.metrics.Mean):
    def update_state(self, labels, predictions, weights=None):
        super().update_state(tf.ensure_shape(labels, [3]))

def text():
    return "f1"

def needs(classes):
    return tf.keras.metrics.F1Score()

def raises():
    return {}["gone"]
"""


@pytest.mark.parametrize("engine", ["estimator", "keras"])
@pytest.mark.parametrize(
    ("name", "code", "place"),
    [
        ("text", "model/bad-function", "a str of builtins"),
        ("needs", "job/bad-function", "needs(classes)"),
        ("raises", "job/bad-function", "bad.py, line 15"),
        ("Fails", "job/bad-function", "bad.py, line 6"),
        ("gone", "job/bad-function", "functions: text, needs, raises"),
    ],
)
def test_a_metric_of_the_user_that_fails(tmp_path, engine, name, code, place):
    (tmp_path / "bad.py").write_text(BAD)
    settings = [f"run.engine={engine}", f"model.outputs.sign.metrics=['{tmp_path}/bad.py:{name}']"]
    job = load_job(write_job(tmp_path), overrides=settings)
    with pytest.raises(ConfigError) as error:
        run_job(job, environ={})
    assert error.value.code == code and place in (error.value.found or "")
    assert error.value.what.startswith(f"model.outputs.sign.metrics: {tmp_path}/bad.py")


def test_classes_whose_number_is_not_known():
    """Keras creates metrics before the model is called."""

    def subclassed():
        class Own(tf.keras.Model):
            def call(self, features):
                return features

        return Own()

    options = {"loss": "sparse_categorical_crossentropy", "metrics": ["recall_per_class"]}
    with pytest.raises(ConfigError) as error:
        ep.build_keras_model(subclassed, **options)
    assert error.value.code == "argument/conflict" and "label_vocabulary" in error.value.hint
    model = ep.build_keras_model(subclassed, **options, label_vocabulary=["cat", "owl"])
    values = model.evaluate(np.eye(2, dtype=np.float32), np.array([0, 0]), return_dict=True, verbose=0)
    assert (values["recall/cat"], values["recall/owl"]) == (0.5, 0.0)


@pytest.mark.parametrize("name", ["precision_at_recall_X", "precision_at_recall_0", "precision_at_recall_1.5", "r2"])
@pytest.mark.parametrize("build", [ep.build_keras_model, ep.build_model_fn])
def test_names_that_the_head_does_not_have(build, name):
    with pytest.raises(ConfigError) as error:
        build(lambda: tf.keras.Sequential([tf.keras.layers.Dense(1)]), loss="binary_crossentropy", metrics=[name])
    assert error.value.code == "argument/unknown-name" and "precision_at_recall_X" in error.value.found


def test_two_metrics_of_one_name(tmp_path):
    with pytest.raises(ConfigError) as error:
        load_job(write_job(tmp_path), overrides=["model.outputs.sign.metrics=['f1', 'my.py:f1']"])
    assert error.value.code == "job/conflict" and "both reported as 'f1'" in error.value.found
