"""Cost of the patch `even-batches`: `Estimator.evaluate` on two replicas with and without it.

    python benchmarks/mirrored_evaluation.py [--models linear cnn] [--batches N] [--rounds N] [--json FILE]

The replicas are two CPU devices of one process. The number of batches is even, so unpatched TensorFlow counts every
record, too: the patch changes nothing, and the benchmark measures only its check. For some data TensorFlow knows the
number of batches (`cardinality`); for files, generators and filters it does not, and the patch checks each round of
batches. Both ways evaluate in turns in one process (`common.in_turns`). `linear` is a softmax regression with a very
short step: the worst case.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import common

DATA = {"known": "of known cardinality", "unknown": "a filter, of unknown cardinality"}
BATCH = 64


def measure(kind: str, model: str, batches: int, rounds: int) -> dict[str, Any]:
    import numpy as np
    from absl import logging

    import estimator_pipeline as ep
    import model_fns
    from estimator_pipeline import compat
    from estimator_pipeline.compat.internals.data_end import even_batches

    tf = compat.install()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    tf.get_logger().setLevel("ERROR")
    logging.set_verbosity(logging.ERROR)
    pixels = np.random.default_rng(0).random((16 * BATCH, 8, 8, 1), dtype=np.float32)
    labels = np.arange(16 * BATCH) % 10

    def input_fn(marked: bool) -> Any:
        records = tf.data.Dataset.from_tensor_slices((pixels, labels)).batch(BATCH).repeat(batches // 16)
        if kind == "unknown":
            records = records.filter(lambda features, _: tf.size(features) > 0)
        records = records.prefetch(4)
        # The patch ignores marked datasets.
        return even_batches.mark_even(records) if marked else records

    with tempfile.TemporaryDirectory() as folder:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        config = ep.build_run_config(folder, environ={}, eval_distribute=strategy)
        estimator = tf.estimator.Estimator(model_fns.model_fn(model, optimizer={"name": "sgd"}), config=config)
        estimator.train(lambda: input_fn(True), steps=1)

        def rate(patched: bool) -> float:
            clock = common.step_clock(tf, behind=8)
            estimator.evaluate(lambda: input_fn(not patched), hooks=[clock])
            if clock.steps != batches // 2:
                raise SystemExit(f"{batches} batches on two replicas, and {clock.steps} steps")
            return float(clock.rate())

        return common.in_turns(rate, rounds)


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--models", nargs="+", default=["linear", "cnn"])
    options.add_argument("--batches", type=int, default=1024, help="a multiple of 32")
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    if chosen.batches < 32 or chosen.batches % 32 or chosen.rounds < 1:
        options.error("--batches must be a multiple of 32, and --rounds at least 1")
    if chosen.measure:
        print(json.dumps(measure(chosen.measure, chosen.models[0], chosen.batches, chosen.rounds)))
        return
    rows = []
    for model in chosen.models:
        for kind, called in DATA.items():
            arguments = ["--models", model, "--batches", str(chosen.batches), "--rounds", str(chosen.rounds)]
            figures = common.in_child(sys.argv[0], kind, arguments=arguments)
            rows.append({"model": model, "data": called, **common.rate_columns(figures)})
    common.report("mirrored_evaluation", rows, chosen.json)


if __name__ == "__main__":
    main()
