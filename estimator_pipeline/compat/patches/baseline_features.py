"""Baseline estimators accept more than one feature.

They compare the batch sizes of all features, and create their variable after that comparison. Its initial value then
depends on the data, which is not available when variables are initialized ("GetNext() failed because the iterator has
not been initialized"). Here the batch size depends on the comparison, and the variable does not.

Private use: `_get_batch_size_and_size_checks` of the estimator package.
"""

from __future__ import annotations

import functools
from typing import Any

NAME = "baseline-features"
WHAT = "BaselineClassifier, BaselineRegressor and BaselineEstimator accept more than one feature"


def apply() -> None:
    import tensorflow as tf
    from tensorflow_estimator.python.estimator.canned import baseline

    original = baseline._get_batch_size_and_size_checks

    @functools.wraps(original)
    def checked_batch_size(features: Any, weight_column_key: Any) -> tuple[list[Any], Any]:
        checks, size = original(features, weight_column_key)
        if not checks:
            return checks, size
        with tf.control_dependencies(checks):
            return [], tf.identity(size)

    baseline._get_batch_size_and_size_checks = checked_batch_size
