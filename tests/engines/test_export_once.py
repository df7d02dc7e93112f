"""Exporters of a job file leave no half exports: of a process that was killed, or of their own when they fail."""

from __future__ import annotations

import types

import pytest

from estimator_pipeline import compat
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.jobs.export_once import once
from estimator_pipeline.engines.keras3 import exporters as keras3_exporters
from estimator_pipeline.job import load_job
from tests.support.processes import ROOT

tf = compat.install()


class Exporter(tf.estimator.Exporter):
    """Begins an export, and ends it, or does what it is told amid it."""

    name = "latest"

    def __init__(self, amid=lambda: None):
        self.amid = amid

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        tf.io.gfile.makedirs(f"{export_path}/temp-1700000002")
        with tf.io.gfile.GFile(f"{export_path}/temp-1700000002/saved_model.pb", "w") as file:
            file.write("half")
        self.amid()
        tf.io.gfile.rename(f"{export_path}/temp-1700000002", f"{export_path}/1700000002")
        return f"{export_path}/1700000002"


@pytest.fixture
def folder(tmp_path):
    """With an export, and what a process that was killed has left of another."""
    for name in ("1700000000", "temp-1700000001"):
        (tmp_path / "latest" / name).mkdir(parents=True)
        (tmp_path / "latest" / name / "saved_model.pb").write_text("a model")
    return tmp_path / "latest"


def export(exporter, folder):
    return exporter.export(None, str(folder), "model.ckpt-1", {}, False)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_keras_3_exports_no_nan_as_the_best(tmp_path, warnings):
    def export_saved_model(path, checkpoint_path):
        (tmp_path / "best" / checkpoint_path).mkdir(parents=True)
        return f"{path}/{checkpoint_path}"

    def exported(*results):
        """By a process that evaluates these."""
        exporter = keras3_exporters.Keras3BestExporter("best", metric="auc", mode="max")
        model = types.SimpleNamespace(export_saved_model=export_saved_model)
        return [
            exporter.export(model, str(tmp_path / "best"), f"17000000{step}", {"auc": auc}, False) is not None
            for step, auc in results
        ]

    assert exported((10, float("nan"))) == [False]
    assert exported((11, 0.5), (12, float("nan")), (13, 0.7)) == [True, False, True]
    assert exported((14, float("nan")), (15, 0.6)) == [False, False]
    # As an earlier version wrote it.
    (tmp_path / "best.best.json").write_text('{"metrics": {"auc": NaN}, "export": "best/1700000013"}')
    assert exported((16, 0.1), (17, 0.05)) == [True, False]
    assert len(warnings) == 3 and "its auc is NaN" in warnings[0]


def test_what_was_left_is_taken_away_by_the_next_export(folder):
    seen = []
    exporter = once(Exporter(lambda: seen.extend(names(folder))), None)
    assert exporter.name == "latest" and isinstance(exporter, tf.estimator.Exporter)
    assert export(exporter, folder) == str(folder / "1700000002")
    assert seen == ["1700000000", "temp-1700000002"] and names(folder) == ["1700000000", "1700000002"]


@pytest.mark.parametrize("error", [tf.errors.NotFoundError(None, None, "deleted"), KeyboardInterrupt()])
def test_one_that_fails_leaves_nothing(folder, error):
    def amid():
        raise error

    with pytest.raises(type(error)):
        export(once(Exporter(amid), None), folder)
    assert names(folder) == ["1700000000"]


def test_the_first_export_of_all(tmp_path):
    (tmp_path / "latest").mkdir()
    export(once(Exporter(), None), tmp_path / "latest")
    assert names(tmp_path / "latest") == ["1700000002"]


def test_every_exporter_of_a_job(tmp_path, folder):
    """Those that export a checkpoint once, and the best ones."""
    job = load_job(ROOT / "legacy_configs" / "schedule_and_exports.yaml")

    def amid():
        raise tf.errors.NotFoundError(None, None, "deleted")

    (folder.parent / "model.ckpt-1.index").write_text("")
    exporters = BuiltJob(job).exporters(lambda section: Exporter(amid))
    assert {section.kind for section in job.eval.exporters} == {"best", "final"} and len(exporters) == 2
    for exporter in exporters:
        (folder / "temp-1700000001").mkdir(exist_ok=True)
        with pytest.raises(tf.errors.NotFoundError):
            exporter.export(None, str(folder), str(folder.parent / "model.ckpt-1"), {}, True)
        assert names(folder) == ["1700000000"]


def test_made_once(tmp_path, folder):
    checkpoint = tmp_path / "model.ckpt-1"
    (tmp_path / "model.ckpt-1.index").write_text("an index")
    made = []
    exporter = once(Exporter(lambda: made.append(1)), "a job")
    for _ in range(2):
        assert exporter.export(None, str(folder), str(checkpoint), {}, True) == str(folder / "1700000002")
    assert made == [1]
