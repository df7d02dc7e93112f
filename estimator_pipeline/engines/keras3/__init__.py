"""The Keras 3 engine, with a custom training loop: Keras 3 does not train under MultiWorkerMirroredStrategy.

`engines/keras_common` has what it shares with Keras 2.
"""
