"""Gain of several train steps per session call: steps per second compared with plain tf.estimator.

    python benchmarks/steps_per_execution.py [--models linear wide_deep cnn] [--workers 1 2] [--steps N] [--rounds N]
                                             [--json FILE]

`plain` is `Estimator.train` (one worker) or `tf.estimator.train_and_evaluate` (two, MultiWorkerMirroredStrategy) with
the same model and data; the others are this package's `train_and_evaluate` with `steps_per_execution` 1 and "auto". All
have the checkpoints, summaries and log lines of RunConfig. Each training runs in one or two new processes, in turns;
a ratio is the median of the ratios of neighbouring runs. The first fifth of the steps does not count.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import common

WAYS = ("plain", "1", "auto")
BATCH = 64


def _job(model: str) -> tuple[Any, dict[str, Any]]:
    """Return the in-memory data and the model's parameters."""
    import numpy as np

    import estimator_pipeline as ep

    if model != "wide_deep":
        return ep.inputs.from_tfds("digits", global_batch_size=BATCH, scale=1 / 16, seed=1), {}
    rng, records = np.random.default_rng(1), 20_000
    numeric = {f"n{i}": rng.random(records, dtype=np.float32) for i in range(5)}
    categorical = {f"c{i}": rng.integers(0, 50, records) for i in range(8)}
    labels = (numeric["n0"] + categorical["c0"] / 50 > 1.0).astype(np.int64)
    table = ({**numeric, **categorical}, labels)
    params = {"numeric": list(numeric), "categorical": dict.fromkeys(categorical, 50)}
    return ep.inputs.from_arrays(train=table, eval=table, global_batch_size=BATCH, seed=1), params


def measure(way: str, model: str, steps: int, folder: str) -> dict[str, Any]:
    """Train in this process as the task of TF_CONFIG, and return the steps per second."""
    import estimator_pipeline as ep
    import model_fns
    from estimator_pipeline import compat

    tf = compat.install()
    tf.get_logger().setLevel("ERROR")
    workers = len(json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", []))
    data, params = _job(model)

    class Clock(tf.estimator.SessionRunHook):
        def __init__(self) -> None:
            self.step = self.first = 0
            self.begun = self.ended = 0.0

        def steps_passed(self, count: int) -> None:
            self.step += count

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.step, self.ended = self.step + 1, time.perf_counter()
            if not self.begun and self.step >= steps // 5:
                self.first, self.begun = self.step, self.ended

    clock = Clock()
    config = ep.build_run_config(
        folder,
        seed=1,
        train_distribute="multi_worker_mirrored" if workers > 1 else "none",
        save_checkpoints_steps=max(1000, steps // 2),
        # One core per worker, so that one worker and two are comparable on one machine.
        intra_op_threads=1,
        inter_op_threads=1,
    )
    estimator = tf.estimator.Estimator(
        model_fns.model_fn(model, optimizer={"name": "sgd"}, params=params), config=config
    )
    train = tf.estimator.TrainSpec(data.train_input_fn, max_steps=steps, hooks=[clock])
    evaluation = tf.estimator.EvalSpec(data.eval_input_fn, steps=1)
    if way == "plain" and workers <= 1:
        estimator.train(data.train_input_fn, max_steps=steps, hooks=[clock])
    elif way == "plain":
        tf.estimator.train_and_evaluate(estimator, train, evaluation)
    else:
        several = way if way == "auto" else int(way)
        ep.train_and_evaluate(estimator, train, evaluation, evaluate_during_training=False, steps_per_execution=several)
    return {"rate": (clock.step - clock.first) / (clock.ended - clock.begun)}


def _rate(way: str, model: str, workers: int, steps: int) -> float:
    from estimator_pipeline.launch import hold_ports

    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--models", model, "--steps", str(steps), "--folder", folder]
        if workers == 1:
            return float(common.in_child(sys.argv[0], way, arguments=arguments)["rate"])
        with hold_ports(workers) as held:
            cluster = {"worker": [f"localhost:{port}" for port in held.ports]}
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(common.ROOT), environ.get("PYTHONPATH")]))
        running = []
        for index in range(workers):
            environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            command = [sys.executable, sys.argv[0], "--measure", way, *arguments]
            running.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        try:
            outputs = [process.communicate(timeout=600)[0] for process in running]
        finally:
            for process in running:
                process.kill()
        if any(process.returncode for process in running):
            raise SystemExit(f"{way}, {model}, {workers} workers failed")
        return min(float(json.loads(text.splitlines()[-1])["rate"]) for text in outputs)


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--models", nargs="+", default=["linear", "wide_deep", "cnn"])
    options.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    options.add_argument("--steps", type=int, default=5000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--folder", help=common.argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.measure, chosen.models[0], chosen.steps, chosen.folder)))
        return
    if chosen.steps < 500 or chosen.rounds < 1:
        options.error("--steps must be at least 500, and --rounds at least 1")
    rows = []
    for model in chosen.models:
        for workers in chosen.workers:
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(chosen.rounds):
                for way in WAYS:
                    rates[way].append(_rate(way, model, workers, chosen.steps))
            row: dict[str, Any] = {"model": model, "workers": workers}
            row |= {f"steps/s {way}": round(statistics.median(rates[way])) for way in WAYS}
            for way in WAYS[1:]:
                ratios = [ours / plain for ours, plain in zip(rates[way], rates["plain"], strict=True)]
                row |= {f"{way} : plain": statistics.median(ratios), f"least {way}": min(ratios)}
            rows.append(row)
            print(common.table([row]), file=sys.stderr, flush=True)
    common.report("steps_per_execution", rows, chosen.json)


if __name__ == "__main__":
    main()
