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
