"""Programs of the tests: a model_fn with parts to replace, and whole programs that convert."""

PROGRAM = """\
import tensorflow as tf


def model_fn(features, labels, mode, params):
    <NETWORK>
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"logits": logits})
    <LOSS>
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=<METRICS>)
    <TRAIN_OP>
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": [[1.0, 2.0]]}, [1])).repeat().batch(2)


def main():
    estimator = tf.estimator.Estimator(model_fn, params={"rate": 0.1})
    estimator.train(input_fn, steps=4)
    print(estimator.evaluate(input_fn, steps=2))


if __name__ == "__main__":
    main()
"""
PARTS = {
    "NETWORK": 'logits = tf.layers.dense(features["x"], 3)',
    "LOSS": "loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)",
    "METRICS": '{"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}',
    "TRAIN_OP": 'train_op = tf.train.AdamOptimizer(params["rate"]).minimize(loss, tf.train.get_global_step())',
}


def program(**parts: str) -> str:
    """Return the program with some of its parts replaced; a part of several lines is indented."""
    text = PROGRAM
    for name, part in {**PARTS, **parts}.items():
        text = text.replace(f"<{name}>", part.replace("\n", "\n    "))
    return text


CNN = '''\
"""A network with a helper function, batch normalization, dropout, a schedule, metrics and predictions."""
import os

import numpy as np
import tensorflow as tf

tf.logging.set_verbosity(tf.logging.ERROR)


def block(x, filters, training, name):
    """Convolution, normalization, ReLU."""
    x = tf.layers.conv2d(x, filters, 3, padding="SAME", use_bias=False, name=name)
    x = tf.layers.batch_normalization(x, training=training, momentum=0.9)
    return tf.nn.relu(x)


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    net = tf.reshape(features["x"], [-1, 8, 8, 1])  # images
    # Two blocks.
    for i, filters in enumerate(params["filters"]):
        net = block(net, filters, training, "block%d" % i)
        net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.reduce_mean(net, axis=[1, 2])
    if training:
        net = tf.nn.dropout(net, keep_prob=params["keep"])
    with tf.variable_scope("head"):
        logits = tf.layers.dense(net, 10)
    predictions = {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    onehot = tf.one_hot(labels, 10)
    loss = tf.losses.softmax_cross_entropy(onehot, logits)
    tf.summary.scalar("loss", loss)
    metrics = {"accuracy": tf.metrics.accuracy(labels, predictions["classes"])}
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(params["rate"], step, 4, 0.5, staircase=True)
    update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(update_ops):
        train_op = tf.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(training=True):
    draw = np.random.RandomState(0)
    x = draw.rand(96, 64).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(({"x": x}, (x.sum(1) * 3).astype(np.int64) % 10))
    return (data.repeat() if training else data).batch(32)


PARAMS = {"filters": [4, 8], "rate": 0.1, "keep": 0.9}


def main():
    config = tf.estimator.RunConfig(model_dir=os.environ["MODEL_DIR"], save_checkpoints_steps=5, tf_random_seed=3)
    classifier = tf.estimator.Estimator(model_fn, config=config, params=PARAMS)
    classifier.train(lambda: input_fn(True), max_steps=int(os.environ["STEPS"]))
    result = classifier.evaluate(lambda: input_fn(False))
    print("step", result["global_step"], sorted(result))
    for row in classifier.predict(lambda: input_fn(False)):
        print(sorted(row), row["probabilities"].shape)
        break


if __name__ == "__main__":
    main()
'''

TUTORIAL = """\
import json
import os
import sys

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

BATCH_SIZE, MODEL_DIR, STEPS = 64, sys.argv[1], int(sys.argv[2])
data = load_digits()
images = (data.images / 16.0).astype("float32")[..., None]
labels = data.target.astype("int64")


def input_fn(mode, input_context=None):
    pick = slice(0, 1500) if mode == tf.estimator.ModeKeys.TRAIN else slice(1500, None)
    dataset = tf.data.Dataset.from_tensor_slices((images[pick], labels[pick]))
    if input_context:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if mode == tf.estimator.ModeKeys.TRAIN:
        dataset = dataset.repeat()
    return dataset.batch(BATCH_SIZE)


def model_fn(features, labels, mode):
    model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(8, 8, 1),
                               kernel_initializer=tf.keras.initializers.GlorotUniform(seed=1)),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=2)),
    ])
    logits = model(features, training=False)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"logits": logits})
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(learning_rate=0.1)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE)(labels, logits)
    loss = tf.reduce_sum(loss) * (1.0 / BATCH_SIZE)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={
            "accuracy": tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, -1))})
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(
        loss, tf.compat.v1.train.get_or_create_global_step()))


strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
config = tf.estimator.RunConfig(train_distribute=strategy, save_checkpoints_steps=2)
classifier = tf.estimator.Estimator(model_fn=model_fn, model_dir=MODEL_DIR, config=config)
result = tf.estimator.train_and_evaluate(
    classifier,
    train_spec=tf.estimator.TrainSpec(
        input_fn=lambda input_context=None: input_fn("train", input_context), max_steps=STEPS),
    eval_spec=tf.estimator.EvalSpec(input_fn=lambda: input_fn("eval"), steps=None))
print("RESULT", json.dumps(json.loads(os.environ["TF_CONFIG"])["task"]), result, flush=True)
"""

BRANCHES = """\
import os

import numpy as np
import tensorflow as tf

MODE, FOLDER = "train", ""


<MODEL_FN>


def rows(seed):
    x = np.random.RandomState(seed).rand(10, 2).astype(np.float32)
    return {"x": x}, (x.sum(1) > 1).astype(np.int64)


def serving_input_fn():
    numbers = {name: tf.placeholder(tf.float32, [None]) for name in ("a", "b")}
    features = {"x": tf.stack([numbers["a"], numbers["b"]], axis=1)}
    return tf.estimator.export.ServingInputReceiver(features, numbers)


def test_input_fn():
    features, labels = rows(1)
    data = tf.data.Dataset.from_tensor_slices((features["x"] / 2.0, labels)).batch(5)
    x, y = data.make_one_shot_iterator().get_next()
    features = {"x": x * 2.0}
    return features, y


def main():
    estimator = tf.estimator.Estimator(model_fn, FOLDER, params={"rate": 0.1})
    if MODE == "train":
        features, labels = rows(0)
        train_input_fn = tf.estimator.inputs.numpy_input_fn(features, labels, 4, num_epochs=3, shuffle=False)
        estimator.train(train_input_fn)
    elif MODE == "eval":
        return estimator.evaluate(test_input_fn)
    elif MODE == "predict":
        features, _ = rows(1)
        predict_input_fn = tf.estimator.inputs.numpy_input_fn(features, batch_size=4, shuffle=False)
        return [row["logits"] for row in estimator.predict(predict_input_fn)]
    else:
        estimator.export_saved_model(os.path.join(FOLDER, "exports"), serving_input_fn)
    return None
""".replace(
    "<MODEL_FN>",
    program(
        NETWORK='logits = tf.layers.dense(features["x"], 3, kernel_initializer=tf.zeros_initializer())',
        TRAIN_OP="train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())",
    )
    .partition("\n\n\n")[2]
    .partition("\n\n\ndef input_fn")[0],
)

KERAS_MODEL = '''\
"""A Keras model of two inputs with normalization, a regularizer and an optimizer of TensorFlow 1."""
import os

import numpy as np
import tensorflow as tf

tf.logging.set_verbosity(tf.logging.ERROR)


def build(rate):
    wide = tf.keras.Input((3,), name="wide")
    deep = tf.keras.Input((2,), name="deep")
    net = tf.keras.layers.Dense(4, activation=tf.nn.tanh, kernel_regularizer=tf.keras.regularizers.l2(0.1))(wide)
    net = tf.keras.layers.Concatenate()([tf.keras.layers.BatchNormalization(momentum=0.8)(net), deep])
    model = tf.keras.Model(inputs=[wide, deep], outputs=tf.keras.layers.Dense(1, name="price")(net))
    draw = np.random.RandomState(7)
    model.set_weights([draw.rand(*weight.shape) for weight in model.get_weights()])
    model.compile(tf.train.MomentumOptimizer(rate, 0.9), "mse", metrics=["mae"])
    return model


def input_fn():
    draw = np.random.RandomState(0)
    wide, deep = draw.rand(32, 3).astype("float32"), draw.rand(32, 2).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(({"deep": deep, "wide": wide}, wide.sum(1) - deep.sum(1)))
    return data.batch(8)


def serving_input_fn():
    inputs = {"wide": tf.placeholder(tf.float32, [None, 3]), "deep": tf.placeholder(tf.float32, [None, 2])}
    return tf.estimator.export.ServingInputReceiver(inputs, inputs)


def main():
    config = tf.estimator.RunConfig(model_dir=os.environ["MODEL_DIR"], save_checkpoints_steps=5)
    estimator = tf.keras.estimator.model_to_estimator(build(0.05), config=config)
    exporter = tf.estimator.FinalExporter("final", serving_input_fn)
    train_spec = tf.estimator.TrainSpec(lambda: input_fn().repeat(), max_steps=int(os.environ["STEPS"]))
    eval_spec = tf.estimator.EvalSpec(input_fn, steps=None, exporters=exporter)
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    result = estimator.evaluate(input_fn)
    print(result["loss"], result["mae"], result["global_step"])
    print(*[row["price"][0] for row in estimator.predict(input_fn)])


if __name__ == "__main__":
    main()
'''
