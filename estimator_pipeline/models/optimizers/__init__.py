"""Optimizers by name (`spec.py`), for tf.compat.v1, Keras 2 and Keras 3, and what is wrapped around them.

Gradient accumulation, moving averages, weight decay, loss scaling.
"""
