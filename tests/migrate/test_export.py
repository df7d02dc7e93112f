"""`migrate export`: heads of tf.estimator, receivers of both kinds, assets, and what is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import estimator_pipeline as ep
from estimator_pipeline.cli import main as cli
from estimator_pipeline.engines.estimator import exporters as exporting
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.job import load_job
from estimator_pipeline.migrate import migrate_export
from estimator_pipeline.migrate.exports.read import read_export, signatures_of
from tests.support.migrated_jobs import write_job
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
WORDS = ["iris", "rose", "tulip"]
HEADS = {"multi_class": 3, "binary": 1, "regression": 1, "multi_label": 3}
# The vocabulary of `colour` in the export, so that drawn records have its words.
COLOURS = ["red", "green"]


def columns():
    fc = tf.feature_column
    colour = fc.categorical_column_with_vocabulary_list("colour", COLOURS, default_value=1)
    return [fc.numeric_column("size", [2], default_value=(3.0, 4.0)), fc.numeric_column("weight"),
            fc.indicator_column(colour)]  # fmt: skip


def quick(model_dir):
    """Graphs that run a step or two take longer to be optimised than to run."""
    session = tf.compat.v1.ConfigProto()
    session.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.estimator.RunConfig(str(model_dir), session_config=session, save_summary_steps=None)


def estimator_of(kind, model_dir):
    estimator, given = tf.estimator, {"config": quick(model_dir)}
    if kind == "multi_class":
        return estimator.DNNClassifier([4], columns(), n_classes=3, label_vocabulary=WORDS, **given)
    if kind == "binary":
        return estimator.DNNClassifier([4], columns(), **given)
    if kind == "regression":
        return estimator.DNNRegressor([4], columns(), **given)
    return estimator.DNNEstimator(estimator.MultiLabelHead(3), [4], columns(), **given)


def labels_of(kind):
    return {
        "multi_class": [["iris"], ["rose"], ["tulip"], ["rose"]],
        "binary": [0, 1, 1, 0],
        "regression": [0.5, 1.0, 2.0, -1.0],
        "multi_label": [[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]],
    }[kind]


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """`exports(kind, receiver="parsing", seed=1)`: the folder of a canned Estimator's export."""
    trained, made = {}, {}

    def make(kind, receiver="parsing", seed=1):
        if (kind, receiver, seed) in made:
            return made[kind, receiver, seed]
        if (kind, seed) not in trained:
            trained[kind, seed] = train(kind, seed)
        functions = {
            "parsing": tf.estimator.export.build_parsing_serving_input_receiver_fn,
            "raw": lambda _: raw_receiver,
        }
        function = functions[receiver](tf.feature_column.make_parse_example_spec(columns()))
        folder = tmp_path_factory.mktemp(receiver)
        made[kind, receiver, seed] = trained[kind, seed].export_saved_model(str(folder), function).decode()
        return made[kind, receiver, seed]

    def train(kind, seed):
        estimator = estimator_of(kind, tmp_path_factory.mktemp(kind))
        random = np.random.RandomState(seed)
        features = {
            "size": random.normal(size=[4, 2]).astype("float32"),
            "weight": random.normal(size=[4, 1]).astype("float32"),
            "colour": np.array([[b"red"], [b"green"], [b"red"], [b"blue"]]),
        }
        estimator.train(lambda: tf.data.Dataset.from_tensors((features, labels_of(kind))).repeat(), max_steps=1 + seed)
        return estimator

    return make


def raw_receiver():
    place = tf.compat.v1.placeholder
    tensors = {"size": place(tf.float32, [None, 2]), "weight": place(tf.float32, [None, 1]),
               "colour": place(tf.string, [None, 1])}  # fmt: skip
    return tf.estimator.export.ServingInputReceiver(tensors, tensors)


class Colours(tf.keras.layers.Layer):
    """The colours as one column each; what a team would write with StringLookup."""

    def __init__(self, **options):
        super().__init__(**options)
        values = tf.lookup.KeyValueTensorInitializer(COLOURS, tf.constant([0, 1], tf.int64))
        self.table = tf.lookup.StaticHashTable(values, 1)

    def call(self, colour):
        # Columns take a dense "" for nothing, and one that a record holds for a word like any other.
        nothing = "(nothing)" if isinstance(colour, tf.SparseTensor) else ""
        dense = tf.sparse.to_dense(colour, nothing) if isinstance(colour, tf.SparseTensor) else colour
        found = tf.one_hot(self.table.lookup(dense), 2) * tf.cast(dense != nothing, tf.float32)[..., None]
        return tf.reduce_sum(found, axis=1)


def model_of(kind, *, sparse=True, activation=None, **inputs):
    layers = tf.keras.layers
    taken = {
        "size": tf.keras.Input((2,), name="size"),
        "weight": tf.keras.Input((1,), name="weight"),
        "colour": tf.keras.Input((None,) if sparse else (1,), dtype=tf.string, sparse=sparse, name="colour"),
        **inputs,
    }
    # A feature column's order is that of the names.
    first = [Colours()(taken["colour"]), taken["size"], taken["weight"]]
    hidden = layers.Dense(4, activation="relu", name="hidden")(layers.Concatenate()(first))
    return tf.keras.Model(taken, layers.Dense(HEADS[kind], activation=activation, name="out")(hidden))


NAMES = {
    "hidden/kernel": "dnn/hiddenlayer_0/kernel",
    "hidden/bias": "dnn/hiddenlayer_0/bias",
    "out/kernel": "dnn/logits/kernel",
    "out/bias": "dnn/logits/bias",
}


def migrate(source, output, kind, *, sparse=True, **options):
    options = {"model": lambda: model_of(kind, sparse=sparse), "checkpoint": source, "mapping": NAMES, **options}
    if kind == "multi_label":
        options.setdefault("head", "multi_label")
    return migrate_export(source, output=output, **options)


def described(path):
    return {
        key: (
            one.method,
            {name: (t.dtype, t.shape) for name, t in one.inputs.items()},
            {name: (t.dtype, t.shape) for name, t in one.outputs.items()},
        )
        for key, one in signatures_of(str(path)).items()
    }


# What is the same ------------------------------------------------------------------------------------------------


@pytest.mark.gate("multi_class-raw", "binary-parsing", "binary-raw")
@pytest.mark.parametrize("receiver", ["parsing", "raw"])
@pytest.mark.parametrize("kind", HEADS)
def test_canned_heads(exports, tmp_path, kind, receiver):
    source = exports(kind, receiver)
    done = migrate(source, tmp_path / "new", kind, sparse=receiver == "parsing")
    assert done.equal and done.output == str(tmp_path / "new"), str(done)
    old, new = described(source), described(tmp_path / "new")
    assert new == old
    methods = {key: one[0].rpartition("/")[2] for key, one in new.items()}
    expected = {"predict": "predict"}
    if receiver == "parsing":
        expected["serving_default"] = "regress" if kind == "regression" else "classify"
        expected |= {"regression": "regress"} if kind in ("regression", "binary") else {}
        expected |= {"classification": "classify"} if kind != "regression" else {}
    assert methods == expected
    assert {(row.signature, row.output) for row in done.rows} == {
        (key, name) for key, one in old.items() for name in one[2]
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


@pytest.mark.nightly
def test_it_loads_without_the_package(exports, tmp_path, run_python):
    migrate(exports("multi_class"), tmp_path / "new", "multi_class")
    program = tmp_path / "serve.py"
    program.write_text(
        """
import sys
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
feature = tf.train.Feature
features = {"weight": feature(float_list=tf.train.FloatList(value=[1.0]))}
record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
found = loaded.signatures["classification"](inputs=tf.constant([record]))
print(sorted(loaded.signatures), found["classes"].numpy().tolist(), found["scores"].shape)
assert not {"estimator_pipeline", "tf_keras", "tensorflow_estimator"} & set(sys.modules)
"""
    )
    done = run_python([program, tmp_path / "new"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == ("['classification', 'predict', 'serving_default'] [[b'iris', b'rose', b'tulip']] (1, 3)\n")


def test_what_is_parsed_is_read_back(exports):
    export = read_export(exports("binary"))
    (features,) = export.parsed.values()
    found = {feature.name: (feature.kind, feature.dtype, feature.shape) for feature in features}
    assert found == {
        "colour": ("sparse", "string", ()), "size": ("dense", "float32", (2,)), "weight": ("dense", "float32", (1,)),
    }  # fmt: skip
    defaults = {feature.name: feature.default for feature in features}
    assert defaults["weight"] is None and defaults["size"].tolist() == [3.0, 4.0]
    assert {b"red", b"green"} <= set(export.words)


def test_a_record_without_a_feature_has_its_default(exports, tmp_path):
    source = exports("regression")
    migrate(source, tmp_path / "new", "regression")
    float_list = tf.train.FloatList(value=[1.0])
    record = tf.train.Example(
        features=tf.train.Features(feature={"weight": tf.train.Feature(float_list=float_list)})
    ).SerializeToString()
    old, new = (tf.saved_model.load(str(path)).signatures["predict"] for path in (source, tmp_path / "new"))
    one, other = (each(examples=tf.constant([record]))["predictions"].numpy() for each in (old, new))
    np.testing.assert_allclose(other, one, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="weight"):
        tf.saved_model.load(str(tmp_path / "new")).signatures["predict"](examples=tf.constant([b""]))


def test_assets_are_carried(exports, tmp_path):
    import shutil

    source = tmp_path / "old"
    shutil.copytree(exports("binary"), source)
    for name in ("assets", "assets.extra"):
        (source / name).mkdir(exist_ok=True)
        (source / name / "words.txt").write_text("a\nb\n")
    done = migrate(str(source), tmp_path / "new", "binary")
    for name in ("assets", "assets.extra"):
        assert (tmp_path / "new" / name / "words.txt").read_text() == "a\nb\n"
        assert f"{name}/words.txt was copied" in done.notes


# A job ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job file, its Estimator's model directory, and two exports of it."""
    from estimator_pipeline.inputs.sources.digits import prepare

    folder = tmp_path_factory.mktemp("job")
    prepare(str(folder / "tfds"))
    path = write_job(folder, folder / "tfds")
    settings = [f"run.model_dir={folder}/model", "model.export.signatures=[predict, classify]"]
    loaded = load_job(path, overrides=settings)
    data = (built := BuiltJob(loaded)).data
    config = ep.build_run_config(str(folder / "model"), seed=1, environ={}, save_summary_steps=None)
    estimator = built.estimator(config)
    estimator.train(data.train_input_fn, max_steps=2)
    made = {}
    for name, parse in (("raw", None), ("parsing", data.parse_examples)):
        receiver = exporting.serving_receiver(data.features_spec, single=True, examples=parse)
        made[name] = estimator.export_saved_model(str(folder / name), receiver).decode()
    return path, settings, made


@pytest.mark.parametrize("receiver", ["raw", "parsing"])
def test_a_job(job, tmp_path, receiver):
    path, settings, made = job
    done = migrate_export(made[receiver], job=path, settings=settings, output=tmp_path / "new")
    assert done.equal, str(done)
    assert described(tmp_path / "new") == described(made[receiver])


def test_a_default_of_a_job_that_is_another(exports, tmp_path):
    example = {name: tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * n)) for name, n in SIZES.items()}
    example["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
    with tf.io.TFRecordWriter(str(tmp_path / "data.tfrecord")) as writer:
        for _ in range(8):
            record = tf.train.Example(features=tf.train.Features(feature=example))
            writer.write(record.SerializeToString())
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "job.yaml").write_text(
        f"""
model: {{function: "{tmp_path}/layers.py:layers", loss: binary_crossentropy}}
input:
  source: tfrecord
  train: {tmp_path}/data.tfrecord
  eval: {tmp_path}/data.tfrecord
  label_key: label
  global_batch_size: 4
  features:
    size: {{dtype: float32, shape: [2], default: [3.0, 4.0]}}
    weight: {{dtype: float32, shape: [1]}}
    label: {{dtype: int64}}
train: {{max_steps: 1}}
run: {{model_dir: "{tmp_path}/model", seed: 1}}
"""
    )
    tensors = {name: tf.TensorSpec([n], tf.float32) for name, n in SIZES.items()}
    spec = {
        "size": tf.io.FixedLenFeature([2], tf.float32, [3.0, 4.0]), "weight": tf.io.FixedLenFeature([1], tf.float32),
    }  # fmt: skip
    loaded = load_job(tmp_path / "job.yaml")
    data = (built := BuiltJob(loaded)).data
    estimator = tf.estimator.Estimator(built.model_fn, str(tmp_path / "model"), params={})
    estimator.train(data.train_input_fn, max_steps=1)
    assert set(tensors) == set(spec)
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    source = estimator.export_saved_model(str(tmp_path / "old"), receiver).decode()
    done = migrate_export(source, job=tmp_path / "job.yaml", output=tmp_path / "new")
    assert done.equal, str(done)
    with pytest.raises(ConfigError) as told:
        migrate_export(
            source, job=tmp_path / "job.yaml", output=tmp_path / "other",
            settings=["input.features.size.default=[3.0, 5.0]", "input.features.weight.default=[1.0]"],
        )  # fmt: skip
    text = str(told.value)
    assert "default of the feature size is [3.0, 4.0] in the old export, but [3.0, 5.0] in the job" in text
    assert "default of the feature weight is none (required) in the old export, but [1.0] in the job" in text
    assert not (tmp_path / "other").exists()


SIZES = {"size": 2, "weight": 1}
LAYERS = """
from estimator_pipeline import compat


def layers():
    keras = compat.install().keras
    taken = {"size": keras.Input((2,), name="size"), "weight": keras.Input((1,), name="weight")}
    return keras.Model(taken, keras.layers.Dense(1)(keras.layers.Concatenate()(list(taken.values()))))
"""


# What is not the same ----------------------------------------------------------------------------------------------


def test_weights_of_another_training(exports, tmp_path):
    source, other = exports("multi_class"), exports("multi_class", seed=2)
    done = migrate(source, tmp_path / "new", "multi_class", checkpoint=other)
    assert not done.equal and done.output == ""
    assert list(tmp_path.iterdir()) == []
    wrong = {(row.signature, row.output) for row in done.rows if not row.equal}
    assert {("predict", "logits"), ("predict", "probabilities"), ("classification", "scores")} <= wrong
    assert ("classification", "classes") not in wrong and ("predict", "all_classes") not in wrong
    assert "predict/logits: " in str(done) and "elements beyond" in str(done)
    kept = migrate(source, tmp_path / "new", "multi_class", checkpoint=other, allow_mismatch=True)
    assert not kept.equal and (tmp_path / "new" / "saved_model.pb").exists()


def refused(*arguments, **options):
    with pytest.raises((ConfigError, InputError)) as told:
        migrate(*arguments, **options)
    assert told.value.exit_code == 2
    return str(told.value)


def test_inputs_that_do_not_fit_are_all_named(exports, tmp_path):
    source = exports("binary")
    text = refused(
        source, tmp_path / "new", "binary", checkpoint=None,
        model=lambda: tf.keras.Model(
            taken := {"size": tf.keras.Input((3,)), "weight": tf.keras.Input((1,), dtype=tf.int64),
                      "height": tf.keras.Input((1,))},
            tf.keras.layers.Dense(1)(taken["size"]),
        ),
    )  # fmt: skip
    assert "the input predict/size is float32 [?, 2], but the model's size is float32 [?, 3]" in text
    assert "the input predict/weight is float32 [?, 1], but the model's weight is int64 [?, 1]" in text
    assert "the model has no input for predict/colour, sparse string; its inputs: size, weight, height" in text
    assert "the signature predict has no input for the model's height, float32 [?, 1]" in text
    assert list(tmp_path.iterdir()) == []
    text = refused(source, tmp_path / "new", "binary", sparse=False)
    assert "the input predict/colour is sparse string, but the model's colour is string [?, 1]" in text


def test_outputs_that_do_not_fit_are_named(exports, tmp_path):
    source = exports("multi_class")
    text = refused(source, tmp_path / "new", "binary", checkpoint=None)
    assert "set --head binary or --head regression" not in text
    assert "output predict/logits is float32 [?, 3], but the model's logits is float32 [?, 1]" in text
    text = refused(
        source, tmp_path / "new", "multi_class",
        signature={"outputs": {"class_ids": "all_class_ids", "predict/logits": "nothing", "scored": "logits"}},
    )  # fmt: skip
    assert "outputs.predict/logits: nothing is neither an output of the model (out) nor one of logits" in text
    assert "outputs.scored: the old export has no such output" in text
    said = {"outputs": {"class_ids": "all_class_ids"}}
    text = refused(source, tmp_path / "new", "multi_class", head="multi_class", signature=said)
    assert "output predict/class_ids is int64 [?, 1], but the model's all_class_ids is int32" in text


def test_what_a_model_gives_is_not_guessed(exports, tmp_path):
    source = exports("multi_class")
    model = {"model": lambda: model_of("multi_class", activation="softmax")}
    text = refused(source, tmp_path / "new", "multi_class", **model)
    assert "the model's last layer has the activation softmax, so it returns probabilities, not logits" in text
    text = refused(source, tmp_path / "new", "multi_class", gives="probabilities", **model)
    assert "output predict/logits: the head multi_class cannot compute logits from probabilities" in text
    text = refused(exports("multi_label"), tmp_path / "new", "multi_label", head=None)
    assert "of 3 logits: exclusive classes (multi_class) or independent ones (multi_label)" in text


def test_names_of_classes(exports, tmp_path):
    source = exports("multi_class")
    text = refused(source, tmp_path / "new", "multi_class", signature={"classes": ["a", "b"]})
    assert "output predict/classes: 2 class names (a, b, …) for 3 classes" in text
    done = migrate(source, tmp_path / "new", "multi_class", signature={"classes": ["iris", "tulip", "rose"]})
    assert not done.equal and "classification/classes[0, 1]: b'rose' in the old export, b'tulip' in the new" in str(
        done
    )


def test_a_model_that_gives_probabilities(tmp_path):
    def outputs(given):
        one = tf.nn.sigmoid(given["logits"])
        ids = tf.cast(given["logits"] > 0, tf.int64)
        return {"logistic": one, "probabilities": tf.concat([1 - one, one], 1), "class_ids": ids}

    source = own_export(tmp_path, outputs)

    def model():
        logits = sum_model(source)()
        return tf.keras.Model(logits.inputs, tf.keras.layers.Activation("sigmoid")(logits.output))

    done = migrate_export(source, model=model, gives="probabilities", output=tmp_path / "new")
    assert done.equal, str(done)
    assert described(tmp_path / "new") == described(source)


def own_export(folder, outputs, *, inputs=None, kernel=False):
    """An export of an own model_fn: logits [B, 1], the sums of x [B, 2] by a scale, or by a kernel."""

    def model_fn(features, labels, mode):
        variable = tf.compat.v1.get_variable
        total = tf.reduce_sum(features["x"], axis=1, keepdims=True)
        total = tf.matmul(features["x"], variable("dense/kernel", [2, 1])) if kernel else total * variable("scale", [])
        step = tf.compat.v1.train.get_or_create_global_step()
        given = {"logits": total, **features}
        return tf.estimator.EstimatorSpec(
            mode, predictions=given, loss=tf.reduce_mean(total), train_op=step.assign_add(1),
            export_outputs={"serving_default": tf.estimator.export.PredictOutput(outputs(given))},
        )  # fmt: skip

    def receiver():
        tensors = {
            name: tf.compat.v1.placeholder(dtype, shape)
            for name, (dtype, shape) in (inputs or {"x": (tf.float32, [None, 2])}).items()
        }
        features = {"x" if name == "the-x" else name: tensor for name, tensor in tensors.items()}
        return tf.estimator.export.ServingInputReceiver(features, tensors)

    estimator = tf.estimator.Estimator(model_fn, config=quick(folder / "model"))
    x = np.ones([4, 2], np.float32)
    estimator.train(lambda: tf.data.Dataset.from_tensors(({"x": x}, [0] * 4)), max_steps=1)
    return estimator.export_saved_model(str(folder / "old"), receiver).decode()


def sum_model(source, name="x"):
    def make():
        given = tf.keras.Input((2,), name=name)
        dense = tf.keras.layers.Dense(1, use_bias=False)
        model = tf.keras.Model(given, dense(given))
        scale = tf.train.load_variable(f"{source}/variables/variables", "scale")
        dense.set_weights([np.full([2, 1], scale, np.float32)])
        return model

    return make


def test_a_function_makes_what_the_model_takes(exports, tmp_path):
    source = exports("regression", "raw")
    model = model_of("regression", sparse=False)

    def plain():
        size, weight, colour = (
            tf.keras.Input((n,), dtype=dtype) for n, dtype in ((1, "float32"), (2, "float32"), (1, "string"))
        )
        return tf.keras.Model([size, weight, colour], model({"size": weight, "weight": size, "colour": colour}))

    options = {"model": plain, "checkpoint": None}
    done = migrate(source, tmp_path / "first", "regression", allow_mismatch=True,
                   features=lambda given: [given["weight"], given["size"], given["colour"]], **options)  # fmt: skip
    assert not done.equal, "its weights are the first ones"
    with_weights = migrate(source, tmp_path / "second", "regression", sparse=False)
    assert with_weights.equal
    text = refused(source, tmp_path / "new", "regression", features=lambda given: given["height"], **options)
    assert "of the signature predict [migrate/mismatch]\n  found: KeyError: 'height'" in text
    text = refused(source, tmp_path / "new", "regression", features=lambda given: given["size"], **options)
    assert "the model fails with the features of the signature predict" in text


def test_an_export_of_tensorflow_2_says_so(exports, tmp_path):
    migrate(exports("binary"), tmp_path / "new", "binary")
    text = refused(str(tmp_path / "new"), tmp_path / "newer", "binary", checkpoint=None)
    assert "parses its examples in a function of its graph, like exports of TensorFlow 2" in text


def test_records_that_the_old_export_refuses(exports, tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "empty.tfrecord")) as writer:
        writer.write(b"")
    text = refused(exports("binary"), tmp_path / "new", "binary", examples=tmp_path / "empty.tfrecord")
    assert "of the old export fails with these records" in text and "weight" in text.partition("found: ")[2], text


KERAS_3 = """
import tensorflow as tf


def make():
    given = tf.keras.Input((2,), name="x")
    return tf.keras.Model(given, tf.keras.layers.Dense(1, use_bias=False, name="dense")(given))
"""


@pytest.mark.nightly
@pytest.mark.keras_3
def test_a_model_of_keras_3(tmp_path, run_python):
    source = own_export(tmp_path, lambda given: {"logits": given["logits"]}, kernel=True)
    (tmp_path / "program.py").write_text(KERAS_3)
    command = ["-m", "estimator_pipeline", "migrate", "export", source, "--model", "program.py:make"]
    command += ["--engine", "keras3", "--checkpoint", source, "--output", "new", "--json"]
    done = run_python(command, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["equal"]
    assert described(tmp_path / "new") == described(source)


def test_names_that_say_nothing_are_refused_and_said_in_a_file(tmp_path):
    source = own_export(
        tmp_path,
        lambda given: {
            "scores": tf.nn.sigmoid(given["logits"]),
            "rate": tf.exp(given["logits"]),
            "id": given.get("id", given["x"]),
        },
        inputs={"the-x": (tf.float32, [None, 2]), "id": (tf.string, [None])},
    )
    (tmp_path / "said.yaml").write_text(
        "inputs: {the-x: x}\noutputs: {scores: logistic, serving_default/rate: exp(total), id: feature(id)}\n"
    )

    def make():
        model = sum_model(source)()
        return tf.keras.Model(model.inputs, {"total": model.output})

    options = {"model": make, "output": tmp_path / "new"}
    with pytest.raises(ConfigError) as told:
        migrate_export(source, signature={"inputs": {"the-x": "x", "id": None}}, **options)
    assert "output serving_default/scores may be probabilities or logits" in str(told.value)
    assert "output serving_default/rate has no counterpart in the model" in str(told.value)
    assert "output serving_default/id has no counterpart in the model" in str(told.value)
    done = migrate_export(source, signature=tmp_path / "said.yaml", **options)
    assert done.equal, str(done)
    assert [(row.output, row.meaning) for row in done.rows] == [
        ("id", "feature(id)"), ("rate", "exp(total)"), ("scores", "logistic"),
    ]  # fmt: skip
    # Servers call an input by its name, whatever Python makes of it.
    assert described(tmp_path / "new") == described(source)
    assert any("the-x" in note for note in done.notes)


def test_classes_of_a_model_fns_own(tmp_path):
    """`tf.argmax` and what programs make of it: of one dimension or two, of other types, under their own names."""

    def outputs(given):
        logits = tf.concat([given["logits"], 2 * given["logits"] - 1], 1)
        classes = tf.argmax(logits, 1)
        return {
            "probabilities": tf.nn.softmax(logits),
            "classes": classes,
            "predicted_class": tf.argmax(logits, 1, output_type=tf.int32),
            "label": tf.expand_dims(classes, -1),
            "score_of": tf.cast(classes, tf.float32),
        }

    source = own_export(tmp_path, outputs)

    def make():
        model = sum_model(source)()
        return tf.keras.Model(model.inputs, tf.concat([model.output, 2 * model.output - 1], 1))

    with pytest.raises(ConfigError) as told:
        migrate_export(source, model=make, output=tmp_path / "new")
    assert told.value.code == "migrate/mismatch"
    done = migrate_export(source, model=make, output=tmp_path / "new", signature={"outputs": {"score_of": "argmax"}})
    assert done.equal, str(done)
    assert described(tmp_path / "new") == described(source)
    meanings = {row.output: row.meaning for row in done.rows}
    assert meanings["classes"] == meanings["label"] == meanings["predicted_class"] == "argmax"


def test_a_class_of_one_logit(tmp_path):
    source = own_export(tmp_path, lambda given: {"class": tf.cast(given["logits"][:, 0] > 0, tf.int32)})
    done = migrate_export(source, model=sum_model(source), output=tmp_path / "new")
    assert done.equal and described(tmp_path / "new") == described(source)


def test_one_tensor_on_either_side_needs_no_name(tmp_path):
    source = own_export(tmp_path, lambda given: {"logits": given["logits"]})
    done = migrate_export(source, model=sum_model(source, "other"), output=tmp_path / "new")
    assert done.equal and "the input x is the model's other, its only input" in done.notes


# Records -----------------------------------------------------------------------------------------------------------


def test_records_of_a_person(exports, tmp_path):
    source = exports("binary")
    feature = {"weight": tf.train.Feature(float_list=tf.train.FloatList(value=[2.0]))}
    with tf.io.TFRecordWriter(str(tmp_path / "few.tfrecord")) as writer:
        for _ in range(3):
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    done = migrate(source, tmp_path / "new", "binary", examples=tmp_path / "few.tfrecord")
    assert done.equal and done.records == 3 and not any("random" in note for note in done.notes)
    raw = exports("binary", "raw")
    arrays = {
        "size": np.ones([5, 2], "float32"),
        "weight": np.ones([5, 1], "float32"),
        "colour": np.array([["red"]] * 5),
    }
    np.savez(tmp_path / "few.npz", **arrays)
    done = migrate(raw, tmp_path / "raw", "binary", sparse=False, inputs=tmp_path / "few.npz")
    assert done.equal and done.records == 5
    np.savez(tmp_path / "wrong.npz", size=np.ones([5, 3]), colour=arrays["colour"], more=np.ones(5))
    text = refused(raw, tmp_path / "x", "binary", sparse=False, inputs=tmp_path / "wrong.npz")
    assert "the input size is float32 [?, 2], but the array is float64 [5, 3]" in text
    assert "the input weight, float32 [?, 1], is missing" in text
    assert "wrong.npz has more, but no signature has this input" in text
    text = refused(source, tmp_path / "x", "binary", inputs=tmp_path / "few.npz")
    assert "few.npz is unused: no signature has such inputs" in text
    (tmp_path / "text").write_text("this is neither of the two, but plain text")
    assert "cannot be read as a TFRecord file" in refused(source, tmp_path / "x", "binary", examples=tmp_path / "text")
    assert "cannot be read as an .npz file" in refused(
        raw, tmp_path / "x", "binary", sparse=False, inputs=tmp_path / "text"
    )


def test_drawn_records_are_the_same_each_time(exports):
    from estimator_pipeline.migrate.exports.sample_inputs import records_for

    export = read_export(exports("binary"))
    first, again, other = (
        records_for(export, examples=None, inputs=None, count=16, seed=seed)[0]["predict"]["examples"].tolist()
        for seed in (1, 1, 2)
    )
    assert first == again != other
    parsed = [tf.train.Example.FromString(record).features.feature for record in first]
    assert {len(one["colour"].bytes_list.value) for one in parsed} == {0, 1, 2, 3}
    assert {"size" in one for one in parsed} == {True, False} and all("weight" in one for one in parsed)
    words = {word for one in parsed for word in one["colour"].bytes_list.value}
    assert {b"red", b"green"} <= words


# The command line --------------------------------------------------------------------------------------------------


def test_the_command_line(job, tmp_path):
    path, settings, made = job
    new = str(tmp_path / "new")
    arguments = ["migrate", "export", made["parsing"], "--job", str(path), "--output", new]
    arguments += [word for one in settings for word in ("--set", one)]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert f"the same outputs for 64 records: {made['parsing']} and {new}\n" in done.output
    assert "classification   scores" in done.output
    again = CliRunner().invoke(cli.app, arguments)
    assert again.exit_code == 2 and f"error: {new} already exists" in again.output
    again = CliRunner().invoke(cli.app, [*arguments, "--overwrite", "--json", "--records", "3"])
    assert again.exit_code == 0 and json.loads(again.output)["equal"] and json.loads(again.output)["records"] == 3
    assert [one.name for one in tmp_path.iterdir()] == ["new"]
    # The first values of the model, in the place of its trained ones.
    (tmp_path / "fresh.py").write_text(
        (path.parent / "small_layers.py").read_text() + "\n\ndef make():\n    return layers({})\n"
    )
    untrained = ["migrate", "export", made["raw"], "--model", f"{tmp_path}/fresh.py:make", "--output", f"{new}2"]
    done = CliRunner().invoke(cli.app, untrained)
    assert done.exit_code == 1 and "serving_default/logits: " in done.output, done.output
    assert f"different outputs for 64 records: {made['raw']} and the model (not written)\n" in done.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "[argument/missing]\n  found: neither is set"),
        ({"job": "x", "model": "y:z"}, "found: both are set"),
        ({"model": "y:z", "settings": ["a=1"]}, "--set requires a job file"),
        ({"model": "y:z", "head": "logits"}, "[argument/bad-value]\n  found: allowed: multi_class"),
        ({"model": "y:z", "tolerance": "some"}, "--tolerance is 'some'"),
        ({"model": "y:z", "engine": "torch"}, "unknown engine 'torch'"),
        ({"model": "y:z", "records": 0}, "--records is 0"),
        ({"model": "y:z", "output": "old/new"}, "the output old/new is inside the old export"),
        ({"model": "y:z", "signature": {"output": {}}}, "use only inputs, outputs and classes"),
        ({"model": "y:z", "signature": {"outputs": {"a": 1}}}, "outputs.a: Input should be a valid string"),
        ({"model": lambda: None}, "returns a NoneType"),
    ],
)  # fmt: skip
def test_what_cannot_work(options, told):
    with pytest.raises(ConfigError) as error:
        migrate_export("old", **{"output": "new", **options})
    assert told in str(error.value)


def test_what_is_no_export(tmp_path):
    options = {"model": lambda: model_of("binary"), "output": tmp_path / "new"}
    (tmp_path / "exports" / "1700000000").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"\[migrate/bad-export\]\n  found: exports in it: 1700000000"):
        migrate_export(tmp_path / "exports", **options)
    (tmp_path / "exports" / "1700000000" / "saved_model.pb").write_bytes(b"\x0a\xff\xff")
    with pytest.raises(ConfigError, match=r"its saved_model.pb is damaged"):
        migrate_export(tmp_path / "exports" / "1700000000", **options)
