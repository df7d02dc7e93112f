"""`report`: one file with the numbers of the run and what happened to it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from estimator_pipeline.launch.history import History
from estimator_pipeline.progress.progress_file import ProgressWriter
from tests.repository.test_stored import unpack
from tests.support.command_line import call
from tests.support.trained_runs import EVALUATIONS, write_run


class Page(HTMLParser):
    """The texts of a page, its charts, and what it refers to."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.references, self.charts, self.open = [], [], 0, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.charts += tag == "svg"
        self.open.append(tag)
        self.references += [
            value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset", "data", "action")
        ]
        for _, value in attributes:
            self.references += [part.split(")")[0] for part in (value or "").split("url(")[1:]]
        assert tag not in ("script", "link", "iframe", "object")

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            assert "url(" not in data and "@import" not in data
        elif data.strip():
            self.texts.append(" ".join(data.split()))


@pytest.fixture
def page(tmp_path):
    def page(run, *options):
        done = call("report", run, *options, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout == "report: report.html\n", done.stderr
        return Page((tmp_path / "report.html").read_text())

    return page


def test_the_page_has_all_numbers_and_loads_nothing(tmp_path, page):
    """A name in the job file is text, not markup."""
    write_run(tmp_path / "run", ["name=<b>digits</b>"])
    shown = page("run")
    assert "Run <b>digits</b>" in shown.texts
    numbers = {str(value) for step, metrics in EVALUATIONS.items() for value in (step, *metrics.values())}
    assert numbers <= set(shown.texts) and "20 of 20" in shown.texts
    assert shown.charts == 3 and all(reference.startswith(("#", "data:")) for reference in shown.references)
    assert any("learning_rate: 0.5" in text for text in shown.texts)


def test_launches_and_their_failures(tmp_path, page):
    """Of a launch with a restart, as supervisor and tasks write it."""
    logs = write_run(tmp_path / "run") / "logs" / "20260101-000000-00000000"
    history = History(logs)
    history.append("attempt_started", attempt=1)
    history.append("failed", attempt=1, task="worker:1", what="worker:1 failed with SIGKILL", error="<lost>")
    history.append("attempt_ended", attempt=1, reason="failed", seconds=61.0, step=13, checkpoint=10)
    history.append("first_step", attempt=2, task="worker:0", step=11, from_step=10)
    history.append("attempt_ended", attempt=2, reason="done", seconds=5.0, step=20, checkpoint=20)
    for attempt in (1, 2):
        (logs / f"attempt-{attempt}").mkdir()
    writer = ProgressWriter(logs / "attempt-2" / "worker-0.progress.jsonl")
    writer.emit("start", task="worker:0", process="node7-4711", max_steps=20)
    writer.emit("step", step=19, loss=0.5)
    writer.emit("end", status="diverged", error="ValueError: NaN")
    texts = page("run").texts
    assert "worker:1 failed with SIGKILL: <lost>" in texts and "1 min" in texts
    row = texts.index("worker:0")
    assert texts[row : row + 4] == ["worker:0", "node7", "19", "diverged: ValueError: NaN"]


def test_a_run_of_an_earlier_version_with_a_ledger(tmp_path, page):
    shown = page(unpack("estimator", tmp_path) / "model")
    assert any("all is well" in text for text in shown.texts) and "20" in shown.texts


def test_an_existing_file_is_kept(tmp_path, page):
    write_run(tmp_path / "run", evaluations={})
    (tmp_path / "report.html").write_text("mine")
    done = call("report", "run", cwd=tmp_path)
    assert done.returncode == 2 and "[file/exists]" in done.stderr
    assert (tmp_path / "report.html").read_text() == "mine"
    assert "None." in page("run", "--overwrite").texts
