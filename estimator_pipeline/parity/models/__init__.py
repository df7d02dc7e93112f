"""Parity of programs: an Estimator against a Keras model that somebody wrote for it.

Job files are compared in `parity/jobs`.
"""
