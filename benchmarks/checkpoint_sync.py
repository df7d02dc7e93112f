"""Cost of syncing a checkpoint to the disk before the state file names it: checkpoints per second with and without.

    python benchmarks/checkpoint_sync.py [--megabytes 1 30 300] [--rounds N] [--folder DIR] [--json FILE]

A `Saver` writes one variable of the given size to the disk of `--folder`, with and without sync in turns in one process
(`common.in_turns`). One checkpoint is kept, as a training keeps the last few.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from typing import Any
from unittest import mock

import common

SAVES = 3


def measure(megabytes: float, rounds: int, folder: str | None) -> dict[str, Any]:
    from estimator_pipeline import compat
    from estimator_pipeline.utils import durable_files as durable

    tf = compat.install()
    tf.get_logger().setLevel("ERROR")
    v1 = tf.compat.v1

    with tempfile.TemporaryDirectory(dir=folder) as place, tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("w", [int(megabytes * 2**18)], initializer=v1.random_uniform_initializer())
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(max_to_keep=1)
        step = 0

        def rate(synced: bool) -> float:
            nonlocal step
            begin = time.perf_counter()
            with contextlib.nullcontext() if synced else mock.patch.object(durable, "sync", lambda paths: None):
                for _ in range(SAVES):
                    step += 1
                    saver.save(session, f"{place}/model.ckpt", global_step=step, write_meta_graph=False)
            return SAVES / (time.perf_counter() - begin)

        return common.in_turns(rate, rounds)


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--megabytes", nargs="+", type=float, default=[1, 30, 300])
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--folder", help="a folder on the measured disk; the folder for temporary files by default")
    chosen = options.parse_args()
    if chosen.rounds < 1 or min(chosen.megabytes) <= 0:
        options.error("--rounds must be at least 1, and --megabytes above 0")
    if chosen.measure:
        print(json.dumps(measure(float(chosen.measure), chosen.rounds, chosen.folder)))
        return
    more = ["--rounds", str(chosen.rounds), *(["--folder", chosen.folder] if chosen.folder else [])]
    rows = []
    for size in chosen.megabytes:
        figures = common.in_child(sys.argv[0], str(size), arguments=more)
        times = {f"ms {way}": 1000 / figures[way] for way in ("without", "with")}
        rows.append({"MB": size, **times, **{name: figures[name] for name in ("ratio", "least", "most")}})
    common.report("checkpoint_sync", rows, chosen.json)


if __name__ == "__main__":
    main()
