"""Cost of the checksums of TFRecord files: records per second of this package's reader with and without them.

    python benchmarks/record_checksums.py [--rounds N] [--json FILE]

Records of three sizes are read in batches of 64 in random order, from a file in the page cache, where a checksum costs
most. Both ways read in turns in one process (`common.in_turns`).
"""

from __future__ import annotations

import struct
import tempfile
import time
from pathlib import Path

import common
import google_crc32c
import numpy as np

SIZES = (100, 10_000, 1_000_000)
BYTES = 64 * 2**20
BATCH, SECONDS = 64, 0.5


def write_records(path: Path, size: int) -> int:
    """Write a file of records of one size, and return their number."""
    from estimator_pipeline.inputs.sources import tfrecord_index as records

    def checked(content: bytes) -> bytes:
        return content + struct.pack("<I", records._masked(google_crc32c.value(content)))

    content = np.random.default_rng(1).bytes(size)
    count = max(BATCH, min(100_000, BYTES // size))
    path.write_bytes((checked(struct.pack("<Q", size)) + checked(content)) * count)
    return count


def measure(size: int, rounds: int) -> dict[str, float]:
    from estimator_pipeline.inputs.sources import tfrecord_index as records

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        order = np.random.default_rng(2).permutation(write_records(path, size))
        reader = records.IndexedTFRecords([str(path)], compression="", cache=None, memory_limit=0)
        value, masked = google_crc32c.value, records._masked
        # Without checksums: the functions return the checksum in the file and compute nothing.
        known = masked(value(reader.read(str(path), order[:1])[0]))

        def rate(with_checksums: bool) -> float:
            google_crc32c.value = value if with_checksums else lambda content: 0
            records._masked = masked if with_checksums else lambda crc: known
            try:
                begun, at, count = time.perf_counter(), 0, 0
                while (passed := time.perf_counter() - begun) < SECONDS:
                    count += len(reader.read(str(path), order[at : at + BATCH]))
                    at = (at + BATCH) % max(1, len(order) - BATCH)
                return count / passed
            finally:
                google_crc32c.value, records._masked = value, masked

        return common.in_turns(rate, rounds)


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    if chosen.rounds < 1:
        options.error("--rounds must be at least 1")
    rows = []
    for size in SIZES:
        columns = common.rate_columns(measure(size, chosen.rounds))
        rows.append(
            {"bytes a record": size, **{name.replace("steps", "records"): value for name, value in columns.items()}}
        )
    common.report("record_checksums", rows, chosen.json)


if __name__ == "__main__":
    main()
