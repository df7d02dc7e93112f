"""Features of tables: from columns as they are in files to the inputs of a model.

    features = analyse(records, plan, …)    # once: statistics and vocabularies of the training records
    inputs = features.bind(tf)(columns)     # in the input pipeline, and in the exported model

The meaning of each kind is that of `tf.feature_column` and of Keras' preprocessing layers:

=============== ===================================== =============================================
kind            tf.feature_column                     Keras
=============== ===================================== =============================================
`numeric`       `numeric_column(normalizer_fn=...)`   `Normalization`, `Rescaling`
`categorical`   `categorical_column_with_vocabulary_  `StringLookup(num_oov_indices=...)`, but ids
                list(num_oov_buckets=...)`            out of the vocabulary come last
  by a hash     `..._with_hash_bucket`                `Hashing`
`bucketized`    `bucketized_column`                   `Discretization`
`crossed`       `crossed_column`                      `HashedCrossing`
=============== ===================================== =============================================

Like Keras' `FeatureSpace`, the transformation runs in the input pipeline during training and in the model when it is
served. A network therefore has numbers and ids as inputs in every engine.
"""

from __future__ import annotations
