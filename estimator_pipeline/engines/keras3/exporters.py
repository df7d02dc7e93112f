"""What evaluates and exports a job under Keras 3, where there is no `tf.estimator.EvalSpec` and none of its exporters.

The exporters write to the same folders, `export/NAME/TIME`, and are called in the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.estimator.exporters import better, require_features_spec
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.best_results import is_number
from estimator_pipeline.utils.logger import logger

__all__ = ["EvaluationSpec", "Keras3BestExporter", "Keras3FinalExporter", "Keras3LatestExporter", "make_exporter"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """What to evaluate on and when, as `tf.estimator.EvalSpec` says it."""

    input_fn: Callable[..., Any]
    steps: int | None = None
    name: str | None = None
    start_delay_secs: float = 0
    throttle_secs: float = 0
    exporters: tuple[Any, ...] = ()


class Keras3FinalExporter:
    """Exports once, when training has ended.

    Args:
        name: of the folder below `export/`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """The folder that was written, None where this is not the time.

        Args:
            estimator: has `export_saved_model(folder, checkpoint_path=…)`.
            export_path: this exporter's folder.
            checkpoint_path: of the model.
            eval_result: what its evaluation gave.
            is_the_final_export: whether training has ended.
        """
        if not is_the_final_export:
            return None
        path: str = estimator.export_saved_model(export_path, checkpoint_path=checkpoint_path)
        return path


class Keras3LatestExporter(Keras3FinalExporter):
    """Exports each checkpoint that is evaluated.

    Args:
        name: of the folder below `export/`.
        exports_to_keep: how many of them; None: all.
    """

    def __init__(self, name: str, *, exports_to_keep: int | None = None) -> None:
        super().__init__(name)
        self._keep = exports_to_keep

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        path: str = estimator.export_saved_model(export_path, checkpoint_path=checkpoint_path)
        gfile = compat.tensorflow().io.gfile
        exports = sorted((name.strip("/") for name in gfile.listdir(export_path)), key=_time_of)
        exports = [name for name in exports if _time_of(name) >= 0]
        for name in exports[: -self._keep] if self._keep else ():
            gfile.rmtree(os.path.join(export_path, name))
        return path


class Keras3BestExporter(Keras3LatestExporter):
    """Exports a checkpoint that is better than all before it, over restarts as well.

    The best result is in the file `export/NAME.best.json` beside the exports, written whole and after them.

    Args:
        name: of the folder below `export/`.
        metric: what is compared.
        mode: "min" or "max": which is better.
        exports_to_keep: how many of them; None: all.
    """

    def __init__(self, name: str, *, metric: str, mode: str, exports_to_keep: int | None = None) -> None:
        super().__init__(name, exports_to_keep=exports_to_keep)
        self._metric = metric
        self._better = better(metric, mode)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        record = f"{export_path.rstrip('/')}.best.json"
        best = _best_so_far(record, self._metric)
        current = {name: float(value) for name, value in eval_result.items()}
        # A result against itself tells a metric that was not evaluated.
        better = self._better(best if best is not None else current, current)
        if not is_number(self._better, current):
            logger.warning("%s is not exported as the best model: its %s is NaN", checkpoint_path, self._metric)
            return None
        if not better and best is not None:
            return None
        path = super().export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
        gfile = compat.tensorflow().io.gfile
        with gfile.GFile(f"{record}.unfinished", "w") as file:
            file.write(json.dumps({"metrics": current, "export": path}))
        durable.rename(f"{record}.unfinished", record, by=functools.partial(gfile.rename, overwrite=True))
        return path


def make_exporter(section: Any, features_spec: Mapping[str, Any] | None) -> Keras3FinalExporter:
    """The exporter that a job file's section describes.

    Args:
        section: an :class:`estimator_pipeline.job.ExporterSection`.
        features_spec: feature name -> `tf.TensorSpec` of one record; None: not known.

    Raises:
        ConfigError: what the model takes is not known (own input functions).
    """
    require_features_spec(section, features_spec, hint="export from Python: load model.keras, and Model.export(path)")
    if section.kind == "final":
        return Keras3FinalExporter(section.folder)
    keep = section.exports_to_keep or None
    if section.kind == "latest":
        return Keras3LatestExporter(section.folder, exports_to_keep=keep)
    return Keras3BestExporter(
        section.folder, metric=section.metric or "loss", mode=section.mode or "min", exports_to_keep=keep
    )


def _time_of(name: str) -> int:
    return int(name) if re.fullmatch(r"\d+", name) else -1


def _best_so_far(record: str, metric: str) -> Mapping[str, float] | None:
    gfile = compat.tensorflow().io.gfile
    if not gfile.exists(record):
        return None
    try:
        with gfile.GFile(record) as file:
            found: dict[str, float] = json.loads(file.read())["metrics"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if metric in found else None
