"""Programs of the measured processes, one module per contender or measurement: `run(spec)` gives the figures.

`plain_estimator.py` and `plain_keras.py` follow TensorFlow's tutorials, without this package: with the same layers,
data, batch, optimizer and steps, and without further features.
"""

from __future__ import annotations
