"""The text columns of pandas 3."""

from __future__ import annotations

import pandas as pd
import pytest

from estimator_pipeline import compat

tf = compat.install()


@pytest.mark.parametrize("dtype", ["string", "object"])
def test_pandas_input_fn_takes_text(dtype):
    frame = pd.DataFrame({"kind": ["a", "b", "a"], "size": [1.0, 2.0, 3.0]}, index=pd.Index(["x", "y", "z"]))
    frame["kind"] = frame["kind"].astype(dtype)
    labels = pd.Series(["no", "yes", "no"], index=frame.index, dtype=dtype)
    input_fn = tf.compat.v1.estimator.inputs.pandas_input_fn(frame, labels, batch_size=3, shuffle=False)
    with tf.Graph().as_default():
        batch = input_fn()
        with tf.compat.v1.train.MonitoredSession() as session:
            features, target = session.run(batch)
    assert features["kind"].tolist() == [b"a", b"b", b"a"]
    assert features["size"].tolist() == [1.0, 2.0, 3.0]
    assert target.tolist() == [b"no", b"yes", b"no"]
