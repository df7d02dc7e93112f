"""Renames from TensorFlow 1 and tf.contrib to TensorFlow 2.

The conversion from Estimators to Keras is in `migrate/convert`.
"""
