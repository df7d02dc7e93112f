"""A worker of a parameter-server cluster trains when the chief's `Scaffold(init_fn=)` has run, and not before.

The chief initializes the variables and then calls `init_fn`, which fills them, say from a pre-trained checkpoint. A
worker takes the model for ready as soon as the variables are initialized: in the time between it trains on what the
initializers left, and `init_fn` overwrites what it has added. That was always so, and rare as long as a worker looked
for the model every 30 s.

So a chief with an `init_fn` says on parameter server 0 that it prepares the model before it initializes the first
variable, and says so again when it has done. A worker that has found the model ready looks for that word, and waits
while the chief prepares. A word that is not there keeps nobody waiting: most programs have no `init_fn`, and a worker
need not know whether its chief has one. The parameter server keeps the word for a worker that is started again; one
that is started again itself has lost it with the variables, and the chief, which fills them again, says it anew.

It is the session manager that does this, for Estimators as for programs with a `MonitoredTrainingSession` or a
`Supervisor` of their own. The word has a graph and a session of its own: the program's graph may be final by then.

Private use: `tensorflow.python.training.session_manager` (its class is public, but not as what sessions use), and
`SessionManager._graph`, the same from 2.15 to 2.21.
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
    "a worker of a parameter-server cluster trains when the chief's Scaffold(init_fn=) has run; it trained on "
    "variables that were not filled yet"
)

POLL_SECS = 0.5
_VARIABLE = "estimator_pipeline_prepared"
_UNSAID, _PREPARING, _PREPARED = 0, 1, 2


def apply() -> None:
    from tensorflow.python.training import session_manager

    manager = session_manager.SessionManager
    prepare, wait = manager.prepare_session, manager.wait_for_session
    signature = inspect.signature(prepare)

    @functools.wraps(prepare)
    def prepare_session(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        if given.get("init_fn") is None or not _is_served(self, given["master"]):
            return prepare(self, *args, **kwargs)
        word = _Word(given["master"], given.get("config"))
        word.say(_PREPARING)
        session = prepare(self, *args, **kwargs)
        word.say(_PREPARED)
        return session

    @functools.wraps(wait)
    def wait_for_session(self: Any, master: str, config: Any = None, max_wait_secs: float | None = math.inf) -> Any:
        if not _is_served(self, master):
            return wait(self, master, config, max_wait_secs)
        word = _Word(master, config)
        deadline = time.monotonic() + (math.inf if max_wait_secs is None else max_wait_secs)
        heard = word.read()
        while True:
            session = wait(self, master, config, deadline - time.monotonic())
            before, heard = heard, word.read()
            if heard == before != _PREPARING:
                return session
            # Local variables may have been initialized from what was not filled yet.
            session.close()
            heard = word.after_preparing(heard, deadline)

    manager.prepare_session, manager.wait_for_session = prepare_session, wait_for_session


def _is_served(manager: Any, master: str) -> bool:
    """Whether the variables of a session manager's graph are on parameter servers."""
    import tensorflow as tf

    if not master:
        return False
    variables = manager._graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    return any(tf.DeviceSpec.from_string(variable.device or "").job == "ps" for variable in variables)


class _Word:
    """What the chief has said of the model, on parameter server 0.

    Args:
        master: the target of the sessions.
        config: their `ConfigProto`, or None.
    """

    def __init__(self, master: str, config: Any) -> None:
        import tensorflow as tf

        raw = tf.raw_ops
        self._master, self._config = master, config
        with tf.Graph().as_default() as self._graph, tf.device("/job:ps/task:0/device:CPU:0"):
            variable = raw.VarHandleOp(dtype=tf.int32, shape=[], shared_name=_VARIABLE)
            self._said = raw.VarIsInitializedOp(resource=variable)
            self._read = raw.ReadVariableOp(resource=variable, dtype=tf.int32)
            self._say = {
                value: raw.AssignVariableOp(resource=variable, value=tf.constant(value, tf.int32))
                for value in (_PREPARING, _PREPARED)
            }

    def _session(self) -> Any:
        import tensorflow as tf

        return tf.compat.v1.Session(self._master, graph=self._graph, config=self._config)

    def say(self, value: int) -> None:
        """Says it to all workers, until something else is said. For the chief."""
        with self._session() as session:
            session.run(self._say[value])

    def read(self) -> int:
        """What was said last."""
        with self._session() as session:
            return int(session.run(self._read)) if session.run(self._said) else _UNSAID

    def after_preparing(self, heard: int, deadline: float) -> int:
        """What is said when the chief prepares the model no longer.

        Args:
            heard: what was said last.
            deadline: of :func:`time.monotonic`.

        Raises:
            tf.errors.DeadlineExceededError: the chief still prepares it then.
        """
        import tensorflow as tf

        if heard == _PREPARING:
            logger.info("the chief's init_fn fills the variables: this task trains when it has")
        while heard == _PREPARING:
            if time.monotonic() > deadline:
                raise tf.errors.DeadlineExceededError(None, None, "the chief's init_fn has not come to its end in time")
            time.sleep(POLL_SECS)
            heard = self.read()
        return heard
