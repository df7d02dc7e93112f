"""A worker of a parameter-server cluster trains only after the chief's `Scaffold(init_fn=)` has run.

The chief initializes the variables and then calls `init_fn`, which sets them, for example from a pre-trained
checkpoint. A worker considers the model ready as soon as the variables are initialized. Before `init_fn` has run, it
trains on the initial values, and `init_fn` overwrites its updates. This was rare as long as a worker polled every 30 s.

So a chief with an `init_fn` sets a status on parameter server 0: "preparing" before it initializes the first variable,
and "prepared" afterwards. A worker that finds the model ready reads the status, and waits while the chief prepares.
Without a status it does not wait: most programs have no `init_fn`, and a worker does not know whether its chief has
one. The parameter server keeps the status for restarted workers. A restarted parameter server loses it with the
variables, and the chief, which sets them again, sets it again.

The session manager is patched, so this applies to Estimators, `MonitoredTrainingSession` and `Supervisor`. The status
has a separate graph and session, since the program's graph may be finalized.

Private use: `tensorflow.python.training.session_manager` (the class is public, but not the attribute that sessions
use), and `SessionManager._graph`, unchanged from 2.15 to 2.21.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from typing import Any

from estimator_pipeline.utils.logger import logger

NAME = "init-fn"
WHAT = (
    "a worker of a parameter-server cluster trains only after the chief's Scaffold(init_fn=) has run; before, it "
    "trained on variables that were not set yet"
)

POLL_SECS = 0.5
_VARIABLE = "estimator_pipeline_prepared"
_UNKNOWN, _PREPARING, _PREPARED = 0, 1, 2


def apply() -> None:
    from tensorflow.python.training import session_manager

    manager = session_manager.SessionManager
    prepare, wait = manager.prepare_session, manager.wait_for_session
    signature = inspect.signature(prepare)

    @functools.wraps(prepare)
    def prepare_session(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(self, *args, **kwargs).arguments
        if arguments.get("init_fn") is None or not _is_served(self, arguments["master"]):
            return prepare(self, *args, **kwargs)
        status = _PreparationStatus(arguments["master"], arguments.get("config"))
        status.set(_PREPARING)
        session = prepare(self, *args, **kwargs)
        status.set(_PREPARED)
        return session

    @functools.wraps(wait)
    def wait_for_session(self: Any, master: str, config: Any = None, max_wait_secs: float | None = math.inf) -> Any:
        if not _is_served(self, master):
            return wait(self, master, config, max_wait_secs)
        status = _PreparationStatus(master, config)
        deadline = time.monotonic() + (math.inf if max_wait_secs is None else max_wait_secs)
        heard = status.read()
        while True:
            session = wait(self, master, config, deadline - time.monotonic())
            before, heard = heard, status.read()
            if heard == before != _PREPARING:
                return session
            # Local variables may have been initialized from variables that were not set yet.
            session.close()
            heard = status.wait_until_prepared(heard, deadline)

    manager.prepare_session, manager.wait_for_session = prepare_session, wait_for_session


def _is_served(manager: Any, master: str) -> bool:
    """Whether the variables of a session manager's graph are on parameter servers."""
    import tensorflow as tf

    if not master:
        return False
    variables = manager._graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    return any(tf.DeviceSpec.from_string(variable.device or "").job == "ps" for variable in variables)


class _PreparationStatus:
    """The chief's status of the model, on parameter server 0.

    Args:
        master: The target of the sessions.
        config: Their `ConfigProto`, or None.
    """

    def __init__(self, master: str, config: Any) -> None:
        import tensorflow as tf

        raw = tf.raw_ops
        self._master, self._config = master, config
        with tf.Graph().as_default() as self._graph, tf.device("/job:ps/task:0/device:CPU:0"):
            variable = raw.VarHandleOp(dtype=tf.int32, shape=[], shared_name=_VARIABLE)
            self._is_set = raw.VarIsInitializedOp(resource=variable)
            self._read = raw.ReadVariableOp(resource=variable, dtype=tf.int32)
            self._assign = {
                value: raw.AssignVariableOp(resource=variable, value=tf.constant(value, tf.int32))
                for value in (_PREPARING, _PREPARED)
            }

    def _session(self) -> Any:
        import tensorflow as tf

        return tf.compat.v1.Session(self._master, graph=self._graph, config=self._config)

    def set(self, value: int) -> None:
        """Set the status; for the chief."""
        with self._session() as session:
            session.run(self._assign[value])

    def read(self) -> int:
        """Return the status."""
        with self._session() as session:
            return int(session.run(self._read)) if session.run(self._is_set) else _UNKNOWN

    def wait_until_prepared(self, heard: int, deadline: float) -> int:
        """Wait until the chief has prepared the model, and return the new status.

        Args:
            heard: The last known status.
            deadline: A time of `time.monotonic`.

        Raises:
            tf.errors.DeadlineExceededError: The chief still prepares the model at the deadline.
        """
        import tensorflow as tf

        if heard == _PREPARING:
            logger.info("the chief's init_fn sets the variables: this task waits until it has completed")
        while heard == _PREPARING:
            if time.monotonic() > deadline:
                raise tf.errors.DeadlineExceededError(None, None, "the chief's init_fn has not completed in time")
            time.sleep(POLL_SECS)
            heard = self.read()
        return heard
