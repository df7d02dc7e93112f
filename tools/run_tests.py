"""Runner of pytest that retries each failed test in a separate process, after all other tests have finished.

    python tools/run_tests.py [--unit-first] [--area ROOM] [--budget FILE] ARGUMENTS OF PYTEST

A test that fails again is a failure. A test that passes is flaky: its result depends on parallel tests or on the speed
of the machine. It is printed as `FLAKY: NAME`, and is a defect of the test or of the product. Nothing is retried during
the run itself. More than `MOST` failures are not retried.

Instead of pytest's lines, one line shows the progress and, after a tenth of the work, the estimated remaining time.
Failures are printed at once, the first one with its traceback. What TensorFlow and other libraries write beside the
tests, from threads that no test waits for, is printed only if pytest or one of its processes crashes. `-v` prints
pytest's own lines, and everything that is written.

--unit-first: first run the tests of the tier `unit` (tests/support/tiers.py) separately, without the possibility to
    import TensorFlow: their result is available within the first minute.
--area: run only the tests of a part of the package (`parity`, `inputs`, `run_config`) and of the parts that import it.
--budget: fail if the tests take more time than the file allows (tools/test_budget.py).

If the environment variable TEST_FINDINGS names a file, the lines of flaky and failed tests, and of a budget that is
exceeded, are appended to it. If TEST_TIMES names one, it gets a line per test: CPU seconds, elapsed seconds, tier and
name.

--durations=25 also prints the files that took longest, because many short tests take as long as one long test.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import test_area
import test_budget

from tests.support import tiers

ROOT = Path(__file__).resolve().parents[1]
MOST = 10
# Number of files in the list of the slowest.
FILES = 40
TESTS_FAILED, NO_TESTS = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED
# Share of the work before which the remaining time is not known: processes start, and import TensorFlow.
KNOWN_FROM = 0.1
# Options with which pytest's own lines are printed, and what tests and libraries write.
ALL_OUTPUT = {"-s", "-v", "-vv", "-vvv", "--verbose", "--capture=no", "--pdb", "--collect-only", "--co"}


class Failures:
    """A plugin that collects the failed tests and the durations, of this process or of its xdist workers."""

    def __init__(self) -> None:
        self.names: dict[
            str, None
        ] = {}  # in order, without duplicates: a test can fail in its body and in its teardown
        self.seconds: collections.Counter[str] = collections.Counter()  # of each test
        self.cpu_seconds: collections.Counter[str] = collections.Counter()  # CPU time of each test
        self.tiers: dict[str, str] = {}
        self.crashed = False  # an xdist worker

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: Any) -> None:
        self.crashed = self.crashed or error is not None

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        seconds = [value for name, value in report.user_properties if name == "cpu_seconds"]  # by tests/conftest.py
        self.cpu_seconds[report.nodeid] += sum(seconds)
        self.tiers[report.nodeid] = next((tier for tier in tiers.TIERS if tier in report.keywords), "-")
        if report.failed:
            self.names[report.nodeid] = None

    def pytest_terminal_summary(self, terminalreporter: Any, config: Any) -> None:
        if config.getoption("durations") and self.seconds:
            files: collections.Counter[str] = collections.Counter()
            for name, seconds in self.seconds.items():
                files[name.partition("::")[0]] += seconds
            terminalreporter.section(f"slowest {FILES} files of {len(files)}")
            for name, seconds in files.most_common(FILES):
                terminalreporter.write_line(f"{seconds:8.1f}s {name}")
            terminalreporter.write_line(f"{sum(files.values()):8.1f}s all")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.names[report.nodeid] = None


class Progress:
    """A plugin that prints the progress: one changing line on a terminal, otherwise a line for every 5 %."""

    def __init__(self, config: Any) -> None:
        self.reporter = config.pluginmanager.get_plugin("terminalreporter")
        self.reporter.showfspath = False
        self.config = config
        # As with -q: no header, no line about the collection.
        config.option.verbose = -1
        self.total = 0
        self.weights: dict[str, float] = {}  # of each test: the average seconds in the budget of its room and tier
        self.done: set[str] = set()
        self.weight, self.whole = 0.0, 1.0  # of the finished tests, and of all
        self.failed = 0
        self.began = time.monotonic()
        self.printed = 0

    @staticmethod
    def is_of_use(config: Any) -> bool:
        return config.getoption("verbose") == 0 and not config.getoption("collectonly")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        # xdist prints no lines about its processes.
        if xdist := self.config.pluginmanager.get_plugin("dsession"):
            xdist.terminal = None
            self.config.pluginmanager.unregister(name="terminaldistreporter")

    def pytest_collection_finish(self, session: Any) -> None:
        if session.items:  # xdist's controller has none
            self._begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Any) -> None:
        self._begin(ids)

    def _begin(self, names: Sequence[str]) -> None:
        self.total = len(names)
        self.began = time.monotonic()
        keys = {name: (test_budget.room_of(name), _tier_of(name)) for name in names}
        counts = collections.Counter(keys.values())
        budget = test_budget.read(test_budget.BUDGET)[1] if test_budget.BUDGET.exists() else {}
        # A small weight for tests that are not in the budget yet.
        self.weights = {name: budget.get(key, 0.0) / counts[key] + 0.01 for name, key in keys.items()}
        self.whole = sum(self.weights.values())

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: Any) -> Any:
        category, _, word = yield
        return (
            category,
            "",
            word if report.failed else "",
        )  # the test is counted, but no dot is printed; the summary has the word

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed += 1
            self._write(f"FAILED {report.nodeid} ({report.when})\n")
            if self.failed == 1:
                self._write(f"{report.longreprtext}\n")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if nodeid in self.done:
            return
        self.done.add(nodeid)
        self.weight += self.weights.get(nodeid, 0.0)
        is_last = len(self.done) >= self.total
        share = 1.0 if is_last else min(max(self.weight / self.whole, 0.001), 0.99)
        step = int(share * (1000 if self.reporter.isatty else 20) + 1e-6)
        if step != self.printed:
            self.printed = step
            left = (time.monotonic() - self.began) * (1 / share - 1)
            is_known = KNOWN_FROM <= share < 1
            rest = f", about {left // 60:.0f} min {left % 60:2.0f} s left" if is_known else ""
            failed = f", {self.failed} failed" if self.failed else ""
            line = f"{share:4.0%}  {len(self.done)} of {self.total} tests{failed}{rest}"
            self._write(f"\r{line}\033[K" if self.reporter.isatty and not is_last else f"{line}\n")

    def pytest_sessionfinish(self) -> None:
        self.config.option.verbose = 0  # the summary is pytest's

    def _write(self, text: str) -> None:
        clear = "\r\033[K" if self.reporter.isatty and not text.startswith("\r") else ""
        self.reporter.write(clear + text, flush=True)


def _tier_of(name: str) -> str:
    """Return the tier of a test by its file: xdist's controller knows the names only."""
    if os.environ.get("TESTS_WITHOUT_TENSORFLOW") == "1":
        return "unit"
    path = ROOT / name.partition("::")[0]
    if tiers.starts_clusters(path):
        return "cluster"
    used = tiers.uses(path) if path.is_file() else ()
    # Tests that need neither have run before; here they start processes by a fixture.
    return "tf" if "tensorflow" in used and "processes" not in used else "process"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: Any) -> None:
    # Only in xdist's controller: its workers have no terminal.
    if not hasattr(config, "workerinput") and Progress.is_of_use(config):
        config.pluginmanager.register(Progress(config))


def main(arguments: list[str]) -> int:
    # As in `python -m pytest`, instead of this file's folder.
    sys.path[:3] = [os.getcwd()]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--unit-first", action="store_true")
    parser.add_argument("--area", default="")
    parser.add_argument("--budget", default="")
    options, arguments = parser.parse_known_args(arguments)
    if options.budget:
        return _within_budget(options, arguments)
    if options.area:
        arguments += test_area.files_of(options.area)
    if options.unit_first:
        return _unit_first(arguments)
    return _run(arguments)


def _run(arguments: list[str]) -> int:
    failures = Failures()
    if ALL_OUTPUT.isdisjoint(arguments):
        # Progress prints the percentage. Warnings that a test must not cause are errors (pytest.ini).
        arguments = ["-o", "console_output_style=classic", "-rfE", "--disable-warnings", *arguments]
        with tempfile.TemporaryFile() as file:
            with _stderr_in(file.fileno()):
                code = pytest.main(arguments, plugins=[failures, sys.modules[__name__]])
            if failures.crashed or code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
                file.seek(0)
                sys.stderr.write(file.read().decode(errors="replace"))
    else:
        code = pytest.main(arguments, plugins=[failures, sys.modules[__name__]])
    times = [
        f"{failures.cpu_seconds[name]:.3f} {seconds:.3f} {failures.tiers[name]} {name}\n"
        for name, seconds in failures.seconds.most_common()
    ]
    _append("TEST_TIMES", "".join(times))
    if code != TESTS_FAILED or not failures.names:
        return int(code)
    if len(failures.names) > MOST:
        line = f"{len(failures.names)} tests failed, more than {MOST}: they are not run again.\n"
        print(f"\n{line}", end="", flush=True)
        _append("TEST_FINDINGS", f"{line}FAILED: {next(iter(failures.names))}\n")
        return int(code)
    print(f"\nOnce more, alone: {len(failures.names)} that failed.", flush=True)
    again = [name for name in failures.names if not _passes_alone(name)]
    flaky = [name for name in failures.names if name not in again]
    print()
    lines = "".join([*(f"FLAKY: {name}\n" for name in flaky), *(f"FAILED TWICE: {name}\n" for name in again)])
    print(lines, end="")
    _append("TEST_FINDINGS", lines)
    print(f"{len(flaky)} flaky, {len(again)} failed twice.", flush=True)
    return int(TESTS_FAILED) if again else 0


@contextlib.contextmanager
def _stderr_in(descriptor: int) -> Iterator[None]:
    """Write what this process and its children write to stderr, C++ code included, to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def _unit_first(arguments: list[str]) -> int:
    """Run this file twice, for the tier `unit` and for the other tests, and return the exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", dest="marks", default="")
    options, arguments = parser.parse_known_args(arguments)
    codes = []
    for tier, variables in (("unit", {"TESTS_WITHOUT_TENSORFLOW": "1"}), ("not unit", {})):
        marks = f"({options.marks}) and {tier}" if options.marks else tier
        print(f"Tests: {marks}", flush=True)
        command = [sys.executable, __file__, "-m", marks, *arguments]
        codes.append(subprocess.run(command, check=False, env={**os.environ, **variables}).returncode)
    return next((code for code in codes if code not in (0, NO_TESTS)), min(codes))


def _within_budget(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run this file, and return its exit code, or 1 if it took more seconds than the budget allows."""
    before = test_budget.machine_seconds()
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        command = [sys.executable, __file__, *(["--unit-first"] if options.unit_first else []), *arguments]
        code = subprocess.run(command, check=False, env={**os.environ, "TEST_TIMES": str(times)}).returncode
        measured = test_budget.read_times(times.read_text()) if times.exists() else []
    machine = max(before, test_budget.machine_seconds())
    report, is_kept = test_budget.compare(test_budget.read(Path(options.budget)), measured, machine=machine)
    print(report, flush=True)
    if not is_kept:
        _append("TEST_FINDINGS", f"{report.splitlines()[0]}\n")
    return code or (0 if is_kept else 1)


def _append(variable: str, lines: str) -> None:
    if variable in os.environ:
        with open(os.environ[variable], "a", encoding="utf-8") as file:
            file.write(lines)


def _passes_alone(name: str) -> bool:
    # Without parallel tests, and without overwriting the cache of the whole run.
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", name]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout, flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
