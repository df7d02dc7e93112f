"""Routes support tickets to teams: an Estimator class of its own, and a class for the data.

    python ticket_router.py train --data tickets/ --model-dir /tmp/router
    python ticket_router.py evaluate ...
    python ticket_router.py export ... --export-dir /tmp/router/serving
"""

import abc
import argparse
import json
import os

import numpy as np
import tensorflow as tf

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


class TicketRouter(tf.estimator.Estimator):
    """A network over tf-idf of the words' counts."""

    def __init__(self, hidden_units=(64,), learning_rate=0.05, l2=1e-4, model_dir=None, config=None):
        head = tf.estimator.MultiClassHead(n_classes=len(TEAMS), name='team')

        def _model_fn(features, labels, mode, config):
            logits = self._logits(features, mode, hidden_units, l2)
            spec = head.create_estimator_spec(
                features=features, mode=mode, logits=logits, labels=labels,
                regularization_losses=tf.compat.v1.losses.get_regularization_losses() or None,
                update_ops=tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS),
                train_op_fn=lambda loss: self._train_op(loss, learning_rate))
            if mode != tf.estimator.ModeKeys.EVAL:
                return spec
            top2 = tf.nn.in_top_k(targets=labels, predictions=logits, k=2)
            return spec._replace(eval_metric_ops=dict(
                spec.eval_metric_ops, top_2=tf.compat.v1.metrics.mean(tf.cast(top2, tf.float32))))

        super(TicketRouter, self).__init__(model_fn=_model_fn, model_dir=model_dir, config=config)

    @staticmethod
    def _train_op(loss, learning_rate):
        optimizer = tf.compat.v1.train.AdagradOptimizer(learning_rate)
        return optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())

    @staticmethod
    def _logits(features, mode, hidden_units, l2):
        training = mode == tf.estimator.ModeKeys.TRAIN
        regularizer = tf.keras.regularizers.l2(l2)
        net = tf.math.log1p(features['counts'])
        net = tf.compat.v1.layers.batch_normalization(net, training=training, name='normalized')
        net = tf.concat([net, tf.one_hot(features['channel'], len(CHANNELS))], axis=-1)
        for layer_id, units in enumerate(hidden_units):
            with tf.compat.v1.variable_scope('hiddenlayer_%d' % layer_id):
                net = tf.compat.v1.layers.dense(
                    net, units, activation=tf.nn.relu, kernel_regularizer=regularizer,
                    kernel_initializer=tf.compat.v1.keras.initializers.he_normal())
        return tf.compat.v1.layers.dense(net, len(TEAMS), activation=None, name='logits')

    def export(self, folder):
        """A SavedModel that takes counts and channels."""
        def receiver():
            inputs = {
                'counts': tf.compat.v1.placeholder(tf.float32, [None, 40], 'counts'),
                'channel': tf.compat.v1.placeholder_with_default([0], [None], 'channel'),
            }
            return tf.estimator.export.ServingInputReceiver(inputs, inputs)
        return self.export_saved_model(folder, receiver)


def main():
    parser = argparse.ArgumentParser(prog='ticket_router')
    parser.add_argument('command', choices=['train', 'evaluate', 'export'])
    parser.add_argument('--data', required=True)
    parser.add_argument('--model-dir', required=True)
    parser.add_argument('--export-dir')
    parser.add_argument('--steps', type=int, default=300)
    args = parser.parse_args()

    pipeline = TicketPipeline(args.data)
    router = TicketRouter(
        model_dir=args.model_dir, config=tf.estimator.RunConfig(tf_random_seed=61, save_summary_steps=50))
    if args.command == 'train':
        router.train(pipeline.train, max_steps=args.steps)
    if args.command == 'export':
        print(router.export(args.export_dir or os.path.join(args.model_dir, 'serving')))
        return
    metrics = router.evaluate(pipeline.test)
    print('accuracy %.4f top 2 %.4f' % (metrics['accuracy/team'], metrics['top_2']))


if __name__ == '__main__':
    main()
