"""The same, as TensorFlow 1 had it: tf.app.run() looks for main() and the flags by itself."""

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

tf.app.flags.DEFINE_integer("steps", 1, "How many steps.")
tf.app.flags.DEFINE_string("model_dir", "", "Where to.")
FLAGS = tf.app.flags.FLAGS


def main(_):
    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir, save_checkpoints_steps=FLAGS.steps)
    print("main", config.model_dir, config.save_checkpoints_steps, tf.executing_eagerly())


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.app.run()
