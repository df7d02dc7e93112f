"""A text classifier of 2018: TPUEstimator on the CPU, with a host_call, map_and_batch and a vocabulary's table.

    tpu_text_classifier.py MODEL_DIR
"""

from __future__ import absolute_import, division, print_function

import json
import os
import random
import sys

import tensorflow as tf

FLAGS = tf.flags.FLAGS
tf.flags.DEFINE_string("output_dir", None, "Where the model goes.")
tf.flags.DEFINE_string("tpu_name", "", "Name of the TPU.")
tf.flags.DEFINE_bool("use_tpu", False, "Whether there is one.")

GOOD, BAD = "good great fine lovely".split(), "bad awful poor sad".split()
FILL = "the a film book day was is and very quite this that".split()
VOCABULARY = ["<pad>"] + GOOD + BAD + FILL
LENGTH = 8


def sentences(count, seed):
    draw = random.Random(seed)
    for _ in range(count):
        label = draw.randint(0, 1)
        words = [draw.choice(FILL) for _ in range(LENGTH - 1)]
        words.insert(draw.randrange(LENGTH), draw.choice(GOOD if label else BAD))
        yield " ".join(words), label


def input_fn_builder(seed, count, is_training):
    def input_fn(params):
        texts, labels = zip(*sentences(count, seed))
        dataset = tf.data.Dataset.from_tensor_slices((list(texts), list(labels)))
        if is_training:
            dataset = dataset.apply(tf.contrib.data.shuffle_and_repeat(count))
        table = tf.contrib.lookup.index_table_from_tensor(tf.constant(VOCABULARY))

        def parse(text, label):
            words = tf.string_split([text]).values
            words.set_shape([LENGTH])
            return {"ids": tf.to_int32(table.lookup(words)), "label": label}, label

        return dataset.apply(
            tf.contrib.data.map_and_batch(
                parse, batch_size=params["batch_size"], num_parallel_batches=2, drop_remainder=True
            )
        )

    return input_fn


def create_model(ids, is_training):
    embedded = tf.contrib.layers.embed_sequence(ids, vocab_size=len(VOCABULARY), embed_dim=16)
    assert ids.shape[1].value == LENGTH and isinstance(ids.shape[1], tf.Dimension)
    output = tf.reduce_max(tf.layers.dense(embedded, 16, activation=tf.nn.relu), axis=1, keep_dims=False)
    if is_training:
        output = tf.nn.dropout(output, keep_prob=0.9)
    return tf.layers.dense(output, 2, kernel_initializer=tf.truncated_normal_initializer(stddev=0.1))


def model_fn(features, labels, mode, params):
    logits = create_model(features["ids"], mode == tf.estimator.ModeKeys.TRAIN)
    predictions = {"label": tf.argmax(logits, -1, output_type=tf.int32), "ids": features["ids"]}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode, predictions=predictions, export_outputs={"serving_default": tf.estimator.export.PredictOutput(predictions)}
        )
    per_example = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
    loss = tf.reduce_mean(per_example)
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(per_example, labels, predicted):
            return {"accuracy": tf.metrics.accuracy(labels, predicted), "loss/mean": tf.metrics.mean(per_example)}

        return tf.contrib.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [per_example, labels, predictions["label"]])
        )
    step = tf.train.get_or_create_global_step()
    rate = tf.train.polynomial_decay(0.01, step, 400, end_learning_rate=0.001)
    optimizer = tf.train.AdamOptimizer(rate)
    if FLAGS.use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, global_step=step)

    def host_call_fn(step, loss, rate):
        step = step[0]
        with tf.contrib.summary.create_file_writer(params["summaries"], max_queue=10).as_default():
            with tf.contrib.summary.always_record_summaries():
                tf.contrib.summary.scalar("training_loss", loss[0], step=step)
                tf.contrib.summary.scalar("learning_rate", rate[0], step=step)
                return tf.contrib.summary.all_summary_ops()

    host_call = (host_call_fn, [tf.reshape(each, [1]) for each in (step, loss, rate)])
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call)


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    cluster = tf.contrib.cluster_resolver.TPUClusterResolver(FLAGS.tpu_name)
    config = tf.contrib.tpu.RunConfig(
        cluster=cluster,
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=100,
        tf_random_seed=1,
        tpu_config=tf.contrib.tpu.TPUConfig(
            iterations_per_loop=50,
            num_shards=8,
            per_host_input_for_training=tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        config=config,
        params={"summaries": os.path.join(FLAGS.output_dir, "host")},
        use_tpu=FLAGS.use_tpu,
        train_batch_size=32,
        eval_batch_size=50,
        predict_batch_size=50,
    )
    estimator.train(input_fn_builder(1, 1000, True), max_steps=200)
    # Of a second run: what a program does that is started again.
    estimator.train(input_fn_builder(1, 1000, True), max_steps=250)
    result = estimator.evaluate(input_fn_builder(2, 200, False), steps=4)
    predicted = [int(each["label"]) for each in estimator.predict(input_fn_builder(3, 100, False))]
    right = [label for _, label in sentences(100, 3)]
    events = [name for name in os.listdir(os.path.join(FLAGS.output_dir, "host")) if "tfevents" in name]
    print(
        json.dumps(
            {
                "accuracy": float(result["accuracy"]),
                "step": int(result["global_step"]),
                "predicted": sum(a == b for a, b in zip(predicted, right)) / 100.0,
                "events": len(events),
            }
        )
    )


if __name__ == "__main__":
    sys.argv[1:2] = ["--output_dir=" + sys.argv[1]]
    tf.app.run()
