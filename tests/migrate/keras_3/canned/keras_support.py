"""What this program needs, and Keras 3 does not have."""

import math

import keras
import numpy as np
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


class _Column:
    """What a model takes of the features.

    `encoded(features)` are numbers [B, width]; `ids(features)` are those of categories [B, k], of which there are
    `size`: -1 is an unknown one, -2 none. `table` makes the layer of its weights, `lookups` are layers that it calls,
    and `spec` is what `tf.io.parse_example` needs.
    """

    def __init__(self, name, spec, width=0, encoded=None, size=0, ids=None, table=None, lookups=()):
        self.name, self.spec, self.lookups = name, spec, lookups
        self.width, self.encoded, self.size, self.ids, self.table = width, encoded, size, ids, table


def _feature(features, key):
    """A feature [B, k]; of a sparse one, the empty text or -1 where there is nothing."""
    value = features[key]
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value, default_value="" if value.dtype == tf.string else -1)
    rank = value.shape.rank if hasattr(value.shape, "rank") else len(value.shape)  # None: what it is shows when it runs
    return value[:, None] if rank == 1 else value


def _counted(ids, size):
    """How often each category is there: [B, k] -> [B, size]."""
    return keras.ops.sum(keras.ops.one_hot(ids, size), axis=1)


def _combined(table, ids, combiner):
    """The sum of the rows of a table for ids [B, k], or their mean."""
    there = keras.ops.cast(ids >= 0, table.dtype)[..., None]
    total = keras.ops.sum(keras.ops.take(table, keras.ops.maximum(ids, 0), axis=0) * there, axis=1)
    if combiner == "sum":
        return total
    count = keras.ops.sum(there, axis=1)
    return keras.ops.divide_no_nan(total, count if combiner == "mean" else keras.ops.sqrt(count))


def _categories(key, size, dtype, number, lookups=()):
    """The categories of a feature, by a function of its values; the empty text, and -1, are none."""
    none = "" if tf.as_dtype(dtype) == tf.string else -1

    def ids(features):
        value = _feature(features, key)
        return keras.ops.where(value == none, -2, number(value))

    return _Column(key, {key: tf.io.VarLenFeature(dtype)}, size=size, ids=ids, lookups=lookups)


def numeric_column(key, shape=(1,), default_value=None, dtype=tf.float32, normalizer_fn=None):
    """Numbers as they are, or what a function makes of them."""
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
    """Which of the buckets a number is in; a boundary belongs to the bucket above it."""
    size = len(boundaries) + 1

    def ids(features):
        return keras.ops.digitize(source_column.encoded(features), list(boundaries))

    def encoded(features):
        return _counted(ids(features), size)

    return _Column(f"{source_column.name}_bucketized", source_column.spec, size, encoded, size, ids)


def categorical_column_with_vocabulary_list(
    key, vocabulary_list, dtype=None, default_value=-1, num_oov_buckets=0
):
    """The place of a word in a list; others are `default_value`, or hashed into buckets behind the list."""
    texts = isinstance(vocabulary_list[0], (str, bytes))
    words = [word.decode() if isinstance(word, bytes) else str(word) for word in vocabulary_list]
    ahead = max(num_oov_buckets, 1)  # Keras has the other words before those of the list
    lookup = keras.layers.StringLookup(vocabulary=words, num_oov_indices=ahead)

    def number(value):
        place = lookup(value if texts else tf.strings.as_string(value)) - ahead
        other = place + ahead + len(words) if num_oov_buckets else default_value
        return keras.ops.where(place < 0, other, place)

    dtype = dtype or (tf.string if texts else tf.int64)
    return _categories(key, len(words) + num_oov_buckets, dtype, number, [lookup])


class _Embedding(keras.layers.Layer):
    """The vectors of the categories of a column, and their mean of each record."""

    def __init__(self, column, dimension, combiner, initializer, **options):
        super().__init__(**options)
        self.column, self.combiner = column, combiner
        self.table = self.add_weight(name="embedding_weights", shape=[column.size, dimension], initializer=initializer)

    def call(self, features):
        return _combined(self.table, self.column.ids(features), self.combiner)


def embedding_column(
    categorical_column, dimension, combiner="mean", initializer=None, trainable=True
):
    """The mean of the vectors of the categories, or their sum."""
    of, name = categorical_column, f"{categorical_column.name}_embedding"

    def table():
        start = initializer or keras.initializers.TruncatedNormal(stddev=dimension**-0.5)
        return _Embedding(of, dimension, combiner, start, name=name, trainable=trainable)

    return _Column(name, of.spec, dimension, table=table, lookups=of.lookups)


class InputLayer(keras.layers.Layer):
    """Columns beside each other, sorted by their names: numbers [B, k] of a dict of features."""

    def __init__(self, columns, name=None):
        super().__init__(name=name)
        self.supports_jit = keras.backend.backend() != "tensorflow"  # XLA has no lookups and hashes
        self.columns = sorted(columns, key=lambda column: column.name)
        self.lookups = [lookup for column in self.columns for lookup in column.lookups]
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError(f"two columns have one name: {', '.join(column.name for column in self.columns)}")

    def build(self, input_shape):
        self.tables = {column.name: column.table() for column in self.columns if column.table}

    def call(self, features):
        found = [self.tables.get(column.name, column.encoded)(features) for column in self.columns]
        return keras.ops.concatenate(found, axis=-1)


def _optimizer(given, **options):
    """An optimizer by its name, one that is given, or what a function makes."""
    kinds = {
        "Adagrad": AdagradWithDenseGradients,
        "Adam": AdamWithDenseGradients,
        "Ftrl": FtrlWithDenseGradients,
        "SGD": SGDWithDenseGradients,
    }
    if isinstance(given, str):
        return kinds[given](**options)
    return given if isinstance(given, keras.optimizers.Optimizer) else given()


class _Head:
    """What logits [B, width] are for: the loss, and metrics and predictions by the names that Estimators give them."""

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
        losses = self.losses(self.numbers(labels), logits)
        total = keras.ops.sum(losses * self.weights(features, losses))
        return total if self.loss_reduction == "sum" else total / keras.ops.cast(keras.ops.size(losses), "float32")

    def update(self, metrics, features, labels, logits):
        labels = self.numbers(labels)
        losses = self.losses(labels, logits)
        weights = self.weights(features, losses)
        for name, values in {**self.told(labels, logits), "average_loss": (losses,)}.items():
            metrics[name].update_state(*values, sample_weight=weights)

    def further(self, results):
        return results


class _Numbers(_Head):
    """Numbers, by the squared error."""

    kinds = {**_Head.kinds, "label/mean": keras.metrics.Mean, "prediction/mean": keras.metrics.Mean}

    def numbers(self, labels):
        return keras.ops.reshape(keras.ops.cast(labels, "float32"), [-1, self.width])

    def losses(self, labels, logits):
        return keras.ops.square(logits - labels)

    def told(self, labels, logits):
        return {"label/mean": (labels,), "prediction/mean": (logits,)}

    def predictions(self, logits):
        return {"predictions": logits}


class _Classes(_Head):
    """One of several classes, by the cross entropy of the softmax."""

    kinds = {**_Head.kinds, "accuracy": keras.metrics.Accuracy}

    def __init__(self, width, weight_column, loss_reduction, n_classes, label_vocabulary):
        super().__init__(width, weight_column, loss_reduction)
        self.words = list(label_vocabulary or map(str, range(n_classes)))
        self.lookup = label_vocabulary and keras.layers.StringLookup(vocabulary=self.words, num_oov_indices=0)

    def numbers(self, labels):
        labels = keras.ops.reshape(self.lookup(labels) if self.lookup else labels, [-1, 1])
        return keras.ops.cast(labels, "int32")

    def losses(self, labels, logits):
        return keras.ops.sparse_categorical_crossentropy(labels[:, 0], logits, from_logits=True)[:, None]

    def both(self, logits):
        return logits

    def told(self, labels, logits):
        return {"accuracy": (labels, keras.ops.argmax(self.both(logits), axis=-1)[:, None])}

    def predictions(self, logits):
        logits = self.both(logits)
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
    """One of two classes, by the cross entropy of the sigmoid."""

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

    def both(self, logits):
        return keras.ops.concatenate([keras.ops.zeros_like(logits), logits], axis=-1)

    def told(self, labels, logits):
        share, found = keras.ops.sigmoid(logits), super().told(labels, logits)
        found |= {"label/mean": (labels,), "prediction/mean": (share,)}
        found |= {"precision": found["accuracy"], "recall": found["accuracy"]}
        return {**found, "auc": (labels, share), "auc_precision_recall": (labels, share)}

    def further(self, results):
        mean = results["label/mean"]
        return {**results, "accuracy_baseline": keras.ops.maximum(mean, 1 - mean)}

    def predictions(self, logits):
        return {**super().predictions(logits), "logits": logits, "logistic": keras.ops.sigmoid(logits)}


def _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction):
    kind, width = (_TwoClasses, 1) if n_classes == 2 else (_Classes, n_classes)
    return kind(width, weight_column, loss_reduction, n_classes, label_vocabulary)


class CannedModel(keras.Model):
    """Layers one after the other, and the head that their logits are for."""

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
            self(model_inputs(x))  # a backup is restored to weights that are there
        return super().fit(x, *args, **options)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.head.loss(x, y, y_pred)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.head.update(self.by_name, x, y, y_pred)
        return self.head.further(self.get_metrics_result())

    def predictions(self, features, outputs):
        return self.head.predictions(outputs)


class _LinearModel(keras.layers.Layer):
    """A weight for each category or number of columns, all of them summed, and a bias."""

    def __init__(self, columns, units, sparse_combiner):
        super().__init__(name="linear_model")
        self.supports_jit = keras.backend.backend() != "tensorflow"  # XLA has no lookups and hashes
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
    """A weight for each category and number, that tells classes apart."""
    head = _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    return _linear(head, feature_columns, optimizer, sparse_combiner)


def LinearRegressor(
    feature_columns, model_dir=None, label_dimension=1, weight_column=None,
    optimizer="Ftrl", loss_reduction="sum_over_batch_size", sparse_combiner="sum",
):  # fmt: skip
    """A weight for each category and number, that gives numbers."""
    head = _Numbers(label_dimension, weight_column, loss_reduction)
    return _linear(head, feature_columns, optimizer, sparse_combiner)


def DNNClassifier(
    hidden_units, feature_columns, model_dir=None, n_classes=2, weight_column=None, label_vocabulary=None,
    optimizer="Adagrad", activation_fn="relu", dropout=None,
    loss_reduction="sum_over_batch_size", batch_norm=False,
):  # fmt: skip
    """A network of dense layers that tells classes apart."""
    head = _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    return _deep(head, feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)


def DNNRegressor(
    hidden_units, feature_columns, model_dir=None, label_dimension=1, weight_column=None,
    optimizer="Adagrad", activation_fn="relu", dropout=None,
    loss_reduction="sum_over_batch_size", batch_norm=False,
):  # fmt: skip
    """A network of dense layers that gives numbers."""
    head = _Numbers(label_dimension, weight_column, loss_reduction)
    return _deep(head, feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)
