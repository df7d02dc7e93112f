"""Where the rendezvous's files are: in this task's model directory, or in the chief's, reached through the chief's
server.

TensorFlow does not ask for a model directory that all tasks share. Where some task has not been met for a while, the
chief announces its folder at its server; a task that sees no chief in its own folder reads and writes in that one from
then on. The chief and the evaluator see nothing but files.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.lifecycle.rendezvous.chief_server import ChiefsServer
from estimator_pipeline.engines.model_dir.layout import DIRECTORY

__all__ = ["RendezvousFiles"]


# A part of a file that is older was left by a process that was killed while it wrote.
_ABANDONED_SECS = 24 * 3600.0
_TEMPORARY = ".tmp"
# How often tasks look at the chief's server; and after what time a folder that was announced has no chief who answers.
_LOOK_SECS = 0.5
_STALE_SECS = 10.0
# A file that is written through the server has no rename; a reader that sees a part of it looks again.
_TORN_LOOKS, _TORN_SECS = 5, 0.02


class RendezvousFiles:
    """JSON documents by name, each with the id of its run.

    Args:
        model_dir: local or anything that `tf.io.gfile` can write.
        run_id: of the run.
        server: the chief's; None: all tasks share the model directory.

    Attributes:
        directory: where the files are.
        elsewhere: the chief's folder where this task has another one, as it is called there.
    """

    def __init__(self, model_dir: str, *, run_id: str, server: ChiefsServer | None) -> None:
        self._gfile = compat.tensorflow().io.gfile
        self.directory = os.path.join(model_dir, DIRECTORY)
        self.elsewhere: str | None = None
        self._run_id, self._server = run_id, server
        self._temporary = itertools.count()
        self._announced, self._since, self._next_look = False, 0.0, 0.0

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Writes a file whole: readers see the old one or the new one, never a part."""
        text = json.dumps({**document, "run_id": self._run_id, "written": time.time()}, indent=1)
        if self.elsewhere is not None and self._server is not None:
            self._server.write(os.path.join(self.elsewhere, name), text)
            return
        path = os.path.join(self.directory, name)
        self._gfile.makedirs(os.path.dirname(path))
        temporary = f"{path}.{socket.gethostname()}.{os.getpid()}.{next(self._temporary)}{_TEMPORARY}"
        try:
            with self._gfile.GFile(temporary, "w") as file:
                file.write(text)
            self._gfile.rename(temporary, path, overwrite=True)
        except Exception:
            # On a full disk there would be one with each try.
            with contextlib.suppress(Exception):
                self._gfile.remove(temporary)
            raise

    def read_any(self, name: str) -> dict[str, Any] | None:
        """A file of whatever run wrote it last, or None where there is none yet."""
        tf = compat.tensorflow()
        for _ in range(_TORN_LOOKS):
            try:
                text = self._text(name)
                document = None if text is None else json.loads(text)
            except ValueError:
                time.sleep(_TORN_SECS)
                continue
            except (OSError, tf.errors.OpError):
                return None
            return document if isinstance(document, dict) else None
        return None

    def _text(self, name: str) -> str | bytes | None:
        if self.elsewhere is not None and self._server is not None:
            return self._server.read(os.path.join(self.elsewhere, name))
        with self._gfile.GFile(os.path.join(self.directory, name), "r") as file:
            text: str = file.read()
            return text

    def remove_abandoned(self) -> None:
        """Removes what processes have left that were killed while they wrote, here or in an earlier run."""
        tf = compat.tensorflow()
        with contextlib.suppress(OSError, tf.errors.OpError):
            for folder, _, names in self._gfile.walk(self.directory):
                for path in (os.path.join(folder, name) for name in names if name.endswith(_TEMPORARY)):
                    if time.time() - self._gfile.stat(path).mtime_nsec / 1e9 > _ABANDONED_SECS:
                        self._gfile.remove(path)

    # -- tasks with a model directory of their own ------------------------------------------------------------------

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._server is None or now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECS
        return True

    def announce(self, session: str) -> None:
        """Says at the chief's server where its files are. For the chief, as often as some task has not been met.

        Args:
            session: the chief's number.
        """
        if self._server is None or self._announced or not self._is_due():
            return
        self._server.announce({"directory": os.path.abspath(self.directory), "session": session})
        self._announced = True

    def look_elsewhere(self, own_file: str, nonce: str, *, ended: set[str | None]) -> bool:
        """Whether the files are in another folder from now on, the one that the chief has announced.

        For a task that the chief has not answered so far, as often as it likes.

        Args:
            own_file: the name of this task's file.
            nonce: the number that it has written there.
            ended: sessions that are over.
        """
        if not self._is_due() or (self.elsewhere is not None and time.monotonic() - self._since < _STALE_SECS):
            return False
        self.elsewhere = None
        assert self._server is not None
        told = self._server.announced()
        if told is None or told["session"] in ended:
            return False
        seen = self._server.read(os.path.join(told["directory"], own_file))
        if seen is not None and nonce in seen.decode():
            return False  # the same folder: a file system may be slow to show what others write
        self.elsewhere, self._since = told["directory"], time.monotonic()
        return True

    def fetch(self, files: Mapping[str, int], *, to: str) -> None:
        """Copies files of the chief's model directory, where that is another one.

        Args:
            files: name -> bytes.
            to: a folder that is there.
        """
        assert self._server is not None and self.elsewhere is not None
        model_dir = os.path.dirname(self.elsewhere)
        for name, size in files.items():
            name = os.path.basename(name)
            self._server.copy(os.path.join(model_dir, name), os.path.join(to, name), size=size)
