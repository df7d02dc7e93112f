"""Routes support tickets to teams: an Estimator class of its own, and a class for the data.

    python ticket_router.py train --data tickets/ --model-dir /tmp/router
    python ticket_router.py evaluate ...
    python ticket_router.py export ... --export-dir /tmp/router/serving
"""

import abc
import argparse
import json
import os
import time

import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import heads as keras_heads
from estimator_pipeline.models.keras_runtime import warm_start as keras_weights

TEAMS = ('billing', 'network', 'hardware', 'account')
CHANNELS = {'mail': 0, 'phone': 1, 'chat': 2}


class InputPipeline(abc.ABC):
    """Reads files of one kind; `train`, `test` and `predict` are input functions."""

    batch_size = 50

    def __init__(self, folder):
        self.folder = folder

    @abc.abstractmethod
    def records(self, part):
        """Yields (features, label)."""

    @property
    @abc.abstractmethod
    def types_and_shapes(self):
        pass

    def _dataset(self, part):
        types, shapes = self.types_and_shapes
        return tf.data.Dataset.from_generator(lambda: self.records(part), types, shapes)

    def train(self):
        return self._dataset('train').cache().shuffle(2000, seed=61).repeat().batch(self.batch_size)

    def test(self):
        return self._dataset('test').batch(self.batch_size)

    def predict(self):
        return self.test().map(lambda features, label: features)


class TicketPipeline(InputPipeline):

    def records(self, part):
        with open(os.path.join(self.folder, 'tickets_%s.jsonl' % part)) as lines:
            for line in lines:
                ticket = json.loads(line)
                features = {'counts': np.array(ticket['counts'], np.float32), 'channel': CHANNELS[ticket['channel']]}
                yield features, TEAMS.index(ticket['team'])

    @property
    def types_and_shapes(self):
        return ({'counts': tf.float32, 'channel': tf.int32}, tf.int32), ({'counts': [40], 'channel': []}, [])


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class TicketRouter(tf.keras.Model):
    """A network over tf-idf of the words' counts."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.top_2_metric = tf.keras.metrics.Mean(name='top_2')
        self.head = keras_heads.MultiClassHead(n_classes=len(TEAMS), name='team')
        self.head_metrics = self.head.metrics(regularized=bool(self.losses))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = self.head.loss(labels, logits, regularization=self.losses)
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        top2 = tf.nn.in_top_k(targets=labels, predictions=logits, k=2)
        self.head.update(self.head_metrics, labels, logits, regularization=self.losses)
        self.top_2_metric.update_state(tf.cast(top2, tf.float32))
        return self.head.further(self.get_metrics_result())

    def predictions(self, features, outputs):
        logits = outputs
        return self.head.predictions(logits)

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))

    @staticmethod
    def _logits(features, hidden_units, l2):
        regularizer = tf.keras.regularizers.l2(l2)
        net = tf.math.log1p(features['counts'])
        net = tf.keras.layers.BatchNormalization(name='normalized')(net)
        net = tf.concat([net, tf.one_hot(features['channel'], len(CHANNELS))], axis=-1)
        for layer_id, units in enumerate(hidden_units):
            net = tf.keras.layers.Dense(
                units, activation=tf.nn.relu, kernel_regularizer=regularizer,
                kernel_initializer=tf.keras.initializers.HeNormal(),
                name=('hiddenlayer_%d' % layer_id) + '_' + 'dense')(net)
        return tf.keras.layers.Dense(len(TEAMS), activation=None, name='logits')(net)

    def export(self, folder):
        """A SavedModel that takes counts and channels."""
        def export_model(model, folder):
            """Write a SavedModel to a new subfolder of `folder`, named after the time; return its path as bytes."""
            # Was placeholder_with_default([0], [None], 'channel'): callers of a signature must pass all of its inputs.
            @tf.function(input_signature=[
                tf.TensorSpec([None, 40], tf.float32, name='counts'),
                tf.TensorSpec([None], tf.int32, name='channel'),
            ])
            def predict(counts, channel):
                inputs = {
                    'counts': counts,
                    'channel': channel,
                }
                features = inputs
                return model.predictions(features, model(features, training=False))

            server = tf.Module()
            server.model, server.functions = model, [predict]
            path = os.path.join(folder, str(int(time.time())))
            tf.saved_model.save(server, path, signatures={'predict': predict})
            return os.fsencode(path)
        return export_model(self, folder)


def make_ticket_router(features, hidden_units=(64,), learning_rate=0.05, l2=1e-4):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    logits = TicketRouter._logits(features, hidden_units, l2)
    model = TicketRouter(features, logits)
    model.compile(optimizer=tf.keras.optimizers.Adagrad(learning_rate))
    return model


def main():
    parser = argparse.ArgumentParser(prog='ticket_router')
    parser.add_argument('command', choices=['train', 'evaluate', 'export'])
    parser.add_argument('--data', required=True)
    parser.add_argument('--model-dir', required=True)
    parser.add_argument('--export-dir')
    parser.add_argument('--steps', type=int, default=300)
    args = parser.parse_args()

    pipeline = TicketPipeline(args.data)
    tf.keras.utils.set_random_seed(61)
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(args.model_dir, update_freq=50),
    ]
    model = make_ticket_router(model_inputs(pipeline.train()))
    if not (args.command == 'train'):
        keras_weights.restore(model, args.model_dir)
    if args.command == 'train':
        model.fit(pipeline.train(), steps_per_epoch=args.steps, callbacks=callbacks, verbose=2)
        model.save_weights(os.path.join(args.model_dir, 'weights'))
    if args.command == 'export':
        print(model.export(args.export_dir or os.path.join(args.model_dir, 'serving')))
        return
    metrics = model.evaluate(pipeline.test(), return_dict=True, verbose=0)
    print('accuracy %.4f top 2 %.4f' % (metrics['accuracy/team'], metrics['top_2']))


if __name__ == '__main__':
    main()
