"""Evaluations of a legacy program's `train_and_evaluate`: of every checkpoint, and in one graph."""

from __future__ import annotations

from estimator_pipeline import compat
from tests.support import one_weight

tf = compat.install()


def evaluated(folder):
    """The steps whose evaluations are in the event files, and how often the model was built for evaluation."""
    built = []

    def model_fn(features, labels, mode):
        built.append(mode)
        return one_weight.model_fn(tf)(features, labels, mode)

    config = tf.estimator.RunConfig(str(folder), save_checkpoints_steps=2)
    # EvalSpec's own delays are 120 s before the first evaluation and 600 s between two.
    tf.estimator.train_and_evaluate(
        tf.estimator.Estimator(model_fn, config=config),
        tf.estimator.TrainSpec(one_weight.input_fn(tf), max_steps=8),
        tf.estimator.EvalSpec(one_weight.input_fn(tf), steps=1),
    )
    steps = {
        event.step
        for file in folder.glob("eval/events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        if event.summary.value
    }
    return sorted(steps), built.count(tf.estimator.ModeKeys.EVAL)


def test_every_checkpoint_is_evaluated_in_one_graph(tmp_path):
    steps, built = evaluated(tmp_path)
    assert steps == [2, 4, 6, 8]
    assert built == 1
