"""The Keras model that a model_fn becomes: class, heads, metrics, train_op, signatures, averages, warm starts.

The statements of the model_fn itself are in `migrate/code/to_keras/model_fn`.
"""
