"""Parity of programs: an Estimator against its manually written Keras model.

Job files are compared in `parity/jobs`.
"""
