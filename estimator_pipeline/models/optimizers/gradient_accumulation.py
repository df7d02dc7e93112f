"""Gradient accumulation: every N-th step updates the variables with the mean gradient of N batches.

N batches of B examples make the update of one batch of N * B examples, with the memory of B examples. It is
`gradient_accumulation_steps` of Keras 3, with the same meaning in all engines:

* Each batch is a step: the global step, `max_steps`, checkpoints, summaries and learning rates count batches. An update
  uses the learning rate of its step. Values that depend on the number of updates, such as Adam's bias correction, count
  updates.
* Gradients are summed over the replicas first, and their mean is clipped, as for one large batch.
* The sparse gradient of an embedding becomes dense.
* The sums are stored in the checkpoint, so a run that resumes between updates ends with the same result.
* In float16, an Estimator counts a batch with non-finite gradients as zeros. Keras 2 skips such a step without counting
  it, as it does without accumulation.

Parameter servers are not supported: other workers would update the variables while one worker is still accumulating.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline import compat

__all__ = [
    "SUM",
    "accumulates",
    "accumulating",
    "accumulating_of_keras_3",
    "changes",
    "counting_changes",
    "mean_of_steps"
]  # fmt: skip

# The suffix of a sum's name in an Estimator, and its slot name in Keras; also used by `utils.variable_names`.
SUM = "gradient_sum"


def accumulates(optimizer: Any) -> bool:
    """Return whether a Keras optimizer accumulates gradients and clips their mean."""
    return getattr(optimizer, "accumulated_steps", 1) > 1


def _is_last(step: Any, steps: int) -> Any:
    """Return whether a step, counted from 0, updates the variables: a scalar bool."""
    tf = compat.tensorflow()
    step = tf.convert_to_tensor(step)
    return tf.equal(step % tf.cast(steps, step.dtype), tf.cast(steps - 1, step.dtype))


def changes(gradients: Sequence[Any], *, steps: int, global_step: Any) -> tuple[Any, list[Any]]:
    """Determine in an Estimator's graph whether a step updates the variables.

    Args:
        gradients: The gradients of this replica.
        steps: The number of steps for an update.
        global_step: The step counter.

    Returns:
        A scalar bool, and the gradients with a control dependency on it. So the bool is read before the sum over the
        replicas, and before the step counter advances, which does not wait for gradients that update nothing. A replica
        that read it later would see the next step.
    """
    tf = compat.tensorflow()
    last = _is_last(global_step, steps)
    with tf.control_dependencies([last]):
        return last, [tf.identity(tf.convert_to_tensor(gradient)) for gradient in gradients]


def mean_of_steps(
    variables: Sequence[Any], gradients: Sequence[Any], *, steps: int, last: Any, finite: Any = None
) -> tuple[list[Any], Any, list[Any]]:
    """Return the mean gradients of the last steps, in an Estimator's graph.

    Args:
        variables: The trainable variables.
        gradients: The gradients of this step, dense and summed over the replicas, the same on all replicas.
        steps: The number of steps of a mean.
        last: The result of `changes`.
        finite: Whether these gradients count, a scalar bool; None: they do.

    Returns:
        The means; whether to update the variables with them now, a scalar bool; and the operations that store the
        sums for the next step.
    """
    tf = compat.tensorflow()
    sums = [
        tf.compat.v1.get_variable(
            f"{_plain_name(variable)}/{SUM}",
            shape=variable.shape,
            dtype=gradient.dtype,
            initializer=tf.zeros_initializer(),
            trainable=False,
            use_resource=True,
        )
        for variable, gradient in zip(variables, gradients, strict=True)
    ]
    if finite is not None:
        gradients = [tf.where(finite, g, tf.zeros_like(g)) for g in gradients]
    totals = [sum_variable.read_value() + g for sum_variable, g in zip(sums, gradients, strict=True)]
    with tf.control_dependencies(totals):
        # The conditional update may change a variable before another gradient is computed, and no gradient may see
        # that. When tf.cond is lowered into the graph, its branches do not wait for all inputs, so wait for them here.
        last = tf.identity(last)
        kept = [tf.where(last, tf.zeros_like(total), total) for total in totals]
        done = _assigned(sums, kept)
    return [total / steps for total in totals], last, done


def _plain_name(variable: Any) -> str:
    return str(variable.name).partition(":")[0]


def _assigned(variables: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Assign values that are the same on all replicas, without communication."""
    tf = compat.tensorflow()

    def assign(strategy: Any, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        return [strategy.extended.update(var, lambda v, x: v.assign(x), args=(value,)) for var, value in pairs]

    done = tf.distribute.get_replica_context().merge_call(assign, args=(list(zip(variables, values, strict=True)),))
    return [operation for operation in tf.nest.flatten(done) if operation is not None]


@functools.cache
def counting_changes(kind: Any) -> Any:
    """Return a subclass of a legacy Keras optimizer that counts updates separately from steps.

    Args:
        kind: The optimizer's class.

    Returns:
        The subclass. One of `accumulated_steps` steps is an update, and values that depend on the number of updates
        count updates. `iterations` and learning-rate schedules still count steps.
    """

    class CountingChanges(kind):
        accumulated_steps = 1
        _counts_changes = False

        @property
        def iterations(self):
            steps = kind.iterations.fget(self)
            return steps // self.accumulated_steps if self._counts_changes else steps

        @iterations.setter
        def iterations(self, variable):
            kind.iterations.fset(self, variable)

        def _prepare_local(self, var_device, var_dtype, apply_state):
            self._counts_changes = True
            try:
                super()._prepare_local(var_device, var_dtype, apply_state)
            finally:
                self._counts_changes = False

        def _decayed_lr(self, var_dtype):
            before, self._counts_changes = self._counts_changes, False
            try:
                return super()._decayed_lr(var_dtype)
            finally:
                self._counts_changes = before

    _named_after(CountingChanges, kind)
    return CountingChanges


@functools.cache
def accumulating(kind: Any) -> Any:
    """Return a subclass of a legacy Keras optimizer that accumulates gradients, registered for saving.

    Args:
        kind: The optimizer's class.

    Returns:
        The subclass, with the additional argument `gradient_accumulation_steps`.
    """
    tf = compat.tensorflow()
    base: Any = counting_changes(kind)

    class Accumulating(base):
        def __init__(self, *args, gradient_accumulation_steps=1, **kwargs):
            super().__init__(*args, **kwargs)
            self.accumulated_steps = gradient_accumulation_steps

        def _create_slots(self, var_list):
            super()._create_slots(var_list)
            for variable in var_list:
                self.add_slot(variable, SUM)

        def _transform_gradients(self, grads_and_vars):
            # The gradients are already summed over the replicas; the base class clips.
            gradients, variables = zip(*grads_and_vars, strict=True)
            sums = [self.get_slot(variable, SUM) for variable in variables]
            totals = [sum_variable + tf.convert_to_tensor(g) for sum_variable, g in zip(sums, gradients, strict=True)]
            last = _is_last(self.iterations, self.accumulated_steps)
            _assigned(sums, [tf.where(last, tf.zeros_like(total), total) for total in totals])
            means = [total / self.accumulated_steps for total in totals]
            return super()._transform_gradients(list(zip(means, variables, strict=True)))

        def _resource_apply_dense(self, grad, var, apply_state=None):
            options = {"apply_state": apply_state} if "apply_state" in self._dense_apply_args else {}
            last = _is_last(self.iterations, self.accumulated_steps)
            return _if(last, lambda: super(Accumulating, self)._resource_apply_dense(grad, var, **options))

        def _next_power(self, power, beta):
            # Called by V1Adam after the step counter has advanced.
            changed = tf.equal(self.iterations % self.accumulated_steps, 0)
            return tf.where(changed, super()._next_power(power, beta), power)

        def get_config(self):
            return {**super().get_config(), "gradient_accumulation_steps": self.accumulated_steps}

    _named_after(Accumulating, kind)
    return tf.keras.utils.register_keras_serializable(package="estimator_pipeline")(Accumulating)


@functools.cache
def accumulating_of_keras_3(kind: Any) -> Any:
    """Return a subclass of a Keras 3 optimizer that accumulates gradients, registered for saving.

    Not Keras 3's own accumulation: it synchronizes replicas within a condition, which TensorFlow's strategies reject.

    Args:
        kind: The optimizer's class.

    Returns:
        The subclass, with the additional argument `gradient_accumulation_steps`.
    """
    tf = compat.tensorflow()

    class Accumulating(kind):
        _counts_changes = False

        def __init__(self, *args, gradient_accumulation_steps=1, **kwargs):
            super().__init__(*args, **kwargs)
            self.accumulated_steps = gradient_accumulation_steps

        def build(self, variables):
            if self.built:
                return
            super().build(variables)
            self._sums = self.add_optimizer_variables(variables, SUM)

        @property
        def iterations(self):
            steps = self._iterations
            return steps // self.accumulated_steps if self._counts_changes else steps

        def apply(self, grads, trainable_variables=None):
            variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
            if not self.built:
                self.build(variables)
            there = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
            replica = tf.distribute.get_replica_context()
            gradients = [tf.convert_to_tensor(g) for g, _ in there]
            if replica.num_replicas_in_sync > 1:
                gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            sums = [self._sums[self._get_variable_index(v)].value for _, v in there]
            totals = [sum_variable + g for sum_variable, g in zip(sums, gradients, strict=True)]
            last = _is_last(self._iterations.value, self.accumulated_steps)
            _assigned(sums, [tf.where(last, tf.zeros_like(total), total) for total in totals])
            # The base class sums over the replicas again.
            share = 1.0 / (self.accumulated_steps * replica.num_replicas_in_sync)
            super().apply([total * share for total in totals], [v for _, v in there])

        def _clip_gradients(self, grads):
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            if replicas == 1:
                return super()._clip_gradients(grads)
            return [g / replicas for g in super()._clip_gradients([g * replicas for g in grads])]

        def _apply_weight_decay(self, variables):
            """Do nothing: `update_step` decays the weights before each update."""

        def update_step(self, gradient, variable, learning_rate):
            def change():
                if self.weight_decay is not None and self._use_weight_decay(variable):
                    decay, rate = (tf.cast(value, variable.dtype) for value in (self.weight_decay, learning_rate))
                    variable.assign_sub(variable * decay * rate)
                self._counts_changes = True
                try:
                    return super(Accumulating, self).update_step(gradient, variable, learning_rate)
                finally:
                    self._counts_changes = False

            return _if(_is_last(self._iterations.value, self.accumulated_steps), change)

        def get_config(self):
            return {**super().get_config(), "gradient_accumulation_steps": self.accumulated_steps}

    _named_after(Accumulating, kind)
    return tf.keras.utils.register_keras_serializable(package="estimator_pipeline")(Accumulating)


def _if(condition: Any, change: Callable[[], Any]) -> Any:
    tf = compat.tensorflow()

    def changed() -> Any:
        done = [
            operation
            for operation in tf.nest.flatten(change())
            if operation is not None and hasattr(operation, "graph")
        ]
        with tf.control_dependencies(done):
            return tf.constant(True)

    return tf.cond(condition, changed, lambda: tf.constant(False))


def _named_after(accumulating: Any, kind: Any) -> None:
    accumulating.__name__ = accumulating.__qualname__ = f"{kind.__name__}Accumulating"
    accumulating.__signature__ = inspect.signature(kind)  # for callers that inspect its arguments
