"""deepctr's Estimators: a package of others, which imports tensorflow.python.estimator and knows nothing of us."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("deepctr", reason="deepctr is not installed")

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

# All that the package has; the program fails when a release brings another one.
MODELS = [
    *("AFM", "AutoInt", "CCPM", "DCN", "DeepFEFM", "DeepFM", "FNN", "FiBiNET", "FwFM"),
    *("NFM", "PNN", "WDL", "xDeepFM"),
]


@pytest.mark.timeout(700)  # a minute on two idle cores; fourteen models, and a busy machine takes its time
def test_every_model_trains_evaluates_exports_and_is_served(run_python, programs, native, tmp_path):
    done = run_python(["-m", "estimator_pipeline", "exec", programs / "deepctr_all.py", tmp_path], timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    first, *said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    expected = [(f"{model}Estimator", "binary") for model in sorted(MODELS, key=lambda name: f"{name}Estimator")]
    assert [(each["model"], each["task"]) for each in said] == [*expected, ("DeepFMEstimator", "regression")]
    for each in said:
        assert each["step"] == each["metrics"]["global_step"] == 150, each
        if each["task"] == "binary":
            # Chance is 0.5. The weakest, AFM, CCPM and FwFM, were seen between 0.93 and 0.98, the others above.
            assert each["metrics"]["AUC"] > 0.9, each
        else:
            # The values' variance, which a model that knows only their mean would be left with, is 1.4.
            assert each["metrics"]["MSE"] < 0.2, each

    questions = [{"export": each["exported"], "records": first["records"]} for each in said]
    served = run_python([programs / "serve_examples.py"], stdin=json.dumps(questions))
    assert served.returncode == 0, served.stderr[-4000:]
    has_estimator, *answers = [json.loads(line) for line in served.stdout.splitlines()]
    assert has_estimator == native  # nothing of ours is in the server
    for each, answer in zip(said, answers, strict=True):
        # The same graph on the same records, in float32.
        flat = [value for (value,) in answer["pred"]]
        assert flat == pytest.approx(each["predicted"], rel=1e-4, abs=1e-5), each["model"]
