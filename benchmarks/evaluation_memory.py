"""Memory and time of many evaluations in one process: `Estimator.evaluate` and the cached evaluation.

    python benchmarks/evaluation_memory.py [--evaluations 50] [--models cnn resnet] [--json FILE]

Each way runs in a separate process, with the same data and model. Memory is the resident set after the first
evaluation, which includes one-time allocations of TensorFlow, and after the last. Time is the median of all evaluations
but the first.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import common

WAYS = {"plain": "Estimator.evaluate", "cached": "cached evaluation"}


def measure(way: str, model: str, evaluations: int) -> dict[str, Any]:
    import numpy as np
    import psutil
    from absl import logging

    import estimator_pipeline as ep
    import model_fns
    from estimator_pipeline import compat
    from estimator_pipeline.compat.internals.cached_evaluation import RepeatedEvaluation

    tf = compat.install()
    tf.get_logger().setLevel("ERROR")
    logging.set_verbosity(logging.ERROR)
    pixels = np.random.default_rng(0).random((256, 8, 8, 1), dtype=np.float32)
    labels = np.arange(256) % 10

    def input_fn() -> Any:
        return tf.data.Dataset.from_tensor_slices((pixels, labels)).batch(64)

    with tempfile.TemporaryDirectory() as folder:
        config = ep.build_run_config(folder, environ={})
        estimator = tf.estimator.Estimator(model_fns.model_fn(model, optimizer={"name": "sgd"}), config=config)
        estimator.train(input_fn, steps=2)
        checkpoint = estimator.latest_checkpoint()
        cached = RepeatedEvaluation(estimator, input_fn)
        process, memory, seconds, losses = psutil.Process(), [], [], set()
        for _ in range(evaluations):
            started = time.monotonic()
            metrics = (
                cached.evaluate(checkpoint)
                if way == "cached"
                else estimator.evaluate(input_fn, checkpoint_path=checkpoint)
            )
            seconds.append(time.monotonic() - started)
            losses.add(float(metrics["loss"]))
            memory.append(process.memory_info().rss / 2**20)
        cached.close()
    if len(losses) != 1:
        raise SystemExit(f"one checkpoint, several losses: {losses}")
    return {"first": memory[0], "last": memory[-1], "seconds": statistics.median(seconds[1:])}


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--evaluations", type=int, default=50)
    options.add_argument("--models", nargs="+", default=["cnn", "resnet"])
    chosen = options.parse_args()
    if chosen.evaluations < 2:
        options.error("--evaluations must be at least 2")
    if chosen.measure:
        print(json.dumps(measure(chosen.measure, chosen.models[0], chosen.evaluations)))
        return
    rows = []
    for model in chosen.models:
        base = None
        for way, called in WAYS.items():
            arguments = ["--models", model, "--evaluations", str(chosen.evaluations)]
            figures = common.in_child(sys.argv[0], way, arguments=arguments)
            seconds = figures["seconds"]
            base = base or seconds
            rows.append(
                {
                    "model": model,
                    "way": called,
                    "MiB after 1": round(figures["first"]),
                    f"MiB after {chosen.evaluations}": round(figures["last"]),
                    "KiB grown each": round((figures["last"] - figures["first"]) * 1024 / (chosen.evaluations - 1)),
                    "median seconds": seconds,
                    "times faster": base / seconds,
                }
            )
    common.report("evaluation_memory", rows, chosen.json)


if __name__ == "__main__":
    main()
