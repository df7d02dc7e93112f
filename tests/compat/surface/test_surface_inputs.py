"""`inputs.numpy_input_fn` and `inputs.pandas_input_fn`: which records come, in what order, how often."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.support.surface_data import FLOAT32, config, line, tf, variables

v1 = tf.compat.v1
numpy_input_fn = v1.estimator.inputs.numpy_input_fn
pandas_input_fn = v1.estimator.inputs.pandas_input_fn
KINDS = ("numpy", "pandas")
BOTH = pytest.mark.symbols(
    "tf.compat.v1.estimator.inputs.numpy_input_fn", "tf.compat.v1.estimator.inputs.pandas_input_fn"
)


def source(kind, records, **options):
    """`a` counts the records, `b` is its square, the label is 10 times the count."""
    a = np.arange(records)
    if kind == "numpy":
        return numpy_input_fn({"a": a, "b": (a**2).astype(np.float32)}, a * 10, **options)
    index = pd.Index(a + 100)  # what the rows are called must not matter
    frame = pd.DataFrame({"a": a, "b": (a**2).astype(np.float32)}, index=index)
    return pandas_input_fn(frame, pd.Series(a * 10, index=index), **options)


def batches(input_fn, limit=1000):
    """Reads as an Estimator does: in a graph, with queue runners, until the input ends."""
    found = []
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        given = input_fn()
        with v1.train.MonitoredSession() as session:
            while len(found) < limit and not session.should_stop():
                try:
                    found.append(session.run(given))
                except tf.errors.OutOfRangeError:
                    break
    return found


@pytest.mark.gate("5-2-1-sizes0-pandas", "4-3-2-sizes1-numpy")
@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("records, batch, epochs, sizes", [(5, 2, 1, [2, 2, 1]), (4, 3, 2, [3, 3, 2]), (3, 8, 1, [3])])
def test_in_order(kind, records, batch, epochs, sizes):
    """Epochs run into each other: only the very last batch may be short."""
    found = batches(source(kind, records, batch_size=batch, num_epochs=epochs, shuffle=False))
    assert [len(labels) for _, labels in found] == sizes
    order = np.concatenate([features["a"] for features, _ in found])
    assert order.tolist() == list(range(records)) * epochs
    assert np.concatenate([labels for _, labels in found]).tolist() == (order * 10).tolist()
    np.testing.assert_array_equal(np.concatenate([features["b"] for features, _ in found]), order.astype(float) ** 2)


@pytest.mark.gate("numpy")
@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_shuffled(kind):
    """Each record once an epoch, not in order, label and features still together."""
    found = batches(source(kind, 60, batch_size=7, num_epochs=1, shuffle=True))
    order = np.concatenate([features["a"] for features, _ in found])
    assert sorted(order) == list(range(60))
    assert order.tolist() != sorted(order)
    assert np.concatenate([labels for _, labels in found]).tolist() == (order * 10).tolist()


@pytest.mark.gate("pandas")
@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_without_end(kind):
    """`num_epochs=None` never ends, and its batches are whole, across the end of the data."""
    found = batches(source(kind, 5, batch_size=3, num_epochs=None, shuffle=False), limit=7)
    assert np.concatenate([features["a"] for features, _ in found]).tolist() == [i % 5 for i in range(21)]


@pytest.mark.gate("numpy")
@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_several_threads_read_every_record(kind):
    """The epochs count for each thread."""
    found = batches(source(kind, 20, batch_size=4, num_epochs=1, shuffle=True, num_threads=3))
    counts = np.bincount(np.concatenate([features["a"] for features, _ in found]), minlength=20)
    assert counts.tolist() == [3] * 20


@pytest.mark.symbols("tf.compat.v1.estimator.inputs.numpy_input_fn")
def test_shapes_of_numpy_input():
    """A plain array, no labels, several labels, rows of any shape."""
    rows = np.arange(12.0).reshape(3, 2, 2)
    (found,) = batches(numpy_input_fn(rows, shuffle=False))
    np.testing.assert_array_equal(found, rows)
    (found,) = batches(numpy_input_fn({"x": rows}, shuffle=False))
    np.testing.assert_array_equal(found["x"], rows)
    ((features, labels),) = batches(numpy_input_fn({"x": rows}, {"p": np.arange(3), "q": rows}, shuffle=False))
    np.testing.assert_array_equal(labels["p"], np.arange(3))
    np.testing.assert_array_equal(labels["q"], features["x"])


@pytest.mark.symbols("tf.compat.v1.estimator.inputs.pandas_input_fn")
def test_shapes_of_pandas_input():
    """Words in a column, no labels, a frame of labels under their own names."""
    frame = pd.DataFrame({"n": [1, 2], "w": np.array(["x", "y"], object)})
    (found,) = batches(pandas_input_fn(frame, shuffle=False))
    assert found["w"].tolist() == [b"x", b"y"]
    ((features, labels),) = batches(pandas_input_fn(frame, pd.DataFrame({"p": [3, 4], "n": [5, 6]}), shuffle=False))
    assert features["n"].tolist() == [1, 2]
    assert {name: value.tolist() for name, value in labels.items()} == {"p": [3, 4], "n": [5, 6]}


@pytest.mark.parametrize(
    "make, kind, message",
    [
        (lambda: numpy_input_fn({"a": np.arange(2)}), ValueError, "shuffle must be provided"),
        (lambda: numpy_input_fn({}, shuffle=False)(), ValueError, "cannot be an empty dict"),
        (lambda: numpy_input_fn([1], shuffle=False)(), TypeError, "must be a dict or array"),
        (lambda: numpy_input_fn({"a": np.arange(2)}, np.arange(3), shuffle=False)(), ValueError, "Length of tensors"),
        (lambda: numpy_input_fn({"a": np.arange(2)}, {"a": np.arange(2)}, shuffle=False)(), ValueError, "duplicate"),
        (lambda: pandas_input_fn(pd.DataFrame({"a": [1]})), ValueError, "shuffle must be provided"),
        (lambda: pandas_input_fn(pd.DataFrame({"a": [1]}), pd.Series([1], [7]), shuffle=False), ValueError, "Index"),
        (
            lambda: pandas_input_fn(pd.DataFrame({"target": [1]}), pd.Series([1]), shuffle=False),
            ValueError,
            "Cannot use name target",
        ),
    ],
)
@BOTH
def test_what_is_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.nightly
@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_training_from_it(tmp_path, kind):
    """Least squares found from either input: the line's own slope and intercept."""
    x, y = line()
    if kind == "numpy":
        input_fn = numpy_input_fn({"p": x[:, 0], "q": x[:, 1]}, y, batch_size=20, num_epochs=60, shuffle=True)
    else:
        frame = pd.DataFrame({"p": x[:, 0], "q": x[:, 1]})
        input_fn = pandas_input_fn(frame, pd.Series(y), batch_size=20, num_epochs=60, shuffle=True)
    columns = [tf.feature_column.numeric_column(name) for name in "pq"]
    rate = 0.4 / 20  # of a loss summed over the batch
    optimizer = v1.train.GradientDescentOptimizer(rate)
    estimator = v1.estimator.LinearRegressor(columns, optimizer=optimizer, config=config(tmp_path, v1=True))
    estimator.train(input_fn)
    found = variables(estimator.latest_checkpoint())
    assert estimator.get_variable_value("global_step") == 180
    np.testing.assert_allclose(found["linear/linear_model/p/weights"], [[2]], **FLOAT32)
    np.testing.assert_allclose(found["linear/linear_model/q/weights"], [[-3]], **FLOAT32)
    np.testing.assert_allclose(found["linear/linear_model/bias_weights"], [0.5], **FLOAT32)


def test_pandas_takes_text_of_its_own_type():
    """Patch pandas-strings: since pandas 3 every text column has this type, which TensorFlow cannot convert."""
    frame = pd.DataFrame({"n": [1, 2], "w": pd.array(["x", "y"], dtype="string")})
    labels = pd.Series(pd.array(["no", "yes"], dtype="string"))
    ((features, found),) = batches(pandas_input_fn(frame, labels, shuffle=False))
    assert features["w"].tolist() == [b"x", b"y"] and found.tolist() == [b"no", b"yes"]
    assert isinstance(frame["w"].dtype, pd.StringDtype)
