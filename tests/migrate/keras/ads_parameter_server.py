#!/usr/bin/env python
"""Click prediction for adverts on a parameter-server cluster.

The cluster comes by flags (of our launcher) or by TF_CONFIG (on the cloud):

    python ads_parameter_server.py --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 --job_name=worker --task_index=1 ...

Worker 0 is the chief. Without hosts everything runs in one process.
"""

import json
import os

from absl import app, flags
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import distribution as keras_cluster
from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation

flags.DEFINE_string('ps_hosts', '', 'host:port of the parameter servers')
flags.DEFINE_string('worker_hosts', '', 'host:port of the workers')
flags.DEFINE_string('job_name', '', 'ps, worker or evaluator')
flags.DEFINE_integer('task_index', 0, 'number within the job')
flags.DEFINE_bool('use_strategy', False, 'ParameterServerStrategy instead of the default device function')
flags.DEFINE_string('data_dir', None, 'folder with train/ and eval/')
flags.DEFINE_string('checkpoint_dir', '/tmp/ads', 'model directory')
flags.DEFINE_integer('batch_size', 100, '')
flags.DEFINE_integer('train_steps', 1000, '')
flags.DEFINE_integer('embedding_dim', 8, '')
FLAGS = flags.FLAGS

FIELDS = [('user', 1000), ('ad', 400), ('site', 50)]


def set_tf_config():
    """Writes TF_CONFIG from the launcher's flags, or returns the one that is there."""
    if not FLAGS.worker_hosts:
        return json.loads(os.environ.get('TF_CONFIG', '{}'))
    workers = FLAGS.worker_hosts.split(',')
    cluster = {'chief': workers[:1], 'ps': FLAGS.ps_hosts.split(',')}
    if workers[1:]:
        cluster['worker'] = workers[1:]
    job, index = FLAGS.job_name, FLAGS.task_index
    if job == 'worker':
        job, index = ('chief', 0) if index == 0 else ('worker', index - 1)
    tf_config = {'cluster': cluster, 'task': {'type': job, 'index': index}}
    os.environ['TF_CONFIG'] = json.dumps(tf_config)
    return tf_config


def input_fn(part, config=None):
    """Parts of the log; each worker reads its own files."""
    files = sorted(tf.io.gfile.glob(os.path.join(FLAGS.data_dir, part, 'part-*')))
    training = part == 'train'
    if training and config is not None and config.num_worker_replicas > 1:
        files = files[config.global_id_in_cluster::config.num_worker_replicas]

    def parse(lines):
        clicked, user, ad, site, position, price = tf.io.decode_csv(lines, [[0], [''], [''], [''], [0.], [0.]])
        return {'user': user, 'ad': ad, 'site': site, 'position': position, 'price': price}, clicked

    ds = tf.data.TextLineDataset(files)
    if training:
        ds = ds.shuffle(10000, seed=FLAGS.task_index).repeat()
    return ds.batch(FLAGS.batch_size).map(parse).prefetch(tf.data.experimental.AUTOTUNE)


def field_embedding(values, name, buckets):
    ids = tf.strings.to_hash_bucket_fast(values, buckets)
    return tf.keras.layers.Embedding(
        buckets, FLAGS.embedding_dim,
        embeddings_initializer=tf.keras.initializers.TruncatedNormal(stddev=0.1), name=name + '_embedding')(ids)


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class AdsParameterServerModel(tf.keras.Model):
    """Network, loss, metrics and predictions of model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.auc_metric = tf.keras.metrics.AUC(num_thresholds=500, name='auc')
        self.ctr_metric = tf.keras.metrics.Mean(name='ctr')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits))
        self.mean_loss.update_state(loss)
        # The gradients of the replicas are summed.
        return loss / self.distribute_strategy.num_replicas_in_sync

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        ctr = tf.nn.sigmoid(logits)
        self.auc_metric.update_state(labels, ctr)
        self.ctr_metric.update_state(ctr)
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        ctr = tf.nn.sigmoid(logits)
        return {'ctr': ctr}

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    embedded = [field_embedding(features[name], name, buckets) for name, buckets in FIELDS]
    numbers = tf.stack([features['position'] / 5., features['price']], axis=1)
    # The product of user and advert is what a plain network learns slowly.
    net = tf.concat(embedded + [embedded[0] * embedded[1], numbers], axis=1)
    for units in params['hidden_units']:
        net = tf.keras.layers.Dense(
            units, tf.nn.relu, kernel_initializer=tf.keras.initializers.GlorotNormal())(net)
    logits = tf.keras.layers.Dense(1)(net)[:, 0]
    model = AdsParameterServerModel(features, logits, params)
    model.compile(optimizer=tf.keras.optimizers.Adagrad(params['learning_rate'], initial_accumulator_value=0.01))
    return model


def main(_):
    tf_config = set_tf_config()
    tf.get_logger().info('cluster: %s', tf_config.get('cluster', 'none'))

    # Workers must not wait for each other.
    # Training is synchronous: a cluster with parameter servers is rejected.
    config = keras_cluster.of_workers()
    strategy = config.strategy()
    tf.keras.utils.set_random_seed(17)
    # Was session_config=tf1.ConfigProto(allow_soft_placement=True, intra_op_parallelism_threads=2): there is no session; tf.config has settings of devices and threads
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(FLAGS.checkpoint_dir, 'backup'), save_freq=500),
        tf.keras.callbacks.TensorBoard(FLAGS.checkpoint_dir, update_freq=100),
    ]

    training = input_fn('train', config)
    with strategy.scope():
        model = make_model(model_inputs(training), {'hidden_units': [64, 32], 'learning_rate': 0.05})
    # Was throttle_secs=1: every checkpoint is evaluated
    evaluation = keras_evaluation.Evaluation(
        lambda: input_fn('eval'), every_steps=500, folder=FLAGS.checkpoint_dir)
    model.fit(
        strategy.distribute_datasets_from_function(lambda _: input_fn('train', config)),
        steps_per_epoch=FLAGS.train_steps, callbacks=[evaluation, *callbacks], verbose=2)
    keras_cluster.save_weights(model, os.path.join(FLAGS.checkpoint_dir, 'weights'))
    result = (evaluation.result, evaluation.exports)
    if result is not None and config.is_chief:
        print('auc %.4f' % result[0]['auc'])


if __name__ == '__main__':
    flags.mark_flags_as_required(['data_dir'])
    tf.get_logger().setLevel('INFO')
    app.run(main, flags_parser=lambda argv: flags.FLAGS(argv, known_only=True))
