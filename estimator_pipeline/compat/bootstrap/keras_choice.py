"""Change of TensorFlow's choice of Keras after its import, while the program has not used `tf.keras`.

`import tensorflow` selects a Keras by TF_USE_LEGACY_KERAS, but its API modules only hold `KerasLazyLoader` objects,
which read the variable again at first use. What the import itself decides is the search path of `tensorflow.keras`
(`__path__` of the API modules), `_tf_uses_legacy_keras`, and which package registers its optimizers for SavedModels
(the end of `tensorflow/__init__.py`, 2.16 to 2.21).

Private use: `_tf_uses_legacy_keras`, and the fields of `KerasLazyLoader` (`tensorflow.python.util.lazy_loader`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["select_keras_2", "used_keras_3"]


def _api_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and namespace of the modules in which TensorFlow publishes its API."""
    for name, module in list(sys.modules.items()):
        if name == "tensorflow" or name.startswith(("tensorflow._api.", "tensorflow.compat.")):
            # Bypasses `__getattribute__`, which would load a lazy module.
            yield name, object.__getattribute__(module, "__dict__")


def used_keras_3() -> str | None:
    """Return the name by which the program has loaded Keras 3 through TensorFlow, as "tf.keras", or None."""
    if "tensorflow.keras" in sys.modules:
        return "tensorflow.keras"
    for module, names in _api_modules():
        for name, value in list(names.items()):
            if _is_keras_3(value):
                # Two attributes share a loader: `tf._losses` is found where `tf.losses` is used.
                return f"{re.sub(r'tensorflow(._api.v2)?', 'tf', module, count=1)}.{name.lstrip('_')}"
    return None


def _is_keras_3(value: Any) -> bool:
    if not isinstance(value, ModuleType):
        return False
    fields = object.__getattribute__(value, "__dict__")
    if type(value).__name__ == "KerasLazyLoader":
        return fields.get("_tfll_keras_version") == "keras_3"
    # A loader that is used puts the module in its place.
    return str(fields.get("__name__")).startswith("keras.")


def select_keras_2() -> None:
    """Make an imported TensorFlow as if TF_USE_LEGACY_KERAS=1, which the caller has set, had been set before."""
    before, after = (os.path.join(_folder(package), "api", "") for package in ("keras", "tf_keras"))
    for _, names in _api_modules():
        if "_tf_uses_legacy_keras" in names:
            names["_tf_uses_legacy_keras"] = True
        path = names.get("__path__")
        if isinstance(path, list):
            path[:] = [after + p[len(before) :] if p and p.startswith(before) else p for p in path]
    importlib.import_module("tf_keras.src.optimizers")


def _folder(package: str) -> str:
    spec = importlib.util.find_spec(package)
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
