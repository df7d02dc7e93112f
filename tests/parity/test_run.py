"""Of the runs of a comparison: why one has failed. No process is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator_pipeline import launch
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.parity.run import _error_in, _failed, run_parity

REFUSED = (
    "INFO: something before",
    "error: of an earlier line",
    "error: the model 'cnn' has 3 classes, and the data more",
    "  found: labels from 0 to 9",
    "  to mend it: leave model.params.classes out,",
    "  or set it to 10 at least",
)


def outcome(code, *, tail=(), reason="failed"):
    failure = (
        launch.Failure("worker:0", code, Path("logs/worker-0.log"), tuple(tail)) if reason != "interrupted" else None
    )
    return launch.Outcome(reason, code, 3.0, "run", Path("logs"), (), failure=failure)


def test_what_an_engine_refuses_is_bad_input():
    error = _failed("keras", outcome(2, tail=REFUSED))
    assert isinstance(error, ConfigError) and error.exit_code == 2
    assert str(error) == (
        "the engine keras cannot run this job: the model 'cnn' has 3 classes, and the data more\n"
        "  found: labels from 0 to 9; its logs: logs\n"
        "  to mend it: leave model.params.classes out,\n  or set it to 10 at least"
    )
    told = _error_in(("error: two words", "and a third line"))
    assert (told.what, told.found, told.mend) == ("two words\nand a third line", None, None)


@pytest.mark.parametrize(
    ("ended", "code", "says"),
    [
        (outcome(1, tail=["Traceback"]), 1, "worker:0 failed with exit code 1. The last lines of"),
        (outcome(2, tail=["usage: something"]), 2, "usage: something"),
        (outcome(3, reason="diverged", tail=["error: training has diverged"]), 3, "training has diverged"),
        (outcome(130, reason="interrupted"), 130, "it ended as interrupted"),
        (outcome(0), 1, "the run by the engine keras failed"),  # and no result
    ],
)
def test_another_failure_has_the_code_of_its_run(ended, code, says):
    error = _failed("keras", ended)
    assert isinstance(error, TaskFailedError) and error.exit_code == code
    assert says in str(error) and "its logs: logs" in str(error)
    assert TaskFailedError.exit_code == 1, "of this error alone"


@pytest.mark.parametrize("engines", [("keras", ""), ("keras", "torch"), ("a", "b")])
def test_engines_that_are_none(engines):
    with pytest.raises(ConfigError, match="are not two that there are") as error:
        run_parity("nowhere.yaml", engines=engines)
    assert "engines: estimator, keras, keras3" in str(error.value)
