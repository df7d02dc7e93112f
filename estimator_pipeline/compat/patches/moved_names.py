"""Private names of TensorFlow or Keras that have moved work by their old import paths.

Most moved before 2.15, so that libraries for tf.estimator (adanet, tf-slim, many in-house programs) do not run on plain
2.15 either. `compat/moved_names/table.py` has the new names.
"""

from __future__ import annotations

from estimator_pipeline.compat.moved_names import table as moved_names

NAME = "moved-names"
WHAT = "private names of TensorFlow 1.15 to 2.15 that moved can be imported by their old paths"


def apply() -> None:
    moved_names.install()
