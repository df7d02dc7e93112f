"""What the product promises is what the files of this folder list; `make promises` writes them.

A change that takes something away has a line less here, in the same commit, and an entry in CHANGELOG.md.
"""

from __future__ import annotations

import os

import pytest

from tests.promises.collect import FOLDER, ROOT, subjects

ACCEPT = "ESTIMATOR_PIPELINE_ACCEPT_PROMISES"

pytestmark = pytest.mark.tf  # public names of TensorFlow classes


@pytest.mark.parametrize("subject", subjects())
def test_nothing_is_taken_away_unseen(subject, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    path = FOLDER / f"{subject}.txt"
    now = sorted({" ".join(line.split()) for line in subjects()[subject]()} - {""})
    if os.environ.get(ACCEPT):
        path.write_text("".join(f"{line}\n" for line in now), encoding="utf-8")
    promised = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    gone, new = sorted(set(promised) - set(now)), sorted(set(now) - set(promised))
    lines = [f"{path.name} differs; `make promises` accepts it:", *(f"- {line}" for line in gone)]
    assert promised == now, "\n".join([*lines, *(f"+ {line}" for line in new)])


def test_every_file_is_a_subject():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(subjects())
    assert all(len((FOLDER / f"{subject}.txt").read_text().splitlines()) > 10 for subject in subjects())
