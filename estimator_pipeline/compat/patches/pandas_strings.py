"""`pandas_input_fn` accepts string columns of pandas 3.

Since pandas 3 a string column has the dtype `str`, which TensorFlow cannot convert: `TypeError: Cannot convert …
StringDtype`. Here it is converted to a column of Python strings, as before.

Private use: the module of the estimator package that defines the function.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat.patches import replacing

NAME = "pandas-strings"
WHAT = "pandas_input_fn accepts the string columns of pandas 3, which TensorFlow cannot convert"


def apply() -> None:
    from tensorflow_estimator.python.estimator.inputs import pandas_io

    original = pandas_io.pandas_input_fn

    @functools.wraps(original)
    def pandas_input_fn(x: Any, y: Any = None, *args: Any, **options: Any) -> Any:
        return original(_plain(x), _plain(y), *args, **options)

    replacing.everywhere(original, pandas_input_fn)


def _plain(data: Any) -> Any:
    """Convert string columns and indices to Python strings; return other data as it is."""
    try:
        import pandas as pd
    except ImportError:
        return data
    if isinstance(data, pd.DataFrame):
        text = [name for name, dtype in data.dtypes.items() if isinstance(dtype, pd.StringDtype)]
        data = data.astype(dict.fromkeys(text, object)) if text else data
    elif isinstance(data, pd.Series):
        data = data.astype(object) if isinstance(data.dtype, pd.StringDtype) else data
    else:
        return data
    return data.set_axis(data.index.astype(object)) if isinstance(data.index.dtype, pd.StringDtype) else data
