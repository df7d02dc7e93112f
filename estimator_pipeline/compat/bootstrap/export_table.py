"""The `estimator` entry of TensorFlow's table of exported names, restored.

TensorFlow keeps, for each API that it publishes (`tensorflow`, `keras`, and until 2.15 `estimator`), the names of
the attributes in which a symbol carries its public names. The estimator package registers every one of its symbols
there at import, and TensorFlow's own look-ups (`get_v1_names`, `get_v2_names`, …) read them back. 2.16 removed the
`estimator` entry, so the package cannot be imported without it.

Needed by: TensorFlow 2.16 and later. Private module used: `tensorflow.python.util.tf_export`.
"""

from __future__ import annotations

import functools
from typing import Any

API_NAME = "estimator"
_NAMES, _CONSTANTS = "_estimator_api_names", "_estimator_api_constants"


def restore() -> bool:
    """Restore the entry; return False if it exists already (TensorFlow 2.15, or a second call)."""
    from tensorflow.python.util import tf_export

    if API_NAME in tf_export.API_ATTRS:
        return False
    pair = type(tf_export.API_ATTRS[tf_export.TENSORFLOW_API_NAME])
    tf_export.API_ATTRS[API_NAME] = pair(_NAMES, _CONSTANTS)
    tf_export.API_ATTRS_V1[API_NAME] = pair(f"{_NAMES}_v1", f"{_CONSTANTS}_v1")
    tf_export.ESTIMATOR_API_NAME = API_NAME
    if API_NAME not in tf_export.SUBPACKAGE_NAMESPACES:
        # TensorFlow's symbols may not be in `estimator.*`, which is checked against this list.
        tf_export.SUBPACKAGE_NAMESPACES.append(API_NAME)
    for function, attribute, not_inherited in (
        ("get_v1_names", f"{_NAMES}_v1", True),
        ("get_v2_names", _NAMES, True),
        ("get_v1_constants", f"{_CONSTANTS}_v1", False),
        ("get_v2_constants", _CONSTANTS, False),
    ):
        setattr(tf_export, function, _with_estimator(getattr(tf_export, function), attribute, not_inherited))
    return True


def _with_estimator(lookup: Any, attribute: str, not_inherited: bool) -> Any:
    """Wrap a look-up so that it also returns the names in `attribute`.

    `not_inherited`: read the symbol's `__dict__` only. A subclass of an exported class is not exported; TensorFlow's
    look-ups for names make the same distinction.
    """

    @functools.wraps(lookup)
    def lookup_with_estimator(symbol: Any) -> list[Any]:
        names = list(lookup(symbol))
        if not_inherited:
            names.extend(getattr(symbol, "__dict__", {}).get(attribute, ()))
        else:
            names.extend(getattr(symbol, attribute, ()))
        return names

    return lookup_with_estimator
