"""From a job file to an engine: `runner.py` selects it, one module per engine builds its model, data and options.

`job` has the sections of a job file; `engines/estimator`, `keras` and `keras3` have the engines.
"""
