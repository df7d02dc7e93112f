"""Steps per second of two workers with embeddings, with and without the patches for sparse gradients.

    python benchmarks/sparse_gradients.py [--rounds N] [--json FILE]

An Estimator with embeddings trains in two worker processes under MultiWorkerMirroredStrategy. Each batch has the same
number of different ids, because unpatched tf.estimator fails at a step with a different number. Three variants run in
turns: unpatched tf.estimator, with only the patch `gather-sizes`, and with all patches. A fourth has all patches and
a changing number of ids.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common

WAYS = {"tf.estimator": "none", "gather-sizes alone": "gather-sizes", "all patches": "all"}
CASES = [(1, 200, 16), (16, 200, 16), (1, 20_000, 16)]  # embeddings, ids in a batch, columns
WARM, STEPS = 30, 200


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    if asked.measure:
        print("RATE", train(*json.loads(asked.measure)), flush=True)
        return
    rows = []
    for case in CASES:
        rates: dict[str, list[float]] = {}
        for number in range(asked.rounds):
            for way, patches in list(WAYS.items())[:: 1 if number % 2 else -1]:
                rates.setdefault(way, []).append(measure(patches, *case, False))
            rates.setdefault("all patches, ids that change", []).append(measure("all", *case, True))
        plain = rates["tf.estimator"]
        for way in [*WAYS, "all patches, ids that change"]:
            ratios = [a / b for a, b in zip(rates[way], plain, strict=True)]
            names = dict(zip(("embeddings", "ids", "columns"), case, strict=True))
            rows.append({**names, "way": way, "steps/s": round(statistics.median(rates[way])),
                         "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)})  # fmt: skip
    common.report("sparse_gradients", rows, asked.json)


def measure(patches: str, *case: Any) -> float:
    """Return the steps per second of the slower of two workers."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "ESTIMATOR_PIPELINE_PATCHES": patches, "TF_CPP_MIN_LOG_LEVEL": "3"}
        environ["PYTHONPATH"] = os.pathsep.join([str(common.ROOT), str(Path(__file__).parent)])
        command = ["launch", "--workers", "2", "--log-dir", folder, "--", sys.executable]
        command += ["-m", "estimator_pipeline", "exec", __file__, "--measure", json.dumps(case)]
        done = subprocess.run(
            [sys.executable, "-m", "estimator_pipeline", *command],
            env=environ, cwd=folder, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        logs = [path.read_text() for path in Path(folder).glob("worker-*.log")]
        rates = [line.split()[1] for log in logs for line in log.splitlines() if line.startswith("RATE ")]
        if len(rates) != 2:
            raise SystemExit(f"{done.stdout[-2000:]}{done.stderr[-2000:]}\n{''.join(log[-3000:] for log in logs)}")
        return min(map(float, rates))


def train(embeddings: int, ids: int, columns: int, changes: bool) -> float:
    import numpy as np
    import tensorflow as tf

    v1 = tf.compat.v1
    chance = np.random.default_rng(0)

    def input_fn(input_context: Any = None) -> Any:
        def batches() -> Any:
            while True:
                yield chance.permutation(2 * ids)[: chance.integers(1, ids) if changes else ids]

        return tf.data.Dataset.from_generator(
            batches, output_signature=tf.TensorSpec([None] if changes else [ids], tf.int64)
        ).with_options(without_auto_shard)

    without_auto_shard = tf.data.Options()
    without_auto_shard.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss = 0.0
        for index in range(embeddings):
            table = v1.get_variable(f"table{index}", [2 * ids, columns])
            loss += tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, features) - 1.0))
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    clock = common.step_clock(tf, behind=WARM)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    config = tf.estimator.RunConfig(tempfile.mkdtemp(dir="."), train_distribute=strategy, save_checkpoints_secs=9999)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    train_spec = tf.estimator.TrainSpec(input_fn, max_steps=WARM + STEPS, hooks=[clock])
    # The evaluation is minimal: only the rate of the training steps matters.
    tf.estimator.train_and_evaluate(estimator, train_spec, tf.estimator.EvalSpec(lambda: input_fn().take(1), steps=1))
    return float(clock.rate())


if __name__ == "__main__":
    main()
