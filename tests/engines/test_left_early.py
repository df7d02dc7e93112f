"""A training that is left in its midst: what the launcher is told, and the exit code of `train`."""

from __future__ import annotations

import json
import sys

import pytest

import estimator_pipeline as ep
from tests.support.command_line import call
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()


def _told(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("error", "last"), [(ArithmeticError, "raised"), (SystemExit, "stage")])
def test_an_exception_is_an_end_that_a_program_may_catch_and_sys_exit_is_none(tmp_path, error, last):
    def input_fn():
        raise error(0)

    path = tmp_path / "worker-0.progress.jsonl"
    estimator = tf.estimator.Estimator(lambda features, labels: None, model_dir=str(tmp_path / "model"))
    with pytest.raises(error):
        ep.train_and_evaluate(
            estimator,
            tf.estimator.TrainSpec(input_fn, max_steps=2),
            tf.estimator.EvalSpec(input_fn),
            environ={"ESTIMATOR_PIPELINE_PROGRESS": str(path)},
        )
    told = _told(path)
    assert (told[0]["event"], told[0]["task"]) == ("start", "worker:0")
    assert told[-1]["event"] == last, told


def test_train_makes_a_failure_of_sys_exit(tmp_path):
    (tmp_path / "own.py").write_text(
        "import sys\nimport tensorflow as tf\n\n\ndef train(input_context=None):\n    sys.exit(0)\n"
    )
    (tmp_path / "job.yaml").write_text("""
model: {name: linear, params: {input_shape: [4], classes: 2}}
input: {source: function, train: "own.py:train", eval: "own.py:train", global_batch_size: 2}
train: {max_steps: 2}
run: {model_dir: model}
""")
    done = call("train", "job.yaml", cwd=tmp_path, env={"ESTIMATOR_PIPELINE_PROGRESS": str(tmp_path / "told")})
    sys.modules.pop("own", None)
    assert done.returncode == 1, done.stderr
    assert "error: sys.exit(0) was called before the end of training" in done.stderr
    assert "own.py, line 6: sys.exit(0)" in done.stderr
    assert "result" not in [event["event"] for event in _told(tmp_path / "told")]
