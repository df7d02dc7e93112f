"""Feature columns."""

from __future__ import annotations

from estimator_pipeline.migrate.code.catalogue.row import Row, table

__all__ = ["ROWS"]

_COLUMNS = table(
    "feature column",
    "tf.feature_column.",
    (
        ("bucketized_column", "tf.keras.layers.Discretization", "tf.keras.layers.Discretization(boundaries)"),
        ("categorical_column_with_hash_bucket", "tf.keras.layers.Hashing",
         "tf.keras.layers.Hashing(hash_bucket_size)  # another hash: its buckets are not those of the column"),
        ("categorical_column_with_identity", "tf.keras.layers.CategoryEncoding or Embedding",
         "tf.keras.layers.CategoryEncoding(num_buckets)"),
        ("categorical_column_with_vocabulary_file", "tf.keras.layers.StringLookup",
         "tf.keras.layers.StringLookup(vocabulary=path, num_oov_indices=n)"),
        ("categorical_column_with_vocabulary_list", "tf.keras.layers.StringLookup or IntegerLookup",
         "tf.keras.layers.StringLookup(vocabulary=words, num_oov_indices=n)"),
        ("crossed_column", "tf.keras.layers.HashedCrossing", "tf.keras.layers.HashedCrossing(hash_bucket_size)"),
        ("embedding_column", "tf.keras.layers.Embedding", "tf.keras.layers.Embedding(n, dimension)(ids)"),
        ("indicator_column", "tf.keras.layers.CategoryEncoding",
         "tf.keras.layers.CategoryEncoding(n, output_mode='multi_hot')"),
        ("make_parse_example_spec", "the same function, or a dict", "{'x': tf.io.FixedLenFeature([1], tf.float32)}"),
        ("numeric_column", "the feature itself, or tf.keras.layers.Normalization",
         "tf.keras.layers.Normalization(mean=mean, variance=variance)(x)"),
        ("sequence_categorical_column_with_hash_bucket", "tf.keras.layers.Hashing", "tf.keras.layers.Hashing(n)"),
        ("sequence_categorical_column_with_identity", "tf.keras.layers.Embedding with a mask",
         "tf.keras.layers.Embedding(n, dimension, mask_zero=True)"),
        ("sequence_categorical_column_with_vocabulary_file", "tf.keras.layers.StringLookup",
         "tf.keras.layers.StringLookup(vocabulary=path, mask_token='')"),
        ("sequence_categorical_column_with_vocabulary_list", "tf.keras.layers.StringLookup",
         "tf.keras.layers.StringLookup(vocabulary=words, mask_token='')"),
        ("sequence_numeric_column", "the feature itself, padded", "x.to_tensor()"),
        ("shared_embeddings", "one tf.keras.layers.Embedding called several times",
         "embedding = tf.keras.layers.Embedding(n, dimension)\na, b = embedding(ids_a), embedding(ids_b)"),
        ("weighted_categorical_column", "count_weights of tf.keras.layers.CategoryEncoding",
         "tf.keras.layers.CategoryEncoding(n, output_mode='count')(ids, count_weights=weights)"),
    ),
)  # fmt: skip

# TensorFlow 2 has these only below tf.compat.v1.
_V1 = table(
    "feature column",
    "tf.compat.v1.feature_column.",
    (
        ("input_layer", "tf.keras.layers.DenseFeatures of Keras 2, or preprocessing layers",
         "x = tf.keras.layers.DenseFeatures(columns)(features)"),
        ("linear_model", "tf.keras.layers.DenseFeatures of Keras 2 and a Dense layer",
         "tf.keras.layers.Dense(units)(tf.keras.layers.DenseFeatures(columns)(features))"),
        ("shared_embedding_columns", "one tf.keras.layers.Embedding called several times",
         "embedding = tf.keras.layers.Embedding(n, dimension)\na, b = embedding(ids_a), embedding(ids_b)"),
    ),
)  # fmt: skip

# The names of feature columns before TensorFlow 1.4.
_OLD = tuple(
    Row(
        f"tf.contrib.layers.{old}",
        "contrib",
        f"tf.feature_column.{new}",
        f"tf.feature_column.{new}(...)",
        runs=False,
    )
    for old, new in (
        ("real_valued_column", "numeric_column"),
        ("sparse_column_with_hash_bucket", "categorical_column_with_hash_bucket"),
        ("sparse_column_with_integerized_feature", "categorical_column_with_identity"),
        ("sparse_column_with_keys", "categorical_column_with_vocabulary_list"),
        ("sparse_column_with_vocabulary_file", "categorical_column_with_vocabulary_file"),
        ("one_hot_column", "indicator_column"),
        ("embedding_column", "embedding_column"),
        ("crossed_column", "crossed_column"),
        ("bucketized_column", "bucketized_column"),
        ("create_feature_spec_for_parsing", "make_parse_example_spec"),
        ("input_from_feature_columns", "input_layer"),
        ("weighted_sum_from_feature_columns", "linear_model"),
    )
)

ROWS = (*_COLUMNS, *_V1, *_OLD)
