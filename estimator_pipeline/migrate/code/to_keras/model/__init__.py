"""Conversion of a model_fn to a Keras model.

`migrate/code/to_keras/model_fn` converts the statements of the model_fn.
"""
