"""Evaluation, exports and early stopping of `train_and_evaluate`, as a callback of `Model.fit`.

    from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation

    evaluation = keras_evaluation.Evaluation(
        lambda: read("eval.csv"), every_steps=200, folder="model",
        exporters=[keras_evaluation.BestExporter("best", export)],
        stop=[keras_evaluation.stop_if_no_decrease("loss", max_steps_without_decrease=1000)])
    model.fit(read("train.csv"), steps_per_epoch=5000, callbacks=[evaluation])
    print(evaluation.result, evaluation.exports)

All intervals are in steps of the optimizer, not in epochs. Every worker evaluates, because collectives need all
workers; only the chief writes files.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.distribute import replica_sync as replica_means
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models import summaries as event_files
from estimator_pipeline.models.keras_runtime import distribution as keras_cluster
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.best_results import is_better, is_number

__all__ = [
    "BestExporter", "Evaluation", "FinalExporter", "LatestExporter", "new_export_folder", "stop_if_higher",
    "stop_if_lower", "stop_if_no_decrease", "stop_if_no_increase",
]  # fmt: skip

Result = Mapping[str, float]


def Evaluation(
    data: Any,
    *,
    every_steps: int | None = None,
    throttle_secs: float | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    folder: str | None = None,
    exporters: Sequence[LatestExporter] = (),
    stop: Sequence[Callable[[Sequence[Result]], bool]] = (),
    write: Callable[[str], Any] = print,
    tf_config: TFConfig | None = None,
    environ: Mapping[str, str] | None = None,
) -> Any:
    """Return a callback that evaluates the model at an interval of steps and when training ends.

    An evaluation does not change the training metrics that `fit` reports, except for rounding on several replicas.

    Results are stored in `FOLDER/eval/evaluations.json` (`eval_NAME` with a name). A job that is killed and resumes
    from its backup reads the best result and its step from there. Results of later steps than the step at which
    training starts belong to a different run and are discarded.

    Args:
        data: The evaluation data: a dataset, or a function without arguments that returns one for each evaluation.
        every_steps: Steps of the optimizer between evaluations.
        throttle_secs: Use instead of `every_steps` for a model that writes its own checkpoints and evaluation event
            files. It is evaluated after a checkpoint, if the last evaluation started at least that many seconds
            before, and when training ends. The callback is then a listener of checkpoints, as
            `tf.compat.v1.train.CheckpointSaverListener`.
        options: Further arguments of `model.evaluate`.
        name: The name of the evaluation, if there are several.
        folder: The model's folder, for TensorBoard files as an Estimator writes them, and for exports; None: neither.
        exporters: Exporters that run after an evaluation and write below `FOLDER/export`.
        stop: Functions of all results so far, the oldest first; training stops if one returns True.
        write: Called with a line for each evaluation.
        tf_config: The cluster and the task of this process; by default read from `environ`.
        environ: The mapping with TF_CONFIG; `os.environ` by default.

    Returns:
        A `tf.keras.callbacks.Callback` with `result`, the metrics and `global_step` of the last evaluation; `results`,
        those of all evaluations; and `exports`, the last export of each exporter, or None.

    Raises:
        ConfigError: The interval is invalid, both intervals are set, or there are exporters without a folder.
        ClusterError: The cluster has parameter servers, or this task is an evaluator; the workers evaluate.
    """
    if throttle_secs is not None and every_steps is not None:
        raise ConfigError(
            "Evaluation: every_steps and throttle_secs are both set",
            code="argument/conflict",
            hint="set only one of them",
        )
    counts = isinstance(every_steps, int) and not isinstance(every_steps, bool) and every_steps > 0
    if throttle_secs is None and not counts:
        raise ConfigError(
            f"Evaluation: every_steps is {every_steps!r}",
            code="argument/bad-value",
            hint="give a number of steps, 1 or more",
        )
    if exporters and folder is None:
        raise ConfigError(
            "Evaluation has exporters, and no folder for their exports", code="argument/missing", hint="give folder="
        )
    task = tf_config if tf_config is not None else from_environ(os.environ if environ is None else environ)
    keras_cluster.Cluster(task)  # raises on parameter servers and evaluators, which train_and_evaluate supported
    return _callback_class()(data, every_steps, throttle_secs, options, name, folder, exporters, stop, write, task)


@functools.cache
def _callback_class() -> Callable[..., Any]:
    tf = compat.tensorflow()
    base: Any = tf.keras.callbacks.Callback

    class Evaluation(base):
        _supports_tf_logs = True  # the logs are not read, so Keras need not wait for each step

        def __init__(
            self, data: Any, every: Any, throttle: Any, options: Mapping[str, Any] | None, name: str | None,
            folder: str | None, exporters: Any, stop: Any, write: Any, task: TFConfig,
        ) -> None:  # fmt: skip
            super().__init__()
            self.result: dict[str, Any] = {}
            self.results: list[dict[str, float]] = []
            self.exports: list[bytes | None] = [None for _ in exporters]
            self._data, self._every, self._exporters, self._stop = data, every, exporters, stop
            self._write_line, self._task, self._folder = write, task, folder
            self._throttle, self._options = throttle, dict(options or {})
            self._place = os.path.join(folder, f"eval_{name}" if name else "eval") if folder is not None else None
            self._label = f"Evaluation {name!r}" if name else "Evaluation"
            self._step, self._begun, self._started = 0, 0, False
            self._writer: Any = None

        def on_train_begin(self, logs: Any = None) -> None:
            self._started = False

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            # Not in on_train_begin: a callback that restores a checkpoint may run after this one.
            self._step = int(self.model.optimizer.iterations.numpy())
            if not self._started:
                self._started = True
                self.results = [result for result in self._read() if self._step and result["global_step"] <= self._step]

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._begun = batch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            before = self._step
            # With steps_per_execution, one call covers several steps.
            self._step += int(batch) - int(self._begun) + 1
            if self._step // self._every > before // self._every:
                self._evaluate()

        def on_train_end(self, logs: Any = None) -> None:
            if not self.result or self.result["global_step"] != self._step:
                self._evaluate()
            for place, exporter in enumerate(self._exporters):
                if isinstance(exporter, FinalExporter):
                    self.exports[place] = self._exported(exporter)
            if self._writer is not None:
                self._writer.close()
                self._writer = None

        # Methods of a CheckpointSaverListener

        def begin(self) -> None:
            self._due: float | None = None
            self.on_train_begin()
            self.on_epoch_begin(0)

        def before_save(self, session: Any, step: int) -> None:
            pass

        def after_save(self, session: Any, step: int) -> bool:
            now = time.monotonic()
            # Training starts with a checkpoint. The one after it is evaluated immediately, as in an Estimator.
            if self._due is None:
                self._due = now
            elif now >= self._due:
                self._due, self._step = now + self._throttle, step
                self._evaluate()
            return False

        def end(self, session: Any, step: int) -> None:
            self._step = step
            self.on_train_end()

        def _evaluate(self) -> None:
            data = _by_records(self._data() if callable(self._data) else self._data, self._task)
            variables = [variable for metric in self.model.metrics for variable in metric.variables]
            kept = tf.keras.backend.batch_get_value(variables)
            history = self.model.history  # evaluate creates a new history, which fit would return
            with moving_averages.averaged_weights(self.model), replica_means.alike(self.model):
                metrics = self.model.evaluate(data, return_dict=True, verbose=0, **self._options)
            self.model.history = history
            tf.keras.backend.batch_set_value(list(zip(variables, kept, strict=True)))
            metrics = {key: metrics[key] for key in sorted(metrics) if key != "global_step"}
            numbers = {key: float(value) for key, value in metrics.items() if not np.ndim(value)}
            self.result = metrics | numbers | {"global_step": self._step}
            self.results.append(numbers | {"global_step": self._step})
            if self._task.is_chief:
                formatted = ", ".join(f"{key} = {value:.6g}" for key, value in numbers.items())
                self._write_line(f"{self._label} at step {self._step}: {formatted}")
                self._keep()
            for place, exporter in enumerate(self._exporters):
                if exporter.is_due(self.results):
                    self.exports[place] = self._exported(exporter)
            for rule in self._stop:
                if rule(self.results):
                    self.model.stop_training = True

        def _exported(self, exporter: LatestExporter) -> bytes | None:
            with moving_averages.averaged_weights(self.model):
                return self._written(exporter)

        def _written(self, exporter: LatestExporter) -> bytes | None:
            path = os.path.join(str(self._folder), "export", exporter.name)
            if self._task.is_chief:
                return exporter.write(self.model, path)
            # Per-replica values are gathered from all replicas, so every worker writes and only one copy is kept.
            path = os.path.join(path, f"tmp_{self._task.task.type}_{self._task.task.index}")
            exporter.write(self.model, path)
            tf.io.gfile.rmtree(path)
            return None

        def _keep(self) -> None:
            """Write all results to the JSON file, and the last one for TensorBoard."""
            if self._place is None:
                return
            tf.io.gfile.makedirs(self._place)
            path = os.path.join(self._place, "evaluations.json")
            with tf.io.gfile.GFile(f"{path}.unfinished", "w") as file:
                file.write(json.dumps(self.results))
            durable.rename(f"{path}.unfinished", path, by=functools.partial(tf.io.gfile.rename, overwrite=True))
            if self._throttle is None:
                self._writer = self._writer or tf.summary.create_file_writer(self._place)
                event_files.write_scalars(self._writer, self.results[-1], step=self._step)

        def _read(self) -> list[dict[str, float]]:
            path = "" if self._place is None else os.path.join(self._place, "evaluations.json")
            if not path or not tf.io.gfile.exists(path):
                return []
            with tf.io.gfile.GFile(path) as file:
                results: list[dict[str, float]] = json.loads(file.read())
            return results

    return Evaluation


def _by_records(data: Any, task: TFConfig) -> Any:
    """Shard a dataset by examples instead of files, since there may be fewer files than workers."""
    tf = compat.tensorflow()
    if task.num_training_tasks < 2 or not isinstance(data, tf.data.Dataset):
        return data
    policies = tf.data.experimental.AutoShardPolicy
    if data.options().experimental_distribute.auto_shard_policy != policies.AUTO:
        return data
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return data.with_options(options)


# Exporters


def new_export_folder(base: str) -> str:
    """Return a new folder name in `base`, the time in seconds; wait if the name is already used."""
    gfile = compat.tensorflow().io.gfile
    while gfile.exists(path := os.path.join(base, str(int(time.time())))):
        time.sleep(0.05)
    return path


class LatestExporter:
    """Exporter that runs after each evaluation.

    Args:
        name: The name of the folder below `export/`.
        export: `export(model, folder)` writes a SavedModel into a new folder below `folder`, named after the time in
            seconds, and returns its name.
        exports_to_keep: The number of exports to keep; None: all.
    """

    def __init__(self, name: str, export: Callable[[Any, str], bytes], *, exports_to_keep: int | None = 5) -> None:
        self.name = name
        self._export, self._keep = export, exports_to_keep

    def is_due(self, results: Sequence[Result]) -> bool:
        """Return whether to export the model of the last result."""
        return True

    def write(self, model: Any, folder: str) -> bytes:
        """Export the model, and remove the oldest exports beyond `exports_to_keep`."""
        gfile = compat.tensorflow().io.gfile
        new_export_folder(folder)  # only waits for a free name: `export` chooses the name
        path = self._export(model, folder)
        times = sorted(int(name.strip("/")) for name in gfile.listdir(folder) if name.strip("/").isdigit())
        for old in times[: -self._keep] if self._keep else ():
            gfile.rmtree(os.path.join(folder, str(old)))
        return path


class BestExporter(LatestExporter):
    """Exporter that runs if the result is better than all before it, including those before a restart.

    Args:
        name: The name of the folder below `export/`.
        export: As for `LatestExporter`.
        compare: `compare(best_eval_result=, current_eval_result=)` returns whether the current result is better; by
            default whether its loss is smaller.
        exports_to_keep: The number of exports to keep; None: all.
    """

    def __init__(
        self,
        name: str,
        export: Callable[[Any, str], bytes],
        *,
        compare: Callable[..., bool] | None = None,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, export, exports_to_keep=exports_to_keep)
        self._compare = compare or _of_smaller_loss

    def is_due(self, results: Sequence[Result]) -> bool:
        """Return whether the last result is the first or the best so far, and not NaN."""
        *before, last = results
        if not before:
            return is_number(self._compare, last)
        best = functools.reduce(lambda left, right: right if self._is_better(left, right) else left, before)
        return self._is_better(best, last)

    def _is_better(self, best: Result, current: Result) -> bool:
        return is_better(self._compare, best, current)


def _of_smaller_loss(best_eval_result: Result, current_eval_result: Result) -> bool:
    return current_eval_result["loss"] < best_eval_result["loss"]


class FinalExporter(LatestExporter):
    """Exporter that runs once, when training ends.

    Args:
        name: The name of the folder below `export/`.
        export: As for `LatestExporter`.
    """

    def __init__(self, name: str, export: Callable[[Any, str], bytes]) -> None:
        super().__init__(name, export, exports_to_keep=None)

    def is_due(self, results: Sequence[Result]) -> bool:
        """Return False: this exporter never runs after an evaluation."""
        return False


# When to stop


def stop_if_no_decrease(
    metric_name: str, max_steps_without_decrease: int, *, min_steps: int = 0
) -> Callable[[Sequence[Result]], bool]:
    """Stop training if a metric has not decreased for a number of steps.

    Args:
        metric_name: The name of the metric in the evaluation's result.
        max_steps_without_decrease: Training steps since the lowest value.
        min_steps: Evaluations of earlier steps are ignored.

    Returns:
        A function of all results so far, for `stop` of `Evaluation`.
    """
    return functools.partial(_is_stale, metric_name, max_steps_without_decrease, min_steps, lambda a, b: a < b)


def stop_if_no_increase(
    metric_name: str, max_steps_without_increase: int, *, min_steps: int = 0
) -> Callable[[Sequence[Result]], bool]:
    """Stop training if a metric has not increased for a number of steps. See `stop_if_no_decrease`."""
    return functools.partial(_is_stale, metric_name, max_steps_without_increase, min_steps, lambda a, b: a > b)


def stop_if_higher(metric_name: str, threshold: float, *, min_steps: int = 0) -> Callable[[Sequence[Result]], bool]:
    """Stop training if an evaluation's metric is above a threshold."""
    return functools.partial(_is_beyond, metric_name, min_steps, lambda value: value > threshold)


def stop_if_lower(metric_name: str, threshold: float, *, min_steps: int = 0) -> Callable[[Sequence[Result]], bool]:
    """Stop training if an evaluation's metric is below a threshold."""
    return functools.partial(_is_beyond, metric_name, min_steps, lambda value: value < threshold)


def _is_stale(
    name: str, most: int, min_steps: int, is_better: Callable[[float, float], bool], results: Sequence[Result]
) -> bool:
    best: tuple[float, float] | None = None
    for step, value in _values(results, name, min_steps):
        if best is None or is_better(value, best[0]):
            best = value, step
        if step - best[1] >= most:
            return True
    return False


def _is_beyond(
    name: str, min_steps: int, is_beyond: Callable[[float], bool], results: Sequence[Result]
) -> bool:  # fmt: skip
    return any(is_beyond(value) for _, value in _values(results, name, min_steps))


def _values(results: Sequence[Result], name: str, min_steps: int) -> list[tuple[float, float]]:
    """Return (step, value) of a metric in each evaluation from `min_steps` on.

    Raises:
        ConfigError: The evaluations have no such metric.
    """
    if name not in results[-1]:
        raise ConfigError(
            f"early stopping uses the metric {name!r}, and the evaluation has no metric of that name",
            code="argument/unknown-name",
            found=", ".join(results[-1]),
            hint="use one of these",
        )
    return [(result["global_step"], result[name]) for result in results if result["global_step"] >= min_steps]
