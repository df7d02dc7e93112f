"""Exports written once per checkpoint: a finished job that is run again does not export again.

`export/NAME.last.json` beside the exports describes the last one. It is written atomically, after the export. The
export is written again if it was removed, or if the job's model, data or signatures have changed. Partial exports of a
killed process or a failure are removed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.logger import logger

__all__ = ["fingerprint", "once", "tidy"]

# Prefix of an unfinished export, for every exporter; removed by a rename when it is complete.
_UNFINISHED = "temp-"


def fingerprint(*documents: Any) -> str:
    """Return a digest of what determines an export besides the checkpoint.

    Args:
        *documents: Plain values.
    """
    return hashlib.sha256(json.dumps(documents, sort_keys=True, default=str).encode()).hexdigest()


def once(exporter: Any, digest: str, *, final: bool) -> Any:
    """Return an exporter that returns the existing export of a checkpoint, if there is one.

    Args:
        exporter: Has `name` and `export`, and exports every checkpoint or the final one.
        digest: See `fingerprint`.
        final: Whether it exports only the final checkpoint.
    """
    base: Any = _base()

    class Once(base):
        name = exporter.name

        def export(
            self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
        ) -> Any:
            record = f"{export_path.rstrip('/')}.last.json"
            current = {"made_of": digest, **_stamp(checkpoint_path)}
            before = _read(record) if is_the_final_export or not final else {}
            path = os.path.join(export_path, str(before.get("export", "")))
            gfile = compat.tensorflow().io.gfile
            if current.items() <= before.items() and before.get("export") and gfile.isdir(path):
                logger.info("%s was exported before: %s (to export it again, remove that)", checkpoint_path, path)
                return path
            exported = exporter.export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
            if exported:
                written = exported.decode() if isinstance(exported, bytes) else os.fspath(exported)
                with gfile.GFile(f"{record}.unfinished", "w") as file:
                    file.write(json.dumps({**current, "export": os.path.basename(written.rstrip("/"))}))
                durable.rename(f"{record}.unfinished", record, by=functools.partial(gfile.rename, overwrite=True))
            return exported

    return Once()


def tidy(exporter: Any) -> Any:
    """Return an exporter that removes partial exports: of a killed process or after a failure.

    If the evaluator lags, a checkpoint may be deleted while it is exported.

    Args:
        exporter: Has `name` and `export`, and is the only exporter that writes there.
    """
    base: Any = _base()

    class Tidy(base):
        name = exporter.name

        def export(
            self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
        ) -> Any:
            _remove_unfinished(export_path)
            try:
                return exporter.export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
            except BaseException:
                _remove_unfinished(export_path)
                raise

    return Tidy()


def _base() -> Any:
    # A process with Keras 3 has no tf.estimator.Exporter, and does not need one.
    return object if compat.keras_generation() == 3 else compat.tensorflow().estimator.Exporter


def _remove_unfinished(export_path: str) -> None:
    tf = compat.tensorflow()
    with contextlib.suppress(tf.errors.OpError):  # no exports yet, or a failing file system
        for name in tf.io.gfile.listdir(export_path):
            if name.startswith(_UNFINISHED):
                tf.io.gfile.rmtree(os.path.join(export_path, name.rstrip("/")))


def _stamp(checkpoint: str) -> dict[str, Any]:
    about = compat.tensorflow().io.gfile.stat(f"{checkpoint}.index")
    return {"checkpoint": os.path.basename(checkpoint), "bytes": about.length, "time": about.mtime_nsec}


def _read(record: str) -> Mapping[str, Any]:
    gfile = compat.tensorflow().io.gfile
    try:
        with gfile.GFile(record) as file:
            document = json.loads(file.read())
    except (compat.tensorflow().errors.OpError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
