"""How the tests themselves are run: on the versions that were asked for, and what failed once more, alone."""

from __future__ import annotations

import os

import exhaustive
import pytest
from conftest import ROOT

from estimator_pipeline.compat import versions

TESTS = """
import os
import pathlib

SEEN = pathlib.Path(__file__).parent / "seen"

def test_passes():
    pass

def test_fails_beside_others():
    first = not SEEN.exists()
    SEEN.touch()
    assert not first

def test_always_fails():
    assert 1 == 2
"""


def run(run_python, folder, tests, *options, **env):
    (folder / "test_of_a_user.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [ROOT / "tools" / "run_tests.py", "-p", "no:estimator-pipeline", *options]
    return run_python(command, env={"FLAKY_TESTS": str(folder / "flaky"), **env}, cwd=folder)


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_what_failed_is_run_once_more_alone(run_python, tmp_path, options):
    done = run(run_python, tmp_path, TESTS, *options)
    assert done.returncode == 1
    assert done.stdout.count("FLAKY: ") == 1
    assert "FLAKY: test_of_a_user.py::test_fails_beside_others\n" in done.stdout
    assert "FAILED TWICE: test_of_a_user.py::test_always_fails\n" in done.stdout
    assert done.stdout.endswith("1 flaky, 1 failed twice.\n")


def test_a_flaky_test_alone_is_told_and_not_red(run_python, tmp_path):
    done = run(run_python, tmp_path, TESTS.partition("def test_always_fails")[0])
    assert done.returncode == 0, done.stdout
    line = "FLAKY: test_of_a_user.py::test_fails_beside_others\n"
    assert done.stdout.endswith(f"{line}1 flaky, 0 failed twice.\n")
    assert (tmp_path / "flaky").read_text() == line


def test_what_fails_everywhere_is_not_run_again(run_python, tmp_path):
    broken = "import pytest\n\n@pytest.mark.parametrize('number', range(11))\ndef test_it(number):\n    assert False\n"
    done = run(run_python, tmp_path, broken)
    assert done.returncode == 1
    assert done.stdout.endswith("11 tests failed, more than 10: they are not run again.\n")


@pytest.mark.parametrize(
    ("tests", "code"), [("def test_it():\n    pass\n", 0), ("", 5)], ids=["all pass", "there are none"]
)
def test_nothing_is_added_where_nothing_failed(run_python, tmp_path, tests, code):
    done = run(run_python, tmp_path, tests)
    assert done.returncode == code
    assert "Once more" not in done.stdout


def test_a_file_that_cannot_be_collected_is_red(run_python, tmp_path):
    assert run(run_python, tmp_path, "import no_such_module_anywhere\n").returncode == 2


def test_the_slowest_files_are_told(run_python, tmp_path):
    done = run(run_python, tmp_path, "def test_it():\n    pass\n", "--durations=1", "-n", "2")
    assert "slowest 40 files of 1 " in done.stdout
    assert any(line.endswith("s test_of_a_user.py") for line in done.stdout.splitlines()), done.stdout


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_how_long_each_took_is_written_where_it_is_asked_for(run_python, tmp_path, options):
    tests = "import time\n\ndef test_short():\n    pass\n\ndef test_long():\n    time.sleep(0.2)\n"
    run(run_python, tmp_path, tests, *options, TEST_TIMES=str(tmp_path / "times"))
    lines = [line.split(" ", 1) for line in (tmp_path / "times").read_text().splitlines()]
    assert [name for _, name in lines] == ["test_of_a_user.py::test_long", "test_of_a_user.py::test_short"]
    assert float(lines[0][0]) >= 0.2


@pytest.mark.skipif("EXPECTED_TENSORFLOW" not in os.environ, reason="not run by make")
def test_the_installed_tensorflow_is_the_one_that_make_was_asked_for():
    asked = os.environ["EXPECTED_TENSORFLOW"]
    found = versions.report()
    assert (found["tensorflow"] or "").startswith(asked + "."), f"asked for {asked}, found {found}"
    assert (found["tf-keras"] or "").startswith(asked + "."), f"asked for {asked}, found {found}"


def test_what_make_test_leaves_out():
    text = "# Why.\ntests/slow.py::*\n\n!tests/slow.py::test_it[one]\ntests/other.py::test_[*]\n"
    is_left_out = exhaustive.chooser(text)
    names = [
        "tests/slow.py::test_it[one]",
        "tests/slow.py::test_it[two]",
        "tests/other.py::test_a",
        "tests/fast.py::test_",
    ]
    assert [is_left_out(name) for name in names] == [False, True, False, False]
    assert exhaustive.without_a_test(text, names) == ["tests/other.py::test_[*]"]
    text = text.replace("::test_[*]", "::test_a")
    assert exhaustive.idle(text, names) == []
    twice = ["tests/other.py::test_a", "tests/other.py::*", "!tests/fast.py::*"]
    assert exhaustive.idle(text + "\n".join(twice[1:]), names) == twice


@pytest.mark.nightly
def test_every_line_of_the_list_fits_a_test_and_is_needed(run_python):
    done = run_python(["-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--collect-only", "-q"], timeout=400)
    assert done.returncode == 0, done.stdout[-4000:]
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert exhaustive.without_a_test(exhaustive.LIST.read_text(), names) == []
    assert exhaustive.idle(exhaustive.LIST.read_text(), names) == []
