"""Names that packages import by a private path which TensorFlow or Keras has left since.

Most had moved before 2.15, so that a library for tf.estimator (adanet, tf-slim, many programs of a team's own) does not
run on plain 2.15 either. Where each name is today is data: see :mod:`estimator_pipeline.compat.moved_names.table`.
"""

from __future__ import annotations

from estimator_pipeline.compat.moved_names import table as moved_names

NAME = "moved-names"
WHAT = "private names of TensorFlow 1.15 to 2.15 that moved can be imported from where they were"


def apply() -> None:
    moved_names.install()
