"""deepctr's DeepFMEstimator: a package of others, which imports tensorflow.python.estimator and knows nothing of us."""

from __future__ import annotations

import pytest

pytest.importorskip("deepctr", reason="deepctr is not installed")

pytestmark = pytest.mark.slow


def test_deepfm_trains_evaluates_exports_and_is_served(run_python, programs, tmp_path):
    export_dir = tmp_path / "export"
    command = ["-m", "estimator_pipeline", "exec", programs / "deepctr_deepfm.py", tmp_path / "model", export_dir]
    done = run_python(command, timeout=240)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line)
    step, auc = said["evaluated"].split()
    assert int(step) == 200
    # Chance is 0.5; the clicks follow a rule that the model's parts can express.
    assert float(auc) > 0.9
    (exported,) = export_dir.iterdir()
    assert said["exported"] == str(exported)

    served = run_python([programs / "serve_clicks.py", exported])
    assert served.returncode == 0, served.stderr
    answers = dict(line.split(" ", 1) for line in served.stdout.splitlines())
    assert answers["signatures"] == "['predict', 'serving_default']"
    assert answers["answers"] == "logits (3, 1) pred (3, 1)"
    # The server's answer about the first record is the Estimator's own. Same graph, same float32 values: only
    # batches of another size may sum in another order.
    assert float(answers["first"]) == pytest.approx(float(said["predicted"]), rel=1e-5)


def test_server_is_plain_tensorflow(run_python, native):
    """The serving process of the test above has no part of ours in it."""
    done = run_python(["-c", "import tensorflow as tf; print(hasattr(tf, 'estimator'))"])
    assert done.stdout == f"{native}\n"
