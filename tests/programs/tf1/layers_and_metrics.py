"""A program of 2018 in plain TensorFlow 1: tf.layers, tf.metrics, tf.losses, flags, export and predictor.

    layers_and_metrics.py --model_dir=DIR [--steps=N]
"""

import collections
import json

import numpy as np
import tensorflow as tf

tf.app.flags.DEFINE_string("model_dir", "", "")
tf.app.flags.DEFINE_integer("steps", 200, "")
FLAGS = tf.app.flags.FLAGS

random = np.random.RandomState(0)
points = random.uniform(-1, 1, (2000, 2)).astype(np.float)
inside = (np.square(points).sum(axis=1) < 0.5).astype(np.int)
if isinstance(collections.OrderedDict(), collections.Mapping):
    parameters = collections.OrderedDict(units=[32, 32])


def model_fn(features, labels, mode, params):
    net = tf.to_float(features["point"])
    for units in params["units"]:
        net = tf.layers.dense(net, units=units, activation=tf.nn.relu, kernel_initializer=tf.glorot_normal_initializer())
    net = tf.layers.batch_normalization(net, momentum=0.9, training=mode == tf.estimator.ModeKeys.TRAIN)
    logits = tf.squeeze(tf.layers.dense(net, units=1), squeeze_dims=[1])
    predictions = {"probability": tf.sigmoid(logits), "class": tf.to_int32(logits > 0)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        outputs = {
            tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: tf.estimator.export.PredictOutput(
                predictions
            )
        }
        return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions, export_outputs=outputs)
    loss = tf.losses.sigmoid_cross_entropy(multi_class_labels=labels, logits=logits)
    tf.summary.scalar("cross_entropy", loss)
    metrics = {
        "accuracy": tf.metrics.accuracy(labels, predictions["class"]),
        "auc": tf.metrics.auc(labels, predictions["probability"], num_thresholds=200),
        "pearson": tf.contrib.metrics.streaming_pearson_correlation(predictions["probability"], tf.to_float(labels)),
    }
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        rate = tf.train.exponential_decay(0.01, tf.train.get_global_step(), 100, 0.9, staircase=True)
        optimizer = tf.train.AdamOptimizer(learning_rate=rate)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.apply_gradients(zip(gradients, variables), global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def input_fn(first, last, epochs=1):
    dataset = tf.data.Dataset.from_tensor_slices(({"point": points[first:last]}, inside[first:last]))
    if epochs is None:
        dataset = dataset.shuffle(buffer_size=1000)
    iterator = dataset.repeat(epochs).batch(50).make_initializable_iterator()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def serving_input_receiver_fn():
    point = tf.placeholder(dtype=tf.float64, shape=[None, 2], name="point")
    return tf.estimator.export.ServingInputReceiver({"point": point}, {"point": point})


def main(unused_argv):
    config = tf.estimator.RunConfig(
        model_dir=FLAGS.model_dir, tf_random_seed=1, session_config=tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True))
    )
    estimator = tf.estimator.Estimator(model_fn, config=config, params=parameters)
    hook = tf.train.LoggingTensorHook({"loss": "sigmoid_cross_entropy_loss/value"}, every_n_iter=100)
    train_spec = tf.estimator.TrainSpec(lambda: input_fn(0, 1500, None), max_steps=FLAGS.steps, hooks=[hook])
    eval_spec = tf.estimator.EvalSpec(lambda: input_fn(1500, 2000), steps=None)
    result, _ = tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    folder = estimator.export_savedmodel(FLAGS.model_dir + "/export", serving_input_receiver_fn)
    predict = tf.contrib.predictor.from_saved_model(folder)
    answer = predict({"point": points[1500:]})
    live = tf.contrib.predictor.from_estimator(estimator, serving_input_receiver_fn)({"point": points[1500:]})
    with tf.Session(graph=tf.Graph()) as session:
        meta = tf.saved_model.loader.load(session, [tf.saved_model.tag_constants.SERVING], folder)
    result = {name: float(value) for name, value in result.items()}
    result["served"] = float((answer["class"] == inside[1500:]).mean())
    result["same"] = bool(np.allclose(answer["probability"], live["probability"]))
    result["signatures"] = sorted(meta.signature_def)
    print(json.dumps(result))


if __name__ == "__main__":
    tf.app.run()
