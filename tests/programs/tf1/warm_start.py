"""Half a model from a checkpoint of before, as BERT's programs did it, and by warm start; in any cluster.

    warm_start.py MODEL_DIR CHECKPOINT write
    warm_start.py MODEL_DIR CHECKPOINT map|warm none|mirrored|workers|ps

The first writes the checkpoint, by the format of 2016.
"""

from __future__ import absolute_import, division, print_function

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow.contrib import layers as contrib_layers

model_dir, checkpoint, way = sys.argv[1:4]


def encoder(x):
    with tf.variable_scope("bert"):
        hidden = tf.layers.dense(x, 4, tf.nn.relu, name="dense")
        return contrib_layers.layer_norm(hidden, scope="LayerNorm")


def write():
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(3)
        encoder(tf.placeholder(tf.float32, [None, 3]))
        session.run(tf.global_variables_initializer())
        tf.train.Saver(write_version=tf.train.SaverDef.V1).save(session, checkpoint)


def model_fn(features, labels, mode):
    logits = tf.layers.dense(encoder(features["x"]), 1, name="output")
    if way == "map":
        there = set(name for name, _ in tf.train.list_variables(checkpoint))
        names = [variable.name.split(":")[0] for variable in tf.trainable_variables()]
        tf.train.init_from_checkpoint(checkpoint, {name: name for name in names if name in there})
    loss = tf.losses.mean_squared_error(labels, logits)
    # The rate is 0: what was restored stays as it is.
    train_op = tf.train.AdamOptimizer(0.0).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    x = np.random.RandomState(0).rand(64, 3).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, x.sum(1, keepdims=True))).repeat().batch(8)


if way == "write":
    write()
    sys.exit()
cluster, strategy, session_config = sys.argv[4], None, None
if cluster == "mirrored":
    strategy = tf.contrib.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    session_config = tf.ConfigProto(device_count={"CPU": 2})
elif cluster == "workers":
    strategy = tf.contrib.distribute.CollectiveAllReduceStrategy(num_gpus_per_worker=0)
elif cluster == "ps":
    strategy = tf.contrib.distribute.ParameterServerStrategy(num_gpus_per_worker=0)
config = tf.estimator.RunConfig(model_dir, train_distribute=strategy, session_config=session_config)
warm_start = tf.estimator.WarmStartSettings(checkpoint, "bert/.*") if way == "warm" else None
estimator = tf.estimator.Estimator(model_fn, config=config, warm_start_from=warm_start)
tf.estimator.train_and_evaluate(
    estimator, tf.estimator.TrainSpec(input_fn, max_steps=5), tf.estimator.EvalSpec(input_fn, steps=2)
)
names = [name for name, _ in tf.train.list_variables(checkpoint)]
load = tf.contrib.framework.load_variable
same = [bool(np.array_equal(load(estimator.latest_checkpoint(), name), load(checkpoint, name))) for name in names]
step = int(load(estimator.latest_checkpoint(), "global_step"))
print(json.dumps({"names": sorted(names), "same": all(same), "trained": step >= 5}))
