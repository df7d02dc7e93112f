"""What a run is told to be made of."""

from __future__ import annotations

import collections

import pytest

from estimator_pipeline.engines.model_dir import run_identity as identity
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
        made = identity.RunIdentity(
            fixed={"seed": 1, "input.fingerprint": "a", **changed},
            epochs=2.0,
            max_steps=10,
            job={"input": {"source": "csv"}},
        )
        identity.check(str(tmp_path), made, step=step, accept=accept)

    begin(0)
    begin(10, accept=False)
    begin(10, seed=2)
    for accept in (True, False):
        with pytest.raises(ConfigError, match="the new data would not be trained on") as refused:
            begin(10, accept, seed=2, **{"input.fingerprint": "b"})
        assert "input.fingerprint was a and is b" in str(
            refused.value
        ) and "name their files with --continue-with" in str(refused.value)
    begin(9, seed=2, **{"input.fingerprint": "b"})


def begun(folder, step=0, accept=False, files=(), **fixed):
    """A run that begins, or goes on after a step, made of this."""
    made = identity.RunIdentity(
        fixed={"input.records": 9, "input.shard_policy": "by record", **fixed}, files=dict(files)
    )
    identity.check(str(folder), made, step=step, accept=accept)


@pytest.mark.tf
def test_a_run_goes_on_under_the_policy_that_ties_it_to_its_workers(tmp_path):
    assert identity.policy_of(str(tmp_path)) is None
    by_file = {"input.shard_policy": "file", "input.worker_seeds": "same", "input.workers": 2}
    begun(tmp_path, **by_file)
    assert identity.policy_of(str(tmp_path)) == "file"
    with pytest.raises(ConfigError, match=r"input\.shard_policy was file and is by record"):
        begun(tmp_path, step=5)
    with pytest.raises(ConfigError, match=r"input\.workers was 2 and is 3") as refused:
        begun(tmp_path, step=5, **{**by_file, "input.workers": 3})
    assert "with input.shard_policy: data in addition" in str(refused.value)
    begun(tmp_path, step=5, accept=True)
    assert identity.policy_of(str(tmp_path)) is None
    # One worker that read all files read them in the order of all records, and may be joined by others.
    begun(tmp_path, **{**by_file, "input.workers": 1})
    assert identity.policy_of(str(tmp_path)) is None
    begun(tmp_path, step=5)
    (tmp_path / "estimator_pipeline" / "identity.json").write_text('{"fixed"')
    assert identity.policy_of(str(tmp_path)) is None


@pytest.mark.tf
def test_files_that_were_replaced_are_refused_by_name(tmp_path):
    def content(**digests):
        return {"input.content": digests}

    paths = {"a": "data/a", "b": "data/b"}
    begun(tmp_path, **content(a="1", b="2", c="3"))
    begun(tmp_path, step=5, **content(a="1", b="2", c="3"))
    with pytest.raises(ConfigError) as refused:
        begun(tmp_path, step=5, files=paths, **content(a="1", b="9", c="3"))
    assert "data/b has other content than when this run began (digest 2 then, 9 now)" in str(refused.value)
    assert "data/a" not in str(refused.value) and "--accept-changes" in str(refused.value)
    begun(tmp_path, step=5, accept=True, **content(a="1", b="9", c="3"))
    begun(tmp_path, step=5, **content(a="1", b="9", c="3"))
    # A file told in another way, and one more: nothing to be compared. Which files there are, the fingerprint tells.
    begun(tmp_path, step=5, **content(a="sampled 7", b="9", d="4"))
    with pytest.raises(ConfigError, match="sampled 7 then, sampled 8 now"):
        begun(tmp_path, step=5, **content(a="sampled 8"))
    # An earlier version told none; this one does from now on.
    begun(tmp_path)
    begun(tmp_path, step=5, **content(a="1"))
    with pytest.raises(ConfigError, match="a has other content"):
        begun(tmp_path, step=5, **content(a="2"))
    begun(tmp_path, **content(**{str(n): "1" for n in range(9)}))
    with pytest.raises(ConfigError, match="and 6 more"):
        begun(tmp_path, step=5, **content(**{str(n): "2" for n in range(9)}))
