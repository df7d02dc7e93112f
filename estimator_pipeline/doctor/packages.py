"""Checks of package versions and of environment variables, from package metadata and without imports.

The metadata of TensorFlow and its companions has most requirements. `RULES` adds those that the metadata lacks,
each with a reason. A test compares the rules with setup.py.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from estimator_pipeline.cluster import proxies
from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import DoctorFinding, error, info, ok, warning
from estimator_pipeline.utils.text import few

__all__ = ["RULES", "PackageRule", "check_packages", "check_variables", "judge_packages"]


@dataclass(frozen=True)
class PackageRule:
    """A requirement on a package that is used with TensorFlow.

    Attributes:
        tensorflow: The TensorFlow versions that the rule is for.
        package: The distribution.
        wanted: The versions that work.
        why: What happens with other versions.
        severity: "error" if the job cannot run.
        needed: Whether a missing package is reported too.
    """

    tensorflow: str
    package: str
    wanted: str
    why: str
    severity: str = "error"
    needed: bool = True


RULES = (
    *(
        PackageRule(
            f"==2.{minor}.*",
            "tf-keras",
            f"==2.{minor}.*",
            "Estimator is built on Keras 2, and tf-keras must have the same minor version as TensorFlow",
            # TensorFlow 2.15 includes Keras 2; if tf-keras is installed too, it must match.
            needed=minor > 15,
        )
        for minor in range(15, 22)
    ),
    PackageRule(
        ">=2.15",
        "tensorflow-estimator",
        ">=2.15,<2.16",
        "it contains tf.estimator, and 2.15 is its last release",
    ),
    PackageRule(
        ">=2.15",
        "tensorboard",
        ">=2.15,<2.22",
        "tf.summary in a model_fn raises TBNotInstalledError without it, and TensorFlow 2.21 no longer installs it",
        "warning",
    ),
    PackageRule(
        ">=2.15",
        "tensorflow-datasets",
        ">=4.9.4,<5",
        "job files with `source: tfds` need it",
        "warning",
    ),
    PackageRule(
        ">=2.15,<2.20",
        "tensorflow-metadata",
        "<1.18",
        "its generated code requires a newer protobuf than TensorFlow 2.15 to 2.19 allow, so tensorflow_datasets "
        "cannot be imported",
        needed=False,
    ),
    PackageRule(
        "==2.20.*",
        "protobuf",
        "<7",
        "TensorFlow 2.20 writes its graphs with an argument that protobuf 7 no longer has",
        needed=False,
    ),
    PackageRule(
        ">=2.15",
        "setuptools",
        "<82",
        "TensorFlow 2.15 to 2.17 and tensorflow-datasets import pkg_resources on some paths, which 82 removed",
        "warning",
        needed=False,
    ),
)
_MAIN = ("tensorflow", "tf-keras", "tensorflow-estimator", "tensorboard", "tensorflow-datasets", "numpy", "protobuf")


def check_packages(context: Context) -> Iterator[DoctorFinding]:
    """Check the versions of Python, TensorFlow and related packages."""
    installed = {rule.package: versions.installed(rule.package) for rule in RULES}
    installed |= {name: versions.installed(name) for name in (*_MAIN, "keras")}
    installed["tensorflow"] = next((v for n in versions.TENSORFLOW_DISTRIBUTIONS if (v := versions.installed(n))), None)
    engine = context.job.run.engine if context.job is not None else "estimator"
    yield from judge_packages(installed, engine=engine, requires=_requires, version_of=versions.installed)


def judge_packages(
    installed: Mapping[str, str | None],
    *,
    engine: str = "estimator",
    requires: Callable[[str], Sequence[str]] = lambda name: (),
    version_of: Callable[[str], str | None] = lambda name: None,
    python: str | None = None,
) -> Iterator[DoctorFinding]:
    """Check that versions are compatible.

    Args:
        installed: Distribution -> version; None if it is not installed.
        engine: The job's engine; keras3 needs Keras 3.
        requires: Returns the requirements of an installed distribution.
        version_of: Returns the version of any other distribution.
        python: The version of Python; default: the running one.
    """
    python = python or platform.python_version()
    tensorflow = installed.get("tensorflow")
    if tensorflow is None:
        yield error(
            f"TensorFlow is not installed in this Python {python}",
            "no job can run",
            f"pip install 'estimator-pipeline[tf2-{versions.NEWEST[1]}]', or activate the environment that has it",
        )
        return
    problems = list(_of_rules(tensorflow, installed, engine)) + list(_of_metadata(installed, requires, version_of))
    yield from problems
    if versions.minor(tensorflow) < versions.OLDEST:
        yield error(
            f"TensorFlow {tensorflow} is older than the supported versions ({versions.supported_range()})",
            "the package rejects it",
            f"pip install 'estimator-pipeline[tf2-{versions.NEWEST[1]}]'; 2.15 is the oldest",
        )
    elif versions.minor(tensorflow) > versions.NEWEST:
        yield warning(
            f"TensorFlow {tensorflow} is newer than the tested versions ({versions.supported_range()})",
            "tf.estimator is restored in TensorFlow's private modules, which may have changed",
            f"pip install 'tensorflow=={versions.NEWEST[0]}.{versions.NEWEST[1]}.*'",
        )
    elif not problems:
        listed = ", ".join(f"{name} {version}" for name in _MAIN if (version := installed.get(name)))
        yield ok(f"Python {python}, {listed}")


def _of_rules(tensorflow: str, installed: Mapping[str, str | None], engine: str) -> Iterator[DoctorFinding]:
    for rule in RULES:
        if tensorflow not in SpecifierSet(rule.tensorflow, prereleases=True):
            continue
        if engine == "keras3" and rule.package in ("tf-keras", "tensorflow-estimator"):
            continue
        have = installed.get(rule.package)
        if have is None and not rule.needed:
            continue
        if have is None or have not in SpecifierSet(rule.wanted, prereleases=True):
            state = f"{rule.package} {have} is installed" if have else f"{rule.package} is not installed"
            hint = f"pip install '{rule.package}{rule.wanted}'"
            yield DoctorFinding(rule.severity, f"{state}, with TensorFlow {tensorflow}", rule.why, hint)
    keras = installed.get("keras") or ""
    if engine != "keras3":
        return
    if versions.minor(tensorflow) < versions.FIRST_WITHOUT_ESTIMATOR:
        yield error(
            f"the job's engine is keras3, and TensorFlow {tensorflow} has Keras 2",
            "tf.keras of TensorFlow 2.15 cannot be Keras 3",
            "install TensorFlow 2.16 or later, or set run.engine: keras",
        )
    elif not keras.startswith("3."):
        yield error(
            f"the job's engine is keras3, and {f'keras {keras}' if keras else 'no keras'} is installed",
            "the engine trains Keras 3 models",
            "pip install 'keras>=3,<4'",
        )


def _of_metadata(
    installed: Mapping[str, str | None],
    requires: Callable[[str], Sequence[str]],
    version_of: Callable[[str], str | None],
) -> Iterator[DoctorFinding]:
    """Check the packages' requirements on each other, which pip checks only while it installs."""
    in_rules = {rule.package for rule in RULES}
    for name in _MAIN[:5]:
        if installed.get(name) is None:
            continue
        for text in requires(name):
            try:
                wanted = Requirement(text)
            except InvalidRequirement:
                continue
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            have = installed.get(wanted.name) or version_of(wanted.name)
            missing = (
                have is None and wanted.name not in in_rules and wanted.name not in versions.TENSORFLOW_DISTRIBUTIONS
            )
            if missing or (have is not None and not wanted.specifier.contains(have, prereleases=True)):
                state = f"{wanted.name} {have} is installed" if have else f"{wanted.name} is not installed"
                yield warning(
                    f"{state}, and {name} {installed[name]} requires {wanted.name}{wanted.specifier}",
                    "the versions are incompatible: an import or a call may fail in the middle of the job",
                    f"pip install '{wanted.name}{wanted.specifier}'",
                )


def _requires(name: str) -> Sequence[str]:
    for distribution in versions.TENSORFLOW_DISTRIBUTIONS if name == "tensorflow" else (name,):
        try:
            return importlib.metadata.requires(distribution) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
    return ()


# Variables -------------------------------------------------------------------------------------------------------

_TRUE, _FALSE = ("true", "True", "1"), ("false", "False", "0", "")


def check_variables(context: Context) -> Iterator[DoctorFinding]:
    """Check environment variables that change what a job does."""
    findings = [
        *_legacy_keras(context),
        *_empty_tf_config(context),
        *_proxies(context),
        *_thread_variables(context.environ),
    ]
    if context.environ.get("TF_FORCE_UNIFIED_MEMORY") == "1":
        findings.append(
            info(
                "TF_FORCE_UNIFIED_MEMORY=1: GPU memory is extended by host memory",
                "data that does not fit is paged between host and GPU, which may silently cost most of the speed",
                "unset it, unless the model needs it",
            )
        )
    yield from findings or [ok("no variable that would break the job")]


def _legacy_keras(context: Context) -> Iterator[DoctorFinding]:
    value = context.environ.get("TF_USE_LEGACY_KERAS")
    tensorflow = next((v for n in versions.TENSORFLOW_DISTRIBUTIONS if (v := versions.installed(n))), None)
    if value is None or tensorflow is None:
        return
    native = versions.minor(tensorflow) < versions.FIRST_WITHOUT_ESTIMATOR
    if native and value in _TRUE and versions.installed("tf-keras") is None:
        yield error(
            f"TF_USE_LEGACY_KERAS={value} is set, and tf-keras is not installed",
            f"TensorFlow {tensorflow} includes Keras 2, and fails with 'Keras cannot be imported'",
            "unset TF_USE_LEGACY_KERAS",
        )
    elif value not in (*_TRUE, *_FALSE):
        yield warning(
            f"TF_USE_LEGACY_KERAS={value!r} is neither true nor false",
            f"TensorFlow accepts {', '.join(_TRUE)} as true, and treats any other value as false: Keras 3",
            "set it to 1, or unset it: `train`, `launch` and `exec` set it themselves",
        )
    elif not native and value in _FALSE and (context.job is None or context.job.run.engine != "keras3"):
        yield info(
            f"TF_USE_LEGACY_KERAS={value!r} is set",
            "a program that imports TensorFlow before estimator_pipeline gets Keras 3, without tf.estimator",
            "unset it; `train`, `launch` and `exec` set it to 1 themselves",
        )


def _empty_tf_config(context: Context) -> Iterator[DoctorFinding]:
    text = context.environ.get("TF_CONFIG")
    if text is not None and not text.strip():
        yield warning(
            "TF_CONFIG is set but empty",
            "this process would train as a single process; TensorFlow's parser raises JSONDecodeError",
            "unset TF_CONFIG to train in a single process, or find out why the launcher left it empty",
        )


def _thread_variables(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        text = environ.get(name, "").strip()
        if text and not text.split(",")[0].isdigit():
            yield warning(
                f"{name}={text!r} is not an integer",
                "it is ignored, and the thread pool gets one thread per CPU",
                f"set {name} to a number, or unset it",
            )


def _proxies(context: Context) -> Iterator[DoctorFinding]:
    """Report a proxy that gRPC would also use for the connections between tasks."""
    addresses = list(context.part.addresses.values()) or [f"{host}:0" for host in context.part.hosts or ()]
    name = proxies.proxy_of(context.environ)
    for variable in proxies.exempted(context.environ, addresses):
        through = sorted(proxies.not_exempt(context.environ, addresses))
        yield info(
            f"{name}={context.environ[name or '']} is set, and {variable} does not exclude {few(through)}",
            "train, launch and exec exclude these hosts; tasks that are started in other ways connect through the "
            "proxy, and hang",
            f"for such tasks set {variable}={','.join(through[:8])}{',...' if len(through) > 8 else ''}, "
            f"or unset {name}",
        )
