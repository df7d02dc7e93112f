"""Early stopping in one process: a training whose metric follows a script ends where the script says."""

from __future__ import annotations

import pytest

from tests.support.surface_models import checkpoint_steps, input_fn, scripted, tf

LAST = 40
EVERY = 4  # steps between two evaluations


def course(*values):
    """The metric at each step: `values` are those of the evaluations, at steps 0, 4, 8, …"""
    return [value for value in values for _ in range(EVERY)]


def train(tmp_path, score, make_hook):
    estimator = scripted(tmp_path, score, save_checkpoints_steps=EVERY, keep_checkpoint_max=None)
    hook = make_hook(estimator)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=LAST, hooks=[hook]),
        tf.estimator.EvalSpec(lambda: input_fn().take(1), steps=1, start_delay_secs=0, throttle_secs=0),
    )
    return int(estimator.get_variable_value("global_step"))


experimental = tf.estimator.experimental
# Hook, options, course, and the step of the evaluation that decides.
CASES = [
    ("stop_if_higher_hook", {"threshold": 0.5}, course(0, 0.1, 0.5, 0.6, 0.7, 0.7), 12),
    ("stop_if_higher_hook", {"threshold": 0.5, "min_steps": 13}, course(0, 0.1, 0.5, 0.6, 0.7, 0.7), 16),
    ("stop_if_lower_hook", {"threshold": 0.5}, course(1, 0.9, 0.5, 0.4, 0.1), 12),
    ("stop_if_lower_hook", {"threshold": 0.5, "min_steps": 16}, course(1, 0.9, 0.5, 0.4, 0.1), 16),
    # Best at 8; after 8 more steps without a better one it ends.
    ("stop_if_no_decrease_hook", {"max_steps_without_decrease": 8}, course(5, 4, 3, 3, 3.5, 0, 0), 16),
    ("stop_if_no_increase_hook", {"max_steps_without_increase": 8}, course(0, 1, 2, 2, 1, 9, 9), 16),
    # The rise at 4 does not count yet; from 8 on nothing rises.
    ("stop_if_no_increase_hook", {"max_steps_without_increase": 8, "min_steps": 8}, course(0, 9, 2, 2, 1, 9, 9), 16),
]


@pytest.mark.symbols(
    "tf.estimator.experimental.stop_if_higher_hook",
    "tf.estimator.experimental.stop_if_lower_hook",
    "tf.estimator.experimental.stop_if_no_decrease_hook",
    "tf.estimator.experimental.stop_if_no_increase_hook",
    "tf.compat.v1.estimator.experimental.stop_if_higher_hook",
    "tf.compat.v1.estimator.experimental.stop_if_lower_hook",
    "tf.compat.v1.estimator.experimental.stop_if_no_decrease_hook",
    "tf.compat.v1.estimator.experimental.stop_if_no_increase_hook",
)
@pytest.mark.gate(
    "stop_if_higher_hook-options0-score0-12",
    "stop_if_lower_hook-options2-score2-12",
    "stop_if_no_decrease_hook-options4-score4-16",
    "stop_if_no_increase_hook-options6-score6-16",
)
@pytest.mark.parametrize(("name", "options", "score", "decides"), CASES)
def test_training_ends_after_the_evaluation_that_decides(tmp_path, name, options, score, decides):
    """The hook asks after each step, so before the next evaluation."""

    def make(estimator):
        make_hook = getattr(experimental, name)
        return make_hook(estimator, "score", run_every_secs=None, run_every_steps=1, **options)

    stopped = train(tmp_path, score, make)
    assert decides <= stopped < decides + EVERY
    assert checkpoint_steps(tmp_path) == sorted({*range(0, decides + 1, EVERY), stopped})


@pytest.mark.nightly
@pytest.mark.symbols(
    "tf.estimator.experimental.stop_if_higher_hook", "tf.compat.v1.estimator.experimental.stop_if_higher_hook"
)
def test_training_goes_on_where_nothing_decides(tmp_path):
    def make(estimator):
        return experimental.stop_if_higher_hook(estimator, "score", 0.5, run_every_secs=None, run_every_steps=1)

    assert train(tmp_path, [0.5], make) == LAST


@pytest.mark.symbols(
    "tf.estimator.experimental.make_early_stopping_hook", "tf.compat.v1.estimator.experimental.make_early_stopping_hook"
)
def test_make_early_stopping_hook_asks_as_often_as_it_is_told(tmp_path):
    asked = []

    def should_stop():
        asked.append(True)
        return len(asked) == 3

    estimator = scripted(tmp_path, [0.0])
    hook = experimental.make_early_stopping_hook(estimator, should_stop, run_every_secs=None, run_every_steps=5)
    estimator.train(input_fn, hooks=[hook], max_steps=LAST)
    # Asked at the first step and every five steps; whether a step sees its own number or the one before it is open.
    assert len(asked) == 3
    assert estimator.get_variable_value("global_step") in (10, 11, 12)


def test_make_early_stopping_hook_refuses(tmp_path):
    with pytest.raises(TypeError, match=r"tf\.estimator\.Estimator"):
        experimental.make_early_stopping_hook("model", lambda: True)
    with pytest.raises(ValueError, match="Only one of"):
        experimental.make_early_stopping_hook(
            scripted(tmp_path, [0.0]), lambda: True, run_every_secs=1, run_every_steps=1
        )
