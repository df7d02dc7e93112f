"""A warning where a model function's train_op leaves something out that training needs.

Two slips make a model function train wrongly without a word:

* **Moving statistics.** The updates of BatchNormalization's moving mean and variance are operations of their own, and
  run only if train_op runs them. Without them evaluation uses their initial values (tensorflow/tensorflow#19643).
* **The global step.** Where nothing advances it, `steps` and `max_steps` are never reached and training never ends
  (tensorflow/tensorflow#22850).

Both are seen in the graph before the first step, and told once for each training. Nothing is changed: a program that
means it so gets what it got.

Private use: `Estimator._train_with_estimator_spec`, which every training of an Estimator comes by with its whole graph.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from estimator_pipeline.utils.logger import logger

NAME = "train-op"
WHAT = (
    "a warning where train_op does not update BatchNormalization's moving statistics, or nothing advances the global "
    "step; nothing is changed"
)

# How the updates of moving statistics are called: of Keras, tf.layers and tf-slim; of Keras's fused kernel.
_UPDATE = re.compile(r"/?Assign(?:MovingAvg|NewValue)")
# What only looks at a variable.
_READS = frozenset({"Identity", "IsVariableInitialized", "ReadVariableOp", "VarIsInitializedOp", "VariableShape"})
# Where hooks come from of which it is known that they run no part of the model.
_KNOWN_HOOKS = ("tensorflow", "estimator_pipeline")
_SHOWN = 3


def apply() -> None:
    import tensorflow as tf
    from tensorflow_estimator.python.estimator import estimator as module

    original = module.Estimator._train_with_estimator_spec

    @functools.wraps(original)
    def train_with_estimator_spec(
        self: Any, estimator_spec: Any, worker_hooks: Any, hooks: Any, global_step_tensor: Any, *args: Any, **more: Any
    ) -> Any:
        for told in _left_out(tf, estimator_spec, hooks):
            logger.warning(told)
        return original(self, estimator_spec, worker_hooks, hooks, global_step_tensor, *args, **more)

    module.Estimator._train_with_estimator_spec = train_with_estimator_spec


def _left_out(tf: Any, spec: Any, hooks: Iterable[Any]) -> Iterator[str]:
    # Hooks of the program's own may run whatever they like.
    every = (*spec.training_hooks, *spec.training_chief_hooks, *hooks)
    if not all(type(hook).__module__.startswith(_KNOWN_HOOKS) for hook in every):
        return
    updates = _updates_not_run(tf, spec.train_op)
    if updates:
        more = f" and {len(updates) - _SHOWN} more" if len(updates) > _SHOWN else ""
        yield (
            f"train_op does not run the updates of moving statistics ({', '.join(updates[:_SHOWN])}{more}): "
            "evaluation will use their initial values. Group them with it: tf.group(train_op, *model.updates) for "
            "layers of Keras, tf.group(train_op, *tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)) "
            "for tf.layers and tf-slim"
        )
    if _nothing_advances(tf):
        yield (
            "nothing in the graph of training advances the global step: steps and max_steps will not be reached, and "
            "training will not end. Give it to the optimizer: minimize(loss, "
            "global_step=tf.compat.v1.train.get_global_step()), or optimizer.iterations = "
            "tf.compat.v1.train.get_or_create_global_step() for a Keras one"
        )


def _updates_not_run(tf: Any, train_op: Any) -> list[str]:
    """The scopes of the updates of moving statistics that train_op does not bring about."""
    # One update is a few operations; that which writes is the one to run.
    updates = [
        op
        for op in tf.compat.v1.get_default_graph().get_operations()
        if op.type.startswith("Assign") and _UPDATE.search(op.name)
    ]
    run = _brought_about(train_op) if updates else set()
    return sorted({_UPDATE.split(op.name)[0] or op.name for op in updates if op not in run})


def _brought_about(train_op: Any) -> set[Any]:
    """All operations that run where this one does."""
    found: set[Any] = set()
    left = [getattr(train_op, "op", train_op)]
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left.extend([*(tensor.op for tensor in op.inputs), *op.control_inputs])
    return found


def _nothing_advances(tf: Any) -> bool:
    step = tf.compat.v1.train.get_global_step()
    if step is None:
        return False
    for variable in tf.distribute.get_strategy().experimental_local_results(step):
        tensor = variable.handle if hasattr(variable, "handle") else variable.op.outputs[0]
        if any(_may_advance(op, variable) for op in tensor.consumers()):
            return False
    return True


def _may_advance(op: Any, variable: Any) -> bool:
    if op.type.startswith("Assign"):
        return op is not variable.initializer
    # In the variable's own scope are the conditions under which it is read.
    return op.type not in _READS and not op.name.startswith(f"{variable.op.name}/")
