"""What exported models are asked, and what is told of their signatures."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import tensorflow_with_three_cpus

from estimator_pipeline.parity.answers import signature_answers
from estimator_pipeline.parity.compare import compare

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
