"""What exported models are asked, and what is told of their signatures."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from estimator_pipeline.parity.export_answers import (
    evaluated_losses,
    evaluation_of,
    loss_of_batch_means,
    signature_answers,
)
from estimator_pipeline.utils.arrays import compare
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
INPUTS = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}


def exported(folder, *, name="x", shape=(None, 2), dtype=tf.float32, keys=("serving_default",), output="y"):
    """A SavedModel that doubles its input."""
    module = tf.Module()
    spec = tf.TensorSpec(shape, dtype, name=name)
    module.double = tf.function(lambda given: {output: tf.cast(given, tf.float32) * 2}, input_signature=[spec])
    signatures = {key: module.double.get_concrete_function() for key in keys}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder


def told(folder, **options):
    return signature_answers(exported(folder, **options), INPUTS)


def test_a_signature_is_its_inputs_and_its_answers(tmp_path):
    found = told(tmp_path / "one")
    assert sorted(found) == ["signature serving_default, input x", "signature serving_default, output y"]
    assert str(found["signature serving_default, input x"]) == "float32 (None, 2)"
    np.testing.assert_array_equal(found["signature serving_default, output y"], INPUTS["x"] * 2)
    assert compare(found, told(tmp_path / "other")).equal


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"dtype": tf.float64}, "input x: 'float32 (None, 2)' in the first, 'float64 (None, 2)' in the second"),
        ({"shape": (3, 2)}, "input x: 'float32 (None, 2)' in the first, 'float32 (3, 2)' in the second"),
        ({"name": "z"}, "signature serving_default, input x: the first has it, the second has not"),
        ({"output": "logits"}, "signature serving_default, output y: the first has it, the second has not"),
        ({"keys": ("serving_default", "predict")}, "signature predict, input x: the second has it, the first has not"),
    ],
)
def test_what_differs_of_a_signature_is_told(tmp_path, other, says):
    found = compare(told(tmp_path / "one"), told(tmp_path / "other", **other))
    assert not found.equal and says in str(found)


def test_examples_are_given_where_they_are_asked_for(tmp_path):
    module = tf.Module()
    parse = {"x": tf.io.FixedLenFeature([2], tf.float32)}
    module.ask = tf.function(
        lambda examples: tf.io.parse_example(examples, parse)["x"],
        input_signature=[tf.TensorSpec([None], tf.string, name="examples")],
    )
    tf.saved_model.save(module, str(tmp_path / "one"), signatures=module.ask.get_concrete_function())
    rows = [
        tf.train.Example(
            features=tf.train.Features(feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=row))})
        ).SerializeToString()
        for row in INPUTS["x"]
    ]
    found = signature_answers(tmp_path / "one", INPUTS, rows)
    np.testing.assert_array_equal(found["signature serving_default, output output_0"], INPUTS["x"])
    # Without them there is no answer, and the signature is told all the same.
    assert list(signature_answers(tmp_path / "one", INPUTS)) == ["signature serving_default, input examples"]


def normalised():
    """A model with moving statistics, and batches of its data."""
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((2,)), *layers])
    model.compile("sgd", "mse")
    x = np.random.RandomState(0).normal(size=[20, 2]).astype("float32")
    return model, tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(8)


def test_losses_by_layers_move_nothing():
    """What one batch moves as layers train, the next one does not see."""
    model, batches = normalised()
    before = model.get_weights()
    found, first = evaluated_losses(model, batches), evaluated_losses(model, batches, steps=1)
    assert all(np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True))
    expected = []
    for training in (False, True):
        expected.append([])
        for x, y in batches:
            expected[-1].append(float(tf.reduce_mean((model(x, training=training) - y) ** 2)))
            model.set_weights(before)
    assert set(found) == {"loss", "average_loss"}
    assert found["loss"] == pytest.approx([np.mean(each) for each in expected], rel=1e-6)
    assert first["loss"] == pytest.approx([each[0] for each in expected])


@pytest.mark.parametrize("look", [evaluated_losses, evaluation_of])
def test_no_batch_is_kept(look, request):
    model, batches = normalised()
    left = []
    gc.freeze()  # what other tests have left need not be looked through twelve times
    request.addfinalizer(gc.unfreeze)

    def counted():
        for batch in batches.repeat(4):
            gc.collect()
            left.append(sum(one() is not None for one in kept))
            kept.append(weakref.ref(batch[0]))
            yield batch

    kept = []
    look(model, counted())
    assert len(left) == 12 and max(left) <= 2, left


def test_an_evaluation_batch_by_batch():
    model, batches = normalised()
    model.evaluate(batches, verbose=0)
    found = evaluation_of(model, batches)
    told = [model.evaluate(x, y, verbose=0) for x, y in batches]
    assert found.sizes == [8, 8, 4] and found.each == pytest.approx(told) and not found.notes
    assert found.losses["loss"] == pytest.approx(evaluated_losses(model, batches)["loss"])


@pytest.mark.parametrize(
    ("loss", "each", "sizes", "known"),
    [
        (None, [1.0], [4], None),
        (2.5, [], [], None),  # no batch
        (2.0, [1.0, 4.0], [4, 2], 2.5),  # a mean of records
        (2.5, [1.0, 4.0], [4, 2], 2.5),  # a mean of batches
        (4.0, [1.0, 4.0], [4, 2], 4.0),  # the last one's
        (2.0, None, [4, 4], 2.0),
        (2.0, None, [4, 2], None),
    ],
)
def test_the_loss_as_an_estimator_has_it(loss, each, sizes, known):
    assert loss_of_batch_means(loss, each, sizes) == known
