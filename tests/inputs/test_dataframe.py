"""Data frames as people have them: missing values, categories, dates, an index."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from estimator_pipeline import inputs
from estimator_pipeline.errors import InputError

FRAME = pd.DataFrame(
    {
        "city": pd.Categorical(["a", None, "b", "a"]),
        "note": ["x", None, float("nan"), "ü"],
        "age": [1.5, None, 3.0, float("nan")],
        "size": [1, 2, 3, 4],
        "is new": [True, False, True, True],
        "sold": [pd.Timestamp("1970-01-02 12:00"), None, pd.Timestamp("1970-01-11"), pd.Timestamp("1970-01-11")],
        "grade": pd.Categorical([3, 1, 2, 1]),
        "churned": ["no", "yes", "no", "yes"],
    },
    index=[7, 7, 8, 9],
)
NAN = float("nan")
WANTED = {
    "city": [b"a", b"", b"b", b"a"],
    "note": [b"x", b"", b"", "ü".encode()],
    "age": [1.5, NAN, 3.0, NAN],
    "size": [1, 2, 3, 4],
    "is new": [1, 0, 1, 1],
    "sold": [1.5, NAN, 10.0, 10.0],
    "grade": [3, 1, 2, 1],
}


def first_batch(data):
    features, labels = next(iter(data.eval_input_fn()))
    return {name: value.numpy() for name, value in features.items()}, labels


@pytest.mark.tf
@pytest.mark.parametrize("frame", [FRAME, pa.Table.from_pandas(FRAME, preserve_index=False)], ids=["pandas", "arrow"])
def test_what_a_frame_has(frame):
    data = inputs.from_dataframe(frame, frame, label="churned", global_batch_size=4)
    features, labels = first_batch(data)
    assert labels.numpy().tolist() == [b"no", b"yes", b"no", b"yes"]
    assert features.keys() == WANTED.keys()
    for name, values in features.items():
        np.testing.assert_array_equal(values, np.array(WANTED[name], values.dtype), err_msg=name)
    assert {name: values.dtype.name for name, values in features.items() if values.dtype != object} == {
        "age": "float32", "size": "int64", "is new": "int64", "sold": "float32", "grade": "int64",
    }  # fmt: skip


@pytest.mark.tf
def test_columns_weights_and_a_share_for_evaluation():
    frame = pd.DataFrame({"x": range(100), "w": 0.5, "y": 1, "z": 2})
    columns = {"x": "float32", "w": "float32", "y": "int64"}
    data = inputs.from_dataframe(
        frame, label="y", weight="w", columns=columns, features_key="x", eval_fraction=0.2, seed=3, global_batch_size=8
    )
    again = inputs.from_dataframe(frame, label="y", eval_fraction=0.2, seed=3, global_batch_size=8)
    assert data.num_train_records + data.num_eval_records == 100 and 10 < data.num_eval_records < 35
    assert data.num_eval_records == again.num_eval_records
    x, labels = next(iter(data.train_input_fn()))
    assert x.dtype.name == "float32" and {name: value.dtype.name for name, value in labels.items()} == {
        "y": "int64", "w": "float32",
    }  # fmt: skip


REFUSED = {
    "missing integers": (
        {"train": pd.DataFrame({"a": [1, None]}), "columns": {"a": "int64"}},
        "no value(.|\n)*record 1: None",
    ),
    "a fraction": ({"columns": {"age": ("int64", 0), "churned": "string"}}, "not of type int64(.|\n)*record 0: '1.5'"),
    "no such column": ({"columns": {"agee": "int64"}}, "no column 'agee'"),
    "no such label": ({"label": "left"}, "left"),
    "two shares": ({"eval": FRAME, "eval_fraction": 0.5}, "leave out eval= or eval_fraction="),
    "a list": ({"train": [1, 2]}, "cannot be read as a data frame"),
    "two types": ({"train": pd.DataFrame({"a": ["x", 1]})}, "cannot be read as a data frame(.|\n)*column a"),
    "lists": ({"train": pd.DataFrame({"a": [[1], [2]]}), "label": "a"}, "'a' does not have one value per record"),
    "twice": ({"train": pa.table([[1], [2]], ["a", "a"])}, "'a' is twice"),
    "no data": ({"train": None}, "got no data"),
}


@pytest.mark.tf
@pytest.mark.parametrize("case", REFUSED)
def test_a_frame_that_is_refused(case):
    options, words = REFUSED[case]
    with pytest.raises(InputError, match=words):
        inputs.from_dataframe(**{"train": FRAME, "label": "churned", "global_batch_size": 2, **options})
