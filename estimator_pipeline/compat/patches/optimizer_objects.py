"""A Keras optimizer object works in every training, in every replica, and in a canned Estimator.

Each call of `Estimator.train` builds a new graph, but a Keras optimizer keeps the variables of the first one: the
second call fails with "Cannot set `iterations` to a new Variable" (tensorflow/tensorflow#33358), and so does an
evaluation whose model function uses the optimizer. Under a strategy even the first call fails, since each replica sets
`iterations`. And a canned Estimator rejects `tf.keras.optimizers.Adam()`, a new class since Keras 2.11, and requires
its legacy class.

Here an optimizer that is used in a different graph discards its variables and restores its initial settings; its state
is in the checkpoint, like that of an optimizer that each call creates. An optimizer that is used eagerly or in a
`tf.function` is unchanged.

Private use: the settings, slots and weights of Keras 2's legacy optimizer; the estimator package's look-up of
optimizers; TensorFlow's eager context.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.errors import CompatError

NAME = "optimizer-objects"
WHAT = (
    "a Keras optimizer object works in several train() calls and on several replicas; a canned Estimator accepts "
    "tf.keras.optimizers.Adam() as its legacy class"
)

# Settings that the legacy classes do not have.
_NEW_SETTINGS = frozenset(
    {"weight_decay", "use_ema", "ema_momentum", "ema_overwrite_frequency", "jit_compile", "is_legacy_optimizer"}
)


class _Making(threading.local):
    """Whether, in this thread, a new class creates an optimizer of its legacy class."""

    twins = False


def apply() -> None:
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow_estimator.python.estimator.canned import optimizers

    legacy, new = tf.keras.optimizers.legacy.Optimizer, tf.keras.optimizers.experimental.Optimizer
    making = _Making()
    settings: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
    graphs: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()

    def reset_in_new_graph(self: Any) -> None:
        graph = _graph(tf)
        if graph is None:
            return
        known = graphs.get(self)
        if known is not None and known() is not graph:
            self._hyper.update(settings.get(self, {}))
            self._hypers_created = False
            self._iterations = None
            self._weights, self._slots = [], {}
        graphs[self] = weakref.ref(graph)

    create_hypers, iterations = legacy._create_hypers, legacy.iterations

    @functools.wraps(create_hypers)
    def _create_hypers(self: Any) -> None:
        reset_in_new_graph(self)
        if not self._hypers_created:
            settings[self] = dict(self._hyper)
        create_hypers(self)

    def get_iterations(self: Any) -> Any:
        reset_in_new_graph(self)
        return iterations.fget(self)

    def set_iterations(self: Any, variable: Any) -> None:
        reset_in_new_graph(self)
        # Each replica sets the same global step.
        if self._iterations is None or self._iterations is not variable:
            iterations.fset(self, variable)

    legacy._create_hypers = _create_hypers
    legacy.iterations = property(get_iterations, set_iterations, doc=iterations.__doc__)

    look_up = optimizers.get_optimizer_instance_v2

    @functools.wraps(look_up)
    def get_optimizer_instance_v2(opt: Any, learning_rate: Any = None) -> Any:
        if callable(opt):
            # Called in the graph, since the learning rate may depend on its global step.
            making.twins = True
            try:
                opt = opt()
            finally:
                making.twins = False
        if isinstance(opt, new):
            # Its settings are eager variables, not variables of the graph that is being built.
            with context.eager_mode():
                _check_settings(type(opt), opt.get_config())
                opt = tf.keras.__internal__.optimizers.convert_to_legacy_optimizer(opt)
        return look_up(opt, learning_rate=learning_rate)

    optimizers.get_optimizer_instance_v2 = get_optimizer_instance_v2

    def __new__(cls: type, *args: Any, **settings: Any) -> Any:
        if not making.twins:
            return object.__new__(cls)
        twin = _check_settings(cls, settings)
        return twin(*args, **{name: value for name, value in settings.items() if name not in _NEW_SETTINGS})

    new.__new__ = __new__


def _graph(tf: Any) -> Any:
    """Return the session graph in which the caller builds operations, or None outside of one."""
    v1 = tf.compat.v1
    if v1.executing_eagerly_outside_functions():
        return None
    graph = v1.get_default_graph()
    # In a condition, a loop or a function the variables belong to the outer graph.
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph


def _check_settings(kind: type, settings: Mapping[str, Any]) -> Any:
    """Return the legacy class of the same name.

    Raises:
        CompatError: The class does not exist, or does not have one of these settings.
    """
    import tensorflow as tf

    more = [f"{name}={settings[name]}" for name in ("weight_decay", "use_ema") if settings.get(name)]
    twin = getattr(tf.keras.optimizers.legacy, kind.__name__, None)
    if more or twin is None:
        raise CompatError(
            f"a canned Estimator does not support the optimizer {kind.__name__}",
            code="model/bad-optimizer",
            found=", ".join(more) or f"tf.keras.optimizers.legacy has no {kind.__name__}",
            hint="use an optimizer of tf.keras.optimizers.legacy, or of tf.compat.v1.train in a tf.compat.v1.estimator",
        )
    return twin
