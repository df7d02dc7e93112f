"""Evaluations of one run share a graph and a session where that changes no result.

tf.estimator builds both anew for each evaluation, and the process grows by what is left of them
(tensorflow#20699). A patch of `train_and_evaluate`: without that one it does nothing. What it means for a program,
and what is kept when, is told in docs/guides/evaluation.md.
"""

from __future__ import annotations

NAME = "cached-evaluation"
WHAT = "evaluations share one graph and session, where that changes no result, and memory does not grow with each"


def apply() -> None:
    """Nothing to patch: `train_and_evaluate` asks whether this patch is applied."""
