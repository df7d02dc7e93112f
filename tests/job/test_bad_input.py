"""Every wrong job file and TF_CONFIG gives one message: what is wrong, what was found, and the hint.

The words are in tests/messages.
"""

from __future__ import annotations

import pickle

import pytest

from estimator_pipeline.cluster.spec import parse_tf_config
from estimator_pipeline.errors import ClusterError, ConfigError, PipelineError
from estimator_pipeline.job import load_job
from tests.support.bad_cases import CASES, GOOD_JOB, BadCase


def _error_of(case: BadCase, tmp_path) -> PipelineError:
    if case.kind == "tf_config":
        with pytest.raises(ClusterError) as caught:
            parse_tf_config(case.text)
    else:
        path = tmp_path / "job.yaml"
        path.write_text(case.text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            load_job(path)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_message(case, tmp_path):
    error = _error_of(case, tmp_path)
    message = str(error)
    assert error.code == case.code
    # Several mistakes have their hints one by one.
    assert error.hint or error.code == "job/several-mistakes"
    assert "job.yaml" in message if case.kind == "job" else message.startswith("TF_CONFIG")
    assert "hint: " in message
    assert error.exit_code == 2
    # A bad message would show a person the inside of our libraries.
    assert not any(word in message for word in ("pydantic", "ruamel", "Traceback", "~", "None of"))
    assert str(pickle.loads(pickle.dumps(error))) == message


def test_the_good_job_is_good(tmp_path):
    """The cases are made from this file: without it, each could fail for another reason than its own."""
    path = tmp_path / "job.yaml"
    path.write_text(GOOD_JOB, encoding="utf-8")
    assert load_job(path).cluster.workers == 2


def test_ids_are_distinct():
    assert len({case.id for case in CASES}) == len(CASES) >= 36
