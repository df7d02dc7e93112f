"""Optimizers by name (`spec.py`), for tf.compat.v1, Keras 2 and Keras 3, and their wrappers.

The wrappers add gradient accumulation, moving averages, weight decay and loss scaling.
"""
