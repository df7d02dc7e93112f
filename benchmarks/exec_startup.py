"""Startup time that `estimator-pipeline exec` adds to a program.

    python benchmarks/exec_startup.py [--rounds N] [--json FILE]

A program imports TensorFlow, its Keras and tf.estimator's modules, and exits. It is started in three ways in turns:
with `python`, where TensorFlow 2.16 and later have no tf.estimator to import; with `exec` without the table of moved
names; and with `exec`. The figure is the median CPU time of the process, which other load on the machine affects least.
Differences are medians of the differences of neighbouring runs.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common

PROGRAM = """
import tensorflow as tf
tf.keras.layers.Layer
getattr(tf, "estimator", None) and tf.estimator.Estimator
"""
WAYS = {
    "python": [],
    "exec, moved names left out": ["-m", "estimator_pipeline", "exec", "--patches=-moved-names"],
    "exec": ["-m", "estimator_pipeline", "exec"],
}


def seconds(arguments: list[str]) -> float:
    """Return the CPU seconds of one start, in all its threads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_USE_LEGACY_KERAS": "1"}
    environ["PYTHONPATH"] = str(common.ROOT)
    subprocess.run([sys.executable, *arguments], env=environ, check=True, capture_output=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_installation() -> float:
    """Return the milliseconds for reading and installing the table in a process that has imported TensorFlow."""
    return common.in_child(__file__, "installing")["milliseconds"]


def measure() -> dict[str, Any]:
    import gc
    import time

    from estimator_pipeline import compat
    from estimator_pipeline.compat.moved_names import table as moved_names

    compat.install("-moved-names")
    gc.disable()  # as it is in `exec`
    begun = time.perf_counter()
    moved_names.install()
    return {"milliseconds": 1000 * (time.perf_counter() - begun)}


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=9)
    asked = options.parse_args()
    if asked.measure:
        print(json.dumps(measure()))
        return
    seconds_by_way: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        for _ in range(asked.rounds + 1):
            for way, arguments in WAYS.items():
                seconds_by_way[way].append(seconds([*arguments, str(program)]))
    plain, *_ = seconds_by_way.values()
    rows = []
    for way, values in seconds_by_way.items():
        # The first round reads files that are not in the page cache.
        added = [1000 * (value - base) for value, base in zip(values[1:], plain[1:], strict=True)]
        rows.append(
            {"started by": way, "CPU s": statistics.median(values[1:]), "added, ms of CPU": statistics.median(added)}
        )
    common.report("exec_startup", rows, asked.json)
    installs = [measure_installation() for _ in range(asked.rounds)]
    print(f"only the table of moved names: {statistics.median(installs):.1f} ms")


if __name__ == "__main__":
    main()
