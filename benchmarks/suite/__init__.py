"""Benchmark of this package against plain tf.estimator and plain Keras, with the same work in one run, as ratios.

A run is a list of cases (`cases.py`). A case has contenders, which are measured in separate processes (`measuring.py`)
in turns: A B C, C B A, A B C, so that a drift of the machine's speed affects all equally. The results are medians over
the runs with their spread, ratios of neighbouring runs, and the verdicts on the targets (`results.py`), as a table,
JSON, Markdown and plots (`report.py`, `charts.py`). docs/internals/benchmarks.md describes each case.

Only the modules that run in measured processes import TensorFlow: `programs/`, `clock.py`.
"""

from __future__ import annotations
