"""What programs import that `migrate convert` has written: Keras counterparts of Estimator features.

The names are public. The converter is `migrate/code/to_keras`.
"""
