"""A warning if a model function's train_op omits something that training needs.

These mistakes make a model function train incorrectly without an error:

* Moving statistics: the updates of BatchNormalization's moving mean and variance are separate operations, which run
  only if train_op runs them. Without them evaluation uses the initial values (tensorflow/tensorflow#19643).
* The global step: if no operation increments it, `steps` and `max_steps` are never reached and training never ends
  (tensorflow/tensorflow#22850).
* Summaries: `tf.summary` of TensorFlow 2 with a file writer writes only if train_op or a hook runs the operation
  (tensorflow/tensorflow#37272).

They are detected in the graph before the first step, and logged once per training. Nothing is changed, since a program
may do so on purpose.

Private use: `Estimator._train_with_estimator_spec`, which gets the complete graph of every training.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

NAME = "train-op"
WHAT = (
    "a warning if train_op does not update BatchNormalization's moving statistics, does not run the writes of a file "
    "writer, or nothing increments the global step; nothing is changed"
)

# Names of the updates of moving statistics: of Keras, tf.layers and tf-slim; of Keras's fused kernel.
_UPDATE = re.compile(r"/?Assign(?:MovingAvg|NewValue)")
# Operations that only read a variable.
_READS = frozenset({"Identity", "IsVariableInitialized", "ReadVariableOp", "VarIsInitializedOp", "VariableShape"})
# Packages whose hooks run no part of the model.
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
        for warning in _left_out(tf, estimator_spec, hooks):
            logger.warning(warning)
        return original(self, estimator_spec, worker_hooks, hooks, global_step_tensor, *args, **more)

    module.Estimator._train_with_estimator_spec = train_with_estimator_spec


def _left_out(tf: Any, spec: Any, hooks: Iterable[Any]) -> Iterator[str]:
    # Custom hooks may run any operation.
    every = (*spec.training_hooks, *spec.training_chief_hooks, *hooks)
    if not all(type(hook).__module__.startswith(_KNOWN_HOOKS) for hook in every):
        return
    updates = _updates_not_run(tf, spec.train_op)
    if updates:
        yield (
            f"train_op does not run the updates of moving statistics ({few(updates, _SHOWN)}): "
            "evaluation will use their initial values. Group them with it: tf.group(train_op, *model.updates) for "
            "layers of Keras, tf.group(train_op, *tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)) "
            "for tf.layers and tf-slim"
        )
    if _nothing_advances(tf):
        yield (
            "no operation in the training graph increments the global step: steps and max_steps will not be reached, "
            "and training will not end. Pass it to the optimizer: minimize(loss, "
            "global_step=tf.compat.v1.train.get_global_step()), or optimizer.iterations = "
            "tf.compat.v1.train.get_or_create_global_step() for a Keras one"
        )
    writes = _writes_not_run(tf, spec.train_op)
    if writes:
        yield (
            f"nothing runs the summaries of a file writer ({few(writes, _SHOWN)}): they are not written. "
            "Call tf.summary without a file writer in model_fn: it is then written to the Estimator's event file, "
            "every save_summary_steps"
        )


def _writes_not_run(tf: Any, train_op: Any) -> list[str]:
    """Return the names of the summaries of a file writer that train_op does not run."""
    writes = tf.compat.v1.summary.all_v2_summary_ops() or []
    run = _run_by(train_op) if writes else set()
    return sorted({write.op.name.partition("/write_summary")[0] for write in writes if write.op not in run})


def _updates_not_run(tf: Any, train_op: Any) -> list[str]:
    """Return the scopes of the updates of moving statistics that train_op does not run."""
    # An update consists of several operations; the one that writes must run.
    updates = [
        op
        for op in tf.compat.v1.get_default_graph().get_operations()
        if op.type.startswith("Assign") and _UPDATE.search(op.name)
    ]
    run = _run_by(train_op) if updates else set()
    return sorted({_UPDATE.split(op.name)[0] or op.name for op in updates if op not in run})


def _run_by(train_op: Any) -> set[Any]:
    """Return all operations that run with this one."""
    operations: set[Any] = set()
    left = [getattr(train_op, "op", train_op)]
    while left:
        op = left.pop()
        if op not in operations:
            operations.add(op)
            left.extend([*(tensor.op for tensor in op.inputs), *op.control_inputs])
    return operations


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
    # The variable's scope has the conditions under which it is read.
    return op.type not in _READS and not op.name.startswith(f"{variable.op.name}/")
