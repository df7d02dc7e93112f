"""Parity of a job file: the same job on two engines.

User programs are compared in `parity/models`.
"""
