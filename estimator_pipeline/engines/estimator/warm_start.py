"""Warm start of an Estimator: see `core/warm_start.py`.

`tf.estimator.Estimator(warm_start_from=...)` rejects a variable whose shape differs, and takes no variable that is not
trainable for a pattern that is a string.
"""

from __future__ import annotations

from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.compat.internals.saving.whole_variables import whole_variables
from estimator_pipeline.engines.core import warm_start
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.utils.variable_names import AVERAGE, GLOBAL_STEP, canonical

__all__ = ["warm_start_graph"]


def warm_start_graph(estimator: Any, context: TaskContext) -> None:
    """Let the variables of this Estimator's training get their initial values from `run.warm_start_from`.

    Args:
        estimator: A copy for one training, see `distribute_coordinator.bind_to_task`.
        context: The task.
    """
    section = context.options.warm_start_from
    if not context.warm_starts or section is None:
        return
    tf = compat.tensorflow()
    checkpoint = warm_start.checkpoint_of(section)
    saved = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()

    def initialize(strategy: Any) -> None:
        del strategy
        variables = whole_variables()
        model = {name: variables[name][1] for name in _weights(variables)}
        there = {name: saved[name] for name in sorted(_weights(saved))}
        taken = warm_start.choose(context, checkpoint, model, there)
        for name, old in taken.items():
            parts, _ = variables[name]
            tf.compat.v1.train.init_from_checkpoint(checkpoint, {old: parts[0] if len(parts) == 1 else parts})

    # In the replicas of a strategy: once, when all of them have built the model.
    session_hooks.notify_replicas(
        estimator, lambda inputs, spec: tf.distribute.get_replica_context().merge_call(initialize)
    )


def _weights(names: Any) -> list[str]:
    """Return the names that are neither the global step nor the optimizer's; moving averages start from the weights."""
    return [
        name
        for plain, name in canonical(names).items()
        if plain != GLOBAL_STEP and " @" not in plain and not plain.endswith(f"/{AVERAGE}")
    ]
