"""Sentiment of restaurant reviews: embeddings, averaged over the words that are there, and a small network.

The vocabulary is a file with a word a line; unknown words share one bucket. Lines of the data files are
"label<TAB>text".
"""

import logging
import os
import sys

from absl import flags
import tensorflow as tf

from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

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
    embedded = tf.keras.layers.Embedding(
        params['vocab_size'] + 1, params['embedding_size'],
        embeddings_initializer=tf.keras.initializers.RandomUniform(-0.1, 0.1), name='embeddings_table')(TableLookup(table)(words))
    mask = tf.sequence_mask(lengths, tf.shape(words)[1], dtype=tf.float32)
    mask = tf.expand_dims(mask, 2)
    pooled = tf.reduce_sum(embedded * mask, axis=1) / tf.maximum(tf.reduce_sum(mask, axis=1), 1.)
    if params['max_pool']:
        pooled = tf.concat([pooled, tf.reduce_max(embedded * mask - 1e9 * (1. - mask), axis=1)], 1)
    return pooled


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class TableLookup(tf.keras.layers.Layer):
    """Looks up keys in a table."""

    def __init__(self, table, **options):
        super().__init__(**options)
        self.table = table

    def call(self, keys):
        return self.table.lookup(keys)


def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict per example; only those of `keys`, if any."""
    for batch in data:
        predicted = model.predict_on_batch(batch[0] if isinstance(batch, tuple) else batch)
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f'no predictions {keys}: there are {list(predicted)}')
        for row in zip(*(predicted[name] for name in names)):
            yield dict(zip(names, row))


class ReviewSentimentModel(tf.keras.Model):
    """Network, loss, metrics and predictions of model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.accuracy_metric = tf.keras.metrics.Accuracy(name='accuracy')
        self.auc_metric = tf.keras.metrics.AUC(name='auc')
        self.precision_metric = tf.keras.metrics.Precision(name='precision')
        self.recall_metric = tf.keras.metrics.Recall(name='recall')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        labels = tf.cast(labels, tf.float32)
        loss = tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits), name='loss')
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        probability = tf.sigmoid(logits)
        labels = tf.cast(labels, tf.float32)
        predicted = tf.cast(probability > 0.5, tf.float32)
        self.accuracy_metric.update_state(labels, predicted)
        self.auc_metric.update_state(labels, probability)
        self.precision_metric.update_state(tf.cast(labels, tf.bool), tf.cast(predicted, tf.bool))
        self.recall_metric.update_state(tf.cast(labels, tf.bool), tf.cast(predicted, tf.bool))
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        probability = tf.sigmoid(logits)
        return {
            'positive': probability, 'label': tf.cast(probability > 0.5, tf.int32)}

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    net = encode(features['words'], features['length'], params['vocab_file'], params)
    for i, units in enumerate(params['hidden']):
        net = tf.keras.layers.Dense(units, activation=tf.nn.relu, name='hidden_%d' % i)(net)
        net = tf.keras.layers.Dropout(0.3)(net)
    logits = tf.squeeze(tf.keras.layers.Dense(1, name='score')(net), axis=1)
    # TensorBoard logs the loss, metrics and learning rate of each epoch; log more in a callback.
    # Was tf.compat.v1.summary.scalar('gradient_norm', norm)
    model = ReviewSentimentModel(features, logits, params)
    # Whatever the flag names.
    model.compile(optimizer=keras_optimizers.of_v1(params['optimizer'], params['lr'], clip_norm=5.0))
    return model


def main():
    FLAGS(sys.argv)
    logging.getLogger('tensorflow').setLevel(logging.WARNING)
    vocab_file = os.path.join(FLAGS.data, 'vocab.txt')
    with open(vocab_file) as f:
        vocab_size = sum(1 for _ in f)
    params = dict(
        vocab_file=vocab_file, vocab_size=vocab_size, hidden=[16], embedding_size=FLAGS.embedding_size,
        lr=FLAGS.lr, optimizer=FLAGS.optimizer, max_pool=FLAGS.max_pool)
    tf.keras.utils.set_random_seed(4)
    # Was save_checkpoints_secs=600: callbacks count steps, not seconds
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(FLAGS.output, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(FLAGS.output, update_freq=100),
    ]
    training = read(os.path.join(FLAGS.data, 'train.tsv'), True)
    model = make_model(model_inputs(training), params)
    model.fit(training, steps_per_epoch=FLAGS.steps, callbacks=callbacks, verbose=2)
    model.save_weights(os.path.join(FLAGS.output, 'weights'))
    found = model.evaluate(read(os.path.join(FLAGS.data, 'test.tsv'), False), return_dict=True, verbose=0)
    print('auc=%(auc).4f accuracy=%(accuracy).4f loss=%(loss).4f' % found)

    said = examples(model, read(os.path.join(FLAGS.data, 'test.tsv'), False))
    with open(os.path.join(FLAGS.output, 'predictions.txt'), 'w') as f:
        for each in said:
            f.write('%d %.4f\n' % (each['label'], each['positive']))


if __name__ == '__main__':
    main()
