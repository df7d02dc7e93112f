"""Versions of the packages that this process would import, from their metadata and without imports.

Two numbers decide about compatibility: TensorFlow's minor version (2.15 includes Estimator, 2.16 and later do not) and
the minor version of `tf-keras`, which must be the same.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys

from estimator_pipeline.errors import CompatError

OLDEST = (2, 15)
NEWEST = (2, 21)
FIRST_WITHOUT_ESTIMATOR = (2, 16)

# The module has several distributions: wheels without GPU code and vendors' builds have different names.
TENSORFLOW_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-intel",
    "tensorflow-aarch64",
    "tensorflow-cpu-aws",
    "tensorflow-macos",
    "tensorflow-rocm",
    "tf-nightly",
)


def installed(distribution: str) -> str | None:
    """Return the version of an installed distribution from its metadata, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def minor(version: str) -> tuple[int, int]:
    """Return major and minor version: `"2.21.0rc1"` -> `(2, 21)`."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match:
        raise CompatError(
            f"the version {version!r} of TensorFlow cannot be read", code="tensorflow/unsupported-version"
        )
    return int(match[1]), int(match[2])


def tensorflow_version() -> str:
    """Return the version of TensorFlow that this process imports.

    Raises:
        CompatError: TensorFlow is not installed, or older than the supported versions.
    """
    loaded = sys.modules.get("tensorflow")
    version = getattr(loaded, "__version__", None)
    if version is None:
        candidates = [v for name in TENSORFLOW_DISTRIBUTIONS if (v := installed(name))]
        if not candidates or importlib.util.find_spec("tensorflow") is None:
            raise CompatError(
                "TensorFlow is not installed in this Python",
                code="tensorflow/not-installed",
                found=f"Python {sys.version.split()[0]} at {sys.executable}",
                hint=f"pip install 'tensorflow=={NEWEST[0]}.{NEWEST[1]}.*' (supported: {supported_range()})",
            )
        version = candidates[0]
    if minor(version) < OLDEST:
        raise CompatError(
            f"TensorFlow {version} is older than what estimator_pipeline supports",
            code="tensorflow/unsupported-version",
            found=f"TensorFlow {version}; supported: {supported_range()}",
            hint="install a supported TensorFlow; 2.15 is the last one that brings its own tf.estimator",
        )
    return version


def supported_range() -> str:
    return f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def report() -> dict[str, str | None]:
    """Return the versions of all packages that decide whether `tf.estimator` works."""
    names = ("tf-keras", "keras", "tensorflow-estimator", "tensorboard", "numpy", "protobuf")
    versions: dict[str, str | None] = {"python": sys.version.split()[0]}
    versions["tensorflow"] = next((v for n in TENSORFLOW_DISTRIBUTIONS if (v := installed(n))), None)
    versions.update({name: installed(name) for name in names})
    return versions
