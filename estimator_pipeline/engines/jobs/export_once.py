"""Exports that are made once for a checkpoint, and whole: a finished job that is run again does not export again.

What an exporter wrote last is in the file `export/NAME.last.json` beside its exports, written whole and after them. An
export that was removed is made anew, and so is one of a job whose model, data or signatures have changed. What a killed
process or a failure has left of one is taken away.
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

# Before the number of an export that is being written, by every exporter; then it is renamed.
_UNFINISHED = "temp-"


def fingerprint(*documents: Any) -> str:
    """What tells what an export is made of, besides the checkpoint.

    Args:
        *documents: of plain values.
    """
    return hashlib.sha256(json.dumps(documents, sort_keys=True, default=str).encode()).hexdigest()


def once(exporter: Any, made_of: str, *, final: bool) -> Any:
    """An exporter that gives the export which it made of a checkpoint before, where that is still there.

    Args:
        exporter: has `name` and `export`, and exports every checkpoint that it gets, or the final one.
        made_of: see :func:`fingerprint`.
        final: whether it exports the final checkpoint alone.
    """
    base: Any = _base()

    class Once(base):
        name = exporter.name

        def export(
            self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
        ) -> Any:
            record = f"{export_path.rstrip('/')}.last.json"
            stands = {"made_of": made_of, **_stamp(checkpoint_path)}
            before = _read(record) if is_the_final_export or not final else {}
            path = os.path.join(export_path, str(before.get("export", "")))
            gfile = compat.tensorflow().io.gfile
            if stands.items() <= before.items() and before.get("export") and gfile.isdir(path):
                logger.info("%s was exported before: %s (to export it anew, remove that)", checkpoint_path, path)
                return path
            found = exporter.export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
            if found:
                written = found.decode() if isinstance(found, bytes) else os.fspath(found)
                with gfile.GFile(f"{record}.unfinished", "w") as file:
                    file.write(json.dumps({**stands, "export": os.path.basename(written.rstrip("/"))}))
                durable.rename(f"{record}.unfinished", record, by=functools.partial(gfile.rename, overwrite=True))
            return found

    return Once()


def tidy(exporter: Any) -> Any:
    """An exporter that leaves no half exports: neither those of a process that was killed, nor its own when it fails.

    Where the evaluator lags, a checkpoint may be deleted while it is exported.

    Args:
        exporter: has `name` and `export`, and is the only one that exports there.
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
    # In a process with Keras 3 there are no Exporters of TensorFlow, and nobody who asks for one.
    return object if compat.keras_generation() == 3 else compat.tensorflow().estimator.Exporter


def _remove_unfinished(export_path: str) -> None:
    tf = compat.tensorflow()
    with contextlib.suppress(tf.errors.OpError):  # there are no exports yet; or a file system that is at its end
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
            found = json.loads(file.read())
    except (compat.tensorflow().errors.OpError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
