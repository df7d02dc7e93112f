"""Feature columns: what is written for them, what stays, and that their values are those of TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator_pipeline.migrate.convert import helpers
from estimator_pipeline.migrate.convert.rules.columns import COLUMNS
from tests.migrate.convert.programs import program
from tests.migrate.convert.test_canned import RMSE, with_metrics
from tests.migrate.convert.test_canned import program as canned

NUMERIC = 'tf.feature_column.numeric_column("x", shape=2)'
NETWORKS = [
    (f"net = tf.feature_column.input_layer(features, [{NUMERIC}])\nlogits = tf.layers.dense(net, 3)",
     'net = dense_columns(features, [NumericColumn("x", shape=2)])'),
    (f"net = tf.keras.layers.DenseFeatures([{NUMERIC}])(features)\nlogits = tf.layers.dense(net, 3)",
     'net = (lambda features: dense_columns(features, [NumericColumn("x", shape=2)]))(features)'),
    (f"logits = tf.feature_column.linear_model(features, [{NUMERIC}], units=3)",
     'logits = linear_columns(features, [NumericColumn("x", shape=2)], units=3)'),
]  # fmt: skip


@pytest.mark.parametrize(("network", "line"), NETWORKS)
def test_columns_in_a_network(convert_text, network, line):
    file = convert_text(program(NETWORK=network))
    assert f"    {line}\n" in file.after, file.kept_as_estimator or file.after


def test_columns_outside_keep_their_loop(convert_text):
    """Only the name of the function changes; the comments and the lines of the call stay."""
    columns = (
        "    columns = []\n    for key in ('x',):\n        columns.append(NAME(\n"
        "            key=key,  # each\n            shape=2))\n"
    )
    text = program(NETWORK="net = tf.feature_column.input_layer(features, params['columns'])\n"
                           "logits = tf.layers.dense(net, 3)")  # fmt: skip
    text = text.replace("def main():\n", "def main():\n" + columns.replace("NAME", "tf.feature_column.numeric_column"))
    file = convert_text(text.replace('params={"rate"', 'params={"columns": columns, "rate"'))
    assert columns.replace("NAME", "NumericColumn") in file.after, file.kept_as_estimator
    assert "class NumericColumn(FeatureColumn):" in file.after and "class HashedColumn" not in file.after


HASH = 'tf.feature_column.categorical_column_with_hash_bucket("x", 5)'
STAYS = [
    (f"net = tf.feature_column.input_layer(features, [{NUMERIC}], trainable=False)\n"
     "logits = tf.layers.dense(net, 3)", "trainable of tf."),
    ('column = tf.feature_column.numeric_column("x", normalizer_fn=lambda x: tf.log(x))\n'
     "net = tf.feature_column.input_layer(features, [column])\nlogits = tf.layers.dense(net, 3)", "normalizer_fn"),
    (f"column = tf.feature_column.embedding_column({HASH}, 2, max_norm=1.0)\n"
     "net = tf.feature_column.input_layer(features, [column])\nlogits = tf.layers.dense(net, 3)", "max_norm"),
    ('column = tf.feature_column.sequence_numeric_column("x")\n'
     "net = tf.feature_column.input_layer(features, [column])\nlogits = tf.layers.dense(net, 3)", "sequence_numeric"),
    (f"layer = tf.keras.layers.DenseFeatures([{NUMERIC}])\nnet = layer(features) + layer(features)\n"
     "logits = tf.layers.dense(net, 3)", "DenseFeatures that is not called once"),
]  # fmt: skip


@pytest.mark.parametrize(("network", "reason"), STAYS)
def test_columns_that_stay(convert_text, network, reason):
    file = convert_text(program(NETWORK=network))
    assert not file.keras and reason in file.kept_as_estimator, file.kept_as_estimator


def test_a_normalizer_of_operators(convert_text):
    normalizer = "lambda value: (value - 3.0) / math.sqrt(2.0)"
    column = f"{NUMERIC[:-1]}, normalizer_fn={normalizer})"
    network = f"net = tf.feature_column.input_layer(features, [{column}])\nlogits = tf.layers.dense(net, 3)"
    text = program(NETWORK=network)
    file = convert_text(f"import math\n\n{text}")
    assert f"normalizer_fn={normalizer}" in file.after, file.kept_as_estimator


def test_sparse_features_stay(convert_text):
    network = (f"net = tf.feature_column.input_layer(features, [tf.feature_column.indicator_column({HASH})])\n"
               "logits = tf.layers.dense(net, 3)")  # fmt: skip
    text = program(NETWORK=network).replace("def input_fn():\n", "def input_fn():\n    print(tf.io.VarLenFeature)\n")
    assert "a sparse feature" in convert_text(text).kept_as_estimator


def test_rows_that_momentum_moves_stay(convert_text):
    network = (f"column = tf.feature_column.embedding_column({HASH}, 2)\n"
               "net = tf.feature_column.input_layer(features, [column])\nlogits = tf.layers.dense(net, 3)")  # fmt: skip
    train_op = "train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, tf.train.get_global_step())"
    assert convert_text(program(NETWORK=network)).keras
    assert (
        "MomentumOptimizer of an embedding"
        in convert_text(program(NETWORK=network, TRAIN_OP=train_op)).kept_as_estimator
    )


CANNED = [
    ("DNNClassifier([5], columns(), weight_column='age')", "weight_column"),
    ("DNNClassifier([5], columns(), label_vocabulary=['a', 'b'])", "label_vocabulary"),
    ("DNNClassifier([5], columns(), n_classes=len(columns()))", "n_classes that is not known"),
    ("DNNClassifier([5], columns(), optimizer='RMSProp')", "the optimizer RMSProp"),
    ("DNNClassifier([5], columns(), optimizer=lambda: Mine())", "the optimizer lambda"),
    ("DNNClassifier([5], columns(), activation_fn=lambda x: x)", "activation_fn"),
    ("DNNClassifier([5], columns(), warm_start_from='x')", "warm_start_from"),
    ("DNNRegressor([5], columns(), label_dimension=2)", "label_dimension"),
    ("LinearRegressor(columns(), loss_reduction='none')", "loss_reduction"),
    ("DNNLinearCombinedRegressor(linear_feature_columns=columns())", "without dnn_feature_columns"),
    ("DNNLinearCombinedRegressor(None, columns(), one, columns(), one, [5])", "one optimizer object for both"),
    ("BoostedTreesClassifier(columns(), 1)", "which no rule converts"),
]  # fmt: skip


@pytest.mark.parametrize(("constructor", "reason"), CANNED)
def test_canned_estimators_that_stay(convert_text, constructor, reason):
    main = "def main():\n    one = tf.train.AdamOptimizer(0.1)\n"
    file = convert_text(canned(constructor).replace("def main():\n", main))
    assert not file.keras and reason in file.kept_as_estimator


OPTIMIZERS = [
    ("DNNClassifier([5], columns(), optimizer=lambda: tf.train.AdamOptimizer(tf.train.exponential_decay("
     "0.1, tf.train.get_global_step(), 9, 0.5)))", True,
     "Adam(tf.keras.optimizers.schedules.ExponentialDecay(initial_learning_rate=0.1, decay_steps=9, decay_rate=0.5), "
     "epsilon=1e-8)"),
    ("LinearClassifier(columns(), optimizer=tf.keras.optimizers.legacy.Ftrl(learning_rate=0.1))", False,
     "Ftrl(learning_rate=0.1)"),
    ("LinearClassifier(columns())", True, "Ftrl(min(0.2, len(feature_columns) ** -0.5))"),
    ("DNNClassifier([5], columns())", False, "Adagrad()"),
]  # fmt: skip


@pytest.mark.parametrize(("constructor", "of_v1", "written"), OPTIMIZERS)
def test_an_optimizer_of_a_canned_estimator(convert_text, constructor, of_v1, written):
    main = "def main():\n    train = [9]\n    print(train)\n"  # a variable of the name of a module
    file = convert_text(canned(constructor, of_v1=of_v1).replace("def main():\n", main))
    assert f"        optimizer=tf.keras.optimizers.{written},\n" in file.after, file.kept_as_estimator


def test_the_rates_of_a_training_that_continues(convert_text):
    """The checkpoints of tf.estimator have those of optimizers of Keras."""
    for of_v1 in (True, False):
        file = convert_text(canned("LinearClassifier(columns(), 'runs')", of_v1=of_v1))
        assert (", restores_rates=True)\n" in file.after) != of_v1, file.kept_as_estimator


def test_a_metric_that_keras_does_not_have(convert_text):
    text = canned("DNNRegressor([5], columns())")
    assert "metrics=[  # without label/mean, prediction/mean" in convert_text(text).after
    text = text.replace('result["average_loss"]', 'result["label/mean"]')
    assert "the metric label/mean" in convert_text(text).kept_as_estimator


def test_a_metric_that_another_file_reads(convert_files):
    text = canned("LinearClassifier(columns())")
    for key, stays in (("label/mean", True), ("accuracy", False)):
        task = f"import program\n\nprint(program.main()[{key!r}])\n"
        assert convert_files(program=text, task=task)["program"].keras != stays


def test_arguments_with_variables_are_parameters(convert_text):
    text = canned("DNNClassifier(feature_columns=columns(), hidden_units=units, dropout=0.5, batch_norm=True)")
    text = convert_text(text.replace("def main():\n", "def main():\n    units = [4]\n")).after
    assert "def make_model(features, feature_columns, hidden_units):" in text
    assert "make_model(model_inputs(training), columns(), units)" in text
    assert (
        "    for units in hidden_units:\n        net = tf.keras.layers.Dense(units, activation='relu')(net)\n" in text
    )
    assert "        net = tf.keras.layers.Dropout(0.5)(net)\n" in text
    assert "        net = tf.keras.layers.BatchNormalization(momentum=0.999)(net)\n" in text


def test_units_that_are_texts(convert_text):
    text = convert_text(canned("DNNClassifier('5 4'.split(' '), columns())")).after
    assert "    for units in '5 4'.split(' '):\n        net = tf.keras.layers.Dense(int(units), act" in text


REGRESSOR = "DNNRegressor([5], columns())"
METRIC_FNS = [
    ("DNNClassifier([5], columns())", RMSE, "add_metrics(model, rmse)", "add_metrics, of a classifier"),
    (REGRESSOR, RMSE, "add_metrics(model, lambda labels: {})", "a metric_fn that is not a function of the file"),
    (REGRESSOR, RMSE.replace("(labels, tf", "(labels * 2, tf"), "add_metrics(model, rmse)", "more than errors"),
    (
        REGRESSOR,
        RMSE.replace("values)", "values, 2.0)"),
        "add_metrics(model, rmse)",
        "more than errors",
    ),
    (
        REGRESSOR,
        RMSE.replace("    return", "    labels = labels * 2\n    return"),
        "add_metrics(model, rmse)",
        "errors of",
    ),
    (REGRESSOR, RMSE.replace("    return", "    print(labels)\n    return"), "add_metrics(model, rmse)", "errors of"),
    (REGRESSOR, RMSE.replace("rmse(labels,", "rmse(features, labels,"), "add_metrics(model, rmse)", "errors of"),
    (REGRESSOR, RMSE.replace("axis=-1", "axis=0"), "add_metrics(model, rmse)", "errors of"),
    (
        REGRESSOR,
        RMSE.replace("root_mean_squared_error", "mean_relative_error"),
        "add_metrics(model, rmse)",
        "errors of",
    ),
    (REGRESSOR, RMSE, "add_metrics(model, rmse)\n    print(rmse)", "rmse, which program.py uses, too"),
    (
        REGRESSOR,
        RMSE,
        "add_metrics(model, rmse)\n    other = tf.contrib.estimator.add_metrics(model, rmse)",
        "add_metrics",
    ),
]


@pytest.mark.parametrize(("constructor", "metric_fn", "call", "reason"), METRIC_FNS)
def test_metrics_that_are_added_and_stay(convert_text, constructor, metric_fn, call, reason):
    text = with_metrics(canned(constructor), metric_fn, call)
    assert reason in convert_text(text).kept_as_estimator


def test_metrics_that_are_added(convert_text):
    """Also by a function inside of another."""
    added = "            tf.keras.metrics.RootMeanSquaredError(name='rmse'),\n        ],\n"
    text = with_metrics(canned(REGRESSOR))
    inside = text.replace(RMSE, "").replace(
        "    model =", "    " + RMSE.strip().replace("\n", "\n    ") + "\n    model =", 1
    )
    for each in (text, inside):
        file = convert_text(each)
        assert added in file.after and "def rmse" not in file.after, file.kept_as_estimator
    text = program().replace("    estimator.train", "    estimator = tf.estimator.add_metrics(estimator, rmse)\n"
                                 "    estimator.train").replace("def main", f"{RMSE}def main")  # fmt: skip
    assert "add_metrics, of an Estimator of a model_fn" in convert_text(text).kept_as_estimator


def test_two_estimators_of_one_name(convert_text):
    first = "def main():\n    model = tf.estimator.LinearClassifier(columns())\n    model.train(input_fn)\n"
    text = convert_text(canned("DNNClassifier([5], columns())").replace("def main():\n", first)).after
    assert "def model_make_model(" in text and "def model_2_make_predictions(" in text
    assert text.index("model = model_make_model(") < text.index("model = model_2_make_model(")


@pytest.mark.parametrize(
    "legacy", [pytest.param("1", marks=pytest.mark.nightly), pytest.param("0", marks=pytest.mark.keras_3)]
)
def test_the_values_are_those_of_tensorflow(tmp_path, run_python, legacy):
    """Each kind of column, with unknown and missing values; a saved model with all of them loads elsewhere."""
    needed = {"dense_columns", "linear_columns", *(row[0] for row in COLUMNS.values())}
    sources = "\n\n".join(helpers.sources(needed, "tf"))
    (tmp_path / "column_classes.py").write_text(f"import tensorflow as tf\n\n\n{sources}")
    (tmp_path / "columns.py").write_text((Path(__file__).parent / "columns.py").read_text())
    for command in ("compare", "load"):
        environment = {"TF_USE_LEGACY_KERAS": legacy}
        done = run_python([tmp_path / "columns.py", command, tmp_path], env=environment, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.endswith("equal\n"), done.stderr[-4000:]
