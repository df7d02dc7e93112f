"""`pandas_input_fn` takes text columns of pandas 3.

Since pandas 3 a column of text has a type of its own (`str`), which TensorFlow cannot convert: `TypeError: Cannot
convert … StringDtype`. It is handed on as the column of Python strings that it was before.

Private use: the module of the estimator package that defines the function.
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.compat.patches import replacing

NAME = "pandas-strings"
WHAT = "pandas_input_fn takes the text columns of pandas 3, which TensorFlow cannot convert"


def apply() -> None:
    from tensorflow_estimator.python.estimator.inputs import pandas_io

    original = pandas_io.pandas_input_fn

    @functools.wraps(original)
    def pandas_input_fn(x: Any, y: Any = None, *args: Any, **options: Any) -> Any:
        return original(_plain(x), _plain(y), *args, **options)

    replacing.everywhere(original, pandas_input_fn)


def _plain(data: Any) -> Any:
    """A DataFrame or Series whose text, its index's too, is Python strings; anything else as it is."""
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
