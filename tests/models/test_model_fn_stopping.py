"""Hooks of a kept model_fn that look at evaluations, by the rules of tf.estimator.experimental."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn

tf = compat.install()
v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")


def data():
    return tf.data.Dataset.from_tensor_slices({"x": np.ones((8, 1), np.float32)}).batch(2).repeat()


def model_fn(features, mode):
    loss = tf.reduce_mean(v1.layers.dense(features["x"], 1, kernel_initializer="ones", use_bias=False))
    step = v1.train.get_global_step()
    return keras_model_fn.ModelFnSpec(
        mode, loss=loss, train_op=v1.train.GradientDescentOptimizer(0.125).minimize(loss, step)
    )


def model_of(folder):
    return keras_model_fn.ModelFnModel(model_fn, str(folder), keras_model_fn.RunConfig(log_step_count_steps=None))


def told(folder, values):
    """Event files of evaluations."""
    with tf.summary.create_file_writer(str(folder / "eval")).as_default():
        for step, value in values.items():
            tf.summary.scalar("error", value, step)


RISING = {0: 3.0, 10: 2.0, 20: 2.5, 30: 2.25}


@pytest.mark.parametrize(
    ("hook", "values", "stops"),
    [
        ("stop_if_lower_hook", ("error", 2.0), False),
        ("stop_if_lower_hook", ("error", 2.1), True),
        ("stop_if_lower_hook", ("error", 2.1, None, 15), False),
        ("stop_if_higher_hook", ("error", 2.9), True),
        ("stop_if_higher_hook", ("other", 2.9), False),
        ("stop_if_no_decrease_hook", ("error", 20), True),
        ("stop_if_no_decrease_hook", ("error", 21), False),
        ("stop_if_no_decrease_hook", ("error", 11, None, 20), False),
        ("stop_if_no_increase_hook", ("error", 30), True),
        ("stop_if_no_increase_hook", ("error", 31), False),
    ],
)
def test_rules(tmp_path, hook, values, stops):
    """As Estimator's own hooks decide of the same files."""
    told(tmp_path, RISING)
    made = getattr(keras_model_fn, hook)(model_of(tmp_path), *values)
    context = v1.train.SessionRunContext(None, None)
    made.after_run(context, None)
    assert context.stop_requested == stops


def test_a_training_ends(tmp_path):
    """It looks after the first step, and then each so many."""
    model, asked = model_of(tmp_path), []

    def should_stop():
        asked.append(model.global_step)
        return model.global_step >= 5

    model.fit(data(), steps_per_epoch=20, hooks=[
        keras_model_fn.make_early_stopping_hook(model, should_stop, run_every_secs=None, run_every_steps=3)
    ])  # fmt: skip
    assert asked == [1, 4, 7] and model.global_step == 7


def test_evaluations_while_it_trains(tmp_path):
    """With the weights of that moment, before the first step and behind the last as well."""
    model = model_of(tmp_path)
    evaluations = []
    real = model.evaluate
    model.evaluate = lambda *given, **options: evaluations.append(real(*given, **options))
    hook = keras_model_fn.EvaluationHook(model, lambda: data().take(2), every_n_iter=2)
    model.fit(data(), steps_per_epoch=5, hooks=[hook])
    assert [(one["global_step"], one["loss"]) for one in evaluations] == [
        (step, 1.0 - 0.125 * step) for step in (0, 2, 4, 5)
    ]
