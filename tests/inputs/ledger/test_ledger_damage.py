"""What spoils a ledger from without: a full disk at its start, a kill as its file is made, clocks that jump."""

from __future__ import annotations

import errno
import os
import random

import pytest

from estimator_pipeline.cluster.resolution import RUN_ID_VARIABLE
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs import ledger
from estimator_pipeline.inputs.ledger import file_format as blocks
from tests.inputs.ledger.test_ledger import kinds, train


def _no_space(*_: object, **__: object):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# A disk that is full when the file is made ----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "pwrite", "half of it"])
def test_a_full_disk_at_the_start_is_one_warning_and_no_file(tmp_path, monkeypatch, warnings, call):
    write = os.pwrite
    with monkeypatch.context() as full:
        if call == "half of it":
            full.setattr(os, "pwrite", lambda target, data, at: write(target, data[:20], at))
        else:
            full.setattr(os, call, _no_space)
        train(tmp_path, 12, workers=1)
    (warning,) = warnings
    assert warning.startswith(f"No ledger of worker:0 is written in {tmp_path}; the training continues: ")
    assert list(tmp_path.iterdir()) == []
    # There is room again: the next run keeps its own, and nothing is left of this one.
    train(tmp_path, 20, workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["worker-0.1.ledger"]
    report = ledger.check(tmp_path)
    assert report.well and not report.notes, str(report)


def test_a_run_that_had_no_room_for_its_ledger_is_told(tmp_path, monkeypatch, warnings):
    train(tmp_path, 20)
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", _no_space)
        train(tmp_path, 30, start=20)
    assert len(warnings) == 2
    train(tmp_path, 40, start=30)
    report = ledger.check(tmp_path)
    assert "there is no ledger of the steps 21 to 30" in str(report) and "missing" in kinds(report)


def test_a_full_disk_on_which_no_folder_can_be_made(tmp_path, monkeypatch, warnings):
    with monkeypatch.context() as full:
        full.setattr("pathlib.Path.mkdir", _no_space)
        writer = ledger.LedgerWriter(tmp_path / "ledger", task="worker:0", tasks=["worker:0"])
    writer.begin(0)
    writer.step()
    writer.end()
    assert len(warnings) == 1 and "No space left on device" in warnings[0]
    assert not (tmp_path / "ledger").exists()


def test_another_error_before_the_training_is_bad_input_and_later_it_is_a_warning(tmp_path, monkeypatch, warnings):
    def read_only(*_: object, **__: object):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as before:
        before.setattr("pathlib.Path.mkdir", read_only)
        with pytest.raises(ConfigError, match=r"the ledger cannot be written to .*: Read-only file system"):
            ledger.LedgerWriter(tmp_path, task="worker:0", tasks=["worker:0"])
    writer = ledger.LedgerWriter(tmp_path, task="worker:0", tasks=["worker:0"])
    monkeypatch.setattr(os, "open", read_only)
    writer.begin(0)
    writer.step()
    writer.end()
    assert len(warnings) == 1 and warnings[0].endswith("the training continues: Read-only file system")


# A kill as the file is made -------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 5, 8, 16, 40])
def test_a_file_in_which_nothing_was_counted_is_a_note(tmp_path, length):
    train(tmp_path, 12, workers=1)
    data = (tmp_path / "worker-0.1.ledger").read_bytes()
    # As its header is, of a process that was killed before its first step.
    begun = data[: blocks.COUNTER] + bytes(blocks.BEGIN - blocks.COUNTER) + data[blocks.BEGIN :]
    (tmp_path / "worker-0.2.ledger").write_bytes(begun[:length])
    train(tmp_path, 20, workers=1, start=12)
    report = ledger.check(tmp_path)
    assert report.well, str(report)
    assert report.notes == ["worker-0.2.ledger is empty: its process ended before it counted a step"]
    assert [path.name for path in ledger.read(tmp_path).unbegun] == ["worker-0.2.ledger"]


@pytest.mark.parametrize("spoilt", ["header", "other"])
def test_a_file_that_has_counted_and_cannot_be_read_is_a_finding(tmp_path, spoilt):
    train(tmp_path, 12, workers=1)
    path = tmp_path / "worker-0.1.ledger"
    data = path.read_bytes()
    (tmp_path / "worker-0.2.ledger").write_bytes(data[:20] if spoilt == "header" else b"something else\n")
    report = ledger.check(tmp_path)
    (finding,) = report.findings
    assert finding.kind == "missing" and finding.text.startswith("worker-0.2.ledger cannot be read: ")


# Clocks that jump -----------------------------------------------------------------------------------------------


def _at(monkeypatch, seconds):
    import time

    monkeypatch.setattr(time, "time", lambda: float(seconds))


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("times", [(1000, 2000, 3000), (1000, 5000, 600), (5000, 1000, 600), (9, 8, 7)])
def test_two_workers_then_one_then_two_whatever_the_clock_says(tmp_path, monkeypatch, times, ids):
    """The order of a task's own files says what came first. A clock is asked where that leaves a choice alone."""
    runs = [(2, 0, 8), (1, 8, 16), (2, 16, 24)]
    for number, (at, (workers, start, steps)) in enumerate(zip(times, runs, strict=True)):
        _at(monkeypatch, at)
        if ids:
            monkeypatch.setenv(RUN_ID_VARIABLE, f"run-{number}")
        else:
            monkeypatch.delenv(RUN_ID_VARIABLE, raising=False)
        train(tmp_path, steps, workers=workers, start=start)
    found = ledger.read(tmp_path)
    assert [(run.start, run.counts, sorted(run.segments)) for run in found.runs] == [
        (0, 8, ["worker:0", "worker:1"]), (8, 16, ["worker:0"]), (16, 24, ["worker:0", "worker:1"]),
    ]  # fmt: skip
    report = ledger.check(found)
    assert report.well, str(report)


def test_the_run_id_tells_who_trained_together_where_clocks_mislead(tmp_path, monkeypatch):
    """worker:1 died before the first training began, which both make again; its clock is that of the first one."""
    for run_id, at, only, steps in (("a", 100, [0], 6), ("b", 900, [0], 12), ("b", 101, [1], 12)):
        monkeypatch.setenv(RUN_ID_VARIABLE, run_id)
        _at(monkeypatch, at)
        train(tmp_path, steps, only=only)
    found = ledger.read(tmp_path)
    assert [(run.start, run.end, run.counts, sorted(run.segments)) for run in found.runs] == [
        (0, 6, 0, ["worker:0"]), (0, 12, 12, ["worker:0", "worker:1"]),
    ]  # fmt: skip
    assert ledger.check(found).well, str(ledger.check(found))


def test_restarts_with_clocks_at_random(tmp_path, monkeypatch):
    """Any number of workers in each run, and a clock of its own for each worker and run."""
    rng = random.Random(7)
    for case in range(20):
        folder, start, expected = tmp_path / str(case), 0, []
        for number in range(5):
            workers, steps = rng.randint(1, 3), start + rng.randint(3, 9)
            monkeypatch.setenv(RUN_ID_VARIABLE, f"run-{number}")
            for worker in rng.sample(range(workers), workers):
                _at(monkeypatch, rng.randint(0, 10**6))
                train(folder, steps, workers=workers, start=start, only=[worker])
            expected.append((start, steps, workers))
            start = steps - rng.randint(0, 2)
        found = ledger.read(folder)
        assert [(run.start, run.end, len(run.segments)) for run in found.runs] == expected, case
        assert ledger.check(found).well, str(ledger.check(found))


@pytest.mark.parametrize("skew", [0, 500, -500])
def test_what_was_lost_does_not_count_where_a_worker_made_no_step_in_the_start_after(tmp_path, monkeypatch, skew):
    """Workers that step on their own: the second start goes on from where the first one began, and worker:1 is killed
    in it before its first step. The third one begins beyond."""
    for number, (start, steps) in enumerate([(0, {0: 9, 1: 30}), (0, {0: 40}), (40, {0: 25, 1: 26})]):
        monkeypatch.setenv(RUN_ID_VARIABLE, f"run-{number}")
        for worker, last in steps.items():
            _at(monkeypatch, 1000 + 100 * number + worker * skew)
            train(tmp_path, last, only=[worker], start=start, asynchronous=True)
    found = ledger.read(tmp_path)
    counts = {(run.segments[task].run_id, task): run.counts for run in found.runs for task in run.segments}
    assert counts == {("run-0", "worker:0"): 0, ("run-0", "worker:1"): 0, ("run-1", "worker:0"): 20,
                      ("run-2", "worker:0"): 25, ("run-2", "worker:1"): 26}  # fmt: skip
    report = ledger.check(found)
    assert report.well and [(one.steps, one.again) for one in report.shares] == [(25, 29), (6, 30)], str(report)


def test_a_ledger_without_run_ids_is_read_by_its_times(tmp_path, monkeypatch):
    """As it was written before there were any: `run` is not in its segments."""
    monkeypatch.delenv(RUN_ID_VARIABLE, raising=False)
    for at, only, steps in ((100, [0], 6), (900, [0], 12), (901, [1], 12)):
        _at(monkeypatch, at)
        train(tmp_path, steps, only=only)
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        old = data[: blocks.BEGIN]
        for one in blocks.parse(data):
            payload = one.payload.replace(b', "run": null', b"") if one.kind == blocks.SEGMENT else one.payload
            old += blocks.block(one.kind, payload)
        assert len(old) < len(data)
        path.write_bytes(old)
    found = ledger.read(tmp_path)
    assert [(run.end, run.counts, len(run.segments)) for run in found.runs] == [(6, 0, 1), (12, 12, 2)]
    assert ledger.check(found).well
