"""Repeated evaluations of an Estimator with a cached graph and, if possible, a cached session.

`Estimator.evaluate` builds a new graph and session each time. That takes longer than the evaluation of a small model,
and the memory of the process grows with each graph (tensorflow/tensorflow#20699). `RepeatedEvaluation` gives the same
results, writes the same summaries, and caches what it can:

=========================================== ========================================================================
the evaluation has                          cached
=========================================== ========================================================================
none of the below                           graph and session; each evaluation restores the checkpoint and runs the
                                            local initializers and those of the input, like a new session
stateful operations (random numbers,        the graph; each evaluation has a new session, so that random numbers,
one-shot iterators, …), or hooks of the     one-shot iterators and so on start as in a new evaluation, and hooks see
caller                                      a new session
Python functions in the graph, queue        nothing: `Estimator.evaluate` is called. Only `input_fn` and `model_fn`
runners, evaluation hooks of the model_fn,  can reset the state, which is in Python objects.
hooks that add to the graph
an unknown Estimator class, strategy or     nothing
master
=========================================== ========================================================================

Private use, on 2.15 to 2.21: of the estimator package `Estimator._evaluate_build_graph`,
`_convert_eval_steps_to_hooks`, `_session_config`, `_eval_distribution` and the two functions that write summaries (a
separately built graph would not be bit-identical to Estimator's); of TensorFlow the evaluation step counter, which
belongs to Estimator's stop hook.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import estimator_wrapping as around
from estimator_pipeline.compat.internals import graph_state
from estimator_pipeline.utils.logger import logger

__all__ = ["RepeatedEvaluation", "batch_counter"]

# The methods of Estimator that this module replaces; a subclass that overrides one is not supported.
_REPLACED = ("evaluate", "_actual_eval", "_evaluate_build_graph", "_evaluate_run", "_call_model_fn_eval")
_YOUNG_SECS = 3.0
_HOOK_ADDS = "a hook of EvalSpec adds operations to the graph"
_STRATEGIES = ("MirroredStrategy", "MirroredStrategyV1", "OneDeviceStrategy", "OneDeviceStrategyV1")


class _GraphGrewError(Exception):
    """Raised if a hook adds operations to a cached graph after its first session was created."""


@dataclasses.dataclass(eq=False)
class _Built:
    """An evaluation graph with its operations and, if cached, its session."""

    graph: Any
    scaffold: Any = None
    update: Sequence[Any] = ()
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    count: Any = None
    input_hooks: Sequence[Any] = ()
    model_hooks: Sequence[Any] = ()
    operations: int = 0
    sealed: bool = False
    session: Any = None
    vocabularies: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class RepeatedEvaluation:
    """Evaluates checkpoints of one Estimator, one after another.

    Args:
        estimator: A `tf.estimator.Estimator`.
        input_fn: As for `Estimator.evaluate`; called once if the graph is cached.
        steps: Batches of an evaluation; None: all.
        hooks: `tf.estimator.SessionRunHook`s; each evaluation calls all methods from `begin` to `end`.
        name: The name of the evaluation, as for `Estimator.evaluate`.
        input_restarts: Whether an input with Python functions restarts with its iterator. True for a dataset whose
            Python functions have no state, which the graph does not show.
        on_batch: Called with the number of batches evaluated: before an evaluation's session is created, with 0, and
            after each batch.

    Attributes:
        rebuilds_because: Why nothing is cached; None while something is, or before the first evaluation.
        keeps_session: Whether the session is cached, too.
        batches: The number of batches of the last evaluation; fewer if it failed.
        graphs: The number of graphs built here; those of `Estimator.evaluate` are not counted.
        sessions: The number of sessions created for them.
    """

    def __init__(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        *,
        steps: int | None = None,
        hooks: Sequence[Any] = (),
        name: str | None = None,
        input_restarts: bool = False,
        on_batch: Callable[[int], None] = lambda batches: None,
    ) -> None:
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = tuple(hooks)
        self._name = name
        self._input_restarts = input_restarts
        self._on_batch = on_batch
        self._built: _Built | None = None
        self._reason: str | None = None
        self.rebuilds_because = _unknown(estimator)
        self.keeps_session = False
        self.batches = 0
        self.graphs = 0
        self.sessions = 0

    @property
    def operations(self) -> int:
        """The number of operations of the cached graph; 0 without one."""
        return 0 if self._built is None else len(self._built.graph.get_operations())

    def evaluate(self, checkpoint: str) -> Mapping[str, Any]:
        """Evaluate one checkpoint.

        Args:
            checkpoint: The checkpoint's path, without the suffix `.index`.

        Returns:
            The result of `Estimator.evaluate`, with the same values and types.
        """
        if self.rebuilds_because is not None:
            return self._plain(checkpoint)
        try:
            # Apply the patches that wrap `Estimator.evaluate`.
            with around.evaluating(self._estimator), self._in_graph(checkpoint) as built:
                metrics = self._run(built, checkpoint)
                self._write_summaries(metrics, checkpoint)
        except _GraphGrewError:
            self._give_up(_HOOK_ADDS)
            return self._plain(checkpoint)
        except BaseException:
            # The state of graph and session is unknown after a failure.
            self.close()
            raise
        if self._reason is not None:
            self._give_up(self._reason)
        return metrics

    def close(self) -> None:
        """Release graph and session; the next evaluation creates new ones."""
        built, self._built = self._built, None
        if built is not None and built.session is not None:
            _close(built)

    def _plain(self, checkpoint: str) -> Mapping[str, Any]:
        counter = batch_counter(self._on_batch)
        metrics: Mapping[str, Any] = self._estimator.evaluate(
            self._input_fn,
            steps=self._steps,
            hooks=[*self._hooks, counter],
            checkpoint_path=checkpoint,
            name=self._name,
        )
        self.batches = counter.batches
        return metrics

    def _give_up(self, reason: str) -> None:
        self.rebuilds_because = reason
        self.keeps_session = False
        self.close()
        logger.info("Every evaluation builds a new graph: %s.", reason)

    # -- the graph ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _in_graph(self, checkpoint: str) -> Iterator[_Built]:
        tf: Any = compat.tensorflow()
        strategy = self._estimator._eval_distribution
        new = self._built is None
        built = self._built = self._built or _Built(tf.Graph())
        with built.graph.as_default():
            if new and strategy is not None:
                from tensorflow.python.training import basic_session_run_hooks

                # Estimator creates it first, and default seeds depend on the number of operations.
                basic_session_run_hooks.get_or_create_steps_per_run_variable()
            with contextlib.nullcontext() if strategy is None else strategy.scope():
                if new:
                    self._build(tf, built, checkpoint)
                yield built

    def _build(self, tf: Any, built: _Built, checkpoint: str) -> None:
        from tensorflow.python.training import evaluation

        mark = tf.estimator.SessionRunHook()
        scaffold, update, values, hooks = self._estimator._evaluate_build_graph(self._input_fn, [mark], checkpoint)
        built.input_hooks, built.model_hooks = hooks[: hooks.index(mark)], hooks[hooks.index(mark) + 1 :]
        built.scaffold = scaffold or tf.compat.v1.train.Scaffold()
        built.values = values
        step = evaluation._get_or_create_eval_step()
        built.update = [update, tf.compat.v1.assign_add(step, 1, use_locking=True)]
        with tf.control_dependencies(built.update):
            built.count = tf.identity(step.read_value())
        self.graphs += 1
        self._reason = self._why_not_keep(tf, built)
        if self._reason is None:
            for hook in built.input_hooks:
                hook.begin()
            built.input_hooks = [_begun(tf, hook) for hook in built.input_hooks]
        built.operations = self.operations

    def _why_not_keep(self, tf: Any, built: _Built) -> str | None:
        from tensorflow_estimator.python.estimator import util

        if built.model_hooks:
            return "the model_fn has evaluation hooks"
        if built.graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS):
            return "its input uses queues"
        known = (util._DatasetInitializerHook, util.DistributedIteratorInitializerHook)
        if not all(type(hook) in known for hook in built.input_hooks):
            return "its input has custom hooks"
        in_datasets, others = graph_state.python_functions(built.graph)
        if others:
            return "the model calls Python functions"
        if in_datasets and not self._input_restarts:
            return "the input calls Python functions"
        return None

    # -- one evaluation -----------------------------------------------------------------------------------------

    def _run(self, built: _Built, checkpoint: str) -> Mapping[str, Any]:
        tf: Any = compat.tensorflow()
        stop_hooks = self._estimator._convert_eval_steps_to_hooks(self._steps)
        for hook in stop_hooks:
            hook._set_evals_completed_tensor(built.count)
        final = tf.estimator.FinalOpsHook(built.values)
        hooks = [*built.input_hooks, *self._hooks, *stop_hooks, *built.model_hooks, final]
        started = time.monotonic()
        creator = self._session_creator(tf, built, checkpoint)
        self.batches = 0
        self._on_batch(0)
        with tf.compat.v1.train.MonitoredSession(creator, hooks=hooks) as session:
            while not session.should_stop():
                session.run(built.update)
                self.batches += 1
                self._on_batch(self.batches)
        logger.info("Evaluated %s in %.2f s", checkpoint, time.monotonic() - started)
        metrics: Mapping[str, Any] = final.final_ops_values
        return metrics

    def _session_creator(self, tf: Any, built: _Built, checkpoint: str) -> Any:
        prepare = self._prepared_session

        class Creator(tf.compat.v1.train.SessionCreator):
            first = True

            def create_session(self) -> Any:
                # Hooks have begun by now. A second call within one evaluation follows a failed session.
                first, self.first = self.first, False
                return prepare(tf, built, checkpoint, may_reuse=first)

        return Creator()

    def _prepared_session(self, tf: Any, built: _Built, checkpoint: str, *, may_reuse: bool) -> Any:
        if self.operations != built.operations:
            if built.sealed:
                raise _GraphGrewError
            self._reason = self._reason or _HOOK_ADDS
        if built.session is not None:
            if may_reuse and built.vocabularies == _stamps(tf, built.vocabularies):
                built.scaffold.saver.restore(built.session, checkpoint)
                built.session.run(built.scaffold.local_init_op, feed_dict=built.scaffold.local_init_feed_dict)
                return built.session
            _close(built)
        session = tf.compat.v1.train.ChiefSessionCreator(
            built.scaffold, config=self._estimator._session_config, checkpoint_filename_with_path=checkpoint
        ).create_session()
        self.sessions += 1
        if not built.sealed:
            self.keeps_session = self._reason is None and not self._hooks and _may_keep_session(tf, built)
        built.sealed = True
        built.operations = self.operations
        if self.keeps_session:
            # MonitoredSession closes its session at the end of an evaluation.
            session.close = lambda: None
            built.session = session
            # A table reads its file only once per session.
            built.vocabularies = _stamps(tf, graph_state.vocabularies(built.graph))
        return session

    def _write_summaries(self, metrics: Mapping[str, Any], checkpoint: str) -> None:
        from tensorflow_estimator.python.estimator import estimator as library

        folder, step = self._estimator.eval_dir(self._name), metrics["global_step"]
        library._write_dict_to_summary(folder, metrics, step)
        library._write_checkpoint_path_to_summary(folder, checkpoint, step)


def batch_counter(on_batch: Callable[[int], None] = lambda batches: None) -> Any:
    """Return a hook that counts the batches of one evaluation, as `batches`.

    Args:
        on_batch: As for `RepeatedEvaluation`.
    """

    class Counter(compat.tensorflow().estimator.SessionRunHook):  # type: ignore[misc]
        batches = 0

        def begin(self) -> None:
            on_batch(0)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.batches += 1
            on_batch(self.batches)

    return Counter()


def _close(built: _Built) -> None:
    session, built.session = built.session, None
    # The session's `close` does nothing.
    compat.tensorflow().compat.v1.Session.close(session)


def _stamps(tf: Any, files: Iterable[str]) -> dict[str, Any]:
    """Return values for each file that change when the file changes."""
    return {path: _stamp(tf, path) for path in files}


def _stamp(tf: Any, path: str) -> Any:
    try:
        about = os.stat(path)
        return about.st_size, about.st_mtime_ns, about.st_ino
    except OSError:
        # Not a local file. TensorFlow's times are in whole seconds, in which a file may change twice: a file that was
        # just changed compares unequal to itself.
        about = tf.io.gfile.stat(path)
        young = abs(time.time() - about.mtime_nsec / 1e9) < _YOUNG_SECS
        return object() if young else (about.length, about.mtime_nsec)


def _may_keep_session(tf: Any, built: _Built) -> bool:
    saver = built.scaffold.saver
    if type(saver) is not tf.compat.v1.train.Saver or built.graph.get_collection("saved_model_initializers"):
        return False
    fetches = [
        *built.update,
        built.count,
        *tf.nest.flatten(built.values),
        built.scaffold.local_init_op,
        saver.saver_def.restore_op_name,
        *(op for hook in built.input_hooks for op in tf.nest.flatten(hook.initializer)),
    ]
    stateful = graph_state.stateful_operations(built.graph, fetches)
    if None in graph_state.vocabularies(built.graph):
        stateful.append("a vocabulary file whose path the graph computes")
    if stateful:
        logger.info("Every evaluation has a new session, because of %s.", ", ".join(stateful))
    return not stateful


def _unknown(estimator: Any) -> str | None:
    """Return why the evaluation of this Estimator is unsupported here; None if it is supported."""
    tf: Any = compat.tensorflow()
    kind, base = type(estimator), tf.estimator.Estimator
    if not isinstance(estimator, tf.compat.v1.estimator.Estimator) or any(
        getattr(kind, name, None) is not getattr(base, name) or name in vars(estimator) for name in _REPLACED
    ):
        return f"{kind.__name__} overrides methods of the evaluation"
    strategy = estimator._eval_distribution
    if strategy is not None and type(strategy).__name__ not in _STRATEGIES:
        return f"it is distributed by {type(strategy).__name__}"
    if getattr(estimator._config, "_distribute_coordinator_mode", None) and strategy is not None:
        return "it runs in a cluster"
    if estimator._config.evaluation_master:
        return "its session is on another server"
    return None


def _begun(tf: Any, hook: Any) -> Any:
    """Wrap an input hook that has begun: a second `begin` may add operations, the initialization adds none."""

    class Begun(tf.estimator.SessionRunHook):
        initializer = hook._initializer

        def after_create_session(self, session: Any, coord: Any) -> None:
            hook.after_create_session(session, coord)

    return Begun()
