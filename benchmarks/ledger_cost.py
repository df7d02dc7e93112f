"""Cost of a ledger: steps per second of an Estimator with and without one.

    python benchmarks/ledger_cost.py [--models linear dnn] [--steps N] [--rounds N] [--json FILE]

`linear` is a softmax regression with a very short step: the worst case. The data are the digits, from this package's
inputs and from a custom input function, which the ledger records by fingerprints. The trainings with and without ledger
run in turns in one process (`common.in_turns`), with the same initial values.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import common

DATA = {"ours": "inputs.from_tfds", "custom": "a custom input_fn"}
BATCH = 64


def measure(kind: str, model: str, steps: int, rounds: int) -> dict[str, Any]:
    from absl import logging

    import estimator_pipeline as ep
    import model_fns
    from estimator_pipeline import compat
    from estimator_pipeline.cluster import from_environ
    from estimator_pipeline.engines.recording.ledger import TaskLedger

    tf = compat.install()
    tf.get_logger().setLevel("ERROR")
    logging.set_verbosity(logging.ERROR)
    data = ep.inputs.from_tfds("digits", global_batch_size=BATCH, scale=1 / 16, seed=1)
    features, labels = next(iter(data.eval_input_fn().unbatch().batch(10**6)))
    features, labels = tf.nest.map_structure(lambda tensor: tensor.numpy(), (features, labels))

    def custom_input_fn() -> Any:
        records = tf.data.Dataset.from_tensor_slices((features, labels))
        return records.shuffle(len(labels), seed=1).repeat().batch(BATCH, drop_remainder=True).prefetch(4)

    size = 0

    def rate(ledger: bool) -> float:
        nonlocal size
        with tempfile.TemporaryDirectory() as folder:
            input_fn = data.train_input_fn if kind == "ours" else custom_input_fn
            clock = common.step_clock(tf, behind=200)
            hooks: list[Any] = [clock]
            if kind == "ours":
                input_fn.ledger = None
            if ledger:
                task_ledger = TaskLedger(Path(folder) / "ledger", tf_config=from_environ({}))
                input_fn, hooks = task_ledger.input_fn(input_fn), [task_ledger.hook(), clock]
            config = ep.build_run_config(
                f"{folder}/model", environ={}, seed=1, log_step_count_steps=None, save_summary_steps=None
            )
            estimator = tf.estimator.Estimator(model_fns.model_fn(model, optimizer={"name": "sgd"}), config=config)
            estimator.train(input_fn, max_steps=steps, hooks=hooks)
            if ledger:
                size = sum(entry.stat().st_size for entry in os.scandir(Path(folder) / "ledger"))
            return float(clock.rate())

    return {**common.in_turns(rate, rounds), "bytes": size / (steps * BATCH)}


def main() -> None:
    options = common.parser(__doc__.splitlines()[0])
    options.add_argument("--models", nargs="+", default=["linear", "dnn"])
    options.add_argument("--steps", type=int, default=4000)
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    if chosen.steps < 500 or chosen.rounds < 1:
        options.error("--steps must be at least 500, and --rounds at least 1")
    if chosen.measure:
        print(json.dumps(measure(chosen.measure, chosen.models[0], chosen.steps, chosen.rounds)))
        return
    rows = []
    for model in chosen.models:
        for kind, called in DATA.items():
            arguments = ["--models", model, "--steps", str(chosen.steps), "--rounds", str(chosen.rounds)]
            figures = common.in_child(sys.argv[0], kind, arguments=arguments)
            columns = {"model": model, "data": called, **common.rate_columns(figures)}
            rows.append({**columns, "bytes a record": figures["bytes"]})
    common.report("ledger_cost", rows, chosen.json)


if __name__ == "__main__":
    main()
