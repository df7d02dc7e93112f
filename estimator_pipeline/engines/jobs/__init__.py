"""From a job file to an engine: `runner.py` chooses it, a file for each makes its model, data and options.

The sections of a job file are in `job`; the engines themselves in `engines/estimator`, `keras` and `keras3`.
"""
