"""A program of 2018 over TFRecord files: parallel_interleave, shuffle_and_repeat, map_and_batch, weight decay.

    records_pipeline.py MODEL_DIR DATA_DIR
"""

import glob
import json
import os
import sys

import tensorflow as tf
from sklearn.datasets import load_digits

tf.logging.set_verbosity(tf.logging.ERROR)
model_dir, data_dir = sys.argv[1:3]


def write():
    pixels, labels = load_digits(return_X_y=True)
    if not os.path.isdir(data_dir):
        os.makedirs(data_dir)
    for part in range(6):
        with tf.python_io.TFRecordWriter(os.path.join(data_dir, "digits-%05d-of-00006" % part)) as writer:
            for row in range(part, 1797, 6):
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes(bytearray(map(int, pixels[row])))])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(labels[row])])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def parse_record(record):
    keys_to_features = {"image": tf.FixedLenFeature((), tf.string), "label": tf.FixedLenFeature((), tf.int64)}
    parsed = tf.parse_single_example(record, keys_to_features)
    image = tf.cast(tf.decode_raw(parsed["image"], tf.uint8), tf.float32) / 16.0
    image = tf.reshape(image, [8, 8, 1])
    return image, tf.cast(parsed["label"], tf.int32)


def augment(image, label):
    return tf.contrib.image.rotate(image, tf.random_uniform([], -0.1, 0.1), interpolation="BILINEAR"), label


def input_fn(files, is_training, batch_size=32):
    dataset = tf.data.Dataset.list_files(files, shuffle=is_training)
    dataset = dataset.apply(
        tf.contrib.data.parallel_interleave(tf.data.TFRecordDataset, cycle_length=2, sloppy=is_training)
    )
    if is_training:
        dataset = dataset.apply(tf.contrib.data.shuffle_and_repeat(buffer_size=1000))
        dataset = dataset.map(parse_record).map(augment, num_parallel_calls=2)
        dataset = dataset.apply(tf.contrib.data.map_and_batch(lambda *row: row, batch_size, num_parallel_calls=2))
    else:
        dataset = dataset.apply(tf.contrib.data.map_and_batch(parse_record, batch_size, drop_remainder=False))
    return dataset.prefetch(buffer_size=tf.contrib.data.AUTOTUNE)


def model_fn(features, labels, mode):
    _, height, width, channels = features.get_shape().as_list()
    net = tf.reshape(features, [-1, height * width * channels])
    net = tf.layers.dense(net, 64, activation=tf.nn.relu)
    assert net.get_shape()[-1].value == 64
    logits = tf.layers.dense(net, 10)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    metrics = {
        "accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1)),
        "per_class": tf.metrics.mean_per_class_accuracy(labels, tf.argmax(logits, 1), 10),
    }
    decayed = [v for v in tf.trainable_variables() if "kernel" in v.name]
    optimizer = tf.contrib.opt.AdamWOptimizer(weight_decay=1e-4, learning_rate=0.005)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step(), decay_var_list=decayed)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


write()
files = sorted(glob.glob(os.path.join(data_dir, "digits-*")))
strategy = tf.contrib.distribute.MirroredStrategy(num_gpus=0)
estimator = tf.estimator.Estimator(model_fn, model_dir, tf.estimator.RunConfig(train_distribute=strategy))
estimator.train(lambda: input_fn(files[:5], True), max_steps=300)
found = estimator.evaluate(lambda: input_fn(files[5:], False))
print(
    json.dumps(
        {
            "accuracy": float(found["accuracy"]),
            "step": int(found["global_step"]),
            "strategy": isinstance(strategy, tf.contrib.distribute.MirroredStrategy),
        }
    )
)
