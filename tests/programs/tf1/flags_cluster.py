"""A program of 2018 in a cluster of TF_CONFIG: flags, HParams, feature columns, a canned Estimator, an exporter.

    flags_cluster.py --job-dir=DIR [--hparams=name=value,…]
"""

import argparse
import json

import numpy as np
import tensorflow as tf

COLUMNS = ["hours", "job", "town"]
JOBS, TOWNS = ["cook", "clerk", "pilot"], ["a%d" % i for i in range(40)]


def data(seed, count):
    random = np.random.RandomState(seed)
    hours, job = random.uniform(0, 60, count).astype(np.float32), random.choice(JOBS, count)
    town = random.choice(TOWNS, count)
    rich = (hours + 25 * (job == "pilot") - 10 * (job == "cook") > 40).astype(np.int)
    return {"hours": hours, "job": job, "town": town}, rich


def input_fn(seed, count, epochs, batch_size):
    features, labels = data(seed, count)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    if epochs is None:
        dataset = dataset.shuffle(count)
    return dataset.repeat(epochs).batch(batch_size).make_one_shot_iterator().get_next()


def build_estimator(config, hparams):
    hours = tf.feature_column.numeric_column("hours", normalizer_fn=lambda x: (x - 30.0) / 20.0)
    job = tf.feature_column.categorical_column_with_vocabulary_list("job", JOBS)
    town = tf.feature_column.categorical_column_with_hash_bucket("town", 100)
    buckets = tf.feature_column.bucketized_column(tf.feature_column.numeric_column("hours"), [20.0, 40.0])
    crossed = tf.feature_column.crossed_column([buckets, "job"], hash_bucket_size=50)
    return tf.estimator.DNNLinearCombinedClassifier(
        config=config,
        linear_feature_columns=[job, buckets, crossed],
        dnn_feature_columns=[hours, tf.feature_column.indicator_column(job), tf.feature_column.embedding_column(town, 4)],
        dnn_hidden_units=hparams.hidden_units,
        dnn_optimizer=tf.train.AdagradOptimizer(hparams.learning_rate),
    )


def serving_input_fn():
    types = {"hours": tf.float32, "job": tf.string, "town": tf.string}
    inputs = {name: tf.placeholder(shape=[None], dtype=types[name]) for name in COLUMNS}
    return tf.estimator.export.ServingInputReceiver(inputs, inputs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--hparams", default="")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.INFO)
    hparams = tf.contrib.training.HParams(hidden_units=[16, 8], learning_rate=0.1, batch_size=50)
    hparams.parse(args.hparams)
    config = tf.estimator.RunConfig(model_dir=args.job_dir, save_checkpoints_steps=100, keep_checkpoint_max=2)
    config = config.replace(session_config=tf.ConfigProto(allow_soft_placement=True))
    estimator = build_estimator(config, hparams)
    train_spec = tf.estimator.TrainSpec(lambda: input_fn(1, 2000, None, hparams.batch_size), max_steps=args.steps)
    exporter = tf.estimator.FinalExporter("census", serving_input_fn)
    eval_spec = tf.estimator.EvalSpec(
        lambda: input_fn(2, 500, 1, 50), steps=None, start_delay_secs=0, throttle_secs=1, exporters=[exporter]
    )
    result = tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    if result is not None and result[0] is not None:
        print(json.dumps({"accuracy": float(result[0]["accuracy"]), "step": int(result[0]["global_step"])}))


if __name__ == "__main__":
    main()
