"""Helpers of this program that Keras 3 does not have."""

import keras
import tensorflow as tf


def batches(x, y=None, batch_size=128, num_epochs=1, shuffle=False):
    """Return batches of arrays or data frame columns and their labels; infinite if num_epochs is None."""
    if hasattr(x, "columns"):
        x = {name: column.to_numpy() for name, column in x.items()}
    y = y.to_numpy() if hasattr(y, "to_numpy") else y
    data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    if shuffle:
        data = data.shuffle(len(data))
    return data.repeat(num_epochs).batch(batch_size)


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""

    def make_input(spec, name=None):
        sparse = isinstance(spec, tf.SparseTensorSpec)
        return keras.Input(spec.shape[1:], name=name, dtype=spec.dtype.name, sparse=sparse)

    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: make_input(spec, name) for name, spec in features.items()}
    return make_input(features)


def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict for each example; only those of `keys`, if any."""
    for batch in data.as_numpy_iterator():
        features = batch[0] if isinstance(batch, tuple) else batch
        predicted = model.predictions(features, model.predict_on_batch(features))
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f"no predictions {keys}: there are {list(predicted)}")
        for row in zip(*(keras.ops.convert_to_numpy(predicted[name]) for name in names)):
            yield dict(zip(names, row))


class DenseGradients:
    """An optimizer that converts the sparse gradient of an embedding to a dense one.

    TensorFlow repeats a row that a batch reads several times, and Keras would square each value separately.
    """

    def apply(self, grads, trainable_variables=None):
        grads = [tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]
        return super().apply(grads, trainable_variables)


@keras.saving.register_keras_serializable("keras_support")
class RMSProp(DenseGradients, keras.optimizers.Optimizer):
    """RMSProp whose mean square starts at 1 and whose momentum is of steps; `keras.optimizers.RMSprop` starts at 0."""

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
        options = {"decay": self.decay, "momentum": self.momentum, "epsilon": self.epsilon}
        return {**super().get_config(), **options}


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


class Evaluation(keras.callbacks.Callback):
    """Evaluates the model every `every_steps` steps and at the end of training.

    `data` is a dataset, or a function that returns one for each evaluation. `result` has the metrics and the global
    step of the last evaluation, `exports` the export of each exporter. Training stops when a function of `stop` returns
    True for the list of results. An evaluation does not reset the training metrics of `fit`.
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
        self.step = int(self.model.optimizer.iterations)  # a backup has been restored by now

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step % self.every_steps == 0:
            self.evaluate()

    def on_train_end(self, logs=None):
        if self.step is not None and (not self.results or self.result["global_step"] != self.step):
            self.evaluate()
        self.exports = [exporter.at_end(self.model, self.folder, self.result) for exporter in self.exporters]

    def evaluate(self):
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # writes the steps since the last evaluation to the model
        variables = [variable for metric in self.model.metrics for variable in metric.variables]
        training = [(variable, keras.ops.convert_to_numpy(variable)) for variable in variables]
        metrics = self.model.evaluate(self.data() if callable(self.data) else self.data, return_dict=True, verbose=0)
        for variable, value in training:
            variable.assign(value)
        self.results.append({**metrics, "global_step": self.step})
        formatted = ", ".join(f"{key} = {value:.6g}" for key, value in metrics.items())
        print(f"{self.label} at step {self.step}: {formatted}")
        for exporter in self.exporters:
            exporter.evaluated(self.model, self.folder, self.results)
        if any(should_stop(self.results) for should_stop in self.stop):
            self.model.stop_training = True
