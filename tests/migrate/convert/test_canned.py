"""Canned Estimators: what is written, what stays an Estimator program, and that both train alike."""

from __future__ import annotations

import re

import pytest

from estimator_pipeline.testing import assert_parity
from tests.migrate.convert.programs import program as of_model_fn
from tests.migrate.convert.test_programs import converted, module, todays
from tests.support.processes import tensorflow_with_three_cpus

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]
tf = tensorflow_with_three_cpus()

PROGRAM = """\
import os

import numpy as np
import tensorflow as tf
<OF_V1>

def columns():
    fc = tf.feature_column
    city = fc.categorical_column_with_vocabulary_list("city", ["oslo", "rome", "bern"])
    found = [fc.indicator_column(city)]
    for key in ("age", "size"):
        found.append(fc.numeric_column(key))
    found.append(fc.bucketized_column(found[1], [20.0, 40.0]))
    return found


def wide():
    city = tf.feature_column.categorical_column_with_hash_bucket("city", 7)
    return columns()[1:] + [city, tf.feature_column.crossed_column(["city", "kind"], 9)]


def deep():
    kind = tf.feature_column.categorical_column_with_identity("kind", 5)
    return columns() + [tf.feature_column.embedding_column(kind, 2, initializer=tf.ones_initializer())]


def input_fn():
    draw = np.random.RandomState(0)
    features = {
        "age": draw.rand(64) * 60,
        "size": draw.rand(64, 1).astype("float32"),
        "city": draw.choice(["oslo", "rome", "lima", ""], [64, 2]),
        "kind": draw.randint(0, 5, 64),
        "a_key": draw.choice(["a", "b"], 64),  # that no column reads
    }
    labels = (features["kind"] + draw.randint(0, 2, 64)) % <CLASSES>
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)


def main():
    model = tf.estimator.<CONSTRUCTOR>
    model.train(lambda: input_fn().repeat(), steps=8)
    result = model.evaluate(input_fn)
    print(result["average_loss"], result["global_step"])
    for row in model.predict(input_fn):
        print(sorted(row))
        break


if __name__ == "__main__":
    main()
"""


def program(constructor: str, classes: int = 2, *, of_v1: bool = True) -> str:
    """Return a program that trains a canned Estimator, written for TensorFlow 1 or 2."""
    of_1 = "\ntf.logging.set_verbosity(tf.logging.ERROR)\n" if of_v1 else ""
    text = PROGRAM.replace("<CONSTRUCTOR>", constructor).replace("<CLASSES>", str(classes))
    return text.replace("<OF_V1>", of_1)


# Constructor, number of classes, whether it is of TensorFlow 1.
KINDS = [
    ("DNNClassifier(feature_columns=deep(), hidden_units=[5], optimizer=tf.train.AdagradOptimizer(0.1))", 2, True),
    ("DNNRegressor([5], deep())", 3, False),
    (
        "DNNLinearCombinedClassifier(linear_feature_columns=wide(), dnn_feature_columns=deep(), dnn_hidden_units=[5])",
        2,
        True,
    ),
    *(
        pytest.param(*kind, marks=pytest.mark.nightly)
        for kind in (
            ("LinearClassifier(wide())", 2, True),
            ("DNNClassifier([5, 4], deep(), n_classes=3)", 3, True),
            ("DNNClassifier([5], columns(), activation_fn=tf.nn.tanh, optimizer='SGD')", 2, False),
            ("DNNRegressor([5], columns(), optimizer='SGD', loss_reduction=tf.losses.Reduction.MEAN)", 3, True),
            ("LinearClassifier(wide(), n_classes=3, optimizer=tf.keras.optimizers.Adam(0.1))", 3, False),
            ("LinearRegressor(feature_columns=wide(), sparse_combiner='mean')", 3, True),
            (
                "DNNLinearCombinedClassifier(None, wide(), 'Ftrl', deep(), 'Adam', [5], n_classes=3)",
                3,
                False,
            ),
            (
                "DNNLinearCombinedRegressor(dnn_feature_columns=deep(), linear_feature_columns=wide(), "
                "dnn_hidden_units=[5], linear_optimizer='SGD', dnn_optimizer=tf.train.AdamOptimizer(0.1))",
                2,
                True,
            ),
        )
    ),
]
LINEAR = ("age/weights", "bias_weights", "age_bucketized/weights", "city/weights", "city_X_kind/weights",
          "size/weights")  # fmt: skip


def named(model, constructor: str, end: str) -> dict[str, str]:
    """Return name in Keras -> name in the Estimator, both in the order of the columns and layers."""
    layers = ["hiddenlayer_0", *(["hiddenlayer_1"] if "[5, 4]" in constructor else []), "logits"]
    theirs = [f"dnn/{layer}/{name}{end}" for layer in layers for name in ("kernel", "bias")]
    if "deep()" in constructor:
        theirs.insert(0, f"dnn/input_from_feature_columns/input_layer/kind_embedding/embedding_weights{end}")
    if "wide()" in constructor:
        theirs[-2:-2] = [f"linear/linear_model/{name}{end}" for name in LINEAR]
    if constructor.startswith("Linear"):
        theirs = [name for name in theirs if name.startswith("linear")]
    ours = [variable.name.partition(":")[0] for variable in model.trainable_variables]
    return dict(zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("constructor", "classes", "of_v1"), KINDS)
def test_both_train_alike(tmp_path, constructor, classes, of_v1):
    """Weights, optimizer and loss of each step, and the metrics: with all defaults of TensorFlow 1 and 2."""
    tf.keras.backend.clear_session()
    text = program(constructor, classes, of_v1=of_v1)
    before = module(todays(tmp_path, text), "canned_before")
    after = module(converted(tmp_path, text), "canned_after")
    made = (tmp_path / "before.py").read_text().partition("model = ")[2].partition("\n")[0]
    estimator = eval(made.replace("keras.optimizers.", "keras.optimizers.legacy."), vars(before))
    columns = [getattr(after, name)() for name in re.findall(r"(\w+)\(\)", constructor)]
    model = after.make_model(after.model_inputs(after.input_fn()), *columns)
    parity = assert_parity(
        estimator=estimator,
        model=model,
        input_fn=lambda: before.input_fn().repeat(),
        eval_input_fn=before.input_fn,
        mapping=named(model, constructor, "/part_0" if of_v1 else ""),
        steps=6,
    )
    assert len(parity.steps) == 6
    ours = list(after.predict(model, after.input_fn(), after.make_predictions))[-1]
    theirs = list(estimator.predict(before.input_fn))[-1]
    assert theirs.keys() == ours.keys()
    assert {key: (value.shape, value.dtype) for key, value in theirs.items()} == {
        key: (value.shape, value.dtype) for key, value in ours.items()
    }


def test_a_saved_model_with_columns_in_its_params(tmp_path):
    """A loss that compile does not describe makes a class, whose configuration has the params."""
    network = "net = tf.feature_column.input_layer(features, params['columns'])\nlogits = tf.layers.dense(net, 3)"
    text = of_model_fn(NETWORK=network, LOSS="loss = tf.losses.sparse_softmax_cross_entropy(labels, logits) * 2.0")
    columns = "columns = [tf.feature_column.bucketized_column(tf.feature_column.numeric_column('y'), [0.5]),\n" \
              "           tf.feature_column.numeric_column('x', shape=2)]\n"  # fmt: skip
    text = text.replace('{"x": [[1.0, 2.0]]}', '{"x": [[1.0, 2.0]], "y": [3.0]}')
    text = text.replace("def main", f"{columns}\n\ndef main")
    loaded = module(converted(tmp_path, text.replace('{"rate"', '{"columns": columns, "rate"')), "with_columns")
    data = loaded.input_fn()
    model = loaded.make_model(loaded.model_inputs(data), {"columns": loaded.columns, "rate": 0.1})
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    features, _ = next(iter(data))
    assert (model.predict(features, verbose=0) == again.predict(features, verbose=0)).all()


SERVING = """
def serve():
    inputs = {name: tf.placeholder(tf.float32, [None]) for name in ("age", "size")}
    city = tf.stack([tf.as_string(inputs["age"]), tf.as_string(inputs["size"])], 1)
    features = dict(inputs, city=city, kind=tf.cast(inputs["size"], tf.int64))
    return tf.estimator.export.ServingInputReceiver(features, inputs)


SPEC = {
    "age": tf.FixedLenFeature([], tf.float32),
    "size": tf.FixedLenFeature([1], tf.float32),
    "city": tf.FixedLenFeature([2], tf.string),
    "kind": tf.FixedLenFeature([], tf.int64),
}
parse = tf.estimator.export.build_parsing_serving_input_receiver_fn(SPEC)


def main():"""
EXPORTS = [
    ("LinearClassifier(wide())", 2),
    *(
        pytest.param(*each, marks=pytest.mark.nightly)
        for each in (("LinearClassifier(wide(), n_classes=3)", 3), ("LinearRegressor(wide())", 2))
    ),
]


@pytest.mark.parametrize(("constructor", "classes"), EXPORTS)
def test_an_export_has_the_same_signatures(tmp_path, constructor, classes):
    """Of placeholders and of serialized examples: the names, types and values. It trains both, as a proof of values."""
    text = program(constructor, classes).replace("def main():", SERVING).replace("    result = ", (
        f"    model.export_saved_model({str(tmp_path / 'NAME' / 'raw')!r}, serve)\n"
        f"    model.export_saved_model({str(tmp_path / 'NAME' / 'parsed')!r}, parse)\n    result = "
    ))  # fmt: skip
    text = text.replace('"age": draw', '"id": draw.rand(64), "age": draw')  # which the exports do not take
    module(todays(tmp_path, text.replace("NAME", "theirs")), "canned_exports").main()
    module(converted(tmp_path, text.replace("NAME", "ours")), "canned_exported").main()
    example = tf.train.Example()
    for name, values in (("age", [3.5]), ("size", [0.25])):
        example.features.feature[name].float_list.value.extend(values)
    example.features.feature["kind"].int64_list.value.append(4)
    example.features.feature["city"].bytes_list.value.extend([b"rome", b"lima"])
    inputs = {"age": tf.constant([3.5, 70.0]), "size": tf.constant([0.25, 2.0])}
    for export in ("raw", "parsed"):
        paths = [next((tmp_path / name / export).iterdir()) for name in ("theirs", "ours")]
        theirs, ours = (tf.saved_model.load(str(path)).signatures for path in paths)
        assert set(ours) == set(theirs)
        for name, signature in theirs.items():
            taken = signature.structured_input_signature[1]
            assert {key: (spec.shape, spec.dtype) for key, spec in taken.items()} == {
                key: (spec.shape, spec.dtype) for key, spec in ours[name].structured_input_signature[1].items()
            }
            passed = inputs if export == "raw" else {key: tf.constant([example.SerializeToString()]) for key in taken}
            answers, expected = ours[name](**passed), signature(**passed)
            assert {key: value.dtype for key, value in answers.items()} == {
                key: value.dtype for key, value in expected.items()
            }
            for key, value in expected.items():
                if value.dtype.is_floating:
                    assert answers[key].numpy() == pytest.approx(value.numpy(), 1e-4, 1e-6), (name, key)
                else:
                    assert (answers[key].numpy() == value.numpy()).all(), (name, key)


RMSE = """def rmse(labels, predictions):
    values = tf.squeeze(predictions['predictions'], axis=-1)
    return {'rmse': tf.metrics.root_mean_squared_error(tf.cast(labels, tf.float32), values)}


"""


def with_metrics(text: str, metric_fn: str = RMSE, call: str = "add_metrics(model, rmse)") -> str:
    """Return a program whose Estimator has the metrics of a function."""
    added = f"    model = tf.contrib.estimator.{call}\n    model.train("
    text = text.replace("def main():", f"{metric_fn}def main():").replace("    model.train(", added)
    return text.replace('print(result["average_loss"]', 'print(result["average_loss"], result["rmse"]')


# They start from zeros and ones, so that two processes come to the same numbers.
WHOLE = [
    ("LinearClassifier(wide())", 2),
    pytest.param("LinearRegressor(deep(), optimizer='Adagrad')", 3, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(
    "legacy", [pytest.param("1", marks=pytest.mark.nightly), pytest.param("0", marks=pytest.mark.keras_3)]
)
@pytest.mark.parametrize(("constructor", "classes"), WHOLE)
def test_a_program_prints_the_same_numbers(tmp_path, run_python, capsys, constructor, classes, legacy):
    """On Keras 3, too, whose optimizers square the gradients of a row that a batch has twice one by one."""
    text = program(constructor, classes)
    text = with_metrics(text) if "Regressor" in constructor else text
    module(todays(tmp_path, text), "canned_program").main()
    done = run_python([converted(tmp_path, text)], env={"TF_USE_LEGACY_KERAS": legacy}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    theirs, ours = (printed.split("\n")[-3:-1] for printed in (capsys.readouterr().out, done.stdout))
    assert theirs[1] == ours[1]
    assert [float(word) for word in ours[0].split()] == pytest.approx([float(word) for word in theirs[0].split()], 1e-5)
