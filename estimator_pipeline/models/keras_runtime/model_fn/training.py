"""`train_and_evaluate` of one process: training by `fit`, an evaluation and exports with its checkpoints."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.eager_blocks import eagerly
from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation
from estimator_pipeline.models.keras_runtime.model_fn import settings
from estimator_pipeline.models.keras_runtime.model_fn.exports import export_saved_model
from estimator_pipeline.models.keras_runtime.model_fn.inputs import dataset

__all__ = ["train_and_evaluate"]


@eagerly
def train_and_evaluate(
    estimator: Any, train_spec: settings.TrainSpec, eval_spec: settings.EvalSpec
) -> tuple[dict[str, float] | None, list[bytes | None]]:
    """Trains until `max_steps`; evaluates and exports after checkpoints, `throttle_secs` apart, and at the end.

    Args:
        estimator: a ModelFnModel.
        train_spec: what it trains on.
        eval_spec: what it is evaluated on.

    Returns:
        The metrics of the last evaluation, and for each exporter the folder that it wrote last; None, where a model
        had come to `max_steps` before.
    """
    evaluations = _Evaluations(estimator, eval_spec)
    history = estimator.fit(
        dataset(train_spec.input_fn, "train", estimator),
        max_steps=train_spec.max_steps, hooks=train_spec.hooks,
        saving_listeners=[*(train_spec.saving_listeners or ()), evaluations],
    )  # fmt: skip
    if history is None:
        return None, []
    return evaluations.result, evaluations.exported()


class _Evaluations:
    """Evaluates after checkpoints, as a listener of them."""

    def __init__(self, model: Any, spec: settings.EvalSpec) -> None:
        self._model, self._spec = model, spec
        given = spec.exporters
        listed = [given] if not isinstance(given, list | tuple) else list(given)
        self._exporters = [_exporter(one) for one in listed if one is not None]
        self._exports: list[bytes | None] = [None for _ in self._exporters]
        self._step, self._time = -1, 0.0
        self._results: list[dict[str, float]] = []
        self.result: dict[str, float] | None = None

    def begin(self) -> None:
        """Reads the results of an earlier run: its best one is to be beaten."""
        self._results = [one for one in self._kept() if one["global_step"] <= self._model.global_step]
        self._first = True

    def before_save(self, session: Any, step: int) -> None:
        """Nothing is done before a checkpoint."""

    def after_save(self, session: Any, step: int) -> bool:
        """Evaluates, where it is time to; not for the checkpoint that a training begins with."""
        if self._first:
            self._first, self._time = False, time.monotonic()
        elif time.monotonic() - self._time >= self._spec.throttle_secs:
            self._evaluate(step)
        return False

    def end(self, session: Any, step: int) -> None:
        """Evaluates what was trained last, and exports what is exported once."""
        if self._step != step:
            self._evaluate(step)
        for place, exporter in enumerate(self._exporters):
            if isinstance(exporter, keras_evaluation.FinalExporter):
                self._export(place, exporter)

    def exported(self) -> list[bytes | None]:
        """For each exporter the folder that it wrote last."""
        return self._exports

    def _evaluate(self, step: int) -> None:
        spec, model = self._spec, self._model
        data = dataset(spec.input_fn, "eval", model)
        found = model.evaluate(data, return_dict=True, steps=spec.steps, hooks=spec.hooks, name=spec.name)
        self.result, self._step, self._time = found, step, time.monotonic()
        told = ", ".join(f"{name} = {found[name]}" for name in found)
        print(f"evaluation at step {step}: {told}")
        numbers = {name: float(value) for name, value in found.items() if not hasattr(value, "shape")}
        self._results.append(numbers)
        self._keep()
        for place, exporter in enumerate(self._exporters):
            if exporter.is_due(self._results):
                self._export(place, exporter)

    def _export(self, place: int, exporter: Any) -> None:
        self._exports[place] = exporter.write(self._model, os.path.join(self._model.model_dir, "export", exporter.name))

    def _keep(self) -> None:
        tf = compat.tensorflow()
        folder = self._model.eval_dir(self._spec.name)
        tf.io.gfile.makedirs(folder)
        path = os.path.join(folder, "evaluations.json")
        with tf.io.gfile.GFile(f"{path}.unfinished", "w") as file:
            file.write(json.dumps(self._results))
        tf.io.gfile.rename(f"{path}.unfinished", path, overwrite=True)

    def _kept(self) -> list[dict[str, float]]:
        gfile = compat.tensorflow().io.gfile
        path = os.path.join(self._model.eval_dir(self._spec.name), "evaluations.json")
        if not gfile.exists(path):
            return []
        with gfile.GFile(path) as file:
            found: list[dict[str, float]] = json.loads(file.read())
        return found


def _exporter(one: Any) -> Any:
    """The exporter of Keras evaluations that does the same."""

    def export(model: Any, folder: str) -> bytes:
        return export_saved_model(model, folder, one.serving_input_receiver_fn, one.assets_extra, one.as_text)

    if isinstance(one, settings.FinalExporterSpec):
        return keras_evaluation.FinalExporter(one.name, export)
    if isinstance(one, settings.BestExporterSpec):
        return keras_evaluation.BestExporter(
            one.name, export, compare=one.compare_fn, exports_to_keep=one.exports_to_keep
        )
    return keras_evaluation.LatestExporter(one.name, export, exports_to_keep=one.exports_to_keep)
