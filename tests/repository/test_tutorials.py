"""The tutorials and the README: each command runs, exits as the page says, and prints the lines that are shown."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.tutorials import Tutorial, environments, is_shown, pages

WORDS = 900


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", [*pages(), ROOT / "README.md"], ids=lambda path: path.stem)
def test_a_page(path, tmp_path):
    """Commands that need a second TensorFlow, where there is none, are left out, and the test is skipped at its end.

    Those for Slurm are run by `tests/launch/slurm/test_real_slurm.py`.
    """
    tutorial = Tutorial(path)
    tutorial.write_files(tmp_path)
    here = environments()
    packages = {"tf-slim": "tf_slim", "optuna": "optuna"}
    available = {*here, *(name for name, module in packages.items() if importlib.util.find_spec(module))}
    left_out = []
    for command in tutorial.commands:
        if command.only_on_slurm:
            continue
        if command.requires - available:
            left_out.append(command.line)
            continue
        tutorial.run(command, tmp_path, here[command.tensorflow] if command.tensorflow else this_environment())
    if left_out:
        pytest.skip(f"not run here, of {path.name}: the commands in lines {left_out}")


def this_environment() -> Path:
    return next(iter(environments().values()))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_a_tutorial_is_short_and_says_what_is_run(path):
    tutorial = Tutorial(path)
    assert len(tutorial.text.split()) <= WORDS
    assert tutorial.files and tutorial.commands
    known = {"2.15", "2.21", "needs 2.15", "needs tf-slim", "needs optuna", "slurm", "setup"}
    for command in tutorial.commands:
        assert {word for word in command.conditions if not word.startswith("exit ")} <= known, command.line
    assert sum(bool(command.shown) for command in tutorial.commands) >= len(tutorial.commands) / 2


def test_a_line_that_is_not_printed_would_be_seen():
    output = "  12.5s  worker:0 step 314, 47.73 steps/s\nrun 20261121-133545-14c43da1: 3 tasks, logs in /tmp/a\n"
    for line in ("0.1s  worker:0 step 2, 9 steps/s", "run 20200101-000000-ffffffff: 2 tasks, logs in ...", "..."):
        assert is_shown(line, output)
    for line in ("0.1s  worker:1 step 2, 9 steps/s ago", "worker:0 step 2, 9 steps/s", "worker: step 314"):
        assert not is_shown(line, output)
