"""Writes what one task consumes: ids where records are fetched, a count where steps are finished.

Records are fetched ahead of the step that they are for, in threads of TensorFlow: there the ids are written, batch by
batch in the order of handing out. The step itself adds one to a counter. What stands in the file beyond the counter was
fetched and never trained on, and is no part of the ledger.
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
    """The ledger of one task and one attempt: a file of its own in the ledger's folder.

    The folder is shared by the tasks and may hold the files of earlier attempts, which stay. A folder that is no place
    for a ledger is an error here, before anything is trained. A disk that is full, or that cannot be written to later,
    does not end the training: that is said once, and the ledger ends there, or is none.

    Args:
        folder: made if it is not there; on a file system of this machine.
        task: such as "worker:0".
        tasks: all that train.
        asynchronous: whether each steps on its own.

    Raises:
        ConfigError: the folder cannot be written to, for another reason than that the disk is full.
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
        # Without a file steps are counted nowhere.
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

    # -- where steps are finished ---------------------------------------------------------------------------------

    def begin(self, start: int) -> None:
        """Training begins, or begins again, after the global step `start`."""
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
        """`count` steps were made with the batches that come next."""
        self._done += count
        self._counter[0] = blocks.word(self._segment, self._done)

    def end(self) -> None:
        """Training has ended as it should."""
        with self._lock:
            if self._path is None:
                return  # Nothing was trained, or there was no room for a file.
            self._append(blocks.END, _json({"segment": self._segment, "steps": self._done}))
            self.sync()

    def sync(self) -> None:
        """All so far is on the disk, what is mapped too: a checkpoint after a crash has the ledger of its steps."""
        if not self._broken and self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)

    # -- where records are fetched --------------------------------------------------------------------------------

    def stream(self, facts: Mapping[str, Any]) -> RowStream:
        """What is told the batches of one data set.

        Args:
            facts: what the ledger says of the data: `kind` ("records" or "fingerprints"), `pipelines`, `pipeline`,
                `batches_per_step` (or `records_per_step`, where a batch is no step's), `plan` for records.
        """
        return RowStream(self, dict(facts))

    def _rows(self, facts: dict[str, Any], first: bool, batches: np.ndarray | Sequence[np.ndarray]) -> None:
        with self._lock:
            self._open()
            if first or not self._generations:
                self._generations.append(_Generation(facts))
                told = {"generation": len(self._generations) - 1, **facts}
                self._append(blocks.GENERATION, zlib.compress(_json(told)))
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
            # A file system that maps no files: written at each step.
            self._counter = _WrittenCounter(self._descriptor)

    def _make_file(self) -> Path:
        """A new file with its header, or none at all: one without says nothing, and would lie there for ever."""
        task = self._task.replace(":", "-")
        taken = [FILE.fullmatch(name) for name in os.listdir(self.folder)]
        attempt = 1 + max((int(m["attempt"]) for m in taken if m is not None and m["task"] == task), default=0)
        path = self.folder / f"{task}.{attempt}.ledger"
        header = blocks.block(blocks.HEADER, _json({**self._about, "attempt": attempt, "time": time.time()}))
        # In one go, so that a kill has hardly a moment in which it leaves half of it.
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
        """There is no ledger of this training."""
        self._broken = True
        logger.warning(
            "No ledger is kept of %s in %s, and the training goes on: %s",
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
            logger.warning("The ledger %s ends here, and the training goes on: %s", self._path, error)
            return
        self._end += len(data)

    def _generation_at(self, steps: int) -> int:
        """Which iterator gave the batch of this segment's step `steps`."""
        at = self._consumed
        while at + 1 < len(self._generations) and steps > 0:
            at += 1
            steps -= self._generations[at].steps
        return at


class RowStream:
    """Told the batches of one data set, in the order in which they are handed out."""

    def __init__(self, writer: LedgerWriter, facts: dict[str, Any]) -> None:
        self._writer, self._facts = writer, facts

    def __call__(self, first: bool, batches: np.ndarray | Sequence[np.ndarray], **facts: Any) -> None:
        """Tells of batches.

        Args:
            first: whether an iterator over the data begins with them.
            batches: ids of each: int64 (records) or uint64 (fingerprints); [batches, records] or a list.
            facts: what became known of the data with its first batch.
        """
        self._writer._rows({**self._facts, **facts}, first, batches)


class _Generation:
    """How much one iterator has given so far."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self.batches = self.records = 0

    @property
    def steps(self) -> int:
        if "records_per_step" in self._facts:
            return -(-self.records // int(self._facts["records_per_step"]))
        return -(-self.batches // int(self._facts["batches_per_step"]))


class _WrittenCounter:
    """The counter where files cannot be mapped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __setitem__(self, index: int, value: int) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, np.uint64(value).tobytes(), blocks.COUNTER)


def _write(descriptor: int, data: bytes, at: int) -> None:
    """Writes all of it.

    Raises:
        OSError: it cannot be written, or not all of it.
    """
    written = os.pwrite(descriptor, data, at)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
