"""InMemoryEvaluatorHook evaluates inputs that Python functions feed (`numpy_input_fn`, `pandas_input_fn`) each time.

The hook builds the evaluation's graph once, and opens a session for each evaluation. Python objects hold the position
in the data of such an input, and only a call of the input function resets it: from the second evaluation on there was
no batch, and each metric was 0.0 (tensorflow/tensorflow#21590). Here the graph is built for each evaluation, as in
`Estimator.evaluate`.

Private use: `InMemoryEvaluatorHook._evaluate` and the attributes that its `begin` sets; `_FeedingQueueRunner` of the
estimator package, which feeds the data.
"""

from __future__ import annotations

import functools
from typing import Any

NAME = "in-memory-evaluator"
WHAT = (
    "InMemoryEvaluatorHook evaluates numpy_input_fn and pandas_input_fn each time; all metrics were 0.0 from the second"
)


def apply() -> None:
    from tensorflow_estimator.python.estimator.hooks import hooks

    kind = hooks.InMemoryEvaluatorHook
    original = kind._evaluate

    @functools.wraps(original)
    def evaluate(self: Any, train_session: Any) -> None:
        if getattr(self, "_evaluated_graph", None) is self._graph and _is_fed(self._graph):
            _rebuild(self)
        self._evaluated_graph = self._graph
        original(self, train_session)

    kind._evaluate = evaluate


def _is_fed(graph: Any) -> bool:
    import tensorflow as tf
    from tensorflow_estimator.python.estimator.inputs.queues import feeding_queue_runner

    runners = graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS)
    return any(isinstance(runner, feeding_queue_runner._FeedingQueueRunner) for runner in runners)


def _rebuild(hook: Any) -> None:
    """Build the evaluation's graph like at the start of training, without resetting the step count."""
    import tensorflow as tf

    timer, count = hook._timer, hook._iter_count
    hook._timer = tf.compat.v1.train.SecondOrStepTimer(every_steps=1)
    hook.begin()
    hook._timer, hook._iter_count = timer, count
    names = hook._var_name_to_train_var
    hook._var_name_to_eval_var = {name: hook._var_name_to_eval_var[name] for name in names}
    with hook._graph.as_default():
        assign = tf.compat.v1.assign
        hook._var_feed_op = tf.group(
            [assign(hook._var_name_to_eval_var[name], hook._var_name_to_placeholder[name]) for name in names]
        )
