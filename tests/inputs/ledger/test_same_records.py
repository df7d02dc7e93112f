"""Which tasks read the same records, by fingerprints of their batches."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.inputs.ledger.same_records import in_any_order, in_same_order

DATA = np.random.default_rng(7).integers(0, 2**64, 400, dtype=np.uint64)


def batches(records, size=16):
    return [records[at : at + size] for at in range(0, len(records), size)]


def shuffled(records, seed):
    return np.random.default_rng(seed).permutation(records)


def test_the_same_order():
    read = {"worker:0": batches(DATA[:200]), "worker:1": batches(DATA[200:]), "worker:2": batches(DATA[:320])}
    assert in_same_order(read) == ["worker:0", "worker:2"]


def test_different_orders_of_all_records():
    read = {f"worker:{seed}": batches(shuffled(DATA, seed)) for seed in range(2)}
    assert in_same_order(read) == []
    assert in_any_order(read) == (["worker:0", "worker:1"], 400, 400)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (DATA[::2], DATA[1::2]),
        # Sharded after a shuffle with a common seed: in the second epoch each reads records of the other's first.
        tuple(np.concatenate([shuffled(DATA, epoch)[n::2] for epoch in range(2)]) for n in range(2)),
        (np.tile(DATA[:16], 8), np.tile(DATA[:16], 8)),
        (np.zeros(128, np.uint64), np.zeros(128, np.uint64)),
        # Few different records, such as those of both sexes and three classes.
        (shuffled(np.repeat(DATA[:6], 60), 0), shuffled(np.repeat(DATA[:6], 60), 1)),
        (shuffled(np.repeat(DATA[:100], 3), 0), shuffled(np.repeat(DATA[:100], 3), 1)),
        (DATA[:0], DATA[:0]),
    ],
    ids=["shards", "shards of each epoch", "one batch", "zeros", "six records", "repeated records", "no data"],
)
def test_what_proves_nothing(first, other):
    read = {"worker:0": batches(first), "worker:1": batches(other)}
    assert in_same_order(read) == [] and in_any_order(read) is None
