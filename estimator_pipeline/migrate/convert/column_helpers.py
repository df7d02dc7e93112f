"""Feature columns on Keras inputs, for converted programs; `helpers.py` copies the classes that a program uses.

The values are those of `tf.feature_column`. Only dense features are read: there, "" and -1 are missing values.
They are part of the user's program afterwards: each uses nothing of this package.
"""

import tensorflow as tf

from estimator_pipeline.migrate.convert.program_helpers import operation
from estimator_pipeline.migrate.convert.training_helpers import BatchMean


class FeatureColumn:
    """A function of the features of a batch; `dense` and `linear` make its layers."""

    name = ""
    arguments: tuple = ()

    def __new__(cls, *arguments, **options):
        column = super().__new__(cls)
        column.arguments = (arguments, options)
        return column

    def dense(self, features):
        """Return numbers, [batch, width], of a dict of Keras inputs."""
        raise ValueError(f"the column {self.name} has no numbers: use an indicator or an embedding of it")

    def linear(self, features, units, combiner, use_bias):
        """Return the weighted sum of the numbers, [batch, units]."""
        layer = tf.keras.layers.Dense(units, use_bias=use_bias, kernel_initializer="zeros")
        return layer(self.dense(features))


class CategoricalColumn(FeatureColumn):
    """A column of categories."""

    size = 0

    def numbers(self, features):
        """Return categories below `size`, [batch, values]; -1 is unknown, -2 missing."""
        raise NotImplementedError

    def linear(self, features, units, combiner, use_bias):
        layer = CategoryWeights(self.size, units, combiner, use_bias, "zeros")
        return layer(self.numbers(features))


class NumericColumn(FeatureColumn):
    """The numbers of a feature; `default_value` and `dtype` were for the parsing of examples."""

    def __init__(self, key, shape=(1,), default_value=None, dtype=None, normalizer_fn=None):
        self.name, self.normalizer_fn, self.width = key, normalizer_fn, 1
        for size in [shape] if isinstance(shape, int) else shape:
            self.width *= size

    def dense(self, features):
        value = features[self.name]
        if self.normalizer_fn is not None:
            value = self.normalizer_fn(value)
        if tuple(value.shape[1:]) != (self.width,):
            value = tf.keras.layers.Reshape((self.width,))(value)
        if tf.as_dtype(value.dtype) != tf.float32:
            value = tf.keras.layers.Rescaling(1.0)(value)  # to float32
        return value


class BucketizedColumn(CategoricalColumn):
    """The bucket of a number; a boundary is in the bucket above it."""

    def __init__(self, source_column, boundaries):
        if source_column.width != 1:
            raise ValueError(f"the column {source_column.name} has several numbers")
        self.name, self.source, self.boundaries = f"{source_column.name}_bucketized", source_column, list(boundaries)
        self.size = len(self.boundaries) + 1

    def numbers(self, features):
        return tf.keras.layers.Discretization(self.boundaries)(self.source.dense(features))

    def dense(self, features):
        layer = tf.keras.layers.Discretization(self.boundaries, output_mode="one_hot")
        return layer(self.source.dense(features))


class VocabularyColumn(CategoricalColumn):
    """The index of a word or number in a list; others have a default, or a hash bucket behind the list."""

    def __init__(self, key, vocabulary_list, dtype=None, default_value=-1, num_oov_buckets=0):
        self.name, self.words = key, [tf.compat.as_str_any(word) for word in vocabulary_list]
        self.size = len(self.words) + num_oov_buckets
        self.default_value, self.num_oov_buckets = default_value, num_oov_buckets

    def numbers(self, features):
        return VocabularyNumbers(self.words, self.default_value, self.num_oov_buckets)(features[self.name])


class VocabularyFileColumn(VocabularyColumn):
    """The number of the line that is a word, in a file or its first lines."""

    def __init__(
        self, key, vocabulary_file, vocabulary_size=None, *, dtype=None, default_value=None, num_oov_buckets=0
    ):
        with tf.io.gfile.GFile(vocabulary_file) as lines:
            words = [line.rstrip("\r\n") for line in lines][:vocabulary_size]
        super().__init__(key, words, dtype, -1 if default_value is None else default_value, num_oov_buckets)


class IdentityColumn(CategoricalColumn):
    """Integers that are categories; a default replaces those out of range."""

    def __init__(self, key, num_buckets, default_value=None):
        self.name, self.size, self.default_value = key, num_buckets, default_value

    def numbers(self, features):
        return IdentityNumbers(self.size, self.default_value)(features[self.name])


class HashedColumn(CategoricalColumn):
    """The hash of a word or an integer."""

    def __init__(self, key, hash_bucket_size, dtype=None):
        self.name, self.size = key, hash_bucket_size

    def numbers(self, features):
        return HashedNumbers(self.size)(features[self.name])


class CrossedColumn(CategoricalColumn):
    """The hash of the combined values of features and categorical columns."""

    def __init__(self, keys, hash_bucket_size, hash_key=None):
        self.leaves = [leaf for key in keys for leaf in getattr(key, "leaves", [key])]
        self.name = "_X_".join(sorted(leaf if isinstance(leaf, str) else leaf.name for leaf in self.leaves))
        self.size, self.hash_key = hash_bucket_size, hash_key

    def numbers(self, features):
        values = [features[leaf] if isinstance(leaf, str) else leaf.numbers(features) for leaf in self.leaves]
        layer = CrossedNumbers(self.size, self.hash_key, [isinstance(leaf, str) for leaf in self.leaves])
        return layer(values)


class IndicatorColumn(FeatureColumn):
    """How often each category occurs."""

    def __init__(self, categorical_column):
        self.source, self.name = categorical_column, f"{categorical_column.name}_indicator"

    def dense(self, features):
        encoded = operation("one_hot", self.source.numbers(features), self.source.size)
        return operation("reduce_sum", encoded, axis=1)


class EmbeddingColumn(FeatureColumn):
    """The combined vectors of the categories."""

    def __init__(self, categorical_column, dimension, combiner="mean", initializer=None, *, trainable=True):
        self.source, self.name = categorical_column, f"{categorical_column.name}_embedding"
        self.dimension, self.combiner, self.trainable = dimension, combiner, trainable
        self.initializer = initializer or tf.keras.initializers.TruncatedNormal(stddev=dimension**-0.5)

    def dense(self, features):
        layer = CategoryWeights(
            self.source.size, self.dimension, self.combiner, initializer=self.initializer, trainable=self.trainable
        )
        return layer(self.source.numbers(features))


class ReadFeatures(dict):
    """Keras inputs by their names, and in the attribute `read` those that columns have read."""

    def __init__(self, features):
        super().__init__(features)
        self.read = []  # not a dict: of data with more features than that, Keras 3 would take the first

    def __getitem__(self, name):
        value = super().__getitem__(name)
        if not any(other is value for other in self.read):
            self.read.append(value)
        return value


def sorted_columns(feature_columns):
    """Return columns in the order of their names, in which TensorFlow computed them."""
    columns = [feature_columns] if isinstance(feature_columns, FeatureColumn) else list(feature_columns)
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise ValueError(f"two columns have the same name: {sorted(names)}")
    return sorted(columns, key=lambda column: column.name)


def dense_columns(features, feature_columns):
    """Return the numbers of columns beside each other, [batch, width], as `input_layer` did."""
    parts = [column.dense(features) for column in sorted_columns(feature_columns)]
    return parts[0] if len(parts) == 1 else tf.keras.layers.Concatenate()(parts)


def linear_columns(features, feature_columns, units=1, sparse_combiner="sum"):
    """Return the sum of weighted columns and a bias, [batch, units], as `linear_model` did."""
    columns = enumerate(sorted_columns(feature_columns))
    parts = [column.linear(features, units, sparse_combiner, position == 0) for position, column in columns]
    return parts[0] if len(parts) == 1 else tf.keras.layers.Add()(parts)


@tf.keras.utils.register_keras_serializable()
class WideAndDeepModel(tf.keras.Model):
    """A model with a second optimizer, for its linear part; both take the gradients of one loss."""

    def compile(self, *, linear_optimizer, linear_variables, **options):
        super().compile(**options)
        self.mean_loss = BatchMean(name="loss")
        self.linear_optimizer, linear = linear_optimizer, {id(variable) for variable in linear_variables}
        self.is_linear = [id(variable) in linear for variable in self.trainable_variables]
        for optimizer, pairs in self.of_optimizers(self.trainable_variables):
            optimizer.build([variable for _, variable in pairs])

    def of_optimizers(self, gradients):
        """Return each optimizer with its gradients and variables."""
        pairs = list(zip(self.is_linear, gradients, self.trainable_variables, strict=True))
        parts = [[pair for is_linear, *pair in pairs if is_linear is part] for part in (False, True)]
        return zip([self.optimizer, self.linear_optimizer], parts, strict=True)

    def compute_loss(self, *arguments, **options):
        loss = super().compute_loss(*arguments, **options)
        self.mean_loss.update_state(loss)
        return loss

    def train_step(self, data):
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight)
        for optimizer, pairs in self.of_optimizers(tape.gradient(loss, self.trainable_variables)):
            optimizer.apply_gradients(pairs)
        return self.compute_metrics(x, y, y_pred, sample_weight)


class CategoryLayer(tf.keras.layers.Layer):
    """A layer of categories, with its arguments in the attribute `options`."""

    def __init__(self, options, layer):
        super().__init__(**layer)
        self.options, self.supports_jit = options, False  # XLA has no strings

    def get_config(self):
        return {**super().get_config(), **self.options}


def saved_columns(value):
    """Return params with feature columns as their arguments, for the configuration of a model."""
    if isinstance(value, FeatureColumn):
        return {"column": type(value).__name__, "arguments": saved_columns(value.arguments)}
    if isinstance(value, dict):
        return {key: saved_columns(item) for key, item in value.items()}
    if isinstance(value, tf.keras.initializers.Initializer):
        return tf.keras.initializers.serialize(value)
    if isinstance(value, tf.DType):
        return value.name
    return [saved_columns(item) for item in value] if isinstance(value, (list, tuple)) else value


def loaded_columns(value):
    """Return the params of the result of `saved_columns`."""
    if isinstance(value, dict) and value.keys() == {"column", "arguments"}:
        arguments, options = loaded_columns(value["arguments"])
        return globals()[value["column"]](*arguments, **options)
    if isinstance(value, dict):
        return {key: loaded_columns(item) for key, item in value.items()}
    return [loaded_columns(item) for item in value] if isinstance(value, (list, tuple)) else value


@tf.keras.utils.register_keras_serializable()
class VocabularyNumbers(CategoryLayer):
    """Indexes of words in a list, [batch, values]."""

    def __init__(self, words, default_value, num_oov_buckets, **layer):
        super().__init__(
            {"words": list(words), "default_value": default_value, "num_oov_buckets": num_oov_buckets}, layer
        )
        self.lookup = tf.keras.layers.StringLookup(vocabulary=words, num_oov_indices=max(num_oov_buckets, 1))

    def build(self, input_shape):
        self.lookup.build(input_shape)
        super().build(input_shape)

    def call(self, inputs):
        text, missing = category_text(inputs)
        # Keras numbers the buckets of unknown words before those of the list, TensorFlow behind it.
        indexes = tf.cast(self.lookup(text), tf.int64)
        ahead, size, buckets = self.lookup.num_oov_indices, len(self.options["words"]), self.options["num_oov_buckets"]
        unknown = (
            indexes + size if buckets else tf.fill(tf.shape(indexes), tf.cast(self.options["default_value"], "int64"))
        )
        return tf.where(missing, tf.cast(-2, tf.int64), tf.where(indexes < ahead, unknown, indexes - ahead))


@tf.keras.utils.register_keras_serializable()
class IdentityNumbers(CategoryLayer):
    """Integers that are categories, [batch, values]."""

    def __init__(self, size, default_value, **layer):
        super().__init__({"size": size, "default_value": default_value}, layer)

    def call(self, inputs):
        _, missing = category_text(inputs)
        numbers, default = tf.reshape(tf.cast(inputs, tf.int64), tf.shape(missing)), self.options["default_value"]
        outside = (numbers < 0) | (numbers >= self.options["size"])
        if default is None:
            tf.debugging.assert_equal(outside & ~missing, False, "a category that is out of range")
        else:
            numbers = tf.where(outside, tf.cast(default, tf.int64), numbers)
        return tf.where(missing, tf.cast(-2, tf.int64), numbers)


@tf.keras.utils.register_keras_serializable()
class HashedNumbers(CategoryLayer):
    """Hashes of words or integers, [batch, values]."""

    def __init__(self, size, **layer):
        super().__init__({"size": size}, layer)

    def call(self, inputs):
        text, missing = category_text(inputs)
        hashed = tf.strings.to_hash_bucket_fast(text, self.options["size"])
        return tf.where(missing, tf.cast(-2, tf.int64), hashed)


@tf.keras.utils.register_keras_serializable()
class CrossedNumbers(CategoryLayer):
    """Hashes of combinations of a list of features, which are used as they are, and numbers of categories."""

    def __init__(self, size, hash_key, raw, **layer):
        super().__init__({"size": size, "hash_key": hash_key, "raw": raw}, layer)

    def call(self, inputs):
        parts = []
        for value, raw in zip(inputs, self.options["raw"], strict=True):
            value = value if value.dtype == tf.string else tf.cast(value, tf.int64)
            value = value if value.shape.rank > 1 else value[:, tf.newaxis]
            if not raw:  # unknown categories are combined, missing ones are not
                places = tf.where(value > -2)
                value = tf.SparseTensor(places, tf.gather_nd(value, places), tf.shape(value, tf.int64))
            parts.append(value)
        crossed = tf.sparse.cross_hashed(parts, self.options["size"], self.options["hash_key"])
        return tf.sparse.to_dense(crossed, -2)


@tf.keras.utils.register_keras_serializable()
class CategoryWeights(CategoryLayer):
    """The mean, sqrtn or sum of the rows of a table for categories [batch, values], without those below 0."""

    def __init__(self, size, units, combiner, use_bias=False, initializer="zeros", **layer):
        start = tf.keras.initializers.get(initializer)
        options = {"size": size, "units": units, "combiner": combiner, "use_bias": use_bias}
        super().__init__({**options, "initializer": tf.keras.initializers.serialize(start)}, layer)
        self.initializer = start

    def build(self, input_shape):
        shape = (self.options["size"], self.options["units"])
        self.table = self.add_weight(name="table", shape=shape, initializer=self.initializer)
        if self.options["use_bias"]:
            self.bias = self.add_weight(name="bias", shape=shape[1:], initializer="zeros")
        super().build(input_shape)

    def call(self, inputs):
        known = tf.cast(inputs >= 0, tf.float32)[..., tf.newaxis]
        # The product makes the gradient dense: Keras 3 would square those of a row that a batch has twice one by one.
        table = tf.convert_to_tensor(self.table) * 1.0
        total = tf.reduce_sum(tf.gather(table, tf.maximum(inputs, 0)) * known, axis=1)
        if self.options["combiner"] != "sum":
            count = tf.reduce_sum(known, axis=1)
            total = tf.math.divide_no_nan(total, tf.sqrt(count) if self.options["combiner"] == "sqrtn" else count)
        return total + self.bias if self.options["use_bias"] else total


def category_text(value):
    """Return the text of values, [batch, values], and which are missing."""
    value = value if value.shape.rank > 1 else value[:, tf.newaxis]
    text = value if value.dtype == tf.string else tf.strings.as_string(value)
    return text, tf.equal(text, "" if value.dtype == tf.string else "-1")
