"""`tf.estimator` on TensorFlow 2.16 to 2.21, and on 2.15, which still includes it.

    from estimator_pipeline import compat

    tf = compat.install()          # before anything uses tf.keras
    tf.estimator.Estimator(...)

`install` may be called any number of times. On 2.15 it only applies the patches (`estimator_pipeline.compat.patches`).
`status` returns the detected versions and the steps that were applied.

`use_keras_3`, called instead of `install`, selects Keras 3 as `tf.keras`, without tf.estimator. This package is the
only part of estimator_pipeline that uses `tensorflow.python.*` and the internals of `tensorflow_estimator` and
`tf_keras`; each file lists its private uses with the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from estimator_pipeline.compat import patches as _patches
from estimator_pipeline.compat import tf1 as _tf1
from estimator_pipeline.compat.bootstrap import export_table as exports
from estimator_pipeline.compat.bootstrap import import_aliases as aliases
from estimator_pipeline.compat.bootstrap import (
    kept_memory,
    keras_choice,
    keras_seeds,
    keras_symbols,
    lazy_loaders,
    log_lines,
    versions,
)
from estimator_pipeline.compat.bootstrap import keras3 as keras_3
from estimator_pipeline.compat.bootstrap import tpu_stubs as absent
from estimator_pipeline.compat.internals.saving import input_checkpoints
from estimator_pipeline.compat.moved_names import table as moved_names
from estimator_pipeline.compat.patches import Patch, durable_checkpoints, literal_paths, missing_peers
from estimator_pipeline.errors import CompatError
from estimator_pipeline.utils import startup, system_limits
from estimator_pipeline.utils.process_state import STATE

__all__ = ["InstallStep", "Patch", "Status", "install", "keras_generation", "status", "tensorflow", "use_keras_3"]

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
_TRUE = ("true", "True", "1")  # the values that TensorFlow treats as true


@dataclass(frozen=True)
class InstallStep:
    """One step of `install`, with its effect."""

    name: str
    description: str


@dataclass(frozen=True)
class Status:
    """Detected versions, and the steps and patches that `install` has applied in this process.

    Attributes:
        installed: Whether `install` has completed.
        tensorflow: Version of TensorFlow; None if it is not installed.
        estimator: The source of `tf.estimator`: "tensorflow" (2.15), "estimator_pipeline", or None.
        keras: The package that is `tf.keras`: "tf_keras 2.21.0", "keras 2.15.0", "keras 3.15.1", or None before
            `install`.
        versions: Package -> version of all relevant packages.
        steps: The applied steps, in order. Empty on 2.15.
        patches: The available patches of tf.estimator, and whether each is on.
        moved: Old private name of TensorFlow -> its new name, of all that were used by their old names.
    """

    installed: bool
    tensorflow: str | None
    estimator: str | None
    keras: str | None
    versions: dict[str, str | None] = field(default_factory=dict)
    steps: tuple[InstallStep, ...] = ()
    patches: tuple[Patch, ...] = ()
    moved: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"TensorFlow {self.tensorflow or 'is not installed'}, Python {self.versions.get('python')}",
            f"tf.estimator: {self.estimator or 'not installed in this process'}",
            f"tf.keras: {self.keras or 'not decided yet'}",
        ]
        lines += [f"  {step.name}: {step.description}" for step in self.steps]
        for patch in self.patches:
            lines.append(f"  patch {patch.name} ({'on' if patch.on else 'off'}): {patch.description}")
        lines += [f"  moved name {old}: {new}" for old, new in self.moved.items()]
        return "\n".join(lines)


_lock = threading.Lock()


def install(patches: str | Sequence[str] | None = None, *, tf1: bool = False) -> ModuleType:
    """Make `tf.estimator` and its old import paths work in this process, and patch its bugs.

    Call it before anything uses `tf.keras`; `import tensorflow` may come first. On 2.16 and later it sets
    TF_USE_LEGACY_KERAS=1 in `os.environ`, since Estimator is built on Keras 2 and child processes need the same
    setting. It imports TensorFlow.

    Args:
        patches: The patches of tf.estimator to apply: "all", "none", "-NAME,-NAME" (all but these), "NAME,NAME" (only
            these), or a list of names. None: the value of ESTIMATOR_PIPELINE_PATCHES, or "all" if it is not set. The
            first call in a process decides.
        tf1: Whether programs of this process are written for TensorFlow 1: TensorFlow 2 behavior is off, and the
            `tensorflow` that they import has TensorFlow 1's names and `tf.contrib` (docs/guides/tf1.md). Call it
            before anything is built. It cannot be turned off again.

    Returns:
        The `tensorflow` module; with `tf1=True` the module with TensorFlow 1's names. After `use_keras_3` the module is
        unchanged, so that the same function builds layers of either Keras; it has no `tf.estimator`.

    Raises:
        CompatError: TensorFlow, tf-keras or tensorflow-estimator is missing or incompatible; `tf.keras` is already in
            use as Keras 3; a patch does not exist, or an earlier call applied different patches. The message has a
            hint.
    """
    tf = _install(patches)
    if not tf1:
        return tf
    if STATE.keras_generation == 3:
        raise CompatError(
            "install(tf1=True) comes after use_keras_3()",
            code="argument/conflict",
            hint="a program for TensorFlow 1 needs Keras 2: call install(tf1=True) in a separate process",
        )
    with _lock:
        if not _tf1.enabled():
            # For child processes, which need the same setting.
            os.environ[_tf1.VARIABLE] = "1"
            _done("tf1", "programs get TensorFlow 1's names and behaviour, and tf.contrib")
        return _tf1.enable(tf)


def _install(patches: str | Sequence[str] | None) -> ModuleType:
    with _lock:
        if STATE.is_installed:
            if patches is not None and _patches.chosen(patches) != STATE.patches:
                raise CompatError(
                    f"install(patches={patches!r}) comes after an install() with other patches",
                    code="argument/conflict",
                    found=f"applied: {', '.join(sorted(STATE.patches)) or 'none'}",
                    hint=f"pass them to the first call of the process, or set {_patches.VARIABLE}",
                )
            return sys.modules["tensorflow"]
        chosen = _patches.chosen(patches)
        if patches is not None:
            # For child processes, which need the same setting.
            os.environ[_patches.VARIABLE] = ",".join(sorted(chosen)) or "none"
        version = versions.tensorflow_version()
        native = versions.minor(version) < versions.FIRST_WITHOUT_ESTIMATOR
        system_limits.require(os.environ, trains=False)
        log_lines.hide_deprecations()
        with startup.loading(), _explained_memory_errors():
            tf = _native(version) if native else _restore(version)
            kept_memory.keep()
            log_lines.show_once()
            _patches.apply(chosen)
        STATE.is_installed, STATE.patches = True, chosen
        return tf


def use_keras_3() -> ModuleType:
    """Select Keras 3 as `tf.keras` in this process, which then has no tf.estimator.

    Call it before anything imports TensorFlow, and instead of `install`. It sets TF_USE_LEGACY_KERAS=0 and
    KERAS_BACKEND=tensorflow in `os.environ`. It may be called any number of times.

    Returns:
        The `tensorflow` module.

    Raises:
        CompatError: TensorFlow 2.15, which has Keras 2; Keras 3 is missing; the process already has Keras 2.
    """
    with _lock:
        if STATE.is_installed and STATE.keras_generation == 3:
            return sys.modules["tensorflow"]
        system_limits.require(os.environ, trains=False)
        log_lines.hide_deprecations()
        with startup.loading(), _explained_memory_errors():
            tf = keras_3.resolve()
            kept_memory.keep()
            log_lines.show_once()
            chosen = _patches.chosen(None)
            if literal_paths.NAME in chosen:
                literal_paths.of_tensorflow()
            if durable_checkpoints.NAME in chosen:
                durable_checkpoints.of_tensorflow()
            if missing_peers.NAME in chosen:
                missing_peers.apply()
        STATE.is_installed, STATE.keras_generation = True, 3
        _done("keras-3", f"{LEGACY_KERAS}=0: tf.keras is Keras 3, and there is no tf.estimator")
        return tf


@contextlib.contextmanager
def _explained_memory_errors() -> Iterator[None]:
    """Turn a lack of memory while TensorFlow loads into one clear error."""
    try:
        yield
    except (ImportError, MemoryError) as error:
        plain = system_limits.explained(error)
        if plain is None:
            raise
        raise plain from error


def _done(name: str, description: str) -> None:
    STATE.install_steps.append(InstallStep(name, description))


def keras_generation() -> int:
    """Return the major version of `tf.keras` in this process: 2, or 3 after `use_keras_3`."""
    return STATE.keras_generation


def _native(version: str) -> ModuleType:
    """Prepare TensorFlow 2.15, which needs no restoration, and reject broken environments."""
    if os.environ.get(LEGACY_KERAS) in _TRUE and versions.installed("tf-keras") is None:
        raise CompatError(
            f"{LEGACY_KERAS}={os.environ[LEGACY_KERAS]} is set, and tf-keras is not installed",
            code="tensorflow/wrong-keras",
            found=f"TensorFlow {version}, whose Keras is already Keras 2",
            hint=f"unset {LEGACY_KERAS} for TensorFlow 2.15",
        )
    keras = versions.installed("keras") or ""
    if keras.startswith("3.") and os.environ.get(LEGACY_KERAS) not in _TRUE:
        raise CompatError(
            f"Keras {keras} is installed with TensorFlow {version}, and Estimator does not support Keras 3",
            code="tensorflow/wrong-keras",
            hint="pip install 'keras==2.15.*'",
        )
    tf = importlib.import_module("tensorflow")
    _ = tf.estimator.Estimator  # resolves the lazy loaders here, on the calling thread
    _ = tf.keras.layers, tf.compat.v1.keras.layers, tf.compat.v1.estimator.Estimator
    if os.environ.get(LEGACY_KERAS) not in _TRUE and keras_symbols.keep():
        _done("keras-symbols", "tf_keras, if it is imported, does not replace the exported names of keras")
    _name_keras_version(tf)
    return tf


def _restore(version: str) -> ModuleType:
    keras = versions.installed("tf-keras")
    wanted = ".".join(map(str, versions.minor(version)))
    if keras is None or versions.minor(keras) != versions.minor(version):
        raise CompatError(
            f"TensorFlow {version} needs tf-keras {wanted} (Keras 2) for tf.estimator",
            code="tensorflow/wrong-keras",
            found=f"tf-keras {keras}" if keras else "no tf-keras",
            hint=f"pip install 'tf-keras=={wanted}.*'",
        )
    estimator = versions.installed("tensorflow-estimator")
    if estimator is None or versions.minor(estimator) != (2, 15):
        raise CompatError(
            "tensorflow-estimator 2.15, its last release, is required",
            code="tensorflow/not-installed",
            found=f"tensorflow-estimator {estimator}" if estimator else "no tensorflow-estimator",
            hint="pip install 'tensorflow-estimator==2.15.*'",
        )
    late = _imported_with_keras_3(version)

    if os.environ.get(LEGACY_KERAS) not in _TRUE:
        os.environ[LEGACY_KERAS] = "1"
        _done("legacy-keras", f"{LEGACY_KERAS}=1: tf.keras is tf_keras (Keras 2)")
    if late:
        keras_choice.select_keras_2()
        _done("keras-choice", "TensorFlow, imported before, selects Keras 2 instead of Keras 3")
    tf = importlib.import_module("tensorflow")
    # Resolve lazy loaders now: first used from a worker thread, they cause a RecursionError or load Keras 3.
    _ = tf.keras.layers, tf.compat.v1.keras.layers, tf.compat.v2.keras.layers
    count = lazy_loaders.resolve()
    _name_keras_version(tf)
    _done("keras-resolved", f"tf.keras and its {count} lazy modules are resolved on the importing thread")
    if keras_seeds.apply():
        _done("keras-seeds", "tf_keras draws its seeds with integers, as Python 3.12 requires")
    if exports.restore():
        _done("export-table", "the `estimator` entry in TensorFlow's table of exported names")
    if aliases.install():
        _done("aliases", "tensorflow.estimator, tensorflow.python.estimator.* and the removed modules")
    if absent.bind_public_names():
        _done("tpu-embedding", "stubs of the removed TPU embedding API, which raise an error on use")
    if input_checkpoints.bind():
        _done("input-checkpoints", "tf.data.experimental.CheckpointInputPipelineHook, reimplemented")
    bound = aliases.bind_attributes()
    _done("attributes", f"`estimator` set on {', '.join(bound)}")
    return tf


def _name_keras_version(tf: ModuleType) -> None:
    """Set `tf.keras.__version__`, which programs print and TensorFlow has not set since 2.13."""
    for name in (tf.keras.__name__, tf.compat.v1.keras.__name__):
        module = sys.modules[name]
        if not hasattr(module, "__version__"):
            package = sys.modules[name.partition(".")[0]]
            module.__version__ = package.__version__  # type: ignore[attr-defined]


def _imported_with_keras_3(version: str) -> bool:
    """Return whether TensorFlow was imported with Keras 3; reject a process that already uses its `tf.keras`."""
    tf = sys.modules.get("tensorflow")
    if tf is None or getattr(tf, "_tf_uses_legacy_keras", os.environ.get(LEGACY_KERAS) in _TRUE):
        return False
    used = keras_choice.used_keras_3()
    if used is None:
        return True
    raise CompatError(
        f"tf.keras of TensorFlow {version} is already in use in this process as Keras 3; tf.estimator needs Keras 2",
        code="tensorflow/wrong-keras",
        found=f"{used} was used before estimator_pipeline.compat.install()",
        hint=f"restart Python (a notebook: its kernel) and call install() directly after `import tensorflow`, or set "
        f"{LEGACY_KERAS}=1 in the environment, or run the program with: estimator-pipeline exec SCRIPT.py",
    )


def tensorflow() -> ModuleType:
    """Return TensorFlow with `tf.estimator`, as `install` does."""
    return install()


def status() -> Status:
    """Return the detected versions and the applied steps, without imports."""
    report = versions.report()
    tensorflow = report["tensorflow"]
    if not STATE.is_installed:
        return Status(False, tensorflow, None, None, report, patches=_patches.listed())
    tf = sys.modules["tensorflow"]
    if STATE.keras_generation == 3:
        return Status(True, tf.__version__, None, f"keras {report['keras']}", report, tuple(STATE.install_steps))
    native = versions.minor(tf.__version__) < versions.FIRST_WITHOUT_ESTIMATOR
    if native and os.environ.get(LEGACY_KERAS) not in _TRUE:
        keras = f"keras {report['keras']}"
    else:
        keras = f"tf_keras {report['tf-keras']}"
    source = "tensorflow" if native else "estimator_pipeline"
    return Status(
        True, tf.__version__, source, keras, report, tuple(STATE.install_steps), _patches.listed(), moved_names.used()
    )
