"""What `compat` calls and a higher room does: names of functions, imported when they are called.

Imports go down only; a few calls must go up all the same: `tf.estimator.train_and_evaluate`, put back by `compat`, runs
on the engine. So they are text here, and nothing is imported before it is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["own_model_dir", "train_and_evaluate"]

_LEGACY = "estimator_pipeline.engines.estimator.legacy"


def train_and_evaluate() -> Callable[..., Any]:
    """What stands for `tf.estimator.train_and_evaluate` in an unchanged program."""
    return _imported(_LEGACY, "train_and_evaluate")


def own_model_dir() -> Callable[..., Any]:
    """What holds a model directory while `Estimator.train` trains in it."""
    return _imported(_LEGACY, "own_model_dir")


def _imported(module: str, attribute: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found
