"""What the product promises is what the files of this folder list; `make promises` writes them.

What a change takes away is taken away there by name, in the same commit, and has an entry in CHANGELOG.md.
"""

from __future__ import annotations

import os

import pytest

from tests.promises.collect import FOLDER, ROOT, subjects

ACCEPT = "ESTIMATOR_PIPELINE_ACCEPT_PROMISES"


def difference(promised: list[str], now: list[str]) -> str:
    """Return the lines that are taken away, then those that are added, as a diff; "" for equal lists."""
    gone, new = sorted(set(promised) - set(now)), sorted(set(now) - set(promised))
    parts = [f"taken away: {len(gone)}", *(f"-{line}" for line in gone)] if gone else []
    parts += [f"added: {len(new)}", *(f"+{line}" for line in new)] if new else []
    return "\n".join(parts or (["order or repeated lines"] if promised != now else []))


# Converted programs import classes of TensorFlow's; the other subjects are read without it.
@pytest.mark.parametrize(
    "subject", [pytest.param(name, marks=[pytest.mark.tf] * (name == "names")) for name in subjects()]
)
def test_nothing_is_taken_away_unseen(subject, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    path = FOLDER / f"{subject}.txt"
    now = sorted({" ".join(line.split()) for line in subjects()[subject]()} - {""})
    if os.environ.get(ACCEPT):
        path.write_text("".join(f"{line}\n" for line in now), encoding="utf-8")
    promised = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    differ = difference(promised, now)
    assert not differ, f"{path.name} differs; `make promises` accepts it, CHANGELOG.md names it:\n{differ}"


def test_every_file_is_a_subject():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(subjects())
    assert all(len((FOLDER / f"{subject}.txt").read_text().splitlines()) > 10 for subject in subjects())


def test_a_difference_names_each_line():
    assert difference(["a", "b"], ["b", "c"]).splitlines() == ["taken away: 1", "-a", "added: 1", "+c"]
    assert difference(["b", "a"], ["a", "b"]) and not difference(["a"], ["a"])
