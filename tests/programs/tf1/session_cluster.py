"""A program of 2016: a ClusterSpec by hand, a server for each task, MonitoredTrainingSession.

    session_cluster.py --job_name=ps|worker --task_index=N --ps_hosts=… --worker_hosts=… --logdir=DIR
"""

import json

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "")
flags.DEFINE_string("worker_hosts", "", "")
flags.DEFINE_string("job_name", "", "")
flags.DEFINE_integer("task_index", 0, "")
flags.DEFINE_string("logdir", "", "")
FLAGS = flags.FLAGS
STEPS = 300


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return
    with tf.device(
        tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)
    ):
        x = tf.placeholder(tf.float32, [None, 3])
        y = tf.placeholder(tf.float32, [None, 1])
        weights = tf.get_variable("weights", [3, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    random = np.random.RandomState(FLAGS.task_index)
    truth = np.array([[1.0], [-2.0], [0.5]])
    hooks = [tf.train.StopAtStepHook(last_step=STEPS)]
    config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:%d" % FLAGS.task_index])
    with tf.train.MonitoredTrainingSession(
        master=server.target, is_chief=FLAGS.task_index == 0, checkpoint_dir=FLAGS.logdir, hooks=hooks, config=config
    ) as session:
        value = None
        while not session.should_stop():
            batch = random.normal(size=(16, 3))
            _, value, at = session.run([train_op, loss, step], {x: batch, y: batch.dot(truth)})
    print(json.dumps({"task": FLAGS.task_index, "loss": float(value), "step": int(at)}))


if __name__ == "__main__":
    tf.app.run()
