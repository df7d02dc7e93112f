"""`estimator-pipeline migrate config`: what is printed where, what is written, exit codes; and no TensorFlow."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from estimator_pipeline.cli.main import app
from estimator_pipeline.job import load_job
from tests.support.config_cases import CONFIGS, ROOT

CENSUS = "legacy_configs/cloud_ml_engine/census.yaml"
TEMPLATE = """\
model: {name: wide_deep, params: {hidden: [8]}, optimizer: {name: adagrad}, metrics: [accuracy]}
input: {source: csv, train: a.csv, eval: b.csv, columns: {age: float32, label: int64}, global_batch_size: 7}
run: {model_dir: runs/template, seed: 3}
"""


@pytest.fixture
def run(monkeypatch):
    """Runs `migrate config` in this process, from the repository."""
    monkeypatch.chdir(ROOT)

    def call(*arguments, code=0, **options):
        done = CliRunner().invoke(app, ["migrate", "config", *map(str, arguments)], **options)
        assert done.exit_code == code, done.output
        return done

    return call


def test_no_tensorflow(run_python):
    """For every format: what has been imported by the end."""
    files = [CENSUS, "legacy_configs/sagemaker/create_training_job.json", "legacy_configs/tfjob/mnist_v1.yaml"]
    files += ["legacy_configs/run_config/estimator_1_15.log", "legacy_configs/flags/census.flags"]
    code = (
        "import sys\nfrom estimator_pipeline.migrate.configs import convert_config, report_text\n"
        "for name in sys.argv[1:]:\n    report_text(convert_config(name))\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'tensorflow', 'keras', 'tf_keras', 'numpy', 'absl'}))"
    )
    done = run_python(["-c", code, *files])
    assert done.returncode == 0 and done.stdout == "[]\n", done.stderr


def test_without_output_the_job_file_goes_to_standard_output(run):
    done = run(CENSUS)
    assert done.stdout == (CONFIGS / "cloud_ml_engine" / "census.job.yaml").read_text()
    assert "format cloud_ml_engine" in done.stderr and "still missing: model.function" in done.stderr
    assert "trainingInput.workerCount" in done.stderr and "cluster.workers: 9" in done.stderr


def test_written_and_never_over_another_file(run, tmp_path):
    path = tmp_path / "new" / "job.yaml"
    done = run(CENSUS, "--output", path)
    assert f"written: {path}\n" in done.stdout and "format cloud_ml_engine" in done.stdout
    assert path.read_text() == (CONFIGS / "cloud_ml_engine" / "census.job.yaml").read_text()
    assert os.listdir(path.parent) == ["job.yaml"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    path.write_text("mine")
    done = run(CENSUS, "--output", path, code=2)
    assert "[file/exists]" in done.stderr and str(path) in done.stderr and "--overwrite" in done.stderr
    assert path.read_text() == "mine"
    run(CENSUS, "--output", path, "--overwrite")
    assert path.read_text() != "mine"
    assert "is a folder" in run(CENSUS, "--output", tmp_path, code=2).stderr
    assert "cannot be written" in run(CENSUS, "--output", path / "below.yaml", code=2).stderr


def test_the_source_is_not_written_over(run, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text((ROOT / CENSUS).read_text())
    assert "is the configuration itself" in run(path, "--output", path, "--overwrite", code=2).stderr


def test_a_disk_that_is_full_leaves_nothing(run, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = run(CENSUS, "--output", tmp_path / "job.yaml", code=2)
    assert "No space left on device" in done.stderr and os.listdir(tmp_path) == []


def test_json(run):
    document = json.loads(run(CENSUS, "--json").stdout)
    assert document["format"] == "cloud_ml_engine" and document["written"] == []
    assert sum(document["counts"].values()) == len(document["fields"]) == 20
    (workers,) = [f for f in document["fields"] if f["field"] == "trainingInput.workerCount"]
    assert workers == {
        "field": "trainingInput.workerCount", "name": "trainingInput.workerCount", "line": 6, "value": 9,
        "state": "taken", "to": "cluster.workers", "job_value": 9, "why": "in addition to the master",
    }  # fmt: skip
    assert document["to_be_given"].keys() == {"model.function", "input.source"}
    assert document["job"]["cluster"]["workers"] == 9 and document["job_file"].startswith("# From ")


def test_a_template_and_settings_make_it_whole(run, tmp_path):
    """The source goes before the template, --set before both; the report says so."""
    template, path = tmp_path / "template.yaml", tmp_path / "job.yaml"
    template.write_text(TEMPLATE)
    done = run(CENSUS, "--template", template, "--set", "train.max_steps=99", "--output", path)
    job = load_job(path)
    assert (job.model.name, job.model.optimizer.name, job.model.optimizer.learning_rate) == ("wide_deep", "adam", 0.003)
    assert (job.input.source, job.input.global_batch_size, job.run.seed) == ("csv", 40, 3)
    assert (job.run.model_dir, job.train.max_steps) == ("gs://census-jobs/census_2018", 99)
    assert (job.cluster.workers, job.cluster.ps, job.cluster.dialect) == (9, 3, "master")
    assert "replaced by --set train.max_steps=99" in " ".join(done.stdout.split())
    assert "still missing" not in done.stdout
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("model: {name: cnn}\n")
    assert "input: the section is missing" in run(CENSUS, "--template", wrong, code=2).stderr


def test_settings_that_are_wrong(run):
    assert "this is not of the form key=value" in run(CENSUS, "--set", "x", code=2).stderr
    done = run(CENSUS, "--set", "train.max_step=3", code=2)
    assert "is not valid:" in done.stderr and "train.max_step: unknown field" in done.stderr


def test_standard_input(run):
    done = run("-", "--set", "model.name=dnn", input="learning_rate=0.1,optimizer=sgd,batch_size=8")
    assert "learning_rate: 0.1  # learning_rate (line 1)" in done.stdout and "name: dnn" in done.stdout


def test_bad_input_is_one_message(run, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": 1,\n b}')
    done = run(path, code=2)
    assert done.stdout == "" and done.stderr.startswith(f"error: {path}, line 2, column 2: ")
    assert "[file/bad-format]" in done.stderr and len(done.stderr.splitlines()) == 3
    assert "[argument/unknown-name]" in run(path, "--format", "x", code=2).stderr


def test_a_job_that_was_converted_trains(run, run_warm, tmp_path):
    """From the flags of a job to a run of it: what was taken is what is trained."""
    path, model = tmp_path / "job.yaml", tmp_path / "model"
    flags = f"--train_steps=6\n--batch_size=32\n--learning_rate=0.1\n--optimizer=sgd\n--job-dir={model}\n"
    (tmp_path / "flags").write_text(flags + "--save_checkpoints_steps=3\n--tf_random_seed=1\n")
    settings = ["model.name=linear", "input.source=tfds", "input.name=digits"]
    run(tmp_path / "flags", *(x for s in settings for x in ("--set", s)), "--output", path)
    done = run_warm(["-m", "estimator_pipeline", "train", path, "--json"], timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["global_step"] == 6
    assert (model / "model.ckpt-3.index").exists() and (model / "model.ckpt-6.index").exists()
