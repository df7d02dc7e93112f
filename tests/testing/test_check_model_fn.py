"""check_model_fn: good models of every kind pass; for each check, a model that is broken fails it and nothing else."""

# ruff: noqa: E501 (tables of cases read best with one case a line)
from __future__ import annotations

import copy
import functools
import re
from pathlib import Path

import numpy as np
import pytest

import estimator_pipeline as ep
import model_fns
from estimator_pipeline import inputs, testing
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.testing import input_checks, model_checks
from tests.support.processes import tensorflow_with_three_cpus
from tests.support.tutorial_names import tutorial

tf = tensorflow_with_three_cpus()
v1 = tf.compat.v1
__all__ = ["tutorial"]  # a fixture
TRAIN, EVAL, PREDICT = "train", "eval", "infer"
RNG = np.random.default_rng(3)
X = RNG.normal(size=(8, 4)).astype(np.float32)
Y = RNG.normal(size=(8, 1)).astype(np.float32)
DATA = ({"x": X}, Y)


# A good model, in parts that each fault takes the place of -----------------------------------------------------


def forward(features, mode):
    return features["x"] @ v1.get_variable("w", [4, 1], initializer=v1.ones_initializer())


def mean_loss(outputs, labels, mode):
    return tf.reduce_mean(tf.square(outputs - labels))


def train(loss):
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())


def metrics(outputs, labels):
    return {"mse": v1.metrics.mean_squared_error(labels, outputs)}


def predictions(outputs):
    return {"outputs": outputs}


def spec(mode, **parts):
    return tf.estimator.EstimatorSpec(mode, **parts)


def make(
    *, forward=forward, loss=mean_loss, train=train, metrics=metrics, predictions=predictions, exports=None, early=None
):
    def model_fn(features, labels, mode):
        outputs = forward(features, mode)
        if early is not None:
            early(outputs, labels, mode)
        if mode == PREDICT:
            return spec(mode, predictions=predictions(outputs), export_outputs=exports and exports(outputs))
        value = loss(outputs, labels, mode)
        if mode == EVAL:
            return spec(mode, loss=value, eval_metric_ops=metrics(outputs, labels))
        return spec(mode, loss=value, train_op=train(value))

    return model_fn


# Good ones -----------------------------------------------------------------------------------------------------

DIGITS = inputs.from_tfds("digits", global_batch_size=16, scale=1 / 16)
COSINE = {
    "name": "adam",
    "learning_rate": {"kind": "cosine", "initial_learning_rate": 0.01, "decay_steps": 100},
    "api": "keras",
}
# Graphs that run a few times take longer to be optimised than to run.
SESSION = v1.ConfigProto()
SESSION.graph_options.rewrite_options.disable_meta_optimizer = True
QUICK = tf.estimator.RunConfig(session_config=SESSION)
RANDOM = "the training step is random \\(dropout\\?\\)"
NO_STATISTICS = {"statistics_move_in_training": "the model has no moving statistics"}


def with_params(features, labels, mode, params, config):
    assert config.model_dir and params["rate"] == 0.1
    return make()(features, labels, mode)


def sparse_input_fn():
    words = tf.data.Dataset.from_tensor_slices([["a"], ["b"], ["c"], ["a"]]).map(tf.sparse.from_dense)
    rest = tf.data.Dataset.from_tensor_slices((X[:4], Y[:4]))
    return tf.data.Dataset.zip((words, rest)).map(lambda w, r: ({"word": w, "x": r[0]}, r[1])).repeat().batch(4)


NUMBERS = [tf.feature_column.numeric_column("x", [4])]


def canned(kind):
    words = tf.feature_column.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    return kind([*NUMBERS, words])


def kept_optimizer():
    optimizer = tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9)

    def minimize(loss):
        optimizer.iterations = v1.train.get_or_create_global_step()
        variables = v1.trainable_variables()
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return optimizer.apply_gradients(zip(tf.gradients(loss / replicas, variables), variables, strict=True))

    return minimize


GOOD = {
    "by_hand": (make(), DATA, {"metrics": ["mse"]}, {}),
    "with_params": (with_params, DATA, {"params": {"rate": 0.1}, "config": QUICK, "skip": ["replicas_equal_one_batch"]},
                    {"replicas_equal_one_batch": "skipped by skip="}),
    "partial": (functools.partial(with_params, params={"rate": 0.1}), DATA, {}, {}),
    "resnet": (model_fns.model_fn("resnet", params={"filters": (4,)}), DIGITS.train_input_fn, {},
               {"statistics_move_in_training": None}),
    "keras_schedule": (model_fns.model_fn("linear", optimizer=COSINE), DIGITS.train_input_fn, {"metrics": ["accuracy"]}, {}),
    # The patch optimizer-objects lets it be.
    "kept_optimizer": (make(train=kept_optimizer()), DATA, {}, {}),
    "dropout": (make(forward=lambda x, mode: dropout_in(TRAIN)(x, mode)), DATA, {}, {"replicas_equal_one_batch": RANDOM}),
    "canned": (lambda: canned(tf.estimator.LinearRegressor), sparse_input_fn, {},
               {"export_answers_as_predict": "features are sparse or ragged"}),
    "canned_v1": (lambda: v1.estimator.DNNRegressor([3], NUMBERS)._model_fn, DATA, {}, {}),
}  # fmt: skip


@pytest.mark.gate("by_hand", "with_params")
@pytest.mark.parametrize("name", GOOD)
def test_good_ones_pass(name):
    model_fn, data, options, expected = GOOD[name]
    model_fn = model_fn() if name.startswith("canned") else model_fn
    report = testing.check_model_fn(model_fn, data, **options)
    skips = {name: why for name, why in {**NO_STATISTICS, **expected}.items() if why}
    found = {outcome.name: outcome.found for outcome in report.skipped}
    assert found.keys() == skips.keys()
    assert all(re.search(why, found[name]) for name, why in skips.items()), found


@pytest.mark.nightly
def test_the_tutorials_model_fn(tutorial):
    """Its loss is divided by a constant batch size: two replicas make the mean of their steps, which is told."""
    report = testing.check_model_fn(tutorial["model_fn"], tutorial["input_fn"])
    (outcome,) = [outcome for outcome in report.passed if outcome.name == "replicas_equal_one_batch"]
    assert "a sum, or a constant batch size" in outcome.found


def test_batchnorm_on_replicas_is_judged_with_equal_batches():
    checks = ["replicas_equal_one_batch"]
    normal = make(forward=normalised(True), train=with_updates)
    report = testing.check_model_fn(normal, DATA, config=QUICK, only=checks)
    assert "BatchNorm uses the statistics of each replica's batch" in report.passed[0].found


# Broken ones ---------------------------------------------------------------------------------------------------


def no_train_op(features, labels, mode):
    return spec(mode, loss=mean_loss(forward(features, mode), labels, mode), predictions=labels) if mode == TRAIN else (
        make()(features, labels, mode)
    )  # fmt: skip


def forgets_train(features, labels, mode):
    made = make()(features, labels, mode)
    return None if mode == TRAIN else made


def evaluates_as_train(features, labels, mode):
    return make()(features, labels, TRAIN if mode == EVAL else mode)


class Kept:
    """Makes its variable once."""

    weights = None

    def __call__(self, features, labels, mode):
        self.weights = self.weights if self.weights is not None else v1.get_variable("w", [4, 1])
        return make(forward=lambda features, mode: features["x"] @ self.weights)(features, labels, mode)


def fails_in(mode_of_fault):
    def wrong(features, mode):
        outputs = forward(features, mode)
        if mode == mode_of_fault:
            with tf.control_dependencies([v1.assert_less(tf.reduce_max(outputs), -1e9, message="too large")]):
                outputs = tf.identity(outputs)
        return outputs

    return wrong


def dropout_in(mode_of_fault):
    def wrong(features, mode):
        outputs = forward(features, mode)
        return tf.nn.dropout(outputs, 0.5) if mode == mode_of_fault else outputs

    return wrong


def not_a_number_in(mode_of_fault):
    def loss(outputs, labels, mode):
        return mean_loss(outputs, labels, mode) + (np.nan if mode == mode_of_fault else 0.0)

    return loss


def without_step(loss):
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def step_twice(loss):
    return tf.group(train(loss), v1.assign_add(v1.train.get_global_step(), 1))


def unconnected(features, mode):
    v1.get_variable("unused", [3])
    return forward(features, mode)


def two_weights(features, mode):
    return forward(features, mode) + v1.get_variable("bias", [1])


def trains_one(loss):
    variables = [variable for variable in v1.trainable_variables() if variable.name.startswith("w")]
    step = v1.train.get_or_create_global_step()
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss, step, var_list=variables)


def normalised(training_in_train):
    def forward_with_batchnorm(features, mode):
        layer = tf.keras.layers.BatchNormalization()
        outputs = layer(forward(features, mode), training=mode == TRAIN and training_in_train)
        for update in layer.updates:
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
        return outputs

    return forward_with_batchnorm


def with_updates(loss):
    return tf.group(train(loss), *v1.get_collection(v1.GraphKeys.UPDATE_OPS))


def with_counter(features, mode):
    v1.get_variable("evaluations", [], initializer=v1.zeros_initializer(), trainable=False)
    return forward(features, mode)


def counts_evaluations(outputs, labels):
    (count,) = [variable for variable in v1.global_variables() if variable.name == "evaluations:0"]
    return {"evaluations": (count.read_value(), v1.assign_add(count, 1.0))}


def drawn_anew(outputs, labels, mode):
    return mean_loss(outputs, labels, mode) + (np.random.rand() if mode == EVAL else 0.0)


def local_weights(features, mode):
    keys = [v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.TRAINABLE_VARIABLES]
    return forward(features, mode) + v1.get_local_variable(
        "lost", [1], initializer=v1.zeros_initializer(), collections=keys
    )


def keras_step(loss, rate, iterations=None):
    optimizer = tf.keras.optimizers.legacy.SGD(rate)
    if iterations is not None:
        optimizer.iterations = iterations
    variables = v1.trainable_variables()
    replicas = 1 if iterations is not None else tf.distribute.get_replica_context().num_replicas_in_sync
    gradients = [gradient / replicas for gradient in tf.gradients(loss, variables)]
    return optimizer.apply_gradients(zip(gradients, variables, strict=True))


def summed(loss):
    """A Keras optimizer sums the replicas' gradients."""
    return keras_step(loss, 0.1, v1.train.get_or_create_global_step())


def clipped(loss):
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    gradients, _ = tf.clip_by_global_norm(gradients, 1e-3)
    return optimizer.apply_gradients(zip(gradients, variables, strict=True), v1.train.get_or_create_global_step())


def weighted(outputs, labels, mode):
    weights = tf.cast(labels > 0, tf.float32) + 0.1
    return tf.reduce_sum(weights * tf.square(outputs - labels)) / tf.reduce_sum(weights)


def doubled(outputs):
    return {"serving_default": tf.estimator.export.PredictOutput({"outputs": 2 * outputs})}


def other_names(outputs):
    return {"serving_default": tf.estimator.export.PredictOutput({"score": outputs})}


def no_file():
    raise FileNotFoundError("no such file: clicks.csv")


def unknown_parameter(features, labels, mode, flags):
    raise AssertionError("is not called")


def misspelt(features, labels, mode, param=None):
    return make()(features, labels, mode)


def first_by_place(x, labels, mode):
    return make()(x, labels, mode)


def without_labels(features, mode):
    return make()(features, None, mode)


def early_use(outputs, labels, mode):
    tf.square(outputs - labels)


# What is broken: (model_fn, data, options, the one check that fails, what it says, what it advises).
BROKEN = {
    "unknown": (unknown_parameter, DATA, {}, "parameters_are_known", "requires the parameter flags", "functools.partial"),
    "misspelt": (misspelt, DATA, {}, "parameters_are_known", "has a parameter param, .* it looks like params", "rename param to params"),
    "by_place": (first_by_place, DATA, {}, "parameters_are_known", "requires the parameter x", "features, labels"),
    "labels": (without_labels, DATA, {}, "parameters_are_known", "there are labels, and .* does not accept them", "add the parameter labels"),
    "params": (make(), DATA, {"params": {"a": 1}}, "parameters_are_known", "params were passed", "add the parameter params"),
    "no_file": (make(), no_file, {}, "sample_is_readable", "FileNotFoundError: no such file", "input_fn that works"),
    "uneven": (make(), ({"x": X}, Y[:5]), {}, "sample_is_readable", "the sample is not a batch", "an input_fn that works"),
    "no_train_op": (no_train_op, DATA, {}, "train_spec_is_complete", "ValueError: Missing train_op", "correct the error in the model_fn"),
    "forgets_train": (forgets_train, DATA, {}, "train_spec_is_complete", "returned None in mode train", "EstimatorSpec"),
    "evaluates_as_train": (evaluates_as_train, DATA, {}, "eval_spec_is_complete", "in mode eval .* a spec of mode train", "pass the mode: "),
    "no_metric": (make(), DATA, {"metrics": ["auc"]}, "eval_spec_is_complete", "EVAL returns the metrics mse; missing: auc", "eval_metric_ops"),
    "int_loss": (make(loss=lambda o, y, mode: mean_loss(o, y, mode) if mode == TRAIN else tf.cast(mean_loss(o, y, mode), tf.int32)), DATA, {},
                 "eval_spec_is_complete", "the loss in EVAL is int32", "use a floating-point loss"),
    "predicts_scalar": (make(predictions=lambda o: {"mean": tf.reduce_mean(o)}), DATA, {}, "predict_spec_is_complete",
                        "the predictions mean have no batch dimension", "one row per example"),
    "early_use": (make(early=early_use), DATA, {}, "predicts_without_labels", r"ValueError: .* \(.*test_check_model_fn.py, line \d+: ",
                  "return before the labels are used"),
    "kept": (Kept(), DATA, {}, "can_be_called_again", "graph", "inside the model_fn"),
    "training_fails": (make(forward=fails_in(TRAIN)), DATA, {}, "training_runs", "InvalidArgumentError: .*too large", "error of the model on the sample"),
    "evaluation_fails": (make(forward=fails_in(EVAL)), DATA, {}, "evaluation_runs", "InvalidArgumentError: .*too large", "error of the model on the sample"),
    "prediction_fails": (make(forward=fails_in(PREDICT)), DATA, {}, "prediction_runs", "InvalidArgumentError: .*too large", "error of the model on the sample"),
    "nan": (make(loss=not_a_number_in(TRAIN)), DATA, {}, "loss_is_finite", "the losses in training are nan", r"log\(0\)"),
    "nan_in_eval": (make(loss=not_a_number_in(EVAL)), DATA, {}, "loss_is_finite", "the loss in evaluation is nan", "divisions by zero"),
    "without_step": (make(train=without_step), DATA, {}, "global_step_advances_by_one", "took the global step from 0 to 0", "max_steps is never reached"),
    "step_twice": (make(train=step_twice), DATA, {}, "global_step_advances_by_one", "took the global step from 0 to 2", "once for each train_op"),
    "unconnected": (make(forward=unconnected), DATA, {}, "variables_train", "no gradient reaches unused", "list them in frozen="),
    "trains_one": (make(forward=two_weights, train=trains_one), DATA, {}, "variables_train",
                   "bias: there is a gradient, but 3 steps change nothing", "var_list"),
    "statistics_still": (make(forward=normalised(True)), DATA, {}, "statistics_move_in_training",
                         "batch_normalization/moving_mean, batch_normalization/moving_variance: unchanged after 3 steps", "UPDATE_OPS"),
    "never_training": (make(forward=normalised(False), train=with_updates), DATA, {}, "statistics_move_in_training", "moving_mean", "training=True in TRAIN"),
    "counts_evaluations": (make(forward=with_counter, metrics=counts_evaluations), DATA, {}, "evaluation_changes_nothing", "evaluation changed evaluations", "only in TRAIN"),
    "dropout_in_eval": (make(forward=dropout_in(EVAL)), DATA, {}, "evaluation_is_not_random", "the loss of the same batch is .* and then", "training="),
    "dropout_in_predict": (make(forward=dropout_in(PREDICT)), DATA, {}, "prediction_is_not_random", "the prediction outputs of the same batch is", "dropout"),
    "drawn_anew": (make(loss=drawn_anew), DATA, {}, "checkpoint_restores", "loss is .* in one evaluation of the checkpoint and", "numpy.random"),
    "local_weights": (make(forward=local_weights), DATA, {}, "checkpoint_restores", "the checkpoint does not contain lost", "GLOBAL_VARIABLES"),
    "summed": (make(train=summed), DATA, {}, "replicas_equal_one_batch",
               "the gradient of w has norm .* with one replica, and 2 times that with two", r"1 / tf.distribute.get_replica_context\(\)"),
    "clipped": (make(train=clipped), DATA, {}, "replicas_equal_one_batch", "the gradient of w .* and 2 times that with two", "scale the loss"),
    "weighted": (make(loss=weighted), DATA, {}, "replicas_equal_one_batch", "make a correct step with equal batches, but not with different ones", "normalized within"),
    "doubled": (make(exports=doubled), DATA, {}, "export_answers_as_predict", r"outputs from predict\(\) and from the signature serving_default is", "the same tensors"),
    "other_names": (make(exports=other_names), DATA, {}, "export_answers_as_predict", "no signature returns a prediction; signatures: serving_default", "PredictOutput"),
}  # fmt: skip


def failed(name, **more):
    """The report on a fault, whose one failure is what BROKEN says."""
    model_fn, data, options, check, found, hint = BROKEN[name]
    with pytest.raises(testing.ComplianceError) as caught:
        # A copy, for one of them is at fault by what it keeps.
        testing.check_model_fn(copy.copy(model_fn), data, config=QUICK, **options, **more)
    report = caught.value.report
    (outcome,) = report.failed
    assert outcome.name == check, outcome
    assert re.search(found, outcome.found) and re.search(hint, outcome.hint), outcome
    assert str(outcome) in str(caught.value)
    return report


@pytest.mark.gate(*(name for name in BROKEN if name not in ("clipped", "never_training")))
@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_fails_its_check_alone(name):
    assert len(failed(name, only=[BROKEN[name][3]]).outcomes) == 1


# Of each check the first fault. Two replicas train what is at fault outside TRAIN as they do the good model.
FIRST = {check: name for name, (_, _, _, check, _, _) in reversed(BROKEN.items())}
SAME_TRAINING = {name for check, name in FIRST.items() if re.search("eval|predict|export", check)}


@pytest.mark.gate(
    "unknown", "no_file", "no_train_op", "evaluates_as_train", "early_use", "kept", "training_fails", "nan",
    "without_step", "dropout_in_eval", "dropout_in_predict",
)  # fmt: skip
@pytest.mark.parametrize("name", sorted(FIRST.values()))
def test_no_other_check_fails_for_a_fault(name):
    skip = ["replicas_equal_one_batch"] if name in SAME_TRAINING else []
    assert len(failed(name, skip=skip).outcomes) == 20


def test_every_check_has_a_fault_that_fails_it():
    assert {check for _, _, _, check, _, _ in BROKEN.values()} == {d.name for d in model_checks.MODEL_CHECKS}


# The surface ---------------------------------------------------------------------------------------------------


@testing.parametrize_with_checks(
    testing.model_fn_checks(make(), DATA, config=QUICK, skip=["statistics_move_in_training"])
)
def test_each_check_is_a_test(check, request):
    if "statistics" in request.node.name:
        with pytest.raises(pytest.skip.Exception, match="skipped by skip="):
            check()
    else:
        check()


def test_frozen_variables_are_meant_not_to_change():
    options = {"config": QUICK, "frozen": ["^bias$"], "only": ["variables_train"]}
    assert testing.check_model_fn(make(forward=two_weights, train=trains_one), DATA, **options).ok


def test_a_gradient_of_zero_is_told():
    def dead(features, mode):
        return forward(features, mode) + 0.0 * v1.get_variable("dead", [1])

    (outcome,) = testing.check_model_fn(make(forward=dead), DATA, config=QUICK, only=["variables_train"]).passed
    assert "the gradient on the sample is zero, so these could not be checked: dead" in outcome.found


def test_the_users_config_is_given_to_the_model_fn(tmp_path):
    seen = []

    def model_fn(features, labels, mode, config):
        seen.append((config.tf_random_seed, config.model_dir, config.train_distribute))
        return make()(features, labels, mode)

    config = tf.estimator.RunConfig(str(tmp_path), tf_random_seed=11)
    assert testing.check_model_fn(model_fn, DATA, config=config, only=["training_runs"]).ok
    assert {seed for seed, _, _ in seen} == {11}
    assert not any(folder.startswith(str(tmp_path)) for _, folder, _ in seen) and not list(tmp_path.iterdir())


def test_a_config_with_a_strategy_is_taken_without_it(tmp_path):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    config = tf.estimator.RunConfig(str(tmp_path), train_distribute=strategy)
    assert testing.check_model_fn(make(), DATA, config=config, only=["training_runs"]).ok


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((3, DATA), "the model_fn is a int"),
        ((make(), X), "the data is a ndarray"),
    ],
)
def test_arguments_are_checked_at_once(arguments, says):
    with pytest.raises(ConfigError, match=says):
        testing.model_fn_checks(*arguments)
    with pytest.raises(ConfigError, match="only= names checks that do not exist: nothing"):
        testing.model_fn_checks(make(), DATA, only=["nothing"])


@pytest.mark.nightly
def test_settled_devices_are_told(run_python):
    """In a process that has used TensorFlow already, the check of two replicas is skipped, and says why."""
    code = """
import numpy as np
from estimator_pipeline import compat, testing
tf = compat.install()
tf.constant(1) + 1
def model_fn(features, labels, mode):
    w = tf.compat.v1.get_variable("w", [])
    loss = tf.reduce_mean(w * features)
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, predictions=w * features)
print(testing.check_model_fn(model_fn, (np.ones(4, np.float32), None), only=["replicas_equal_one_batch"]))
"""
    done = run_python(["-c", code])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "two replicas need two logical CPUs: the CPU cannot be split into 2 logical devices any more" in done.stdout
    assert "call testing.prepare() in conftest.py" in done.stdout


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    graph = v1.get_default_graph()
    operations = len(graph.get_operations())
    testing.check_model_fn(make(), DATA, config=QUICK, only=["evaluation_runs"])
    assert v1.get_default_graph() is graph and len(graph.get_operations()) == operations
    assert not list(tmp_path.iterdir())


def test_the_guide_lists_the_checks():
    text = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "testing.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    training, evaluation = input_checks.TRAINING_CHECKS, input_checks.EVALUATION_CHECKS
    modes = {True: {True: "both", False: "training"}, False: {True: "evaluation"}}
    every = {d: modes[d in training][d in evaluation] for d in (*training, *evaluation)}
    assert sorted(row for row in rows if len(row) == 3) == sorted(
        [f"`{d.name}`", mode, d.description] for d, mode in every.items()
    )
    assert [row for row in rows if len(row) == 2] == [[f"`{d.name}`", d.description] for d in model_checks.MODEL_CHECKS]


def test_public_names():
    assert ep.testing is testing and all(hasattr(testing, name) for name in testing.__all__)
