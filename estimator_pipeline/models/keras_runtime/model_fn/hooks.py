"""Session hooks for the steps of a Keras model: their fetches run with the step, as in a session.

The early-stopping hooks have the arguments and rules of `tf.estimator.experimental`.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.models.keras_runtime.model_fn.graphs import ModeGraph
from estimator_pipeline.models.keras_runtime.model_fn.inputs import InputGraph, dataset

__all__ = [
    "EvaluationHook", "HookedSteps", "ProfilerHook", "Session", "StoppingHook", "make_early_stopping_hook",
    "stop_if_higher_hook", "stop_if_lower_hook", "stop_if_no_decrease_hook", "stop_if_no_increase_hook",
]  # fmt: skip

# Hooks for work that the model does itself.
_OWN = ("CheckpointSaverHook", "StepCounterHook", "SummarySaverHook", "NanTensorHook", "GlobalStepWaiterHook")


class Session:
    """The session of a hook: runs tensors and operations of a mode's graph.

    Attributes:
        graph: The graph of the mode.
    """

    def __init__(self, mode: ModeGraph) -> None:
        self._mode = mode
        self.graph = mode.graph

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Return the values of tensors as NumPy arrays; None for operations, also in an input function's graph."""
        of_input = next(filter(None, map(_input_graph, compat.tensorflow().nest.flatten(fetches))), None)
        if of_input is not None:
            return of_input.run_first(fetches, feed_dict)
        return _numpy(self._mode.run(fetches, None, feed_dict), fetches)

    def should_stop(self) -> bool:
        """Return False: the session is never asked to stop."""
        return False


def _input_graph(fetch: Any) -> InputGraph | None:
    graph = getattr(fetch, "graph", None)  # variables belong to no graph
    return InputGraph.of.get(graph) if graph is not None else None


class HookedSteps:
    """The hooks of a training or an evaluation.

    Args:
        hooks: Hooks of the type `tf.compat.v1.train.SessionRunHook`.
        mode: The graph of the mode.

    Attributes:
        stopped: Whether a hook requested a stop.
    """

    def __init__(self, hooks: Sequence[Any], mode: ModeGraph) -> None:
        self._hooks = [hook for hook in hooks if type(hook).__name__ not in _OWN]
        self._mode, self._session = mode, Session(mode)
        self.stopped = False

    def begin(self) -> None:
        """Call the hooks before the first step."""
        v1 = compat.tensorflow().compat.v1
        with self._mode.graph.as_default():
            for hook in self._hooks:
                hook.begin()
        for hook in self._hooks:
            hook.after_create_session(self._session, v1.train.Coordinator())

    def run(self, fetches: Any, inputs: Any) -> Any:
        """Run a step with the hooks before and after it, and return the values of the fetches."""
        v1 = compat.tensorflow().compat.v1
        contexts, asked = [], {}
        for number, hook in enumerate(self._hooks):
            original = v1.train.SessionRunArgs(fetches)
            contexts.append(v1.train.SessionRunContext(original, self._session))
            arguments = hook.before_run(contexts[-1])
            if arguments is not None and arguments.fetches is not None:
                asked[str(number)] = arguments.fetches
        values = self._mode.run([fetches, asked], inputs) if asked else [self._mode.run(fetches, inputs), {}]
        for number, (hook, context) in enumerate(zip(self._hooks, contexts, strict=True)):
            name = str(number)
            results = _numpy(values[1][name], asked[name]) if name in asked else None
            hook.after_run(context, v1.train.SessionRunValues(results, None, None))
            self.stopped = self.stopped or context.stop_requested
        return values[0]

    def end(self) -> None:
        """Call the hooks after the last step."""
        for hook in self._hooks:
            hook.end(self._session)


def _numpy(values: Any, fetches: Any) -> Any:
    tf = compat.tensorflow()
    return tf.nest.map_structure(lambda value: value.numpy() if hasattr(value, "numpy") else value, values)


class _Hook:
    def begin(self) -> None:
        """See `tf.compat.v1.train.SessionRunHook`."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Do nothing."""

    def before_run(self, context: Any) -> None:
        """Request no fetches."""

    def after_run(self, context: Any, values: Any) -> None:
        """Do nothing."""

    def end(self, session: Any) -> None:
        """Do nothing."""


class ProfilerHook(_Hook):
    """A hook of `fit` that profiles a step at an interval of steps or seconds, for TensorBoard.

    Args:
        save_steps: Steps between profiles.
        save_secs: Seconds between profiles.
        output_dir: The folder of the profiles.
        show_dataflow, show_memory: Ignored.
    """

    def __init__(
        self, save_steps: int | None = None, save_secs: float | None = None, output_dir: str = "",
        show_dataflow: bool = True, show_memory: bool = False,
    ) -> None:  # fmt: skip
        self._steps, self._seconds, self._folder = save_steps, save_secs, output_dir
        self._step, self._time, self._runs = 0, 0.0, False

    def begin(self) -> None:
        """See `tf.compat.v1.train.SessionRunHook`."""
        self._time = time.monotonic()

    def before_run(self, context: Any) -> None:
        """Start a profile if one is due."""
        self._step += 1
        late = self._seconds is not None and time.monotonic() - self._time >= self._seconds
        if late or (self._steps is not None and self._step % self._steps == 0):
            compat.tensorflow().profiler.experimental.start(self._folder)
            self._runs = True

    def after_run(self, context: Any, values: Any) -> None:
        """Stop and write the profile."""
        if self._runs:
            compat.tensorflow().profiler.experimental.stop()
            self._runs, self._time = False, time.monotonic()


class StoppingHook(_Hook):
    """A hook that stops training when a function returns True. See `make_early_stopping_hook`."""

    def __init__(self, should_stop: Callable[[], bool], seconds: float | None, steps: int | None) -> None:
        self._should_stop, self._seconds, self._every = should_stop, seconds, steps
        self._step, self._time = 0, float("-inf")

    def after_run(self, context: Any, values: Any) -> None:
        """Call the function if a check is due."""
        self._step += 1
        late = self._seconds is not None and time.monotonic() - self._time >= self._seconds
        if late or (self._every is not None and (self._step - 1) % self._every == 0):
            self._time = time.monotonic()
            if self._should_stop():
                context.request_stop()


class EvaluationHook(_Hook):
    """A hook that evaluates the model with its current weights. `InMemoryEvaluatorHook` of Estimators.

    Args:
        estimator: A ModelFnModel.
        input_fn: The input function of the evaluation.
        hooks: The hooks of the evaluation.
        name: The name of the evaluation.
        every_n_iter: Steps between evaluations. There is also one before the first step and one after the last.
    """

    def __init__(
        self, estimator: Any, input_fn: Callable[..., Any], hooks: Sequence[Any] | None = None, name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:  # fmt: skip
        self._model, self._input_fn, self._hooks, self._name = estimator, input_fn, hooks, name
        self._every, self._step, self._evaluated = every_n_iter, 0, -1

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Evaluate before the first step."""
        self._evaluate()

    def after_run(self, context: Any, values: Any) -> None:
        """Evaluate if an evaluation is due."""
        self._step += 1
        if self._step % self._every == 0:
            self._evaluate()

    def end(self, session: Any) -> None:
        """Evaluate, unless the last step has been evaluated."""
        if self._evaluated != self._step:
            self._evaluate()

    def _evaluate(self) -> None:
        self._evaluated = self._step
        data = dataset(self._input_fn, "eval", self._model)
        self._model.evaluate(data, return_dict=True, hooks=self._hooks, name=self._name)


def make_early_stopping_hook(
    estimator: Any, should_stop_fn: Callable[[], bool], run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """Return a hook that stops training when a function returns True.

    Args:
        estimator: A ModelFnModel.
        should_stop_fn: Called after the first step, and then at an interval.
        run_every_secs: The interval in seconds; ignored if `run_every_steps` is set.
        run_every_steps: The interval in steps.
    """
    return StoppingHook(should_stop_fn, None if run_every_steps is not None else run_every_secs, run_every_steps)


def stop_if_higher_hook(
    estimator: Any, metric_name: str, threshold: float, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """Return a hook that stops training when a metric is above a threshold.

    Args:
        estimator: A ModelFnModel.
        metric_name: The name of the metric in evaluations.
        threshold: The threshold of the metric.
        eval_dir: The folder of the evaluations' event files; None: that of the model.
        min_steps: Evaluations before this step are ignored.
        run_every_secs, run_every_steps: See `make_early_stopping_hook`.
    """

    def should_stop() -> bool:
        evaluations = _evaluations(eval_dir or estimator.eval_dir(), metric_name)
        return any(step >= min_steps and value > threshold for step, value in evaluations)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Any, metric_name: str, threshold: float, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """Return a hook that stops training when a metric is below a threshold. See `stop_if_higher_hook`."""

    def should_stop() -> bool:
        evaluations = _evaluations(eval_dir or estimator.eval_dir(), metric_name)
        return any(step >= min_steps and value < threshold for step, value in evaluations)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Any, metric_name: str, max_steps_without_decrease: int, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """Return a hook that stops training if a metric has not decreased for a number of steps.

    See `stop_if_higher_hook`.
    """
    should_stop = _without_better(estimator, metric_name, max_steps_without_decrease, eval_dir, min_steps, operator.lt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Any, metric_name: str, max_steps_without_increase: int, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """Return a hook that stops training if a metric has not increased for a number of steps.

    See `stop_if_higher_hook`.
    """
    should_stop = _without_better(estimator, metric_name, max_steps_without_increase, eval_dir, min_steps, operator.gt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def _without_better(
    estimator: Any, metric: str, most: int, folder: str | None, first: int, is_better: Callable[[float, float], bool]
) -> Callable[[], bool]:  # fmt: skip
    def should_stop() -> bool:
        best: tuple[int, float] | None = None
        for step, value in _evaluations(folder or estimator.eval_dir(), metric):
            if step < first:
                continue
            if best is None or is_better(value, best[1]):
                best = step, value
            if step - best[0] >= most:
                return True
        return False

    return should_stop


def _evaluations(folder: str, metric: str) -> list[tuple[int, float]]:
    """Return (step, value of a metric) of all evaluations in a folder's event files, by step."""
    tf = compat.tensorflow()
    values: dict[int, float] = {}
    for path in sorted(tf.io.gfile.glob(os.path.join(folder, "*tfevents*"))):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == metric:
                    number = tf.make_ndarray(value.tensor) if value.HasField("tensor") else value.simple_value
                    values[event.step] = float(number)
    return sorted(values.items())
