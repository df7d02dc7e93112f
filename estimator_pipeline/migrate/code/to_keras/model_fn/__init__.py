"""The statements of a model_fn: layers, losses, variables, recurrent cells, one kind a file.

The class that they become is written in `migrate/code/to_keras/model`.
"""
