"""What session hooks want to see of a training, and how they are told of steps that they were not called for.

A hook is called once for each session call. Where a call makes several steps, each hook must still see the steps that
it acts on: TensorFlow's own hooks are known here, by the class that has their `before_run` and `after_run`. Any other
hook says it by itself, with two methods:

    steps_passed(count)      `count` steps were made, and the call that begins makes one more
    wanted_steps(start)      pairs (period, origin): steps that must end their call; `start`, where training begins

A hook that has neither `before_run` nor `after_run` sees no steps. All others are not known, and want to see every one.

Private use: the counters and timers of TensorFlow's hooks, `monitored_session._MonitoredSession` (to see the hooks of
a session, and to have one come first) and `Estimator._train_with_estimator_spec` (to see the train op); all the same
from 2.15 to 2.21.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Wanted", "pass_steps", "see_hooks", "tell_train_op", "wanted_by"]

# (period, origin): the steps origin, origin + period, ...; period 0: origin alone.
Wanted = tuple[int, int]


def see_hooks() -> None:
    """From now on a session that has a hook with a method `sees_hooks` calls it first of all, and tells it of all."""
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


def tell_train_op(estimator: Any, tell: Callable[[Any, Any], None]) -> None:
    """Has `tell(train_op, loss)` called when this Estimator has built its graph for training.

    Args:
        estimator: a copy made for one training, see
            :func:`estimator_pipeline.compat.internals.distribute_coordinator.bind_to_task`.
        tell: called in the graph, before the session is made.
    """
    train = estimator._train_with_estimator_spec

    def told(spec: Any, *args: Any, **kwargs: Any) -> Any:
        tell(spec.train_op, spec.loss)
        return train(spec, *args, **kwargs)

    estimator._train_with_estimator_spec = told


def wanted_by(hook: Any, *, start: int, loss: Any) -> Iterable[Wanted] | None:
    """The steps that a hook must see; None: it is not known, and every one.

    Args:
        hook: any session hook, after its `begin`.
        start: the global step at which the session begins.
        loss: the tensor whose NaN ends a call.
    """
    if hasattr(hook, "steps_passed"):
        return hook.wanted_steps(start) if hasattr(hook, "wanted_steps") else ()
    known = _known(hook)
    return None if known is None else known(hook, start, loss)


def pass_steps(hook: Any, count: int, step: int) -> None:
    """Tells a hook, for which :func:`wanted_by` was not None, that steps were made without it.

    Args:
        hook: the hook.
        count: how many.
        step: the global step by now; the call that begins makes one more.
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
    own = {"before_run", "after_run"} & set(vars(hook))
    owners = {next(c for c in type(hook).__mro__ if name in vars(c)) for name in ("before_run", "after_run")}
    owners.discard(v1.SessionRunHook)
    if own or len(owners) > 1:
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
    # Of another tensor nothing is known between two calls.
    return () if hook._loss_tensor is loss and hook._fail_on_nan_loss else None


def _saver(hook: Any, start: int, loss: Any) -> Iterable[Wanted]:
    # It saves when the session stands, and counts from there.
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
    """The steps at which a timer is due.

    Args:
        timer: of a hook.
        first: the first step at which it is asked.
        since: the step at which it was due last, if it was.
    """
    period = getattr(timer, "_every_steps", None)
    if not period:
        # By the clock, or never: looked at when a call ends.
        return ()
    period = int(period)
    return [(period, first if since is None or first >= since + period else since)]
