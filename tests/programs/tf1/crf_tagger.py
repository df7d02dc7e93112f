"""A tagger of 2018: a vocabulary's table, two LSTMs of one operation each, a CRF.

    crf_tagger.py MODEL_DIR
"""

import functools
import json
import random
import sys

import tensorflow as tf

TAGS = ["O", "B", "I"]
WORDS = ["the", "a", "of", "in", "mr", "ann", "bob", "eve"]
NAMES = ["ann", "bob", "eve"]


def sentences(count, seed):
    """A name begins with "mr": what follows it is I; a name alone is B."""
    draw = random.Random(seed)
    for _ in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(3, 9))]
        tags = []
        for index, word in enumerate(words):
            after = index and words[index - 1] == "mr"
            tags.append("B" if word == "mr" else "I" if word in NAMES and after else "B" if word in NAMES else "O")
        yield words, tags


def generator_fn(count, seed):
    for words, tags in sentences(count, seed):
        yield (words, len(words)), tags


def input_fn(count, seed, training):
    shapes = (([None], ()), [None])
    types = ((tf.string, tf.int32), tf.string)
    dataset = tf.data.Dataset.from_generator(
        functools.partial(generator_fn, count, seed), output_shapes=shapes, output_types=types
    )
    if training:
        dataset = dataset.shuffle(count).repeat()
    return dataset.padded_batch(20, shapes, (("<pad>", 0), "O")).prefetch(1)


def model_fn(features, labels, mode, params):
    words, lengths = features
    training = mode == tf.estimator.ModeKeys.TRAIN
    ids = tf.contrib.lookup.index_table_from_tensor(WORDS, num_oov_buckets=1).lookup(words)
    embeddings = tf.get_variable("embeddings", [len(WORDS) + 1, 8], initializer=tf.random_normal_initializer())
    net = tf.transpose(tf.nn.embedding_lookup(embeddings, ids), perm=[1, 0, 2])
    forward = tf.contrib.rnn.LSTMBlockFusedCell(params["units"])
    backward = tf.contrib.rnn.TimeReversedFusedRNN(tf.contrib.rnn.LSTMBlockFusedCell(params["units"]))
    with tf.variable_scope("forward"):
        output_forward, _ = forward(net, dtype=tf.float32, sequence_length=lengths)
    with tf.variable_scope("backward"):
        output_backward, _ = backward(net, dtype=tf.float32, sequence_length=lengths)
    output = tf.transpose(tf.concat([output_forward, output_backward], axis=-1), perm=[1, 0, 2])
    output = tf.layers.dropout(output, rate=0.1, training=training)
    logits = tf.layers.dense(output, len(TAGS))
    transitions = tf.get_variable("crf", [len(TAGS), len(TAGS)], dtype=tf.float32)
    predicted, _ = tf.contrib.crf.crf_decode(logits, transitions, lengths)
    if mode == tf.estimator.ModeKeys.PREDICT:
        names = tf.contrib.lookup.index_to_string_table_from_tensor(TAGS)
        return tf.estimator.EstimatorSpec(mode, predictions={"tags": names.lookup(tf.to_int64(predicted))})
    tags = tf.contrib.lookup.index_table_from_tensor(TAGS).lookup(labels)
    likelihood, _ = tf.contrib.crf.crf_log_likelihood(logits, tags, lengths, transitions)
    loss = tf.reduce_mean(-likelihood)
    weights = tf.sequence_mask(lengths)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {
            "accuracy": tf.metrics.accuracy(tags, predicted, weights),
            "recall": tf.metrics.recall(tf.equal(tags, 2), tf.equal(predicted, 2), weights),
        }
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    train_op = tf.train.AdamOptimizer(0.02).minimize(loss, global_step=tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


tf.enable_eager_execution  # there, and not called
estimator = tf.estimator.Estimator(model_fn, sys.argv[1], tf.estimator.RunConfig(tf_random_seed=3), {"units": 16})
train_spec = tf.estimator.TrainSpec(lambda: input_fn(1000, 1, True), max_steps=150)
eval_spec = tf.estimator.EvalSpec(lambda: input_fn(200, 2, False), throttle_secs=1)
result, _ = tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
first = next(estimator.predict(lambda: input_fn(20, 4, False)))
words, tags = next(sentences(20, 4))
found = [tag.decode() for tag in first["tags"][: len(words)]]
print(json.dumps({"accuracy": float(result["accuracy"]), "recall": float(result["recall"]), "tags": found == tags}))
