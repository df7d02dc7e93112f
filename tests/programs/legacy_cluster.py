"""A tf.estimator program as people wrote them for clusters; it knows nothing of estimator_pipeline.

    TF_CONFIG=... python legacy_cluster.py MODEL_DIR --strategy mwm|ps|classic [--case CASE]

Every task runs it alike: the evaluator makes the strategy too, parameter servers call train_and_evaluate.
"""

import argparse
import json
import os
import signal
import time

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("model_dir")
parser.add_argument("--strategy", choices=["mwm", "ps", "classic", "mirrored", "none"], default="mwm")
parser.add_argument("--eval_strategy", choices=["none", "same", "mirrored"], default="none")
parser.add_argument("--case", default="")
parser.add_argument("--sync", type=int, default=0, help="Aggregate the gradients of so many training tasks.")
parser.add_argument("--rate", type=float, default=0.2, help="The learning rate.")
parser.add_argument("--max_steps", type=int, default=40)
parser.add_argument("--save_every", type=int, default=20)
parser.add_argument("--step_secs", type=float, default=0.0, help="What a step of a real model would take.")
parser.add_argument("--listener_stops_at", type=int, default=None)
parser.add_argument("--stop_every_secs", type=float, default=None)
parser.add_argument("--stop_every_steps", type=int, default=None)
FLAGS = parser.parse_args()

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
TASK = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "alone", "index": 0})
RANDOM = np.random.RandomState(0)
X = RANDOM.uniform(-1, 1, [256, 4]).astype("float32")
Y = (X @ [[1.0], [-2.0], [3.0], [0.5]]).astype("float32")


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat().batch(16)


def eval_input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(64)


def model_fn(features, labels, mode):
    weights = tf.compat.v1.get_variable("weights", [4, 1], initializer=tf.compat.v1.zeros_initializer())
    predictions = tf.matmul(features["x"], weights)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.reduce_mean(tf.square(predictions - labels))
    if FLAGS.case == "factor_by_task" and TASK["index"] == 1:
        loss = 1.5 * loss
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"mae": tf.compat.v1.metrics.mean_absolute_error(labels, predictions)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    step = tf.compat.v1.train.get_or_create_global_step()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(FLAGS.rate)
    hooks = []
    if FLAGS.sync:
        optimizer = tf.compat.v1.train.SyncReplicasOptimizer(optimizer, FLAGS.sync, total_num_replicas=FLAGS.sync)
        hooks = [optimizer.make_session_run_hook(TASK["type"] in ("chief", "master"))]
    train_op = optimizer.minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks)


class Case(tf.estimator.SessionRunHook):
    """What happens to this task, after its tenth step."""

    steps = 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        time.sleep(FLAGS.step_secs)
        if self.steps != 10:
            return
        print("ten steps", flush=True)
        what, _, task = FLAGS.case.partition(":")
        if task == f"{TASK['type']}{TASK['index']}":
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "fail":
                raise ArithmeticError("planted failure")


class Listener(tf.estimator.CheckpointSaverListener):
    """Tells of checkpoints, and of one that it has enough."""

    def before_save(self, session, step):
        print("before save", step, flush=True)

    def after_save(self, session, step):
        if FLAGS.case == f"listener fails:{TASK['type']}{TASK['index']}":
            raise ArithmeticError("planted failure")
        print("after save", step, flush=True)
        return step >= FLAGS.listener_stops_at


strategy = {
    "mwm": lambda: tf.distribute.experimental.MultiWorkerMirroredStrategy(),
    "ps": lambda: tf.compat.v1.distribute.experimental.ParameterServerStrategy(),
    "classic": lambda: None,
    "none": lambda: None,
    "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
}
if FLAGS.strategy == "mirrored":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
train_distribute = strategy[FLAGS.strategy]()
eval_distribute = {
    "none": lambda: None,
    "same": lambda: train_distribute,
    "mirrored": lambda: tf.distribute.MirroredStrategy(),
}
config = tf.estimator.RunConfig(
    train_distribute=train_distribute,
    eval_distribute=eval_distribute[FLAGS.eval_strategy](),
    save_checkpoints_steps=FLAGS.save_every,
    log_step_count_steps=10,
)
estimator = tf.estimator.Estimator(model_fn, FLAGS.model_dir, config)
hooks = [Case()]
listeners = [] if FLAGS.listener_stops_at is None else [Listener()]
if FLAGS.stop_every_secs or FLAGS.stop_every_steps:
    hooks.append(
        tf.estimator.experimental.stop_if_lower_hook(
            estimator,
            "loss",
            0.5,
            run_every_secs=FLAGS.stop_every_secs,
            run_every_steps=FLAGS.stop_every_steps,
        )
    )
if FLAGS.case == "train alone":
    estimator.train(input_fn, max_steps=FLAGS.max_steps, hooks=hooks)
    print("evaluated", estimator.evaluate(eval_input_fn))
else:
    result = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, FLAGS.max_steps, hooks=hooks, saving_listeners=listeners),
        tf.estimator.EvalSpec(eval_input_fn, steps=None),
    )
    print("result", result if result is None else json.dumps({k: float(v) for k, v in result[0].items()}), flush=True)
