"""Numbers from command lines and callers: what is none is refused in the words of whoever gave it."""

from __future__ import annotations

import importlib
import math
import typing

import numpy as np
import pytest
from typer.testing import CliRunner

from estimator_pipeline.cli import main as cli
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.arguments import check_count, check_seconds

NONE = (math.nan, math.inf, -1.0, "5", True, [1])


def test_numbers_that_are_some():
    assert [check_count(one, "steps") for one in (None, 1, np.int64(7))] == [None, 1, 7]
    assert [check_seconds(one, "timeout") for one in (None, 1, 0.5, np.float32(2))] == [None, 1.0, 0.5, 2.0]
    assert check_seconds(0, "grace", zero=True) == 0.0


@pytest.mark.parametrize("value", [*NONE, 0])
def test_numbers_that_are_none(value):
    with pytest.raises(ConfigError, match=r"^timeout is (.|\n)*more than 0") as error:
        check_seconds(value, "timeout")
    assert "timeout=600" in error.value.hint
    if value != 0:
        with pytest.raises(ConfigError, match=r"^--grace is (.|\n)*0 or more") as error:
            check_seconds(value, "--grace", zero=True)
        assert error.value.hint == "give seconds, such as --grace 600"
    if value is not True:
        with pytest.raises(ConfigError, match=r"^steps is (.|\n)*whole numbers from 1 on"):
            check_count(value, "steps")


ABOVE_ZERO = {"parity job.yaml": ["--timeout"], "launch job.yaml": ["--timeout"], "supervise": ["--timeout"]}
FROM_ZERO = {
    "launch job.yaml": [
        "--grace",
        "--linger",
        "--backoff",
        "--step-timeout",
        "--start-timeout",
        "--heartbeat-timeout",
    ],
    "supervise": ["--grace", "--backoff", "--step-timeout", "--start-timeout", "--heartbeat-timeout"],
}
REFUSED = [
    (command, option, value)
    for options, values in ((ABOVE_ZERO, ("nan", "0", "-5", "inf")), (FROM_ZERO, ("nan", "-5", "inf")))
    for command, names in options.items()
    for option in names
    for value in values
]


@pytest.mark.parametrize(("command", "option", "value"), [*REFUSED, ("doctor job.yaml", "--timeout", "inf")])
def test_seconds_of_every_command(command, option, value):
    done = CliRunner().invoke(cli.app, [*command.split(), option, value])
    assert done.exit_code == 2 and not isinstance(done.exception, ValueError)
    assert f"error: {option} is {float(value)}, which is not a number of seconds" in done.output


def test_no_option_of_seconds_is_forgotten():
    """Whoever adds one says what it may be: click's own limits let NaN through."""
    unchecked = []
    for entry in (inner for outer in cli.COMMANDS for inner in outer.group or (outer,)):
        command = importlib.import_module(f"estimator_pipeline.cli.{entry.module}").command
        for name, hint in typing.get_type_hints(command, include_extras=True).items():
            kind, *more = typing.get_args(hint) or (None,)
            is_float = kind is float or float in typing.get_args(kind)
            if is_float and any("econds" in (getattr(one, "help", "") or "") for one in more):
                unchecked += [(entry.name, name)] * all(one.callback is None for one in more)
    assert not unchecked


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--workers", "-1"], ["--steps", "0"]])
def test_counts_of_parity(arguments):
    done = CliRunner().invoke(cli.app, ["parity", "job.yaml", *arguments])
    assert done.exit_code == 2 and "Invalid value" in done.output and arguments[0] in done.output
