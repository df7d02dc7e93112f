"""Packages of others under `estimator-pipeline exec`, unchanged: docs/reference/real-programs.md lists them.

They are installed by tests/programs/packages.txt. Their programs know nothing of us, and what they exported is asked
in a process of plain TensorFlow.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


def needs(package):
    """Skips where the package is not installed. It must not be imported here: it would bring TensorFlow along."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"no {package}: pip install --no-deps -r tests/programs/packages.txt")


@pytest.fixture
def run_program(run_python, programs, tmp_path):
    """`run_program(name)`: what the program printed, one dictionary a line of JSON."""

    def run(name):
        done = run_python(["-m", "estimator_pipeline", "exec", programs / name, tmp_path], timeout=240)
        assert done.returncode == 0, done.stderr[-4000:]
        advice = re.findall(r"From (.+):\d+: .+ is deprecated and will be removed", done.stderr)
        libraries = re.compile(r"/(tensorflow|tensorflow_estimator|keras|tf_keras)/")
        assert not list(filter(libraries.search, advice)), "calls in TensorFlow's libraries, not in the program"
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return run


@pytest.fixture
def serve(run_python, programs, native):
    """`serve(exports, records)`: the outputs of each SavedModel's default signature, name -> values."""

    def ask(exports, records):
        questions = [{"export": export, "records": records} for export in exports]
        done = run_python([programs / "serve_examples.py"], stdin=json.dumps(questions))
        assert done.returncode == 0, done.stderr[-4000:]
        has_estimator, *answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert has_estimator == native  # nothing of ours is in the server
        return answers

    return ask


@needs("tensorflow_ranking")
def test_tensorflow_ranking(run_program, serve):
    """RankingPipeline over the canned DNN and GAM Estimators, a groupwise model_fn, and a Keras model as Estimator."""
    random, *results = run_program("ranking_pipeline.py")
    assert [each["what"] for each in results] == ["dnn", "gam", "groupwise", "keras"]
    assert 0.45 < random["ndcg"] < 0.6
    for each in results:
        assert each["step"] == 150, each
        # A GAM adds up functions of single features: it cannot see that their worth depends on the query's kind.
        assert each["ndcg"] > random["ndcg"] + (0.1 if each["what"] == "gam" else 0.3), each

    for each in results[:2]:
        ((latest,), (best,)) = each["exported"]["latest_model"], each["exported"]["best_model_by_metric"]
        for answer in serve([latest, best], random["records"]):
            (scores,) = next(iter(answer.values()))
            # The Estimator's lists are padded to the longest, the server's one is as long as it is.
            assert scores == pytest.approx(each["predicted"][: len(scores)], rel=1e-4, abs=1e-4)


@needs("neural_structured_learning")
def test_neural_structured_learning(run_program, serve):
    """Adversarial and graph regularization around an Estimator's model_fn."""
    first, plain, adversarial, graph = run_program("nsl_digits.py")
    for each in (plain, adversarial, graph):
        assert each["step"] == 300
        assert each["accuracy"] > 0.8, each  # chance is 0.1
        # The regularization trains the same weights: there is no second copy of them.
        assert each["weights"] == ["hidden/bias", "hidden/kernel", "logits/bias", "logits/kernel"]
    # What adversarial training is for: images that were moved towards the other digits.
    assert adversarial["moved"] > plain["moved"] + 0.05, (plain, adversarial)
    assert graph["predicted"] != plain["predicted"]
    trained = (plain, adversarial, graph)
    answers = serve([each["exported"] for each in trained], first["records"])
    for each, answer in zip(trained, answers, strict=True):
        assert answer["probabilities"][0] == pytest.approx(each["predicted"], rel=1e-4, abs=1e-6)


@needs("recommenders")
def test_recommenders(run_program, serve):
    """Its wide & deep model with the evaluation hook, on generated ratings; its export of all modes is served."""
    (results,) = run_program("recommenders_wide_deep.py")
    assert results["step"] == 600 and results["error"] < 0.75 * results["spread"], results
    assert results["error"] == pytest.approx(results["average_loss"] ** 0.5, rel=1e-4)
    assert [name for name, _ in results["logged"]] == ["validation_loss"] * 3
    (answer,) = serve([results["exported"]], [results["record"]])
    assert next(iter(answer.values()))[0] == pytest.approx([results["predicted"]], rel=1e-4)


@needs("spleeter")
def test_spleeter(run_program):
    """Training as `spleeter train` does it, with train_and_evaluate, and its Separator on a song it has not heard."""
    (results,) = run_program("spleeter_songs.py")
    assert results["metrics"]["global_step"] == 60
    for part in ("vocals", "accompaniment"):
        # Decibels of what is wanted over what is not.
        assert results[part]["separated"] > results[part]["halved"] + 1.5, results


@needs("spleeter")
def test_spleeter_command(run_python, programs, tmp_path):
    """`spleeter train` and `spleeter separate` on a song it has not heard, with the typer that spleeter can import."""
    done = run_python(["tools/install_packages.py", "--no-deps", "--target", tmp_path / "typer", "typer<0.21"])
    assert done.returncode == 0, done.stderr[-4000:]
    path = os.pathsep.join([str(tmp_path / "typer"), str(programs)])

    def run(*arguments):
        command = ["-m", "estimator_pipeline", "exec", *arguments]
        done = run_python(command, env={"PYTHONPATH": path}, cwd=tmp_path, timeout=240)
        assert done.returncode == 0, done.stderr[-4000:]

    run(programs / "spleeter_songs.py", tmp_path, "prepare")
    options = ["-p", "config.json", "--adapter", "spleeter_songs.WaveAdapter"]
    run("-m", "spleeter", "train", "-d", "songs", *options)
    run("-m", "spleeter", "separate", "-o", "out", *options, "songs/song-7-mix.wav")

    def samples(file):
        return np.frombuffer((tmp_path / file).read_bytes()[44:], "<i2") / 32768  # after the header of a WAV file

    def ratio(signal, found):
        return 10 * np.log10(np.sum(signal**2) / np.sum((signal - found) ** 2))

    mix = samples("songs/song-7-mix.wav")
    for part in ("vocals", "accompaniment"):
        signal = samples(f"songs/song-7-{part}.wav")
        assert ratio(signal, samples(f"out/song-7-mix/{part}.wav")) > ratio(signal, mix / 2) + 1.5, part


@pytest.mark.skipif(importlib.util.find_spec("easy_rec") is None, reason="no EasyRec: docs/packages/EasyRec.md")
def test_easyrec(run_python, programs, tmp_path):
    """A DeepFM by EasyRec's commands: trained and evaluated."""
    done = run_python([programs / "easyrec_clicks.py", tmp_path])
    assert done.returncode == 0, done.stderr[-4000:]
    clone = Path(importlib.util.find_spec("easy_rec").origin).parents[1]

    def run(module, *options):
        command = ["-m", "estimator_pipeline", "exec", "-m", f"easy_rec.python.{module}"]
        env = {"PYTHONPATH": str(clone)}
        done = run_python(
            [*command, "--pipeline_config_path", "pipeline.config", *options], cwd=tmp_path, env=env, timeout=240
        )
        assert done.returncode == 0, done.stderr[-4000:]

    run("train_eval")
    run("eval")
    metrics = json.loads((tmp_path / "model/eval_result.txt").read_text())
    assert metrics["global_step"] == 400 and metrics["auc"] > 0.85, metrics


@needs("tensorflow_lattice")
def test_tensorflow_lattice(run_program):
    """Its canned Estimators: what was asked to be monotonic is, everywhere."""
    if tuple(map(int, importlib.metadata.version("numpy").split(".")[:2])) >= (2, 4):
        pytest.skip("tensorflow-lattice calls np.quantile as NumPy before 2.4 had it")
    results = run_program("lattice_shapes.py")
    assert [each["what"] for each in results] == ["lattice", "linear", "crystals", "regression"]
    for each in results:
        assert each["step"] == 500 and each["monotonic"], each
    assert all(each["auc"] > 0.97 for each in results[:3]), results
    assert results[3]["squared_error"] < 0.05 * results[3]["variance"], results


@needs("tensorflow_privacy")
def test_tensorflow_privacy(run_program):
    """Its Keras and its V1 optimizer in its Estimators: the noise that they add is the same, and costs what it must."""
    keras, keras_noisy, v1, v1_noisy = run_program("privacy_digits.py")
    for each in (keras, keras_noisy, v1, v1_noisy):
        assert each["step"] == 150, each
    for some, much in ((keras, keras_noisy), (v1, v1_noisy)):
        assert some["accuracy"] > 0.75 and much["accuracy"] < 0.5, (some, much)  # chance is 0.1
    assert keras["accuracy"] == pytest.approx(v1["accuracy"], abs=0.02)


@needs("adanet")
def test_adanet(run_program, serve):
    """AutoEnsembleEstimator: two iterations, the second over the frozen weights of the first."""
    (results,) = run_program("adanet_digits.py")
    assert results["step"] == 200 and results["accuracy"] > 0.8, results
    # One candidate of each iteration.
    assert results["architecture"].count("dnn") + results["architecture"].count("linear") == 2, results
    (answer,) = serve([results["exported"]], results["records"])
    assert answer["scores"][0] == pytest.approx(results["predicted"], rel=1e-4, abs=1e-6)


@needs("tf_slim")
def test_tf_slim(run_program):
    """slim's layers in a model_fn; its train_op moves the averages of its batch normalization."""
    (results,) = run_program("slim_digits.py")
    assert results["step"] == 150 and results["accuracy"] > 0.85, results
    assert results["moving_mean"] > 0.01
