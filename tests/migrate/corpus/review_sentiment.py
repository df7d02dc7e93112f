"""Sentiment of restaurant reviews: embeddings, averaged over the words that are there, and a small network.

The vocabulary is a file with a word a line; unknown words share one bucket. Lines of the data files are
"label<TAB>text".
"""

import logging
import os
import sys

from absl import flags
import tensorflow as tf
from tensorflow import estimator as est

flags.DEFINE_string('data', None, 'Folder with train.tsv, test.tsv, vocab.txt', required=True)
flags.DEFINE_string('output', '/tmp/reviews', 'model dir')
flags.DEFINE_integer('steps', 400, 'training steps')
flags.DEFINE_integer('embedding_size', 16, '')
flags.DEFINE_float('lr', 0.01, '')
flags.DEFINE_string('optimizer', 'Adam', 'Adam, Adagrad or RMSProp')
flags.DEFINE_bool('max_pool', False, 'maximum over the words beside their mean')

FLAGS = flags.FLAGS
PAD = '<pad>'


def read(path, training):
    def parse(line):
        fields = tf.io.decode_csv(line, [[0], ['']], field_delim='\t', use_quote_delim=False)
        words = tf.strings.split([fields[1]]).values
        return {'words': words, 'length': tf.size(words)}, fields[0]

    data = tf.data.TextLineDataset(path).map(parse)
    if training:
        data = data.shuffle(1000, seed=FLAGS.steps).repeat()
    return data.padded_batch(
        32, ({'words': [None], 'length': []}, []), padding_values=(({'words': PAD, 'length': 0}, 0)))


def encode(words, lengths, vocab_file, params):
    """[batch, time] words to [batch, embedding]."""
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            vocab_file, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
        num_oov_buckets=1)
    with tf.compat.v1.variable_scope('embeddings'):
        embeddings = tf.compat.v1.get_variable(
            'table', [params['vocab_size'] + 1, params['embedding_size']],
            initializer=tf.compat.v1.random_uniform_initializer(-0.1, 0.1))
    embedded = tf.nn.embedding_lookup(embeddings, table.lookup(words))
    mask = tf.sequence_mask(lengths, tf.shape(words)[1], dtype=tf.float32)
    mask = tf.expand_dims(mask, 2)
    pooled = tf.reduce_sum(embedded * mask, axis=1) / tf.maximum(tf.reduce_sum(mask, axis=1), 1.)
    if params['max_pool']:
        pooled = tf.concat([pooled, tf.reduce_max(embedded * mask - 1e9 * (1. - mask), axis=1)], 1)
    return pooled


def model_fn(features, labels, mode, params):
    net = encode(features['words'], features['length'], params['vocab_file'], params)
    for i, units in enumerate(params['hidden']):
        net = tf.compat.v1.layers.dense(net, units, activation=tf.nn.relu, name='hidden_%d' % i)
        net = tf.compat.v1.layers.dropout(net, 0.3, training=mode == est.ModeKeys.TRAIN)
    logits = tf.squeeze(tf.compat.v1.layers.dense(net, 1, name='score'), axis=1)
    probability = tf.sigmoid(logits)

    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={
            'positive': probability, 'label': tf.cast(probability > 0.5, tf.int32)})

    labels = tf.cast(labels, tf.float32)
    loss = tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits), name='loss')

    if mode == est.ModeKeys.EVAL:
        predicted = tf.cast(probability > 0.5, tf.float32)
        metrics = {
            'accuracy': tf.compat.v1.metrics.accuracy(labels, predicted),
            'auc': tf.compat.v1.metrics.auc(labels, probability),
            'precision': tf.compat.v1.metrics.precision(labels, predicted),
            'recall': tf.compat.v1.metrics.recall(labels, predicted),
        }
        return est.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    assert mode == est.ModeKeys.TRAIN
    # Whatever the flag names.
    optimizer = getattr(tf.compat.v1.train, params['optimizer'] + 'Optimizer')(params['lr'])
    grads, variables = zip(*optimizer.compute_gradients(loss))
    grads, norm = tf.clip_by_global_norm(grads, 5.0)
    tf.compat.v1.summary.scalar('gradient_norm', norm)
    train_op = optimizer.apply_gradients(
        zip(grads, variables), global_step=tf.compat.v1.train.get_global_step())
    return est.EstimatorSpec(mode, loss=loss, train_op=train_op)


def main():
    FLAGS(sys.argv)
    logging.getLogger('tensorflow').setLevel(logging.WARNING)
    vocab_file = os.path.join(FLAGS.data, 'vocab.txt')
    with open(vocab_file) as f:
        vocab_size = sum(1 for _ in f)
    params = dict(
        vocab_file=vocab_file, vocab_size=vocab_size, hidden=[16], embedding_size=FLAGS.embedding_size,
        lr=FLAGS.lr, optimizer=FLAGS.optimizer, max_pool=FLAGS.max_pool)
    estimator = est.Estimator(
        model_fn, FLAGS.output, est.RunConfig(tf_random_seed=4, save_checkpoints_secs=600), params)
    estimator.train(lambda: read(os.path.join(FLAGS.data, 'train.tsv'), True), steps=FLAGS.steps)
    found = estimator.evaluate(lambda: read(os.path.join(FLAGS.data, 'test.tsv'), False))
    print('auc=%(auc).4f accuracy=%(accuracy).4f loss=%(loss).4f' % found)

    said = estimator.predict(lambda: read(os.path.join(FLAGS.data, 'test.tsv'), False))
    with open(os.path.join(FLAGS.output, 'predictions.txt'), 'w') as f:
        for each in said:
            f.write('%d %.4f\n' % (each['label'], each['positive']))


if __name__ == '__main__':
    main()
