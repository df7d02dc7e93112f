"""Access to the chief's files from tasks with a separate model directory, through the chief's TensorFlow server.

Every training cluster has such a server: MultiWorkerMirroredStrategy starts one, and so does a parameter-server
cluster. A session of any process can run operations on it, and operations that read and write files run on the chief's
machine. No additional process or port is needed. (TensorFlow's coordination service would be an alternative, but
programs in graph mode and parameter servers have none.)

The chief publishes the location of its files in a variable of its server.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.cluster.peers import answers

__all__ = ["ChiefsServer"]

# Time limit for one operation, because the chief may have exited.
_TIMEOUT_SECS = 10.0
# Size of the parts in which a file is copied: a response of TensorFlow must be below 2 GiB.
_PART_BYTES = 64 * 1024 * 1024
_VARIABLE = "estimator_pipeline"
# Special characters of the glob pattern that checks for a file; paths may have them.
_SPECIAL = re.compile(r"([*?\[\]\\])")


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
        fetched, feeds = self._ops[name]
        options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * _TIMEOUT_SECS))
        try:
            return session.run(fetched, {feeds[key]: value for key, value in values.items()}, options=options)
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError):
            # A restarted chief does not know this session.
            self._session = None
            raise

    def _connected(self) -> Any:
        tf = compat.tensorflow()
        v1, raw = tf.compat.v1, tf.raw_ops
        with tf.Graph().as_default() as graph, tf.device(f"{self._task}/device:CPU:0"):
            path, text = v1.placeholder(tf.string, []), v1.placeholder(tf.string, [])
            begin, count, rest = (v1.placeholder(tf.int64, []) for _ in range(3))
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
                "announce": (raw.AssignVariableOp(resource=variable, value=text), {"text": text}),
                "has announced": (raw.VarIsInitializedOp(resource=variable), {}),
                "announced": (raw.ReadVariableOp(resource=variable, dtype=tf.string), {}),
                "match": (raw.MatchingFiles(pattern=path), {"path": path}),
                "read": (raw.ReadFile(filename=path), {"path": path}),
                "write": (raw.WriteFile(filename=path, contents=text), {"path": path, "text": text}),
                "part": (
                    raw.DatasetToSingleElement(dataset=part, output_types=[tf.string], output_shapes=[[]])[0],
                    {"path": path, "begin": begin, "count": count, "rest": rest},
                ),
            }
        # Device filters exclude the other tasks, which may not have started yet.
        settings = v1.ConfigProto(device_filters=[self._task], operation_timeout_in_ms=int(1000 * _TIMEOUT_SECS))
        return v1.Session(self._target, graph=graph, config=settings)
