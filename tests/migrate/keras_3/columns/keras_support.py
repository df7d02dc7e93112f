"""What this program needs, and Keras 3 does not have."""

import math

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


def categorical_column_with_identity(key, num_buckets, default_value=None):
    """A number that is a category already; one beyond is `default_value`, where that is said."""

    def number(value):
        if default_value is None:
            return value
        return keras.ops.where((value < 0) | (value >= num_buckets), default_value, value)

    return _categories(key, num_buckets, tf.int64, number)


def categorical_column_with_hash_bucket(
    key, hash_bucket_size, dtype=tf.string
):
    """The hash of a word, or of a number."""
    lookup = keras.layers.Hashing(hash_bucket_size)
    return _categories(key, hash_bucket_size, dtype, lookup, [lookup])


def crossed_column(keys, hash_bucket_size, hash_key=None):
    """The hash of the values of several features and columns together."""
    leaves = [leaf for key in keys for leaf in getattr(key, "leaves", [key])]

    def values(features, leaf):
        if isinstance(leaf, str):  # as it comes: an empty text is a value
            value = features[leaf] if isinstance(features[leaf], tf.SparseTensor) else _feature(features, leaf)
            return value if value.dtype == tf.string else tf.cast(value, tf.int64)
        found = tf.sparse.from_dense(tf.cast(leaf.ids(features), tf.int64) + 2)
        return found.with_values(found.values - 2)

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
    """How often each category is there."""
    of = categorical_column

    def encoded(features):
        return _counted(of.ids(features), of.size)

    return _Column(f"{of.name}_indicator", of.spec, of.size, encoded, lookups=of.lookups)


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


def feature_layer(columns, name=None):
    """A layer that makes [B, k] of a dict of features: the columns beside each other, sorted by their names."""
    return InputLayer(columns, name)
