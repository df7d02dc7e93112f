"""What this program needs, and Keras 3 does not have."""

import keras
import tensorflow as tf


def model_inputs(data):
    """A Keras input for each feature of a data set."""

    def made(spec, name=None):
        sparse = isinstance(spec, tf.SparseTensorSpec)
        return keras.Input(spec.shape[1:], name=name, dtype=spec.dtype.name, sparse=sparse)

    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: made(spec, name) for name, spec in features.items()}
    return made(features)


class DenseGradients:
    """An optimizer that gets the gradient of an embedding as a whole.

    TensorFlow's names a row as often as a batch reads it, and Keras would square the values of each by themselves.
    """

    def apply(self, grads, trainable_variables=None):
        grads = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in grads]
        return super().apply(grads, trainable_variables)


@keras.saving.register_keras_serializable("keras_support")
class Momentum(DenseGradients, keras.optimizers.Optimizer):
    """Momentum whose velocity is that of the gradients, whatever the learning rate was when they came.

    `keras.optimizers.SGD` keeps the rate in its velocity: the two part where the rate changes.
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
    """Ends a training after so many steps, those that a backup restores among them: `fit` would make them again."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_begin(self, logs=None):  # first of the callbacks: before a backup is restored
        self.end = int(self.model.optimizer.iterations) + self.steps

    def on_epoch_begin(self, epoch, logs=None):
        self.step = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step >= self.end:
            self.model.stop_training = True
