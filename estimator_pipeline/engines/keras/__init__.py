"""The Keras 2 engine: `Model.fit` on the workers of TF_CONFIG, its callbacks and checkpoints.

`models/keras_model.py` builds the models; `engines/keras3` is the Keras 3 engine.
"""
