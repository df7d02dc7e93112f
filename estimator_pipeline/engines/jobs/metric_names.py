"""The names of losses, heads and metrics in a job file, checked before its data are read."""

from __future__ import annotations

from typing import Any

import model_fns
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job
from estimator_pipeline.models.metrics import is_known
from estimator_pipeline.models.outputs import outputs_of, wanted_metrics
from estimator_pipeline.models.user_metrics import UserMetric
from estimator_pipeline.utils.text import nearest

__all__ = ["check_metric_names"]

_PER_CLASS = "_per_class"


def check_metric_names(job: Job) -> None:
    """Check that the model has the metrics that the job names: to report, to stop early, to export the best.

    A `model_fn` and a canned Estimator define their metrics, which only their first evaluation shows. So may layers of
    the user's, whose metrics to stop early and to export are not checked.

    Raises:
        ConfigError: A loss, a head or a metric is unknown, or they do not fit together.
    """
    model = job.model
    if model.estimator is not None or (model.name is None and model.loss is None and not model.outputs):
        return
    names: list[str] = []
    sections: dict[str, Any] = {**(model.outputs or {"": model})}
    for name, section in sections.items():
        field = f"model.outputs.{name}.metrics" if name else "model.metrics"
        metrics = [UserMetric(metric, field) if ":" in metric else metric for metric in section.metrics]
        options: dict[str, Any] = {"loss": section.loss, "head": section.head, "metrics": metrics}
        options = {key: value for key, value in options.items() if value}
        if not name and model.name is not None:
            options = model_fns.with_loss(model.name, options)
        (part,) = outputs_of(None, **{"loss": None, **options}).parts.values()
        names = ["loss", "average_loss", *wanted_metrics(part.head.kind, part.metrics)]
    if model.name is None or model.outputs:
        return
    for field, metric in _chosen(job):
        per_class = metric.partition("/")[0] + _PER_CLASS
        if metric not in names and not ("/" in metric and per_class in names):
            hint = "name one of these, or add others to model.metrics"
            if is_known(part.head.kind, metric):
                hint = f"add it to model.metrics: [{', '.join([*names[2:], metric])}]"
            elif close := nearest(metric, names):
                hint = f"did you mean {close!r}?"
            raise ConfigError(
                f"{field} is {metric!r}, and the model has no such metric",
                code="argument/unknown-name",
                found=f"metrics: {', '.join(names)}",
                hint=hint,
            )


def _chosen(job: Job) -> list[tuple[str, str]]:
    """Return the metrics by which the job chooses a checkpoint, as (field, metric)."""
    early = job.eval.early_stopping
    chosen = [] if early is None else [("eval.early_stopping.metric", early.metric)]
    for number, exporter in enumerate(job.eval.exporters):
        if exporter.kind == "best" and exporter.metric is not None:
            chosen.append((f"eval.exporters.{number}.metric", exporter.metric))
    return chosen
