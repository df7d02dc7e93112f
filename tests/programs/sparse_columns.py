"""A canned Estimator with columns of text, trained by one process or by the workers of TF_CONFIG.

    sparse_columns.py KIND MODEL_DIR MAX_STEPS

KIND: linear, dnn, combined, regressor, keras. Batches of 24 records in all, whatever the number of workers; how many
different words a worker's part has changes from step to step, and some parts have none.
"""

import os
import sys

import numpy as np
import tensorflow as tf

fc = tf.feature_column
kind, model_dir, max_steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
BATCH, BATCHES = 24, 30
WORDS = ["red", "green", "blue", "black", "white", "grey"]

chance = np.random.default_rng(3)
# Of each batch so many words; "" is a column's missing value.
word = np.array([WORDS[i] for some in chance.integers(1, 7, BATCHES) for i in chance.integers(0, some, BATCH)])
word[BATCH // 2 : BATCH] = ""  # the second worker's first part
word[2 * BATCH : 2 * BATCH + BATCH // 3] = ""
age = chance.integers(18, 80, BATCH * BATCHES).astype("float32")
label = ((age > 40) ^ (word == "red")).astype("int64")[:, np.newaxis]


def input_fn(input_context=None):
    workers, index = (input_context.num_input_pipelines, input_context.input_pipeline_id) if input_context else (1, 0)
    own = BATCH // workers
    data = tf.data.Dataset.from_tensor_slices(({"word": word, "term": word, "age": age}, label)).repeat()
    # Each worker its part of every batch.
    data = data.batch(BATCH, drop_remainder=True).map(
        lambda features, y: ({k: v[index * own :][:own] for k, v in features.items()}, y[index * own :][:own])
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options)


numbers = fc.numeric_column("age", normalizer_fn=lambda x: x / 50)
buckets = fc.bucketized_column(fc.numeric_column("age"), [30, 40, 50])
listed = fc.categorical_column_with_vocabulary_list("word", WORDS[:-1], num_oov_buckets=2)
hashed = fc.categorical_column_with_hash_bucket("term", 20)
crossed = fc.crossed_column([buckets, "word"], 40)
wide = [listed, hashed, crossed, buckets]
deep = [numbers, fc.embedding_column(listed, 3), fc.embedding_column(hashed, 4)]
deep += [fc.embedding_column(crossed, 2, combiner="sqrtn")]


def keras_model_fn(features, labels, mode):
    """An embedding of Keras and one of tf.gather, side by side."""
    v1 = tf.compat.v1
    ids = tf.strings.to_hash_bucket_fast(features["word"], 20)
    ids, place = tf.unique(ids)
    hidden = tf.gather(tf.keras.layers.Embedding(20, 4, name="table")(ids), place)
    hidden += tf.nn.embedding_lookup(v1.get_variable("other", [20, 4]), tf.gather(ids, place))
    logits = v1.layers.dense(tf.concat([hidden, features["age"][:, tf.newaxis] / 50], axis=1), 1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits))
    step = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


strategy = tf.distribute.MultiWorkerMirroredStrategy() if os.environ.get("TF_CONFIG") else None
config = tf.estimator.RunConfig(model_dir, save_checkpoints_steps=20, train_distribute=strategy)
if kind == "linear":
    estimator = tf.estimator.LinearClassifier(wide, config=config)
elif kind == "dnn":
    estimator = tf.estimator.DNNClassifier([8], deep, config=config)
elif kind == "combined":
    estimator = tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide, dnn_feature_columns=deep, dnn_hidden_units=[8], config=config
    )
elif kind == "regressor":
    estimator = tf.estimator.DNNLinearCombinedRegressor(
        linear_feature_columns=wide, dnn_feature_columns=deep, dnn_hidden_units=[8], config=config
    )
else:
    estimator = tf.estimator.Estimator(keras_model_fn, config=config)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(input_fn, max_steps=max_steps),
    tf.estimator.EvalSpec(lambda: input_fn().take(5), steps=None),
)
