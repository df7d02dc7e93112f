"""Data sets from input functions of Estimators: data sets, iterators, queues, arrays, data frames."""

from __future__ import annotations

import types

import numpy as np
import pandas
import pytest

from estimator_pipeline import compat
from estimator_pipeline.errors import InputError
from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn
from estimator_pipeline.models.keras_runtime.model_fn.hooks import Session

tf = compat.install()
v1 = tf.compat.v1
ARRAYS = {"x": np.arange(5, dtype="float32"), "word": np.array(["a", "b", "c", "d", "e"], dtype=object)}


def batches(data):
    return [tf.nest.map_structure(lambda one: one.numpy().tolist(), one) for one in data]


def slices():
    return tf.data.Dataset.from_tensor_slices(({"x": [1.0, 2.0, 3.0]}, [1, 2, 3])).batch(2)


def next_batch():
    return v1.data.make_one_shot_iterator(slices()).get_next()


def queue():
    x, y = v1.train.slice_input_producer([[1.0, 2.0, 3.0], [1, 2, 3]], num_epochs=1, shuffle=False)
    x, y = v1.train.batch([x, y], 2, allow_smaller_final_batch=True)
    return {"x": x}, y


@pytest.mark.parametrize("input_fn", [slices, next_batch, queue])
def test_an_input_function(input_fn):
    wanted = [({"x": [1.0, 2.0]}, [1, 2]), ({"x": [3.0]}, [3])]
    data = keras_model_fn.dataset(input_fn)
    assert batches(data) == wanted and batches(data) == wanted


def test_tensors_are_made_once():
    """For all that is read of them, and nothing is read before."""
    calls, read = [], []

    def records():
        for number in range(3):
            read.append(number)
            yield number

    def input_fn():
        calls.append(tf.executing_eagerly())
        records_of_a_graph = tf.data.Dataset.from_generator(records, tf.int64, [])
        return {"x": v1.data.make_one_shot_iterator(records_of_a_graph).get_next()}

    data = keras_model_fn.dataset(input_fn)
    assert calls == [True, False] and not read
    assert batches(data) == batches(data) == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert len(calls) == 2


def test_an_iterator_that_a_hook_initializes():
    """By arrays that the hook feeds: the class that programs of TensorFlow 1 have for it; for each reading anew."""

    class Initializer(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            self.initialize(session)

    hook, read = Initializer(), []

    def input_fn():
        place = v1.placeholder(tf.float32, [3])
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(place).batch(2))
        hook.initialize = lambda session: session.run(iterator.initializer, feed_dict={place: [1.0, 2.0, 3.0]})
        return {"x": iterator.get_next()}

    def model_fn(features, mode):
        v1.get_variable("w", [])
        reading = v1.py_func(lambda x: read.append(x.tolist()), [features["x"]], [])
        step = v1.train.get_global_step()
        return keras_model_fn.ModelFnSpec(
            mode, loss=tf.reduce_sum(features["x"]), train_op=v1.group(reading, v1.assign_add(step, 1))
        )

    model = keras_model_fn.ModelFnModel(model_fn)
    for _ in range(2):
        model.fit(input_fn, hooks=[hook])
    assert read == [[1.0, 2.0], [3.0]] * 2
    assert model.evaluate(input_fn, hooks=[hook], return_dict=True)["loss"] == 3.0
    data = keras_model_fn.dataset(input_fn)
    hook.initialize(Session(model.graph_of("train", data)))
    assert batches(data) == batches(data) == [{"x": [1.0, 2.0]}, {"x": [3.0]}]


def test_what_it_is_told():
    model = types.SimpleNamespace(params_of=lambda mode: {"rows": len(mode)}, config="config")

    def input_fn(mode, params, config):
        return tf.data.Dataset.from_tensors((mode, params["rows"], config))

    (found,) = keras_model_fn.dataset(input_fn, "eval", model).as_numpy_iterator()
    assert found == (b"eval", 4, b"config")


def test_sparse_tensors_of_a_graph():
    def input_fn():
        data = slices().map(lambda x, y: {"s": tf.sparse.from_dense([[0.0, 2.0]]), "x": x["x"]})
        return v1.data.make_one_shot_iterator(data).get_next()

    first = next(iter(keras_model_fn.dataset(input_fn)))
    assert tf.sparse.to_dense(first["s"]).numpy().tolist() == [[0.0, 2.0]] and first["x"].shape == (2,)


def test_arrays_and_frames():
    """Batches go on over the end of an epoch; columns of words are words."""
    read = keras_model_fn.numpy_input_fn(ARRAYS, np.arange(5), batch_size=3, num_epochs=2, shuffle=False)
    assert [labels for _, labels in batches(keras_model_fn.dataset(read))] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]
    frame = pandas.DataFrame(ARRAYS)
    read = keras_model_fn.pandas_input_fn(frame, frame["x"], batch_size=5, shuffle=True)
    ((features, labels),) = batches(keras_model_fn.dataset(read))
    assert sorted(features["word"]) == [b"a", b"b", b"c", b"d", b"e"] and features["x"] == labels
    alone = keras_model_fn.numpy_input_fn(ARRAYS["x"], batch_size=5, shuffle=False)
    assert batches(keras_model_fn.dataset(alone)) == [[0, 1, 2, 3, 4]]


def test_an_input_function_of_another_one():
    """What a program does with the tensors of numpy_input_fn it does with each batch."""
    inner = keras_model_fn.numpy_input_fn(ARRAYS, np.arange(5), batch_size=3, shuffle=False)

    def input_fn():
        features, labels = inner()
        return {"double": features["x"] * 2}, labels

    assert batches(keras_model_fn.dataset(input_fn)) == [
        ({"double": [0.0, 2.0, 4.0]}, [0, 1, 2]), ({"double": [6.0, 8.0]}, [3, 4]),
    ]  # fmt: skip


def test_bad_input():
    with pytest.raises(InputError, match="returns None"):
        keras_model_fn.dataset(lambda: None)
    with pytest.raises(InputError, match="neither True nor False"):
        keras_model_fn.numpy_input_fn(ARRAYS)
    with pytest.raises(InputError, match="do not have the same number") as error:
        keras_model_fn.numpy_input_fn(ARRAYS, np.arange(4), shuffle=False)
    assert "lengths 4, 5" in str(error.value)
