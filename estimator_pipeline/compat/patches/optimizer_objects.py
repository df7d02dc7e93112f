"""A Keras optimizer that is given as an object works in every training, in every replica, and in a canned Estimator.

Each call of `Estimator.train` builds a graph of its own, and a Keras optimizer keeps the variables of the first one:
the second call ends with "Cannot set `iterations` to a new Variable" (tensorflow/tensorflow#33358), and so does an
evaluation whose model function asks for the optimizer too. Under a strategy the first call ends so already, for each
replica sets `iterations` anew. And a canned Estimator refuses `tf.keras.optimizers.Adam()`, which has been another
class since Keras 2.11, though its twin of old is what it wants.

Here an optimizer that is touched in another graph than before forgets its variables and takes its settings as they were
given; what it had learnt is in the checkpoint, as it is for an optimizer that each call makes by itself. An
optimizer that is used eagerly, or in a `tf.function`, is left alone.

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
    "a Keras optimizer given as an object serves more than one train() call and more than one replica; a canned "
    "Estimator takes tf.keras.optimizers.Adam() for its legacy twin"
)

# What the legacy classes do not have.
_NEW_SETTINGS = frozenset(
    {"weight_decay", "use_ema", "ema_momentum", "ema_overwrite_frequency", "jit_compile", "is_legacy_optimizer"}
)


class _Making(threading.local):
    """Whether a new class is to give an optimizer of its legacy twin, in this thread."""

    twins = False


def apply() -> None:
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow_estimator.python.estimator.canned import optimizers

    legacy, new = tf.keras.optimizers.legacy.Optimizer, tf.keras.optimizers.experimental.Optimizer
    making = _Making()
    settings: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
    graphs: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()

    def forget_another_graph(self: Any) -> None:
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
        forget_another_graph(self)
        if not self._hypers_created:
            settings[self] = dict(self._hyper)
        create_hypers(self)

    def get_iterations(self: Any) -> Any:
        forget_another_graph(self)
        return iterations.fget(self)

    def set_iterations(self: Any, variable: Any) -> None:
        forget_another_graph(self)
        # Each replica sets the one global step.
        if self._iterations is None or self._iterations is not variable:
            iterations.fset(self, variable)

    legacy._create_hypers = _create_hypers
    legacy.iterations = property(get_iterations, set_iterations, doc=iterations.__doc__)

    look_up = optimizers.get_optimizer_instance_v2

    @functools.wraps(look_up)
    def get_optimizer_instance_v2(opt: Any, learning_rate: Any = None) -> Any:
        if callable(opt):
            # In the graph, whose global step its learning rate may depend on.
            making.twins = True
            try:
                opt = opt()
            finally:
                making.twins = False
        if isinstance(opt, new):
            # Its settings are variables of the program, not of the graph that is being built.
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
    """The graph of a session in which the caller builds operations; None where there is none."""
    v1 = tf.compat.v1
    if v1.executing_eagerly_outside_functions():
        return None
    graph = v1.get_default_graph()
    # In a condition, a loop or a function the variables are those of the graph around it.
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph


def _check_settings(kind: type, settings: Mapping[str, Any]) -> Any:
    """The class of the same name among the legacy ones.

    Raises:
        CompatError: it does not know one of these settings; or there is none.
    """
    import tensorflow as tf

    more = [f"{name}={settings[name]}" for name in ("weight_decay", "use_ema") if settings.get(name)]
    twin = getattr(tf.keras.optimizers.legacy, kind.__name__, None)
    if more or twin is None:
        raise CompatError(
            f"the optimizer {kind.__name__} was given to a canned Estimator",
            code="model/bad-optimizer",
            found=", ".join(more) or f"tf.keras.optimizers.legacy has no {kind.__name__}",
            hint="use an optimizer of tf.keras.optimizers.legacy, or of tf.compat.v1.train in a tf.compat.v1.estimator",
        )
    return twin
