"""The command line in the process of the tests: what a person is told, and the exit code, without a new process."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from typer.testing import CliRunner

from estimator_pipeline.cli import main as cli
from tests.support.processes import environment


def call(
    *arguments: object, cwd: Path | None = None, env: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """As `run_python(["-m", "estimator_pipeline", *arguments], cwd=cwd, env=env)`; a defect is raised.

    Without `cwd` in an empty folder: the repository may have model directories of the demo and of the examples.
    """
    words = [*map(str, arguments)]
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as empty:
        try:
            os.chdir(cwd or empty)
            with mock.patch.dict(os.environ, environment(env), clear=True):
                done = CliRunner().invoke(cli.app, words, prog_name="estimator-pipeline")
        finally:
            os.chdir(before)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
