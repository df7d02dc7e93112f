"""Hooks of sessions around the steps of a model: what they ask for is fetched with the step, as a session did it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.models.keras_runtime.model_fn.graphs import ModeGraph
from estimator_pipeline.models.keras_runtime.model_fn.inputs import InputGraph

__all__ = ["HookedSteps", "ProfilerHook", "Session"]

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
        """A step: the values of the fetches, the hooks told before and after it."""
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


class ProfilerHook:
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

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Nothing is done."""

    def before_run(self, context: Any) -> None:
        """Begins a profile, where it is time to."""
        self._step += 1
        late = self._seconds is not None and time.monotonic() - self._time >= self._seconds
        if late or (self._steps is not None and self._step % self._steps == 0):
            compat.tensorflow().profiler.experimental.start(self._folder)
            self._runs = True

    def after_run(self, context: Any, values: Any) -> None:
        """Writes the profile."""
        if self._runs:
            compat.tensorflow().profiler.experimental.stop()
            self._runs, self._time = False, time.monotonic()

    def end(self, session: Any) -> None:
        """Nothing is done."""
