"""The engines that run a job: train, evaluate, checkpoint, export.

`estimator`, `keras` and `keras3` are the engines: none of them imports another. `core` runs a task with any of them,
through the protocol `Backend` (`core/backend.py`); `keras_common` has what `keras` and `keras3` share.
"""
