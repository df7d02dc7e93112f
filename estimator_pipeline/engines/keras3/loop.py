"""The training loop for Keras 3: what `Model.fit` does, under every synchronous strategy.

`Model.fit` of Keras 3 fails under MultiWorkerMirroredStrategy (keras-team/keras#20585). Here a step is a
function of one replica in `strategy.run`, of Keras's public parts alone: the model's call, its `compute_loss`, and its
optimizer's `apply`.

* **Loss scaling.** `compute_loss` divides by the number of replicas, the regularisers as well; `apply` adds the
  gradients of all replicas up. So R replicas of batch B make the step of one with batch R*B.
* **Clipping** would come before that sum, on each replica's own gradient. Here it comes after: the gradients are
  summed and clipped first, and `apply` is given an R-th of them on each replica.
* **Rows.** A gradient of an embedding is made dense first, see :func:`prepared`.
* **Data.** The same datasets, as the strategy distributes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
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
    own: Sequence[Any] = (),
    steps: Callable[[], int] = lambda: 1,
    record: Callable[[Sequence[Any], Sequence[Any]], None] | None = None,
    tracing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Trains a compiled, built model; callbacks are called as `Model.fit` calls them, and may set `stop_training`.

    Args:
        model: made in the scope of `strategy`.
        data: batches (features, labels) or (features, labels, weights), distributed by `strategy` if there is one.
        strategy: None, or a synchronous one.
        initial_epoch: the number of the first epoch, for callbacks.
        epochs: the number of the last one, at most, counted from 1.
        steps_per_epoch: None: until the data end.
        callbacks: `logs["loss"]` is the loss before the step, which `float` reads.
        whole_loss: whether the loss of a step, counted from 1, is that of all replicas. Else, and where the step is
            not an epoch's last, it is that of this worker's, which costs no talk between workers. Must say the same
            on all of them.
        own: variables of each replica's own that layers update; a replica that gets no data leaves its own as they are.
        steps: how many are made by the next call of the compiled function; never beyond the end of an epoch or of the
            data, and the same on all workers.
        record: `record(variables, gradients)`, called in the context of a replica while a step is traced, with the
            gradients of the step, dense and summed over the replicas. None on all workers, or on none.
        tracing: the block in which the compiled function is called, and so traced.
    """
    tf = compat.tensorflow()
    step, several = _step(model, strategy, own, record)
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    model.stop_training = False
    for callback in callbacks:
        callback.set_model(model)
        callback.on_train_begin({})
    iterator, done, ended = iter(data), 0, False
    for epoch in range(initial_epoch, epochs):
        in_epoch, logs = 0, {}
        while in_epoch != steps_per_epoch and not model.stop_training:
            for callback in callbacks:
                callback.on_train_batch_begin(in_epoch, {})
            made = steps()
            try:
                with tracing():
                    shares = step(iterator) if made == 1 else several(iterator, tf.constant(made - 1))
            except tf.errors.OutOfRangeError:
                ended = True
                break
            done, in_epoch = done + made, in_epoch + made
            if replicas > 1 and (in_epoch == steps_per_epoch or whole_loss(done)):
                shares = strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)
                logs = {"loss": shares}
            else:
                logs = {"loss": _OwnLoss(strategy, shares, replicas)}
            for callback in callbacks:
                callback.on_train_batch_end(in_epoch - 1, logs)
        if in_epoch:
            for callback in callbacks:
                callback.on_epoch_end(epoch, logs)
        if ended or model.stop_training:
            break
    for callback in callbacks:
        callback.on_train_end({})


class _OwnLoss:
    """The mean loss of this worker's replicas; reading it waits for the step."""

    def __init__(self, strategy: Any, shares: Any, replicas: int) -> None:
        self._strategy, self._shares, self._replicas = strategy, shares, replicas

    def __float__(self) -> float:
        parts = [self._shares] if self._strategy is None else self._strategy.experimental_local_results(self._shares)
        return sum(float(part) for part in parts) * self._replicas / len(parts)


def _step(
    model: Any, strategy: Any, own: Sequence[Any], record: Callable[[Sequence[Any], Sequence[Any]], None] | None
) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """A compiled function of an iterator: makes one step, and gives each replica's share of the loss; and one of an
    iterator and a number, which makes so many steps more before it."""
    tf = compat.tensorflow()
    keras, optimizer = tf.keras, model.optimizer
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    variables = model.trainable_variables

    def of_replica(batch: Any) -> Any:
        # Where the data have ended no part of a step is made: counting it does not need the batch, and would be done.
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            features, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
            before = [(variable, tf.identity(variable)) for variable in own]
            with tf.GradientTape() as tape:
                outputs = model(features, training=True)
                loss = _loss(model, features, labels, outputs, weights, replicas)
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, variables)
            if replicas > 1:
                gradients = _without_data(tf, features, before, gradients)
            if record is not None:
                record(variables, _whole(optimizer, gradients, replicas))
            optimizer.apply(prepared(optimizer, gradients, replicas), variables)
        return loss

    def one(iterator: Any) -> Any:
        batch = next(iterator)
        return of_replica(batch) if strategy is None else strategy.run(of_replica, args=(batch,))

    @tf.function
    def several(iterator: Any, before: Any) -> Any:
        for _ in tf.range(before):
            one(iterator)
        return one(iterator)

    return tf.function(one), several


def _loss(model: Any, features: Any, labels: Any, outputs: Any, weights: Any, replicas: int) -> Any:
    """This replica's share of the loss.

    For several outputs `compute_loss` also keeps each one's mean, in variables that it would make within the compiled
    function; several workers cannot do that, and would have to meet in every step to count. `build_keras_model` leaves
    its weight with each loss, for Keras does not give it back.
    """
    if not isinstance(model.loss, Mapping):
        return model.compute_loss(x=features, y=labels, y_pred=outputs, sample_weight=weights, training=True)
    tf = compat.tensorflow()
    shares = [
        loss(labels[name], outputs[name], None if weights is None else weights[name]) * loss.loss_weight
        for name, loss in model.loss.items()
    ]
    return tf.add_n([*shares, *(tf.reduce_sum(one) / replicas for one in model.losses)])


def _whole(optimizer: Any, gradients: list[Any], replicas: int) -> list[Any]:
    """The gradients of all replicas, dense and without the scale of the loss; None where there is none."""
    tf = compat.tensorflow()
    there = [tf.convert_to_tensor(g) for g in gradients if g is not None]
    if replicas > 1:
        there = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, there)
    scale = optimizer.loss_scale_factor or 1.0
    found = iter(there)
    return [None if g is None else next(found) / scale for g in gradients]


def _without_data(tf: Any, features: Any, before: list[tuple[Any, Any]], gradients: list[Any]) -> list[Any]:
    """Undoes what a batch of no records does, which a replica may get where the data end: its mean is no number.

    Args:
        tf: TensorFlow.
        features: the batch.
        before: variables, and what they were before it.
        gradients: of the batch.

    Returns:
        The gradients, 0 where there was no record.
    """
    one = tf.nest.flatten(features, expand_composites=True)[0]
    if one.shape[:1].is_fully_defined():
        return gradients
    there = tf.shape(one)[0] > 0
    for variable, value in before:
        variable.assign(tf.where(there, variable, value))
    return [None if g is None else _mapped(tf, g, lambda v: tf.where(there, v, tf.zeros_like(v))) for g in gradients]


def prepared(optimizer: Any, gradients: list[Any], replicas: int) -> list[Any]:
    """What `apply` is given for one replica's gradients: rows made ready, and clipped as the optimizer would.

    A gradient of rows, as an embedding has it, may name a row twice, and Keras 3 adds the squares of the parts up, not
    their sum's; two replicas may name the same row as well. It is made dense for all optimizers but those that add
    rows up by themselves. Where it is clipped, the sum over replicas comes first, and `apply` sums once more.
    """
    tf = compat.tensorflow()
    norm, value = optimizer.global_clipnorm, optimizer.clipvalue
    if accumulation.accumulates(optimizer):
        # It makes them dense, adds them up, and clips their mean.
        return gradients
    clipped = norm is not None or value is not None
    if clipped or not keras3_optimizers.takes_rows(optimizer):
        gradients = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    if not clipped or replicas == 1:
        # The optimizer clips by itself.
        return gradients
    scale = optimizer.loss_scale_factor or 1.0
    there = [g for g in gradients if g is not None]
    there = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, there)
    if norm is not None:
        there, _ = tf.clip_by_global_norm(there, norm * scale)
    else:
        there = [tf.clip_by_value(g, -value * scale, value * scale) for g in there]
    shares = iter(there)
    return [None if g is None else next(shares) / replicas for g in gradients]


def _mapped(tf: Any, gradient: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)
