"""An input function over parts written before training, which writes down the records that each worker reads."""

import pathlib

import tensorflow as tf

import estimator_pipeline as ep


def layers(params):
    return tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(1,)), tf.keras.layers.Dense(1)])


def read(input_context=None, folder="", seen=""):
    # From the disk by record, and not through memory, so that what is read is what a step was given.
    data = ep.inputs.from_partition(folder, global_batch_size=16, shard_policy="file", memory_limit=0)
    file = pathlib.Path(seen) / f"pipeline-{input_context.input_pipeline_id}"

    def note(labels):
        with file.open("a") as out:
            out.write("".join(f"{int(label)}\n" for label in labels))
        return labels

    def noted(features, labels):
        return features, tf.ensure_shape(tf.numpy_function(note, [labels], labels.dtype), labels.shape)

    return data.train_input_fn(input_context).map(noted)


def evaluate(input_context=None, folder="", seen=""):
    return ep.inputs.from_partition(folder, global_batch_size=16).eval_input_fn(input_context)
