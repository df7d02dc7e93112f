"""Wrappers of private TensorFlow, one subsystem a file, for the rooms above.

Only `compat` touches `tensorflow.python`, and this is where other rooms get at it. Faults of tf.estimator that every
program meets are mended in `compat/patches`.
"""
