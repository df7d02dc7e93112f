"""Optimizers and losses of TensorFlow 1 that converted programs may need, copied into them as `program_helpers.py`."""

import tensorflow as tf


@tf.keras.utils.register_keras_serializable()
class TensorFlow1Momentum(tf.keras.optimizers.SGD):
    """SGD with momentum as in TensorFlow 1: its velocity excludes the learning rate, which may change."""

    def update_step(self, gradient, variable, *learning_rate):
        if not self.momentum:
            return super().update_step(gradient, variable, *learning_rate)
        if learning_rate:  # Keras 3
            velocity = self.momentums[self._get_variable_index(variable)]
        else:
            velocity = self.momentums[self._index_dict[self._var_key(variable)]]
        rate = tf.cast(*(learning_rate or [self.learning_rate]), variable.dtype)
        momentum, gradient = tf.cast(self.momentum, variable.dtype), tf.convert_to_tensor(gradient)
        velocity.assign(velocity * momentum + gradient)
        variable.assign_sub(rate * (gradient + momentum * velocity if self.nesterov else velocity))


@tf.keras.utils.register_keras_serializable()
class TensorFlow1RMSprop(tf.keras.optimizers.RMSprop):
    """RMSprop as in TensorFlow 1: the mean of squares starts at 1."""

    def add_variable_from_reference(self, variable, *name, **options):
        if "velocity" in (*name, *options.values()):
            in_keras_2 = hasattr(self, "_build_index_dict")
            options |= {"initial_value": tf.ones_like(variable)} if in_keras_2 else {"initializer": "ones"}
        return super().add_variable_from_reference(variable, *name, **options)


def weighted_mean(losses, weights):
    """Return the sum of weighted losses, divided by the number of weights that are not 0."""
    weights = tf.cast(weights, losses.dtype)
    present = tf.cast(tf.not_equal(weights, 0), losses.dtype) * tf.ones_like(losses)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(present))
