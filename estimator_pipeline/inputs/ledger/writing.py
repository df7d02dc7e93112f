"""Writing of the records that one task consumes: ids when records are fetched, a counter when steps are finished.

TensorFlow's threads prefetch records: the ids are written there, batch by batch in order. The step only increments a
counter. Ids in the file beyond the counter were fetched but not trained on, and are not part of the ledger.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import re
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline.cluster.resolution import RUN_ID_VARIABLE
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.ledger import file_format as blocks
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.logger import logger

__all__ = ["FILE", "LedgerWriter", "RowStream"]

FILE = re.compile(r"(?P<task>[a-z_]+-\d+)\.(?P<attempt>\d+)\.ledger")

_FULL = (errno.ENOSPC, errno.EDQUOT)


class LedgerWriter:
    """The ledger file of one task and attempt.

    The tasks share the folder, which may contain files of earlier attempts. An unusable folder is an error here, before
    training starts. A full disk, or a later write error, does not end the training: it is logged once, and the ledger
    ends there or is missing.

    Args:
        folder: The folder, on a mounted file system; created if it does not exist.
        task: The task, such as "worker:0".
        tasks: All training tasks.
        asynchronous: Whether the tasks step independently.

    Raises:
        ConfigError: The folder cannot be written, and the disk is not full.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, task: str, tasks: Sequence[str], asynchronous: bool = False
    ) -> None:
        self.folder, self.asynchronous = Path(folder), asynchronous
        self._task = task
        self._about = {"version": 1, "task": task, "tasks": list(tasks), "asynchronous": asynchronous}
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._descriptor = -1
        self._end = 0
        self._broken = False
        # Without a file the count is discarded.
        self._counter: Any = {}
        self._segment, self._done = 0, 0
        self._generations: list[_Generation] = []
        self._consumed = -1
        if "://" in str(folder):
            raise ConfigError(
                f"the ledger cannot be written to {folder}: it is appended to, and an object store cannot do that",
                code="file/unwritable",
                hint="name a folder of a file system: run.ledger in a job file, --ledger for exec",
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            if error.errno in _FULL:
                self._give_up(error)
                return
            raise ConfigError(
                f"the ledger cannot be written to {folder}: {error.strerror or error}",
                code="file/unwritable",
                hint="name a folder that can be written to: run.ledger in a job file, --ledger for exec",
            ) from error

    # -- called when steps are finished -----------------------------------------------------------------------------

    def begin(self, start: int) -> None:
        """Record that training starts, or restarts, after the global step `start`."""
        with self._lock:
            self._open()
            if self._segment:
                self._consumed = self._generation_at(self._done)
            self._segment += 1
            segment = {"segment": self._segment, "start": start, "after": self._consumed, "time": time.time(),
                       "made": self._done, "run": os.environ.get(RUN_ID_VARIABLE) or None}  # fmt: skip
            self._done = 0
            self._append(blocks.SEGMENT, _json(segment))
            self._counter[0] = blocks.word(self._segment, 0)

    def step(self, count: int = 1) -> None:
        """Record `count` steps with the next batches."""
        self._done += count
        self._counter[0] = blocks.word(self._segment, self._done)

    def end(self) -> None:
        """Record that training is complete."""
        with self._lock:
            if self._path is None:
                return  # There was no training, or no disk space for a file.
            self._append(blocks.END, _json({"segment": self._segment, "steps": self._done}))
            self.sync()

    def sync(self) -> None:
        """Flush the file to the disk, so that after a crash a checkpoint has the ledger of its steps."""
        if not self._broken and self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)

    # -- called when records are fetched ----------------------------------------------------------------------------

    def stream(self, facts: Mapping[str, Any]) -> RowStream:
        """Return the callback for the batches of one data set.

        Args:
            facts: Metadata of the data: `kind` ("records" or "fingerprints"), `pipelines`, `pipeline`,
                `batches_per_step` (or `records_per_step`, if a batch is not a step's), `plan` for records.
        """
        return RowStream(self, dict(facts))

    def _rows(self, facts: dict[str, Any], first: bool, batches: np.ndarray | Sequence[np.ndarray]) -> None:
        with self._lock:
            self._open()
            if first or not self._generations:
                self._generations.append(_Generation(facts))
                header = {"generation": len(self._generations) - 1, **facts}
                self._append(blocks.GENERATION, zlib.compress(_json(header)))
            generation = self._generations[-1]
            payload = blocks.encode_rows(len(self._generations) - 1, generation.batches, batches)
            generation.batches += len(batches)
            generation.records += sum(map(len, batches)) if not isinstance(batches, np.ndarray) else batches.size
            self._append(blocks.ROWS, payload)

    # -- the file -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._path is not None or self._broken:
            return
        try:
            self._path = self._make_file()
        except OSError as error:
            self._give_up(error)
            return
        durable.with_checkpoints(self)
        self._map: mmap.mmap | None = None
        try:
            self._map = mmap.mmap(self._descriptor, blocks.BEGIN)
            self._counter = memoryview(self._map)[blocks.COUNTER :].cast("Q")
        except OSError:
            # A file system without mmap: the counter is written at each step.
            self._counter = _WrittenCounter(self._descriptor)

    def _make_file(self) -> Path:
        """Create a file with its header, or no file: a file without a header has no information."""
        task = self._task.replace(":", "-")
        taken = [FILE.fullmatch(name) for name in os.listdir(self.folder)]
        attempt = 1 + max((int(m["attempt"]) for m in taken if m is not None and m["task"] == task), default=0)
        path = self.folder / f"{task}.{attempt}.ledger"
        header = blocks.block(blocks.HEADER, _json({**self._about, "attempt": attempt, "time": time.time()}))
        # A single write, so that a kill is unlikely to leave an incomplete header.
        data = blocks.MAGIC + bytes(blocks.BEGIN - len(blocks.MAGIC)) + header
        self._descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            _write(self._descriptor, data, 0)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            raise
        self._end = len(data)
        return path

    def _give_up(self, error: OSError) -> None:
        """Log that there is no ledger of this training."""
        self._broken = True
        logger.warning(
            "No ledger of %s is written in %s; the training continues: %s",
            self._task, self.folder, error.strerror or error,
        )  # fmt: skip

    def _append(self, kind: bytes, payload: bytes) -> None:
        if self._broken:
            return
        data = blocks.block(kind, payload)
        try:
            _write(self._descriptor, data, self._end)
        except OSError as error:
            self._broken = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            logger.warning("The ledger %s ends here; the training continues: %s", self._path, error)
            return
        self._end += len(data)

    def _generation_at(self, steps: int) -> int:
        """Return the iterator of the batch at this segment's step `steps`."""
        at = self._consumed
        while at + 1 < len(self._generations) and steps > 0:
            at += 1
            steps -= self._generations[at].steps
        return at


class RowStream:
    """A callback for the batches of one data set, in order."""

    def __init__(self, writer: LedgerWriter, facts: dict[str, Any]) -> None:
        self._writer, self._facts = writer, facts

    def __call__(self, first: bool, batches: np.ndarray | Sequence[np.ndarray], **facts: Any) -> None:
        """Write batches.

        Args:
            first: Whether an iterator over the data starts with them.
            batches: The ids: int64 (records) or uint64 (fingerprints); [batches, records] or a list.
            facts: Metadata that is known only with the first batch.
        """
        self._writer._rows({**self._facts, **facts}, first, batches)


class _Generation:
    """The number of batches and records of one iterator so far."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self.batches = self.records = 0

    @property
    def steps(self) -> int:
        if "records_per_step" in self._facts:
            return -(-self.records // int(self._facts["records_per_step"]))
        return -(-self.batches // int(self._facts["batches_per_step"]))


class _WrittenCounter:
    """The counter for file systems without mmap."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __setitem__(self, index: int, value: int) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, np.uint64(value).tobytes(), blocks.COUNTER)


def _write(descriptor: int, data: bytes, at: int) -> None:
    """Write all data.

    Raises:
        OSError: The data cannot be written completely.
    """
    written = os.pwrite(descriptor, data, at)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
