"""What runs in the measured processes, a contender or a kind of measurement a module: `run(spec)` gives the figures.

`plain_estimator.py` and `plain_keras.py` are what a person writes after TensorFlow's tutorials, without this package:
the same layers, data, batch, optimizer and steps, nothing left out and nothing added.
"""

from __future__ import annotations
