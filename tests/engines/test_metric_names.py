"""Names of metrics in job files: those that a model does not have are errors before a process starts."""

from __future__ import annotations

import pytest

from estimator_pipeline.engines.jobs.metric_names import check_metric_names
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import make_job


def job(model, *, early=None, best=None):
    exporters = [] if best is None else [{"kind": "best", "metric": best, "mode": "max"}]
    stopping = None if early is None else {"metric": early, "mode": "max", "patience": 2}
    labels = {"label_key": list(model["outputs"])} if "outputs" in model else {}
    return make_job(
        {
            "model": model,
            "input": {"source": "tfds", "name": "digits", "global_batch_size": 8, **labels},
            "train": {"max_steps": 1},
            "eval": {"exporters": exporters, "early_stopping": stopping},
            "run": {"model_dir": "model"},
        }
    )


OUTPUTS = {"kind": {"loss": "sparse_categorical_crossentropy"}, "age": {"loss": "mse", "metrics": ["acuracy"]}}


@pytest.mark.parametrize(
    ("model", "chosen", "message", "hint"),
    [
        (
            {"name": "cnn", "metrics": ["acuracy"]},
            {},
            "are not known for the head 'multi_class'",
            "'accuracy'?",
        ),
        ({"name": "cnn", "loss": "spars"}, {}, "the loss 'spars' is not known", "use one of these"),
        (
            {"function": "my.py:layers", "outputs": OUTPUTS},
            {},
            "acuracy are not known for the head 'regression'",
            "name",
        ),
        ({"name": "cnn"}, {"early": "val_accuracy"}, "eval.early_stopping.metric is 'val_accuracy'", "'accuracy'?"),
        ({"name": "cnn"}, {"best": "f1"}, "eval.exporters.0.metric is 'f1'", "model.metrics: [accuracy, f1]"),
        ({"name": "cnn", "metrics": ["my.py:brier"]}, {"best": "accuracy"}, "has no such metric", "[brier, accuracy]"),
        ({"name": "cnn"}, {"early": "recall/3"}, "has no such metric", "name one of these"),
    ],
)
def test_a_metric_that_the_model_lacks(model, chosen, message, hint):
    with pytest.raises(ConfigError) as error:
        check_metric_names(job(model, **chosen))
    assert message in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        ({"name": "cnn"}, {"early": "loss", "best": "accuracy"}),
        ({"name": "cnn", "metrics": ["my.py:brier", "recall_per_class"]}, {"early": "brier", "best": "recall/3"}),
        ({"name": "linear", "loss": "mse"}, {"early": "mean_squared_error", "best": "average_loss"}),
        ({"name": "wide_deep"}, {"early": "auc"}),
        ({"function": "my.py:model_fn"}, {"early": "anything"}),
        ({"function": "my.py:layers", "loss": "mse"}, {"early": "added_by_a_layer"}),
    ],
)
def test_metrics_that_the_model_has_or_may_have(model, chosen):
    check_metric_names(job(model, **chosen))
