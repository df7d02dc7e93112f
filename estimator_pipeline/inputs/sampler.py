"""The records of step s of replica r: pure arithmetic without TensorFlow and without state.

Data is addressed by step. The order of the records is a function of (seed, epoch, position) and of
nothing else. A training stream is a sequence of epochs; step ``s`` with the global batch ``B`` reads
the stream positions ``s*B`` to ``(s+1)*B``, and replica ``r`` of ``R`` takes its contiguous slice of them. So
a run that starts at step ``s``, on any number of workers, reads the same records as an uninterrupted run.

The shuffle is a permutation that is computed for each position independently, so that 10**12 records need no
memory: a Feistel network over the grid of ``a`` rows and ``b`` columns with ``a*b >= n`` (two halves that are
changed in turn by a keyed hash of the other half; each round is invertible, hence a bijection), with cycle
walking (a result outside of the ``n`` records is permuted again) as in Black and Rogaway, "Ciphers with Arbitrary
Finite Domains" (2002). Its hash is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014). All of it is
unsigned 64-bit integer arithmetic: the same on each platform, Python and NumPy.

Sources that are read in blocks (files) can use a two-level order: the blocks are shuffled and concatenated, and
the records are shuffled within windows of that sequence. It is still a function of only the position.

This module is on floor 0.
"""

from __future__ import annotations

import functools
import heapq
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.utils.fixes import fix

__all__ = [
    "MAX_RECORDS",
    "EpochSteps",
    "IndexSampler",
    "check_global_batch",
    "derive_seed",
    "eval_slice",
    "even_split",
    "record_ids",
    "records_at",
    "split_files",
    "steps_per_epoch",
]

MAX_RECORDS = 2**48
"""The maximum number of records; no product below can exceed 64 bits."""

_ROUNDS = 20  # With 8 the permutations of 5 things are visibly uneven (a test measures it); the cost is small.
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment: the golden ratio as a 64-bit fraction, odd.
_BLOCKS_TAG, _WINDOW_TAG, _PIPELINE_TAG = 1, 2, 3  # Separate the streams of keys.


@dataclass(frozen=True)
class IndexSampler:
    """The order in which a stream reads its records.

    Args:
        num_records: Records in the data set, at least 1. Their ids are 0 to num_records - 1.
        seed: 0 to 2**63 - 1. Two orders with the same seed and sizes are the same order.
        shuffle: False reads the ids in their own order in each epoch.
        epochs: Epochs in the stream; None for a stream without an end.
        drop_remainder: For a finite stream, whether the records that do not fill the last global batch are
            dropped (and counted: see `EpochSteps`) or read as a smaller last batch.
        block_records: Records in each block (file), in the order of the ids; their sum is `num_records`. With
            it the order has two levels: blocks, then windows.
        window: Records in a window of the two-level order; needs `block_records`.

    Raises:
        InputError: An argument is out of its range, or the blocks don't add up.
    """

    num_records: int
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = None
    drop_remainder: bool = True
    block_records: tuple[int, ...] | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        _check_int("num_records", self.num_records, 1, MAX_RECORDS)
        _check_int("seed", self.seed, 0, 2**63 - 1)
        if self.epochs is not None:
            _check_int("epochs", self.epochs, 1, 2**62 // self.num_records)
        if (self.block_records is None) != (self.window is None):
            raise InputError(
                "A two-level order needs both block_records and window",
                code="argument/missing",
                found=f"block_records={self.block_records!r}, window={self.window!r}",
                hint="give both, or neither for a shuffle of all the records",
            )
        if self.block_records is not None:
            object.__setattr__(self, "block_records", tuple(int(count) for count in self.block_records))
            _check_int("window", self.window, 1, MAX_RECORDS)
            if any(count < 0 for count in self.block_records) or sum(self.block_records) != self.num_records:
                raise InputError(
                    "The blocks of an order must hold its records, no more and no fewer",
                    code="argument/bad-value",
                    found=f"{len(self.block_records)} blocks with {sum(self.block_records)} records, "
                    f"num_records={self.num_records}",
                    hint="give one count of at least 0 a block, summing up to num_records",
                )

    @property
    def total(self) -> int | None:
        """Positions in the stream; None where it has no end."""
        return None if self.epochs is None else self.num_records * self.epochs


class EpochSteps(NamedTuple):
    """How an epoch (or a finite stream) falls into steps.

    Attributes:
        full: Steps with a full global batch.
        remainder: Records left after them. An endless stream reads them in a step that continues with the next
            epoch, so that none is lost; a finite stream reads them as a smaller last batch, or drops them.
    """

    full: int
    remainder: int


def record_ids(sampler: IndexSampler, start: int, stop: int) -> np.ndarray:
    """Return the record ids at the stream positions `start` to `stop`.

    Args:
        sampler: The stream's order.
        start: First position, at least 0.
        stop: One past the last position. A finite stream is cut at its end, as a slice is.

    Returns:
        int64 array of shape (stop - start,), shorter where the stream ends.

    Raises:
        InputError: The range is negative or runs backwards.
    """
    _check_int("start", start, 0, 2**62)
    _check_int("stop", stop, start, 2**62)
    if sampler.total is not None:
        start, stop = min(start, sampler.total), min(stop, sampler.total)
    return records_at(sampler, np.arange(start, stop, dtype=np.int64))


def records_at(sampler: IndexSampler, positions: np.ndarray) -> np.ndarray:
    """Return the record ids at any stream positions.

    Args:
        sampler: The stream's order.
        positions: int64 array of any shape, each at least 0 and, for a finite stream, below its end.

    Returns:
        int64 array of the same shape.

    Raises:
        InputError: A position is negative or beyond the end.
    """
    positions = np.asarray(positions, dtype=np.int64)
    if positions.size == 0:
        return positions.copy()
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or (sampler.total is not None and high >= sampler.total):
        raise InputError(
            "A stream position that the stream does not have",
            code="argument/bad-value",
            found=f"positions {low} to {high} in a stream of {sampler.total or 'endless'} records",
            hint="ask for positions from 0 on, below num_records * epochs",
        )
    epoch, within = np.divmod(positions.ravel(), sampler.num_records)
    if not sampler.shuffle:
        ids = within
    elif sampler.block_records is None:
        first = int(epoch.min())
        keys = _epoch_keys(sampler.seed, np.arange(first, int(epoch.max()) + 1, dtype=np.int64))
        ids = _permute(within.astype(np.uint64), sampler.num_records, keys, epoch - first).astype(np.int64)
    else:
        ids = _two_level(sampler, epoch, within)
    return ids.reshape(positions.shape)


def check_global_batch(global_batch: int, num_replicas: int) -> int:
    """Return the batch of each replica, or an error that names the global batches that fit.

    Args:
        global_batch: Records a step, over all replicas.
        num_replicas: Replicas that step together.

    Returns:
        global_batch / num_replicas.

    Raises:
        InputError: The global batch can't be shared equally.
    """
    _check_int("global_batch_size", global_batch, 1, 2**40)
    if global_batch % num_replicas:
        below = global_batch // num_replicas * num_replicas
        fits = [size for size in (below, below + num_replicas) if size]
        raise InputError(
            f"A global batch of {global_batch} records cannot be shared equally by {num_replicas} replicas",
            code="data/cannot-shard",
            found=f"global_batch_size={global_batch}, {num_replicas} replicas in sync",
            hint=f"use a multiple of {num_replicas}: the nearest are {' and '.join(map(str, fits))}",
        )
    return global_batch // num_replicas


def steps_per_epoch(num_records: int, global_batch: int) -> EpochSteps:
    """How many steps an epoch (or any number of records) makes.

    Args:
        num_records: Records to read, at least 0.
        global_batch: Records a step.

    Returns:
        Full steps, and the records left over.
    """
    _check_int("num_records", num_records, 0, 2**62)
    _check_int("global_batch_size", global_batch, 1, 2**40)
    return EpochSteps(*divmod(num_records, global_batch))


def even_split(total: int, parts: int, part: int) -> slice:
    """Part `part` of `total` things cut into `parts` contiguous parts, as even as can be.

    The first ``total % parts`` parts hold one more than the others; with fewer things than parts the last
    parts are empty.

    Args:
        total: Things to share, at least 0.
        parts: Parts, at least 1.
        part: Which part, 0 to parts - 1.

    Returns:
        The slice of the things.
    """
    _check_int("total", total, 0, 2**62)
    _check_int("parts", parts, 1, 2**62)
    _check_int("part", part, 0, parts - 1)
    size, longer = divmod(total, parts)
    start = part * size + min(part, longer)
    return slice(start, start + size + (part < longer))


def eval_slice(num_records: int, pipeline: int = 0, num_pipelines: int = 1) -> slice:
    """Return the records that one input pipeline evaluates: all pipelines together read each record exactly once.

    Args:
        num_records: Records to evaluate.
        pipeline: Which pipeline, 0 to num_pipelines - 1.
        num_pipelines: Input pipelines (one a worker).

    Returns:
        A slice of record ids; evaluation is never shuffled.
    """
    return even_split(num_records, num_pipelines, pipeline)


def split_files(
    records: int | Sequence[int], num_pipelines: int, *, balance: str = "records"
) -> tuple[tuple[int, ...], ...]:
    """Which pipeline reads which file: no file twice, none left out, at least one a pipeline.

    Args:
        records: Records in each file; or the number of files where the counts are not known.
        num_pipelines: Input pipelines to share the files.
        balance: "records": the largest file first, each to the pipeline with the fewest records so far.
            "contiguous": runs of files as even in number as can be, whatever they hold.

    Returns:
        For each pipeline the indices of its files, ascending.

    Raises:
        InputError: There are fewer files than pipelines, or `balance` is not known.
    """
    counts = [1] * records if isinstance(records, int) else [operator.index(count) for count in records]
    _check_int("num_pipelines", num_pipelines, 1, 2**31)
    if len(counts) < num_pipelines:
        raise InputError(
            f"{len(counts)} files cannot be shared by {num_pipelines} input pipelines",
            code="data/cannot-shard",
            found=f"{len(counts)} files, {num_pipelines} pipelines",
            hint="use "
            + fix(python="shard_policy='data'", yaml="input: {shard_policy: data}")
            + " (by record), or write the data as at least one file a worker",
        )
    if balance == "contiguous":
        cuts = (even_split(len(counts), num_pipelines, pipeline) for pipeline in range(num_pipelines))
        return tuple(tuple(range(cut.start, cut.stop)) for cut in cuts)
    if balance != "records":
        raise InputError(
            "An unknown way to balance files",
            code="argument/unknown-name",
            found=f"balance={balance!r}",
            hint="use 'records' or 'contiguous'",
        )
    shares: list[list[int]] = [[] for _ in range(num_pipelines)]
    # (records, files, pipeline), the lightest first. The number of files breaks ties, so that empty files too are
    # spread and each pipeline gets one.
    loads = [(0, 0, pipeline) for pipeline in range(num_pipelines)]
    for index in sorted(range(len(counts)), key=lambda i: (-counts[i], i)):
        held, files, lightest = loads[0]
        shares[lightest].append(index)
        heapq.heapreplace(loads, (held + counts[index], files + 1, lightest))
    return tuple(tuple(sorted(share)) for share in shares)


def derive_seed(seed: int, pipeline: int) -> int:
    """Return a separate seed for an input pipeline (feature row E2: no sharding, distinct seeds).

    Args:
        seed: The job's seed, 0 to 2**63 - 1.
        pipeline: Which pipeline, from 0.

    Returns:
        A seed in the same range; pipelines of one seed get distinct seeds, except with probability 2**-63.
    """
    _check_int("seed", seed, 0, 2**63 - 1)
    _check_int("pipeline", pipeline, 0, 2**31)
    keys = _keys(seed, _PIPELINE_TAG, np.array([pipeline], dtype=np.int64), rounds=1)
    return int(keys[0, 0]) >> 1


def _two_level(sampler: IndexSampler, epoch: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Blocks in a shuffled sequence, then each window of that sequence shuffled."""
    window = min(sampler.window or 1, sampler.num_records)
    windows = -(-sampler.num_records // window)
    last_size = sampler.num_records - (windows - 1) * window
    which, offset = np.divmod(within, window)
    # Each (epoch, window) has its own key; few of them occur in one call, whatever the size of the data.
    serial, inverse = np.unique(epoch * windows + which, return_inverse=True)
    keys = _keys(sampler.seed, _WINDOW_TAG, serial)
    sequence = np.empty_like(within)
    for size, chosen in ((window, which < windows - 1), (last_size, which == windows - 1)):
        if chosen.any():
            moved = _permute(offset[chosen].astype(np.uint64), size, keys, inverse.ravel()[chosen])
            sequence[chosen] = which[chosen] * window + moved.astype(np.int64)
    ids = np.empty_like(within)
    for value in np.unique(epoch):
        chosen = epoch == value
        ends, shift = _block_sequence(sampler.block_records or (), sampler.seed, int(value))
        ids[chosen] = sequence[chosen] + shift[np.searchsorted(ends, sequence[chosen], side="right")]
    return ids


@functools.lru_cache(maxsize=64)
def _block_sequence(block_records: tuple[int, ...], seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """For an epoch's sequence of blocks: where each ends in it, and what leads from there to record ids."""
    counts = np.array(block_records, dtype=np.int64)
    starts = np.cumsum(counts) - counts
    keys = _keys(seed, _BLOCKS_TAG, np.array([epoch], dtype=np.int64))
    places = np.arange(len(counts), dtype=np.int64)
    blocks = _permute(places.astype(np.uint64), len(counts), keys, np.zeros_like(places)).astype(np.int64)
    ends = np.cumsum(counts[blocks])
    return ends, starts[blocks] - (ends - counts[blocks])


def _epoch_keys(seed: int, epochs: np.ndarray) -> np.ndarray:
    return _keys(seed, 0, epochs)


def _keys(seed: int, tag: int, numbers: np.ndarray, *, rounds: int = _ROUNDS) -> np.ndarray:
    """Return the round keys for (seed, tag) and each number; uint64 of shape (rounds, len(numbers))."""
    base = _mix(np.array([(seed + _GOLDEN) & _MASK], dtype=np.uint64))
    base = _mix(base ^ np.uint64(tag * _GOLDEN & _MASK))
    each = _mix(base + numbers.astype(np.uint64) * np.uint64(_GOLDEN))
    steps = np.array([(turn + 1) * _GOLDEN & _MASK for turn in range(rounds)], dtype=np.uint64)
    return _mix(each[np.newaxis, :] ^ _mix(steps)[:, np.newaxis])


def _permute(index: np.ndarray, size: int, keys: np.ndarray, key_of: np.ndarray) -> np.ndarray:
    """Where a keyed permutation of 0..size-1 sends each index.

    Args:
        index: uint64 of shape (m,), each below `size`.
        size: The permutation's size, 1 to MAX_RECORDS.
        keys: uint64 of shape (rounds, k).
        key_of: int64 of shape (m,), which of the k permutations each index goes through.

    Returns:
        uint64 of shape (m,).
    """
    rows = math.isqrt(size - 1) + 1 if size > 1 else 1
    columns = -(-size // rows)
    rows_, columns_ = np.uint64(rows), np.uint64(columns)
    placed = _feistel(index, rows_, columns_, keys, key_of)
    # Cycle walking: rows * columns exceeds size by less than a row, so few walk on, and a cycle always leads
    # back.
    outside = np.flatnonzero(placed >= size)
    while outside.size:
        placed[outside] = _feistel(placed[outside], rows_, columns_, keys, key_of[outside])
        outside = outside[placed[outside] >= size]
    return placed


def _feistel(
    index: np.ndarray, rows: np.uint64, columns: np.uint64, keys: np.ndarray, key_of: np.ndarray
) -> np.ndarray:
    row = index // columns
    column = index - row * columns
    for turn in range(len(keys)):
        key = keys[turn] if keys.shape[1] == 1 else keys[turn].take(key_of)
        if turn % 2 == 0:
            row = _sum(row, _mix(column ^ key), rows)
        else:
            column = _sum(column, _mix(row ^ key), columns)
    return row * columns + column


def _sum(value: np.ndarray, more: np.ndarray, size: np.uint64) -> np.ndarray:
    """Return (value + more) % size of a value below `size`, without NumPy's remainder: its quotient is vectorized."""
    total = more // size
    total *= size
    np.subtract(more, total, out=total)
    total += value
    return np.minimum(total, total - size, out=total)  # Below `size`, the difference is beyond 2**63.


def _mix(value: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: a bijection of 64-bit words whose every output bit hangs on every input bit."""
    value = value ^ (value >> np.uint64(30))
    value *= np.uint64(0xBF58476D1CE4E5B9)  # In place: this is most of the time of a batch's ids.
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    try:
        good = not isinstance(value, (bool, np.bool_)) and low <= operator.index(value) <= high
    except TypeError:
        good = False
    if not good:
        raise InputError(
            f"{name} must be a whole number from {low} to {high}",
            code="argument/bad-value",
            found=f"{name}={value!r}",
            hint=f"change {name}",
        )
