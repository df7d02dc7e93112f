"""SavedModels of Estimators: plain TensorFlow loads them and answers with the numbers of predict()."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.surface_models import X, Y, input_fn, linear, loss_with, predictions, tf

v1 = tf.compat.v1
export = tf.estimator.export
WORDS = np.array(["apple", "fig", "plum", "apple"])

# Run by a Python that knows nothing of us. A question is (path, tags, signature, inputs); with a list of tags it is
# asked in a session, as in TensorFlow 1, with a single one it is asked of tf.saved_model.load.
ASK = """
import pickle, sys
import tensorflow as tf

questions = pickle.load(open(sys.argv[1], "rb"))
answers = {}
for name, (path, tags, signature, inputs) in questions.items():
    if isinstance(tags, str):
        function = tf.saved_model.load(path, tags=[tags]).signatures[signature]
        answer = function(**{key: tf.constant(value) for key, value in inputs.items()})
        answers[name] = {key: value.numpy() for key, value in answer.items()}
    else:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            asked = tf.compat.v1.saved_model.load(session, tags, path).signature_def[signature]
            feed = {asked.inputs[key].name: value for key, value in inputs.items()}
            wanted = {key: info.name for key, info in asked.outputs.items() if not key.endswith("update_op")}
            answers[name] = session.run(wanted, feed)
strangers = ["estimator_pipeline"] + ["tensorflow_estimator"] * (not tf.__version__.startswith("2.15."))
assert not [name for name in strangers if name in sys.modules]
pickle.dump(answers, open(sys.argv[2], "wb"))
"""


def text(path):
    return os.fsdecode(path)


def example(**features):
    """A serialized tf.train.Example; text becomes bytes, numbers floats."""
    made = {}
    for name, value in features.items():
        values = np.ravel(value).tolist()
        if isinstance(values[0], str):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[v.encode() for v in values]))
        else:
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


SERIALIZED = np.array([example(x=row) for row in X], object)
SPEC = {"x": tf.io.FixedLenFeature([2], tf.float32)}


def raw_receiver():
    with tf.Graph().as_default():
        template = v1.placeholder(tf.float32, [None, 2], "x")
        return export.build_raw_serving_input_receiver_fn({"x": template})


class Doubled(export.ExportOutput):
    """A signature of one's own."""

    def __init__(self, value):
        self.value = value

    def as_signature_def(self, receiver_tensors):
        return v1.saved_model.predict_signature_def(receiver_tensors, {"doubled": 2 * self.value})


def outputs(mode, answer=None, **_):
    if mode != tf.estimator.ModeKeys.PREDICT:
        return {}
    chance = tf.sigmoid(answer)
    scores = tf.stack([1 - chance, chance], axis=1)
    names = tf.tile([["no", "yes"]], [tf.shape(answer)[0], 1])
    found = {
        "serving_default": export.PredictOutput({"y": answer, "chance": chance}),
        "regress": export.RegressionOutput(answer),
        "classify": export.ClassificationOutput(scores=scores, classes=names),
        "doubled": Doubled(answer),
    }
    return {"export_outputs": found}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A trained model and what predict() says of X."""
    estimator = linear(tmp_path_factory.mktemp("linear"), extra=outputs).train(input_fn, steps=5)
    found = predictions(estimator)
    np.testing.assert_allclose(found, X @ estimator.get_variable_value("w"), rtol=1e-6)
    return SimpleNamespace(estimator=estimator, y=found, weight=estimator.get_variable_value("w"))


def raw_questions(model, folder):
    """Features as they are. Signatures that take serialized examples by definition are left out."""
    path = text(model.estimator.export_saved_model(str(folder), raw_receiver()))
    chance = 1 / (1 + np.exp(-model.y))
    return {
        "predict": ((path, "serve", "serving_default", {"x": X}), {"y": model.y, "chance": chance}),
        "one row": ((path, "serve", "serving_default", {"x": X[:1]}), {"y": model.y[:1], "chance": chance[:1]}),
        "own output": ((path, "serve", "doubled", {"x": X}), {"doubled": 2 * model.y}),
        "session": ((path, ["serve"], "doubled", {"x": X}), {"doubled": 2 * model.y}),
    }


def parsing_questions(model, folder):
    """Serialized examples in; classification and regression signatures name them `inputs`."""
    receiver = export.build_parsing_serving_input_receiver_fn(SPEC)
    path = text(model.estimator.export_saved_model(str(folder), receiver, as_text=True))
    assert os.path.exists(os.path.join(path, "saved_model.pbtxt"))
    chance = 1 / (1 + np.exp(-model.y))
    classes = {"scores": np.stack([1 - chance, chance], axis=1), "classes": np.array([[b"no", b"yes"]] * 4, object)}
    return {
        "examples": (
            (path, "serve", "serving_default", {"examples": SERIALIZED}),
            {"y": model.y, "chance": chance},
        ),
        "classify": ((path, "serve", "classify", {"inputs": SERIALIZED}), classes),
        "regress examples": ((path, "serve", "regress", {"inputs": SERIALIZED}), {"outputs": model.y}),
    }


def alternatives_questions(model, folder):
    """One model that can be fed in two ways: halves of the feature, or the whole."""

    def receiver():
        left = v1.placeholder(tf.float32, [None, 1], "left")
        right = v1.placeholder(tf.float32, [None, 1], "right")
        whole = tf.concat([left, right], axis=1)
        other = {"whole": {"x": whole}}
        return export.ServingInputReceiver({"x": whole}, {"left": left, "right": right}, other)

    path = text(model.estimator.export_saved_model(str(folder), receiver))
    halves = {"left": X[:, :1], "right": X[:, 1:]}
    return {
        "halves": ((path, "serve", "serving_default", halves), {"y": model.y}),
        "whole": ((path, ["serve"], "whole:doubled", {"x": X}), {"doubled": 2 * model.y}),
    }


def tensor_questions(model, folder):
    """The features are one tensor, and not a dictionary."""

    def model_fn(features, labels, mode):
        answer = 3 * features
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(answer)
        return tf.estimator.EstimatorSpec(mode, answer, loss=loss, train_op=step.assign_add(1))

    def receiver():
        codes = v1.placeholder(tf.string, [None], "codes")
        return export.TensorServingInputReceiver(tf.strings.to_number(codes), codes)

    estimator = tf.estimator.Estimator(model_fn, str(folder / "model"))
    estimator.train(lambda: tf.data.Dataset.from_tensors(tf.constant([1.0])), steps=1)
    path = text(estimator.export_saved_model(str(folder), receiver))
    asked = {"input": np.array([b"1", b"2.5"], object)}
    return {"tensor": ((path, "serve", "serving_default", asked), {"output": np.array([3, 7.5], np.float32)})}


def all_modes_questions(model, folder):
    """Training, evaluation and prediction in one SavedModel; those with labels answer with the loss."""
    with tf.Graph().as_default():
        features = {"x": v1.placeholder(tf.float32, [None, 2], "x")}
        supervised = tf.estimator.experimental.build_raw_supervised_input_receiver_fn(
            features, v1.placeholder(tf.float32, [None], "y")
        )
    modes = tf.estimator.ModeKeys
    receivers = {modes.TRAIN: supervised, modes.EVAL: supervised, modes.PREDICT: raw_receiver()}
    path = text(model.estimator.experimental_export_all_saved_models(str(folder), receivers))
    fed = {"x": X, "label": Y}
    loss = np.float32(loss_with(model.weight))
    answer = {"loss": loss, "predictions/y": model.y}
    return {
        "all: train": ((path, ["train"], "train", fed), answer),
        "all: eval": ((path, ["eval"], "eval", fed), answer),
        "all: predict": ((path, "serve", "serving_default", {"x": X}), {"y": model.y}),
    }


def canned_questions(model, folder):
    """A canned Estimator whose vocabulary file is gone by the time that the SavedModel is asked."""
    vocabulary = folder / "words.txt"
    vocabulary.write_text("fig\napple\nplum\n")
    column = tf.feature_column.categorical_column_with_vocabulary_file("word", str(vocabulary), 3)
    columns = [tf.feature_column.numeric_column("x", shape=[2]), tf.feature_column.indicator_column(column)]
    classifier = tf.estimator.DNNClassifier([3], columns, str(folder / "model"), activation_fn=tf.nn.tanh)

    def data():
        labels = np.array([0, 1, 1, 0])
        return tf.data.Dataset.from_tensor_slices(({"x": X, "word": WORDS[:, None]}, labels)).batch(4)

    classifier.train(lambda: data().repeat(), steps=3)
    expected = list(classifier.predict(data))
    receiver = export.build_parsing_serving_input_receiver_fn(tf.feature_column.make_parse_example_spec(columns))
    path = text(classifier.export_saved_model(str(folder), receiver))
    vocabulary.unlink()
    assert os.path.exists(os.path.join(path, "assets", "words.txt"))
    fed = np.array([example(x=x, word=word) for x, word in zip(X, WORDS, strict=True)], object)
    rows = {key: np.array([row[key] for row in expected]) for key in ("probabilities", "class_ids", "logits")}
    classes = {"scores": rows["probabilities"], "classes": np.array([[b"0", b"1"]] * 4, object)}
    return {
        "canned predict": ((path, "serve", "predict", {"examples": fed}), rows),
        "canned classify": ((path, "serve", "serving_default", {"inputs": fed}), classes),
        "canned regress": ((path, "serve", "regression", {"inputs": fed}), {"outputs": rows["probabilities"][:, 1:]}),
    }


def v1_questions(model, folder):
    """The method of TensorFlow 1, on an Estimator of TensorFlow 1, from a checkpoint that is not the last."""
    estimator = linear(folder / "model", extra=outputs, v1=True, save_checkpoints_steps=2)
    estimator.train(input_fn, steps=4)
    checkpoint = str(folder / "model" / "model.ckpt-2")
    path = text(
        estimator.export_savedmodel(str(folder), raw_receiver(), checkpoint_path=checkpoint, strip_default_attrs=True)
    )
    weight = tf.train.load_variable(checkpoint, "w")
    assert not np.allclose(weight, estimator.get_variable_value("w"))
    return {"v1": ((path, "serve", "serving_default", {"x": X}), {"y": X @ weight})}


# Asked together, in one process.
BUILDERS = {
    "parsing": (parsing_questions,),
    "all others": (
        *(raw_questions, alternatives_questions, tensor_questions),
        *(all_modes_questions, canned_questions, v1_questions),
    ),
}


@pytest.mark.symbols(
    "tf.estimator.Estimator",
    "tf.estimator.ModeKeys",
    "tf.estimator.experimental.build_raw_supervised_input_receiver_fn",
    "tf.estimator.export.ClassificationOutput",
    "tf.estimator.export.EvalOutput",
    "tf.estimator.export.ExportOutput",
    "tf.estimator.export.PredictOutput",
    "tf.estimator.export.RegressionOutput",
    "tf.estimator.export.ServingInputReceiver",
    "tf.estimator.export.TensorServingInputReceiver",
    "tf.estimator.export.build_parsing_serving_input_receiver_fn",
    "tf.estimator.export.build_raw_serving_input_receiver_fn",
    "tf.compat.v1.estimator.Estimator",
    "tf.compat.v1.estimator.ModeKeys",
    "tf.compat.v1.estimator.experimental.build_raw_supervised_input_receiver_fn",
    "tf.compat.v1.estimator.export.ClassificationOutput",
    "tf.compat.v1.estimator.export.EvalOutput",
    "tf.compat.v1.estimator.export.ExportOutput",
    "tf.compat.v1.estimator.export.PredictOutput",
    "tf.compat.v1.estimator.export.RegressionOutput",
    "tf.compat.v1.estimator.export.ServingInputReceiver",
    "tf.compat.v1.estimator.export.TensorServingInputReceiver",
    "tf.compat.v1.estimator.export.build_parsing_serving_input_receiver_fn",
    "tf.compat.v1.estimator.export.build_raw_serving_input_receiver_fn",
)
@pytest.mark.nightly
@pytest.mark.parametrize("together", BUILDERS)
def test_plain_tensorflow_answers_as_predict_does(model, tmp_path, run_python, together):
    """Same arithmetic in another process: a few units in the last place for the order of sums."""
    asked = {}  # question -> what is asked, what plain TensorFlow should answer
    for build in BUILDERS[together]:
        folder = tmp_path / build.__name__
        folder.mkdir()
        asked |= build(model, folder)
    (tmp_path / "questions").write_bytes(pickle.dumps({key: question for key, (question, _) in asked.items()}))
    done = run_python(["-c", ASK, tmp_path / "questions", tmp_path / "answers"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    answers = pickle.loads((tmp_path / "answers").read_bytes())
    for key, (_, expected) in asked.items():
        given = answers[key]
        assert set(expected) <= set(given), key
        for output, value in expected.items():
            if value.dtype == object:
                np.testing.assert_array_equal(given[output], value, err_msg=f"{key}: {output}")
            else:
                np.testing.assert_allclose(given[output], value, rtol=1e-5, atol=1e-6, err_msg=f"{key}: {output}")


@pytest.mark.symbols("tf.estimator.Estimator", "tf.estimator.FinalExporter", "tf.compat.v1.estimator.FinalExporter")
def test_assets_extra_lie_beside_the_model(model, tmp_path):
    """Of an export, and of an exporter."""
    (tmp_path / "note.txt").write_text("read me")
    extra = {"notes/first.txt": str(tmp_path / "note.txt")}
    one = model.estimator.export_saved_model(str(tmp_path / "one"), raw_receiver(), assets_extra=extra)
    exporter = tf.estimator.FinalExporter("final", raw_receiver(), assets_extra=extra, as_text=True)
    arguments = {"checkpoint_path": None, "eval_result": {}, "is_the_final_export": True}
    two = exporter.export(model.estimator, str(tmp_path / "two"), **arguments)
    for path in map(text, (one, two)):
        with open(os.path.join(path, "assets.extra", "notes", "first.txt")) as file:
            assert file.read() == "read me"
    assert os.path.exists(os.path.join(text(one), "saved_model.pb"))
    assert os.path.exists(os.path.join(text(two), "saved_model.pbtxt"))


@pytest.mark.symbols("tf.estimator.export.EvalOutput", "tf.compat.v1.estimator.export.EvalOutput")
def test_eval_output_names_loss_predictions_and_metrics():
    with tf.Graph().as_default():
        values = tf.constant([1.0, 2.0])
        output = export.EvalOutput(tf.reduce_sum(values), {"y": values}, {"mean": v1.metrics.mean(values)})
        signature = output.as_signature_def({"x": values})
    assert set(signature.outputs) == {"loss", "predictions/y", "metrics/mean/value", "metrics/mean/update_op"}
    assert signature.outputs["predictions/y"].name == values.name
    assert signature.method_name == "tensorflow/supervised/eval"


def test_outputs_of_a_wrong_kind_are_refused():
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="float32"):
            export.RegressionOutput(tf.constant(["a"]))
        with pytest.raises(ValueError, match="scores"):
            export.ClassificationOutput()


@pytest.mark.symbols(
    "tf.estimator.experimental.call_logit_fn",
    "tf.compat.v1.estimator.experimental.call_logit_fn",
    "tf.compat.v1.estimator.experimental.dnn_logit_fn_builder",
    "tf.compat.v1.estimator.experimental.linear_logit_fn_builder",
)
def test_call_logit_fn_hands_on_what_the_function_asks_for():
    call = tf.estimator.experimental.call_logit_fn

    def plain(features, params, mode):
        return features["x"] * params["factor"] if mode == "infer" else None

    with tf.Graph().as_default(), v1.Session() as session:
        arguments = ({"x": tf.constant(X)}, "infer", {"factor": 2.0}, None)
        np.testing.assert_array_equal(session.run(call(plain, *arguments)), 2 * X)
        with pytest.raises(ValueError, match="logit_fn should return"):
            call(lambda features: None, *arguments)
        # Builders of the canned Estimators' own.
        columns = [tf.feature_column.numeric_column("x", shape=[2])]
        builders = v1.estimator.experimental
        line = call(builders.linear_logit_fn_builder(1, columns), *arguments)
        deep = builders.dnn_logit_fn_builder(
            1, [3], columns, activation_fn=tf.nn.tanh, dropout=None, input_layer_partitioner=None, batch_norm=False
        )
        deep = call(deep, *arguments)
        variables = {v.op.name: v for v in v1.global_variables()}
        session.run(v1.global_variables_initializer())
        value = session.run(variables)
        hidden = np.tanh(X @ value["hiddenlayer_0/kernel"] + value["hiddenlayer_0/bias"])
        np.testing.assert_allclose(
            session.run(deep), hidden @ value["logits/kernel"] + value["logits/bias"], rtol=1e-5, atol=1e-6
        )
        weight = variables["linear_model/x/weights"]
        session.run(weight.assign([[2.0], [3.0]]))
        np.testing.assert_allclose(session.run(line), X @ [[2.0], [3.0]], rtol=1e-6)
