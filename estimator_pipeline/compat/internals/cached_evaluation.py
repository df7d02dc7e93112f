"""Many evaluations of one Estimator with one graph, and where it can be with one session.

`Estimator.evaluate` builds graph and session anew each time. That takes longer than the evaluation of a small model,
and the process grows by what is left of each graph (tensorflow/tensorflow#20699). :class:`RepeatedEvaluation` gives
the same results, writes the same summaries, and keeps what it can:

=========================================== ========================================================================
what is found                               what is kept
=========================================== ========================================================================
nothing of the below                        graph and session; each evaluation restores the checkpoint and runs the
                                            local initializers and the input's, as a new session would
operations with a memory of their own       the graph; a new session each time, so that random numbers, one-shot
(random numbers, one-shot iterators, …),    iterators and the like begin as in a new evaluation, and hooks see a
or hooks of the caller                      session of their own
Python functions in the graph, queue        nothing: `Estimator.evaluate` is called. Their state is in Python
runners, evaluation hooks of the model_fn,  objects that only `input_fn` and `model_fn` make anew.
hooks that add to the graph
an Estimator, a strategy or a master that   nothing
is not known here
=========================================== ========================================================================

Private use, on 2.15 to 2.21 alike: of the estimator package `Estimator._evaluate_build_graph`,
`_convert_eval_steps_to_hooks`, `_session_config`, `_eval_distribution` and the two functions that write summaries (a
graph of its own would not be Estimator's, bit by bit); of TensorFlow the evaluation step counter, which belongs to
the stop hook that Estimator uses.
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

# The methods of Estimator whose work is done here: a subclass with its own would not be asked.
_STOOD_IN_FOR = ("evaluate", "_actual_eval", "_evaluate_build_graph", "_evaluate_run", "_call_model_fn_eval")
_YOUNG_SECS = 3.0
_HOOK_ADDS = "a hook of EvalSpec adds operations to the graph"
_STRATEGIES = ("MirroredStrategy", "MirroredStrategyV1", "OneDeviceStrategy", "OneDeviceStrategyV1")


class _GraphGrewError(Exception):
    """A hook added operations to a kept graph, after its first session was made."""


@dataclasses.dataclass(eq=False)
class _Built:
    """An evaluation graph, with what is run in it and, perhaps, its session."""

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
        estimator: a `tf.estimator.Estimator`.
        input_fn: as for `Estimator.evaluate`; called once where the graph is kept.
        steps: batches of an evaluation; None: all.
        hooks: `tf.estimator.SessionRunHook`s; each evaluation is a session's whole life to them, `begin` to `end`.
        name: of the evaluation, as for `Estimator.evaluate`.
        input_restarts: whether an input made of Python functions begins anew each time its iterator does. True for
            a dataset whose Python functions have no state; it can't be seen from the graph.

    Attributes:
        rebuilds_because: why nothing is kept; None while something is, or before the first evaluation.
        keeps_session: whether the session is kept as well as the graph.
        batches: how many batches the last evaluation had; fewer than there were where it ended with a failure.
        graphs: how many graphs were built here; those of `Estimator.evaluate` itself are not counted.
        sessions: how many sessions were made for them.
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
    ) -> None:
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = tuple(hooks)
        self._name = name
        self._input_restarts = input_restarts
        self._built: _Built | None = None
        self._reason: str | None = None
        self.rebuilds_because = _unknown(estimator)
        self.keeps_session = False
        self.batches = 0
        self.graphs = 0
        self.sessions = 0

    @property
    def operations(self) -> int:
        """How many operations the kept graph has; 0 without one."""
        return 0 if self._built is None else len(self._built.graph.get_operations())

    def evaluate(self, checkpoint: str) -> Mapping[str, Any]:
        """Evaluates one checkpoint.

        Args:
            checkpoint: its path, without the ending `.index`.

        Returns:
            What `Estimator.evaluate` returns for it, with the same values and types.
        """
        if self.rebuilds_because is not None:
            return self._plain(checkpoint)
        try:
            # What patches do around `Estimator.evaluate` they do here.
            with around.evaluating(self._estimator), self._in_graph(checkpoint) as built:
                metrics = self._run(built, checkpoint)
                self._write_summaries(metrics, checkpoint)
        except _GraphGrewError:
            self._give_up(_HOOK_ADDS)
            return self._plain(checkpoint)
        except BaseException:
            # What the failure left in graph and session is not known.
            self.close()
            raise
        if self._reason is not None:
            self._give_up(self._reason)
        return metrics

    def close(self) -> None:
        """Lets go of graph and session; the next evaluation makes new ones."""
        built, self._built = self._built, None
        if built is not None and built.session is not None:
            _close(built)

    def _plain(self, checkpoint: str) -> Mapping[str, Any]:
        counter = batch_counter()
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
        logger.info("Every evaluation builds its graph anew: %s.", reason)

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

                # Estimator makes it, and default seeds count the operations that were there before.
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
            return "its input comes from queues"
        known = (util._DatasetInitializerHook, util.DistributedIteratorInitializerHook)
        if not all(type(hook) in known for hook in built.input_hooks):
            return "its input comes with hooks of its own"
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
        with tf.compat.v1.train.MonitoredSession(creator, hooks=hooks) as session:
            while not session.should_stop():
                session.run(built.update)
                self.batches += 1
        logger.info("Evaluated %s in %.2f s", checkpoint, time.monotonic() - started)
        metrics: Mapping[str, Any] = final.final_ops_values
        return metrics

    def _session_creator(self, tf: Any, built: _Built, checkpoint: str) -> Any:
        prepare = self._prepared_session

        class Creator(tf.compat.v1.train.SessionCreator):
            first = True

            def create_session(self) -> Any:
                # Hooks have begun by now. A second call within one evaluation follows a session that broke.
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
            # MonitoredSession closes what it was given when an evaluation ends.
            session.close = lambda: None
            built.session = session
            # A table does not read its file again within one session.
            built.vocabularies = _stamps(tf, graph_state.vocabularies(built.graph))
        return session

    def _write_summaries(self, metrics: Mapping[str, Any], checkpoint: str) -> None:
        from tensorflow_estimator.python.estimator import estimator as library

        folder, step = self._estimator.eval_dir(self._name), metrics["global_step"]
        library._write_dict_to_summary(folder, metrics, step)
        library._write_checkpoint_path_to_summary(folder, checkpoint, step)


def batch_counter() -> Any:
    """A hook that counts, as `batches`, those of one evaluation."""

    class Counter(compat.tensorflow().estimator.SessionRunHook):  # type: ignore[misc]
        batches = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.batches += 1

    return Counter()


def _close(built: _Built) -> None:
    session, built.session = built.session, None
    # Its own `close` does nothing.
    compat.tensorflow().compat.v1.Session.close(session)


def _stamps(tf: Any, files: Iterable[str]) -> dict[str, Any]:
    """What tells that a file has changed, for each."""
    return {path: _stamp(tf, path) for path in files}


def _stamp(tf: Any, path: str) -> Any:
    try:
        about = os.stat(path)
        return about.st_size, about.st_mtime_ns, about.st_ino
    except OSError:
        # No file of this machine. TensorFlow tells the time in whole seconds, in which a file may change twice: one
        # that is as young as that compares unequal to itself.
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
    found = graph_state.what_remembers(built.graph, fetches)
    if None in graph_state.vocabularies(built.graph):
        found.append("a vocabulary file that is named by the graph")
    if found:
        logger.info("Every evaluation has a session of its own, for the sake of %s.", ", ".join(found))
    return not found


def _unknown(estimator: Any) -> str | None:
    """What makes this Estimator another than the one whose evaluation is known here; None if nothing does."""
    tf: Any = compat.tensorflow()
    kind, base = type(estimator), tf.estimator.Estimator
    if not isinstance(estimator, tf.compat.v1.estimator.Estimator) or any(
        getattr(kind, name, None) is not getattr(base, name) or name in vars(estimator) for name in _STOOD_IN_FOR
    ):
        return f"{kind.__name__} evaluates in its own way"
    strategy = estimator._eval_distribution
    if strategy is not None and type(strategy).__name__ not in _STRATEGIES:
        return f"it is distributed by {type(strategy).__name__}"
    if getattr(estimator._config, "_distribute_coordinator_mode", None) and strategy is not None:
        return "it runs in a cluster"
    if estimator._config.evaluation_master:
        return "its session is on another server"
    return None


def _begun(tf: Any, hook: Any) -> Any:
    """A stand-in for an input hook that has begun: `begin` may add operations each time, initializing adds none."""

    class Begun(tf.estimator.SessionRunHook):
        initializer = hook._initializer

        def after_create_session(self, session: Any, coord: Any) -> None:
            hook.after_create_session(session, coord)

    return Begun()
