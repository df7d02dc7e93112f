"""Functions and classes that converted programs may need; the converter copies the source of those that a program uses.

They are part of the user's program afterwards: each uses nothing of this package. `helpers.py` reads
this file as text, so that the converter needs no TensorFlow.
"""

import tensorflow as tf


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


def numpy_input_fn(x, y=None, *, batch_size=128, num_epochs=1, shuffle):
    """Return an input function of arrays; shuffle draws another order than the queues of TensorFlow 1."""

    def input_fn():
        data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
        data = data.shuffle(len(data)) if shuffle else data
        return data.repeat(num_epochs).batch(batch_size)

    return input_fn


def pandas_input_fn(x, y=None, **options):
    """Return an input function of the columns of a DataFrame, with a Series or another DataFrame of labels."""
    labels = {name: y[name].values for name in y} if hasattr(y, "columns") else getattr(y, "values", None)
    return numpy_input_fn({name: x[name].values for name in x}, labels, **options)


class Hyperparameters:
    """Hyperparameters as attributes."""

    def __init__(self, **values):
        vars(self).update(values)

    def __repr__(self):
        return f"Hyperparameters({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"

    def values(self):
        return dict(vars(self))

    def get(self, name, default=None):
        return getattr(self, name, default)


def saved_inputs(features):
    """Return the names, shapes and types of a list of inputs, or of a single one, for the configuration of a model."""

    def saved(value):
        return {"shape": list(value.shape[1:]), "dtype": tf.as_dtype(value.dtype).name}

    if not isinstance(features, list):
        return saved(features)
    named = {value.name.partition(":")[0]: value for value in features}
    return {name: {**saved(value), "name": name} for name, value in named.items()}


def loaded_inputs(config):
    """Return the Keras inputs of the result of `saved_inputs`."""
    if "shape" in config and "dtype" in config:
        return tf.keras.Input(**config)
    return {name: tf.keras.Input(**values) for name, values in config.items()}


def checkpoints(model, folder, max_to_keep=5, *, restores_rates=False):
    """Restore the latest checkpoint in a folder, and return a callback that saves one after each epoch.

    Learning rates are those of the program, as with optimizers of TensorFlow 1, or the saved ones (`restores_rates`).
    """
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep)
    rates = [getattr(model, name).learning_rate for name in ("optimizer", "linear_optimizer") if hasattr(model, name)]
    rates = [(rate, rate.numpy()) for rate in rates if hasattr(rate, "assign") and not restores_rates]  # no schedules
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched().expect_partial()
    for rate, value in rates:
        rate.assign(value)

    def save(epoch, logs=None):
        manager.save(checkpoint_number=int(model.optimizer.iterations.numpy()))

    return tf.keras.callbacks.LambdaCallback(on_epoch_end=save)


def restore(model, folder):
    """Restore the latest checkpoint in a folder, which has to be there."""
    latest = tf.train.latest_checkpoint(folder)
    if latest is None:
        raise FileNotFoundError(f"no checkpoint in {folder}: train the model first")
    tf.train.Checkpoint(model=model).restore(latest).assert_existing_objects_matched().expect_partial()


def check_trained(model):
    """Check that a model has been trained, or restored from a checkpoint."""
    if not int(model.optimizer.iterations.numpy()):
        raise ValueError("no checkpoint: train the model before it is evaluated or predicts")


def first_epoch(model, last_step, steps_per_epoch):
    """Return the epoch to continue with: that of the restored step, or the one behind the last for a finished job."""
    step = int(model.optimizer.iterations.numpy())
    return step // steps_per_epoch if step < last_step else -(-last_step // steps_per_epoch)


def once(data):
    """Return data of unknown length: of a length that it knows, Keras reads data again that ends with an epoch."""
    return data.filter(lambda *_: True)


class CountSteps(tf.keras.callbacks.Callback):
    """Corrects the steps of the optimizer: Keras counts one more where data of unknown length ends."""

    def on_epoch_begin(self, epoch, logs=None):
        self.start = self.step = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.iterations.assign(self.step)


class StopAt(CountSteps):
    """Stops training at a step of the optimizer, and where an epoch ends early because the data ends."""

    def __init__(self, last_step, steps_per_epoch):
        super().__init__()
        self.last_step, self.steps_per_epoch = last_step, steps_per_epoch

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self.step >= self.last_step:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if self.step - self.start < self.steps_per_epoch:
            self.model.stop_training = True


def predict(model, data, predictions, keys=None):
    """Yield the predictions for each example of a dataset, as `Estimator.predict` did; those of some keys only."""
    for batch in data:
        features = batch[0] if isinstance(batch, tuple) else batch
        answers = predictions(features, model(features, training=False))
        named = answers if isinstance(answers, dict) else {"predictions": answers}
        named = {name: value for name, value in named.items() if keys is None or name in keys}
        for row in zip(*(value.numpy() for value in named.values()), strict=False):
            yield dict(zip(named, row, strict=False)) if isinstance(answers, dict) else row[0]


def export(
    model, predictions, folder, receivers, features_of=lambda tensors: tensors, *, of_examples=None, other_names=()
):
    """Write a SavedModel that predicts, as `serving_default`, into a folder of the time, as TensorFlow Serving expects.

    Arguments: `receivers` are the specifications of the inputs by their names, `features_of` makes features of them;
    `of_examples` are the signatures of a canned Estimator beside `predict` that its export has for serialized examples,
    the default first: the prediction of each output; `other_names` are of the signature that predicts.
    """

    def signature(names, outputs=None):
        @tf.function(input_signature=[{names[key]: tf.TensorSpec(spec.shape, spec.dtype, names[key])
                                       for key, spec in receivers.items()}])  # fmt: skip
        def serve(tensors):
            features = features_of({key: tensors[name] for key, name in names.items()})
            answers = predictions(features, model(features, training=False))
            answers = answers if isinstance(answers, dict) else {"output": answers}
            return answers if outputs is None else {name: answers[key] for name, key in outputs.items()}

        return serve

    of_tensors = signature({name: name for name in receivers})
    signatures = {"serving_default" if of_examples is None else "predict": of_tensors}
    signatures.update(dict.fromkeys(other_names, of_tensors))
    if of_examples and [spec.dtype for spec in receivers.values()] == [tf.string]:
        for name, outputs in of_examples.items():
            signatures[name] = signature(dict.fromkeys(receivers, "inputs"), outputs)
            signatures.setdefault("serving_default", signatures[name])
    path = tf.io.gfile.join(folder, str(int(tf.timestamp())))
    tf.saved_model.save(model, path, signatures=signatures)
    return path


class ExportBest(tf.keras.callbacks.Callback):
    """Exports the model after each epoch whose validation has the lowest loss so far, as BestExporter did."""

    def __init__(self, export):
        super().__init__()
        self.export, self.lowest = export, None

    def on_epoch_end(self, epoch, logs=None):
        if self.lowest is None or logs["val_loss"] < self.lowest:
            self.lowest = logs["val_loss"]
            self.export()


def keras_features(model, features):
    """Return features as a model takes them: the value of a dict of one, several in the order of the inputs."""
    if not isinstance(features, dict):
        return features
    if len(features) == 1:
        return next(iter(features.values()))
    if isinstance(model.input, dict):
        return {name: features[name] for name in model.input}
    ordered = tuple(features[tensor.name.partition(":")[0]] for tensor in model.inputs)
    return ordered if len(ordered) > 1 else ordered[0]


def named_outputs(model, outputs):
    """Return outputs by the names of their layers."""
    names = getattr(model, "output_names", None) or [model.layers[-1].name]
    return dict(zip(names, tf.nest.flatten(outputs), strict=True))


def keras_data(model, data):
    """Return a dataset of features and labels as a model takes them, and build the model if it has no weights yet."""

    def element(features, *labels):
        weights = []
        if isinstance(features, dict) and set(features) == {"features", "sample_weights"}:
            features, weights = features["features"], [features["sample_weights"]]
        if labels and isinstance(labels[0], dict):
            names = named_outputs(model, model.outputs)
            labels = (tuple(labels[0][name] for name in names) if len(names) > 1 else labels[0][next(iter(names))],)
        return (keras_features(model, features), *labels, *weights)

    data = data.map(element)
    if not model.built:
        spec = data.element_spec[0]
        model(tf.keras.Input(spec.shape[1:], dtype=spec.dtype))
    return data


def export_keras(model, folder, receivers, features_of=lambda tensors: tensors):
    """Write a SavedModel as `export` does, which answers with the outputs by the names of their layers."""
    return export(
        model,
        lambda _, outputs: named_outputs(model, outputs),
        folder,
        receivers,
        lambda tensors: keras_features(model, features_of(tensors)),
    )


@tf.keras.utils.register_keras_serializable()
class ConstantTraining(tf.keras.layers.Wrapper):
    """A layer with a constant `training`: a functional model of Keras 3 replaces the one of a call by its own."""

    def __init__(self, layer, training, **options):
        super().__init__(layer, **options)
        self.constant = training

    def call(self, inputs):
        return self.layer(inputs, training=self.constant)

    def compute_mask(self, inputs, mask=None):
        return self.layer.compute_mask(inputs, mask)

    def get_config(self):
        return {**super().get_config(), "training": self.constant}


@tf.keras.utils.register_keras_serializable()
class DenseEmbedding(tf.keras.layers.Embedding):
    """An embedding with a dense gradient: Keras 3 squares the parts of a sparse one for a row one by one."""

    def call(self, inputs):
        table = tf.convert_to_tensor(self.embeddings) * 1.0  # whose gradient is dense
        return tf.cast(tf.gather(table, tf.cast(inputs, tf.int32)), self.compute_dtype)


@tf.keras.utils.register_keras_serializable()
class TensorFlowOperation(tf.keras.layers.Layer):
    """A function of TensorFlow between two layers, by its name; `{"tensor": 0}` is the first of its inputs."""

    def __init__(self, function, arguments=(), options=None, **layer):
        super().__init__(**layer)
        self.function, self.arguments, self.options = function, list(arguments), dict(options or {})

    def call(self, inputs):
        tensors = inputs if isinstance(inputs, (list, tuple)) else [inputs]

        def filled(value):
            if isinstance(value, dict):
                return tensors[value["tensor"]]
            return [filled(item) for item in value] if isinstance(value, (list, tuple)) else value

        function = tf
        for name in self.function.split("."):
            function = getattr(function, name)
        return function(*filled(self.arguments), **{name: filled(value) for name, value in self.options.items()})

    def get_config(self):
        return {**super().get_config(), "function": self.function, "arguments": self.arguments, "options": self.options}


def operation(function, *arguments, **options):
    """Apply a function of TensorFlow to tensors of Keras: `operation("reduce_mean", net, axis=1)`."""
    tensors = []

    def emptied(value):
        if type(value).__name__.endswith("KerasTensor"):
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        if isinstance(value, (list, tuple)):
            return [emptied(item) for item in value]
        return value.name if isinstance(value, tf.DType) else value

    layer = TensorFlowOperation(function, emptied(arguments), {name: emptied(value) for name, value in options.items()})
    if not tensors:
        return layer.call(tensors)
    return layer(tensors if len(tensors) > 1 else tensors[0])


class MetricOfLogits(tf.keras.metrics.Metric):
    """A metric of probabilities that takes logits."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_true, tf.sigmoid(y_pred), sample_weight)


@tf.keras.utils.register_keras_serializable()
class LogitsAccuracy(MetricOfLogits, tf.keras.metrics.BinaryAccuracy):
    """The share of logits whose sign is right."""


@tf.keras.utils.register_keras_serializable()
class LogitsPrecision(MetricOfLogits, tf.keras.metrics.Precision):
    """The precision of positive logits."""


@tf.keras.utils.register_keras_serializable()
class LogitsRecall(MetricOfLogits, tf.keras.metrics.Recall):
    """The recall of positive logits."""


@tf.keras.utils.register_keras_serializable()
class LogitsCrossentropy(tf.keras.metrics.BinaryCrossentropy):
    """The mean cross entropy of logits [batch, 1] and labels [batch], which Keras 3 does not expand."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(tf.reshape(y_true, tf.shape(y_pred)), y_pred, sample_weight)
