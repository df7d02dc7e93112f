"""Files of the rendezvous: in this task's model directory, or in the chief's, through the chief's server.

TensorFlow does not require a model directory that all tasks share. If a task has not connected for a while, the chief
publishes its folder on its server. A task that does not see the chief in its folder then reads and writes in the
chief's. The chief and the evaluator use only files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster.document_exchange import SharedDocuments
from estimator_pipeline.engines.core.rendezvous.chief_server import ChiefsServer
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.utils import durable_files as durable

__all__ = ["RendezvousFiles"]


# An older temporary file was left by a process that was killed while writing.
_ABANDONED_SECS = 24 * 3600.0
# Interval at which tasks check the chief's server, and age of a published folder whose chief does not answer.
_LOOK_SECS = 0.5
_STALE_SECS = 10.0


class RendezvousFiles:
    """JSON documents by name, each with the ID of its run.

    Args:
        model_dir: Any path that `tf.io.gfile` can write.
        run_id: ID of the run.
        server: The chief's server; None: all tasks share the model directory.

    Attributes:
        directory: Folder of the files.
        elsewhere: The chief's folder, as a path on the chief, if this task has a different one.
    """

    def __init__(self, model_dir: str, *, run_id: str, server: ChiefsServer | None) -> None:
        self._gfile = compat.tensorflow().io.gfile
        self.directory = os.path.join(model_dir, DIRECTORY)
        self.elsewhere: str | None = None
        self._run_id, self._server = run_id, server
        self._announced, self._since, self._next_look = False, 0.0, 0.0

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a file atomically: readers see the old one or the new one."""
        self._documents().write(name, {**document, "run_id": self._run_id, "written": time.time()})

    def read_any(self, name: str) -> dict[str, Any] | None:
        """Return a file of any run, or None if it does not exist."""
        return self._documents().read(name)

    def _documents(self) -> SharedDocuments:
        errors = (OSError, compat.tensorflow().errors.OpError)
        if self.elsewhere is not None and self._server is not None:
            return SharedDocuments(self.elsewhere, write=self._server.write, read=self._server.read, errors=errors)
        return SharedDocuments(self.directory, write=self._write, read=self._read, errors=errors)

    def _write(self, path: str, text: str) -> None:
        self._gfile.makedirs(os.path.dirname(path))
        durable.write(path, text.encode(), to_disk=False, gfile=self._gfile)

    def _read(self, path: str) -> str:
        with self._gfile.GFile(path, "r") as file:
            return str(file.read())

    def remove_abandoned(self) -> None:
        """Remove temporary files of processes that were killed while writing, in this or an earlier run."""
        tf = compat.tensorflow()
        with contextlib.suppress(OSError, tf.errors.OpError):
            for folder, _, names in self._gfile.walk(self.directory):
                for path in (os.path.join(folder, name) for name in names if name.endswith(durable.UNFINISHED)):
                    if time.time() - self._gfile.stat(path).mtime_nsec / 1e9 > _ABANDONED_SECS:
                        self._gfile.remove(path)

    # -- tasks with separate model directories ----------------------------------------------------------------------

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._server is None or now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECS
        return True

    def announce(self, session: str) -> None:
        """Publish the location of the files on the chief's server; called by the chief while a task is missing.

        Args:
            session: The chief's session number.
        """
        if self._server is None or self._announced or not self._is_due():
            return
        self._server.announce({"directory": os.path.abspath(self.directory), "session": session})
        self._announced = True

    def look_elsewhere(self, own_file: str, nonce: str, *, ended: set[str | None]) -> bool:
        """Switch to the folder that the chief has published, and return whether this happened.

        For a task that the chief has not answered so far; may be called repeatedly.

        Args:
            own_file: Name of this task's file.
            nonce: The number that this task has written there.
            ended: Sessions that are over.
        """
        if not self._is_due() or (self.elsewhere is not None and time.monotonic() - self._since < _STALE_SECS):
            return False
        self.elsewhere = None
        assert self._server is not None
        place = self._server.announced()
        if place is None or place["session"] in ended:
            return False
        content = self._server.read(os.path.join(place["directory"], own_file))
        if content is not None and nonce in content.decode():
            return False  # the same folder, on a file system that shows files of other tasks with a delay
        self.elsewhere, self._since = place["directory"], time.monotonic()
        return True

    def fetch(self, files: Mapping[str, int], *, to: str) -> None:
        """Copy files from the chief's model directory, if this task has a different one.

        Args:
            files: Name -> size in bytes.
            to: An existing folder.
        """
        assert self._server is not None and self.elsewhere is not None
        model_dir = os.path.dirname(self.elsewhere)
        for name, size in files.items():
            name = os.path.basename(name)
            self._server.copy(os.path.join(model_dir, name), os.path.join(to, name), size=size)
