"""Compliance checks for an `input_fn` and a `model_fn`, as functions and as pytest tests.

    from estimator_pipeline import testing

    testing.check_input_fn(input_fn, global_batch_size=64)
    testing.check_model_fn(model_fn, input_fn)

=========================== =====================================================================================
`check_input_fn`            checks an `input_fn`: each record once, on any number of workers, in correct batches
`check_model_fn`            checks a `model_fn`: each mode, one and two replicas, training and export
`input_fn_checks`           the same checks as separate callables, for pytest
`model_fn_checks`
`parametrize_with_checks`   creates one pytest test per check
`prepare`                   creates two logical CPUs for the check with two replicas; call it in `conftest.py`
`assert_parity`             compares two engines, or an Estimator with a Keras model; also a pytest fixture
`ComplianceReport`          the report, with a `CheckOutcome` for each check
`ComplianceError`           an AssertionError with all failed checks
=========================== =====================================================================================

Importing this package does not import TensorFlow; running a check does.
"""

from __future__ import annotations

from estimator_pipeline.parity.assert_parity import ParityError, assert_parity
from estimator_pipeline.testing.input_checks import check_input_fn, input_fn_checks
from estimator_pipeline.testing.model_checks import check_model_fn, model_fn_checks
from estimator_pipeline.testing.report import (
    CheckOutcome,
    ComplianceCheck,
    ComplianceError,
    ComplianceReport,
    parametrize_with_checks,
)
from estimator_pipeline.testing.training_runs import prepare

__all__ = [
    "CheckOutcome",
    "ComplianceCheck",
    "ComplianceError",
    "ComplianceReport",
    "ParityError",
    "assert_parity",
    "check_input_fn",
    "check_model_fn",
    "input_fn_checks",
    "model_fn_checks",
    "parametrize_with_checks",
    "prepare",
]
