"""What a run is told to be made of."""

from __future__ import annotations

import collections

import pytest

from estimator_pipeline.engines import identity


class _Attributes:
    def __init__(self):
        self.rate, self._cache = 0.1, object()


class _HParams:
    _values = {"rate": 0.1}

    def values(self):
        return self._values


@pytest.mark.parametrize(
    "params",
    [{"rate": 0.1}, collections.namedtuple("Params", "rate")(0.1), _Attributes(), _HParams(), None],
    ids=["mapping", "named tuple", "attributes", "HParams", "none"],
)
def test_params_of_any_kind_are_told(params):
    """An Estimator takes any object; a training with a named tuple ended with an AttributeError."""
    told = identity.of_model_fn(lambda features, labels, mode, params: None, params)["params"]
    assert told == ({} if params is None else {"rate": 0.1})
