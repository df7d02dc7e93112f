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
