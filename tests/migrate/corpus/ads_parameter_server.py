#!/usr/bin/env python
"""Click prediction for adverts on a parameter-server cluster.

The cluster comes by flags (of our launcher) or by TF_CONFIG (on the cloud):

    python ads_parameter_server.py --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 --job_name=worker --task_index=1 ...

Worker 0 is the chief. Without hosts everything runs in one process.
"""

import json
import os

import tensorflow as tf
import tensorflow.compat.v1 as tf1

flags = tf1.app.flags
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
    files = sorted(tf1.gfile.Glob(os.path.join(FLAGS.data_dir, part, 'part-*')))
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
    table = tf1.get_variable(
        name + '_embedding', [buckets, FLAGS.embedding_dim],
        initializer=tf1.truncated_normal_initializer(stddev=0.1),
        collections=[tf1.GraphKeys.GLOBAL_VARIABLES, 'embeddings'])
    return tf.nn.embedding_lookup(table, ids)


def model_fn(features, labels, mode, params, config):
    partitioner = tf1.min_max_variable_partitioner(max_partitions=max(config.num_ps_replicas, 1), min_slice_size=1 << 20)
    with tf1.variable_scope('fields', partitioner=partitioner if config.num_ps_replicas > 1 else None):
        embedded = [field_embedding(features[name], name, buckets) for name, buckets in FIELDS]
    numbers = tf.stack([features['position'] / 5., features['price']], axis=1)
    # The product of user and advert is what a plain network learns slowly.
    net = tf.concat(embedded + [embedded[0] * embedded[1], numbers], axis=1)
    for units in params['hidden_units']:
        net = tf1.layers.dense(net, units, tf.nn.relu, kernel_initializer=tf1.glorot_normal_initializer())
    logits = tf1.layers.dense(net, 1)[:, 0]
    ctr = tf.nn.sigmoid(logits)

    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'ctr': ctr})

    loss = tf1.losses.sigmoid_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={
            'auc': tf1.metrics.auc(labels, ctr, num_thresholds=500),
            'ctr': tf1.metrics.mean(ctr),
        })

    optimizer = tf1.train.AdagradOptimizer(params['learning_rate'], initial_accumulator_value=0.01)
    train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def main(_):
    tf_config = set_tf_config()
    distributed = 'ps' in tf_config.get('cluster', {})
    tf1.logging.info('cluster: %s', tf_config.get('cluster', 'none'))

    session_config = tf1.ConfigProto(allow_soft_placement=True, intra_op_parallelism_threads=2)
    if distributed:
        task = tf_config['task']
        # Workers must not wait for each other.
        session_config.device_filters.extend(['/job:ps', '/job:%s/task:%d' % (task['type'], task['index'])])
    strategy = None
    if distributed and FLAGS.use_strategy:
        strategy = tf1.distribute.experimental.ParameterServerStrategy()
    config = tf.estimator.RunConfig(
        model_dir=FLAGS.checkpoint_dir,
        tf_random_seed=17,
        session_config=session_config,
        save_checkpoints_steps=500,
        train_distribute=strategy)
    estimator = tf.estimator.Estimator(
        model_fn, config=config, params={'hidden_units': [64, 32], 'learning_rate': 0.05})

    result = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(lambda: input_fn('train', config), max_steps=FLAGS.train_steps),
        tf.estimator.EvalSpec(lambda: input_fn('eval'), steps=None, throttle_secs=1, start_delay_secs=0))
    if result is not None and config.is_chief:
        print('auc %.4f' % result[0]['auc'])


if __name__ == '__main__':
    flags.mark_flags_as_required(['data_dir'])
    tf1.logging.set_verbosity(tf1.logging.INFO)
    tf1.app.run(main)
