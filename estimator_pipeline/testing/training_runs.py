"""Runs of a `model_fn` in an Estimator for a few steps, on one or two replicas, with recorded values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import sessions
from estimator_pipeline.distribute import strategies
from estimator_pipeline.distribute.run_config import build_run_config

__all__ = [
    "Applied",
    "CheckedEvaluation",
    "CheckedTraining",
    "applied",
    "evaluate",
    "make_config",
    "prepare",
    "train",
    "two_replicas",
    "under",
]


def prepare() -> Any:
    """Prepare TensorFlow for the checks: `tf.estimator`, and two logical CPUs for the check with two replicas.

    TensorFlow fixes the devices of a process when it first runs an operation. Call this function in `conftest.py`,
    before tests or their imports use TensorFlow; otherwise that check may be skipped.

    Returns:
        The `tensorflow` module.

    Raises:
        ConfigError: TensorFlow already runs with fewer devices.
    """
    tf = compat.tensorflow()
    strategies.split_cpu(2)
    return tf


def two_replicas() -> Any:
    """Return a strategy with two logical CPUs, on any machine.

    Raises:
        ConfigError: TensorFlow already runs with fewer devices.
    """
    tf = prepare()
    # TensorFlow's default, ring collectives between the devices of a CPU, deadlocks in a session.
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())


def make_config(user_config: Any, model_dir: str, *, seed: int | None, strategy: Any = None) -> Any:
    """Return the RunConfig of a run: the user's, if there is one, with the changes that the checks need."""
    tf = compat.tensorflow()
    session = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if user_config is not None and user_config.session_config is not None:
        session.CopyFrom(user_config.session_config)
    if strategy is not None:
        # A session creates its devices by this count; without it the replicas' logical CPUs do not exist.
        session.device_count["CPU"] = max(2, session.device_count.get("CPU", 0))
    changes = {
        "tf_random_seed": seed,
        "save_summary_steps": None,
        "log_step_count_steps": None,
        "save_checkpoints_steps": 1_000_000,
        "checkpoint_save_graph_def": False,
        "session_config": session,
        "train_distribute": strategy,
    }
    distributed = user_config is not None and (
        user_config.train_distribute is not None or user_config.eval_distribute is not None
    )
    if user_config is None or distributed:
        # A RunConfig with a strategy cannot be copied. TF_CONFIG is ignored: this is a single process.
        return build_run_config(model_dir, environ={}, **changes)
    return user_config.replace(model_dir=model_dir, save_checkpoints_secs=None, **changes)


@dataclass(frozen=True)
class Applied:
    """An operation by which an optimizer changes a variable.

    Attributes:
        variable: The variable's name.
        gradient: The gradient tensor that is applied.
        indices: The rows of a sparse gradient, else None.
    """

    variable: str
    gradient: Any
    indices: Any


def applied(graph: Any) -> list[Applied]:
    """Return the optimizer updates in a graph, from TensorFlow's training operations (`ResourceApplyAdam`, ...)."""
    updates = []
    for op in graph.get_operations():
        if re.match(r"(Resource)?(Sparse)?Apply[A-Z]", op.type):
            inputs = dict(zip([argument.name for argument in op.op_def.input_arg], op.inputs, strict=False))
            gradient = inputs.get("grad", inputs.get("delta"))
            if gradient is not None:
                updates.append(Applied(inputs["var"].op.name, gradient, inputs.get("indices")))
    return updates


@dataclass
class CheckedTraining:
    """The record of a few training steps.

    Attributes:
        before: Variable -> value before the first step.
        after: Variable -> value at the end.
        trainable: Names of the trainable variables.
        steps: (global step before, after) of each session call.
        losses: The loss of each step.
        gradients: Variable -> the gradient that was applied in the first step.
        checkpoint: Path of the last checkpoint.
    """

    before: dict[str, np.ndarray] = field(default_factory=dict)
    after: dict[str, np.ndarray] = field(default_factory=dict)
    trainable: list[str] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    checkpoint: str | None = None


def _variables(tf: Any, variables: Any) -> dict[str, list[Any]]:
    """Return the variables by name, with a copy for each replica."""
    named: dict[str, list[Any]] = {}
    for variable in variables:
        copies = list(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else [variable]
        named.setdefault(copies[0].name.partition(":")[0], copies)
    return {name: copies for name, copies in named.items() if "/replica_" not in name}


def train(
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    *,
    params: Any,
    config: Any,
    steps: int,
    initial: Mapping[str, np.ndarray] | None = None,
) -> CheckedTraining:
    """Train for `steps` session calls, independent of the global step, optionally from `initial` values."""
    tf = compat.tensorflow()
    run = CheckedTraining()
    box: dict[str, Any] = {}

    hook: Any = tf.estimator.SessionRunHook

    class Recorder(hook):
        def begin(self) -> None:
            self.copies = _variables(tf, tf.compat.v1.global_variables())
            run.trainable = list(_variables(tf, tf.compat.v1.trainable_variables()))
            first = {name: copies[0] for name, copies in self.copies.items()}
            self.values = {name: tf.identity(variable) for name, variable in first.items()}
            self.assign = []
            for name, value in (initial or {}).items():
                for copy in self.copies.get(name, []):
                    place = tf.compat.v1.placeholder(value.dtype, value.shape)
                    self.assign.append((tf.compat.v1.assign(copy, place), place, value))
            self.gradients = {
                a.variable: (a.gradient, a.indices) if a.indices is not None else (a.gradient,)
                for a in applied(tf.compat.v1.get_default_graph())
                if a.variable in self.copies
            }
            self.step = tf.identity(self.copies[_base_name(tf, tf.compat.v1.train.get_global_step())][0])

        def after_create_session(self, session: Any, coord: Any) -> None:
            for operation, place, value in self.assign:
                session.run(operation, {place: value})
            run.before = session.run(self.values)

        def before_run(self, run_context: Any) -> Any:
            self.was = int(run_context.session.run(self.step))
            return tf.estimator.SessionRunArgs({"loss": box["loss"], "gradients": self.gradients})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            run.steps.append((self.was, int(run_context.session.run(self.step))))
            run.losses.append(float(np.mean(run_values.results["loss"])))
            if not run.gradients:
                shapes = {name: run.before[name].shape for name in self.gradients}
                gradients = run_values.results["gradients"]
                run.gradients = {name: _dense(value, shapes[name]) for name, value in gradients.items()}
            if len(run.steps) == steps:
                run.after = run_context.session.run(self.values)
                run_context.request_stop()

    estimator = tf.estimator.Estimator(_watched(model_fn, box), params=params, config=config)
    try:
        # Otherwise, closing a session with two devices takes seconds.
        with sessions.short_waits():
            estimator.train(input_fn, hooks=[Recorder()])
    except tf.estimator.NanLossDuringTrainingError:
        if not run.losses:
            raise
    run.checkpoint = estimator.latest_checkpoint()
    return run


def _watched(model_fn: Any, box: dict[str, Any]) -> Any:
    """Wrap a model function so that its first loss tensor is stored in `box`."""

    def watched(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
        spec = model_fn(features, labels, mode, params, config)
        box.setdefault("loss", spec.loss)
        return spec

    return watched


def _base_name(tf: Any, variable: Any) -> str:
    if isinstance(variable, tf.distribute.DistributedValues):
        variable = variable.values[0]
    return variable.name.partition(":")[0]


def _dense(value: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    if len(value) == 1:
        return value[0]
    gradient, indices = value
    dense = np.zeros(shape, gradient.dtype)
    np.add.at(dense, indices, gradient)
    return dense


@dataclass
class CheckedEvaluation:
    """One evaluation of a checkpoint.

    Attributes:
        metrics: The result of `Estimator.evaluate`.
        losses: The loss of the same batch, computed twice in the same session.
        before: Variable -> value before the evaluation.
        after: Variable -> value after the metrics were updated.
        trainable: Names of the trainable variables.
    """

    metrics: dict[str, Any] = field(default_factory=dict)
    losses: list[np.ndarray] = field(default_factory=list)
    before: dict[str, np.ndarray] = field(default_factory=dict)
    after: dict[str, np.ndarray] = field(default_factory=dict)
    trainable: list[str] = field(default_factory=list)


def evaluate(
    model_fn: Callable[..., Any], input_fn: Callable[..., Any], *, params: Any, config: Any, checkpoint: str | None
) -> CheckedEvaluation:
    """Evaluate one batch from a checkpoint."""
    tf = compat.tensorflow()
    run = CheckedEvaluation()
    box: dict[str, Any] = {}

    hook: Any = tf.estimator.SessionRunHook

    class Recorder(hook):
        def begin(self) -> None:
            keys = tf.compat.v1.GraphKeys
            local = [
                v for name in (keys.METRIC_VARIABLES, keys.LOCAL_VARIABLES) for v in tf.compat.v1.get_collection(name)
            ]
            metrics = set(_variables(tf, local))
            variables = _variables(tf, tf.compat.v1.global_variables())
            # The reported loss is a metric with separate variables.
            self.values = {n: tf.identity(copies[0]) for n, copies in variables.items() if n not in metrics}
            run.trainable = list(_variables(tf, tf.compat.v1.trainable_variables()))

        def after_create_session(self, session: Any, coord: Any) -> None:
            run.before = session.run(self.values)

        def end(self, session: Any) -> None:
            run.after = session.run(self.values)
            run.losses = [session.run(box["loss"]) for _ in range(2)]

    estimator = tf.estimator.Estimator(_watched(model_fn, box), params=params, config=config)
    run.metrics = estimator.evaluate(input_fn, steps=1, hooks=[Recorder()], checkpoint_path=checkpoint)
    return run


def under(folder: str, name: str) -> str:
    """Create and return a folder for one run."""
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    return path
