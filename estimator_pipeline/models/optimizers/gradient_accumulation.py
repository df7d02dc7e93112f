"""Gradients added up over several batches: every N-th step changes the variables, by the mean of N gradients.

So N batches of B records make the step of one batch of N * B, in the memory that B records need. It is what Keras 3
calls `gradient_accumulation_steps`, with these meanings in all engines:

* A step is a batch, as everywhere: the global step, `max_steps`, checkpoints, summaries and learning rates count
  batches. The rate of a change is that of its step; what follows from the number of changes, as Adam's correction of
  its first moments does, counts changes.
* Gradients are summed over the replicas first, and clipped when their mean is there: as those of the one big batch are.
* A gradient of rows, as an embedding has it, is made dense.
* The sums are part of the checkpoint: a run that is resumed amid N batches ends as one that was not.
* In float16 a batch whose gradients are not finite counts as one of zeros in an Estimator; Keras 2 leaves such a step
  out, its count included, as it does without accumulation.

What an asynchronous worker would add up belongs to variables that others have changed meanwhile: under parameter
servers it is refused.
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

# The name of a sum: after its variable's in an Estimator, and as a slot's in Keras. `utils.variable_names` knows it.
SUM = "gradient_sum"


def accumulates(optimizer: Any) -> bool:
    """Whether an optimizer of Keras adds gradients up by itself, and clips their mean."""
    return getattr(optimizer, "accumulated_steps", 1) > 1


def _is_last(step: Any, steps: int) -> Any:
    """Whether a step, counted from 0, changes the variables: a scalar bool."""
    tf = compat.tensorflow()
    step = tf.convert_to_tensor(step)
    return tf.equal(step % tf.cast(steps, step.dtype), tf.cast(steps - 1, step.dtype))


def changes(gradients: Sequence[Any], *, steps: int, global_step: Any) -> tuple[Any, list[Any]]:
    """Whether a step changes the variables, in an Estimator's graph.

    Args:
        gradients: of this replica.
        steps: how many make a change.
        global_step: counts them.

    Returns:
        A scalar bool, and the gradients: whoever uses them waits for the answer. So the sum over the replicas does, and
        with it the count of steps, which does not wait for gradients that change nothing: a replica that asked later
        would be told of the next step.
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
        variables: that are trained.
        gradients: of this step, dense and summed over the replicas; the same on all of them.
        steps: how many make a mean.
        last: from `changes`.
        finite: a scalar bool: whether these gradients count; None: they do.

    Returns:
        The means; whether to change the variables by them now, a scalar bool; and the operations that keep the sums
        for the next step.
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
    totals = [one.read_value() + g for one, g in zip(sums, gradients, strict=True)]
    with tf.control_dependencies(totals):
        # What is done under this condition may change a variable before it uses its gradient, and no gradient may see
        # that: once the condition is made part of the graph, its inputs are not waited for as a whole.
        last = tf.identity(last)
        kept = [tf.where(last, tf.zeros_like(total), total) for total in totals]
        done = _assigned(sums, kept)
    return [total / steps for total in totals], last, done


def _plain_name(variable: Any) -> str:
    return str(variable.name).partition(":")[0]


def _assigned(variables: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Give variables values that are the same on all replicas, without their talking."""
    tf = compat.tensorflow()

    def assign(strategy: Any, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
        return [strategy.extended.update(one, lambda v, x: v.assign(x), args=(value,)) for one, value in pairs]

    done = tf.distribute.get_replica_context().merge_call(assign, args=(list(zip(variables, values, strict=True)),))
    return [one for one in tf.nest.flatten(done) if one is not None]


@functools.cache
def counting_changes(kind: Any) -> Any:
    """Return a class of `tf.keras.optimizers.legacy`, or of ours over it, whose steps are not all changes.

    Args:
        kind: the optimizer's class.

    Returns:
        Its subclass. Of `accumulated_steps` steps one is a change; what goes by the number of changes counts these.
        `iterations` stays the count of steps, and so does what a learning rate follows.
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
    """Return a class of `tf.keras.optimizers.legacy`, or of ours over it, that adds gradients up; it can be saved.

    Args:
        kind: the optimizer's class.

    Returns:
        Its subclass; it takes `gradient_accumulation_steps` as well.
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
            # They are summed over the replicas by now; the base clips.
            gradients, variables = zip(*grads_and_vars, strict=True)
            sums = [self.get_slot(variable, SUM) for variable in variables]
            totals = [one + tf.convert_to_tensor(g) for one, g in zip(sums, gradients, strict=True)]
            last = _is_last(self.iterations, self.accumulated_steps)
            _assigned(sums, [tf.where(last, tf.zeros_like(total), total) for total in totals])
            means = [total / self.accumulated_steps for total in totals]
            return super()._transform_gradients(list(zip(means, variables, strict=True)))

        def _resource_apply_dense(self, grad, var, apply_state=None):
            given = {"apply_state": apply_state} if "apply_state" in self._dense_apply_args else {}
            last = _is_last(self.iterations, self.accumulated_steps)
            return _if(last, lambda: super(Accumulating, self)._resource_apply_dense(grad, var, **given))

        def _next_power(self, power, beta):
            # Of our V1Adam, when the step has been counted.
            changed = tf.equal(self.iterations % self.accumulated_steps, 0)
            return tf.where(changed, super()._next_power(power, beta), power)

        def get_config(self):
            return {**super().get_config(), "gradient_accumulation_steps": self.accumulated_steps}

    _named_after(Accumulating, kind)
    return tf.keras.utils.register_keras_serializable(package="estimator_pipeline")(Accumulating)


@functools.cache
def accumulating_of_keras_3(kind: Any) -> Any:
    """Return a class of Keras 3, or of ours over it, that adds gradients up; it can be saved.

    Keras 3's own way makes the replicas meet within a condition, which TensorFlow's strategies refuse.

    Args:
        kind: the optimizer's class.

    Returns:
        Its subclass; it takes `gradient_accumulation_steps` as well.
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
            given = [tf.convert_to_tensor(g) for g, _ in there]
            if replica.num_replicas_in_sync > 1:
                given = replica.all_reduce(tf.distribute.ReduceOp.SUM, given)
            sums = [self._sums[self._get_variable_index(v)].value for _, v in there]
            totals = [one + g for one, g in zip(sums, given, strict=True)]
            last = _is_last(self._iterations.value, self.accumulated_steps)
            _assigned(sums, [tf.where(last, tf.zeros_like(total), total) for total in totals])
            # The base sums over the replicas once more.
            share = 1.0 / (self.accumulated_steps * replica.num_replicas_in_sync)
            super().apply([total * share for total in totals], [v for _, v in there])

        def _clip_gradients(self, grads):
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            if replicas == 1:
                return super()._clip_gradients(grads)
            return [g / replicas for g in super()._clip_gradients([g * replicas for g in grads])]

        def _apply_weight_decay(self, variables):
            """Done before each change, in the step below."""

        def update_step(self, gradient, variable, learning_rate):
            def change():
                if self.weight_decay is not None and self._use_weight_decay(variable):
                    decay, rate = (tf.cast(one, variable.dtype) for one in (self.weight_decay, learning_rate))
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
        done = [one for one in tf.nest.flatten(change()) if one is not None and hasattr(one, "graph")]
        with tf.control_dependencies(done):
            return tf.constant(True)

    return tf.cond(condition, changed, lambda: tf.constant(False))


def _named_after(accumulating: Any, kind: Any) -> None:
    accumulating.__name__ = accumulating.__qualname__ = f"{kind.__name__}Accumulating"
    accumulating.__signature__ = inspect.signature(kind)  # for who looks which arguments it takes
