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
    weights = tf.squeeze(weights, -1) if len(weights.shape) > len(losses.shape) else weights
    present = tf.cast(tf.not_equal(weights, 0), losses.dtype) * tf.ones_like(losses)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(present))


def log_losses(labels, predictions, epsilon=1e-7):
    """Return the cross entropy of each label and probability."""
    labels = tf.cast(labels, predictions.dtype)
    return -labels * tf.math.log(predictions + epsilon) - (1 - labels) * tf.math.log(1 - predictions + epsilon)


def as_rows(values):
    """Return values with an axis behind a vector: metrics of Keras take its mean, and reject weights of some ranks."""
    return tf.expand_dims(values, -1) if values.shape.rank == 1 else values


@tf.keras.utils.register_keras_serializable()
def leaky_relu(features, alpha=0.2):
    """Return the activation of TensorFlow; that of Keras has a different slope, by version."""
    return tf.nn.leaky_relu(features, alpha)


@tf.keras.utils.register_keras_serializable()
class MeanPerClassAccuracy(tf.keras.metrics.Metric):
    """The mean of the accuracies of each class; that of a class without examples is 0."""

    def __init__(self, num_classes, name="mean_per_class_accuracy", **options):
        super().__init__(name=name, **options)
        self.num_classes = num_classes
        self.total = self.add_weight(name="total", shape=(num_classes,), initializer="zeros")
        self.correct = self.add_weight(name="correct", shape=(num_classes,), initializer="zeros")

    def update_state(self, labels, predictions, sample_weight=None):
        labels, predictions = (tf.cast(tf.reshape(values, [-1]), tf.int64) for values in (labels, predictions))
        ones = tf.ones_like(labels, tf.float32)
        weights = ones if sample_weight is None else ones * tf.reshape(tf.cast(sample_weight, tf.float32), [-1])
        correct = weights * tf.cast(tf.equal(labels, predictions), tf.float32)
        self.total.assign_add(tf.math.unsorted_segment_sum(weights, labels, self.num_classes))
        self.correct.assign_add(tf.math.unsorted_segment_sum(correct, labels, self.num_classes))

    def result(self):
        total, correct = tf.convert_to_tensor(self.total), tf.convert_to_tensor(self.correct)
        return tf.reduce_mean(tf.math.divide_no_nan(correct, total))

    def reset_state(self):
        for variable in (self.total, self.correct):
            variable.assign(tf.zeros_like(variable))

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}


class BatchMean(tf.keras.metrics.Mean):
    """The mean of a number of each batch: Keras 3 counts a batch more where data of unknown length ends."""

    def update_state(self, values, sample_weight=None):
        with tf.control_dependencies([values]):
            return super().update_state(values, sample_weight)
