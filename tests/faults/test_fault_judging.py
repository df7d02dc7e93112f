"""The judge of the fault campaign: what is bad is found, each by itself, and nothing where all is well."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "tests" / "faults"))
import fault_judging
import fault_ledger
import fault_report
from blows import records_of, replaced, steps_lost, turned, wrong_code
from campaign import _least_met, began_anew
from fault_jobs import Fault, Job, Launch, Shape
from fault_ledger import Made

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sources.tfrecord_index import IndexedTFRecords
from tests.inputs.test_record_index import framed

METRICS = {"accuracy": 0.96, "loss": 0.13, "global_step": 600}
ALONE = Shape("one process", ("train.max_steps=600",), (), workers=1)


def write(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def model_dir_of(folder, *, metrics=METRICS):
    """What a job of 600 steps leaves."""
    for step in (480, 600):
        for suffix in (".index", ".meta", ".data-00000-of-00001"):
            write(folder / f"model.ckpt-{step}{suffix}", "values")
    write(folder / "checkpoint", 'model_checkpoint_path: "model.ckpt-600"\n')
    write(folder / "estimator_pipeline" / "training.json", {"state": "finished"})
    result = {"global_step": 600, "metrics": metrics}
    write(folder / "estimator_pipeline" / "result.json", {"result": result})
    for stamp in ("1700000001", "1700000002"):
        write(folder / "export" / "latest" / stamp / "saved_model.pb", "graph")
    write(folder / "export" / "latest.last.json", {"checkpoint": "model.ckpt-600", "export": "1700000002"})


def event(name, attempt, **fields):
    return {"time": 1.0, "attempt": attempt, "event": name, **fields}


def history_of(logs):
    """Of two attempts: the first one was killed."""
    told = {"reason": "failed", "step": 300, "checkpoint": 240}, {"reason": "done", "step": 600, "checkpoint": 480}
    events = [
        event("attempt_started", 1, run_id="a", log_dir="x"),
        event("first_step", 1, step=1),
        event("failed", 1, task="worker:0"),
        event("attempt_ended", 1, **told[0]),
        event("restart_in", 1, seconds=0.2),
        event("attempt_started", 2, run_id="a-r1", log_dir="y"),
        event("attempt_ended", 2, **told[1]),
        event("done", 2, attempts=2),
    ]
    attempts = [{"number": n + 1, "run_id": name, **told[n]} for n, name in enumerate(("a", "a-r1"))]
    summary = {"run_id": "a", "reason": "done", "exit_code": 0, "restarts": 1, "attempts": attempts}
    write(logs / "events.jsonl", "".join(json.dumps(one) + "\n" for one in events))
    write(logs / "summary.json", summary)
    return events, summary


@pytest.fixture
def job(tmp_path):
    """One that ended well; its launcher was killed once, and left its last event broken off."""
    job = Job(tmp_path / "job", ALONE, {})
    first = Launch(job.log_disk / "1", tmp_path / "1.out", returncode=-9, asked=signal.SIGKILL)
    last = Launch(job.log_disk / "2", tmp_path / "2.out", returncode=0)
    write(first.logs / "events.jsonl", json.dumps(event("attempt_started", 1, run_id="z", log_dir="z")) + '\n{"ti')
    history_of(last.logs)
    job.launches += [first, last]
    job.calm = time.time()
    model_dir_of(job.model_dir)
    return job


def found(job, reference=None):
    """Everything that is judged without other processes."""
    problems = [
        what for launch in job.launches for what in fault_judging.of_history(launch, last=launch is job.launches[-1])
    ]
    problems += fault_judging.of_result(job, reference)
    return problems + fault_judging.of_exports(job) + fault_judging.of_leftovers(job)


def one(problems, *words):
    """There is one problem, and it has these words."""
    assert len(problems) == 1 and all(word in problems[0] for word in words), problems


# -- well --------------------------------------------------------------------------------------------------------------


def test_nothing_is_found_where_all_is_well(job, tmp_path):
    model_dir_of(tmp_path / "reference")
    assert found(job, tmp_path / "reference") == []


def test_what_nothing_promises_to_take_away_is_counted_alone(job):
    part = job.model_dir / "estimator_pipeline" / "training.json.host.7.1.tmp"
    write(part, "{")
    os.utime(part, (1, 1))
    assert found(job) == []
    assert fault_judging.left_behind(job) == {"half rendezvous files": 1}


# -- the history -------------------------------------------------------------------------------------------------------


def without(events, name, attempt):
    return [one for one in events if (one["event"], one["attempt"]) != (name, attempt)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda events: events[:-1], "does not end with the run's end"),
        (lambda events: [*events, event("gave_up", 2)], "told once"),
        (lambda events: [*events[:-1], event("timeout", 2)], "ends with timeout"),
        (lambda events: without(events, "restart_in", 1), "no event says why"),
        (lambda events: without(events, "failed", 1), "no event says of whom"),
        (lambda events: without(events, "attempt_ended", 1), "the end of attempt 1 is not told"),
        (lambda events: [{**one, "attempt": 3} if one is events[5] else one for one in events], "are no row"),
    ],
)
def test_a_history_that_leaves_something_out(job, change, words):
    logs = job.launches[-1].logs
    events = change(history_of(logs)[0])
    write(logs / "events.jsonl", "".join(json.dumps(one) + "\n" for one in events))
    problems = found(job)
    assert any(words in problem for problem in problems), problems


def test_a_line_that_cannot_be_read(job):
    path = job.launches[-1].logs / "events.jsonl"
    path.write_text(path.read_text().replace('"restart_in"', '"restart_in', 1))
    assert "events.jsonl: line 5 cannot be read" in found(job)
    # Where the disk was full that is so, and what else was told cannot be held against it.
    job.launches[-1].log_full = True
    assert found(job) == []
    path.write_text("")
    assert any("does not end" in problem for problem in found(job))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"restarts": 0}, "0 restarts"),
        ({"exit_code": 1}, "exit code 1"),
        ({"reason": "failed"}, "says failed"),
        ({"attempts": []}, "has the attempts []"),
        ({"attempts": None}, "cannot be read"),
    ],
)
def test_a_summary_that_says_otherwise(job, change, words):
    logs = job.launches[-1].logs
    write(logs / "summary.json", {**history_of(logs)[1], **change})
    one(found(job), words)


def test_a_summary_that_is_not_there_or_half_written(job):
    logs = job.launches[-1].logs
    (logs / "summary.json").unlink()
    one(found(job), "summary.json cannot be read")
    write(logs / ".summary.json.7", "{")
    assert ".summary.json.7 was left" in found(job)


def test_the_end_of_a_launcher_that_was_asked(job):
    launch = job.launches[0]
    launch.asked, launch.returncode = signal.SIGTERM, 75
    ended = {"reason": "preempted", "step": 5, "checkpoint": 5}
    events = [
        event("attempt_started", 1, run_id="z", log_dir="z"),
        event("attempt_ended", 1, **ended),
        event("gave_up", 1, why="stopped by SIGTERM"),
    ]
    attempts = [{"number": 1, "run_id": "z", **ended}]
    write(
        launch.logs / "summary.json",
        {"run_id": "z", "reason": "preempted", "exit_code": 75, "restarts": 0, "attempts": attempts},
    )
    write(launch.logs / "events.jsonl", "".join(json.dumps(one) + "\n" for one in events))
    assert found(job) == []
    events[-1]["why"] = "bad input"
    write(launch.logs / "events.jsonl", "".join(json.dumps(one) + "\n" for one in events))
    one(found(job), "bad input", "SIGTERM")


def test_the_end_of_a_launcher_that_refused(job):
    launch = job.launches[0]
    launch.asked, launch.refused, launch.returncode = None, True, 2
    ended = {"reason": "failed", "step": 300, "checkpoint": 240}
    events = [
        event("attempt_started", 1, run_id="z", log_dir="z"),
        event("failed", 1, task="worker:0"),
        event("attempt_ended", 1, **ended),
        event("gave_up", 1, why="bad input"),
    ]
    attempts = [{"number": 1, "run_id": "z", **ended}]
    summary = {"run_id": "z", "reason": "failed", "exit_code": 2, "restarts": 0, "attempts": attempts}
    write(launch.logs / "summary.json", summary)
    write(launch.logs / "events.jsonl", "".join(json.dumps(one) + "\n" for one in events))
    assert found(job) == []
    events[-1]["event"] = "timeout"
    write(launch.logs / "events.jsonl", "".join(json.dumps(one) + "\n" for one in events))
    one(found(job), "ends with timeout", "it gave up")
    # One that nobody refused has no reason to give up.
    launch.refused = False
    events[-1]["event"] = "gave_up"
    write(launch.logs / "events.jsonl", "".join(json.dumps(one) + "\n" for one in events))
    one(found(job), "ends with gave_up")


# -- the model directory -----------------------------------------------------------------------------------------------


def test_metrics_that_differ_by_a_bit(job, tmp_path):
    model_dir_of(tmp_path / "reference", metrics={**METRICS, "loss": 0.13 + 1e-9})
    one(found(job, tmp_path / "reference"), "undisturbed")
    # With another number of workers they are those but for rounding.
    job.resized = True
    assert found(job, tmp_path / "reference") == []
    model_dir_of(tmp_path / "reference", metrics={**METRICS, "loss": 0.2})
    one(found(job, tmp_path / "reference"), "undisturbed")


@pytest.mark.parametrize(
    ("name", "document", "words"),
    [
        ("training.json", {"state": "running"}, "says running"),
        ("result.json", {"result": {"global_step": 480, "metrics": METRICS}}, "of step 480"),
        ("result.json", {"result": {"global_step": 600, "metrics": {}}}, "metrics are {}"),
        ("result.json", {"result": {"global_step": 600, "metrics": {"loss": float("nan")}}}, "nan"),
        ("result.json", "{", "cannot be read"),
    ],
)
def test_a_result_that_is_none(job, name, document, words):
    write(job.model_dir / "estimator_pipeline" / name, document)
    one(found(job), words)


def test_the_last_step_of_workers_that_step_on_their_own(job):
    def ends_at(step):
        write(job.model_dir / f"model.ckpt-{step}.index", "values")
        result = {"global_step": step, "metrics": METRICS}
        write(job.model_dir / "estimator_pipeline" / "result.json", {"result": result})
        return fault_judging.of_result(job, None)

    one(ends_at(602), "of step 602")
    job.shape = dataclasses.replace(ALONE, exact=False)
    assert ends_at(604) == []
    one(ends_at(605), "of step 605")


def test_a_last_checkpoint_that_is_gone(job):
    (job.model_dir / "model.ckpt-600.index").unlink()
    assert any("the last checkpoint of 480" in problem for problem in found(job))


def test_an_export_that_was_lost(job):
    shutil.rmtree(job.model_dir / "export" / "latest" / "1700000002")
    one(found(job), "1700000002 is not there")
    shutil.rmtree(job.model_dir / "export")
    one(found(job), "cannot be read")


def test_exports_that_are_not_what_they_should_be(job):
    latest = job.model_dir / "export" / "latest"
    write(latest / "1700000000" / "saved_model.pb", "graph")
    one(found(job), "3 exports are kept")
    shutil.rmtree(latest / "1700000000")
    (latest / "1700000001" / "saved_model.pb").unlink()
    one(found(job), "without a model", "1700000001")
    write(latest / "1700000001" / "saved_model.pb", "graph")
    write(job.model_dir / "export" / "latest.last.json.unfinished", "{")
    one(found(job), "latest.last.json.unfinished")
    (job.model_dir / "export" / "latest.last.json.unfinished").unlink()
    write(latest / "temp-1700000003" / "saved_model.pb", "half")
    one(found(job), "temp-1700000003")
    shutil.rmtree(latest / "temp-1700000003")
    write(job.model_dir / "export" / "latest.last.json", {"checkpoint": "model.ckpt-480", "export": "1700000002"})
    one(found(job), "of model.ckpt-480")


def test_checkpoints_that_were_set_aside(job):
    aside = job.model_dir / "damaged" / "20260101-000000"
    write(aside / "model.ckpt-360.index", "cut")
    one(found(job), "though nothing had damaged them", "model.ckpt-360")
    job.damaged |= {"model.ckpt-360"}
    assert found(job) == []
    job.cut |= {"model.ckpt-360", "model.ckpt-420"}
    one(found(job), "not set aside", "model.ckpt-420")


@pytest.mark.parametrize(
    "name",
    [
        "model.ckpt-480_temp",
        "model.ckpt-480.index.tempstate123",
        "checkpoint.77.tmp",
        "checkpoint.tmp0123456789abcdef",
        "estimator_pipeline/training.json.host.7.1.tmp",
    ],
)
def test_unfinished_files(job, name):
    job.calm = 0.0
    write(job.model_dir / name, "half")
    one(found(job), "unfinished files", name.rpartition("/")[2])


def test_a_job_that_does_not_end_well_is_told_by_its_last_words(job, tmp_path):
    job.launches[-1].returncode = 1
    (tmp_path / "2.out").write_text("error: no checkpoint can be restored\n")
    job.launches[-1].process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    one(fault_judging.judge(job, None).problems, "exit code 1", "no checkpoint can be restored")


# -- weights and exports -----------------------------------------------------------------------------------------------


def test_weights_and_exports_that_differ(tmp_path):
    """With TensorFlow: a bit of a weight, an export of another checkpoint, one that is torn, one without an answer."""
    from tests.support.processes import tensorflow_with_three_cpus

    tf = tensorflow_with_three_cpus()
    from fault_values import look

    def saved(folder, value, exported=None):
        step = tf.Variable(5, dtype=tf.int64)
        tf.train.Checkpoint(kernel=tf.Variable([value, 1.0]), step=step).save(str(folder / "ckpt"))
        module = tf.Module()
        module.kernel, module.step = tf.Variable([value if exported is None else exported, 1.0]), step
        answer = tf.function(lambda x: {"y": x * module.kernel[0]}).get_concrete_function(x=tf.TensorSpec([None]))
        export = folder / "export" / "latest" / "1700000001"
        tf.saved_model.save(module, str(export), signatures={"serving_default": answer})
        return str(folder), [str(export)]

    def problems(job, reference, *, near=False):
        found = look({"model_dir": job[0], "exports": job[1], "near": near, "reference": reference[0],
                      "reference_exports": reference[1]})  # fmt: skip
        return found["problems"]

    whole, same = saved(tmp_path / "whole", 0.5), saved(tmp_path / "same", 0.5)
    assert problems(same, whole) == []
    other = saved(tmp_path / "other", 0.5 + 1e-7)
    told = problems(other, whole)
    assert "weights differ" in told[0] and "kernel" in told[0]
    assert problems(other, whole, near=True) == []
    assert problems(saved(tmp_path / "far", 0.6), whole, near=True)
    one(problems(saved(tmp_path / "old", 0.5, exported=0.4), whole)[:1], "other values than the last checkpoint")
    one(problems(saved(tmp_path / "nan", 0.5, exported=float("nan")), whole)[:1], "not finite")
    (tmp_path / "same/export/latest/1700000001/variables/variables.index").write_bytes(b"cut")
    one(problems(same, whole), "export 1700000001")


# -- parameter servers -------------------------------------------------------------------------------------------------


def attempts(**change):
    """Asked to end after 307 steps; killed, with all that it made lost; asked again; done."""
    two = ("chief:0", "worker:0")

    def made(name, begins, starts, steps, reason):
        pairs = (dict(zip(two, numbers, strict=True)) for numbers in ((begins, begins), starts, steps))
        return Made(name, *pairs, reason)

    first = made("a", 0, (0, 0), (152, 155), "preempted")
    for name, value in change.items():
        setattr(first, name, value)
    return [
        first,
        made("b", 307, (153, 153), (59, 1), "failed"),
        made("c", 307, (153, 153), (173, 120), "done"),
    ]


def check(**change):
    return fault_ledger.check(attempts(**change), final=600, last=606, records_per_step=60)


def test_updates_of_parameter_servers():
    problems, most = check()
    assert problems == []
    assert most == {"updates lost when asked": 0, "updates lost when killed": 60, "updates beyond the end": 0,
                    "updates not counted": 0, "records left out": 60, "records read again": 120}  # fmt: skip


def test_updates_that_were_lost_or_never_made():
    more = {"chief:0": 152, "worker:0": 158}
    one(check(steps=more)[0], "3 were lost")
    # Nobody has waited for that worker; and a ledger whose disk was full may have ended before training.
    assert check(steps=more, slow=True)[0] == check(steps=more, starved=True)[0] == []
    fewer = {"chief:0": 152, "worker:0": 100}
    one(check(steps=fewer)[0], "its checkpoint has 307")
    assert check(steps=fewer, starved=True)[0] == []
    # A task that dies between a step and its count has one more than it has counted.
    assert check(steps={"chief:0": 151, "worker:0": 154}, reason="failed")[0] == []
    one(check(steps={"chief:0": 151, "worker:0": 153}, reason="failed")[0], "its checkpoint has 307")
    # The checkpoint at which it began had an update after the step of its name.
    assert check(steps={"chief:0": 151, "worker:0": 153}, reason="failed", first=2)[0] == []
    (problem,), _ = check(steps={"chief:0": 151, "worker:0": 153}, reason="failed", first=1)
    assert "its checkpoint has 307" in problem


def test_updates_after_the_final_checkpoint():
    def ends_with(steps):
        first, killed, done = attempts()
        done.steps["worker:0"] = steps
        return fault_ledger.check([first, killed, done], final=600, last=606, records_per_step=60)

    problems, most = ends_with(126)
    assert problems == [] and most["updates beyond the end"] == 6
    one(ends_with(127)[0], "7 were lost")


def test_a_worker_that_begins_elsewhere_than_at_its_share():
    one(check(starts={"chief:0": 0, "worker:0": 9})[0], "worker:0", "9", "share")
    # It came late, and found a later checkpoint.
    assert check(starts={"chief:0": 0, "worker:0": 9}, begins={"chief:0": 0, "worker:0": 18})[0] == []


# -- the campaign's own ------------------------------------------------------------------------------------------------


def test_exit_codes_of_a_launcher_that_got_a_signal():
    assert wrong_code(signal.SIGTERM, 75, unready=False) == wrong_code(signal.SIGINT, 130, unready=False) == ""
    assert wrong_code(signal.SIGKILL, -9, unready=False) == wrong_code(signal.SIGTERM, 143, unready=True) == ""
    assert "SIGTERM ended with 143" in wrong_code(signal.SIGTERM, 143, unready=False)
    assert "SIGINT ended with 1" in wrong_code(signal.SIGINT, 1, unready=True)


def test_steps_that_a_stop_loses():
    def lost(reason, step, checkpoint, logs="", *, killed=False):
        return steps_lost({"reason": reason, "step": step, "checkpoint": checkpoint}, logs, killed=killed)

    assert lost("preempted", 300, 300) == lost("interrupted", 300, 301) == lost("done", 600, 480) == ""
    assert "lost 60 steps, and said 0" in lost("preempted", 300, 240)
    said = "worker:0: training is saved after step 240, in model.ckpt-240; 60 later steps are lost"
    # Nothing stands in the way of a stop where no task was killed.
    assert "lost 60 steps" in lost("preempted", 300, 240, said)
    assert lost("preempted", 300, 240, said, killed=True) == lost("failed", 300, 240, killed=True) == ""
    assert "lost 61 steps, and said 60" in lost("preempted", 301, 240, said, killed=True)
    assert "ended as failed" in lost("failed", 300, 300) and "ended as hung" in lost("hung", 300, 300, killed=True)


def test_training_that_begins_anew():
    begun = [event("first_step", 1, from_step=240, step=241), event("first_step", 2, from_step=0, step=1)]
    assert began_anew(begun, 240) == began_anew(begun, 120) == began_anew([], 240) == ""
    assert began_anew(begun, 360) == "training went on from step 240, and there was a checkpoint of step 360"
    assert began_anew([event("first_step", 1, from_step=0, step=400)], 360)
    apart = [event("first_step", 1, from_step=None, step=361)]
    assert began_anew(apart, 360) == "" and "from step 361" in began_anew(apart, 480)


def test_records_that_are_spoilt(tmp_path):
    """Each fault is the one that is meant, as the readers of the package see it."""
    whole, path, rng = b"".join(framed(bytes([number]) * 20) for number in range(9)), tmp_path / "a", random.Random(1)

    def read(content):
        path.write_bytes(content)
        return IndexedTFRecords([str(path)], compression="", cache=None, memory_limit=0).check(str(path))

    for _ in range(20):
        content, words = turned(whole, path.name, rng)
        with pytest.raises(InputError) as raised:
            read(content)
        assert all(word in str(raised.value) for word in words)
        assert len(content) == len(whole) and len(records_of(content)) == 9
    content, words = replaced(whole, path.name, rng)
    assert read(content) == read(whole) == 9 and len(content) == len(whole) and content != whole
    assert words == ["a has other content than when this run began"]


def test_what_was_met_least_comes_first_by_its_weight():
    shape = Shape("any", (), ("kill chief", "kill worker", "kill ps"), weights={"kill ps": 3.0})
    met = [Fault(n, 1, "any", "kill chief", landed=True) for n in range(2)]
    met += [Fault(n, 1, "any", "kill ps", landed=True) for n in range(5)]
    met += [Fault(n, 1, "any", "kill worker", landed=n < 1) for n in range(4)]
    for seed in range(5):
        assert _least_met(shape.kinds, shape, met, random.Random(seed)) == ["kill worker", "kill ps", "kill chief"]
    first = Counter(_least_met(shape.kinds, shape, [], random.Random(seed))[0] for seed in range(300))
    assert first["kill ps"] > first["kill chief"] + first["kill worker"] > 0


def test_the_report_tells_commit_seed_and_what_was_measured():
    faults = [Fault(1, 1, "one process", "kill chief", seconds=3.0, landed=True)]
    faults += [
        Fault(2, 1, "one process", "full disk", problem="ledger: twice", measured={"half rendezvous files": 2.0})
    ]
    text = fault_report.report(faults, seed=7, versions="commit 1234567; TensorFlow 2.21.0, Python 3.11")
    for words in ("Seed 7; commit 1234567; TensorFlow 2.21.0", "| kill chief | 1 | 1 | 3.0 | 3.0 | nothing |",
                  "job 1: ledger: twice", "| half rendezvous files | 2 | 1 | 1 |", "FAULTS=2 SEED=7"):  # fmt: skip
        assert words in text
    assert "commit " in fault_report.versions() and "TensorFlow" in fault_report.versions()
