"""The Keras 3 engine, with a custom training loop: Keras 3 does not train under MultiWorkerMirroredStrategy.

`engines/keras` has what it shares with Keras 2.
"""
