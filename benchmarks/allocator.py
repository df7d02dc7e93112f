"""Cost of glibc returning a step's memory to the system: rate, page faults, memory with its settings and with ours.

    python benchmarks/allocator.py [--rounds N] [--workers 1 2] [--dense 64 640 6400] [--steps N] [--json FILE]

An Estimator trains the CNN of TensorFlow's tutorials with 64 records per step and worker. A dense layer of 64, 640 or
6,400 units has gradients of 1.4, 14 or 140 MB. It runs under `exec` without patches: one worker, or two with
MultiWorkerMirroredStrategy, each pinned to its share of the CPUs. `as it is` means ESTIMATOR_PIPELINE_MALLOC=system
(docs/guides/performance.md). The variants run in turns; a ratio is the median of the ratios of neighbouring runs.

    python benchmarks/allocator.py --changing [--steps 20000]

Measures the resident memory of one worker with batches of 1 to 511 records after each fifth of the steps.
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

WAYS = {"as it is": "system", "kept": ""}
MEGABYTES = {64: "1.4", 640: "14", 6400: "140"}
WARM = 20


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options.add_argument("--dense", type=int, nargs="+", default=list(MEGABYTES))
    options.add_argument("--steps", type=int)
    options.add_argument("--changing", action="store_true")
    asked = options.parse_args()
    if asked.measure:
        print("MEASURED", json.dumps(train(**json.loads(asked.measure))), flush=True)
    elif asked.changing:
        rows = []
        for way, allocator in WAYS.items():
            figures = measure(allocator, workers=1, dense=64, steps=asked.steps or 20_000, changing=True)
            rows.append({"way": way, **{f"MiB after {step}": size for step, size in figures["resident"].items()},
                         "peak MiB": figures["peak"], "steps/s": figures["rate"]})  # fmt: skip
        common.report("allocator, batches of changing size", rows, asked.json)
    else:
        common.report("allocator", [row for dense in asked.dense for row in compare(asked, dense)], asked.json)


def compare(asked: Any, dense: int) -> list[dict[str, Any]]:
    """Return the rows of one size of gradients. Scaling is the rate of N workers divided by that of one worker."""
    steps = asked.steps or {64: 600, 640: 200}.get(dense, 40)
    rounds_by_variant: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for number in range(asked.rounds):
        for workers in asked.workers:
            for way in list(WAYS)[:: 1 if number % 2 else -1]:
                figures = measure(WAYS[way], workers=workers, dense=dense, steps=steps, changing=False)
                rounds_by_variant.setdefault((workers, way), []).append(figures)
    rows = []
    for (workers, way), rounds in sorted(rounds_by_variant.items()):
        baseline, single = rounds_by_variant[workers, "as it is"], rounds_by_variant.get((1, way), [])
        ratios = [figures["rate"] / other["rate"] for figures, other in zip(rounds, baseline, strict=True)]
        scaling = [figures["rate"] / other["rate"] for figures, other in zip(rounds, single, strict=False)]
        rows.append({
            "MB": MEGABYTES.get(dense, dense), "workers": workers, "way": way,
            "steps/s": statistics.median(figures["rate"] for figures in rounds),
            "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
            "scaling": statistics.median(scaling) if scaling else "",
            "faults/step": round(statistics.median(figures["faults"] for figures in rounds)),
            "peak MiB": max(figures["peak"] for figures in rounds),
        })  # fmt: skip
    return rows


def measure(allocator: str, *, workers: int, **case: Any) -> dict[str, Any]:
    """Return the figures of the slowest worker, and the peak memory of all workers."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "ESTIMATOR_PIPELINE_MALLOC": allocator, "ESTIMATOR_PIPELINE_PATCHES": "none"}
        environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        environ["PYTHONPATH"] = os.pathsep.join([str(common.ROOT), str(Path(__file__).parent)])
        # A single process gets one core, like each of two workers.
        single = dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), "1") | {"TF_NUM_INTEROP_THREADS": "2"}
        command = [sys.executable, "-m", "estimator_pipeline"]
        shown = [*command, "exec", __file__, "--measure", json.dumps(case)]
        if workers > 1:
            shown = [*command, "launch", "--workers", str(workers), "--log-dir", folder, "--", *shown]
        core = min(os.sched_getaffinity(0))
        done = subprocess.run(
            shown, env=environ if workers > 1 else {**environ, **single}, cwd=folder, capture_output=True, text=True,
            timeout=3600, check=False, preexec_fn=None if workers > 1 else lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip
        logs = [path.read_text() for path in Path(folder).glob("worker-*.log")] if workers > 1 else [done.stdout]
        lines = [line.split(" ", 1)[1] for log in logs for line in log.splitlines() if line.startswith("MEASURED ")]
        if len(lines) != workers:
            raise SystemExit(f"{done.stdout[-2000:]}{done.stderr[-2000:]}\n{''.join(log[-3000:] for log in logs)}")
        figures: list[dict[str, Any]] = [json.loads(line) for line in lines]
        slowest = min(figures, key=lambda worker: worker["rate"])
        return {**slowest, "peak": max(worker["peak"] for worker in figures)}


def train(dense: int, steps: int, changing: bool) -> dict[str, Any]:
    """Train in this process as the task of TF_CONFIG, and return the figures."""
    import numpy as np
    import tensorflow as tf

    v1 = tf.compat.v1
    chance = np.random.default_rng(0)
    images, labels_of = chance.random((512, 28, 28, 1), dtype=np.float32), np.arange(512) % 10
    without_auto_shard = tf.data.Options()
    without_auto_shard.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    def input_fn(input_context: Any = None) -> Any:
        if not changing:
            data = tf.data.Dataset.from_tensor_slices((images, labels_of)).cache().shuffle(512).repeat()
            return data.batch(64, drop_remainder=True).prefetch(2).with_options(without_auto_shard)

        def batches() -> Any:
            while True:
                size = chance.integers(1, 512)
                yield images[:size], labels_of[:size]

        shapes = tf.TensorSpec([None, 28, 28, 1], tf.float32), tf.TensorSpec([None], tf.int64)
        return tf.data.Dataset.from_generator(batches, output_signature=shapes).prefetch(2)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        inner = tf.nn.conv2d(features, v1.get_variable("kernel", [3, 3, 1, 32]), 1, "VALID")
        inner = tf.nn.max_pool2d(tf.nn.relu(inner + v1.get_variable("kernel_bias", [32])), 2, 2, "VALID")
        inner = tf.reshape(inner, [-1, 13 * 13 * 32]) @ v1.get_variable("dense", [13 * 13 * 32, dense])
        inner = tf.nn.relu(inner + v1.get_variable("dense_bias", [dense]))
        logits = inner @ v1.get_variable("output", [dense, 10]) + v1.get_variable("output_bias", [10])
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        step = v1.train.GradientDescentOptimizer(0.01).minimize(loss, v1.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    clock, resident = common.step_clock(tf, behind=WARM), {}

    class Memory(tf.estimator.SessionRunHook):
        steps = first = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.steps += 1
            if self.steps == WARM:
                self.first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            if self.steps % max(1, (WARM + steps) // 5) == 0:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                resident[self.steps] = pages * resource.getpagesize() >> 20

    memory = Memory()
    cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if len(cluster.get("worker", [])) > 1 else None
    config = tf.estimator.RunConfig(tempfile.mkdtemp(dir="."), train_distribute=strategy, save_checkpoints_secs=9999)
    train_spec = tf.estimator.TrainSpec(input_fn, max_steps=WARM + steps, hooks=[clock, memory])
    eval_spec = tf.estimator.EvalSpec(lambda: input_fn().take(1), steps=1)
    tf.estimator.train_and_evaluate(tf.estimator.Estimator(model_fn, config=config), train_spec, eval_spec)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"rate": clock.rate(), "faults": (used.ru_minflt - memory.first) / steps, "peak": used.ru_maxrss >> 10,
            "resident": resident}  # fmt: skip


if __name__ == "__main__":
    main()
