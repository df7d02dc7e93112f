"""The ledger as files: written, broken off, read, checked with faults planted in it. No TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import re
import resource

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs import ledger
from estimator_pipeline.inputs.ledger import file_format as blocks
from estimator_pipeline.inputs.ledger import plans
from estimator_pipeline.inputs.ledger.hashing import Sparse
from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.sampler import IndexSampler
from estimator_pipeline.inputs.sharding import ShardOptions, train_shards

RECORDS = 50
PARTS = (20, 13, 17)
BATCH = 12


def facts(workers, worker, *, policy="data", local=1, start=0, seed=3, batch=BATCH, asynchronous=False, **order):
    whole = IndexSampler(RECORDS, seed=seed, **order)
    who = ShardOptions(workers, worker, local if asynchronous else workers * local, asynchronous)
    plan = train_shards(PARTS, who, global_batch=batch, sampler=whole, policy=policy)
    told = plans.facts_of(
        plan, sampler=whole, part_records=PARTS, options=InputOptions(global_batch_size=batch), start_step=start
    )
    return plan, told


def train(folder, steps, *, workers=2, start=0, ahead=4, spoil=None, end=True, only=None, local=1, **data):
    """Writes what `workers` would write that train from `start` to `steps` and have fetched `ahead` more.

    `spoil(worker, step, ids)` gives what a worker reads in truth.
    """
    tasks = [f"worker:{w}" for w in range(workers)]
    for w in range(workers) if only is None else only:
        plan, told = facts(workers, w, start=start, local=local, **data)
        writer = ledger.LedgerWriter(folder, task=tasks[w], tasks=tasks, asynchronous=plan.replicas.asynchronous)
        stream = writer.stream(
            {"kind": "records", "plan": told, "pipelines": workers, "pipeline": w, "batches_per_step": local}
        )
        writer.begin(0 if plan.replicas.asynchronous else start)
        first = plan.first_step(start)
        for step in range(first, steps + ahead):
            if plan.full_steps is not None and step >= plan.full_steps:
                break
            ids = plan.ids(step)
            ids = plans.global_ids(ids.ravel(), plan.parts, PARTS).reshape(ids.shape)
            if spoil is not None:
                ids = spoil(w, step + 1, ids.copy())
            stream(step == first, ids)
        for batch in plan.tail_ids(start)[: steps * local]:
            stream(False, [plans.global_ids(batch, plan.parts, PARTS)])
        for _ in range(first, steps):
            writer.step()
        if end:
            writer.end()


def kinds(report):
    return [finding.kind for finding in report.findings]


# The file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(64, dtype=np.int64).reshape(4, 16),
        np.random.default_rng(0).integers(0, 1437, (64, 32)),
        np.array([[2**48, 0], [5, 2**48 - 1]]),
        np.full((3, 4), 7),
        np.arange(20)[::-1].reshape(2, 10) + 2**40,
        np.random.default_rng(1).integers(0, 2**64, (2, 5), dtype=np.uint64),
        np.empty((2, 0), dtype=np.int64),
        [np.array([3, 1]), np.empty(0, np.int64), np.array([9])],
    ],
    ids=["row", "shuffled", "far apart", "one", "backwards", "fingerprints", "empty", "uneven"],
)
def test_ids_come_back(ids):
    rows = blocks.decode_rows(blocks.encode_rows(3, 40, ids))
    assert (rows.generation, rows.first) == (3, 40)
    assert rows.sizes.tolist() == [len(batch) for batch in ids]
    expected = np.concatenate([np.asarray(batch) for batch in ids])
    assert rows.ids.tolist() == expected.tolist() and rows.ids.dtype == expected.dtype


def test_bytes_for_each_record():
    """What docs/guides/ledger.md says it costs."""
    shuffled = np.concatenate([np.random.default_rng(n).permutation(1437) for n in range(3)])[:4096].reshape(64, 64)
    assert len(blocks.encode_rows(0, 0, shuffled)) / shuffled.size < 1.6
    in_a_row = np.arange(64 * 64).reshape(64, 64)
    assert len(blocks.encode_rows(0, 0, in_a_row)) / in_a_row.size < 0.05
    prints = np.random.default_rng(0).integers(0, 2**64, (1, 64), dtype=np.uint64)
    assert len(blocks.block(blocks.ROWS, blocks.encode_rows(0, 0, prints))) / 64 < 9


def test_what_was_fetched_and_not_trained_on_does_not_count(tmp_path):
    train(tmp_path, 7, ahead=30)
    found = ledger.read(tmp_path)
    assert found.last_step == 7 and found.ids(8) == {}
    for step in range(1, 8):
        for w in range(2):
            expected = facts(2, w)[0].ids(step - 1).ravel()
            assert found.ids(step)[f"worker:{w}"].tolist() == expected.tolist()
    assert ledger.check(found).well, str(ledger.check(found))


def test_the_counter_is_there_without_an_end(tmp_path):
    """A process that is killed: nothing is closed or flushed, and all steps stand in the file."""
    train(tmp_path, 9, end=False)
    report = ledger.check(tmp_path)
    assert report.well and "run 1: 2 worker(s), steps 1 to 9, interrupted, or still running" in str(report)


def test_broken_off_at_every_byte(tmp_path):
    """Whole blocks are read, what comes after them is told, and the steps that are lost are found."""
    train(tmp_path / "whole", 6, workers=1, ahead=0, end=False)
    (path,) = (tmp_path / "whole").iterdir()
    data = path.read_bytes()
    starts = [found.offset for found in blocks.parse(data)]
    (tmp_path / "torn").mkdir()
    torn = tmp_path / "torn" / path.name
    header_ends = starts[1]
    for length in range(len(data) + 1):
        torn.write_bytes(data[:length])
        if length < header_ends:
            found = ledger.read(torn.parent)
            assert torn in found.unreadable and kinds(ledger.check(found))[0] == "missing"
            continue
        whole = [start for start in [*starts, len(data)] if start <= length][-1]
        (attempt,) = ledger.read(torn.parent).attempts
        assert attempt.torn == length - whole
        report = ledger.check(torn.parent)
        assert report.well == (length == len(data)), length
        if whole != length:
            assert f"is truncated: its last {length - whole} bytes" in str(report)
        # header, segment, generation, then a block for each step.
        left = [start for start in starts if start < whole]
        lost = range(max(len(left) - 3, 0) + 1, 7)
        if len(left) >= 2 and lost:
            assert f"of the steps {lost[0]}{f' to {lost[-1]}' if len(lost) > 1 else ''} of run 1" in str(report)


def test_a_byte_changed_anywhere_is_seen(tmp_path):
    train(tmp_path, 3, workers=1, ahead=0)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    for at in range(blocks.BEGIN, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        found = ledger.read(tmp_path)
        assert found.unreadable or found.attempts[0].torn, at


def test_a_full_disk_ends_the_ledger_and_not_the_training(tmp_path, warnings):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, old[1]))
        train(tmp_path, 40, workers=1, end=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, before)
    assert len(warnings) == 1 and re.match(
        r"The ledger .*worker-0\.1\.ledger ends here; the training continues", warnings[0]
    )
    found = ledger.read(tmp_path)
    assert found.attempts[0].torn == 0 and found.last_step == 40 and found.ids(1)
    (finding,) = ledger.check(found).findings
    assert finding.kind == "missing" and finding.text.endswith("to 40 of run 1 are missing: its blocks were lost")


@pytest.mark.parametrize("folder", ["{}/file/ledger", "gs://bucket/ledger"])
def test_a_folder_that_cannot_be_written_to(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"the ledger cannot be written to .*(Not a directory|an object store)"):
        ledger.LedgerWriter(folder.format(tmp_path), task="worker:0", tasks=["worker:0"])


def test_no_ledger(tmp_path):
    for folder, found in ((tmp_path / "nothing", "no such folder"), (tmp_path, "no file named like worker-0.1.ledger")):
        with pytest.raises(ConfigError, match="there is no ledger in") as told:
            ledger.check(folder)
        assert found in str(told.value)


# Layouts that are well ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "data"),
    [
        (1, {}),
        (2, {}),
        (3, {"local": 2}),
        (2, {"shuffle": False}),
        (3, {"policy": "file"}),
        (2, {"policy": "file", "block_records": PARTS, "window": 8}),
        (2, {"policy": "off"}),
        (2, {"epochs": 2}),
        (2, {"epochs": 2, "drop_remainder": False}),
        (2, {"asynchronous": True}),
    ],
    ids=str,
)
def test_well(tmp_path, workers, data):
    steps = facts(workers, 0, **data)[0].full_steps or 40
    train(tmp_path, steps + facts(workers, 0, **data)[0].tail_steps, workers=workers, **data)
    report = ledger.check(tmp_path, facts=facts(workers, 0, **data)[1])
    assert report.well, str(report)
    assert {share.steps for share in report.shares} == {steps + facts(workers, 0, **data)[0].tail_steps}


@pytest.mark.parametrize("policy", ["data", "file"])
def test_auto_is_whichever_policy_a_run_began_under(tmp_path, policy):
    train(tmp_path, 40, policy=policy)
    told = facts(2, 0, policy="data")[1]
    assert ledger.check(tmp_path, facts=told | {"policy": "auto"}).well
    assert ledger.check(tmp_path, facts=told).well == (policy == "data")


@pytest.mark.parametrize("fault", [False, True])
def test_records_that_tensorflow_shares_out(tmp_path, fault):
    """The policy "hint": a batch that is fetched is as large as the global one, and is made of several steps."""
    whole = IndexSampler(RECORDS, seed=3)
    alone = train_shards(PARTS, ShardOptions(), global_batch=BATCH, sampler=whole, policy="hint")
    told = plans.facts_of(alone, sampler=whole, part_records=PARTS, options=InputOptions(global_batch_size=BATCH))
    for w in range(2):
        tasks = ["worker:0", "worker:1"]
        writer = ledger.LedgerWriter(tmp_path, task=tasks[w], tasks=tasks)
        stream = writer.stream({"kind": "records", "plan": told, "pipelines": 1, "pipeline": 0, "batches_per_step": 1})
        writer.begin(0)
        plan = train_shards(
            PARTS, ShardOptions(2, 0 if fault else w, 2), global_batch=BATCH, sampler=whole, policy="hint"
        )
        for at in range(0, 30, 2):
            ids = plan.ids(at, 2).ravel()
            stream(at == 0, [ids], pipelines=2, pipeline=w, records_per_step=BATCH // 2)
        writer.step(25)
    found = ledger.read(tmp_path)
    assert {task: len(ids) for task, ids in found.ids(25).items()} == {"worker:0": 6, "worker:1": 6}
    report = ledger.check(found)
    assert report.well != fault, str(report)
    assert not fault or {"moved", "twice", "never"} == set(kinds(report))


def test_steps_done_again_count_once(tmp_path):
    """Killed at 31 after the checkpoint of step 20; twice, and the second time before another checkpoint."""
    train(tmp_path, 31, end=False)
    train(tmp_path, 27, start=20, end=False)
    train(tmp_path, 40, start=20)
    found = ledger.read(tmp_path)
    assert [(run.start, run.end, run.counts) for run in found.runs] == [(0, 31, 20), (20, 27, 20), (20, 40, 40)]
    report = ledger.check(found)
    assert report.well, str(report)
    assert [dataclasses.astuple(share) for share in report.shares] == [
        (f"worker:{w}", 3, 40, 40 * BATCH // 2, 18) for w in range(2)
    ]
    assert "run 2: 2 worker(s), steps 21 to 27, interrupted, or still running; none counts" in str(report)


@pytest.mark.parametrize("policy", ["data", "file"])
def test_another_number_of_workers_after_a_restart(tmp_path, policy):
    train(tmp_path, 31, workers=3, end=False, policy=policy)
    train(tmp_path, 60, workers=2, start=25, policy=policy)
    train(tmp_path, 80, workers=1, start=60, policy=policy)
    report = ledger.check(tmp_path)
    assert report.well, str(report)
    assert {share.task: share.steps for share in report.shares} == {"worker:0": 80, "worker:1": 60, "worker:2": 25}
    assert ("shards the data differently" in str(report)) == (policy == "file")


def test_one_worker_is_a_step_behind_when_the_job_is_killed(tmp_path):
    """All workers make a synchronous step, or none does: what a worker fetched for it was consumed."""
    train(tmp_path, 20, only=[0], end=False)
    train(tmp_path, 19, only=[1], end=False)
    report = ledger.check(tmp_path)
    assert report.well and [share.steps for share in report.shares] == [20, 20], str(report)


def test_a_session_made_anew_reads_from_a_new_iterator(tmp_path):
    """As MonitoredSession does when it has lost a server: the same process, from the checkpoint on."""
    plan, told = facts(1, 0)
    writer = ledger.LedgerWriter(tmp_path, task="worker:0", tasks=["worker:0"])
    stream = writer.stream({"kind": "records", "plan": told, "pipelines": 1, "pipeline": 0, "batches_per_step": 1})
    writer.begin(0)
    stream(True, plan.ids(0, 9))
    writer.step(5)
    stream(True, plan.ids(0, 9))
    writer.begin(0)
    writer.step(8)
    found = ledger.read(tmp_path)
    assert [(run.start, run.end, run.counts) for run in found.runs] == [(0, 5, 0), (0, 8, 8)]
    assert found.ids(8)["worker:0"].tolist() == plan.ids(7).ravel().tolist() and ledger.check(found).well


def test_killed_between_a_checkpoint_and_the_count(tmp_path):
    """Checkpoints are written before hooks count: that the next run begins there shows that the step was made."""
    train(tmp_path, 19, end=False)
    train(tmp_path, 30, start=20)
    report = ledger.check(tmp_path)
    assert report.well and [share.steps for share in report.shares] == [30, 30], str(report)
    # Two steps more is another matter: a run without a ledger lies between.
    train(tmp_path, 50, start=32)
    assert "there is no ledger of the steps 31 to 32" in str(ledger.check(tmp_path))


def test_clocks_of_two_machines(tmp_path, monkeypatch):
    """worker:1's clock is an hour ahead; and once a task began without the others coming."""
    import time

    now = time.time
    for ahead, w in ((0, 0), (3600, 1)):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: now() + ahead)
        train(tmp_path / "skewed", 31, only=[w], end=False)
        train(tmp_path / "skewed", 40, start=20, only=[w])
    found = ledger.read(tmp_path / "skewed")
    assert [(run.number, run.start, len(run.segments)) for run in found.runs] == [(1, 0, 2), (2, 20, 2)]
    assert ledger.check(found).well
    for at, w, steps in ((0, 0, 0), (100, 0, 12), (101, 1, 12)):
        monkeypatch.setattr(time, "time", lambda at=at: float(at))
        train(tmp_path / "alone", steps, only=[w])
    found = ledger.read(tmp_path / "alone")
    assert [(run.start, run.end, len(run.segments)) for run in found.runs] == [(0, 12, 2)]
    assert ledger.check(found).well, str(ledger.check(found))


# Planted faults -------------------------------------------------------------------------------------------------


def test_a_record_twice_and_one_never(tmp_path):
    def spoil(worker, step, ids):
        if (worker, step) == (1, 3):
            spoil.record, ids[0, 0] = int(ids[0, 0]), ids[0, 1]
            spoil.twice = int(ids[0, 1])
        return ids

    train(tmp_path, 12, spoil=spoil)
    report = ledger.check(tmp_path)
    assert kinds(report) == ["moved", "twice", "never"], str(report)
    text = str(report)
    assert f"worker:1 did not read its records at the steps 3: step 3: records none instead of {spoil.record}" in text
    assert f"epoch 1: 1 record(s) were read more than once: {spoil.twice} (step 3 worker:1, step 3 worker:1)" in text
    assert f"epoch 1: 1 record(s) were never read: {spoil.record}" in text


def test_a_wrong_worker(tmp_path):
    """Each record of the epoch is read once, and by another worker than the plan says."""

    def spoil(worker, step, ids):
        return facts(2, 1 - worker)[0].ids(step - 1) if step == 3 else ids

    train(tmp_path, 12, spoil=spoil)
    report = ledger.check(tmp_path)
    assert kinds(report) == ["moved", "moved"]
    assert "worker:0 did not read its records at the steps 3: step 3: it read the records of pipeline 1" in str(report)


def test_two_workers_read_the_same(tmp_path):
    """The classic fault: an input that is not sharded."""
    train(tmp_path, 12, spoil=lambda worker, step, ids: facts(2, 0)[0].ids(step - 1))
    report = ledger.check(tmp_path)
    assert set(kinds(report)) == {"moved", "twice", "never"}
    assert "worker:1 did not read its records at the steps 1 to 12" in str(report)


def test_a_record_that_the_data_do_not_have(tmp_path):
    def spoil(worker, step, ids):
        ids[0, 0] = 77 if (worker, step) == (0, 2) else ids[0, 0]
        return ids

    train(tmp_path, 3, spoil=spoil)
    assert "epoch 1: 1 record(s) are not in the data: 77 (step 2 worker:0)" in str(ledger.check(tmp_path))


def test_a_worker_without_a_file(tmp_path):
    train(tmp_path, 12)
    os.remove(tmp_path / "worker-1.1.ledger")
    report = ledger.check(tmp_path)
    assert kinds(report) == ["missing"]
    assert "worker:1: the records of the steps 1 to 12 of run 1 are missing: it has no file of that run" in str(report)


def test_a_run_without_a_ledger(tmp_path):
    train(tmp_path, 12)
    train(tmp_path, 30, start=20)
    report = ledger.check(tmp_path)
    assert "there is no ledger of the steps 13 to 20" in str(report) and "missing" in kinds(report)


def test_data_that_begin_anew_after_a_restart(tmp_path):
    """The classic fault of tf.data on resume: the training goes on, the data start over."""
    plan, told = facts(1, 0)
    train(tmp_path, 20, workers=1)
    writer = ledger.LedgerWriter(tmp_path, task="worker:0", tasks=["worker:0"])
    writer.begin(20)
    stream = writer.stream({"kind": "records", "plan": told, "pipelines": 1, "pipeline": 0, "batches_per_step": 1})
    stream(True, plan.ids(0, 20))
    writer.step(20)
    writer.end()
    report = ledger.check(tmp_path)
    assert {"start", "moved", "twice"} <= set(kinds(report))
    assert "worker:0: run 2 starts after step 20, but its data starts at step 1" in str(report)


def test_another_seed_or_batch_after_a_restart(tmp_path):
    train(tmp_path / "seed", 20)
    train(tmp_path / "seed", 40, start=20, seed=4)
    report = ledger.check(tmp_path / "seed", facts=facts(2, 0)[1])
    assert {"data"} <= set(kinds(report)) and "run 2 reads different data than the last one: seed 3, then 4" in str(
        report
    )
    assert "the ledger was written with seed 4, but the job has 3" in str(report)
    train(tmp_path / "batch", 20)
    train(tmp_path / "batch", 40, start=20, batch=24)
    report = ledger.check(tmp_path / "batch")
    assert {"data", "jump"} <= set(kinds(report))
    assert "step 21 continues at position 480 of the stream, but the step before ended at 240" in str(report)


def test_asynchronous_workers_promise_no_epochs(tmp_path):
    train(tmp_path, 30, only=[0], asynchronous=True)
    train(tmp_path, 7, only=[1], asynchronous=True)
    report = ledger.check(tmp_path)
    assert report.well, str(report)
    assert [share.steps for share in report.shares] == [30, 7]
    assert "epochs are not guaranteed: 444 reads of 50 records, each read" in str(report)
    # From the checkpoint of global step 36 on each goes on at half of it.
    train(tmp_path, 25, only=[0], asynchronous=True, start=36)
    train(tmp_path, 22, only=[1], asynchronous=True, start=36)
    report = ledger.check(tmp_path)
    assert report.well and [(s.steps, s.again) for s in report.shares] == [(25, 12), (11, 0)], str(report)


# Fingerprints ---------------------------------------------------------------------------------------------------


def test_fingerprints_tell_records_apart():
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 2, (5000, 9)).astype(np.float32), rng.integers(0, 3, 5000)
    prints = ledger.fingerprints([images, labels])
    assert prints.dtype == np.uint64
    distinct = {(*image.tolist(), int(label)) for image, label in zip(images, labels, strict=True)}
    assert len(distinct) < 5000 and len(set(prints.tolist())) == len(distinct)
    # In another batch, and in an order of its own, each is the same.
    order = rng.permutation(5000)
    assert ledger.fingerprints([images[order[:7]], labels[order[:7]]]).tolist() == prints[order[:7]].tolist()
    # Signs, which lie in the highest bits, and two of them together.
    one, both = np.ones((1, 4), np.float32), np.array([[-1, 1, -1, 1]], np.float32)
    assert ledger.fingerprints([one])[0] != ledger.fingerprints([both])[0]
    assert ledger.fingerprints([one, both])[0] != ledger.fingerprints([both, one])[0]


def test_fingerprints_of_texts_sparse_values_and_padding():
    texts = np.array([[b"a", b"bc"], [b"ab", b"c"], [b"a", b"bc"]], dtype=object)
    a, b, c = ledger.fingerprints([texts]).tolist()
    assert a == c != b
    short, padded = np.array([[3, 4]]), np.array([[3, 4, 0, 0]])
    assert ledger.fingerprints([short]) == ledger.fingerprints([padded])
    sparse = Sparse(np.array([[0, 1], [0, 4], [2, 1]]), np.array([5, 6, 5]), np.array([3, 9]))
    x, y, z = ledger.fingerprints([sparse]).tolist()
    assert len({x, y, z}) == 3
    alone = Sparse(np.array([[0, 1]]), np.array([5]), np.array([1, 9]))
    assert ledger.fingerprints([alone]).tolist() == [z]
    # No common first axis: the batch is one record.
    assert ledger.fingerprints([np.zeros((3, 2)), np.ones(4)]).shape == (1,)
    assert ledger.fingerprints([np.float32(3)]).shape == (1,)


CONTENT = np.random.default_rng(5).integers(0, 2**64, 40, dtype=np.uint64)


def legacy(folder, reads, *, workers=None):
    """`reads[worker]`: places in CONTENT, four at a step."""
    tasks = [f"worker:{w}" for w in range(len(reads))]
    for w, places in enumerate(reads):
        writer = ledger.LedgerWriter(folder, task=tasks[w], tasks=tasks)
        stream = writer.stream({"kind": "fingerprints", "pipelines": None, "pipeline": None, "batches_per_step": 1})
        writer.begin(0)
        for at in range(0, len(places), 4):
            stream(at == 0, [CONTENT[places[at : at + 4]]])
            writer.step()
        writer.end()
    return ledger.read(folder)


COUNTS = {int(value): 1 for value in CONTENT}
SEQUENCE = np.arange(40)


@pytest.mark.parametrize(
    ("reads", "says"),
    [
        ([np.tile(SEQUENCE, 2)], ""),
        ([np.concatenate([SEQUENCE, SEQUENCE[:8]])], ""),
        ([SEQUENCE[::2].repeat(1), SEQUENCE[1::2]], ""),
        ([np.tile(SEQUENCE[:12], 2), SEQUENCE[12:36]], "separate shards; 4 records not yet"),
        ([np.tile(SEQUENCE, 1), SEQUENCE[::-1]], "each record"),
    ],
    ids=["two epochs", "one and a bit", "shards", "uneven shards", "all read all"],
)
def test_fingerprints_that_are_well(tmp_path, reads, says):
    report = ledger.check(legacy(tmp_path, reads), counts=COUNTS)
    assert report.well, str(report)
    assert says in str(report).replace("each read", "each record read")


@pytest.mark.parametrize(
    ("reads", "kind", "says"),
    [
        ([np.tile(SEQUENCE[:20], 3)], {"never", "twice"}, "20 record(s) were never read, in 1.50 epochs"),
        ([SEQUENCE[:20], SEQUENCE[:20]], {"twice"}, "worker:0 and worker:1 read the same records at the same steps"),
        ([np.concatenate([SEQUENCE[:36], SEQUENCE[:4]])], {"never", "twice"}, "4 different record(s) were read more"),
    ],
    ids=["half the data", "both the same half", "four twice"],
)
def test_fingerprints_that_are_not(tmp_path, reads, kind, says):
    report = ledger.check(legacy(tmp_path, reads), counts=COUNTS)
    assert set(kinds(report)) == kind and says in str(report), str(report)


def test_fingerprints_without_counts_and_of_other_data(tmp_path):
    report = ledger.check(legacy(tmp_path / "same", [SEQUENCE, SEQUENCE]))
    assert kinds(report) == ["twice"] and "read the same records at the same steps" in str(report)
    found = legacy(tmp_path, [SEQUENCE])
    assert "not counted, so missing records cannot be detected" in str(ledger.check(found))
    report = ledger.check(found, counts={int(value): 1 for value in CONTENT[:30]})
    assert kinds(report) == ["unknown"] and "10 of 40 different records are not in the counted data" in str(report)


def test_records_of_equal_content_are_counted_as_often_as_they_stand_there(tmp_path):
    counts = {int(CONTENT[0]): 3, **{int(value): 1 for value in CONTENT[1:6]}}
    well = legacy(tmp_path / "a", [np.array([0, 1, 0, 2, 3, 0, 4, 5])])
    assert ledger.check(well, counts=counts).well
    bad = legacy(tmp_path / "b", [np.array([0, 1, 0, 2, 0, 0, 4, 5])])
    assert set(kinds(ledger.check(bad, counts=counts))) == {"never", "twice"}
