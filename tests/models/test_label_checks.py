"""Labels that a loss would take for something else."""

from __future__ import annotations

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import InputError
from estimator_pipeline.job import make_job
from estimator_pipeline.models import label_checks
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

BINARY = {"loss": "binary_crossentropy"}
WEIGHTED = {**BINARY, "weight_column": "w"}
SEVERAL = {"outputs": {"a": {"loss": "mse"}, "b": BINARY}}


def read(labels, **options):
    """The labels as Keras gets them, of all batches."""
    batches = tf.data.Dataset.from_tensors((np.zeros(2, np.float32), labels))
    return next(iter(ep.keras_batches(batches, **options)))[1]


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        ([1, 2], BINARY, "smallest label is 1 and whose largest is 2"),
        ([-1.0, 1.0], BINARY, "smallest label is -1"),
        ([[0, 1], [5, 0]], {**BINARY, "head": "multi_label"}, "largest is 5"),
        ([float("nan"), 0.0], BINARY, "nan"),
        ({"label": [0, 2], "w": [1.0, 0.5]}, WEIGHTED, "largest is 2"),
        ({"a": [7.0, 8.0], "b": [1, 2]}, SEVERAL, "the labels of the output b do not fit"),
        (["x", "no"], {**BINARY, "label_vocabulary": ["no", "yes"]}, "not one of label_vocabulary"),
    ],
)
def test_labels_that_do_not_fit_are_refused_in_one_message(labels, options, words):
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        read(labels, **options)
    told = label_checks.explained(refused.value)
    assert isinstance(told, InputError) and words in str(told)


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        ([0, 1], BINARY),
        ([True, False], BINARY),
        ([[0.25], [1.0]], BINARY),
        ({"label": [[-1], [1]], "w": [0.0, 1.0]}, WEIGHTED),
        ([1, 2], {"loss": lambda labels, logits: labels, "head": "binary"}),
    ],
)
def test_labels_that_may_be_stay_what_they_are(labels, options):
    """A label of a record that counts nothing may be missing; an own loss knows what it is given."""
    given = labels["label"] if isinstance(labels, dict) else labels
    np.testing.assert_array_equal(read(labels, **options), given)


WORDS = {
    "binary_crossentropy": "do not fit binary_crossentropy",
    "sparse_categorical_crossentropy": "a label is 2, and the model has 2 classes, 0 to 1",
}


@pytest.mark.gate("estimator-binary_crossentropy")
@pytest.mark.parametrize("loss", WORDS)
@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_a_job_ends_with_that_message(engine, loss, tmp_path):
    random = np.random.default_rng(1)
    for name in ("train", "eval"):
        np.savez(tmp_path / f"{name}.npz", x=random.random((8, 3), np.float32), label=np.array([1, 2] * 4))
    units = 1 if loss == "binary_crossentropy" else 2
    job = make_job({
        "model": {"name": "linear", "loss": loss, "params": {"classes": units}},
        "input": {"source": "arrays", "train": str(tmp_path / "train.npz"), "eval": str(tmp_path / "eval.npz"),
                  "global_batch_size": 4},
        "train": {"max_steps": 2},
        "run": {"model_dir": str(tmp_path / "model"), "engine": engine},
    })  # fmt: skip
    with pytest.raises(InputError, match=WORDS[loss]):
        run_job(job, environ={})
