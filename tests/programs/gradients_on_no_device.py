"""A legacy program whose gradients come by tf.gradients through lookups, layers and products, on the workers of TF_CONFIG.

    gradients_on_no_device.py MODEL_DIR

Prints how many collectives its graph has, and a digest of the trained weights and slots.
"""

import hashlib
import sys

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

WORDS, WIDTH, STEPS = 40, 3, 12


def input_fn(input_context=None):
    chance = np.random.default_rng(5)
    words = chance.integers(0, WORDS, (480, 2)).astype(np.int64)
    numbers = chance.standard_normal((480, 4)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(({"words": words, "numbers": numbers}, words[:, :1] % 2))
    if input_context:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(10).repeat()


def model_fn(features, labels, mode):
    get = tf.compat.v1.get_variable
    table = get("table", [WORDS, WIDTH], initializer=tf.compat.v1.random_normal_initializer(seed=1))
    looked_up = [tf.nn.embedding_lookup(table, features["words"][:, 0])]
    for index in range(2):
        start = tf.keras.initializers.RandomNormal(seed=2)
        layer = tf.keras.layers.Embedding(WORDS, WIDTH, embeddings_initializer=start)
        looked_up.append(layer(features["words"][:, index]))
    given = tf.concat([*looked_up, features["numbers"]], axis=1)
    # One whose gradient is reshaped, one that is used as it is.
    first = tf.reshape(get("flat", [13 * 5], initializer=tf.compat.v1.random_normal_initializer(seed=3)), [13, 5])
    second = get("second", [5, 1], initializer=tf.compat.v1.random_normal_initializer(seed=4))
    hidden = tf.nn.relu(given @ first + get("bias", [5], initializer=tf.compat.v1.zeros_initializer()))
    loss = tf.compat.v1.losses.sigmoid_cross_entropy(labels, hidden @ second)
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    # Of these gradients, some have no device of their own in a session's graph.
    variables = tf.compat.v1.trainable_variables()
    pairs = zip(tf.gradients(loss, variables), variables)
    train_op = optimizer.apply_gradients(pairs, global_step=tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def collectives(model_dir):
    graph = tf.compat.v1.GraphDef()
    with open(f"{model_dir}/graph.pbtxt") as text:
        text_format.Parse(text.read(), graph)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    kinds = [node.op for node in nodes if node.op.startswith("Collective")]
    return kinds.count("CollectiveReduceV2"), kinds.count("CollectiveGatherV2")


def main(model_dir):
    config = tf.estimator.RunConfig(
        model_dir=model_dir, train_distribute=tf.distribute.MultiWorkerMirroredStrategy(), tf_random_seed=1
    )
    estimator = tf.estimator.Estimator(model_fn, config=config)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=STEPS),
        tf.estimator.EvalSpec(input_fn, steps=1, throttle_secs=0),
    )
    if estimator.config.is_chief:
        reader = tf.train.load_checkpoint(model_dir)
        digest = hashlib.sha256()
        names = sorted(reader.get_variable_to_shape_map())
        for name in names:
            digest.update(name.encode() + reader.get_tensor(name).tobytes())
        print("found", *collectives(model_dir), len(names), digest.hexdigest(), flush=True)


main(sys.argv[1])
