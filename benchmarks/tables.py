"""Tables in files: time to the first batch, and records per second, to pyarrow and tf.data side by side.

    python benchmarks/tables.py [--megabytes N] [--rounds N] [--json FILE]

A table of 12 numbers, 5 words, an id and a label. Starts are of new processes; the first one converts the file, later
ones find it in the cache. Rates are of shuffled batches of 256 records; tf.data reads with its best number of readers.
Many small files: 5,000 files of 4 records, which tf.data reads completely.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np

BATCH, SECONDS = 256, 4.0
NUMBERS, WORDS = [f"number_{i}" for i in range(12)], [f"word_{i}" for i in range(5)]
COLUMNS = {"id": "int64", **dict.fromkeys(NUMBERS, "float32"), **dict.fromkeys(WORDS, "string"), "label": "int64"}
READERS = (1, 2, 4)
SMALL_FILES = 5000
SMALL_COLUMNS = {"a": "float32", "b": "string", "label": "int64"}
STARTS = {  # The peer, and what starts
    "CSV": ("pyarrow read_csv", "start"),
    "small CSV files": ("small csv, tf.data", "small csv"),
    "small TFRecord files": ("small tfrecord, tf.data", "small tfrecord"),
}


def write_csv(path: Path, megabytes: int) -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"value_{i}" for i in range(50)])
    with open(path, "w", encoding="utf-8") as file:
        file.write(",".join(COLUMNS) + "\n")
        for start in itertools.count(0, 10_000):
            numbers, chosen = rng.normal(size=(10_000, 12)).round(5), words[rng.integers(0, 50, (10_000, 5))]
            labels = rng.integers(0, 2, 10_000)
            file.writelines(
                f"{start + i},{','.join(map(str, numbers[i]))},{','.join(chosen[i])},{labels[i]}\n"
                for i in range(10_000)
            )
            if file.tell() >= megabytes * 2**20:
                return


def write_parquet(csv: Path, path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(csv), path)


def write_small(folder: Path) -> None:
    import tensorflow as tf

    folder.mkdir()
    values = [tf.train.Feature(int64_list=tf.train.Int64List(value=[number])) for number in range(2)]
    examples = [tf.train.Example(features=tf.train.Features(feature={"a": each, "label": each})) for each in values]
    for number in range(SMALL_FILES):
        rows = "".join(f"{number},x{row},{row % 2}\n" for row in range(4))
        (folder / f"{number:05d}.csv").write_text(f"a,b,label\n{rows}", encoding="utf-8")
        with tf.io.TFRecordWriter(str(folder / f"{number:05d}.tfrecord")) as writer:
            for row in range(4):
                writer.write(examples[row % 2].SerializeToString())


def data(path: Path) -> Any:
    from estimator_pipeline import inputs

    factory = inputs.from_csv if path.suffix == ".csv" else inputs.from_parquet
    return factory(path, columns=COLUMNS, global_batch_size=BATCH, memory_limit=0)


def small_data(way: str, pattern: str) -> Any:
    from estimator_pipeline import inputs

    if way == "small csv":
        return inputs.from_csv(f"{pattern}csv", columns=SMALL_COLUMNS, global_batch_size=BATCH, memory_limit=0)
    features = {"a": "int64", "label": "int64"}
    return inputs.from_tfrecord(f"{pattern}tfrecord", features=features, global_batch_size=BATCH, memory_limit=0)


def rate(batches: Iterator[Any], size: int = BATCH) -> float:
    """Return records per second, after some batches of warm-up."""
    for _ in itertools.islice(batches, 200):
        pass
    begun, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < SECONDS:
        count += sum(size for _ in itertools.islice(batches, 50))
    return count / passed


def endless(path: Path) -> Iterator[Any]:
    """Yield batches of pyarrow's own reading, as arrays."""
    import pyarrow.parquet

    while True:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=BATCH, columns=list(COLUMNS)):
            yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]


def measure(way: str, folder: Path) -> dict[str, float]:
    csv, parquet, small = folder / "table.csv", folder / "table.parquet", str(folder / "small" / "*.")
    if way == "pyarrow read_csv":
        import pyarrow.csv

        begun = time.perf_counter()
        pyarrow.csv.read_csv(csv)
        return _figures(time.perf_counter() - begun)
    import tensorflow as tf

    from estimator_pipeline import compat

    compat.install()
    if way == "start":
        begun = time.perf_counter()
        next(iter(data(csv).train_input_fn()))
        return _figures(time.perf_counter() - begun)
    if way.startswith("small"):
        begun = time.perf_counter()
        if way == "small csv, tf.data":
            types = [tf.float32, tf.string, tf.int64]
            for _ in tf.data.experimental.make_csv_dataset(
                f"{small}csv", BATCH, column_defaults=types, label_name="label", num_epochs=1, num_parallel_reads=2
            ):
                pass
        elif way == "small tfrecord, tf.data":
            for _ in tf.data.TFRecordDataset(tf.io.gfile.glob(f"{small}tfrecord"), num_parallel_reads=2).batch(BATCH):
                pass
        else:
            next(iter(small_data(way, small).train_input_fn()))
        return _figures(time.perf_counter() - begun)
    if way == "pyarrow parquet":
        return _rated(endless(parquet))
    if way in ("csv", "parquet"):
        return _rated(iter(data(csv if way == "csv" else parquet).train_input_fn()))
    defaults = [{"int64": tf.int64, "float32": tf.float32, "string": tf.string}[kind] for kind in COLUMNS.values()]
    dataset = tf.data.experimental.make_csv_dataset(
        str(csv), BATCH, column_defaults=defaults, label_name="label", shuffle_buffer_size=10_000,
        prefetch_buffer_size=4, num_parallel_reads=int(way),
    )  # fmt: skip
    return _rated(iter(dataset))


def _rated(batches: Iterator[Any]) -> dict[str, float]:
    return {"rate": rate(batches), "mib": _peak_mib()}


def _figures(seconds: float) -> dict[str, float]:
    return {"seconds": seconds, "mib": _peak_mib()}


def _peak_mib() -> float:
    """Return the peak memory without mapped files; `ru_maxrss` of a child begins with that of its parent."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(sign * int(status[name].split()[0]) for name, sign in (("VmHWM", 1), ("RssFile", -1))) / 1024


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--megabytes", type=int, default=256)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--folder", type=Path)
    chosen = options.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.measure, chosen.folder)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_csv(folder / "table.csv", chosen.megabytes)
        write_parquet(folder / "table.csv", folder / "table.parquet")
        write_small(folder / "small")

        def run(way: str, cache: str = "cache") -> dict[str, float]:
            os.environ["XDG_CACHE_HOME"] = str(folder / cache)
            return common.in_child(__file__, way, arguments=["--folder", name])

        rows = []
        for title, (peer, start) in STARTS.items():
            starts: dict[str, list[dict[str, float]]] = {peer: [], f"{title}, first": [], f"{title}, later": []}
            for number in range(chosen.rounds):
                starts[peer].append(run(peer))
                starts[f"{title}, first"].append(run(start, f"cache-{number}"))
                starts[f"{title}, later"].append(run(start, f"cache-{number}"))
            base = statistics.median(each["seconds"] for each in starts[peer])
            for way, each in starts.items():
                seconds = statistics.median(figures["seconds"] for figures in each)
                peak = statistics.median(figures["mib"] for figures in each)
                rows.append(
                    {"what": way, "figure": seconds, "unit": "s", "to the peer": seconds / base, "MiB": round(peak)}
                )
        ways = {"CSV, tf.data": [str(count) for count in READERS], "CSV": ["csv"]}
        ways |= {"Parquet, pyarrow": ["pyarrow parquet"], "Parquet": ["parquet"]}
        rates: dict[str, float] = {}
        run("parquet")
        for title, variants in ways.items():
            measured = [[run(way) for _ in range(chosen.rounds)] for way in variants]
            best = max(measured, key=lambda each: statistics.median(figures["rate"] for figures in each))
            rates[title] = statistics.median(figures["rate"] for figures in best)
            peer = rates["CSV, tf.data" if title.startswith("CSV") else "Parquet, pyarrow"]
            row = {"what": title, "figure": rates[title], "unit": "records/s", "to the peer": rates[title] / peer}
            rows.append(row | {"MiB": round(statistics.median(figures["mib"] for figures in best))})
    common.report("tables", rows, chosen.json)


if __name__ == "__main__":
    sys.exit(main())
