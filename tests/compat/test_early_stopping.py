"""Early stopping of a training whose evaluations have a name."""

from __future__ import annotations

import pytest

from estimator_pipeline import compat
from tests.support import one_weight

tf = compat.install()
from tensorflow_estimator.python.estimator import early_stopping  # noqa: E402

v1 = tf.compat.v1
experimental = tf.estimator.experimental

# Each stops at the second evaluation of the same loss, 4.
HOOKS = {
    "no_decrease": (experimental.stop_if_no_decrease_hook, 20),
    "no_increase": (experimental.stop_if_no_increase_hook, 20),
    "higher": (experimental.stop_if_higher_hook, 3.0),
    "lower": (experimental.stop_if_lower_hook, 5.0),
}


def never_better(features, labels, mode):
    weight = v1.get_variable("weight", initializer=0.0)
    loss = tf.reduce_mean(tf.square(weight * features - labels))
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=v1.assign_add(v1.train.get_global_step(), 1))


@pytest.fixture
def estimator(tmp_path):
    return tf.estimator.Estimator(never_better, str(tmp_path))


@pytest.fixture
def decide(estimator, monkeypatch):
    """What makes the function by which a hook decides; the hook itself is in `test_legacy_programs.py`."""
    monkeypatch.setattr(early_stopping, "make_early_stopping_hook", lambda *, should_stop_fn, **_: should_stop_fn)

    def stop_function(hook="no_decrease", **options):
        make, limit = HOOKS[hook]
        return make(estimator, "loss", limit, **options)

    return stop_function


def evaluations(estimator, name, steps=(1, 21), tag="loss"):
    """Writes what evaluations at these steps write."""
    with v1.Graph().as_default():
        # Two files of the same second have the same name.
        writer = v1.summary.FileWriter(estimator.eval_dir(name), filename_suffix=f".{steps}")
    for step in steps:
        writer.add_summary(v1.Summary(value=[v1.Summary.Value(tag=tag, simple_value=4.0)]), step)
    writer.close()


def test_a_training_with_evaluations_with_a_name(estimator):
    hook = experimental.stop_if_no_decrease_hook(estimator, "loss", 20, run_every_secs=None, run_every_steps=1)
    for steps in (1, 21, 41):
        estimator.train(one_weight.input_fn(tf, batches=None), hooks=[hook], max_steps=steps)
        estimator.evaluate(one_weight.input_fn(tf, batches=1), name="zero")
    assert estimator.get_variable_value("global_step") < 41


@pytest.mark.parametrize("hook", HOOKS)
def test_the_only_evaluation_with_a_name_is_read(estimator, decide, warnings, hook):
    is_time_to_stop = decide(hook)
    assert not is_time_to_stop()
    evaluations(estimator, "other_metric", tag="accuracy")
    evaluations(estimator, "zero")
    assert is_time_to_stop()
    assert warnings == []


def test_which_of_two_is_not_known(estimator, decide, warnings):
    is_time_to_stop = decide()
    evaluations(estimator, "train")
    evaluations(estimator, "test")
    assert not is_time_to_stop() and not is_time_to_stop()
    (warning,) = warnings
    assert "eval_test, eval_train" in warning and "eval_dir=" in warning
    evaluations(estimator, None)
    assert is_time_to_stop()


def test_an_evaluation_without_a_name_comes_first(estimator, decide):
    is_time_to_stop = decide()
    evaluations(estimator, "zero")
    evaluations(estimator, None, steps=[1])
    assert not is_time_to_stop()


def test_evaluations_of_an_earlier_run_are_read_with_the_next_one(estimator, decide):
    """The earlier run may have been of a program that evaluates under a different name."""
    evaluations(estimator, "zero", steps=[1])
    evaluations(estimator, "earlier")
    is_time_to_stop = decide()
    assert not is_time_to_stop()
    evaluations(estimator, "zero", steps=[21])
    assert is_time_to_stop()


def test_an_explicit_folder_is_read(estimator, decide, warnings):
    in_test = decide(eval_dir=estimator.eval_dir("test"))
    in_unnamed = decide(eval_dir=estimator.eval_dir())
    evaluations(estimator, "test")
    assert in_test() and not in_unnamed()
    evaluations(estimator, "train")
    assert in_test() and not in_unnamed()
    assert warnings == []
