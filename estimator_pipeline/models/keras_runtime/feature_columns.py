"""Feature columns as Keras preprocessing layers, with the names and arguments of `tf.feature_column`.

A column converts a dict of features: `encoded(features)` returns numbers [B, k] for a network, `ids(features)` category
ids [B, k], -1 for a value that is not in the vocabulary and -2 for a missing value. Hashes, buckets and the order of
vocabularies are those of `tf.feature_column`, so trained weights can be used with both. `feature_layer` concatenates
columns sorted by name, as `input_layer` and `DenseFeatures` do.

Source: docs/reference/migrate-equals.md, which names the test of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = [
    "Column", "bucketized_column", "categorical_column_with_hash_bucket", "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file", "categorical_column_with_vocabulary_list", "crossed_column",
    "embedding_column", "feature_layer", "indicator_column", "make_parse_example_spec", "numeric_column",
]  # fmt: skip


class Column:
    """A feature column.

    Attributes:
        name: The sort key of the column and the prefix of its weights.
        size: The number of categories; 0 for a numeric column.
        layers: The Keras layers of the column.
    """

    name = ""
    size = 0
    layers: Sequence[Any] = ()

    def ids(self, features: Mapping[str, Any]) -> Any:
        """Return category ids [B, k]: -1 for a value that is not in the vocabulary, -2 for a missing value."""
        raise ConfigError(
            f"the column {self.name} has no categories",
            code="argument/bad-value",
            hint="use bucketized_column to make categories from numbers",
        )

    def encoded(self, features: Mapping[str, Any], weights: Any = None) -> Any:
        """Return numbers [B, k]."""
        raise ConfigError(
            f"the column {self.name} is categorical, and a network takes numbers",
            code="argument/bad-value",
            hint="wrap it in embedding_column or indicator_column",
        )

    def parsed(self) -> dict[str, Any]:
        """Return the feature spec for `tf.io.parse_example`."""
        return {}

    def add_weights(self, layer: Any) -> Any:
        """Create the column's weights in a layer, which passes them to `encoded`; None if it has no weights."""
        return None


def _feature(features: Mapping[str, Any], key: str) -> Any:
    """Return a feature as a tensor [B, k]; missing values of a sparse feature are "" or -1."""
    tf = compat.tensorflow()
    if key not in features:
        raise ConfigError(
            f"there is no feature {key!r}", code="data/missing-feature", found=", ".join(sorted(features))
        )
    value = features[key]
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value, default_value="" if value.dtype == tf.string else -1)
    value = tf.convert_to_tensor(value)
    return value[:, tf.newaxis] if value.shape.rank == 1 else value


class _Numeric(Column):
    def __init__(self, key: str, width: int, normalize: Callable[[Any], Any] | None, spec: Any) -> None:
        self.name, self.width, self.normalize, self.spec = key, width, normalize, spec

    def parsed(self) -> dict[str, Any]:
        return {self.name: self.spec}

    def encoded(self, features: Mapping[str, Any], weights: Any = None) -> Any:
        tf = compat.tensorflow()
        value = _feature(features, self.name)
        if self.normalize is not None:
            value = self.normalize(value)
        return tf.reshape(tf.cast(value, tf.float32), [-1, self.width])


def numeric_column(
    key: str,
    shape: int | Sequence[int] = (1,),
    default_value: Any = None,
    dtype: Any = None,
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> Column:
    """Return a column of numbers, optionally normalized. `default_value` and `dtype` apply only to parsing."""
    tf = compat.tensorflow()
    sizes = [shape] if isinstance(shape, int) else list(shape)
    width = 1
    for size in sizes:
        width *= size
    if default_value is not None and not isinstance(default_value, list | tuple):
        default_value = [default_value] * width
    spec = tf.io.FixedLenFeature(sizes, dtype or tf.float32, default_value)
    return _Numeric(key, width, normalizer_fn, spec)


class _Bucketized(Column):
    def __init__(self, source: Column, boundaries: Sequence[float]) -> None:
        self.source = source
        self.name = f"{source.name}_bucketized"
        self.size = len(boundaries) + 1
        self.layer = compat.tensorflow().keras.layers.Discretization(list(boundaries))
        self.layers = [self.layer, *source.layers]

    def parsed(self) -> dict[str, Any]:
        return self.source.parsed()

    def ids(self, features: Mapping[str, Any]) -> Any:
        tf = compat.tensorflow()
        return tf.cast(self.layer(self.source.encoded(features)), tf.int64)

    def encoded(self, features: Mapping[str, Any], weights: Any = None) -> Any:
        return _counted(self.ids(features), self.size)


def bucketized_column(source_column: Column, boundaries: Sequence[float]) -> Column:
    """Return a column with the bucket of a number; a boundary belongs to the bucket above it."""
    if getattr(source_column, "width", 0) != 1:
        raise ConfigError(
            f"the column {source_column.name} is not a single number",
            code="argument/bad-value",
            hint="use numeric_column(key)",
        )
    return _Bucketized(source_column, boundaries)


def _counted(ids: Any, size: int) -> Any:
    """Count the occurrences of each category: [B, k] -> [B, size]."""
    tf = compat.tensorflow()
    return tf.reduce_sum(tf.one_hot(ids, size), axis=1)


class _Category(Column):
    """A categorical column whose ids are a function of the feature's values [B, k]."""

    def __init__(
        self, key: str, size: int, number: Callable[[Any], Any], dtype: Any, layers: Sequence[Any] = ()
    ) -> None:
        self.name, self.size, self.number, self.dtype, self.layers = key, size, number, dtype, layers

    def parsed(self) -> dict[str, Any]:
        return {self.name: compat.tensorflow().io.VarLenFeature(self.dtype)}

    def ids(self, features: Mapping[str, Any]) -> Any:
        tf = compat.tensorflow()
        value = _feature(features, self.name)
        missing = tf.equal(value, "" if value.dtype == tf.string else tf.constant(-1, value.dtype))
        ids = tf.cast(self.number(value), tf.int64)
        return tf.where(missing, tf.constant(-2, tf.int64), ids)


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[Any],
    dtype: Any = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> Column:
    """Return a column with the index of a word in a list.

    Other words get `default_value`, or are hashed into buckets after the list.
    """
    tf = compat.tensorflow()
    words = list(vocabulary_list)
    texts = isinstance(words[0], str | bytes)
    # tf.feature_column hashes the text of a number; IntegerLookup would hash the number.
    known = words if texts else [str(word) for word in words]
    lookup = tf.keras.layers.StringLookup(vocabulary=known, num_oov_indices=max(num_oov_buckets, 1))
    number = _looked_up(lookup, len(words), default_value, num_oov_buckets, texts)
    return _Category(key, len(words) + num_oov_buckets, number, tf.string if texts else tf.int64, [lookup])


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str,
    vocabulary_size: int | None = None,
    dtype: Any = None,
    default_value: int | None = None,
    num_oov_buckets: int = 0,
) -> Column:
    """Return a vocabulary column from a file with one word per line, or its first `vocabulary_size` lines."""
    tf = compat.tensorflow()
    with tf.io.gfile.GFile(vocabulary_file) as lines:
        words = [line.rstrip("\r\n") for line in lines][:vocabulary_size]
    if dtype is not None and tf.as_dtype(dtype).is_integer:
        words = [int(word) for word in words]
    default = -1 if default_value is None else default_value
    return categorical_column_with_vocabulary_list(key, words, dtype, default, num_oov_buckets)


def _looked_up(lookup: Any, size: int, default: int, buckets: int, texts: bool) -> Callable[[Any], Any]:
    """Return a lookup function with the unknown words after the list, where Keras puts them before it."""
    ahead = max(buckets, 1)

    def number(value: Any) -> Any:
        tf = compat.tensorflow()
        ids = tf.cast(lookup(value if texts else tf.strings.as_string(value)), tf.int64)
        behind = ids + size if buckets else tf.fill(tf.shape(ids), tf.constant(default, tf.int64))
        return tf.where(ids < ahead, behind, ids - ahead)

    return number


def categorical_column_with_identity(key: str, num_buckets: int, default_value: int | None = None) -> Column:
    """Return a column whose values are category ids; a value out of range is `default_value`, or an error."""

    def number(value: Any) -> Any:
        tf = compat.tensorflow()
        value = tf.cast(value, tf.int64)
        beyond = (value < 0) | (value >= num_buckets)
        if default_value is not None:
            return tf.where(beyond, tf.constant(default_value, tf.int64), value)
        beyond &= value != -1
        check = tf.debugging.assert_equal(tf.reduce_any(beyond), False, f"{key}: a number beyond the buckets")
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(value)

    return _Category(key, num_buckets, number, compat.tensorflow().int64)


def categorical_column_with_hash_bucket(key: str, hash_bucket_size: int, dtype: Any = None) -> Column:
    """Return a column with the hash of a word; the empty string is a missing value."""
    tf = compat.tensorflow()
    layer = tf.keras.layers.Hashing(hash_bucket_size)
    return _Category(key, hash_bucket_size, layer, dtype or tf.string, [layer])


class _Crossed(Column):
    leaves: list[str | Column]

    def __init__(self, keys: Sequence[str | Column], size: int, hash_key: int | None) -> None:
        self.keys, self.size, self.hash_key = list(keys), size, hash_key
        leaves: list[str | Column] = []
        for key in self.keys:
            leaves += key.leaves if isinstance(key, _Crossed) else [key]
        self.leaves = leaves
        self.layers = [layer for leaf in leaves if not isinstance(leaf, str) for layer in leaf.layers]
        self.name = "_X_".join(sorted(key if isinstance(key, str) else key.name for key in leaves))

    def parsed(self) -> dict[str, Any]:
        tf = compat.tensorflow()
        spec: dict[str, Any] = {}
        for leaf in self.leaves:
            spec |= {leaf: tf.io.VarLenFeature(tf.string)} if isinstance(leaf, str) else leaf.parsed()
        return spec

    def ids(self, features: Mapping[str, Any]) -> Any:
        tf = compat.tensorflow()
        parts = []
        for leaf in self.leaves:
            if isinstance(leaf, str):  # used directly: an empty string of a dense feature is a value
                value = features[leaf]
                value = value if isinstance(value, tf.SparseTensor) else _feature(features, leaf)
                parts.append(value if value.dtype == tf.string else tf.cast(value, tf.int64))
                continue
            value = leaf.ids(features)
            places = tf.where(value >= -1)  # values that are not in the vocabulary are crossed, too
            shape = tf.shape(value, out_type=tf.int64)
            parts.append(tf.SparseTensor(places, tf.gather_nd(value, places), shape))
        key = {} if self.hash_key is None else {"hash_key": self.hash_key}
        crossed = tf.sparse.cross_hashed(parts, num_buckets=self.size, **key)
        return tf.sparse.to_dense(crossed, default_value=-2)


def crossed_column(keys: Sequence[str | Column], hash_bucket_size: int, hash_key: int | None = None) -> Column:
    """Return a column with the hash of the combined values of several columns."""
    return _Crossed(keys, hash_bucket_size, hash_key)


class _Indicator(Column):
    def __init__(self, of: Column) -> None:
        self.of, self.name, self.layers = of, f"{of.name}_indicator", of.layers

    def parsed(self) -> dict[str, Any]:
        return self.of.parsed()

    def encoded(self, features: Mapping[str, Any], weights: Any = None) -> Any:
        return _counted(self.of.ids(features), self.of.size)


def indicator_column(categorical_column: Column) -> Column:
    """Return a column with the number of occurrences of each category."""
    return _Indicator(categorical_column)


class _Embedding(Column):
    def __init__(self, of: Column, dimension: int, combiner: str, initializer: Any, trainable: bool) -> None:
        if combiner not in ("mean", "sqrtn", "sum"):
            raise ConfigError(
                f"the combiner {combiner!r} is not known",
                code="argument/unknown-name",
                found="mean, sqrtn, sum",
            )
        self.of, self.dimension, self.combiner, self.trainable = of, dimension, combiner, trainable
        self.initializer = initializer
        self.name, self.layers = f"{of.name}_embedding", of.layers

    def parsed(self) -> dict[str, Any]:
        return self.of.parsed()

    def add_weights(self, layer: Any) -> Any:
        tf = compat.tensorflow()
        initializer = self.initializer or tf.keras.initializers.TruncatedNormal(stddev=self.dimension**-0.5)
        return layer.add_weight(
            name=f"{self.name}/embedding_weights", shape=[self.of.size, self.dimension], initializer=initializer,
            trainable=self.trainable,
        )  # fmt: skip

    def encoded(self, features: Mapping[str, Any], weights: Any = None) -> Any:
        tf = compat.tensorflow()
        ids = self.of.ids(features)
        there = tf.cast(ids >= 0, tf.float32)[..., tf.newaxis]
        total = tf.reduce_sum(tf.gather(weights, tf.maximum(ids, 0)) * there, axis=1)
        count = tf.reduce_sum(there, axis=1)
        if self.combiner == "sum":
            return total
        return tf.math.divide_no_nan(total, count if self.combiner == "mean" else tf.sqrt(count))


def embedding_column(
    categorical_column: Column,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    trainable: bool = True,
) -> Column:
    """Return a column with the combined embedding vectors of the categories."""
    return _Embedding(categorical_column, dimension, combiner, initializer, trainable)


def make_parse_example_spec(feature_columns: Sequence[Column]) -> dict[str, Any]:
    """Return the feature spec of all columns for `tf.io.parse_example`."""
    spec: dict[str, Any] = {}
    for column in feature_columns:
        spec |= column.parsed()
    return spec


def feature_layer(columns: Sequence[Column], name: str | None = None) -> Any:
    """Return a Keras layer from a dict of features to [B, k]: the columns, sorted by name."""
    tf = compat.tensorflow()
    chosen = sorted(columns, key=lambda column: column.name)
    names = [column.name for column in chosen]
    if len(set(names)) < len(names):
        raise ConfigError("two feature columns have the same name", code="argument/conflict", found=", ".join(names))

    class FeatureLayer(tf.keras.layers.Layer):  # type: ignore[misc,name-defined]
        """The concatenated columns, sorted by name."""

        def build(self, input_shape: Any) -> None:
            self.parts = [layer for column in chosen for layer in column.layers]
            self.tables = {column.name: column.add_weights(self) for column in chosen}
            super().build(input_shape)

        def call(self, features: Mapping[str, Any]) -> Any:
            return tf.concat([column.encoded(features, self.tables[column.name]) for column in chosen], axis=-1)

    return FeatureLayer(name=name)


def linear_model(columns: Sequence[Column], units: int = 1, sparse_combiner: str = "sum") -> Any:
    """Return a Keras layer with a linear model of the columns: a weight for each category or number, and a bias."""
    tf = compat.tensorflow()
    chosen = sorted(columns, key=lambda column: column.name)

    class LinearModel(tf.keras.layers.Layer):  # type: ignore[misc,name-defined]
        """The linear part of canned Estimators."""

        def build(self, input_shape: Any) -> None:
            self.parts = [layer for column in chosen for layer in column.layers]
            self.kernels = {
                column.name: self.add_weight(
                    name=f"{column.name}/weights", shape=[column.size or getattr(column, "width", 1), units],
                    initializer="zeros",
                )
                for column in chosen
            }  # fmt: skip
            self.bias = self.add_weight(name="bias_weights", shape=[units], initializer="zeros")
            super().build(input_shape)

        def call(self, features: Mapping[str, Any]) -> Any:
            return tf.add_n([self.part(column, features) for column in chosen]) + self.bias

        def part(self, column: Column, features: Mapping[str, Any]) -> Any:
            if not column.size:
                return tf.matmul(column.encoded(features), self.kernels[column.name])
            ids = column.ids(features)
            there = tf.cast(ids >= 0, tf.float32)[..., tf.newaxis]
            total = tf.reduce_sum(tf.gather(self.kernels[column.name], tf.maximum(ids, 0)) * there, axis=1)
            count = tf.reduce_sum(there, axis=1)
            if sparse_combiner == "sum":
                return total
            return tf.math.divide_no_nan(total, count if sparse_combiner == "mean" else tf.sqrt(count))

    return LinearModel(name="linear_model")
