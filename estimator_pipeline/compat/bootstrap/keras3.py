"""Keras 3 as `tf.keras`, for jobs without tf.estimator.

TensorFlow selects Keras 2 or Keras 3 at import, by TF_USE_LEGACY_KERAS, and cannot change it in the same process. A
process with Keras 3 has no tf.estimator.

Private use: the counters by which Keras 3 numbers the layers of a process (`keras.src.backend.common.global_state`,
an attribute by name). The public function that resets them, `keras.utils.clear_session`, also deletes the kernels of a
running training.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.errors import CompatError

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
BACKEND = "KERAS_BACKEND"
_TRUE = ("true", "True", "1")  # the values that TensorFlow treats as true
_COUNTERS = "object_name_uids"


def resolve() -> ModuleType:
    """Import TensorFlow with Keras 3 as `tf.keras`.

    Returns:
        The `tensorflow` module.

    Raises:
        CompatError: TensorFlow 2.15, no Keras 3, a backend other than TensorFlow, or TensorFlow is already imported
            with Keras 2.
    """
    version = versions.tensorflow_version()
    if versions.minor(version) < versions.FIRST_WITHOUT_ESTIMATOR:
        raise CompatError(
            "the engine keras3 needs TensorFlow 2.16 or later: tf.keras of an older one is Keras 2",
            code="tensorflow/unsupported-version",
            found=f"TensorFlow {version}",
            hint="install a later TensorFlow, or keep the engine keras, which is Keras 2",
        )
    keras = versions.installed("keras")
    if keras is None or not keras.startswith("3."):
        raise CompatError(
            "the engine keras3 needs Keras 3",
            code="tensorflow/wrong-keras",
            found=f"keras {keras}" if keras else "no keras",
            hint="pip install 'keras>=3,<4'",
        )
    backend = os.environ.get(BACKEND, "tensorflow")
    if backend != "tensorflow":
        raise CompatError(
            f"{BACKEND}={backend} is set, and the engine keras3 trains with TensorFlow",
            code="tensorflow/wrong-keras",
            hint=f"unset {BACKEND}, or set it to tensorflow",
        )
    loaded = sys.modules.get("tensorflow")
    if loaded is not None and getattr(loaded, "_tf_uses_legacy_keras", os.environ.get(LEGACY_KERAS) in _TRUE):
        raise CompatError(
            f"TensorFlow {version} is already loaded in this process, with Keras 2, and the choice cannot be changed",
            code="tensorflow/wrong-keras",
            hint="run the job with the engine keras3 in a separate process",
        )
    # Set explicitly: Keras's configuration file may name a different backend, and child processes must agree.
    os.environ[BACKEND] = "tensorflow"
    os.environ[LEGACY_KERAS] = "0"
    tf = importlib.import_module("tensorflow")
    # Resolve the lazy loader on the importing thread.
    _ = tf.keras.layers, tf.keras.Model
    return tf


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Restart the numbering of layers within the block, as in a new process.

    A job builds its model several times in a process (to train, to evaluate, to export). Layers and variables have the
    same names each time, so files are the same whichever task writes them.
    """
    state = importlib.import_module("keras.src.backend.common.global_state")
    before = state.get_global_attribute(_COUNTERS)
    state.set_global_attribute(_COUNTERS, collections.defaultdict(int))
    try:
        yield
    finally:
        state.set_global_attribute(_COUNTERS, before)
