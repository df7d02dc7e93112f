"""Schedulers, platforms and launchers, one a file: from their variables to an `Allocation`. No TensorFlow."""

from __future__ import annotations

from estimator_pipeline.cluster.environments.base import Allocation, Environment

__all__ = ["Allocation", "Environment"]
