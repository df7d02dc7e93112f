"""Conversion of a model_fn to a Keras model: class, heads, metrics, train_op, signatures, averages, warm starts.

`migrate/code/to_keras/model_fn` converts the statements of the model_fn.
"""
