"""docs/reference/estimator-api.md: every public name has a row with a test, and the page says what was recorded."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("api_table", ROOT / "tools" / "api_table.py")
api_table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api_table)

SYMBOLS = api_table.symbols()


@pytest.fixture(scope="module")
def carriers(run_python):
    """Symbol -> tests that carry its marker, collected and not run."""
    done = run_python([ROOT / "tools" / "api_table.py", "collect"])
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout[done.stdout.index("{") :])


def test_the_list_of_names_is_that_of_2_15():
    assert len(SYMBOLS) == 83 + 74 + 2
    assert len(set(SYMBOLS)) == len(SYMBOLS)


@pytest.mark.nightly
def test_every_name_has_a_test(carriers):
    assert [name for name in SYMBOLS if name not in carriers] == []


@pytest.mark.nightly
def test_no_marker_names_what_does_not_exist(carriers):
    assert sorted(set(carriers) - set(SYMBOLS)) == []


def test_every_row_has_a_test_that_exists():
    results = api_table.read()
    for name in SYMBOLS:
        tests = api_table.named_tests(name, results)
        assert tests, name
        assert [test for test in tests if not api_table.exists(test)] == [], name


@pytest.mark.nightly
def test_no_outcome_is_of_a_marker_that_is_gone(carriers):
    recorded = {
        (name, test)
        for version in api_table.read().values()
        for test, entry in version["tests"].items()
        for name in entry["symbols"]
    }
    assert sorted(recorded - {(name, test) for name, tests in carriers.items() for test in tests}) == []


def test_the_page_is_what_was_recorded():
    page = (ROOT / "docs" / "reference" / "estimator-api.md").read_text(encoding="utf-8")
    assert page == api_table.table(api_table.read()), f"run: {Path(sys.executable).name} tools/api_table.py write"


def test_cells():
    def entry(outcome, **more):
        return {"outcome": outcome, "symbols": ["a"], **more}

    def cell(*entries):
        return api_table.state("a", {str(i): one for i, one in enumerate(entries)})

    assert cell() == cell(entry("skipped")) == cell({"outcome": "passed", "symbols": ["b"]}) == "—"
    assert cell(entry("passed"), entry("skipped")) == "works"
    assert cell(entry("passed"), entry("failed")) == "fails"
    assert cell(entry("passed"), entry("passed", raises="CompatError")) == "raises CompatError"


def test_outcomes_are_collected_by_function_and_the_worst_counts(tmp_path):
    """A run of pytest with the plugin over tests of each kind."""
    (tmp_path / "test_kinds.py").write_text(
        "import pytest\n"
        "@pytest.mark.symbols('one')\n"
        "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.symbols('two')), 3])\n"
        "def test_cases(n):\n    assert n != 3\n"
        "@pytest.mark.symbols('three')\n"
        "def test_says(record_property):\n    record_property('raises', 'Gone')\n"
        "@pytest.mark.symbols('four')\n"
        "def test_not_here():\n    pytest.skip('x')\n"
        "@pytest.mark.symbols('five')\n@pytest.mark.xfail\n"
        "def test_known():\n    assert False\n"
        "@pytest.fixture\ndef broken():\n    raise ValueError\n"
        "@pytest.mark.symbols('six')\n"
        "def test_setup(broken):\n    pass\n"
        "def test_unmarked():\n    pass\n"
    )
    collector = api_table.Collector()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    symbols(*names): x\n")
    options = ["-q", "-p", "no:cacheprovider", "-c", str(tmp_path / "pytest.ini"), str(tmp_path)]
    pytest.main(options, plugins=[collector])
    found = {test.partition("::")[2]: entry for test, entry in collector.results().items()}
    assert found == {
        "test_cases": {"outcome": "failed", "symbols": ["one", "two"]},
        "test_says": {"outcome": "passed", "symbols": ["three"], "raises": "Gone"},
        "test_not_here": {"outcome": "skipped", "symbols": ["four"]},
        "test_known": {"outcome": "failed", "symbols": ["five"]},
        "test_setup": {"outcome": "failed", "symbols": ["six"]},
    }
