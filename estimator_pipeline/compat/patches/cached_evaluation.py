"""Evaluations of one run share a graph and a session if that changes no result.

tf.estimator builds both again for each evaluation, and the memory of the process grows (tensorflow#20699). This patch
has an effect only with the patch `train-and-evaluate`. docs/guides/evaluation.md describes when they are shared.
"""

from __future__ import annotations

NAME = "cached-evaluation"
WHAT = "evaluations share one graph and session if that changes no result, so that memory does not grow"


def apply() -> None:
    """Do nothing: `train_and_evaluate` checks whether this patch is applied."""
