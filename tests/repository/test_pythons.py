"""The table tools/pythons.txt: the Python versions of each supported TensorFlow."""

from __future__ import annotations

import importlib
import re
import subprocess

import pytest

from tests.support.processes import ROOT


@pytest.fixture
def release(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("release")


def test_the_table_has_every_supported_tensorflow(release):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert list(release.wheels()) == re.search(r"^SUPPORTED := (.+)$", makefile, re.MULTILINE)[1].split()


def test_the_extras_are_those_of_this_python(release, monkeypatch):
    plain = ["tf1", "test", "docs", "release", "lint"]
    assert [extra for extra in release.extras() if not extra.startswith("tf2-")] == plain
    for python, oldest in (("3.10", 15), ("3.11", 15), ("3.12", 16), ("3.13", 20)):
        monkeypatch.setattr(release, "PYTHON", python)
        assert release.extras() == [*(f"tf2-{minor}" for minor in range(oldest, 22)), *plain]


def test_make_venv_reads_the_table(tmp_path):
    command = ["sh", ROOT / "tools" / "make_venv.sh", tmp_path / "venv"]
    done = subprocess.run([*command, "2.14"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: TensorFlow 2.14 is not in tools/pythons.txt\n")
    # A Python that cannot be run: the message lists those of the table.
    environ = {"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"}
    done = subprocess.run([*command, "2.16"], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 2 and "TensorFlow 2.16 has wheels for Python 3.11 3.12 3.10\n" in done.stderr
