"""Hooks of sessions around the steps of a model: what they ask for is fetched with the step, as a session did it.

Those that look at evaluations have the arguments and rules of `tf.estimator.experimental`'s.
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

# What the model does by itself.
_OWN = ("CheckpointSaverHook", "StepCounterHook", "SummarySaverHook", "NanTensorHook", "GlobalStepWaiterHook")


class Session:
    """What a hook takes for its session: it runs what a graph has.

    Attributes:
        graph: the graph of the mode.
    """

    def __init__(self, mode: ModeGraph) -> None:
        self._mode = mode
        self.graph = mode.graph

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Values of tensors as NumPy arrays; None for operations, those of an input function's graph among them."""
        of_input = next(filter(None, map(_input_graph, compat.tensorflow().nest.flatten(fetches))), None)
        if of_input is not None:
            return of_input.run_first(fetches, feed_dict)
        return _numpy(self._mode.run(fetches, None, feed_dict), fetches)

    def should_stop(self) -> bool:
        """Whether the session was asked to stop."""
        return False


def _input_graph(fetch: Any) -> InputGraph | None:
    graph = getattr(fetch, "graph", None)  # variables are of none
    return InputGraph.of.get(graph) if graph is not None else None


class HookedSteps:
    """The hooks of a training or an evaluation.

    Args:
        hooks: as of `tf.compat.v1.train.SessionRunHook`.
        mode: the graph that they are for.

    Attributes:
        stopped: whether one of them asked for an end.
    """

    def __init__(self, hooks: Sequence[Any], mode: ModeGraph) -> None:
        self._hooks = [hook for hook in hooks if type(hook).__name__ not in _OWN]
        self._mode, self._session = mode, Session(mode)
        self.stopped = False

    def begin(self) -> None:
        """What hooks do before the first step."""
        v1 = compat.tensorflow().compat.v1
        with self._mode.graph.as_default():
            for hook in self._hooks:
                hook.begin()
        for hook in self._hooks:
            hook.after_create_session(self._session, v1.train.Coordinator())

    def run(self, fetches: Any, inputs: Any) -> Any:
        """Return a step: the values of the fetches, the hooks told before and after it."""
        v1 = compat.tensorflow().compat.v1
        contexts, asked = [], {}
        for number, hook in enumerate(self._hooks):
            original = v1.train.SessionRunArgs(fetches)
            contexts.append(v1.train.SessionRunContext(original, self._session))
            told = hook.before_run(contexts[-1])
            if told is not None and told.fetches is not None:
                asked[str(number)] = told.fetches
        found = self._mode.run([fetches, asked], inputs) if asked else [self._mode.run(fetches, inputs), {}]
        for number, (hook, context) in enumerate(zip(self._hooks, contexts, strict=True)):
            name = str(number)
            results = _numpy(found[1][name], asked[name]) if name in asked else None
            hook.after_run(context, v1.train.SessionRunValues(results, None, None))
            self.stopped = self.stopped or context.stop_requested
        return found[0]

    def end(self) -> None:
        """What hooks do behind the last step."""
        for hook in self._hooks:
            hook.end(self._session)


def _numpy(found: Any, fetches: Any) -> Any:
    tf = compat.tensorflow()
    return tf.nest.map_structure(lambda one: one.numpy() if hasattr(one, "numpy") else one, found)


class _Hook:
    def begin(self) -> None:
        """See `tf.compat.v1.train.SessionRunHook`."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Nothing is done."""

    def before_run(self, context: Any) -> None:
        """Nothing is asked for."""

    def after_run(self, context: Any, values: Any) -> None:
        """Nothing is done."""

    def end(self, session: Any) -> None:
        """Nothing is done."""


class ProfilerHook(_Hook):
    """Profiles a step each so many steps or seconds, for TensorBoard. A hook of `fit`.

    Args:
        save_steps: steps from one profile to the next.
        save_secs: seconds from one to the next.
        output_dir: the folder of the profiles.
        show_dataflow, show_memory: have no meaning here.
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
        """Begins a profile, where it is time to."""
        self._step += 1
        late = self._seconds is not None and time.monotonic() - self._time >= self._seconds
        if late or (self._steps is not None and self._step % self._steps == 0):
            compat.tensorflow().profiler.experimental.start(self._folder)
            self._runs = True

    def after_run(self, context: Any, values: Any) -> None:
        """Write the profile."""
        if self._runs:
            compat.tensorflow().profiler.experimental.stop()
            self._runs, self._time = False, time.monotonic()


class StoppingHook(_Hook):
    """Asks for the end of a training where a function says so. See `make_early_stopping_hook`."""

    def __init__(self, should_stop: Callable[[], bool], seconds: float | None, steps: int | None) -> None:
        self._should_stop, self._seconds, self._every = should_stop, seconds, steps
        self._step, self._time = 0, float("-inf")

    def after_run(self, context: Any, values: Any) -> None:
        """Asks the function, where it is time to."""
        self._step += 1
        late = self._seconds is not None and time.monotonic() - self._time >= self._seconds
        if late or (self._every is not None and (self._step - 1) % self._every == 0):
            self._time = time.monotonic()
            if self._should_stop():
                context.request_stop()


class EvaluationHook(_Hook):
    """Evaluates a model while it trains, with the weights that it has. `InMemoryEvaluatorHook` of Estimators.

    Args:
        estimator: a ModelFnModel.
        input_fn: of the evaluation.
        hooks: of the evaluation.
        name: of the evaluation.
        every_n_iter: steps from one to the next; there is one before the first step and one behind the last.
    """

    def __init__(
        self, estimator: Any, input_fn: Callable[..., Any], hooks: Sequence[Any] | None = None, name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:  # fmt: skip
        self._model, self._input_fn, self._hooks, self._name = estimator, input_fn, hooks, name
        self._every, self._step, self._evaluated = every_n_iter, 0, -1

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Evaluate."""
        self._evaluate()

    def after_run(self, context: Any, values: Any) -> None:
        """Evaluate, where it is time to."""
        self._step += 1
        if self._step % self._every == 0:
            self._evaluate()

    def end(self, session: Any) -> None:
        """Evaluate, unless the last step was evaluated."""
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
    """Return a hook that ends a training where a function says so.

    Args:
        estimator: a ModelFnModel.
        should_stop_fn: is asked after the first step, and then
        run_every_secs: each so many seconds, or
        run_every_steps: each so many steps; then `run_every_secs` is None.
    """
    return StoppingHook(should_stop_fn, None if run_every_steps is not None else run_every_secs, run_every_steps)


def stop_if_higher_hook(
    estimator: Any, metric_name: str, threshold: float, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """Return a hook that ends a training once a metric is above a threshold.

    Args:
        estimator: a ModelFnModel.
        metric_name: of an evaluation.
        threshold: of the metric.
        eval_dir: the folder of the evaluations' event files; None: that of the model.
        min_steps: evaluations before it do not count.
        run_every_secs, run_every_steps: see `make_early_stopping_hook`.
    """

    def should_stop() -> bool:
        found = _evaluations(eval_dir or estimator.eval_dir(), metric_name)
        return any(step >= min_steps and value > threshold for step, value in found)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Any, metric_name: str, threshold: float, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """Return a hook that ends a training once a metric is below a threshold. See `stop_if_higher_hook`."""

    def should_stop() -> bool:
        found = _evaluations(eval_dir or estimator.eval_dir(), metric_name)
        return any(step >= min_steps and value < threshold for step, value in found)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Any, metric_name: str, max_steps_without_decrease: int, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """Return a hook that ends a training where a metric was not lower for so many steps. See `stop_if_higher_hook`."""
    should_stop = _without_better(estimator, metric_name, max_steps_without_decrease, eval_dir, min_steps, operator.lt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Any, metric_name: str, max_steps_without_increase: int, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> StoppingHook:  # fmt: skip
    """A hook that ends a training where a metric was not higher for so many steps. See `stop_if_higher_hook`."""
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
    """(step, value of a metric) of the evaluations that a folder has event files of, in their order."""
    tf = compat.tensorflow()
    found: dict[int, float] = {}
    for path in sorted(tf.io.gfile.glob(os.path.join(folder, "*tfevents*"))):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == metric:
                    number = tf.make_ndarray(value.tensor) if value.HasField("tensor") else value.simple_value
                    found[event.step] = float(number)
    return sorted(found.items())
