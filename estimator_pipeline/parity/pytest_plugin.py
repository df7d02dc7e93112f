"""The pytest plugin of this package: the fixture `assert_parity`. Importing it does not import TensorFlow."""

from __future__ import annotations

import pytest


@pytest.fixture
def assert_parity(tmp_path):
    """`estimator_pipeline.testing.assert_parity`, with its runs and records below the test's `tmp_path`."""
    from estimator_pipeline.parity import assert_parity as parity

    runs = 0

    def assert_parity(job=None, **options):
        nonlocal runs
        runs += 1
        options.setdefault("folder", tmp_path / f"parity-{runs}")
        return parity.assert_parity(job, **options)

    return assert_parity
