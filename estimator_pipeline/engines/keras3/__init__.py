"""The Keras 3 engine: a training loop of its own, for Keras 3 does not train under MultiWorkerMirroredStrategy.

What it shares with Keras 2 is in `engines/keras`.
"""
