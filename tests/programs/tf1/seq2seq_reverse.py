"""A program of 2017: an encoder and a decoder with attention, by rnn cells and tf.contrib.seq2seq.

    seq2seq_reverse.py MODEL_DIR
"""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow.contrib import rnn, seq2seq
from tensorflow.python.layers.core import Dense

START, END, SYMBOLS, LENGTH, UNITS = 1, 2, 12, 5, 48


def input_fn(seed, count, training):
    random = np.random.RandomState(seed)
    source = random.randint(3, SYMBOLS, (count, LENGTH)).astype("int32")
    target = np.concatenate([source[:, ::-1], np.full((count, 1), END, "int32")], axis=1)
    dataset = tf.data.Dataset.from_tensor_slices((source, target))
    if training:
        dataset = dataset.shuffle(count).repeat()
    return dataset.batch(64).make_one_shot_iterator().get_next()


def model_fn(features, labels, mode, params):
    batch = tf.shape(features)[0]
    embedding = tf.get_variable("embedding", [SYMBOLS, 16])
    cell = rnn.MultiRNNCell([rnn.DropoutWrapper(rnn.GRUCell(UNITS), output_keep_prob=1.0)])
    memory, state = tf.nn.dynamic_rnn(cell, tf.nn.embedding_lookup(embedding, features), dtype=tf.float32)
    attention = seq2seq.BahdanauAttention(UNITS, memory)
    decoder_cell = seq2seq.AttentionWrapper(rnn.GRUCell(UNITS), attention, attention_layer_size=UNITS)
    first = decoder_cell.zero_state(batch, tf.float32).clone(cell_state=state[0])
    projection = Dense(SYMBOLS, use_bias=False, name="projection")
    if mode == tf.estimator.ModeKeys.PREDICT:
        helper = seq2seq.GreedyEmbeddingHelper(embedding, tf.fill([batch], START), END)
        decoder = seq2seq.BasicDecoder(decoder_cell, helper, first, projection)
        outputs, _, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=LENGTH + 1)
        return tf.estimator.EstimatorSpec(mode, predictions=outputs.sample_id)
    inputs = tf.concat([tf.fill([batch, 1], START), labels[:, :-1]], axis=1)
    lengths = tf.fill([batch], LENGTH + 1)
    helper = seq2seq.TrainingHelper(tf.nn.embedding_lookup(embedding, inputs), lengths)
    decoder = seq2seq.BasicDecoder(decoder_cell, helper, first, projection)
    outputs, _, _ = seq2seq.dynamic_decode(decoder)
    weights = tf.sequence_mask(lengths, dtype=tf.float32)
    loss = seq2seq.sequence_loss(outputs.rnn_output, labels, weights)
    train_op = tf.contrib.layers.optimize_loss(
        loss, tf.train.get_global_step(), params["rate"], optimizer="Adam", clip_gradients=5.0
    )
    metrics = {"accuracy": tf.metrics.accuracy(labels, outputs.sample_id)}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


tf.set_random_seed(1)
config = tf.estimator.RunConfig(tf_random_seed=1)
estimator = tf.estimator.Estimator(model_fn, sys.argv[1], config, {"rate": 0.01})
estimator.train(lambda: input_fn(1, 4000, True), steps=300)
found = estimator.evaluate(lambda: input_fn(2, 300, False))
predicted = np.array(list(estimator.predict(lambda: input_fn(3, 100, False))))
source = np.random.RandomState(3).randint(3, SYMBOLS, (100, LENGTH))
right = (predicted[:, :LENGTH] == source[:, ::-1]).all(axis=1).mean()
print(json.dumps({"accuracy": float(found["accuracy"]), "right": float(right)}))
