"""`load_weights("NAME.weights.h5")` under a strategy, of a model that was compiled with metrics.

Keras 2 assigns what lies in the file as it is, and a metric's variable, of which each replica has a part, divides what
it is assigned by the number of replicas: "unsupported operand type(s) for /: 'Dataset' and 'int'". Here what is read
from the file are arrays.

Private use: `saving_lib.H5IOStore.get`, the same in Keras 2.12 to tf_keras 2.21.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

NAME = "weights-h5"
WHAT = "the weights of a .weights.h5 file are loaded under a strategy, also where the model has metrics"


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
