"""What all tests share: a way to run Python as a process of its own."""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.utils.logger import logger
from tests.support import tiers, warm_python
from tests.support.launched_jobs import SMALL
from tests.support.processes import ROOT, environment, run_python_process

# Set by tools/run_tests.py for the tests of the tier `unit`, which come first.
WITHOUT_TENSORFLOW = os.environ.get("TESTS_WITHOUT_TENSORFLOW") == "1"
# Whether the installed TensorFlow has its own tf.estimator, as 2.15 has.
NATIVE = versions.minor(versions.tensorflow_version()) < versions.FIRST_WITHOUT_ESTIMATOR
# Mark -> why its tests are skipped on the installed TensorFlow.
SKIPPED = (
    {"keras_3": "TensorFlow 2.15 has no Keras 3", "since_2_16": "for TensorFlow 2.16 and later"}
    if NATIVE
    else {"only_2_15": "for TensorFlow 2.15"}
)


def pytest_report_header() -> str:
    """What decides about the results: a log says which versions it is about."""
    return "versions: " + ", ".join(f"{name} {version}" for name, version in versions.report().items() if version)


class _NoTensorFlow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds TensorFlow, and refuses it to whoever imports it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in ("tensorflow", "tf_keras", "keras"):
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"a test of the tier `unit` imports {module.__name__}; mark it with @pytest.mark.tf")


def pytest_configure(config: pytest.Config) -> None:
    # In the background of a shell it is ignored, and what is started inherits that: no program would hear it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if WITHOUT_TENSORFLOW:
        sys.meta_path.insert(0, _NoTensorFlow())


class _LeftAlone(pytest.Module):
    def collect(self) -> list[Any]:
        return []


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    """Files that cannot be imported without TensorFlow are left alone without it, also where they are named."""
    if WITHOUT_TENSORFLOW and "tensorflow" in tiers.uses(module_path):
        return _LeftAlone.from_parent(parent, path=module_path)
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as `nightly` what the marks `gate` leave out, and skips what is for another TensorFlow. Clusters come last;
    first where several processes run the tests, one of which is at the clusters all the time."""
    unknown: dict[str, set[str]] = {}  # test -> cases that its mark names, and that were not seen yet
    for item in items:
        item.add_marker(tiers.tier_of(item))
        for mark, reason in SKIPPED.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))
        gate = item.get_closest_marker("gate")
        if gate is not None:
            case = item.callspec.id  # type: ignore[attr-defined]
            unknown.setdefault(item.nodeid.partition("[")[0], set(gate.args)).discard(case)
            if case not in gate.args:
                item.add_marker("nightly")
    # A name that no case bears leaves out the whole test. Where tests were chosen by name, not all cases are here.
    stale = {name: cases for name, cases in unknown.items() if cases}
    if stale and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"marks `gate` name cases that are not there: {stale}")
    parallel = hasattr(config, "workerinput")
    items.sort(key=lambda item: (item.get_closest_marker("cluster") is not None) != parallel)


def pytest_collection_finish() -> None:
    """What is loaded by now stays; Python would look through it again and again, for up to a sixth of a test's time."""
    _told[0] = _cpu_seconds()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _cpu_seconds() -> float:
    """What this process has worked by now, all of its threads, and the processes that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


_told = [0.0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    """Each report tells what was worked since the one before; work beside the tests does not count in it."""
    report = yield
    now = _cpu_seconds()
    report.user_properties.append(("cpu_seconds", now - _told[0]))
    _told[0] = now
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes run the tests, a file stays in one of them, and so do all the clusters together."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "clusters" if tiers.starts_clusters(ROOT / path) else path

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def _leaves_tensorflow_as_it_was() -> Iterator[None]:
    """No test leaves behind what TensorFlow holds by thread: the next one of this process would stand in it.

    A condition on summaries, left by a `fit` that broke off, lost another file's events, where that came next.
    """
    yield
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "summary"):  # the second: a test's own, or one whose import was broken off
        return
    left = {
        "a strategy's scope": tf.distribute.has_strategy(),
        "a graph": not tf.executing_eagerly(),
        "a step of summaries": tf.summary.experimental.get_step() is not None,
    }
    assert not any(left.values()), f"left behind by this test: {[name for name, is_left in left.items() if is_left]}"


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """caplog with what the Estimator and this package log, from INFO on.

    Whatever ran in this process before: absl or a program may have cut TensorFlow's logger off, or set its level.
    """
    for each in (logging.getLogger("tensorflow"), logger):
        monkeypatch.setattr(each, "propagate", True)
        caplog.set_level(logging.INFO, each.name)
    return caplog


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_python(args, env=None, timeout=120, cwd=None, stdin="")` gives back a CompletedProcess, output as text.

    The child does not see this process's TF_CONFIG and TF_USE_LEGACY_KERAS; `env` adds variables, or takes one
    away where its value is None. The working directory is the repository unless `cwd` says otherwise.
    """
    return run_python_process


@pytest.fixture(scope="session")
def run_warm() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """As `run_python`, in a copy of a process that has imported TensorFlow and called `compat.install()`: seconds less.

    Not for what depends on how an interpreter starts, and on variables that TensorFlow reads at its import.
    """
    warm: warm_python.WarmPython | None = None

    def run(
        args: Iterable[object],
        env: Mapping[str, str | None] | None = None,
        timeout: float = 120,
        *,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        nonlocal warm
        warm = warm or warm_python.WarmPython(environment(), str(ROOT))
        try:
            return warm.run([*map(str, args)], environment(env), str(cwd or ROOT), stdin, timeout)
        except subprocess.TimeoutExpired as error:
            pytest.fail(str(error))

    yield run
    if warm is not None:
        warm.close()


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of legacy programs: what a person wrote for tf.estimator, without a thought of this package."""
    return ROOT / "tests" / "programs"


@pytest.fixture(scope="session")
def records() -> Path:
    """The folder of recorded behaviour."""
    return ROOT / "tests" / "records"


@pytest.fixture(scope="session")
def native() -> bool:
    """Whether the installed TensorFlow brings its own tf.estimator (2.15). Imports no TensorFlow."""
    return NATIVE


@pytest.fixture
def run_environment() -> dict[str, str]:
    """The environment that `run_python` gives a child, for a test that starts processes by itself."""
    return environment()


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What the package says as a warning while the test runs."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    # A test that ran before may have asked TensorFlow for silence.
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `data_dir` of TensorFlow Datasets with the data set "digits"."""
    from estimator_pipeline.inputs.sources.digits import prepare

    folder = tmp_path_factory.mktemp("tfds")
    prepare(str(folder))
    return folder


@pytest.fixture
def launch(run_python: Callable[..., Any], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`launch(job, *options, settings=SMALL, timeout=240)`: a job file run small, its `--json` document given back."""

    def run(job, *options, settings=SMALL, timeout=240):
        model_dir = tmp_path / "model"
        changes = [x for s in [*settings, f"run.model_dir={model_dir}"] for x in ("--set", s)]
        done = run_python(
            ["-m", "estimator_pipeline", "launch", job, "--json", "--timeout", timeout - 20, *options, *changes],
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        document = json.loads(done.stdout)
        document["model_dir"] = model_dir
        return document

    return run
