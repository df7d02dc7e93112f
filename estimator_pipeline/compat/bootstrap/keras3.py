"""Keras 3 as `tf.keras`, for jobs that tf.estimator has no part in.

TensorFlow decides between Keras 2 and Keras 3 once for a process, when it is imported, by TF_USE_LEGACY_KERAS. So a
process has the one or the other for good: with Keras 3 there is no tf.estimator in it.

Private use: the counters by which Keras 3 numbers the layers of a process (`keras.src.backend.common.global_state`,
an attribute by name; `keras.utils.clear_session`, the public way to begin anew, throws the kernels of running training
away with them).
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
_TRUE = ("true", "True", "1")  # what TensorFlow itself takes for "yes"
_COUNTERS = "object_name_uids"


def resolve() -> ModuleType:
    """Imports TensorFlow with Keras 3 as its `tf.keras`.

    Returns:
        The `tensorflow` module.

    Raises:
        CompatError: TensorFlow 2.15, no Keras 3, another backend than TensorFlow, or TensorFlow was imported with
            Keras 2 before.
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
            hint="run the job with the engine keras3 in a process of its own",
        )
    # Said rather than left out: a configuration file of Keras may name another backend, and a child is to agree.
    os.environ[BACKEND] = "tensorflow"
    os.environ[LEGACY_KERAS] = "0"
    tf = importlib.import_module("tensorflow")
    # A lazy loader, resolved here on the importing thread.
    _ = tf.keras.layers, tf.keras.Model
    return tf


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Layers made in the block are numbered as in a new process.

    A job builds its model more than once in a process (to train, to evaluate, to export); its layers and variables
    bear the same names each time, and files are the same whoever writes them.
    """
    state = importlib.import_module("keras.src.backend.common.global_state")
    before = state.get_global_attribute(_COUNTERS)
    state.set_global_attribute(_COUNTERS, collections.defaultdict(int))
    try:
        yield
    finally:
        state.set_global_attribute(_COUNTERS, before)
