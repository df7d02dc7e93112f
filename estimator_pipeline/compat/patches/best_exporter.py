"""BestExporter keeps its best result across restarts, and never exports a worse model than the existing one.

In tf.estimator the first export of every process ignores the result, so a restarted job replaces a better model with a
worse one (tensorflow/tensorflow#47396). It reads the event files, but only after the current result was written there,
and its pattern misses named evaluations.

Here the best result is stored in a file next to the exports: `export/NAME.best.json` for `export/NAME/`. It is not
among the exports, where a model server or a script looks for the newest entry. The file is written atomically before
each export (with the pending export) and after it, so that a crash at any time leaves a record that describes the
newest directory.

If there are exports without such a file (from an older program), the best result in the event files is used, except
that of the current checkpoint. If there is neither, the model is exported, and the log has the reason. Results that the
program's `compare_fn` cannot compare are ignored.

A result with NaN in the compared metrics is not exported, and never prevents a later export (`utils/best_results.py`).
An evaluation without metrics is exported only if there is no export yet, as in tf.estimator.

Private use: the attributes of the estimator package's `BestExporter`, which has no public API for them.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.compat.patches import literal_paths
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.best_results import is_better, is_number, nan_metrics
from estimator_pipeline.utils.logger import logger

NAME = "best-exporter"
WHAT = "BestExporter keeps its best result across restarts, and never treats NaN as the best"

_VERSION = 1
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, IndexError)  # errors of reading a damaged file


def apply() -> None:
    from tensorflow_estimator.python.estimator import exporter

    original = exporter.BestExporter.export
    if getattr(original, "patch", None) == NAME:
        return

    @functools.wraps(original)
    def export(
        self: Any,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> Any:
        record, result = _Record(export_path), eval_result or {}
        if self._model_dir != estimator.model_dir:
            self._model_dir = estimator.model_dir
            self._best_eval_result = _best_so_far(self, record, result)
        if not _is_due(self, result, checkpoint_path):
            return None
        logger.info("Performing best model export.")
        record.begin(result, checkpoint_path)
        path = self._saved_model_exporter.export(
            estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        )
        record.finish(path)
        self._best_eval_result = result or None
        self._has_exported = True
        self._garbage_collect_exports(export_path)
        return path

    export.patch = NAME  # type: ignore[attr-defined]
    exporter.BestExporter.export = export


def _is_due(exporter: Any, result: Mapping[str, Any], checkpoint: str) -> bool:
    """Whether a result is better than the best one, or is the first and comparable with later ones."""
    best, compare = exporter._best_eval_result, exporter._compare_fn
    if not result:
        return best is None
    if best is not None:
        return is_better(compare, best, result)
    if is_number(compare, result):
        return True
    logger.warning(
        "%s is not exported as the best model: some of the compared metrics are NaN (%s).",
        *(checkpoint, ", ".join(nan_metrics(result))),
    )
    # It is not on disk, but a later result may be better by a different one of the compared metrics.
    exporter._best_eval_result = result
    return False


def _best_so_far(exporter: Any, record: _Record, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the best result of the exports on disk; None without any, or without a result to compare."""
    exports = record.exports()
    if not exports:
        return None
    best = record.best(exports) or None
    source = record.path
    if best is None and exporter._event_file_pattern:
        source = "the event files"
        best = _best_of_events(exporter, result)
    if best is None:
        logger.warning(
            "The results of the exports in %s are unknown: there is no %s, and no result in the event files. The "
            "current model is exported, whether it is better or not.",
            *(record.directory, record.path),
        )
        return None
    if result and not _comparable(exporter, best, result):
        logger.warning(
            "The best result so far, from %s, cannot be compared with the current one; the metrics may have changed. "
            "The current model is exported, whether it is better or not. Best so far: %s",
            *(source, sorted(best)),
        )
        return None
    return best


def _comparable(exporter: Any, best: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    try:
        exporter._compare_fn(best_eval_result=best, current_eval_result=result)
    except (KeyError, ValueError, TypeError):
        return False
    return True


class _Record:
    """The file with the best result of one exporter."""

    def __init__(self, directory: str) -> None:
        import tensorflow as tf

        self._tf: Any = tf
        self._gfile: Any = tf.io.gfile
        self.directory = os.fspath(directory).rstrip("/")
        self.path = f"{self.directory}.best.json"
        self._exporting: dict[str, Any] = {}

    def exports(self) -> list[str]:
        """Return the names of the exported directories, oldest first."""
        if not self._gfile.isdir(self.directory):
            return []
        names = [name.rstrip("/") for name in self._gfile.listdir(self.directory)]
        return sorted((name for name in names if name.isdigit()), key=int)

    def best(self, exports: list[str]) -> Mapping[str, Any] | None:
        """Return the result of the newest export from the file; None, with a warning, if it is damaged."""
        try:
            document = self._read()
            if document is None:
                return None
            entry = document["exported"]
            # A pending export is the newest directory, unless that existed before; then it was never written.
            if "exporting" in document and exports[-1] not in document["before"]:
                entry = document["exporting"]
            elif entry is not None and entry["export"] not in exports:
                logger.warning("%s describes an export that was deleted: %s", self.path, entry["export"])
                return None
            return entry and {name: _decoded(value) for name, value in entry["metrics"].items()}
        except _DAMAGED as error:
            logger.warning(
                "%s is damaged and not used (%s: %s). Delete it, or restore the correct file.",
                *(self.path, type(error).__name__, error),
            )
        return None

    def begin(self, metrics: Mapping[str, Any], checkpoint: str) -> None:
        """Record the pending export."""
        exported = None
        with contextlib.suppress(*_DAMAGED):
            exported = (self._read() or {})["exported"]
        self._exporting = {
            "checkpoint": os.path.basename(checkpoint or ""),
            "metrics": {name: _encoded(value) for name, value in metrics.items()},
        }
        self._write({"exported": exported, "exporting": self._exporting, "before": self.exports()})

    def finish(self, path: Any) -> None:
        """Record that the export was written."""
        name = os.path.basename(os.fsdecode(path).rstrip("/"))
        self._write({"exported": {"export": name, **self._exporting}})

    def _read(self) -> dict[str, Any] | None:
        try:
            with self._gfile.GFile(self.path, "r") as file:
                document: dict[str, Any] = json.loads(file.read())
        except self._tf.errors.NotFoundError:
            return None
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']} is not known")
        return document

    def _write(self, document: Mapping[str, Any]) -> None:
        self._gfile.makedirs(os.path.dirname(self.path))
        text = json.dumps({"version": _VERSION, **document}, indent=1)
        durable.write(self.path, text.encode(), gfile=self._gfile)


def _encoded(value: Any) -> dict[str, Any]:
    """Encode a metric as JSON, with its type and bit-exact."""
    if isinstance(value, bytes):
        return {"type": "bytes", "value": base64.b64encode(value).decode()}
    import numpy as np

    array = np.asarray(value)
    kind = "float" if array.dtype.kind not in "biuf" else str(array.dtype)
    # float64 represents all smaller float types exactly, and Python's JSON round-trips it.
    return {"type": kind, "value": array.astype(np.float64).tolist() if array.dtype.kind == "f" else array.tolist()}


def _decoded(stored: Mapping[str, Any]) -> Any:
    if stored["type"] == "bytes":
        return base64.b64decode(stored["value"])
    import numpy as np

    return np.asarray(stored["value"], dtype=stored["type"])[()]


def _best_of_events(exporter: Any, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the best result in the event files of the evaluation, except that of the current step."""
    best = None
    for step, candidate in _evaluations(exporter._model_dir, exporter._event_file_pattern):
        if step == result.get("global_step") or not _comparable(exporter, candidate, result):
            continue
        if best is None or is_better(exporter._compare_fn, best, candidate):
            best = candidate
    return best


def _evaluations(model_dir: str, pattern: str) -> list[tuple[int, dict[str, float]]]:
    """Return (step, tag -> value) of every evaluation in the event files."""
    import tensorflow as tf

    gfile: Any = tf.io.gfile
    model_dir = literal_paths.folder(model_dir)
    files = sorted(gfile.glob(os.path.join(model_dir, pattern)))
    if not files and pattern == "eval/*.tfevents.*":
        # The default pattern misses named evaluations. A single such folder is unambiguous.
        folders = sorted({os.path.dirname(f) for f in gfile.glob(os.path.join(model_dir, "eval_*", "*.tfevents.*"))})
        if len(folders) == 1:
            files = sorted(gfile.glob(os.path.join(folders[0], "*.tfevents.*")))
    evaluations = []
    for path in files:
        try:
            for event in tf.compat.v1.train.summary_iterator(path):
                values = {v.tag: v.simple_value for v in event.summary.value if v.HasField("simple_value")}
                if values:
                    evaluations.append((event.step, values))
        except tf.errors.DataLossError as error:
            # The last record of a process that was killed.
            logger.warning("%s is read up to its damaged part: %s", path, error.message)
    return evaluations
