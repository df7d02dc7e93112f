"""The steps that session hooks must see, and notification of hooks about steps for which they were not called.

A hook is called once per session call. If a call has several steps, each hook must still see the steps on which it
acts. TensorFlow's hooks are known here, by the class that defines their `before_run` and `after_run`. Any other hook
declares its steps with two methods:

    steps_passed(count)      `count` steps have run, and the call that begins runs one more
    wanted_steps(start)      pairs (period, origin): steps that must end their call; `start` is the first step

A hook with neither `before_run` nor `after_run` needs no steps. All other hooks are unknown, and must see every step.

Private use: the counters and timers of TensorFlow's hooks, `monitored_session._MonitoredSession` (for the hooks of a
session, and their order), `Estimator._train_with_estimator_spec` (for the train op) and `Estimator._call_model_fn` (for
that of each replica); unchanged from 2.15 to 2.21.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Wanted", "notify_replicas", "notify_train_op", "pass_steps", "see_hooks", "wanted_by"]

# (period, origin): the steps origin, origin + period, ...; period 0: only origin.
Wanted = tuple[int, int]


def see_hooks() -> None:
    """Let future sessions call `sees_hooks(hooks)` of hooks with this method, and run these hooks first."""
    _patch()


@functools.cache
def _patch() -> None:
    from tensorflow.python.training import monitored_session

    original = monitored_session._MonitoredSession.__init__

    @functools.wraps(original)
    def init(self, session_creator, hooks, *args, **kwargs):
        hooks = list(hooks or ())
        seeing = [hook for hook in hooks if hasattr(hook, "sees_hooks")]
        others = [hook for hook in hooks if not hasattr(hook, "sees_hooks")]
        for hook in seeing:
            hook.sees_hooks(others)
        original(self, session_creator, seeing + others, *args, **kwargs)

    monitored_session._MonitoredSession.__init__ = init


def notify_train_op(estimator: Any, callback: Callable[[Any, Any], None]) -> None:
    """Call `callback(train_op, loss)` when this Estimator has built its graph for training.

    Args:
        estimator: A copy for one training, see `distribute_coordinator.bind_to_task`.
        callback: Called in the graph, before the session is created.
    """
    train = estimator._train_with_estimator_spec

    def train_with_callback(spec: Any, *args: Any, **kwargs: Any) -> Any:
        callback(spec.train_op, spec.loss)
        return train(spec, *args, **kwargs)

    estimator._train_with_estimator_spec = train_with_callback


def notify_replicas(estimator: Any, callback: Callable[[list[Any], Any], None]) -> None:
    """Call `callback(inputs, spec)` for each replica's call of the model_fn in training, in order.

    Args:
        estimator: A copy for one training, see `distribute_coordinator.bind_to_task`.
        callback: Gets the tensors of features and labels, and the replica's EstimatorSpec, before the reduction.
    """
    import tensorflow as tf

    call = estimator._call_model_fn

    def call_with_callback(features: Any, labels: Any, mode: Any, config: Any) -> Any:
        spec = call(features, labels, mode, config)
        if mode == tf.estimator.ModeKeys.TRAIN:
            leaves = tf.nest.flatten((features, labels), expand_composites=True)
            callback([leaf for leaf in leaves if tf.is_tensor(leaf)], spec)
        return spec

    estimator._call_model_fn = call_with_callback


def wanted_by(hook: Any, *, start: int, loss: Any) -> Iterable[Wanted] | None:
    """Return the steps that a hook must see; None if it is unknown and must see every step.

    Args:
        hook: A session hook, after its `begin`.
        start: The global step at which the session begins.
        loss: The tensor whose NaN ends a call.
    """
    if hasattr(hook, "steps_passed"):
        return hook.wanted_steps(start) if hasattr(hook, "wanted_steps") else ()
    known = _known(hook)
    return None if known is None else known(hook, start, loss)


def pass_steps(hook: Any, count: int, step: int) -> None:
    """Notify a hook, for which `wanted_by` was not None, that steps have run without it.

    Args:
        hook: The hook.
        count: The number of steps.
        step: The current global step; the call that begins runs one more.
    """
    import tensorflow as tf

    v1 = tf.compat.v1.train
    if hasattr(hook, "steps_passed"):
        hook.steps_passed(count)
    elif isinstance(hook, v1.LoggingTensorHook):
        hook._iter_count += count
    elif isinstance(hook, v1.SummarySaverHook) and hook._next_step is not None:
        hook._next_step = step + 1


def _known(hook: Any) -> Callable[[Any, int, Any], Iterable[Wanted] | None] | None:
    import tensorflow as tf

    v1 = tf.compat.v1.train
    overridden = {"before_run", "after_run"} & set(vars(hook))
    owners = {next(c for c in type(hook).__mro__ if name in vars(c)) for name in ("before_run", "after_run")}
    owners.discard(v1.SessionRunHook)
    if overridden or len(owners) > 1:
        return None
    owner = owners.pop() if owners else v1.SessionRunHook
    return {
        v1.SessionRunHook: _none,
        v1.GlobalStepWaiterHook: _none,
        v1.StopAtStepHook: _last_step,
        v1.NanTensorHook: _loss,
        v1.CheckpointSaverHook: _saver,
        v1.StepCounterHook: _counter,
        v1.SummarySaverHook: _summaries,
        v1.LoggingTensorHook: _logging,
    }.get(owner)


def _none(hook: Any, start: int, loss: Any) -> Iterable[Wanted]:
    return ()


def _last_step(hook: Any, start: int, loss: Any) -> Iterable[Wanted]:
    return [(0, start + hook._num_steps if hook._last_step is None else hook._last_step)]


def _loss(hook: Any, start: int, loss: Any) -> Iterable[Wanted] | None:
    # A different tensor is not checked between two calls.
    return () if hook._loss_tensor is loss and hook._fail_on_nan_loss else None


def _saver(hook: Any, start: int, loss: Any) -> Iterable[Wanted]:
    # It saves when the session exists, and counts from there.
    return _every(hook._timer, start)


def _counter(hook: Any, start: int, loss: Any) -> Iterable[Wanted]:
    return _every(hook._timer, start + 1, since=hook._timer.last_triggered_step())


def _summaries(hook: Any, start: int, loss: Any) -> Iterable[Wanted]:
    begun = hook._next_step is not None
    return _every(hook._timer, start + 1, since=hook._timer.last_triggered_step() if begun else None)


def _logging(hook: Any, start: int, loss: Any) -> Iterable[Wanted]:
    # It counts calls from 0: call 0 is the first step.
    last = hook._timer.last_triggered_step()
    return _every(hook._timer, start + 1, since=None if last is None else start + 1 + last - hook._iter_count)


def _every(timer: Any, first: int, *, since: int | None = None) -> Iterable[Wanted]:
    """Return the steps at which a timer is due.

    Args:
        timer: The timer of a hook.
        first: The first step at which the hook checks it.
        since: The last step at which it was due, if any.
    """
    period = getattr(timer, "_every_steps", None)
    if not period:
        # Based on time, or never due: checked at the end of a call.
        return ()
    period = int(period)
    return [(period, first if since is None or first >= since + period else since)]
