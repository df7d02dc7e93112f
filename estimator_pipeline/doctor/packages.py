"""Packages that must fit one another, and environment variables that break a job. Nothing is imported: metadata alone.

What TensorFlow and the packages beside it ask for themselves stands in their metadata; :data:`RULES` adds what does
not, with the reason. It says the same as setup.py, which a test holds.
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

__all__ = ["RULES", "PackageRule", "check_packages", "check_variables", "judge_packages"]


@dataclass(frozen=True)
class PackageRule:
    """What must be installed beside a TensorFlow.

    Attributes:
        tensorflow: the versions that it is for.
        package: the distribution.
        wanted: the versions that work.
        why: what happens otherwise.
        severity: "error" where the job cannot run.
        needed: whether its absence counts too.
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
            "Estimator is built on Keras 2, and tf-keras must be of TensorFlow's own minor version",
            # TensorFlow 2.15 has Keras 2 itself; a tf-keras beside it must fit all the same.
            needed=minor > 15,
        )
        for minor in range(15, 22)
    ),
    PackageRule(
        ">=2.15",
        "tensorflow-estimator",
        ">=2.15,<2.16",
        "it holds tf.estimator itself, and 2.15 is the last one that was published",
    ),
    PackageRule(
        ">=2.15",
        "tensorboard",
        ">=2.15,<2.22",
        "tf.summary in a model_fn raises TBNotInstalledError without it, and TensorFlow 2.21 no longer brings it",
        "warning",
    ),
    PackageRule(
        ">=2.15",
        "tensorflow-datasets",
        ">=4.9.4,<5",
        "job files with `source: tfds` are read by it",
        "warning",
    ),
    PackageRule(
        ">=2.15,<2.20",
        "tensorflow-metadata",
        "<1.18",
        "its generated code wants a newer protobuf than TensorFlow 2.15 to 2.19 allow, and tensorflow_datasets cannot "
        "be imported",
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
        "TensorFlow 2.15 to 2.17 and tensorflow-datasets import pkg_resources on some paths, which 82 took away",
        "warning",
        needed=False,
    ),
)
_MAIN = ("tensorflow", "tf-keras", "tensorflow-estimator", "tensorboard", "tensorflow-datasets", "numpy", "protobuf")


def check_packages(context: Context) -> Iterator[DoctorFinding]:
    """Python, TensorFlow and what must fit it."""
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
    """Whether versions go together.

    Args:
        installed: distribution -> version, None where it is not installed.
        engine: what the job trains with; keras3 needs Keras 3.
        requires: what an installed distribution asks for, as its metadata say.
        version_of: the version of any other distribution.
        python: this Python's version.
    """
    python = python or platform.python_version()
    found = installed.get("tensorflow")
    if found is None:
        yield error(
            f"TensorFlow is not installed in this Python {python}",
            "nothing can train",
            f"pip install 'estimator-pipeline[tf2-{versions.NEWEST[1]}]', or activate the environment that has it",
        )
        return
    problems = list(_of_rules(found, installed, engine)) + list(_of_metadata(installed, requires, version_of))
    yield from problems
    if versions.minor(found) < versions.OLDEST:
        yield error(
            f"TensorFlow {found} is older than what is supported ({versions.supported_range()})",
            "the package refuses it",
            f"pip install 'estimator-pipeline[tf2-{versions.NEWEST[1]}]'; 2.15 is the oldest",
        )
    elif versions.minor(found) > versions.NEWEST:
        yield warning(
            f"TensorFlow {found} is newer than what was tested ({versions.supported_range()})",
            "tf.estimator is put back into TensorFlow's private modules, and these may have changed",
            f"pip install 'tensorflow=={versions.NEWEST[0]}.{versions.NEWEST[1]}.*'",
        )
    elif not problems:
        told = ", ".join(f"{name} {version}" for name in _MAIN if (version := installed.get(name)))
        yield ok(f"Python {python}, {told}")


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
            what = f"{rule.package} {have} is installed" if have else f"{rule.package} is not installed"
            hint = f"pip install '{rule.package}{rule.wanted}'"
            yield DoctorFinding(rule.severity, f"{what} beside TensorFlow {tensorflow}", rule.why, hint)
    keras = installed.get("keras") or ""
    if engine != "keras3":
        return
    if versions.minor(tensorflow) < versions.FIRST_WITHOUT_ESTIMATOR:
        yield error(
            f"the job's engine is keras3, and TensorFlow {tensorflow} has Keras 2",
            "tf.keras of TensorFlow 2.15 cannot be Keras 3",
            "take TensorFlow 2.16 or later, or run.engine: keras",
        )
    elif not keras.startswith("3."):
        yield error(
            f"the job's engine is keras3, and {f'keras {keras}' if keras else 'no keras'} is installed",
            "the engine trains models of Keras 3",
            "pip install 'keras>=3,<4'",
        )


def _of_metadata(
    installed: Mapping[str, str | None],
    requires: Callable[[str], Sequence[str]],
    version_of: Callable[[str], str | None],
) -> Iterator[DoctorFinding]:
    """What the packages say of each other themselves; pip only looks at it while it installs."""
    told = {rule.package for rule in RULES}
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
            missing = have is None and wanted.name not in told and wanted.name not in versions.TENSORFLOW_DISTRIBUTIONS
            if missing or (have is not None and not wanted.specifier.contains(have, prereleases=True)):
                what = f"{wanted.name} {have} is installed" if have else f"{wanted.name} is not installed"
                yield warning(
                    f"{what}, and {name} {installed[name]} asks for {wanted.name}{wanted.specifier}",
                    "the two were not built for each other: an import or a call may fail in the middle of the job",
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
    """Environment variables that change what a job does."""
    found = [
        *_legacy_keras(context),
        *_empty_tf_config(context),
        *_proxies(context),
        *_thread_variables(context.environ),
    ]
    if context.environ.get("TF_FORCE_UNIFIED_MEMORY") == "1":
        found.append(
            info(
                "TF_FORCE_UNIFIED_MEMORY=1: a GPU's memory is extended by the host's",
                "what does not fit is moved to and fro, which may cost most of the speed without a word",
                "unset it, unless the model needs it",
            )
        )
    yield from found or [ok("none that would break the job")]


def _legacy_keras(context: Context) -> Iterator[DoctorFinding]:
    value = context.environ.get("TF_USE_LEGACY_KERAS")
    tensorflow = next((v for n in versions.TENSORFLOW_DISTRIBUTIONS if (v := versions.installed(n))), None)
    if value is None or tensorflow is None:
        return
    native = versions.minor(tensorflow) < versions.FIRST_WITHOUT_ESTIMATOR
    if native and value in _TRUE and versions.installed("tf-keras") is None:
        yield error(
            f"TF_USE_LEGACY_KERAS={value} is set, and tf-keras is not installed",
            f"TensorFlow {tensorflow} has Keras 2 itself, and ends with 'Keras cannot be imported'",
            "unset TF_USE_LEGACY_KERAS",
        )
    elif value not in (*_TRUE, *_FALSE):
        yield warning(
            f"TF_USE_LEGACY_KERAS={value!r} is neither yes nor no",
            f"TensorFlow takes {', '.join(_TRUE)} for yes, and anything else for no: Keras 3",
            "set it to 1, or unset it: `train`, `launch` and `exec` set it themselves",
        )
    elif not native and value in _FALSE and (context.job is None or context.job.run.engine != "keras3"):
        yield info(
            f"TF_USE_LEGACY_KERAS={value!r} is set",
            "a program that imports TensorFlow before estimator_pipeline gets Keras 3, and no tf.estimator",
            "unset it; `train`, `launch` and `exec` set it to 1 themselves",
        )


def _empty_tf_config(context: Context) -> Iterator[DoctorFinding]:
    text = context.environ.get("TF_CONFIG")
    if text is not None and not text.strip():
        yield warning(
            "TF_CONFIG is set, and empty",
            "this process would train alone; TensorFlow's own reader raises JSONDecodeError",
            "unset TF_CONFIG to train alone, or find out why the launcher left it empty",
        )


def _thread_variables(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        text = environ.get(name, "").strip()
        if text and not text.split(",")[0].isdigit():
            yield warning(
                f"{name}={text!r} is no whole number",
                "it is not followed, and the pool gets a thread for each CPU",
                f"set {name} to a number, or unset it",
            )


def _proxies(context: Context) -> Iterator[DoctorFinding]:
    """gRPC sends its connections through a proxy that is set in lower case, those between tasks too."""
    addresses = list(context.part.addresses.values()) or [f"{host}:0" for host in context.part.hosts or ()]
    name = proxies.proxy_of(context.environ)
    for variable in proxies.exempted(context.environ, addresses):
        through = sorted(proxies.not_exempt(context.environ, addresses))
        yield info(
            f"{name}={context.environ[name or '']} is set, and {variable} does not except {_few(through)}",
            "train, launch and exec except them themselves; tasks that are started otherwise connect through the "
            "proxy, and wait for each other for ever",
            f"for those: {variable}={','.join(through[:8])}{',...' if len(through) > 8 else ''}, or unset {name}",
        )


def _few(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
