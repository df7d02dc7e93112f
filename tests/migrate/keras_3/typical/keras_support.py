"""What this program needs, and Keras 3 does not have."""

import keras
import tensorflow as tf


def batches(x, y=None, batch_size=128, num_epochs=1, shuffle=False):
    """Batches of arrays or the columns of a data frame, and of their labels; without end where num_epochs is None."""
    if hasattr(x, "columns"):
        x = {name: column.to_numpy() for name, column in x.items()}
    y = y.to_numpy() if hasattr(y, "to_numpy") else y
    data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    if shuffle:
        data = data.shuffle(len(data))
    return data.repeat(num_epochs).batch(batch_size)


def model_inputs(data):
    """A Keras input for each feature of a data set."""

    def made(spec, name=None):
        sparse = isinstance(spec, tf.SparseTensorSpec)
        return keras.Input(spec.shape[1:], name=name, dtype=spec.dtype.name, sparse=sparse)

    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: made(spec, name) for name, spec in features.items()}
    return made(features)


def examples(model, data, keys=None):
    """The predictions for a data set, a dict for each example."""
    for batch in data.as_numpy_iterator():
        features = batch[0] if isinstance(batch, tuple) else batch
        predicted = model.predictions(features, model.predict_on_batch(features))
        predicted = {key: keras.ops.convert_to_numpy(value) for key, value in predicted.items()}
        for row in zip(*(predicted[key] for key in keys or predicted)):
            yield dict(zip(keys or predicted, row))


class DenseGradients:
    """An optimizer that gets the gradient of an embedding as a whole.

    TensorFlow's names a row as often as a batch reads it, and Keras would square the values of each by themselves.
    """

    def apply(self, grads, trainable_variables=None):
        grads = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in grads]
        return super().apply(grads, trainable_variables)


@keras.saving.register_keras_serializable("keras_support")
class RMSProp(DenseGradients, keras.optimizers.Optimizer):
    """RMSProp whose mean square begins at 1, and whose momentum is that of steps; `keras.optimizers.RMSprop` has 0."""

    def __init__(self, learning_rate, decay=0.9, momentum=0.0, epsilon=1e-10, name="rmsprop", **options):
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.decay, self.momentum, self.epsilon = decay, momentum, epsilon

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.mean_squares = self.add_optimizer_variables(variables, "rms", initializer="ones")
            self.steps = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        mean_square, step = self.mean_squares[index], self.steps[index]
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign_add(mean_square, (keras.ops.square(gradient) - mean_square) * (1 - self.decay))
        change = rate * gradient * keras.ops.rsqrt(mean_square + self.epsilon)
        self.assign(step, self.momentum * step + change)
        self.assign_sub(variable, step)

    def get_config(self):
        own = {"decay": self.decay, "momentum": self.momentum, "epsilon": self.epsilon}
        return {**super().get_config(), **own}


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


class Evaluation(keras.callbacks.Callback):
    """Evaluates the model each time so many steps are done, and when training ends.

    `data` is a data set, or a function that gives one for each evaluation. `result` has the metrics and the global step
    of the last evaluation, `exports` what each exporter wrote with it. Training ends where one of the functions `stop`
    says so of all results. The metrics that `fit` shows of training go on behind an evaluation.
    """

    def __init__(self, data, every_steps, folder=None, name=None, exporters=(), stop=()):
        super().__init__()
        self.data, self.every_steps, self.stop = data, every_steps, stop
        self.exporters, self.folder = exporters, folder
        self.label = f"evaluation {name}" if name else "evaluation"
        self.results, self.exports, self.step = [], [], None

    @property
    def result(self):
        return self.results[-1] if self.results else None

    def on_epoch_begin(self, epoch, logs=None):
        self.step = int(self.model.optimizer.iterations)  # a backup is restored by now

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step % self.every_steps == 0:
            self.evaluate()

    def on_train_end(self, logs=None):
        if self.step is not None and (not self.results or self.result["global_step"] != self.step):
            self.evaluate()
        self.exports = [one.at_end(self.model, self.folder, self.result) for one in self.exporters]

    def evaluate(self):
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # of the steps since the last one
        training = [(each, keras.ops.convert_to_numpy(each)) for one in self.model.metrics for each in one.variables]
        found = self.model.evaluate(self.data() if callable(self.data) else self.data, return_dict=True, verbose=0)
        for variable, value in training:
            variable.assign(value)
        self.results.append({**found, "global_step": self.step})
        told = ", ".join(f"{key} = {value:.6g}" for key, value in found.items())
        print(f"{self.label} at step {self.step}: {told}")
        for one in self.exporters:
            one.evaluated(self.model, self.folder, self.results)
        if any(ends(self.results) for ends in self.stop):
            self.model.stop_training = True
