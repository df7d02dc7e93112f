"""Checks that a team runs on its own `input_fn` and `model_fn`, by hand or in pytest.

    from estimator_pipeline import testing

    testing.check_input_fn(input_fn, global_batch_size=64)
    testing.check_model_fn(model_fn, input_fn)

=========================== ==========================================================================
`check_input_fn`            every record read once, by any number of workers, in the right batches
`check_model_fn`            every mode right, on one replica and on two, trained and exported
`input_fn_checks`           the same checks one by one, for pytest
`model_fn_checks`
`parametrize_with_checks`   makes a test of each of them
`prepare`                   two logical CPUs, for the check with two replicas; in `conftest.py`
`assert_parity`             a job by both engines, or an Estimator against a Keras model; in pytest a fixture too
`ComplianceReport`          what was found: a `CheckOutcome` for each check
`ComplianceError`           an AssertionError with all that failed
=========================== ==========================================================================

Importing this imports no TensorFlow; the checks do.
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
