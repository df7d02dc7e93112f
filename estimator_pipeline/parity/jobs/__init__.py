"""Parity of a job file: the same job by two engines.

Programs of people's own are compared in `parity/models`.
"""
