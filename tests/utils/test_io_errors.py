"""A disk that fails is one message with the file's name, and exit code 1. The kernel itself says EIO here."""

from __future__ import annotations

import errno
import os

import pytest
from typer.testing import CliRunner

from estimator_pipeline.cli.main import app
from estimator_pipeline.errors import DiskError
from estimator_pipeline.inputs.sources import tfrecord_index as records
from estimator_pipeline.inputs.sources.columns import Column
from estimator_pipeline.inputs.sources.csv import CsvFormat
from estimator_pipeline.inputs.sources.table_format import examine
from estimator_pipeline.utils import io_errors

JOB = """
model: {{name: linear, params: {{classes: 2, input_shape: [1]}}}}
input:
  source: csv
  train: {file}
  eval: {file}
  columns: {{x: float32, label: int64}}
  features_key: x
  global_batch_size: 4
train: {{max_steps: 2}}
run: {{model_dir: {model_dir}}}
"""


@pytest.fixture
def failing(tmp_path):
    """A file that can be opened, and cannot be read: EIO."""
    path = tmp_path / "data.csv"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"), open(path, "rb") as file:
        file.read(1)
    return path


def test_the_file_is_named(failing):
    with pytest.raises(DiskError) as caught, io_errors.naming(failing), open(failing, "rb") as file:
        file.read(1)
    assert caught.value.code == "system/disk" and caught.value.what == f"{failing} cannot be read: Input/output error"
    assert caught.value.exit_code == 1


def test_other_errors_stay_as_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), io_errors.naming(tmp_path / "none"), open(tmp_path / "none"):
        pass


def test_csv_files(failing):
    with pytest.raises(DiskError, match=f"{failing} cannot be read"):
        examine([str(failing)], CsvFormat(), [Column("x", "float32")], limit=100)


def test_a_launch(failing, tmp_path):
    """Of both data sets, told once; nothing is started."""
    (tmp_path / "job.yaml").write_text(JOB.format(file=failing, model_dir=tmp_path / "model"))
    done = CliRunner().invoke(app, ["launch", str(tmp_path / "job.yaml")])
    assert done.exit_code == 1, done.output
    assert done.output.count(f"{failing} cannot be read: Input/output error") == 1
    assert len(done.output.splitlines()) == 2 and "Traceback" not in done.output


def test_a_command_that_meets_one_anywhere(tmp_path, monkeypatch):
    def read(*_, **__):
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), "some/file")

    monkeypatch.setattr(records, "write_index", read)
    (tmp_path / "file").write_bytes(b"")
    done = CliRunner().invoke(app, ["index", str(tmp_path / "file")])
    assert done.exit_code == 1 and done.output == "error: some/file: Bad message [system/disk]\n"
