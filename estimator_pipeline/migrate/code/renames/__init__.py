"""Renames within TensorFlow: TensorFlow 1 names and tf.contrib as TensorFlow 2 has them.

From Estimators to Keras is `migrate/code/to_keras`.
"""
