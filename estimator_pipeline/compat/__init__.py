"""`tf.estimator` on TensorFlow 2.16 to 2.21, and on 2.15 where it never left.

    from estimator_pipeline import compat

    tf = compat.install()          # before anything else imports TensorFlow
    tf.estimator.Estimator(...)

:func:`install` may be called any number of times. On 2.15, where nothing is missing, it only applies the patches
(:mod:`estimator_pipeline.compat.patches`). :func:`status` says what was found and what was done.

:func:`use_keras_3`, called first instead, gives the process Keras 3 as `tf.keras`, and no tf.estimator. This package is
the only part of estimator_pipeline that touches `tensorflow.python.*` and the internals of `tensorflow_estimator` and
`tf_keras`; each file names what it uses and why.
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
from estimator_pipeline.compat.bootstrap import keras3 as keras_3
from estimator_pipeline.compat.bootstrap import keras_seeds, keras_symbols, lazy_loaders, versions
from estimator_pipeline.compat.bootstrap import tpu_stubs as absent
from estimator_pipeline.compat.internals.saving import input_checkpoints
from estimator_pipeline.compat.moved_names import table as moved_names
from estimator_pipeline.compat.patches import Patch, durable_checkpoints, literal_paths, missing_peers
from estimator_pipeline.errors import CompatError
from estimator_pipeline.utils import startup, system_limits

__all__ = ["InstallStep", "Patch", "Status", "install", "keras_generation", "status", "tensorflow", "use_keras_3"]

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
_TRUE = ("true", "True", "1")  # what TensorFlow itself takes for "yes"


@dataclass(frozen=True)
class InstallStep:
    """One thing that :func:`install` did, and why it was needed."""

    name: str
    what: str


@dataclass(frozen=True)
class Status:
    """What :func:`install` found in this process, and what it did.

    Attributes:
        installed: whether :func:`install` has run to its end.
        tensorflow: version of TensorFlow, None where there is none.
        estimator: where `tf.estimator` comes from: "tensorflow" (2.15), "estimator_pipeline", or None.
        keras: what `tf.keras` is: "tf_keras 2.21.0", "keras 2.15.0", "keras 3.15.1", or None while not installed.
        versions: package -> version of all that has a say.
        steps: what was done, in order. Empty on 2.15.
        patches: the faults of tf.estimator itself that can be fixed, and whether each is.
        moved: old private name of TensorFlow -> where it is today, of all that were asked for by their old names.
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
        lines += [f"  {step.name}: {step.what}" for step in self.steps]
        lines += [f"  patch {patch.name} ({'on' if patch.on else 'off'}): {patch.what}" for patch in self.patches]
        lines += [f"  moved name {old}: {new}" for old, new in self.moved.items()]
        return "\n".join(lines)


_lock = threading.Lock()
_steps: list[InstallStep] = []
_installed = False
_generation = 2
_chosen: frozenset[str] = frozenset()


def install(patches: str | Sequence[str] | None = None, *, tf1: bool = False) -> ModuleType:
    """Makes `tf.estimator` and all its old paths work in this process, and mends its faults.

    Call it before anything imports TensorFlow. It sets TF_USE_LEGACY_KERAS=1 in `os.environ` on 2.16 and later
    (Estimator is built on Keras 2, and child processes need the same answer), and imports TensorFlow.

    Args:
        patches: which faults of tf.estimator itself are fixed: "all", "none", "-NAME,-NAME" (all but these),
            "NAME,NAME" (these alone), or a list of names. None: what ESTIMATOR_PIPELINE_PATCHES says, "all" where it
            is not set. The first call in a process decides.
        tf1: whether programs of this process are written for TensorFlow 1: TensorFlow 2's behaviour is off, and what
            they import as `tensorflow` has TensorFlow 1's names and `tf.contrib` (docs/guides/tf1.md). Call it before
            anything is built. Nothing turns it off again.

    Returns:
        The `tensorflow` module, with `tf1=True` that of TensorFlow 1's names. In a process that was given Keras 3 by
        :func:`use_keras_3` it is that one as it is, so that the same function builds layers of either Keras;
        `tf.estimator` is not there.

    Raises:
        CompatError: TensorFlow, tf-keras or tensorflow-estimator is missing or does not fit, or TensorFlow was
            imported with Keras 3 before this call; a patch that does not exist, or other patches than those that
            an earlier call applied; the message says what to change.
    """
    tf = _install(patches)
    if not tf1:
        return tf
    if _generation == 3:
        raise CompatError(
            "install(tf1=True) comes after use_keras_3()",
            code="argument/conflict",
            hint="a program for TensorFlow 1 needs Keras 2: call install(tf1=True) in a process of its own",
        )
    with _lock:
        if not _tf1.enabled():
            # For child processes, which need the same answer.
            os.environ[_tf1.VARIABLE] = "1"
            _steps.append(InstallStep("tf1", "programs get TensorFlow 1's names and behaviour, and tf.contrib"))
        return _tf1.enable(tf)


def _install(patches: str | Sequence[str] | None) -> ModuleType:
    global _installed, _chosen
    with _lock:
        if _installed:
            if patches is not None and _patches.chosen(patches) != _chosen:
                raise CompatError(
                    f"install(patches={patches!r}) comes after an install() with other patches",
                    code="argument/conflict",
                    found=f"applied: {', '.join(sorted(_chosen)) or 'none'}",
                    hint=f"give them to the first call of the process, or set {_patches.VARIABLE}",
                )
            return sys.modules["tensorflow"]
        chosen = _patches.chosen(patches)
        if patches is not None:
            # For child processes, which need the same answer.
            os.environ[_patches.VARIABLE] = ",".join(sorted(chosen)) or "none"
        version = versions.tensorflow_version()
        native = versions.minor(version) < versions.FIRST_WITHOUT_ESTIMATOR
        system_limits.require(os.environ, trains=False)
        with startup.loading(), _told_of_memory():
            tf = _native(version) if native else _restore(version)
            _patches.apply(chosen)
        _installed, _chosen = True, chosen
        return tf


def use_keras_3() -> ModuleType:
    """Makes `tf.keras` Keras 3 in this process, which has no tf.estimator then.

    Call it before anything imports TensorFlow, and instead of :func:`install`. It sets TF_USE_LEGACY_KERAS=0 and
    KERAS_BACKEND=tensorflow in `os.environ`. It may be called any number of times.

    Returns:
        The `tensorflow` module.

    Raises:
        CompatError: TensorFlow 2.15, whose Keras is Keras 2; Keras 3 is missing; the process has Keras 2 already.
    """
    global _installed, _generation
    with _lock:
        if _installed and _generation == 3:
            return sys.modules["tensorflow"]
        system_limits.require(os.environ, trains=False)
        with startup.loading(), _told_of_memory():
            tf = keras_3.resolve()
            chosen = _patches.chosen(None)
            if literal_paths.NAME in chosen:
                literal_paths.of_tensorflow()
            if durable_checkpoints.NAME in chosen:
                durable_checkpoints.of_tensorflow()
            if missing_peers.NAME in chosen:
                missing_peers.apply()
        _installed, _generation = True, 3
        _steps.append(InstallStep("keras-3", f"{LEGACY_KERAS}=0: tf.keras is Keras 3, and there is no tf.estimator"))
        return tf


@contextlib.contextmanager
def _told_of_memory() -> Iterator[None]:
    """In the block, which loads TensorFlow, a want of memory is one message."""
    try:
        yield
    except (ImportError, MemoryError) as error:
        plain = system_limits.explained(error)
        if plain is None:
            raise
        raise plain from error


def keras_generation() -> int:
    """Which Keras `tf.keras` is in this process: 2, or 3 after :func:`use_keras_3`."""
    return _generation


def _native(version: str) -> ModuleType:
    """2.15: everything is there. Only what would break it is refused."""
    if os.environ.get(LEGACY_KERAS) in _TRUE and versions.installed("tf-keras") is None:
        raise CompatError(
            f"{LEGACY_KERAS}={os.environ[LEGACY_KERAS]} is set, and tf-keras is not installed",
            code="tensorflow/wrong-keras",
            found=f"TensorFlow {version}, whose own Keras is the legacy Keras already",
            hint=f"unset {LEGACY_KERAS} for TensorFlow 2.15",
        )
    keras = versions.installed("keras") or ""
    if keras.startswith("3.") and os.environ.get(LEGACY_KERAS) not in _TRUE:
        raise CompatError(
            f"Keras {keras} is installed beside TensorFlow {version}, and Estimator cannot work with Keras 3",
            code="tensorflow/wrong-keras",
            hint="pip install 'keras==2.15.*'",
        )
    tf = importlib.import_module("tensorflow")
    _ = tf.estimator.Estimator  # resolves the lazy loaders here, on the calling thread
    _ = tf.keras.layers, tf.compat.v1.keras.layers, tf.compat.v1.estimator.Estimator
    if os.environ.get(LEGACY_KERAS) not in _TRUE and keras_symbols.keep():
        _steps.append(
            InstallStep("keras-symbols", "tf_keras, if it is imported, does not take the exported names of keras")
        )
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
            "tensorflow-estimator 2.15, the last one that was published, is needed",
            code="tensorflow/not-installed",
            found=f"tensorflow-estimator {estimator}" if estimator else "no tensorflow-estimator",
            hint="pip install 'tensorflow-estimator==2.15.*'",
        )
    _refuse_keras_3(version)

    if os.environ.get(LEGACY_KERAS) not in _TRUE:
        os.environ[LEGACY_KERAS] = "1"
        _steps.append(InstallStep("legacy-keras", f"{LEGACY_KERAS}=1: tf.keras is tf_keras (Keras 2)"))
    tf = importlib.import_module("tensorflow")
    # Lazy loaders that a worker thread touches first end in a RecursionError or in Keras 3: resolve them now.
    _ = tf.keras.layers, tf.compat.v1.keras.layers, tf.compat.v2.keras.layers
    count = lazy_loaders.resolve()
    _name_keras_version(tf)
    _steps.append(
        InstallStep("keras-resolved", f"tf.keras and {count} lazy modules of it resolved on the importing thread")
    )
    if keras_seeds.apply():
        _steps.append(InstallStep("keras-seeds", "tf_keras draws its seeds as integers, which Python 3.12 asks for"))
    if exports.restore():
        _steps.append(InstallStep("export-table", "the `estimator` entry of TensorFlow's table of exported names"))
    if aliases.install():
        _steps.append(
            InstallStep("aliases", "tensorflow.estimator, tensorflow.python.estimator.* and the removed modules")
        )
    if absent.bind_public_names():
        _steps.append(
            InstallStep("tpu-embedding", "names of the removed TPU embedding API, which say that they are gone")
        )
    if input_checkpoints.bind():
        _steps.append(
            InstallStep("input-checkpoints", "tf.data.experimental.CheckpointInputPipelineHook, written anew")
        )
    bound = aliases.bind_attributes()
    _steps.append(InstallStep("attributes", f"`estimator` set on {', '.join(bound)}"))
    return tf


def _name_keras_version(tf: ModuleType) -> None:
    """`tf.keras.__version__`, which TensorFlow 2.13 left out and programs print."""
    for name in (tf.keras.__name__, tf.compat.v1.keras.__name__):
        module = sys.modules[name]
        if not hasattr(module, "__version__"):
            package = sys.modules[name.partition(".")[0]]
            module.__version__ = package.__version__  # type: ignore[attr-defined]


def _refuse_keras_3(version: str) -> None:
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return
    legacy = getattr(tf, "_tf_uses_legacy_keras", os.environ.get(LEGACY_KERAS) in _TRUE)
    if legacy:
        return
    raise CompatError(
        f"TensorFlow {version} is already loaded in this process, with Keras 3; tf.estimator needs Keras 2, "
        "and the choice cannot be changed once TensorFlow is imported",
        code="tensorflow/wrong-keras",
        found="`import tensorflow` ran before estimator_pipeline.compat.install()",
        hint=f"call install() before the first `import tensorflow`, or set {LEGACY_KERAS}=1 in the "
        "environment, or run the program with: estimator-pipeline exec SCRIPT.py",
    )


def tensorflow() -> ModuleType:
    """TensorFlow with its `tf.estimator`: what :func:`install` gives, for code that wants the module."""
    return install()


def status() -> Status:
    """What was found and done so far. Imports nothing."""
    report = versions.report()
    tensorflow = report["tensorflow"]
    if not _installed:
        return Status(False, tensorflow, None, None, report, patches=_patches.listed())
    tf = sys.modules["tensorflow"]
    if _generation == 3:
        return Status(True, tf.__version__, None, f"keras {report['keras']}", report, tuple(_steps))
    native = versions.minor(tf.__version__) < versions.FIRST_WITHOUT_ESTIMATOR
    if native and os.environ.get(LEGACY_KERAS) not in _TRUE:
        keras = f"keras {report['keras']}"
    else:
        keras = f"tf_keras {report['tf-keras']}"
    source = "tensorflow" if native else "estimator_pipeline"
    return Status(True, tf.__version__, source, keras, report, tuple(_steps), _patches.listed(), moved_names.used())
