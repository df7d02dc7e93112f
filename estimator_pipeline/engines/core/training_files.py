"""Check at each checkpoint that the training files are those that the run has read so far.

Records are read by their place in the files, for as long as training runs: in a file that is overwritten in between,
the same places have other records. A restart compares the content of the files (`model_dir/run_identity.py`); this
check compares size, modification time and inode, and reads only files in which one of these has changed. New files
beside them are no change.
"""

from __future__ import annotations

import os
import time
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

__all__ = ["TrainingFiles"]

_Stat = tuple[int, int, int] | None


class TrainingFiles:
    """The files of a training input function, as they are now.

    Args:
        input_fn: The training input function; one that does not name its files has none.
        accept: Whether training continues with changed files, with a warning.
    """

    def __init__(self, input_fn: Any, *, accept: bool) -> None:
        self._input_fn, self._accept = input_fn, accept
        paths = getattr(input_fn, "files", {}).values()
        self._stats = {path: _stat(path) for path in paths if "://" not in path}

    def check(self, step: int) -> None:
        """Check the files, before the checkpoint of a step is written.

        Raises:
            ConfigError: A file from which training still reads has different content.
        """
        changed, removed = [], True
        for path, before in self._stats.items():
            now = _stat(path)
            if now == before:
                continue
            self._stats[path] = now
            if now is None or not self._input_fn.is_unchanged(path):
                changed.append(f"{path} {_described(before, now)}")
                removed = removed and now is None
        if not changed:
            return
        description = few(changed, 3, separator="; ")
        if self._input_fn.is_in_memory:
            logger.warning(
                "Training files have changed by step %d: %s. This run trains on the records that it read at its start; "
                "it cannot be resumed with these files",
                *(step, description),
            )
        elif self._accept or removed:
            # A file that is read is open: its records can be read although it is removed.
            logger.warning("Training files have changed by step %d, and training continues: %s", step, description)
        else:
            raise ConfigError(
                f"training files have changed while this run reads them, by step {step}",
                code="model-dir/other-run",
                found=description,
                hint="restore the files and start the job again, or accept the change with --accept-changes "
                "(run.accept_changes): training then resumes from the last checkpoint, which is of an earlier step",
            )


def _stat(path: str) -> _Stat:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _described(before: _Stat, now: _Stat) -> str:
    if now is None or before is None:
        return "was removed" if now is None else "was created again"
    if now[0] != before[0]:
        return f"has {now[0]} bytes instead of {before[0]}"
    if now[1] != before[1]:
        return f"was modified at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now[1] / 1e9))}"
    return "was replaced by a different file of the same size and time"
