"""Cost of sharding TFRecord files by record: one worker's pass over its share, by record and by file.

    python benchmarks/shared_by_record.py [--rounds N] [--folder DIR] [--json FILE]

Eight files with records of three sizes are read by worker 0 of two and of eight, with existing indexes. The bytes are
the pages of the files in the page cache after a pass over uncached files. The times are those of such a pass, and of a
pass over cached files. Both ways read in turns in one process (`common.in_turns`).
"""

from __future__ import annotations

import struct
import tempfile
import time
from pathlib import Path

import common
import google_crc32c
import numpy as np
from suite import pages

SIZES = (100, 2_000, 50_000)
FILES, BYTES, WORKERS = 8, 256 * 2**20, (2, 8)
BATCH, WINDOW = 64, 65536


def write_files(folder: Path, size: int) -> list[str]:
    """Write files of records of one size, and return their paths."""
    from estimator_pipeline.inputs.sources import tfrecord_index as records

    def checked(content: bytes) -> bytes:
        return content + struct.pack("<I", records._masked(google_crc32c.value(content)))

    record = checked(struct.pack("<Q", size)) + checked(np.random.default_rng(1).bytes(size))
    paths = [folder / f"part-{number}" for number in range(FILES)]
    for path in paths:
        path.write_bytes(record * min(50_000, BYTES // FILES // len(record)))
    return list(map(str, paths))


def measure(size: int, workers: int, rounds: int, folder: Path) -> dict[str, float]:
    from estimator_pipeline.inputs.ledger.plans import global_ids
    from estimator_pipeline.inputs.sampler import IndexSampler
    from estimator_pipeline.inputs.sharding import ShardOptions, train_shards
    from estimator_pipeline.inputs.sources import tfrecord_index as records

    paths = write_files(folder, size)
    reader = records.IndexedTFRecords(paths, compression="", cache=folder / "index", memory_limit=0)
    counts = [reader.count(path) for path in paths]
    ends = np.cumsum(counts)
    sampler = IndexSampler(int(ends[-1]), seed=1, block_records=tuple(counts), window=WINDOW)

    def read(policy: str) -> float:
        """Return the seconds of a pass."""
        options = ShardOptions(workers, 0, workers)
        plan = train_shards(counts, options, global_batch=BATCH * workers, sampler=sampler, policy=policy)
        # Mapped files remain in the page cache, so each pass has a new reader.
        pass_reader = records.IndexedTFRecords(paths, compression="", cache=folder / "index", memory_limit=0)
        begun = time.perf_counter()
        steps = int(ends[-1]) // (BATCH * workers)
        for step in range(0, steps, 64):
            ids = global_ids(plan.ids(step, min(64, steps - step)).ravel(), plan.parts, counts)
            part = np.searchsorted(ends, ids, side="right")
            for index in np.unique(part):
                pass_reader.read(paths[index], ids[part == index] - (ends[index] - counts[index]))
        return time.perf_counter() - begun

    share = sum(Path(path).stat().st_size for path in paths) / workers
    bytes_read, cold = {}, {}
    for policy in ("file", "data"):
        pages.drop(paths)
        cold[policy] = read(policy)
        bytes_read[policy] = pages.resident(paths) / share
    warm = common.in_turns(lambda by_record: 1 / read("data" if by_record else "file"), rounds)
    return {
        **{f"bytes by {policy}, of its share": value for policy, value in bytes_read.items()},
        "time by data, unread files": cold["data"] / cold["file"],
        "time by data, files in memory": 1 / warm["ratio"],
    }


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument(
        "--folder", type=Path, help="a folder on the measured file system; the folder for temporary files by default"
    )
    chosen = options.parse_args()
    if chosen.rounds < 1:
        options.error("--rounds must be at least 1")
    rows = []
    for size in SIZES:
        for workers in WORKERS:
            with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
                figures = measure(size, workers, chosen.rounds, Path(folder))
            rows.append({"bytes a record": size, "workers": workers, **figures})
    common.report("shared_by_record", rows, chosen.json)


if __name__ == "__main__":
    main()
