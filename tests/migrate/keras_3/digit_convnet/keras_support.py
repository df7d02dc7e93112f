"""Helpers of this program that Keras 3 does not have."""

import keras
import tensorflow as tf


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""

    def make_input(spec, name=None):
        sparse = isinstance(spec, tf.SparseTensorSpec)
        return keras.Input(spec.shape[1:], name=name, dtype=spec.dtype.name, sparse=sparse)

    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: make_input(spec, name) for name, spec in features.items()}
    return make_input(features)


class DenseGradients:
    """An optimizer that converts the sparse gradient of an embedding to a dense one.

    TensorFlow repeats a row that a batch reads several times, and Keras would square each value separately.
    """

    def apply(self, grads, trainable_variables=None):
        grads = [tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]
        return super().apply(grads, trainable_variables)


@keras.saving.register_keras_serializable("keras_support")
class Momentum(DenseGradients, keras.optimizers.Optimizer):
    """Momentum whose velocity excludes the learning rate.

    `keras.optimizers.SGD` includes the learning rate in its velocity, so the two differ when the rate changes.
    """

    def __init__(self, learning_rate, momentum=0.9, nesterov=False, name="momentum", **options):
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.momentum, self.nesterov = momentum, nesterov

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.velocities = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        velocity = self.velocities[self._get_variable_index(variable)]
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign(velocity, self.momentum * velocity + gradient)
        step = gradient + self.momentum * velocity if self.nesterov else velocity
        self.assign_sub(variable, rate * step)

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum, "nesterov": self.nesterov}


class StopAfter(keras.callbacks.Callback):
    """Stops training after this number of steps, including steps restored from a backup, which `fit` would repeat."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_begin(self, logs=None):  # the first callback: runs before a backup is restored
        self.end = int(self.model.optimizer.iterations) + self.steps

    def on_epoch_begin(self, epoch, logs=None):
        self.step = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step >= self.end:
            self.model.stop_training = True
