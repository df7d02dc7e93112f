"""Evaluation spec and exporters for Keras 3, which cannot use those of `tf.estimator`.

The exporters write to the same folders, `export/NAME/TIME`, and are called in the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.exporting import better, require_features_spec
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.logger import logger

__all__ = ["EvaluationSpec", "Keras3BestExporter", "Keras3FinalExporter", "Keras3LatestExporter", "make_exporter"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """Data, steps and schedule of an evaluation, like `tf.estimator.EvalSpec`."""

    input_fn: Callable[..., Any]
    steps: int | None = None
    name: str | None = None
    start_delay_secs: float = 0
    throttle_secs: float = 0
    exporters: tuple[Any, ...] = ()


class Keras3FinalExporter:
    """Exports once, at the end of training, to the folder `name` in `export/`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        """Export a checkpoint, and return the written folder; None if this checkpoint is not exported.

        Args:
            estimator: Has `export_saved_model(folder, checkpoint_path=…)`.
            export_path: This exporter's folder.
            checkpoint_path: Path of the checkpoint.
            eval_result: Metrics of its evaluation.
            is_the_final_export: Whether training has ended.
        """
        if not is_the_final_export:
            return None
        path: str = estimator.export_saved_model(export_path, checkpoint_path=checkpoint_path)
        return path


class Keras3LatestExporter(Keras3FinalExporter):
    """Exports each evaluated checkpoint, and keeps the last `exports_to_keep` exports; None: all."""

    def __init__(self, name: str, *, exports_to_keep: int | None = None) -> None:
        super().__init__(name)
        self._keep = exports_to_keep

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        path = super().export(estimator, export_path, checkpoint_path, eval_result, True)
        gfile = compat.tensorflow().io.gfile
        names = (name.strip("/") for name in gfile.listdir(export_path))
        exports = sorted((name for name in names if re.fullmatch(r"\d+", name)), key=int)
        for name in exports[: -self._keep] if self._keep else ():
            gfile.rmtree(os.path.join(export_path, name))
        return path


class Keras3BestExporter(Keras3LatestExporter):
    """Exports a checkpoint that is better than all previous ones, also across restarts.

    `export/NAME.best.json` beside the exports has the best result. It is written atomically, after the export. The
    better value of `metric` is the smaller one ("min") or the larger one ("max").
    """

    def __init__(self, name: str, *, metric: str, mode: str, exports_to_keep: int | None = None) -> None:
        super().__init__(name, exports_to_keep=exports_to_keep)
        self._metric = metric
        self._better = better(metric, mode)

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        gfile, record = compat.tensorflow().io.gfile, f"{export_path.rstrip('/')}.best.json"
        best = self._best_so_far(record)
        current = {name: float(value) for name, value in eval_result.items()}
        # Comparing a result with itself raises if the metric was not evaluated.
        is_better = self._better(current if best is None else best, current)
        if math.isnan(current[self._metric]):
            logger.warning("%s is not exported as the best model: its %s is NaN", checkpoint_path, self._metric)
            return None
        if not is_better and best is not None:
            return None
        path = super().export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
        with gfile.GFile(f"{record}.unfinished", "w") as file:
            file.write(json.dumps({"metrics": current, "export": path}))
        durable.rename(f"{record}.unfinished", record, by=functools.partial(gfile.rename, overwrite=True))
        return path

    def _best_so_far(self, record: str) -> Mapping[str, float] | None:
        gfile = compat.tensorflow().io.gfile
        if not gfile.exists(record):
            return None
        try:
            with gfile.GFile(record) as file:
                metrics: dict[str, float] = json.loads(file.read())["metrics"]
        except (ValueError, KeyError, TypeError):
            return None
        return metrics if self._metric in metrics else None


def make_exporter(section: Any, features_spec: Mapping[str, Any] | None) -> Keras3FinalExporter:
    """Build the exporter of a job file's section; see `core.exporting.require_features_spec`."""
    require_features_spec(f"eval.exporters: {section.folder}", features_spec)
    keep = section.exports_to_keep or None
    if section.kind == "final":
        return Keras3FinalExporter(section.folder)
    if section.kind == "latest":
        return Keras3LatestExporter(section.folder, exports_to_keep=keep)
    metric, mode = section.metric or "loss", section.mode or "min"
    return Keras3BestExporter(section.folder, metric=metric, mode=mode, exports_to_keep=keep)
