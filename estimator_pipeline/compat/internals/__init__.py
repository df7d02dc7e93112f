"""Wrappers of private TensorFlow APIs, one subsystem per file, for other packages.

Only `compat` uses `tensorflow.python`; other packages use it through these modules. Bugs of tf.estimator that affect
every program are fixed in `compat/patches`.
"""
