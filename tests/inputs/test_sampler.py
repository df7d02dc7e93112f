"""The order of records: exhaustive checks of `inputs/sampler.py` and `inputs/sharding.py`, without TensorFlow."""

from __future__ import annotations

import collections
import hashlib
import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs import sampler as order_module
from estimator_pipeline.inputs.sampler import (
    MAX_RECORDS,
    IndexSampler,
    check_global_batch,
    derive_seed,
    eval_slice,
    even_split,
    record_ids,
    records_at,
    split_files,
    steps_per_epoch,
)
from estimator_pipeline.inputs.sharding import ShardOptions, choose_policy, eval_shards, train_shards

LEVELS = {
    "one level": {},
    "blocks": {"block_records": (5, 0, 9, 1, 22), "window": 8},
    "one block, window larger than it": {"block_records": (37,), "window": 100},
    "windows of one record": {"block_records": (30, 7), "window": 1},
}


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_a_shuffled_epoch_is_a_permutation_of_the_records(seed):
    for count in range(1, 301):
        ids = record_ids(IndexSampler(count, seed=seed), 0, 3 * count).reshape(3, count)
        assert (np.sort(ids, axis=1) == np.arange(count)).all(), count


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_each_record_is_read_once_an_epoch(levels):
    ids = record_ids(IndexSampler(37, seed=5, **levels), 0, 5 * 37).reshape(5, 37)
    assert (np.sort(ids, axis=1) == np.arange(37)).all()
    assert len({tuple(epoch) for epoch in ids}) > 1, "epochs must differ"


def test_two_levels_shuffle_within_a_window_of_the_files_read_so_far():
    sampler = IndexSampler(40, seed=9, block_records=(10, 10, 10, 10), window=10)
    for epoch in record_ids(sampler, 0, 400).reshape(10, 40):
        files = epoch.reshape(4, 10) // 10
        assert (files == files[:, :1]).all(), "a window of a file's length must not leave the file"
        assert sorted(files[:, 0]) == [0, 1, 2, 3]
    assert len({tuple(e.reshape(4, 10)[:, 0] // 10) for e in record_ids(sampler, 0, 400).reshape(10, 40)}) > 5


def test_a_trillion_records_cost_no_memory_and_do_not_collide():
    sampler = IndexSampler(10**12, seed=3)
    ids = record_ids(sampler, 10**12 - 50_000, 10**12 + 50_000)
    for epoch in (ids[:50_000], ids[50_000:]):
        assert len(np.unique(epoch)) == 50_000
        assert 0 <= epoch.min() and epoch.max() < 10**12
    assert record_ids(IndexSampler(MAX_RECORDS, seed=1), 7 * MAX_RECORDS, 7 * MAX_RECORDS + 9).max() < MAX_RECORDS


def test_golden_values_the_order_never_changes_between_versions():
    assert record_ids(IndexSampler(10, seed=0), 0, 20).tolist() == [
        *[1, 9, 3, 6, 5, 0, 8, 7, 2, 4],
        *[4, 0, 1, 6, 7, 8, 9, 5, 3, 2],
    ]
    assert record_ids(IndexSampler(1437, seed=1), 1430, 1444).tolist() == [
        *[200, 704, 534, 830, 1436, 333, 460],
        *[123, 461, 516, 586, 675, 867, 884],
    ]
    assert record_ids(IndexSampler(10**12, seed=2), 10**12 - 3, 10**12 + 3).tolist() == [
        *[353803557181, 828316546550, 276641914370],
        *[898595450343, 847834838130, 355623716686],
    ]
    assert record_ids(IndexSampler(12, seed=3, block_records=(5, 0, 4, 3), window=4), 0, 24).tolist() == [
        *[5, 6, 8, 7, 2, 0, 1, 3, 4, 10, 9, 11],
        *[5, 8, 6, 7, 0, 2, 1, 3, 11, 10, 9, 4],
    ]
    assert [derive_seed(0, 0), derive_seed(0, 1), derive_seed(7, 3)] == [
        9153653141107259654,
        7903965840601953618,
        4166714106961954647,
    ]
    ten_epochs = record_ids(IndexSampler(1797, seed=42), 0, 17970).astype("<i8").tobytes()
    digest = "142849e52cbb9c19020468c81707fb5ab82a24887326030f742a823419b3da3b"
    assert hashlib.sha256(ten_epochs).hexdigest() == digest


def _chi_square(observed, expected, freedom):
    """How many standard deviations a chi-square statistic lies above its mean."""
    return (((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_permutations_of_few_records_are_as_likely(count, seed):
    epochs = 100 * math.factorial(count)
    ids = record_ids(IndexSampler(count, seed=seed), 0, epochs * count).reshape(epochs, count)
    seen = collections.Counter(map(tuple, ids.tolist()))
    counts = np.array([seen[one] for one in itertools.permutations(range(count))])
    # The seeds are fixed, so this is no game of chance; too few rounds exceed 4 deviations by far (below).
    assert _chi_square(counts, 100.0, len(counts) - 1) < 4


def test_the_uniformity_test_can_fail(monkeypatch):
    monkeypatch.setitem(order_module._keys.__kwdefaults__, "rounds", 4)
    ids = record_ids(IndexSampler(5, seed=0), 0, 12_000 * 5).reshape(12_000, 5)
    seen = collections.Counter(map(tuple, ids.tolist()))
    counts = np.array([seen[one] for one in itertools.permutations(range(5))])
    assert _chi_square(counts, 100.0, 119) > 4


@pytest.mark.parametrize("count", [10, 16, 97])
def test_each_record_comes_to_each_place_as_often_and_after_each_other(count):
    epochs = 10_000
    ids = record_ids(IndexSampler(count, seed=1), 0, epochs * count).reshape(epochs, count)
    places = np.zeros((count, count))
    np.add.at(places, (np.broadcast_to(np.arange(count), ids.shape), ids), 1)
    # The statistic of a matrix whose rows and columns both have fixed sums: (n-1)/n of the plain one.
    statistic = (places - epochs / count) ** 2 * (count - 1) / count
    freedom = (count - 1) ** 2
    assert (statistic.sum() / (epochs / count) - freedom) / math.sqrt(2 * freedom) < 4
    steps = np.bincount(((ids[:, 1:] - ids[:, :-1]) % count).ravel(), minlength=count)[1:]
    assert _chi_square(steps, steps.sum() / (count - 1), count - 2) < 4


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_a_record_depends_on_its_position_alone(levels):
    sampler = IndexSampler(37, seed=11, **levels)
    whole = record_ids(sampler, 0, 150)
    for start in range(0, 150, 7):
        assert (record_ids(sampler, start, 150) == whole[start:]).all()
    some = np.array([[149, 0, 3], [3, 77, 36]])
    assert (records_at(sampler, some) == whole[some]).all()


def test_seeds_and_epochs_give_other_orders_and_no_shuffle_gives_none():
    orders = {tuple(record_ids(IndexSampler(50, seed=seed), 0, 50)) for seed in range(50)}
    assert len(orders) == 50
    assert record_ids(IndexSampler(4, shuffle=False), 0, 10).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert len({derive_seed(1, pipeline) for pipeline in range(1000)} | {1}) == 1001


def test_a_finite_stream_ends():
    sampler = IndexSampler(5, epochs=2)
    assert len(record_ids(sampler, 0, 100)) == 10
    assert len(record_ids(sampler, 10, 100)) == 0
    with pytest.raises(InputError, match="position that the stream does not have"):
        records_at(sampler, np.array([10]))


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 6])
def test_replicas_share_each_step_whatever_their_number(replicas):
    plans = _plans(replicas, (37,), "data")
    for step in (0, 1, 17):
        together = np.concatenate([plan.ids(step).ravel() for plan in plans])
        assert together.tolist() == record_ids(IndexSampler(37, seed=4), step * 12, step * 12 + 12).tolist()


def test_remainders_are_counted_and_shared_evenly():
    assert steps_per_epoch(1437, 64) == (22, 29)
    assert steps_per_epoch(64, 64) == (1, 0)
    assert steps_per_epoch(0, 64) == (0, 0)
    for total, parts in itertools.product(range(40), range(1, 12)):
        cuts = [even_split(total, parts, part) for part in range(parts)]
        assert [i for cut in cuts for i in range(cut.start, cut.stop)] == list(range(total))
        sizes = [cut.stop - cut.start for cut in cuts]
        assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
        assert [eval_slice(total, part, parts) for part in range(parts)] == cuts


@pytest.mark.parametrize("balance", ["records", "contiguous"])
def test_files_are_shared_out_each_to_one_pipeline(balance):
    random = np.random.RandomState(0)
    for files, pipelines in itertools.product(range(1, 14), range(1, 8)):
        counts = random.randint(0, 50, files).tolist()
        if files < pipelines:
            with pytest.raises(InputError, match=f"{files} files cannot be shared by {pipelines}"):
                split_files(counts, pipelines, balance=balance)
            continue
        shares = split_files(counts, pipelines, balance=balance)
        assert sorted(index for share in shares for index in share) == list(range(files))
        assert len(shares) == pipelines and all(shares)
        loads = [sum(counts[index] for index in share) for share in shares]
        if balance == "records":
            # Longest first is within 4/3 of the best (Graham, 1969), and the best is no less than these two.
            best = max(max(counts), sum(counts) / pipelines)
            second = sorted(counts)[-pipelines:][0] + (sorted(counts)[-pipelines - 1] if files > pipelines else 0)
            assert max(loads) <= (4 / 3) * max(best, second) + 1e-9
    assert split_files(5, 2) == ((0, 2, 4), (1, 3))
    assert split_files([5, 1, 7, 3, 3, 2], 3) == ((2,), (0, 5), (1, 3, 4))


# What is given, and the words that the message must hold.
REFUSED = [
    (lambda: IndexSampler(0), "num_records must be a whole number from 1"),
    (lambda: IndexSampler(True), "num_records=True"),
    (lambda: IndexSampler(10, seed=-1), "seed=-1"),
    (lambda: IndexSampler(10, seed=1.0), "seed=1.0"),
    (lambda: IndexSampler(10, epochs=0), "epochs=0"),
    (lambda: IndexSampler(10, window=3), "both block_records and window"),
    (lambda: IndexSampler(10, block_records=(4, 5), window=3), "2 blocks with 9 records, num_records=10"),
    (lambda: IndexSampler(10, block_records=(11, -1), window=3), "one count of at least 0 a block"),
    (lambda: record_ids(IndexSampler(10), 5, 4), "stop=4"),
    (lambda: record_ids(IndexSampler(10), -1, 4), "start=-1"),
    (lambda: check_global_batch(64, 3), "the nearest are 63 and 66"),
    (lambda: check_global_batch(2, 3), "the nearest are 3"),
    (lambda: check_global_batch(0, 3), "global_batch_size=0"),
    (lambda: split_files([1, 2], 2, balance="size"), "balance='size'"),
    (lambda: even_split(3, 0, 0), "parts=0"),
    (lambda: ShardOptions(2, 2, 2), "pipeline 2 of 2, 2 replicas"),
    (lambda: ShardOptions(2, 0, 3), "the same number of devices"),
    (lambda: choose_policy("files", (1,), 1, False), "auto, file, data, hint, off"),
    (lambda: choose_policy("file", None, 1, True), "arrays in memory"),
    (lambda: choose_policy("file", (3, 3), 3, False), "2 files cannot be shared by 3 input pipelines"),
    (lambda: _plans(2, (4, 0), "file"), "Input pipeline 1 of 2 would get files without any record"),
    (lambda: _plans(2, (4, 4), "data", worker_seeds="distinct"), "add shard_policy='off'"),
    (lambda: _plans(2, (4, 4), "off", worker_seeds="own"), "use 'same' or 'distinct'"),
]


@pytest.mark.parametrize("call,words", REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_work_is_refused_with_the_values_and_the_mend(call, words):
    with pytest.raises(InputError) as refused:
        call()
    assert words in str(refused.value)


def _plans(pipelines, parts, policy, *, local=1, batch=12, epochs=None, drop=True, window=None, **more):
    sampler = IndexSampler(
        sum(parts),
        seed=4,
        epochs=epochs,
        drop_remainder=drop,
        block_records=parts if window else None,
        window=window,
    )
    return [
        train_shards(
            parts,
            ShardOptions(pipelines, pipeline, pipelines * local),
            global_batch=batch,
            sampler=sampler,
            policy=policy,
            **more,
        )
        for pipeline in range(pipelines)
    ]


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("pipelines,local", [(1, 1), (2, 1), (1, 3), (2, 3), (4, 1), (6, 1), (3, 2)])
def test_by_record_each_step_reads_the_same_for_any_number_of_workers(pipelines, local, window):
    alone = _plans(1, (20, 3, 14), "data", window=window)[0].ids(0, 30)
    plans = _plans(pipelines, (20, 3, 14), "data", local=local, window=window)
    for step in range(30):
        together = np.concatenate([plan.ids(step).ravel() for plan in plans])
        assert (together == alone[step]).all()
    for plan in plans:
        assert plan.ids(0).shape == (local, 12 // pipelines // local)
        whole = plan.ids(0, 30)
        for start in (1, 9, 29):
            assert (plan.ids(start, 30 - start) == whole[start * local :]).all()


@pytest.mark.parametrize("pipelines,local", [(1, 1), (2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("records", [1, 5, 11, 12, 13, 36, 37, 100])
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_finite_stream_by_record_loses_nothing_that_is_not_counted(pipelines, local, records, epochs):
    for drop in (True, False):
        plans = _plans(pipelines, (records,), "data", local=local, epochs=epochs, drop=drop)
        assert len({(plan.full_steps, plan.tail_steps, plan.remainder) for plan in plans}) == 1
        full, tail, remainder = plans[0].full_steps, plans[0].tail_steps, plans[0].remainder
        assert full * 12 + remainder == records * epochs
        read = [plan.ids(0, full).ravel() for plan in plans]
        tails = [plan.tail_ids() for plan in plans]
        assert all(len(batches) == tail * local for batches in tails)
        sizes = [len(batch) for batches in tails for batch in batches]
        if drop:
            assert tail == 0 and sum(map(len, read)) == full * 12
            continue
        assert sum(sizes) == remainder
        assert not sizes or max(sizes) - min(sizes) <= 1
        everything = np.concatenate([*read, *itertools.chain.from_iterable(tails)])
        assert (np.bincount(everything, minlength=records) == epochs).all()
        for plan in plans:
            assert plan.tail_ids(full + tail) == []
            assert len(plan.tail_ids(full)) == tail * local


@pytest.mark.parametrize("pipelines,local", [(1, 1), (2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("window", [None, 5])
def test_by_file_each_pipeline_reads_its_own_files_alone(pipelines, local, window):
    parts = (9, 4, 0, 6, 13, 5, 3)
    starts = np.cumsum(parts) - parts
    for epochs in (None, 2):
        plans = _plans(pipelines, parts, "file", local=local, epochs=epochs, drop=False, window=window)
        assert sorted(index for plan in plans for index in plan.parts) == list(range(len(parts)))
        counted = np.zeros(sum(parts), dtype=int)
        for plan in plans:
            mine = np.concatenate([np.arange(starts[i], starts[i] + parts[i]) for i in plan.parts])
            if epochs is None:
                read = plan.ids(0, 50).ravel()[: len(mine)]
                assert sorted(read) == list(range(len(mine)))
                continue
            batches = [plan.ids(0, plan.full_steps).ravel(), *plan.tail_ids()]
            assert len(plan.tail_ids()) == plan.tail_steps * local
            np.add.at(counted, mine[np.concatenate(batches)], 1)
        if epochs is not None:
            assert (counted == epochs).all()
            dropped = _plans(pipelines, parts, "file", local=local, epochs=epochs, window=window)
            share = 12 // pipelines // local * local
            kept = sum(plan.full_steps * share for plan in dropped)
            assert kept + dropped[0].remainder == epochs * sum(parts)


def test_e2_distinct_seeds_give_each_worker_all_the_data_in_its_own_order():
    plans = _plans(3, (30,), "off", worker_seeds="distinct")
    firsts = [plan.ids(0, 8).ravel()[:30] for plan in plans]
    assert all(sorted(first) == list(range(30)) for first in firsts)
    assert len({tuple(first) for first in firsts}) == 3
    same = _plans(3, (30,), "off")
    assert len({tuple(plan.ids(0, 8).ravel()) for plan in same}) == 1


def test_asynchronous_workers_take_turns_in_one_stream():
    plans = [
        train_shards(
            (40,),
            ShardOptions(3, p, 1, asynchronous=True),
            global_batch=4,
            sampler=IndexSampler(40, seed=1),
            policy="data",
        )
        for p in range(3)
    ]
    assert [plan.batch for plan in plans] == [4, 4, 4]
    turns = np.concatenate([plan.ids(step).ravel() for step in range(10) for plan in plans])
    assert (turns == record_ids(IndexSampler(40, seed=1), 0, 120)).all()
    assert plans[0].first_step(301) == 100


@pytest.mark.parametrize("policy", ["data", "file", "off", "auto"])
@pytest.mark.parametrize("pipelines,local", [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)])
def test_evaluation_reads_each_record_once_whatever_the_batch(policy, pipelines, local):
    for parts in [(1, 1, 1), (5, 0, 2), (9, 4, 30), (1, 0, 0)]:
        starts = np.cumsum(parts) - parts
        for share in (1, 2, 5, 100):
            plans = [
                eval_shards(
                    parts,
                    ShardOptions(pipelines, p, pipelines * local),
                    global_batch=share * pipelines * local,
                    policy=policy,
                )
                for p in range(pipelines)
            ]
            assert len({plan.num_batches for plan in plans}) == 1, "or one pipeline waits for another"
            read = []
            for plan in plans:
                mine = range(len(parts)) if plan.parts is None else plan.parts
                ids = np.concatenate([np.arange(starts[i], starts[i] + parts[i]) for i in mine])
                batches = [plan.ids(index) for index in range(plan.num_batches)]
                sizes = [len(batch) for batch in batches]
                assert max(sizes) <= share and max(sizes) - min(sizes) <= 1
                read.append(ids[np.concatenate(batches)])
            assert sorted(np.concatenate(read)) == list(range(sum(parts)))


# policy, records a file (None: arrays), pipelines, in memory -> what "auto" comes to
AUTO = [
    (None, 2, True, "data"),
    ((10, 10), 2, True, "data"),
    ((10, 10), 2, False, "data"),  # "file" would tie the run to two workers
    ((10,) * 9, 3, False, "data"),
    ((10,), 1, False, "data"),
]


@pytest.mark.parametrize("parts,pipelines,in_memory,wanted", AUTO)
def test_what_auto_comes_to(parts, pipelines, in_memory, wanted):
    assert choose_policy("auto", parts, pipelines, in_memory)[0] == wanted


def test_no_module_of_inputs_imports_tensorflow():
    code = (
        "import importlib, pkgutil, sys\n"
        "import estimator_pipeline.inputs as inputs\n"
        "for module in pkgutil.walk_packages(inputs.__path__, 'estimator_pipeline.inputs.'):\n"
        "    importlib.import_module(module.name)\n"
        "assert not [name for name in sys.modules if name.startswith('tensorflow')]\n"
        "assert 'sklearn' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ), timeout=60)
