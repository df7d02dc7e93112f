"""Source of keras_support.py, the module of helpers that Keras 3 lacks. It has the parts that a program calls."""

from __future__ import annotations

import re
from collections.abc import Iterable

from estimator_pipeline.migrate.code.to_keras3.support_canned import CANNED
from estimator_pipeline.migrate.code.to_keras3.support_columns import COLUMNS

__all__ = ["MODULE", "OF_DENSE_GRADIENTS", "PARTS", "module_text"]

MODULE = "keras_support"
"""Name of the module."""

OF_DENSE_GRADIENTS = ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD")
"""Keras optimizers that have a counterpart with dense gradients for models with embeddings."""

PARTS = {
    "batches": '''def batches(x, y=None, batch_size=128, num_epochs=1, shuffle=False):
    """Return batches of arrays or data frame columns and their labels; infinite if num_epochs is None."""
    if hasattr(x, "columns"):
        x = {name: column.to_numpy() for name, column in x.items()}
    y = y.to_numpy() if hasattr(y, "to_numpy") else y
    data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    if shuffle:
        data = data.shuffle(len(data))
    return data.repeat(num_epochs).batch(batch_size)''',
    "model_inputs": '''def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""

    def make_input(spec, name=None):
        sparse = isinstance(spec, tf.SparseTensorSpec)
        return keras.Input(spec.shape[1:], name=name, dtype=spec.dtype.name, sparse=sparse)

    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: make_input(spec, name) for name, spec in features.items()}
    return make_input(features)''',
    "examples": '''def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict for each example; only those of `keys`, if any."""
    for batch in data.as_numpy_iterator():
        features = batch[0] if isinstance(batch, tuple) else batch
        predicted = model.predictions(features, model.predict_on_batch(features))
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f"no predictions {keys}: there are {list(predicted)}")
        for row in zip(*(keras.ops.convert_to_numpy(predicted[name]) for name in names)):
            yield dict(zip(names, row))''',
    "WhenTraining": '''class WhenTraining(keras.layers.Layer):
    """Returns the first of two tensors in training, the second otherwise."""

    def call(self, inputs, training=None):
        trained, otherwise = inputs
        return trained if training else otherwise''',
    "DenseGradients": '''class DenseGradients:
    """An optimizer that converts the sparse gradient of an embedding to a dense one.

    TensorFlow repeats a row that a batch reads several times, and Keras would square each value separately.
    """

    def apply(self, grads, trainable_variables=None):
        grads = [tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]
        return super().apply(grads, trainable_variables)''',
    **{
        f"{name}WithDenseGradients": f'''@keras.saving.register_keras_serializable(MODULE)
class {name}WithDenseGradients(DenseGradients, keras.optimizers.{name}):
    """`keras.optimizers.{name}` for a model with embeddings."""'''
        for name in OF_DENSE_GRADIENTS
    },
    "Momentum": '''@keras.saving.register_keras_serializable(MODULE)
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
        return {**super().get_config(), "momentum": self.momentum, "nesterov": self.nesterov}''',
    "RMSProp": '''@keras.saving.register_keras_serializable(MODULE)
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
        return {**super().get_config(), **options}''',
    "StopAfter": '''class StopAfter(keras.callbacks.Callback):
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
            self.model.stop_training = True''',
    "Evaluation": '''class Evaluation(keras.callbacks.Callback):
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
            self.model.stop_training = True''',
    "FinalExporter": '''class FinalExporter:
    """Exports the model with `export(model, folder)` at the end of training."""

    def __init__(self, name, export):
        self.name, self.export, self.exported = name, export, None

    def write(self, model, folder):
        folder = os.path.join(folder, "export", self.name)
        os.makedirs(folder, exist_ok=True)
        self.exported = self.export(model, folder)

    def evaluated(self, model, folder, results):
        pass

    def at_end(self, model, folder, result):
        self.write(model, folder)
        return self.exported''',
    "LatestExporter": '''class LatestExporter(FinalExporter):
    """Exports the model after each evaluation, and keeps the latest exports."""

    def __init__(self, name, export, exports_to_keep=5):
        super().__init__(name, export)
        self.exports_to_keep, self.folders = exports_to_keep, []

    def write(self, model, folder):
        super().write(model, folder)
        self.folders.append(self.exported)
        while self.exports_to_keep and len(self.folders) > self.exports_to_keep:
            shutil.rmtree(self.folders.pop(0), ignore_errors=True)

    def evaluated(self, model, folder, results):
        self.write(model, folder)

    def at_end(self, model, folder, result):
        return self.exported''',
    "BestExporter": '''class BestExporter(LatestExporter):
    """Exports the model after each evaluation that is the best so far, by default by the loss."""

    def __init__(self, name, export, compare=None, exports_to_keep=5):
        super().__init__(name, export, exports_to_keep)
        self.compare = compare or (lambda best, current: current["loss"] < best["loss"])
        self.best = None

    def evaluated(self, model, folder, results):
        current = results[-1]
        if self.best is None or self.compare(best_eval_result=self.best, current_eval_result=current):
            self.best = current
            self.write(model, folder)''',
    "stop_if_no_decrease": '''def stop_if_no_decrease(metric_name, max_steps_without_decrease, min_steps=0):
    """Stop training when a metric has not decreased below its minimum for this number of steps."""
    return _without_progress(metric_name, max_steps_without_decrease, min_steps, lambda new, best: new < best)''',
    "stop_if_no_increase": '''def stop_if_no_increase(metric_name, max_steps_without_increase, min_steps=0):
    """Stop training when a metric has not increased above its maximum for this number of steps."""
    return _without_progress(metric_name, max_steps_without_increase, min_steps, lambda new, best: new > best)''',
    "_without_progress": """def _without_progress(metric_name, max_steps, min_steps, is_better):
    def should_stop(results):
        best = results[0]
        for result in results:
            if is_better(result[metric_name], best[metric_name]):
                best = result
        step = results[-1]["global_step"]
        return step >= min_steps and step - best["global_step"] >= max_steps

    return should_stop""",
    "stop_if_higher": '''def stop_if_higher(metric_name, threshold, min_steps=0):
    """Stop training when a metric is higher than a threshold."""
    return lambda results: results[-1]["global_step"] >= min_steps and results[-1][metric_name] > threshold''',
    "stop_if_lower": '''def stop_if_lower(metric_name, threshold, min_steps=0):
    """Stop training when a metric is lower than a threshold."""
    return lambda results: results[-1]["global_step"] >= min_steps and results[-1][metric_name] < threshold''',
    **COLUMNS,
    **CANNED,
}
"""Name of a part -> its source, in the order of the module."""


def module_text(names: Iterable[str]) -> str:
    """Return the source of the module with these parts and the parts that they need.

    Raises:
        KeyError: A part does not exist.
    """
    wanted, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += [part for part in PARTS if re.search(rf"\b{part}\b", PARTS[name])]
    text = "\n\n\n".join(PARTS[name] for name in PARTS if name in wanted)
    text = text.replace("(MODULE)", f'("{MODULE}")')
    imports = [f"import {name}\n" for name in ("math", "os", "shutil") if f"{name}." in text]
    imports += ["\n"] if imports else []
    imports += ["import keras\n"] if "keras." in text else []
    imports += ["import numpy as np\n"] if "np." in text else []
    imports += ["import tensorflow as tf\n"] if "tf." in text else []
    return f'"""Helpers of this program that Keras 3 does not have."""\n\n{"".join(imports)}\n\n{text}\n'
