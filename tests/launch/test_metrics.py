"""`--metrics FILE`: what a launch is at, in Prometheus's text format, whole at every moment."""

from __future__ import annotations

import builtins
import io
import json
import math
import re
import sys
from pathlib import Path

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch import LaunchOutcome, LineView, RestartLimits, supervise_command
from estimator_pipeline.launch.local.metrics import MetricsView, exposition
from estimator_pipeline.launch.local.plan import LaunchPlan
from estimator_pipeline.launch.local.view import View
from estimator_pipeline.progress.progress_file import TaskState
from estimator_pipeline.utils import durable_files
from tests.support.command_line import call

PREFIX = "estimator_pipeline_"
_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
_SAMPLE = re.compile(rf'({_NAME})\{{({_NAME}="(?:[^"\\\n]|\\[\\"n])*"(?:,{_NAME}="(?:[^"\\\n]|\\[\\"n])*")*)\}} (\S+)')
_LABEL = re.compile(rf'({_NAME})="((?:[^"\\\n]|\\[\\"n])*)"')
_VALUE = re.compile(r"NaN|[+-]Inf|-?\d+(\.\d+)?(e[+-]?\d+)?")
_ESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> value, of a file that keeps to every rule of the format, node_exporter's among them."""
    assert text.endswith("\n") and "\n\n" not in text and "\r" not in text
    found, families, family = {}, set(), ""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in families and line.split(" ", 3)[3]
            families.add(family)
            kind = re.fullmatch(rf"# TYPE {family} (gauge|counter)", next(lines))
            assert kind and (kind[1] == "counter") == family.endswith("_total")
            continue
        match = _SAMPLE.fullmatch(line)
        assert match and match[1] == family and _VALUE.fullmatch(match[3]), line
        labels = {name: re.sub(r"\\.", lambda one: _ESCAPED[one[0]], value) for name, value in _LABEL.findall(match[2])}
        key = (family.removeprefix(PREFIX), frozenset(labels.items()))
        assert key not in found and family.startswith(PREFIX) and "job" not in labels
        found[key] = float(match[3])
    return found


def only(found, name, **labels):
    return found.get((name, frozenset({"job_name": "digits", **labels}.items())))


class Job:
    """A view, two tasks, and a clock."""

    def __init__(self, folder: Path, inner: View | None = None) -> None:
        self.file, self.now = folder / "digits.prom", 0.0
        self.view = MetricsView(inner, self.file, clock=lambda: self.now)
        self.plan = LaunchPlan(run_id="r", tasks=(), ports=(), log_dir=folder, foreign=False)
        self.begin()

    def begin(self) -> None:
        self.tasks = [TaskState("worker:0", state="running"), TaskState("worker:1", state="running")]
        self.view.start(self.plan, self.tasks)

    def tell(self, event, task=0, **fields):
        told = {"time": 1700000000.25, "event": event, **fields}
        self.tasks[task].apply(told)
        self.view.event(self.tasks[task], told)

    def after(self, seconds):
        self.now += seconds
        self.view.refresh()
        return parsed(self.file.read_text())

    def end(self, reason):
        self.view.finish(
            LaunchOutcome(reason=reason, exit_code=0, seconds=1.0, run_id="r", log_dir=self.file.parent, tasks=())
        )
        return parsed(self.file.read_text())


def test_what_stands_in_the_file(tmp_path):
    job = Job(tmp_path)
    first = parsed(job.file.read_text())
    assert only(first, "task_running", task="worker:1") == 1 and only(first, "restarts_total") == 0
    assert only(first, "job_running") == 1 and not any(name == "global_step" for name, _ in first)
    job.tell("start", task_name="worker:0", max_steps=800)
    job.tell("step", step=123456789, loss=0.1, steps_per_sec=1e-7)
    job.tell("step", 1, step=3, loss=math.nan)
    job.tell("checkpoint", step=100)
    job.tell("evaluation", step=100, metrics={"accuracy": 0.9, "auc": "NaN", "global_step": 100, "by_class": [1, 2]})
    assert parsed(job.file.read_text()) == first == job.after(4.9)
    found = job.after(0.1)
    assert only(found, "global_step", task="worker:0") == 100 and only(found, "max_steps", task="worker:0") == 800
    assert only(found, "steps_per_second", task="worker:0") == 1e-7
    assert only(found, "loss", task="worker:0") == 0.1 and math.isnan(only(found, "loss", task="worker:1"))
    assert only(found, "checkpoint_step", task="worker:0") == only(found, "evaluation_step", task="worker:0") == 100
    metrics = {name: value for (family, labels), value in found.items() if family == "evaluation_metric"
               for key, name in labels if key == "metric"}  # fmt: skip
    assert metrics["accuracy"] == 0.9 and math.isnan(metrics["auc"]) and len(metrics) == 2
    assert only(found, "last_progress_timestamp_seconds", task="worker:1") == 1700000000.25
    for one in job.tasks:
        one.state = "failed"
    job.view.close()
    assert only(parsed(job.file.read_text()), "task_running", task="worker:0") == 0, "in the pause between attempts"
    job.begin()
    found = parsed(job.file.read_text())
    assert only(found, "restarts_total") == 1 and only(found, "task_running", task="worker:0") == 1
    found = job.end("done")
    assert only(found, "job_running") == 0 and only(found, "job_ended", reason="done") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["digits.prom"]


def test_a_launch_that_an_error_has_ended(tmp_path):
    job = Job(tmp_path)
    with pytest.raises(RuntimeError), job.view:
        raise RuntimeError
    found = parsed(job.file.read_text())
    assert only(found, "job_running") == 0 and only(found, "job_ended", reason="error") == 1


def test_every_name_and_every_number_can_be_said():
    said = 'a "b" \\ c\nd, e="f"} 1'
    values = [0.0, -1.5, 1e300, 1e-300, 123456789012.0, 2**60, True, math.inf, -math.inf]
    text = exposition(
        f"{PREFIX}x", "gauge", 'of\nall "kinds" \\', [({"n": str(i), "said": said}, v) for i, v in enumerate(values)]
    )
    found = parsed(text)
    assert list(found.values()) == values
    assert all(dict(labels)["said"] == said for _, labels in found)
    assert text.splitlines()[-2].endswith(" +Inf") and exposition("x", "gauge", "nothing", []) == ""


def test_a_lone_surrogate_in_the_name_of_a_metric_is_no_harm(tmp_path):
    job = Job(tmp_path)
    job.tell("evaluation", step=1, metrics=json.loads('{"\\ud800": 1.0}'))
    assert any(("metric", "?") in labels for _, labels in job.after(5.0))


def test_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"metrics .*cannot be written"):
        Job(tmp_path / "nowhere")
    done = call("supervise", "--metrics", tmp_path / "nowhere" / "a.prom", "--log-dir", tmp_path / "logs", "--", "true")
    assert done.returncode == 2 and "No such file or directory" in done.stderr and not (tmp_path / "logs").exists()
    shown = io.StringIO()
    job = Job(tmp_path, LineView(shown))
    before = job.file.read_text()
    job.tell("step", step=1)
    original = open

    def full(path, *arguments, **options):
        if str(path).endswith(durable_files.UNFINISHED):
            original(path, "wb").close()
            path = "/dev/full"
        return original(path, *arguments, **options)

    for _ in range(3):
        job.now += 5.0
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "open", full)
            job.view.refresh()
        assert job.file.read_text() == before, "it is whole, and of before"
        assert [path.name for path in tmp_path.iterdir()] == ["digits.prom"], "nothing half-written is left"
    told = f"warning: {job.file} could not be written (No space left on device); the job continues"
    assert shown.getvalue().count(told) == 1
    assert only(job.after(5.0), "global_step", task="worker:0") == 1, "there is room again"


def test_a_command_that_is_started_again(tmp_path):
    program = (
        "import os, sys, json\n"
        "with open(os.environ['ESTIMATOR_PIPELINE_PROGRESS'], 'a') as told:\n"
        "    told.write(json.dumps({'event': 'step', 'step': 7}) + '\\n')\n"
        "sys.exit(os.environ['ESTIMATOR_PIPELINE_ATTEMPT'] == '1')\n"
    )
    outcome = supervise_command(
        [sys.executable, "-c", program],
        log_dir=tmp_path / "logs",
        run_id="r",
        limits=RestartLimits(max_restarts=1, backoff=0.01),
        metrics=tmp_path / "digits.prom",
        timeout=50.0,
    )
    found = parsed((tmp_path / "digits.prom").read_text())
    assert outcome.ok and only(found, "restarts_total") == 1 and only(found, "job_ended", reason="done") == 1
    assert only(found, "global_step", task="command") == 7
