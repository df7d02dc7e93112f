"""The benchmark: this package beside plain tf.estimator and plain Keras, on the same work, in one run, as ratios.

A run is a list of cases (`cases.py`). A case has contenders, and each measurement of one is made in processes of their
own (`measuring.py`), in turns: A B C, C B A, A B C, so that a machine whose pace drifts hits all alike. What comes of
it are medians over the runs with their spread, ratios of neighbours, and whether the targets are met (`results.py`),
as a table, JSON, Markdown and plots (`report.py`, `charts.py`). docs/internals/benchmarks.md describes each case.

Nothing here imports TensorFlow but the modules that run in measured processes: `programs/`, `clock.py`.
"""

from __future__ import annotations
