"""The Keras 2 engine: `Model.fit` on the workers of TF_CONFIG, its callbacks and checkpoints.

Models are built in `models/keras_model.py`; the Keras 3 engine is `engines/keras3`.
"""
