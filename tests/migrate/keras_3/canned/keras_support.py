"""Helpers of this program that Keras 3 does not have."""

import math

import keras
import numpy as np
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
class AdagradWithDenseGradients(DenseGradients, keras.optimizers.Adagrad):
    """`keras.optimizers.Adagrad` for a model with embeddings."""


@keras.saving.register_keras_serializable("keras_support")
class AdamWithDenseGradients(DenseGradients, keras.optimizers.Adam):
    """`keras.optimizers.Adam` for a model with embeddings."""


@keras.saving.register_keras_serializable("keras_support")
class FtrlWithDenseGradients(DenseGradients, keras.optimizers.Ftrl):
    """`keras.optimizers.Ftrl` for a model with embeddings."""


@keras.saving.register_keras_serializable("keras_support")
class SGDWithDenseGradients(DenseGradients, keras.optimizers.SGD):
    """`keras.optimizers.SGD` for a model with embeddings."""


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


class _Column:
    """A feature column.

    `encoded(features)` returns numbers [B, width]. `ids(features)` returns category ids [B, k] below `size`; -1 is an
    unknown category, -2 a missing value. `table` creates the layer of its weights, `lookups` are the layers that it
    calls, and `spec` is for `tf.io.parse_example`.
    """

    def __init__(self, name, spec, width=0, encoded=None, size=0, ids=None, table=None, lookups=()):
        self.name, self.spec, self.lookups = name, spec, lookups
        self.width, self.encoded, self.size, self.ids, self.table = width, encoded, size, ids, table


def _feature(features, key):
    """Return a feature [B, k]. Missing values of a sparse feature are the empty string or -1."""
    value = features[key]
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value, default_value="" if value.dtype == tf.string else -1)
    rank = value.shape.rank if hasattr(value.shape, "rank") else len(value.shape)  # None: known only at run time
    return value[:, None] if rank == 1 else value


def _counted(ids, size):
    """Return the count of each category: [B, k] -> [B, size]."""
    return keras.ops.sum(keras.ops.one_hot(ids, size), axis=1)


def _combined(table, ids, combiner):
    """Return the sum or the mean of the rows of a table for ids [B, k]."""
    mask = keras.ops.cast(ids >= 0, table.dtype)[..., None]
    total = keras.ops.sum(keras.ops.take(table, keras.ops.maximum(ids, 0), axis=0) * mask, axis=1)
    if combiner == "sum":
        return total
    count = keras.ops.sum(mask, axis=1)
    return keras.ops.divide_no_nan(total, count if combiner == "mean" else keras.ops.sqrt(count))


def _categories(key, size, dtype, number, lookups=()):
    """Return a column of categories, by a function of the values. The empty string and -1 are missing values."""
    missing = "" if tf.as_dtype(dtype) == tf.string else -1

    def ids(features):
        value = _feature(features, key)
        return keras.ops.where(value == missing, -2, number(value))

    return _Column(key, {key: tf.io.VarLenFeature(dtype)}, size=size, ids=ids, lookups=lookups)


def numeric_column(key, shape=(1,), default_value=None, dtype=tf.float32, normalizer_fn=None):
    """Return a column of numbers, optionally normalized."""
    shape = [shape] if isinstance(shape, int) else list(shape)
    width = math.prod(shape)
    if isinstance(default_value, (int, float)):
        default_value = [default_value] * width

    def encoded(features):
        value = _feature(features, key)
        value = normalizer_fn(value) if normalizer_fn else value
        return keras.ops.reshape(keras.ops.cast(value, "float32"), [-1, width])

    return _Column(key, {key: tf.io.FixedLenFeature(shape, dtype, default_value)}, width, encoded)


def bucketized_column(source_column, boundaries):
    """Return a column of the bucket of a number. A boundary belongs to the bucket above it."""
    size = len(boundaries) + 1

    def ids(features):
        return keras.ops.digitize(source_column.encoded(features), list(boundaries))

    def encoded(features):
        return _counted(ids(features), size)

    return _Column(f"{source_column.name}_bucketized", source_column.spec, size, encoded, size, ids)


def categorical_column_with_vocabulary_list(
    key, vocabulary_list, dtype=None, default_value=-1, num_oov_buckets=0
):
    """Return a column of the index of a word in a list. Other words are `default_value` or in hash buckets after it."""
    texts = isinstance(vocabulary_list[0], (str, bytes))
    words = [word.decode() if isinstance(word, bytes) else str(word) for word in vocabulary_list]
    offset = max(num_oov_buckets, 1)  # Keras numbers unknown words before those of the list
    lookup = keras.layers.StringLookup(vocabulary=words, num_oov_indices=offset)

    def number(value):
        index = lookup(value if texts else tf.strings.as_string(value)) - offset
        other = index + offset + len(words) if num_oov_buckets else default_value
        return keras.ops.where(index < 0, other, index)

    dtype = dtype or (tf.string if texts else tf.int64)
    return _categories(key, len(words) + num_oov_buckets, dtype, number, [lookup])


class _Embedding(keras.layers.Layer):
    """The vectors of the categories of a column, combined for each example."""

    def __init__(self, column, dimension, combiner, initializer, **options):
        super().__init__(**options)
        self.column, self.combiner = column, combiner
        self.table = self.add_weight(name="embedding_weights", shape=[column.size, dimension], initializer=initializer)

    def call(self, features):
        return _combined(self.table, self.column.ids(features), self.combiner)


def embedding_column(
    categorical_column, dimension, combiner="mean", initializer=None, trainable=True
):
    """Return a column of the mean or sum of the vectors of the categories."""
    source, name = categorical_column, f"{categorical_column.name}_embedding"

    def table():
        start = initializer or keras.initializers.TruncatedNormal(stddev=dimension**-0.5)
        return _Embedding(source, dimension, combiner, start, name=name, trainable=trainable)

    return _Column(name, source.spec, dimension, table=table, lookups=source.lookups)


class InputLayer(keras.layers.Layer):
    """Concatenates columns, sorted by name: dict of features -> numbers [B, k]."""

    def __init__(self, columns, name=None):
        super().__init__(name=name)
        self.supports_jit = keras.backend.backend() != "tensorflow"  # XLA does not support lookups and hashes
        self.columns = sorted(columns, key=lambda column: column.name)
        self.lookups = [lookup for column in self.columns for lookup in column.lookups]
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError(f"two columns have the same name: {', '.join(column.name for column in self.columns)}")

    def build(self, input_shape):
        self.tables = {column.name: column.table() for column in self.columns if column.table}

    def call(self, features):
        values = [self.tables.get(column.name, column.encoded)(features) for column in self.columns]
        return keras.ops.concatenate(values, axis=-1)


def _optimizer(optimizer, **options):
    """Return an optimizer from its name, an optimizer, or a function that creates one."""
    kinds = {
        "Adagrad": AdagradWithDenseGradients,
        "Adam": AdamWithDenseGradients,
        "Ftrl": FtrlWithDenseGradients,
        "SGD": SGDWithDenseGradients,
    }
    if isinstance(optimizer, str):
        return kinds[optimizer](**options)
    return optimizer if isinstance(optimizer, keras.optimizers.Optimizer) else optimizer()


class _Head:
    """Computes the loss from logits [B, width], and metrics and predictions with the names of Estimators."""

    kinds = {"average_loss": keras.metrics.Mean}

    def __init__(self, width, weight_column, loss_reduction):
        self.width, self.weight_column, self.loss_reduction = width, weight_column, loss_reduction

    def weights(self, features, losses):
        if self.weight_column is None:
            return keras.ops.ones_like(losses[:, :1])
        named = isinstance(self.weight_column, str)
        value = features[self.weight_column] if named else self.weight_column.encoded(features)
        return keras.ops.reshape(keras.ops.cast(value, "float32"), [-1, 1])

    def loss(self, features, labels, logits):
        losses = self.losses(self.label_values(labels), logits)
        total = keras.ops.sum(losses * self.weights(features, losses))
        return total if self.loss_reduction == "sum" else total / keras.ops.cast(keras.ops.size(losses), "float32")

    def update(self, metrics, features, labels, logits):
        labels = self.label_values(labels)
        losses = self.losses(labels, logits)
        weights = self.weights(features, losses)
        for name, values in {**self.metric_values(labels, logits), "average_loss": (losses,)}.items():
            metrics[name].update_state(*values, sample_weight=weights)

    def add_results(self, results):
        return results


class _Numbers(_Head):
    """A head for regression with the squared error."""

    kinds = {**_Head.kinds, "label/mean": keras.metrics.Mean, "prediction/mean": keras.metrics.Mean}

    def label_values(self, labels):
        return keras.ops.reshape(keras.ops.cast(labels, "float32"), [-1, self.width])

    def losses(self, labels, logits):
        return keras.ops.square(logits - labels)

    def metric_values(self, labels, logits):
        return {"label/mean": (labels,), "prediction/mean": (logits,)}

    def predictions(self, logits):
        return {"predictions": logits}


class _Classes(_Head):
    """A head for several classes with softmax cross entropy."""

    kinds = {**_Head.kinds, "accuracy": keras.metrics.Accuracy}

    def __init__(self, width, weight_column, loss_reduction, n_classes, label_vocabulary):
        super().__init__(width, weight_column, loss_reduction)
        self.words = list(label_vocabulary or map(str, range(n_classes)))
        self.lookup = label_vocabulary and keras.layers.StringLookup(vocabulary=self.words, num_oov_indices=0)

    def label_values(self, labels):
        labels = keras.ops.reshape(self.lookup(labels) if self.lookup else labels, [-1, 1])
        return keras.ops.cast(labels, "int32")

    def losses(self, labels, logits):
        return keras.ops.sparse_categorical_crossentropy(labels[:, 0], logits, from_logits=True)[:, None]

    def class_logits(self, logits):
        return logits

    def metric_values(self, labels, logits):
        return {"accuracy": (labels, keras.ops.argmax(self.class_logits(logits), axis=-1)[:, None])}

    def predictions(self, logits):
        logits = self.class_logits(logits)
        ids = keras.ops.convert_to_numpy(keras.ops.argmax(logits, axis=-1)[:, None])
        every = np.tile(np.arange(len(self.words)), [len(ids), 1])
        words = np.array([word.encode() for word in self.words])
        return {
            "logits": logits,
            "probabilities": keras.ops.softmax(logits),
            "class_ids": ids,
            "classes": words[ids],
            "all_class_ids": every,
            "all_classes": words[every],
        }


class _TwoClasses(_Classes):
    """A head for two classes with sigmoid cross entropy."""

    kinds = {
        **_Classes.kinds,
        "label/mean": keras.metrics.Mean,
        "prediction/mean": keras.metrics.Mean,
        "precision": keras.metrics.Precision,
        "recall": keras.metrics.Recall,
        "auc": keras.metrics.AUC,
        "auc_precision_recall": lambda name: keras.metrics.AUC(name=name, curve="PR"),
    }

    def losses(self, labels, logits):
        return keras.ops.binary_crossentropy(keras.ops.cast(labels, logits.dtype), logits, from_logits=True)

    def class_logits(self, logits):
        return keras.ops.concatenate([keras.ops.zeros_like(logits), logits], axis=-1)

    def metric_values(self, labels, logits):
        probability, values = keras.ops.sigmoid(logits), super().metric_values(labels, logits)
        values |= {"label/mean": (labels,), "prediction/mean": (probability,)}
        values |= {"precision": values["accuracy"], "recall": values["accuracy"]}
        return {**values, "auc": (labels, probability), "auc_precision_recall": (labels, probability)}

    def add_results(self, results):
        mean = results["label/mean"]
        return {**results, "accuracy_baseline": keras.ops.maximum(mean, 1 - mean)}

    def predictions(self, logits):
        return {**super().predictions(logits), "logits": logits, "logistic": keras.ops.sigmoid(logits)}


def _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction):
    kind, width = (_TwoClasses, 1) if n_classes == 2 else (_Classes, n_classes)
    return kind(width, weight_column, loss_reduction, n_classes, label_vocabulary)


class CannedModel(keras.Model):
    """A sequence of layers and a head for their logits."""

    def __init__(self, head, parts, optimizer):
        super().__init__()
        self.head, self.parts = head, parts
        self.by_name = {name: kind(name=name) for name, kind in head.kinds.items()}
        self.compile(optimizer=optimizer)

    def call(self, features):
        for part in self.parts:
            features = part(features)
        return features

    def fit(self, x=None, *args, **options):
        if not self.built:
            self(model_inputs(x))  # a backup is restored into existing weights
        return super().fit(x, *args, **options)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.head.loss(x, y, y_pred)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.head.update(self.by_name, x, y, y_pred)
        return self.head.add_results(self.get_metrics_result())

    def predictions(self, features, outputs):
        return self.head.predictions(outputs)


class _LinearModel(keras.layers.Layer):
    """The weighted sum of the categories and numbers of columns, and a bias."""

    def __init__(self, columns, units, sparse_combiner):
        super().__init__(name="linear_model")
        self.supports_jit = keras.backend.backend() != "tensorflow"  # XLA does not support lookups and hashes
        self.columns, self.units, self.combiner = columns, units, sparse_combiner
        self.lookups = [lookup for column in columns for lookup in column.lookups]

    def build(self, input_shape):
        self.parts = {column.name: keras.layers.Layer(name=column.name) for column in self.columns}
        for column in self.columns:
            part, shape = self.parts[column.name], [column.size or column.width, self.units]
            part.kernel = part.add_weight(name="weights", shape=shape, initializer="zeros")
        self.bias = self.add_weight(name="bias_weights", shape=[self.units], initializer="zeros")

    def call(self, features):
        return sum((self.part(column, features) for column in self.columns), self.bias)

    def part(self, column, features):
        kernel = self.parts[column.name].kernel
        if column.ids:
            return _combined(kernel, column.ids(features), self.combiner)
        return keras.ops.matmul(column.encoded(features), kernel)


def _linear(head, columns, optimizer, sparse_combiner):
    rate = min(0.2, len(columns) ** -0.5)
    wide = _LinearModel(columns, head.width, sparse_combiner)
    return CannedModel(head, [wide], _optimizer(optimizer, learning_rate=rate))


def _deep(head, columns, hidden_units, optimizer, activation_fn, dropout, batch_norm):
    parts = [InputLayer(columns, name="input_layer")]
    for number, units in enumerate(hidden_units):
        parts.append(keras.layers.Dense(units, activation=activation_fn, name=f"hiddenlayer_{number}"))
        if dropout:
            parts.append(keras.layers.Dropout(dropout))
        if batch_norm:
            norm = keras.layers.BatchNormalization(momentum=0.999, name=f"hiddenlayer_{number}_batchnorm")
            parts.append(norm)
    return CannedModel(head, [*parts, keras.layers.Dense(head.width, name="logits")], _optimizer(optimizer))


def LinearClassifier(
    feature_columns, model_dir=None, n_classes=2, weight_column=None, label_vocabulary=None,
    optimizer="Ftrl", loss_reduction="sum_over_batch_size", sparse_combiner="sum",
):  # fmt: skip
    """Return a linear classifier."""
    head = _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    return _linear(head, feature_columns, optimizer, sparse_combiner)


def LinearRegressor(
    feature_columns, model_dir=None, label_dimension=1, weight_column=None,
    optimizer="Ftrl", loss_reduction="sum_over_batch_size", sparse_combiner="sum",
):  # fmt: skip
    """Return a linear regressor."""
    head = _Numbers(label_dimension, weight_column, loss_reduction)
    return _linear(head, feature_columns, optimizer, sparse_combiner)


def DNNClassifier(
    hidden_units, feature_columns, model_dir=None, n_classes=2, weight_column=None, label_vocabulary=None,
    optimizer="Adagrad", activation_fn="relu", dropout=None,
    loss_reduction="sum_over_batch_size", batch_norm=False,
):  # fmt: skip
    """Return a classifier of dense layers."""
    head = _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    return _deep(head, feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)


def DNNRegressor(
    hidden_units, feature_columns, model_dir=None, label_dimension=1, weight_column=None,
    optimizer="Adagrad", activation_fn="relu", dropout=None,
    loss_reduction="sum_over_batch_size", batch_norm=False,
):  # fmt: skip
    """Return a regressor of dense layers."""
    head = _Numbers(label_dimension, weight_column, loss_reduction)
    return _deep(head, feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)
