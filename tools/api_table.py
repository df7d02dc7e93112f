"""Table of the symbols of tf.estimator that work on each TensorFlow version, from recorded test results.

    python tools/api_table.py record --tf 2.21 [pytest's arguments]    run the tests and merge their results
    python tools/api_table.py write                                    docs/reference/estimator-api.md from the records
    python tools/api_table.py collect                                  symbol -> tests as JSON, without running them

A test of tests/compat/surface/ names the symbols that it covers with `@pytest.mark.symbols("tf.estimator.X", …)`. If a
symbol no longer exists, its test checks the error and records it with `record_property("raises", "CompatError")`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = "tests/compat/surface"
RESULTS = ROOT / "tests" / "records" / "api_results.json"
TABLE = ROOT / "docs" / "reference" / "estimator-api.md"
EXPORTED = ROOT / "tests" / "records" / "export_names.json"
VERSIONS = tuple(f"2.{minor}" for minor in range(15, 22))
# Outside tf.estimator, but useless without it.
BESIDES = ("tf.keras.estimator.model_to_estimator", "tf.compat.v1.keras.estimator.model_to_estimator")
SHOWN = 2  # tests named in a row

# The outcome of a test is the first of these that any of its cases has.
ORDER = ("failed", "passed", "skipped")

HEAD = """\
# `tf.estimator` symbols by TensorFlow version

<!-- Written by `python tools/api_table.py write`; do not edit. -->

Every public name of `tf.estimator` and `tf.compat.v1.estimator` in TensorFlow 2.15, and test results on each version.
"works": all tests of the name passed. "—": not tested. Each row names the most specific tests, which `pytest` can run.

"""


def symbols() -> list[str]:
    """Return all public names, as recorded on TensorFlow 2.15, and the two Keras functions that build Estimators."""
    recorded = json.loads(EXPORTED.read_text(encoding="utf-8"))
    below = [name for name in recorded if name.startswith(("tf.estimator.", "tf.compat.v1.estimator."))]
    return sorted([*below, *BESIDES], key=lambda name: (name.startswith("tf.compat"), name))


def functions(path: Path) -> set[str]:
    """Return the names of the test functions of a file, without importing it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def exists(test: str) -> bool:
    """Return whether `path::function` exists."""
    path, _, function = test.partition("::")
    return (ROOT / path).is_file() and function in functions(ROOT / path)


class Collector:
    """A pytest plugin that collects the symbols and the outcome of each test function."""

    def __init__(self) -> None:
        self.symbols: dict[str, set[str]] = {}
        self.outcomes: dict[str, set[str]] = {}
        self.raises: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)  # before -k and -m deselect tests
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            named = {name for mark in item.iter_markers("symbols") for name in mark.args}
            if named:
                self.symbols.setdefault(self.function(item.nodeid), set()).update(named)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.function(report.nodeid)
        if test not in self.symbols or (report.when != "call" and report.passed):
            return
        # For a reader of the table an expected failure is a failure.
        outcome = "failed" if hasattr(report, "wasxfail") else report.outcome
        self.outcomes.setdefault(test, set()).add(outcome)
        noted = dict(report.user_properties)
        if "raises" in noted:
            self.raises[test] = str(noted["raises"])

    @staticmethod
    def function(nodeid: str) -> str:
        return nodeid.partition("[")[0]

    def results(self) -> dict[str, dict[str, Any]]:
        """Return test -> its outcome, its symbols, and the error that they raise, if any."""
        results: dict[str, dict[str, Any]] = {}
        for test, outcomes in sorted(self.outcomes.items()):
            outcome = next(outcome for outcome in ORDER if outcome in outcomes)
            results[test] = {"outcome": outcome, "symbols": sorted(self.symbols[test])}
            if test in self.raises:
                results[test]["raises"] = self.raises[test]
        return results


def collect() -> dict[str, list[str]]:
    """Return symbol -> tests that carry its marker. Imports the tests, and so TensorFlow."""
    collector = Collector()
    with contextlib.redirect_stdout(sys.stderr):
        code = pytest.main(["--collect-only", "-qq", str(ROOT / TESTS)], plugins=[collector])
    if code:
        raise SystemExit(f"the tests of {TESTS} cannot be collected (pytest's exit code {int(code)})")
    tests: dict[str, list[str]] = {}
    for test, names in sorted(collector.symbols.items()):
        for name in names:
            tests.setdefault(name, []).append(test)
    return tests


def read() -> dict[str, Any]:
    """Return the records: version -> {"tensorflow", "python", "tests"}."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def record(version: str, arguments: Iterable[str]) -> int:
    """Run the tests on the installed TensorFlow, which must be `version`, and merge their results.

    A recorded test that is not run now keeps its outcome. A test without a marker or that no longer exists is dropped.
    """
    installed = metadata.version("tensorflow")
    if not installed.startswith(f"{version}."):
        raise SystemExit(f"--tf {version}: this Python has TensorFlow {installed}")
    collector = Collector()
    code = pytest.main([str(ROOT / TESTS), *arguments], plugins=[collector])
    if not collector.symbols:
        raise SystemExit(f"no test of {TESTS} was collected (pytest's exit code {int(code)})")
    results = read()
    before = results.get(version, {}).get("tests", {})
    tests = {
        test: {**entry, "symbols": sorted(collector.symbols[test])}
        for test, entry in {**before, **collector.results()}.items()
        if test in collector.symbols
    }
    python = ".".join(platform.python_version_tuple()[:2])
    results[version] = {"tensorflow": installed, "python": python, "tests": dict(sorted(tests.items()))}
    ordered = {name: results[name] for name in sorted(results, key=lambda name: int(name.partition(".")[2]))}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    return int(code)


def state(symbol: str, tests: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the result of a symbol on one version, as the text of a table cell."""
    entries = [entry for entry in tests.values() if symbol in entry["symbols"] and entry["outcome"] != "skipped"]
    if not entries:
        return "—"
    if any(entry["outcome"] == "failed" for entry in entries):
        return "fails"
    raised = sorted({entry["raises"] for entry in entries if "raises" in entry})
    return f"raises {', '.join(raised)}" if raised else "works"


def named_tests(symbol: str, results: Mapping[str, Any]) -> list[str]:
    """Return the tests of a symbol on any version, the most specific ones first."""
    sizes: dict[str, int] = {}
    for recorded in results.values():
        for test, entry in recorded["tests"].items():
            if symbol in entry["symbols"]:
                sizes[test] = len(entry["symbols"])
    return sorted(sizes, key=lambda test: (sizes[test], test))


def table(results: Mapping[str, Any]) -> str:
    """Return the whole page."""
    lines = [HEAD + "| TensorFlow | Python | tests |", "| --- | --- | --- |"]
    for version in VERSIONS:
        entry = results.get(version)
        cells = (entry["tensorflow"], entry["python"], len(entry["tests"])) if entry else (version, "—", "not tried")
        lines.append("| {} | {} | {} |".format(*cells))
    lines += ["", f"| symbol | {' | '.join(VERSIONS)} | tests |", f"| --- |{' --- |' * (len(VERSIONS) + 1)}"]
    for symbol in symbols():
        cells = [state(symbol, results[version]["tests"]) if version in results else "—" for version in VERSIONS]
        tests = named_tests(symbol, results)
        shown = [f"`{test}`" for test in tests[:SHOWN]]
        if len(tests) > SHOWN:
            shown.append(f"{len(tests) - SHOWN} more")
        lines.append(f"| `{symbol}` | {' | '.join(cells)} | {', '.join(shown) or 'none'} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the tests and merge their results")
    recording.add_argument("--tf", required=True, choices=VERSIONS, help="the installed minor version")
    commands.add_parser("write", help="write docs/reference/estimator-api.md")
    commands.add_parser("collect", help="print symbol -> tests as JSON")
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "record":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.command == "record":
        return record(options.tf, rest)
    if options.command == "write":
        TABLE.write_text(table(read()), encoding="utf-8")
    else:
        json.dump(collect(), sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
