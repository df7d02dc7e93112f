"""Conversion of the statements of a model_fn: layers, losses, variables and recurrent cells, one file for each kind.

`migrate/code/to_keras/model` writes the Keras model class around them.
"""
