"""How the tests themselves are run: on the versions that were asked for, and what failed once more, alone."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from estimator_pipeline.compat.bootstrap import versions
from tests.support import tiers
from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import test_area
import test_budget

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
    return run_python(command, env={"TEST_FINDINGS": str(folder / "findings"), **env}, cwd=folder)


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_what_failed_is_run_once_more_alone(run_python, tmp_path, options):
    done = run(run_python, tmp_path, TESTS, *options)
    assert done.returncode == 1
    assert done.stdout.count("FLAKY: ") == 1
    assert "FLAKY: test_of_a_user.py::test_fails_beside_others\n" in done.stdout
    assert "FAILED TWICE: test_of_a_user.py::test_always_fails\n" in done.stdout
    assert done.stdout.endswith("1 flaky, 1 failed twice.\n")
    findings = (tmp_path / "findings").read_text().splitlines()
    assert [line.partition(":")[0] for line in findings] == ["FLAKY", "FAILED TWICE"]


def test_a_flaky_test_alone_is_told_and_not_red(run_python, tmp_path):
    done = run(run_python, tmp_path, TESTS.partition("def test_always_fails")[0])
    assert done.returncode == 0, done.stdout
    line = "FLAKY: test_of_a_user.py::test_fails_beside_others\n"
    assert done.stdout.endswith(f"{line}1 flaky, 0 failed twice.\n")
    assert (tmp_path / "findings").read_text() == line


def test_what_fails_everywhere_is_not_run_again(run_python, tmp_path):
    broken = "import pytest\n\n@pytest.mark.parametrize('number', range(11))\ndef test_it(number):\n    assert False\n"
    done = run(run_python, tmp_path, broken)
    assert done.returncode == 1
    assert done.stdout.endswith("11 tests failed, more than 10: they are not run again.\n")
    assert "FAILED: test_of_a_user.py::test_it[0]\n" in (tmp_path / "findings").read_text()


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
    lines = [line.split(" ", 3) for line in (tmp_path / "times").read_text().splitlines()]
    assert [name for *_, name in lines] == ["test_of_a_user.py::test_long", "test_of_a_user.py::test_short"]
    assert float(lines[0][1]) >= 0.2


@pytest.mark.skipif("EXPECTED_TENSORFLOW" not in os.environ, reason="not run by make")
def test_the_installed_tensorflow_is_the_one_that_make_was_asked_for():
    asked = os.environ["EXPECTED_TENSORFLOW"]
    found = versions.report()
    assert (found["tensorflow"] or "").startswith(asked + "."), f"asked for {asked}, found {found}"
    assert (found["tf-keras"] or "").startswith(asked + "."), f"asked for {asked}, found {found}"


def test_how_far_a_run_is_and_the_first_failure_at_once(run_python, tmp_path):
    tests = (
        "import pytest\n\n@pytest.mark.parametrize('number', range(40))\ndef test_it(number):\n    assert number != 9\n"
    )
    lines = run(run_python, tmp_path, tests).stdout.splitlines()
    failed = lines.index("FAILED test_of_a_user.py::test_it[9] (call)")
    assert [line[:20] for line in lines[:failed] if "%" in line][-1] == " 20%  8 of 40 tests,"
    before_the_next = lines[failed : next(n for n, line in enumerate(lines) if line.startswith(" 25%"))]
    assert "E   assert 9 != 9" in [" ".join(line.split()).replace("E ", "E   ") for line in before_the_next]
    assert "100%  40 of 40 tests, 1 failed" in lines
    assert not any(
        line.startswith(("....", "test_of_a_user.py ."))
        for line in lines[: lines.index("100%  40 of 40 tests, 1 failed")]
    )


NOISY = """
import atexit
import os

atexit.register(os.write, 2, b"at the end\\n")

def test_it():
    os.write(2, b"of a test\\n")

def test_crash():
    if os.environ.get("CRASH"):
        os.abort()
"""


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_nothing_but_the_progress_and_the_result(run_python, tmp_path, options):
    done = run(run_python, tmp_path, NOISY, *options)
    lines = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 0 and "of a test" not in done.stderr
    assert [line.split(",")[0] for line in lines[:-1]] == [" 50%  1 of 2 tests", "100%  2 of 2 tests"]
    assert lines[-1].strip("= ").startswith("2 passed in ") and lines[-1].startswith("====")
    if options:
        assert done.stderr == ""


def test_what_a_process_wrote_before_it_crashed(run_python, tmp_path):
    done = run(run_python, tmp_path, NOISY, "-n", "1", CRASH="1")
    assert done.returncode == 1 and "crashed" in done.stdout and "Fatal Python error: Aborted" in done.stderr


def with_our_conftest(folder):
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copytree(ROOT / "tests" / "support", folder / "tests" / "support")


def test_units_come_first_and_without_tensorflow(run_python, tmp_path):
    """conftest.py has its plugin; a file that uses TensorFlow is not even imported in the first run."""
    with_our_conftest(tmp_path)
    (tmp_path / "keras.py").write_text("__version__ = '3'\n")  # in the place of the real one, which takes seconds
    (tmp_path / "test_with_tensorflow.py").write_text(
        "import importlib\nimport keras\n\ndef test_it():\n    assert keras.__version__\n"
    )
    tests = "import importlib\n\ndef test_sum():\n    assert 1 + 1 == 2\n"
    tests += "\ndef test_sly():\n    importlib.import_module('keras')\n"
    (tmp_path / "pytest.ini").write_text("")
    done = run(run_python, tmp_path, tests, "--unit-first", *("-W", "ignore::pytest.PytestUnknownMarkWarning"))
    first, _, second = done.stdout.partition("Tests: not unit")
    assert done.returncode == 1 and "1 failed, 1 passed" in first and "1 passed, 2 deselected" in second, done.stdout
    assert "a test of the tier `unit` imports keras; mark it with @pytest.mark.tf" in first


def test_what_a_tests_tier_is_told_by(tmp_path):
    def uses(text):
        path = tmp_path / f"test_{len(list(tmp_path.iterdir()))}.py"
        path.write_text(text)
        return set(tiers.uses(path))

    assert uses("TEXT = 'import tensorflow'\n") == set()
    assert uses("def test_it():\n    import tensorflow as tf\n") == {"tensorflow"}
    assert uses("from estimator_pipeline import compat\n\ntf = compat.install()\n") == {"tensorflow"}
    assert uses("import pytest\n\npytestmark = [pytest.mark.slow, pytest.mark.tf]\n") == {"tensorflow"}
    assert uses("from subprocess import run\n") == {"processes"}
    assert uses("from tests.support.tasks_by_hand import Tasks\n") == {"processes"}


def test_a_gate_that_names_no_case_is_refused(run_python, tmp_path):
    with_our_conftest(tmp_path)
    tests = "import pytest\n\n@pytest.mark.gate('{}')\n@pytest.mark.parametrize('way', ['one', 'two'])\n"
    tests += "def test_it(way):\n    pass\n"
    ignored = ("-W", "ignore::pytest.PytestUnknownMarkWarning")
    done = run(run_python, tmp_path, tests.format("one"), "-m", "not nightly", *ignored)
    assert done.returncode == 0 and "1 passed, 1 deselected" in done.stdout, done.stdout
    done = run(run_python, tmp_path, tests.format("three"), *ignored)
    assert done.returncode == 4 and "marks `gate` name cases that are not there" in done.stderr, done.stderr


TIMES = [(40.0, "tf", "tests/engines/test_a.py::test_it[x y]"), (50.0, "unit", "tests/test_b.py::test_it")]


def test_the_budget_of_seconds(tmp_path):
    path = tmp_path / "budget.toml"
    path.write_text(test_budget.text_of(2.0, test_budget.sums(TIMES)))
    assert test_budget.read(path) == (2.0, {("engines", "tf"): 40.0, ("tests", "unit"): 50.0})
    text = "".join(f"{seconds} 1.0 {tier} {test}\n" for seconds, tier, test in TIMES)
    assert test_budget.read_times(text) == TIMES
    said, is_kept = test_budget.compare(test_budget.read(path), TIMES, machine=2.0)
    assert is_kept and said.startswith("Budget of the tests: 90 s taken, 108 s allowed")
    grown = [*TIMES, (25.0, "tf", "tests/engines/test_a.py::test_long")]
    said, is_kept = test_budget.compare(test_budget.read(path), grown, machine=2.0)
    assert not is_kept and "\n  engines (tf): 65.0 s, of 40.0 s\n" in said and "test_long" in said
    # A machine that is half as fast takes twice as long for all.
    assert test_budget.compare(test_budget.read(path), grown, machine=4.0)[1]
    slow = [(2 * seconds, tier, test) for seconds, tier, test in TIMES]
    assert test_budget.compare(test_budget.read(path), slow, machine=2.0)[1]


@pytest.mark.nightly
def test_a_budget_that_is_not_kept_is_red(run_python, tmp_path):
    (tmp_path / "budget.toml").write_text(test_budget.text_of(1.0, {("tests", "unit"): 0.001, ("engines", "tf"): 0.01}))
    with_our_conftest(tmp_path)
    tests = "def test_it():\n    assert sum(range(5_000_000))\n"
    done = run(run_python, tmp_path, tests, "--budget", "budget.toml", "-W", "ignore::pytest.PytestUnknownMarkWarning")
    assert done.returncode == 1 and "1 passed" in done.stdout, done.stdout
    assert "test_of_a_user.py::test_it" in done.stdout.partition("longest tests")[2]
    assert (tmp_path / "findings").read_text().startswith("Budget of the tests: ")


def test_the_tests_of_an_area():
    files = test_area.files_of("doctor")
    assert "tests/doctor/test_doctor.py" in files and "tests/inputs/test_sampler.py" not in files
    assert "tests/inputs/test_sampler.py" in test_area.files_of("inputs")
    with pytest.raises(SystemExit, match="no part of estimator_pipeline is called 'docter'"):
        test_area.files_of("docter")


def test_a_warm_process_is_as_a_fresh_one(run_python, run_warm, tmp_path):
    (tmp_path / "program.py").write_text(
        "import helper, sys\nprint(sys.argv, __name__, helper.__file__)\nsys.exit('so')\n"
    )
    (tmp_path / "helper.py").touch()
    show = "import os, sys; print(sys.argv, sys.stdin.read(), os.environ.get('OF_A_TEST'), os.getcwd()); sys.exit(7)"
    for args in (
        ["-c", show, "-m"],
        [tmp_path / "program.py", "-c"],
        ["-m", "program"],
        ["-c", "import os; os.abort()"],
    ):
        options = {"env": {"OF_A_TEST": "x"}, "cwd": tmp_path, "stdin": "said"}
        fresh, warm = run_python(args, **options), run_warm(args, **options)
        assert (warm.returncode, warm.stdout, warm.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
