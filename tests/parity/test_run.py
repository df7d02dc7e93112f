"""Of the runs of a comparison: what is refused before they start, and why one has failed. No process is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from estimator_pipeline import launch
from estimator_pipeline.engines.model_dir.layout import PREFIXES
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.job import ENGINE_NAMES, load_job
from estimator_pipeline.parity import folders
from estimator_pipeline.parity.jobs import run as runs
from estimator_pipeline.parity.jobs.run import _changes, _failed, run_parity
from estimator_pipeline.progress.progress_file import TaskState
from tests.support.processes import ROOT

JOB = ROOT / "legacy_configs" / "single.yaml"
REFUSAL = {
    "code": "model/labels-mismatch",
    "what": "the model 'cnn' has 3 classes, but the data have more",
    "found": "labels from 0 to 9",
    "hint": "leave model.params.classes out,\nor set it to 10 at least",
}


def outcome(code, *, tail=(), reason="failed", refusal=None, signal=None):
    failure = None
    if reason not in ("interrupted", "timeout"):
        failure = launch.Failure("worker:0", code, Path("logs/worker-0.log"), tuple(tail), refusal=refusal)
    return launch.LaunchOutcome(reason, code, 3.0, "run", Path("logs"), (), failure=failure, signal=signal)


def test_what_an_engine_refuses_is_bad_input():
    error = _failed("keras", outcome(2, tail=["error: of a library"], refusal=REFUSAL))
    assert isinstance(error, ConfigError) and error.exit_code == 2
    assert (error.code, error.hint) == (REFUSAL["code"], REFUSAL["hint"])
    assert error.what.startswith("the engine keras") and error.what.endswith(REFUSAL["what"])
    assert error.found == "labels from 0 to 9; its logs: logs"
    # As a task of an older version told it.
    short = _failed("keras", outcome(2, refusal={"what": "no", "found": None, "hint": None}))
    assert (short.code, short.found, short.hint) == ("parity/run-failed", "its logs: logs", None)


def test_a_task_tells_its_refusal_in_its_last_event():
    state = TaskState("worker:0")
    state.apply({"event": "end", "status": "failed", "refusal": {"what": "a\nb", "found": None, "hint": 3}})
    assert state.refusal == {"code": None, "what": "a\nb", "found": None, "hint": "3"} and state.ended_as == "failed"
    state.apply({"event": "end", "status": "failed", "refusal": {"what": "a", "found": "b", "mend": "c", "later": "d"}})
    assert state.refusal == {"code": None, "what": "a", "found": "b", "hint": "c"}
    for odd in (None, "text", {}, {"found": "x"}):
        state = TaskState("worker:0")
        state.apply({"event": "end", "status": "failed", "refusal": odd})
        assert state.refusal is None
    told = launch.Failure("worker:0", 2, Path("log"), (), refusal=REFUSAL).document()
    assert told["refusal"] == REFUSAL and "refusal" not in launch.Failure("worker:0", 2, Path("log"), ()).document()


@pytest.mark.parametrize(
    ("ended", "code", "says"),
    [
        (outcome(1, tail=["Traceback"]), 1, "worker:0 failed with exit code 1. The last lines of"),
        (outcome(2, tail=["usage: something"]), 2, "usage: something"),
        (outcome(3, reason="diverged", tail=["error: training has diverged"]), 3, "training has diverged"),
        (outcome(2, tail=["error: of a library"]), 2, "error: of a library"),  # the log's words are no refusal
        (
            outcome(130, reason="interrupted", signal=2),
            130,
            "the run of the engine keras was stopped by the user (SIGINT)",
        ),
        (outcome(143, reason="interrupted", signal=15), 143, "was stopped by signal 15"),
        (outcome(1, reason="timeout"), 1, "timed out: it was stopped after 3 s"),
        (outcome(0), 1, "the run of the engine keras failed"),  # and no result
    ],
)
def test_another_failure_has_the_code_of_its_run(ended, code, says):
    error = _failed("keras", ended)
    assert isinstance(error, TaskFailedError) and error.exit_code == code
    assert says in str(error) and "its logs: logs" in str(error)
    assert TaskFailedError.exit_code == 1, "of this error alone"


# What is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engines", [("keras", "torch"), ("a", "b")])
def test_engines_that_are_none(engines):
    with pytest.raises(ConfigError, match="are not both known") as error:
        run_parity("nowhere.yaml", engines=engines)
    assert "engines: estimator, keras, keras3" in str(error.value)


@pytest.mark.parametrize(
    ("engines", "named"),
    [
        (("keras",), "keras"),
        (("keras", ""), "keras"),
        (("",), "none"),
        (("keras", "keras3", "estimator"), "keras, keras3"),
    ],
)
def test_two_engines_must_be_named(engines, named):
    with pytest.raises(ConfigError, match="compares two engines, and two must be named") as error:
        run_parity("nowhere.yaml", engines=engines)
    assert f"named: {named}" in str(error.value) and "--engines keras,keras3" in error.value.hint


def test_one_list_of_engines():
    assert tuple(PREFIXES) == ENGINE_NAMES
    for engine in ENGINE_NAMES:
        assert load_job(JOB, overrides=[f"run.engine={engine}"]).run.engine == engine


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": -1}, "steps is -1"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": True}, "steps is True"),
        ({"workers": 0}, "workers is 0"),
        ({"workers": -1}, "workers is -1"),
        ({"workers": "2"}, "workers is '2'"),
        ({"timeout": float("nan")}, "timeout is nan, which is not a number of seconds"),
        ({"timeout": 0}, "timeout is 0, "),
        ({"timeout": -5.0}, "timeout is -5.0, "),
        ({"timeout": float("inf")}, "timeout is inf, "),
        ({"timeout": "5"}, "timeout is '5', "),
    ],
)
def test_a_number_is_refused_in_the_words_of_the_argument(given, says, tmp_path):
    with pytest.raises(ConfigError) as error:
        run_parity(JOB, folder=tmp_path / "runs", **given)
    assert str(error.value).startswith(says) and "--set" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_workers_and_a_strategy_of_one_process(tmp_path):
    for strategy in ("mirrored", "one_device"):
        with pytest.raises(ConfigError) as error:
            run_parity(JOB, settings=[f"run.train_distribute={strategy}"], workers=2, folder=tmp_path / "runs")
        assert f"train_distribute '{strategy}' trains in one process, and 2 workers are requested" in str(error.value)
        assert "--set run.train_distribute=multi_worker_mirrored" in error.value.hint
    job = load_job(JOB, overrides=["run.seed=1"])
    changed = "run.train_distribute=multi_worker_mirrored"
    assert changed in _changes(job, [], workers=2, steps=3)
    assert changed not in _changes(job, [], workers=1, steps=3)
    assert changed not in _changes(job, [], workers=None, steps=3)


def test_what_one_engine_refuses_is_told_before_the_other_has_trained(tmp_path, monkeypatch):
    """The estimator's rule, and Keras is the one that would run first."""
    monkeypatch.setattr(runs, "_run", None)
    for folder in (tmp_path / "new" / "runs", None):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(ConfigError, match="does not apply the hint"):
            run_parity(JOB, settings=["run.seed=1", "input.shard_policy=hint"], folder=folder)
    assert not os.listdir(tmp_path)


def test_a_tolerance_of_the_job_file_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match="'bogus' is not the name of a tolerance") as error:
        run_parity(JOB, settings=["parity.tolerances={weights: bogus}"], folder=tmp_path / "runs")
    assert "the names: bit_equal, rounding, amplified" in str(error.value)


# Its folder ----------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "keras").write_text("")
    for folder, found in (
        (tmp_path / "file", "it is a file"),
        (tmp_path / "file" / "below", "Not a directory"),
        (Path("/proc/runs"), "No such file or directory"),
        (tmp_path / "half", f"{tmp_path}/half/keras is not a folder"),
    ):
        with pytest.raises(ConfigError) as error:
            run_parity(JOB, settings=["run.seed=1"], folder=folder)
        assert str(error.value).startswith(f"--folder {folder}: the runs and their records cannot be written there")
        assert found in error.value.found and "log-dir" not in str(error.value)


def test_a_folder_that_was_made_for_nothing_is_taken_away(tmp_path):
    """However the block ends; what was there before, or has something in it, stays."""
    (tmp_path / "before").mkdir()
    for error in (ConfigError("no"), KeyboardInterrupt()):
        for name in ("new/inner", "before/inner", "before"):
            with pytest.raises(type(error)), folders.kept_if_used(tmp_path / name):
                folders.prepare(tmp_path / name, option="--folder", contents="the runs")
                raise error
    assert os.listdir(tmp_path) == ["before"] and not os.listdir(tmp_path / "before")
    with folders.kept_if_used(tmp_path / "new" / "inner"):
        folders.prepare(tmp_path / "new" / "inner", option="--folder", contents="the runs")
        (tmp_path / "new" / "file").write_text("")
    assert os.listdir(tmp_path / "new") == ["file"]


def test_what_the_job_keeps_elsewhere_is_left_alone(tmp_path):
    """A comparison once took a killed run's backup away, and wrote over the checkpoints of its callbacks."""
    kept = [f"keras.backup={{every: 5, dir: {tmp_path}/backup}}", "keras.chief_checkpoint={every: 10}",
            f"keras.model_checkpoint={{path: '{tmp_path}/saves/{{epoch}}'}}", f"run.ledger={tmp_path}/ledger",
            "run.seed=1", "run.save_checkpoints_steps=20"]  # fmt: skip
    job = load_job(JOB, overrides=kept)
    compared = load_job(JOB, overrides=_changes(job, kept, workers=None, steps=50))
    assert not [*compared.keras.folders()] and compared.run.ledger_folder is None
    assert (compared.keras.backup, compared.keras.model_checkpoint, compared.keras.chief_checkpoint) == (None,) * 3
    assert compared.run.save_checkpoints_steps == 50


@pytest.mark.parametrize(("steps", "epoch"), [(50, 20), (10, 10)])
@pytest.mark.parametrize(
    "acting", ["keras.learning_rate_by_epoch={boundaries: [1], values: [0.1, 0.01]}", "keras.callbacks=[own.py:made]"]
)
def test_what_acts_by_epochs_has_the_epochs_of_the_job(acting, steps, epoch):
    settings = ["run.seed=1", "run.save_checkpoints_steps=20", acting]
    changed = load_job(JOB, overrides=_changes(load_job(JOB, overrides=settings), settings, workers=None, steps=steps))
    assert changed.run.save_checkpoints_steps == epoch and changed.train.max_steps == steps
