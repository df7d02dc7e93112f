"""The exported names of keras on TensorFlow 2.15, protected against tf_keras.

On 2.15 `tf.keras` is the package keras. When TensorFlow loads a SavedModel with an optimizer, it imports tf_keras if
installed. tf_keras then replaces keras in TensorFlow's table of exported names. A model that is loaded from a `.keras`
file after that mixes both packages and does not find registered classes. Here existing names are not replaced.

Private use: TensorFlow's table of exported names (`tensorflow.python.util.tf_export`).
"""

from __future__ import annotations

from typing import Any

_OTHER = "tf_keras"


class _Table(dict[str, Any]):
    def __setitem__(self, name: str, symbol: Any) -> None:
        if name in self and str(getattr(symbol, "__module__", "")).partition(".")[0] == _OTHER:
            return
        super().__setitem__(name, symbol)


def keep() -> bool:
    """Protect the names in the table; return False if they are already protected."""
    from tensorflow.python.util import tf_export

    table = tf_export._NAME_TO_SYMBOL_MAPPING
    if isinstance(table, _Table):
        return False
    tf_export._NAME_TO_SYMBOL_MAPPING = _Table(table)
    return True
