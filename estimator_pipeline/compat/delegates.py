"""Functions of higher-level packages that `compat` calls, imported on first call.

Modules import only from lower levels, but a few calls must go up: `tf.estimator.train_and_evaluate`, which `compat`
restores, runs on the engine. So they are names here, which are imported when they are called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["own_model_dir", "train_and_evaluate"]

_LEGACY = "estimator_pipeline.engines.estimator.legacy"


def train_and_evaluate() -> Callable[..., Any]:
    """Return the replacement of `tf.estimator.train_and_evaluate` in unchanged programs."""
    return _imported(_LEGACY, "train_and_evaluate")


def own_model_dir() -> Callable[..., Any]:
    """Return the function that locks a model directory during `Estimator.train`."""
    return _imported(_LEGACY, "own_model_dir")


def _imported(module: str, attribute: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function
