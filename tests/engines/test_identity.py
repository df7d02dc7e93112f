"""What a run is told to be made of."""

from __future__ import annotations

import collections

import pytest

from estimator_pipeline.engines import identity
from estimator_pipeline.errors import ConfigError


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


@pytest.mark.tf
def test_epochs_that_are_over_are_not_over_for_other_data(tmp_path):
    """They count from the first step of all: training on new data came to no step, and ended as if it had."""

    def begin(step, accept=True, **changed):
        made = identity.Identity(fixed={"seed": 1, "input.fingerprint": "a", **changed}, epochs=2.0, max_steps=10)
        identity.check(str(tmp_path), made, step=step, accept=accept)

    begin(0)
    begin(10, accept=False)
    begin(10, seed=2)
    for accept in (True, False):
        with pytest.raises(ConfigError, match="nothing would be trained on what is given now") as refused:
            begin(10, accept, seed=2, **{"input.fingerprint": "b"})
        assert "input.fingerprint was a and is b" in str(refused.value) and "train.epochs 4 " in str(refused.value)
    begin(9, seed=2, **{"input.fingerprint": "b"})
