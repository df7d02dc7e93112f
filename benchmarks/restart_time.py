"""Time of a restart compared with a first start, and the cost of heartbeats.

    python benchmarks/restart_time.py [--runs 3] [--engines estimator keras] [--json FILE]

A supervised launch of two workers trains the digits; worker 1 is killed with SIGKILL after a checkpoint. A run measures
the time from the launch's first process to the first step (a cold start), and from the detection of the failure to the
first step of the next attempt: stopping the other worker, the pause, the new start, reading the checkpoint. Their ratio
is the cost of a restart in cold starts. The pause is 0 here; its default is one second. Other runs use SIGSTOP: the
worker hangs, which is detected when its heartbeat is missing for ten seconds (60 by default).

For the cost of heartbeats one process trains in turns with and without a heartbeat thread that is a hundred times as
frequent as the launcher requires.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common

from benchmarks.suite.restarts import restart

JOB = common.ROOT / "legacy_configs" / "multi_worker_estimator.yaml"
# The launcher requires a heartbeat every two seconds.
_BEAT_SECS = 0.02
# A task hangs after so many seconds without a heartbeat; 60 by default.
_HEARTBEAT_SECS = 10.0


def environ() -> dict[str, str]:
    """Return the environment of a launch, with this repository first on the path."""
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(common.ROOT), os.environ.get("PYTHONPATH")]))
    return variables


def heartbeats() -> dict[str, Any]:
    """Return the steps per second of a small model with and without heartbeats, and the median ratio of pairs."""
    import threading

    import estimator_pipeline as ep
    from estimator_pipeline.progress.progress_file import heartbeat_path

    tf = ep.compat.install()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    import model_fns

    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = ep.inputs.from_tfds("digits", global_batch_size=32, scale=1 / 16)
        config = ep.build_run_config(f"{folder}/model", save_checkpoints_steps=10**6, environ={})
        estimator = tf.estimator.Estimator(model_fns.model_fn("cnn", optimizer={"name": "sgd"}), config=config)
        beating, over = threading.Event(), threading.Event()
        path = heartbeat_path(f"{folder}/worker-0.progress.jsonl")

        def beat() -> None:
            while not over.is_set():
                if beating.is_set():
                    path.touch()
                over.wait(_BEAT_SECS)

        class Turns(tf.estimator.SessionRunHook):
            """Switch heartbeats every 200 steps; the first 200 steps do not count."""

            def __init__(self) -> None:
                self.steps, self.since, self.rates = 0, time.monotonic(), []

            def after_run(self, run_context: Any, run_values: Any) -> None:
                self.steps += 1
                if self.steps % 200:
                    return
                now = time.monotonic()
                self.rates.append(200 / (now - self.since))
                (beating.clear, beating.set)[self.steps // 200 % 2 == 0]()
                self.since = now

        turns = Turns()
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            estimator.train(data.train_input_fn, hooks=[turns], steps=200 * 21)
        finally:
            over.set()
            thread.join()
        # Off for steps 200 to 400, on for 400 to 600, and so on.
        counted = turns.rates[1:]
        pairs = list(zip(counted[::2], counted[1::2], strict=True))
    without, with_beats = zip(*pairs, strict=True)
    ratio = statistics.median(on / off for off, on in pairs)
    return {"without": statistics.median(without), "with": statistics.median(with_beats), "ratio": ratio}


def row(engine: str, fault: signal.Signals, runs: list[Mapping[str, float]]) -> dict[str, Any]:
    """Return a row of the table, with medians over the runs."""
    return {
        "engine": engine,
        "fault": fault.name,
        "runs": len(runs),
        "first start s": statistics.median(run["cold"] for run in runs),
        "noticed after s": statistics.median(run["noticed"] for run in runs),
        "then to step s": statistics.median(run["restart"] for run in runs),
        "ratio": statistics.median(run["restart"] / run["cold"] for run in runs),
    }


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--engines", nargs="+", default=["estimator", "keras"])
    chosen = options.parse_args()
    if chosen.runs < 1:
        options.error("--runs must be at least 1")
    if chosen.measure:
        print(json.dumps(heartbeats()))
        return
    rows = []
    for engine in chosen.engines:
        for fault in (signal.SIGKILL, signal.SIGSTOP):
            runs = []
            for _ in range(chosen.runs):
                with tempfile.TemporaryDirectory() as folder:
                    runs.append(
                        restart(JOB, engine, Path(folder), environ=environ(), fault=fault, heartbeat=_HEARTBEAT_SECS)
                    )
            rows.append(row(engine, fault, runs))
    common.report("restart_time", rows, chosen.json)
    beats = common.in_child(sys.argv[0], "heartbeats")
    print(
        f"\nheartbeats, {round(2 / _BEAT_SECS)} times as many as the launcher requires: "
        f"{beats['with']:.1f} steps/s with, {beats['without']:.1f} without, ratio {beats['ratio']:.3f}"
    )


if __name__ == "__main__":
    main()
