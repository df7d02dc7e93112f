"""The training loop for Keras 3, a replacement of `Model.fit` for every synchronous strategy.

`Model.fit` of Keras 3 fails under MultiWorkerMirroredStrategy (keras-team/keras#20585). Here a step is a replica
function in `strategy.run` that uses only Keras's public API: the model's call, its `compute_loss`, and its optimizer's
`apply`.

* Loss scaling: `compute_loss` divides the loss and the regularizers by the number of replicas; `apply` sums the
  gradients of all replicas. R replicas with batch B therefore run the same step as one replica with batch R*B.
* Clipping: Keras would clip each replica's local gradient before the sum. Here the gradients are summed and clipped
  first, and `apply` gets 1/R of them on each replica.
* Embeddings: sparse gradients are made dense first, see `prepared`.
* Data: the same datasets, distributed by the strategy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.keras_common.callbacks import sees_steps
from estimator_pipeline.models.optimizers import gradient_accumulation as accumulation
from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers


def fit(
    model: Any,
    data: Any,
    *,
    strategy: Any,
    initial_epoch: int = 0,
    epochs: int,
    steps_per_epoch: int | None,
    callbacks: Sequence[Any],
    whole_loss: Callable[[int], bool],
    local_variables: Sequence[Any] = (),
    steps: Callable[[], int] = lambda: 1,
    record: Callable[[Sequence[Any], Sequence[Any]], None] | None = None,
    tracing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Train a compiled model, built in the scope of `strategy` if there is one, with arguments as of `Model.fit`.

    `data` is distributed by the strategy. Callbacks are called as by `Model.fit`, and may set `stop_training`;
    `logs["loss"]` is the loss before the step, which `float` reads.

    Args:
        whole_loss: Returns whether the loss of a step, counted from 1, is computed over all replicas. If not, and if
            the step is not the last of an epoch, it is the loss of this worker, which needs no communication. Must
            return the same on all workers.
        local_variables: Replica-local variables that layers update; they are unchanged on a replica that gets no data.
        steps: Returns the number of steps of the next call of the compiled function; never beyond the end of an epoch
            or of the data, and the same on all workers.
        record: `record(variables, gradients)`, called in a replica context while a step is traced, with the gradients
            of the step, dense and summed over the replicas. Must be None on all workers or on none.
        tracing: Context in which the compiled function is called, and therefore traced.
    """
    tf = compat.tensorflow()
    step, several = _step(model, strategy, local_variables, record)
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync

    def call(method: str, *args: Any) -> None:
        for callback in callbacks:
            getattr(callback, method)(*args)

    def call_with_logs(method: str, number: int, logs: Mapping[str, Any]) -> None:
        for callback in callbacks:
            # As in Keras's CallbackList: other callbacks get numbers, for which they wait.
            reads = not getattr(callback, "_supports_tf_logs", False) and (
                method == "on_epoch_end" or sees_steps(callback)
            )
            values = {name: float(value) for name, value in logs.items()} if reads else logs
            getattr(callback, method)(number, values)

    model.stop_training = False
    call("set_params", {"epochs": epochs, "steps": steps_per_epoch, "verbose": 0})
    call("set_model", model)
    call("on_train_begin", {})
    iterator, done, ended = iter(data), 0, False
    for epoch in range(initial_epoch, epochs):
        in_epoch, logs = 0, {}
        call("on_epoch_begin", epoch, {})
        while in_epoch != steps_per_epoch and not model.stop_training:
            call("on_train_batch_begin", in_epoch, {})
            count = steps()
            try:
                with tracing():
                    shares = step(iterator) if count == 1 else several(iterator, tf.constant(count - 1))
            except tf.errors.OutOfRangeError:
                ended = True
                break
            done, in_epoch = done + count, in_epoch + count
            if replicas > 1 and (in_epoch == steps_per_epoch or whole_loss(done)):
                logs = {"loss": strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)}
            else:
                logs = {"loss": _LocalLoss(strategy, shares, replicas)}
            call_with_logs("on_train_batch_end", in_epoch - 1, logs)
        if in_epoch:
            call_with_logs("on_epoch_end", epoch, logs)
        if ended or model.stop_training:
            break
    call("on_train_end", {})


class _LocalLoss:
    """The mean loss of this worker's replicas; reading it waits for the step to finish."""

    def __init__(self, strategy: Any, shares: Any, replicas: int) -> None:
        self._strategy, self._shares, self._replicas = strategy, shares, replicas

    def __float__(self) -> float:
        parts = [self._shares] if self._strategy is None else self._strategy.experimental_local_results(self._shares)
        return sum(float(part) for part in parts) * self._replicas / len(parts)


def _step(
    model: Any,
    strategy: Any,
    local_variables: Sequence[Any],
    record: Callable[[Sequence[Any], Sequence[Any]], None] | None,
) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """Return two compiled functions: `single(iterator)` and `several(iterator, before)`.

    `single` runs one step and returns each replica's share of the loss. `several` runs `before` steps first.
    """
    tf = compat.tensorflow()
    keras, optimizer = tf.keras, model.optimizer
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    variables = model.trainable_variables

    def of_replica(batch: Any) -> Any:
        # At the end of the data, no part of a step must run; without this the step count, which does not depend on the
        # batch, would be incremented.
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            features, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
            before = [(variable, tf.identity(variable)) for variable in local_variables]
            with tf.GradientTape() as tape:
                outputs = model(features, training=True)
                loss = _loss(model, features, labels, outputs, weights, replicas)
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, variables)
            if replicas > 1:
                gradients = _without_data(features, before, gradients)
            if record is not None:
                scale = optimizer.loss_scale_factor or 1.0
                record(variables, [None if g is None else g / scale for g in _summed(gradients, replicas)])
            optimizer.apply(prepared(optimizer, gradients, replicas), variables)
        return loss

    def single(iterator: Any) -> Any:
        batch = next(iterator)
        return of_replica(batch) if strategy is None else strategy.run(of_replica, args=(batch,))

    @tf.function
    def several(iterator: Any, before: Any) -> Any:
        for _ in tf.range(before):
            single(iterator)
        return single(iterator)

    return tf.function(single), several


def _loss(model: Any, features: Any, labels: Any, outputs: Any, weights: Any, replicas: int) -> Any:
    """Return this replica's share of the loss.

    For several outputs, `compute_loss` also tracks the mean loss of each output, in variables that it creates within
    the compiled function. Several workers cannot do that, and it would need communication in every step.
    `build_keras_model` stores the weight in each loss object, because Keras does not expose it.
    """
    if not isinstance(model.loss, Mapping):
        return model.compute_loss(x=features, y=labels, y_pred=outputs, sample_weight=weights, training=True)
    tf = compat.tensorflow()
    shares = [
        loss(labels[name], outputs[name], None if weights is None else weights[name]) * loss.loss_weight
        for name, loss in model.loss.items()
    ]
    return tf.add_n([*shares, *(tf.reduce_sum(regularizer) / replicas for regularizer in model.losses)])


def _summed(gradients: list[Any], replicas: int) -> list[Any]:
    """Return the gradients summed over all replicas, dense; None for variables without a gradient."""
    tf = compat.tensorflow()
    there = [tf.convert_to_tensor(g) for g in gradients if g is not None]
    if replicas > 1:
        there = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, there)
    sums = iter(there)
    return [None if g is None else next(sums) for g in gradients]


def _without_data(features: Any, before: list[tuple[Any, Any]], gradients: list[Any]) -> list[Any]:
    """Undo the effect of an empty batch, which a replica may get at the end of the data; its mean is NaN.

    Variables get back their values `before` the batch, and the returned gradients are 0.
    """
    tf = compat.tensorflow()
    first = tf.nest.flatten(features, expand_composites=True)[0]
    if first.shape[:1].is_fully_defined():
        return gradients
    there = tf.shape(first)[0] > 0
    for variable, value in before:
        variable.assign(tf.where(there, variable, value))

    def or_zeros(gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(or_zeros(gradient.values), gradient.indices, gradient.dense_shape)
        return None if gradient is None else tf.where(there, gradient, tf.zeros_like(gradient))

    return [or_zeros(gradient) for gradient in gradients]


def prepared(optimizer: Any, gradients: list[Any], replicas: int) -> list[Any]:
    """Return one replica's gradients for `apply`: dense if necessary, and clipped as the optimizer would.

    A sparse gradient of an embedding may have a row twice, and Keras 3 then sums the squares of the parts instead of
    squaring their sum. Two replicas may have the same row too. It is made dense for all optimizers except those that
    sum rows. Before clipping, gradients are summed over replicas; `apply` sums them again.
    """
    tf = compat.tensorflow()
    norm, value = optimizer.global_clipnorm, optimizer.clipvalue
    if accumulation.accumulates(optimizer):
        # Gradient accumulation makes them dense, sums them, and clips their mean.
        return gradients
    clipped = norm is not None or value is not None
    if clipped or not keras3_optimizers.takes_rows(optimizer):
        gradients = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    if not clipped or replicas == 1:
        # The optimizer clips.
        return gradients
    scale, sums = optimizer.loss_scale_factor or 1.0, _summed(gradients, replicas)
    if norm is not None:
        sums, _ = tf.clip_by_global_norm(sums, norm * scale)
    else:
        sums = [None if g is None else tf.clip_by_value(g, -value * scale, value * scale) for g in sums]
    return [None if g is None else g / replicas for g in sums]
