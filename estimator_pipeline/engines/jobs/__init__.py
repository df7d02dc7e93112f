"""From a job file to an engine: `build.py` makes its data, model and exporters for every command; `run.py` trains it.

`job` has the sections of a job file; `engines/estimator`, `keras` and `keras3` have the engines.
"""
