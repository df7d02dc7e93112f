"""Time of `estimator-pipeline migrate scan` for a repository: one process, and one per core.

    python benchmarks/migrate_scan.py [REPOSITORY] [--rounds N] [--json FILE]

REPOSITORY is a folder of Python programs. The default is twenty generated programs of 4,000 lines each. The figures are
the CPU time of all processes and the elapsed time. The ratio compares the CPU time with that of one process; it is the
median of the rounds.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common

WAYS = {
    "one process": ["--jobs", "1"],
    "a process for each core": [],
}
_PROGRAM = "import tensorflow as tf\n\ndef model_fn(features, labels, mode):\n    x = features\n"
_LAYER = "    x = tf.layers.dense(x, units={}, activation=tf.nn.relu)\n"


def write_programs(folder: Path) -> None:
    """Write twenty independent programs."""
    for number in range(20):
        layers = "".join(_LAYER.format(units) for units in range(4_000))
        (folder / f"program_{number}.py").write_text(_PROGRAM + layers + "    return x\n")


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Return the CPU seconds of a scan with all its processes, and the elapsed seconds."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environ = {**os.environ, "PYTHONPATH": str(common.ROOT)}
    command = [sys.executable, "-m", "estimator_pipeline", "migrate", "scan", *arguments]
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
    passed, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, passed


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("repository", nargs="?", type=Path)
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    seconds_by_way: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        repository = asked.repository or Path(folder) / "programs"
        if asked.repository is None:
            repository.mkdir()
            write_programs(repository)
        for _ in range(asked.rounds):
            for way, arguments in WAYS.items():
                seconds_by_way[way].append(seconds([str(repository), *arguments]))
    single = seconds_by_way["one process"]
    rows = [
        {
            "scanned by": way,
            "CPU s": statistics.median(cpu for cpu, _ in values),
            "s": statistics.median(passed for _, passed in values),
            "ratio": statistics.median(cpu / base for (cpu, _), (base, _) in zip(values, single, strict=True)),
        }
        for way, values in seconds_by_way.items()
    ]
    common.report("migrate_scan", rows, asked.json)


if __name__ == "__main__":
    main()
