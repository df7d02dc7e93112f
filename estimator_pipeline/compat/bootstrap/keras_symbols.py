"""TensorFlow 2.15 beside tf_keras: `tf.keras` stays what it is.

On 2.15 `tf.keras` is the package keras. TensorFlow itself imports tf_keras where that is installed, as soon as it loads
a SavedModel with an optimizer, and tf_keras then takes the places of keras in TensorFlow's table of exported names: a
model that is read from a `.keras` file after that is half of one package and half of the other, and finds none of the
classes that were registered. Here the table keeps the names that it has.

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
    """Has the table keep its names; says whether that was new."""
    from tensorflow.python.util import tf_export

    table = tf_export._NAME_TO_SYMBOL_MAPPING
    if isinstance(table, _Table):
        return False
    tf_export._NAME_TO_SYMBOL_MAPPING = _Table(table)
    return True
