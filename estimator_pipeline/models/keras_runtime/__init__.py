"""Runtime of programs that `migrate convert` writes: Keras counterparts of Estimator features.

The names are public. The converter is `migrate/code/to_keras`.
"""
