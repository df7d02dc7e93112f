"""Checks of package versions and of environment variables, without imports.

`RULES` has the requirements that the packages' metadata lacks, each with a reason; `pip check` has the others. A test
compares the rules with setup.py.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    yield from judge_packages(installed, engine=engine)


def judge_packages(
    installed: Mapping[str, str | None],
    *,
    engine: str = "estimator",
    python: str | None = None,
) -> Iterator[DoctorFinding]:
    """Check that versions are compatible.

    Args:
        installed: Distribution -> version; None if it is not installed.
        engine: The job's engine; keras3 needs Keras 3.
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
    problems = list(_of_rules(tensorflow, installed, engine))
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


# Variables -------------------------------------------------------------------------------------------------------

_TRUE, _FALSE = ("true", "True", "1"), ("false", "False", "0", "")


def check_variables(context: Context) -> Iterator[DoctorFinding]:
    """Check environment variables that change what a job does."""
    findings = [*_legacy_keras(context), *_empty_tf_config(context), *_proxies(context)]
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
