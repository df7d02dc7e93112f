"""`load_weights("NAME.weights.h5")` works under a strategy for a model that is compiled with metrics.

Keras 2 assigns the HDF5 datasets of the file directly. A metric's variable, which is summed over replicas, divides the
assigned value by the number of replicas: "unsupported operand type(s) for /: 'Dataset' and 'int'". Here the datasets
are converted to arrays first.

Private use: `saving_lib.H5IOStore.get`, unchanged from Keras 2.12 to tf_keras 2.21.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

NAME = "weights-h5"
WHAT = "load_weights of a .weights.h5 file works under a strategy, also for a model with metrics"


def apply() -> None:
    import numpy as np
    import tensorflow as tf

    package = tf.keras.Model.__module__.partition(".")[0]
    store = importlib.import_module(f"{package}.src.saving.saving_lib").H5IOStore
    original = store.get

    @functools.wraps(original)
    def get(self: Any, path: str) -> Any:
        return {name: np.asarray(value) for name, value in original(self, path).items()}

    store.get = get
