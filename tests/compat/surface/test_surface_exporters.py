"""Exporters in a single-process train_and_evaluate: which steps are exported, what is kept, what comes back."""

from __future__ import annotations

import os

import pytest

from tests.support.export_stamps import quick_stamps  # noqa: F401
from tests.support.surface_models import checkpoint_steps, input_fn, scalars, scripted, tf

pytestmark = pytest.mark.usefixtures("quick_stamps")
EVERY, LAST = 2, 8
SCORE = [0, 0, 5, 5, 9, 9, 7, 7, 8]  # at steps 2, 4, 6, 8: 5, 9, 7, 8


def receiver():
    feature = tf.compat.v1.placeholder(tf.float32, [None, 2], "x")
    return tf.estimator.export.ServingInputReceiver({"x": feature}, {"x": feature})


def exported(model_dir, name):
    """The step of each export that is on disk, oldest first: the scripted model's weight is its step."""
    folder = os.path.join(str(model_dir), "export", name)
    stamps = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    assert all(len(stamp) == 10 and stamp.isdigit() for stamp in stamps)
    paths = [os.path.join(folder, stamp, "variables", "variables") for stamp in stamps]
    return [int(tf.train.load_variable(path, "w")) for path in paths]


def run(tmp_path, score=SCORE, **spec):
    return tf.estimator.train_and_evaluate(
        scripted(tmp_path, score, save_checkpoints_steps=EVERY),
        tf.estimator.TrainSpec(input_fn, max_steps=LAST),
        tf.estimator.EvalSpec(input_fn, start_delay_secs=0, throttle_secs=0, **spec),
    )


class Own(tf.estimator.Exporter):
    """Notes what it is given, and exports nothing."""

    def __init__(self):
        self.calls = []

    @property
    def name(self):
        return "own"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        step = int(checkpoint_path.rpartition("-")[2])
        assert export_path == os.path.join(estimator.model_dir, "export", "own")
        assert eval_result["global_step"] == step
        self.calls.append((step, float(eval_result["score"]), is_the_final_export))
        return os.path.join(export_path, str(step))


@pytest.mark.symbols(
    "tf.estimator.FinalExporter",
    "tf.estimator.LatestExporter",
    "tf.estimator.BestExporter",
    "tf.estimator.Exporter",
    "tf.estimator.train_and_evaluate",
    "tf.estimator.TrainSpec",
    "tf.estimator.EvalSpec",
    "tf.compat.v1.estimator.FinalExporter",
    "tf.compat.v1.estimator.LatestExporter",
    "tf.compat.v1.estimator.BestExporter",
    "tf.compat.v1.estimator.Exporter",
    "tf.compat.v1.estimator.train_and_evaluate",
    "tf.compat.v1.estimator.TrainSpec",
    "tf.compat.v1.estimator.EvalSpec",
)
def test_every_exporter_in_one_training(tmp_path):
    def higher(best_eval_result, current_eval_result):
        return current_eval_result["score"] > best_eval_result["score"]

    own = Own()
    exporters = [
        tf.estimator.FinalExporter("final", receiver),
        tf.estimator.LatestExporter("latest", receiver, exports_to_keep=2),
        tf.estimator.BestExporter("best", receiver, compare_fn=higher),
        tf.estimator.BestExporter("best of one", receiver, compare_fn=higher, exports_to_keep=1),
        own,
    ]
    result, exports = run(tmp_path, steps=1, exporters=exporters)
    assert own.calls == [(2, 5.0, False), (4, 9.0, False), (6, 7.0, False), (8, 8.0, True)]
    assert exported(tmp_path, "final") == [8]
    assert exported(tmp_path, "latest") == [6, 8]
    assert exported(tmp_path, "best") == [2, 4]
    assert exported(tmp_path, "best of one") == [4]
    assert (result["global_step"], result["score"]) == (8, 8.0)
    # What each exporter wrote, in their order. (At the end the best ones had nothing better: tf.estimator says None.)
    written = [os.path.relpath(os.fsdecode(path), tmp_path / "export") if path else None for path in exports]
    assert [path and os.path.dirname(path) for path in (*written[:2], written[4])] == ["final", "latest", "own"]
    assert all(path is None or os.path.dirname(path).startswith("best") for path in written[2:4])
    assert len(written) == 5


@pytest.mark.nightly
@pytest.mark.symbols("tf.estimator.BestExporter", "tf.compat.v1.estimator.BestExporter")
def test_best_exporter_takes_the_smallest_loss_unless_told(tmp_path):
    """The scripted loss is w² plus the score, so step² plus the score."""
    score = [0, 0, 100 - 4, 0, 50 - 16, 0, 70 - 36, 0, 0]  # losses 100, 50, 70, 64
    result, _ = run(tmp_path, score, steps=1, exporters=tf.estimator.BestExporter("best", receiver))
    assert result["loss"] == 64
    assert exported(tmp_path, "best") == [2, 4]


@pytest.mark.symbols("tf.estimator.EvalSpec", "tf.compat.v1.estimator.EvalSpec")
def test_evaluations_of_a_named_spec(tmp_path):
    """Name, hooks and steps of an EvalSpec reach the evaluation."""
    runs = []

    class Count(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            runs.append(1)

    result, exports = run(tmp_path, steps=3, name="held_out", hooks=[Count()])
    assert (len(runs), list(exports)) == (3 * 4, [])
    assert scalars(tmp_path / "eval_held_out", "score") == {2: 5.0, 4: 9.0, 6: 7.0, 8: 8.0}
    assert result["score"] == 8.0
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6, 8]


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="max_steps"):
        tf.estimator.TrainSpec(input_fn, max_steps=0)
    with pytest.raises(TypeError, match="hook"):
        tf.estimator.TrainSpec(input_fn, hooks=["hook"])
    with pytest.raises(ValueError, match="steps"):
        tf.estimator.EvalSpec(input_fn, steps=0)
    with pytest.raises(ValueError, match="name"):
        tf.estimator.EvalSpec(input_fn, exporters=[Own(), Own()])
    with pytest.raises(ValueError, match="exports_to_keep"):
        tf.estimator.LatestExporter("latest", receiver, exports_to_keep=0)
    with pytest.raises(ValueError, match="best_eval_result"):
        tf.estimator.BestExporter("best", receiver, compare_fn=lambda a, b: a > b)
