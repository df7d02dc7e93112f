"""Files of the rendezvous: in this task's model directory, or in the chief's, through the chief's TensorFlow server.

TensorFlow does not require a model directory that all tasks share. If a task has not connected for a while, the chief
publishes the location of its folder in a variable of its server. A task that does not see the chief in its folder then
reads and writes in the chief's.

Every training cluster has such a server: MultiWorkerMirroredStrategy starts one, and so does a parameter-server
cluster. A session of any process can run operations on it, and operations that read and write files run on the chief's
machine. No additional process or port is needed. (TensorFlow's coordination service would be an alternative, but
programs in graph mode and parameter servers have none.)
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.cluster.document_exchange import SharedDocuments
from estimator_pipeline.cluster.peers import answers
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.utils import durable_files as durable

# An older temporary file was left by a process that was killed while writing.
_ABANDONED_SECS = 24 * 3600.0
# Age of a published folder whose chief does not answer.
_STALE_SECS = 10.0
# Time limit for one operation on the chief's server, because the chief may have exited.
_TIMEOUT_SECS = 10.0
# Size of the parts in which a file is copied: a response of TensorFlow must be below 2 GiB.
_PART_BYTES = 64 * 1024 * 1024
_VARIABLE = "estimator_pipeline"
# Special characters of the glob pattern that checks for a file; paths may have them.
_SPECIAL = re.compile(r"([*?\[\]\\])")


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
        self._announced, self._since = False, 0.0

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
        with contextlib.suppress(OSError, compat.tensorflow().errors.OpError):
            for folder, _, names in self._gfile.walk(self.directory):
                for path in (os.path.join(folder, name) for name in names if name.endswith(durable.UNFINISHED)):
                    if time.time() - self._gfile.stat(path).mtime_nsec / 1e9 > _ABANDONED_SECS:
                        self._gfile.remove(path)

    def announce(self, session: str) -> None:
        """Publish the location of the files, with the chief's session, on its server; by the chief, repeatedly."""
        if self._server is not None and not self._announced:
            self._server.announce({"directory": os.path.abspath(self.directory), "session": session})
            self._announced = True

    def look_elsewhere(self, own_file: str, nonce: str, *, ended: set[str | None]) -> bool:
        """Switch to the folder that the chief has published, and return whether this happened.

        For a task that the chief has not answered so far, which has written `nonce` to `own_file`; may be called
        repeatedly. Sessions that have ended are ignored.
        """
        if self._server is None or (self.elsewhere is not None and time.monotonic() - self._since < _STALE_SECS):
            return False
        self.elsewhere = None
        place = self._server.announced()
        if place is None or place["session"] in ended:
            return False
        content = self._server.read(os.path.join(place["directory"], own_file))
        if content is not None and nonce in content.decode():
            return False  # the same folder, on a file system that shows files of other tasks with a delay
        self.elsewhere, self._since = place["directory"], time.monotonic()
        return True

    def fetch(self, files: Mapping[str, int], *, to: str) -> None:
        """Copy files (name -> size in bytes) from the model directory of a chief elsewhere to an existing folder."""
        assert self._server is not None and self.elsewhere is not None
        model_dir = os.path.dirname(self.elsewhere)
        for name, size in files.items():
            name = os.path.basename(name)
            self._server.copy(os.path.join(model_dir, name), os.path.join(to, name), size=size)


class ChiefsServer:
    """Runs operations on the chief's server. Every method raises OSError or TensorFlow's OpError on failure.

    Args:
        tf_config: Cluster and task of this process, which may be the chief or outside the cluster.
    """

    def __init__(self, tf_config: TFConfig) -> None:
        cluster = tf_config.cluster
        assert cluster is not None
        self.address = cluster.address(cluster.chief)
        self._target = f"{tf_config.rpc_layer}://{self.address}"
        # The server uses the program's name for the job.
        job = "master" if tf_config.dialect == "master" else cluster.chief.type
        self._task = f"/job:{job}/replica:0/task:{cluster.chief.index}"
        self._lock = threading.Lock()
        self._ops: dict[str, Any] = {}
        self._session: Any = None

    def announce(self, place: Mapping[str, str]) -> None:
        """Publish the location of the chief's files. For the chief."""
        self._run("announce", text=json.dumps(dict(place)))

    def announced(self) -> dict[str, str] | None:
        """Return the published location; None before that."""
        # Checked first, here as below: a failing operation adds an error to the chief's log each time.
        place: dict[str, str] | None = json.loads(self._run("announced")) if self._run("has announced") else None
        return place

    def read(self, path: str) -> bytes | None:
        """Return the content of a file of the chief; None if it does not exist."""
        there = self._run("match", path=_SPECIAL.sub(r"\\\1", path)).size
        return self._run("read", path=path) if there else None

    def write(self, path: str, text: str) -> None:
        """Write a file of the chief, and create its folders."""
        self._run("write", path=path, text=text)

    def copy(self, path: str, to: str, *, size: int) -> None:
        """Copy a file of the chief with `size` bytes to the local file `to`."""
        with compat.tensorflow().io.gfile.GFile(to, "wb") as file:
            file.write(b"")
            for begin in range(0, size, _PART_BYTES):
                count = min(_PART_BYTES, size - begin)
                file.write(self._run("part", path=path, begin=begin, count=count, rest=size - begin - count))

    def _run(self, name: str, **values: Any) -> Any:
        tf = compat.tensorflow()
        if not answers(self.address):
            # TensorFlow would wait for the server.
            raise ConnectionError(f"the chief's server at {self.address} does not answer")
        with self._lock:
            if self._session is None:
                self._session = self._connected()
            session = self._session
        options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * _TIMEOUT_SECS))
        try:
            return session.run(self._ops[name], {f"{key}:0": value for key, value in values.items()}, options=options)
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError):
            # A restarted chief does not know this session.
            self._session = None
            raise

    def _connected(self) -> Any:
        tf = compat.tensorflow()
        v1, raw = tf.compat.v1, tf.raw_ops
        with tf.Graph().as_default() as graph, tf.device(f"{self._task}/device:CPU:0"):
            path, text = (v1.placeholder(tf.string, [], name) for name in ("path", "text"))
            begin, count, rest = (v1.placeholder(tf.int64, [], name) for name in ("begin", "count", "rest"))
            variable = raw.VarHandleOp(dtype=tf.string, shape=[], shared_name=_VARIABLE)
            part = raw.FixedLengthRecordDatasetV2(
                filenames=path,
                header_bytes=begin,
                record_bytes=count,
                footer_bytes=rest,
                buffer_size=tf.constant(0, tf.int64),
                compression_type=tf.constant(""),
            )
            self._ops = {
                "announce": raw.AssignVariableOp(resource=variable, value=text),
                "has announced": raw.VarIsInitializedOp(resource=variable),
                "announced": raw.ReadVariableOp(resource=variable, dtype=tf.string),
                "match": raw.MatchingFiles(pattern=path),
                "read": raw.ReadFile(filename=path),
                "write": raw.WriteFile(filename=path, contents=text),
                "part": raw.DatasetToSingleElement(dataset=part, output_types=[tf.string], output_shapes=[[]])[0],
            }
        # Device filters exclude the other tasks, which may not have started yet.
        settings = v1.ConfigProto(device_filters=[self._task], operation_timeout_in_ms=int(1000 * _TIMEOUT_SECS))
        return v1.Session(self._target, graph=graph, config=settings)
