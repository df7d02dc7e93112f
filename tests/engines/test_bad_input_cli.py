"""Every wrong job file and TF_CONFIG of bad_cases.py, through the command line: one message, exit code 2, no traceback.

The commands run in this process (typer's runner): each case stops before TensorFlow is imported, which the last test
proves with a process of its own.
"""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from estimator_pipeline.cli.main import app
from tests.support import messages
from tests.support.bad_cases import CASES

GOOD_JOB = """
model: {name: linear}
input: {source: tfds, name: digits, global_batch_size: 4}
run: {model_dir: MODEL_DIR}
"""
TEXTS = {
    f"{kind}-{name}": text
    for kind in ("job", "tf_config")
    for name, text in messages.blocks((messages.TEXTS / f"{kind}.txt").read_text(encoding="utf-8")).items()
}


@pytest.fixture
def outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return tmp_path


def train(tmp_path, job, monkeypatch, tf_config=None):
    path = tmp_path / "job.yaml"
    path.write_text(job)
    if tf_config is not None:
        monkeypatch.setenv("TF_CONFIG", tf_config)
    return CliRunner().invoke(app, ["train", str(path)])


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_bad_input_is_told_once(case, outside, monkeypatch):
    if case.kind == "job":
        done = train(outside, case.text, monkeypatch)
    else:
        done = train(outside, GOOD_JOB.replace("MODEL_DIR", str(outside / "model")), monkeypatch, case.text)
    assert done.exit_code == 2, done.output
    assert done.output.startswith("error: ") and done.output.count("error: ") == 1
    assert "Traceback" not in done.output
    assert TEXTS[case.id] in done.output.replace(f"{outside}/", "")
    assert not (outside / "model").exists(), "nothing is written"


def test_there_are_enough_cases():
    assert len(CASES) >= 30


LATER = [
    # (job, what the message names): mistakes that only the parts of the job can see
    ("model: {name: cmm}\nREST", ["'cmm' is unknown", "cnn, dnn, linear"]),
    ("model: {name: cnn, params: {filtres: 3}}\nREST", ["no parameter filtres", "filters"]),
    ("model: {name: cnn, loss: entropy}\nREST", ["'entropy' is not known"]),
    ("model: {name: cnn, metrics: [auc]}\nREST", ["auc are not known", "accuracy"]),
    ("model: {function: 'nowhere:build'}\nREST", ["'nowhere' cannot be found", "working directory"]),
    ("model: {function: 'here.py:build'}\nREST", ["'here.py' does not exist"]),
    ("model: {function: 'math:build'}\nREST", ["math has no function 'build'"]),
]


# Each as the command line runs it, one after another.
RUN_ALL = """
import json, pathlib, sys
from typer.testing import CliRunner
from estimator_pipeline.cli.main import app

found = []
for job in json.loads(sys.argv[1]):
    pathlib.Path("job.yaml").write_text(job)
    done = CliRunner().invoke(app, ["train", "job.yaml"])
    found.append({"code": done.exit_code, "output": done.output, "exception": type(done.exception).__name__})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def later(run_python, tmp_path_factory):
    """How the jobs of LATER end. They need TensorFlow, which one process imports once."""
    folder = tmp_path_factory.mktemp("later")
    rest = f"input: {{source: tfds, name: digits, global_batch_size: 4}}\nrun: {{model_dir: '{folder}/model'}}\n"
    jobs = [job.replace("REST", rest) for job, _ in LATER]
    done = run_python(["-c", RUN_ALL, json.dumps(jobs)], cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("number", range(len(LATER)))
def test_bad_input_of_the_parts(later, number):
    found = later[number]
    assert (found["code"], found["exception"]) == (2, "SystemExit"), found
    assert found["output"].count("error: ") == 1 and "Traceback" not in found["output"]
    for fragment in LATER[number][1]:
        assert fragment in found["output"]


def test_a_wrong_file_is_told_before_tensorflow_is_imported(run_python, tmp_path):
    (tmp_path / "job.yaml").write_text("model: {}\n")
    code = (
        "import sys; from typer.testing import CliRunner; from estimator_pipeline.cli.main import app;"
        f"r = CliRunner().invoke(app, ['train', {str(tmp_path / 'job.yaml')!r}]);"
        "print(r.exit_code, 'tensorflow' in sys.modules)"
    )
    assert run_python(["-c", code]).stdout.strip() == "2 False"
