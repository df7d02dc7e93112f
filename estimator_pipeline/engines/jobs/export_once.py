"""Exports written once per checkpoint: a finished job that is run again does not export again.

`export/NAME.last.json` beside the exports describes the last one. It is written atomically, after the export. The
export is written again if it was removed, or if the job's model, data or signatures have changed. Partial exports of a
killed process or a failure are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.disk_errors import write_whole
from estimator_pipeline.utils.logger import logger

__all__ = ["once"]

# Prefix of an unfinished export, for every exporter; removed by a rename when it is complete.
_UNFINISHED = "temp-"


def once(exporter: Any, made_of: Any, *, final: bool = False) -> Any:
    """Return an exporter of the same name that leaves no partial exports, and exports a checkpoint only once.

    Partial exports are those of a killed process, or of a failure: if the evaluator lags, a checkpoint may be deleted
    while it is exported.

    Args:
        exporter: Has `name` and `export`, and is the only exporter that writes there.
        made_of: What determines an export besides the checkpoint, as plain values; None: the exporter chooses the
            checkpoints that it exports.
        final: Whether it exports only the final checkpoint.
    """
    # A process with Keras 3 has no tf.estimator.Exporter, and does not need one.
    base: Any = object if compat.keras_generation() == 3 else compat.tensorflow().estimator.Exporter
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()

    class JobExporter(base):
        name = exporter.name

        def export(
            self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
        ) -> Any:
            current = {} if made_of is None else {"made_of": digest, **_stamp(checkpoint_path)}
            if current and (is_the_final_export or not final) and (path := _existing(export_path, current)):
                logger.info("%s was exported before: %s (to export it again, remove that)", checkpoint_path, path)
                return path
            _remove_unfinished(export_path)
            try:
                exported = exporter.export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
            except BaseException:
                _remove_unfinished(export_path)
                raise
            if exported and current:
                record = {**current, "export": os.path.basename(os.fsdecode(exported).rstrip("/"))}
                write_whole(_record(export_path), json.dumps(record))
            return exported

    return JobExporter()


def _remove_unfinished(export_path: str) -> None:
    tf = compat.tensorflow()
    with contextlib.suppress(tf.errors.OpError):  # no exports yet, or a failing file system
        for name in tf.io.gfile.listdir(export_path):
            if name.startswith(_UNFINISHED):
                tf.io.gfile.rmtree(os.path.join(export_path, name.rstrip("/")))


def _stamp(checkpoint: str) -> dict[str, Any]:
    about = compat.tensorflow().io.gfile.stat(f"{checkpoint}.index")
    return {"checkpoint": os.path.basename(checkpoint), "bytes": about.length, "time": about.mtime_nsec}


def _record(export_path: str) -> str:
    return f"{export_path.rstrip('/')}.last.json"


def _existing(export_path: str, current: Mapping[str, Any]) -> str | None:
    """Return the existing export that was made of the same, if any."""
    gfile = compat.tensorflow().io.gfile
    try:
        with gfile.GFile(_record(export_path)) as file:
            before = json.loads(file.read())
    except (compat.tensorflow().errors.OpError, ValueError):
        return None
    if not isinstance(before, dict) or not before.get("export") or not current.items() <= before.items():
        return None
    path = os.path.join(export_path, str(before["export"]))
    return path if gfile.isdir(path) else None
