"""Helpers of this program that Keras 3 does not have."""

import math

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


def categorical_column_with_identity(key, num_buckets, default_value=None):
    """Return a column of category ids. Ids out of range become `default_value` if it is set."""

    def number(value):
        if default_value is None:
            return value
        return keras.ops.where((value < 0) | (value >= num_buckets), default_value, value)

    return _categories(key, num_buckets, tf.int64, number)


def categorical_column_with_hash_bucket(
    key, hash_bucket_size, dtype=tf.string
):
    """Return a column of the hash of a word or number."""
    lookup = keras.layers.Hashing(hash_bucket_size)
    return _categories(key, hash_bucket_size, dtype, lookup, [lookup])


def crossed_column(keys, hash_bucket_size, hash_key=None):
    """Return a column of the combined hash of several features and columns."""
    leaves = [leaf for key in keys for leaf in getattr(key, "leaves", [key])]

    def values(features, leaf):
        if isinstance(leaf, str):  # as read: an empty string is a value
            value = features[leaf] if isinstance(features[leaf], tf.SparseTensor) else _feature(features, leaf)
            return value if value.dtype == tf.string else tf.cast(value, tf.int64)
        sparse = tf.sparse.from_dense(tf.cast(leaf.ids(features), tf.int64) + 2)
        return sparse.with_values(sparse.values - 2)

    def ids(features):
        crossed = tf.sparse.cross_hashed([values(features, leaf) for leaf in leaves], hash_bucket_size, hash_key)
        return tf.sparse.to_dense(crossed, default_value=-2)

    spec, lookups = {}, []
    for leaf in leaves:
        spec |= {leaf: tf.io.VarLenFeature(tf.string)} if isinstance(leaf, str) else leaf.spec
        lookups += [] if isinstance(leaf, str) else leaf.lookups
    name = "_X_".join(sorted(leaf if isinstance(leaf, str) else leaf.name for leaf in leaves))
    column = _Column(name, spec, size=hash_bucket_size, ids=ids, lookups=lookups)
    column.leaves = leaves
    return column


def indicator_column(categorical_column):
    """Return a column of the count of each category."""
    source = categorical_column

    def encoded(features):
        return _counted(source.ids(features), source.size)

    return _Column(f"{source.name}_indicator", source.spec, source.size, encoded, lookups=source.lookups)


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


def feature_layer(columns, name=None):
    """Return a layer that concatenates columns, sorted by name: dict of features -> numbers [B, k]."""
    return InputLayer(columns, name)
