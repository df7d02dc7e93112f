"""Measured differences between the two engines by topology, optimizer and model, written as a table.

    python tools/parity_table.py run [--topology single] [--model cnn] [--optimizer adam]    measure, merge results
    python tools/parity_table.py write                    write docs/reference/parity-table.md

A cell is a job that both engines train for 50 steps with the same initial values and records. The same processes train
all cells of a topology, one after the other: real TF_CONFIG workers if there are several. The tests train some of the
cells again, and compare every recorded cell with its tolerance.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "records" / "parity_results.json"
TABLE = ROOT / "docs" / "reference" / "parity-table.md"
STEPS = 50
BATCH = 48  # divisible by 1, 2 and 3 replicas
ENGINES = ("keras", "estimator")  # the first one's initial values are used by both

# Topology -> overrides of the job, number of processes
TOPOLOGIES: dict[str, tuple[list[str], int]] = {
    "single": ([], 1),
    "mirrored x2": (["run.train_distribute=mirrored", "run.num_devices=2"], 1),
    "workers x2": (["run.train_distribute=multi_worker_mirrored", "cluster.workers=2"], 2),
    "workers x3": (["run.train_distribute=multi_worker_mirrored", "cluster.workers=3"], 3),
}
RATES = {
    "sgd": 0.1, "momentum": 0.05, "nesterov": 0.05, "adam": 0.001, "adagrad": 0.05, "rmsprop": 0.001, "ftrl": 0.1,
}  # fmt: skip
MODELS: dict[str, list[str]] = {
    "cnn": ["model.name=cnn"],
    "dnn": ["model.name=dnn", "model.params={dropout: 0.0}"],
    "wide_deep": ["model.name=wide_deep", "model.params={numeric: [p10, p20, p44], categorical: {p27: 17, p36: 17}}"],
    "resnet": ["model.name=resnet"],
    "regularised": ["model.name=cnn", "model.params={l2: 0.001}"],
}
# Options with which stock Keras computes the same as tf.compat.v1.train, and what is not compared if there are none.
V1_AGAINST_KERAS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"slots": False},
    "nesterov": {"slots": False},
    "adam": {"options": "{epsilon: 1.0e-8}"},
    "adagrad": {"options": "{epsilon: 1.0e-30}"},
    "rmsprop": {"slots": False, "differs": True},
    "ftrl": {},
}
V1_KERAS = "V1 against Keras"

HEAD = """\
# Measured differences between tf.estimator and Model.fit

<!-- Written by `python tools/parity_table.py write`; do not edit. -->

Largest difference of a weight or optimizer slot after any of {steps} steps, relative to the largest value of its array.
"=" is bit-identical in every step. Both engines start from the same values and read the same records, global batch
{batch}; {versions}. Workers are processes with a `TF_CONFIG` on one machine.

Weights, slots, losses, learning rates, moving statistics and final metrics must be `bit_equal`, except for the default
tolerances of `parity` ([parity.md](../guides/parity.md#tolerances)). The second number of resnet is that of
BatchNormalization's moving statistics: a fused kernel computes them in a tf.function, separate operations in a session.
"""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One job: its topology, optimizer and model."""

    topology: str
    optimizer: str
    model: str
    kind: str = "same"

    @property
    def key(self) -> str:
        """The key of the cell in the results."""
        return " / ".join((self.kind, self.topology, self.optimizer, self.model))

    @property
    def folder(self) -> str:
        """The name of the folder of the cell."""
        return self.key.replace(" / ", "-").replace(" ", "_")

    @property
    def tolerance(self) -> str:
        """The named tolerance of weights and slots; see the text above the table."""
        return "rounding" if self.kind == V1_KERAS and self.optimizer not in ("sgd", "ftrl") else "bit_equal"

    @property
    def slots(self) -> bool:
        """Whether optimizer slots are compared."""
        return bool(V1_AGAINST_KERAS[self.optimizer].get("slots", True)) if self.kind == V1_KERAS else True

    def changes(self, engine: str, base: Path) -> list[str]:
        """Return the overrides of the job of `job_file`."""
        api, options = "v1", "{}"
        if self.kind == V1_KERAS and engine == "keras":
            api, options = "keras", V1_AGAINST_KERAS[self.optimizer].get("options", "{}")
        optimizer = (
            f"{{name: {self.optimizer}, learning_rate: {RATES[self.optimizer]}, api: {api}, options: {options}}}"
        )
        return [
            *TOPOLOGIES[self.topology][0],
            *MODELS[self.model],
            f"model.optimizer={optimizer}",
            f"run.engine={engine}",
            f"run.model_dir={base / self.folder / engine / 'model'}",
        ]


def cells() -> list[Cell]:
    """Return all cells."""
    same = [Cell(t, o, m) for t in TOPOLOGIES for m in MODELS for o in RATES]
    return same + [Cell("single", optimizer, "cnn", V1_KERAS) for optimizer in RATES]


def job_file(base: Path, model: str, steps: int) -> Path:
    """Write the job of a model for the digits, as images or as a table of some pixels."""
    path = base / f"{'table' if model == 'wide_deep' else 'images'}.yaml"
    if path.exists():
        return path
    source = f"source: tfds\n  name: digits\n  scale: 1/16\n  data_dir: {base / 'tfds'}"
    if model == "wide_deep":
        for split, values in table().items():
            import numpy as np

            np.savez(base / f"{split}.npz", **values)
        source = f"source: arrays\n  train: {base / 'train.npz'}\n  eval: {base / 'eval.npz'}\n  label_key: label"
    path.write_text(
        f"model: {{name: cnn}}\ninput:\n  {source}\n  global_batch_size: {BATCH}\n  seed: 1\n"
        f"train: {{max_steps: {steps}}}\n"
        f"run: {{model_dir: unset, seed: 1, save_checkpoints_steps: {steps}, save_summary_steps: {10 * steps}}}\n",
        encoding="utf-8",
    )
    return path


def table() -> dict[str, dict[str, Any]]:
    """Return the digits as a table: three pixels as numbers, two as categories, and whether the digit is above 4."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    columns = {f"p{n}": (images[:, n] / 16).astype("float32") for n in (10, 20, 44)}
    columns |= {f"p{n}": images[:, n].astype("int64") for n in (27, 36)}
    columns["label"] = (labels > 4).astype("int32")
    return {
        "train": {name: values[:1440] for name, values in columns.items()},
        "eval": {name: values[1440:] for name, values in columns.items()},
    }


def train(base: Path, engine: str, todo: Sequence[Cell], steps: int) -> None:
    """Train and record the cells one after the other, as one task."""
    from estimator_pipeline import compat
    from estimator_pipeline.cluster import from_environ
    from estimator_pipeline.engines.jobs.run import run_job
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder
    from estimator_pipeline.job import load_job
    from estimator_pipeline.parity.step_records import BatchWriter, StepWriter, initial_of
    from estimator_pipeline.utils.variable_names import GLOBAL_STEP, canonical

    tf = compat.install()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    if todo[0].topology == "mirrored x2":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    chief = from_environ(os.environ).is_chief
    for cell in todo:
        # Layer names are numbered per process.
        tf.keras.backend.clear_session()
        job = load_job(job_file(base, cell.model, steps), overrides=cell.changes(engine, base))
        record = base / cell.folder / engine / "record"
        start = None
        if engine == "estimator":
            initial = initial_of(base / cell.folder / "keras" / "record")
            slots = cell.kind != V1_KERAS
            start = {n: v for n, v in initial.items() if n != GLOBAL_STEP and (slots or " @" not in n)}
        recording = StepRecorder(
            writer=lambda record=record: StepWriter(record),
            canonical=canonical,
            start=start,
            batches=lambda task, record=record: BatchWriter(record, task).batch,
        )
        result = run_job(job, recording=recording)
        if chief:
            (record / "metrics.json").write_text(json.dumps(dict(result.metrics), default=float), encoding="utf-8")
            print(f"{engine}: {cell.key}", flush=True)


def measure(todo: Sequence[Cell], *, steps: int = STEPS, base: Path, timeout: float = 3600.0) -> dict[str, Any]:
    """Train the cells of one topology with both engines and return key -> comparison."""
    from estimator_pipeline import launch
    from estimator_pipeline.inputs.sources.digits import prepare
    from estimator_pipeline.launch.local.run import planned_cluster

    (topology,) = {cell.topology for cell in todo}
    base.mkdir(parents=True, exist_ok=True)
    if not (base / "tfds").exists():
        prepare(str(base / "tfds"))
    for model in {cell.model for cell in todo}:
        job_file(base, model, steps)
    (base / "cells.json").write_text(json.dumps([dataclasses.astuple(cell) for cell in todo]), encoding="utf-8")
    workers = TOPOLOGIES[topology][1]
    for engine in ENGINES:
        command = [sys.executable, __file__, "train", str(base), engine, str(steps)]
        with planned_cluster(
            command,
            shape=launch.LaunchShape(workers=workers),
            log_dir=base / f"logs-{engine}-{topology.replace(' ', '_')}",
            run_id=launch.new_run_id(),
            environ={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            foreign=True,
        ) as plan:
            outcome = launch.run_local(plan, view=None, timeout=timeout)
        if outcome.exit_code != 0:
            reason = outcome.failure.text() if outcome.failure is not None else outcome.reason
            raise RuntimeError(f"{engine}, {topology}: {reason}; logs in {plan.log_dir}")
    return {cell.key: compare(cell, base, steps) for cell in todo}


def compare(cell: Cell, base: Path, steps: int) -> dict[str, Any]:
    """Return the comparison of the two records of a cell, and remove them."""
    from estimator_pipeline.job import load_job
    from estimator_pipeline.job.tolerances import Tolerances, kind_of
    from estimator_pipeline.parity.comparison import compare_records
    from estimator_pipeline.parity.diagnosis.diagnose import Facts
    from estimator_pipeline.parity.jobs import default_tolerances as defaults
    from estimator_pipeline.parity.jobs.run import weighed_alike
    from estimator_pipeline.parity.step_records import initial_of

    folder = base / cell.folder
    metrics = {e: json.loads((folder / e / "record" / "metrics.json").read_text()) for e in ENGINES}
    local = 2 if cell.topology == "mirrored x2" else 1
    variables = initial_of(folder / "keras" / "record")
    job = load_job(job_file(base, cell.model, steps), overrides=cell.changes("keras", base))
    tolerances = {"weights": cell.tolerance, "slots": cell.tolerance}
    if cell.tolerance != "bit_equal":
        tolerances |= dict.fromkeys(("loss", "update_norm", "metrics"), cell.tolerance)
    comparison = compare_records(
        folder,
        metrics=weighed_alike(metrics),
        finals=metrics,
        tolerances=Tolerances.of(tolerances, defaults=defaults.of_job(job, engines=ENGINES, variables=variables)),
        facts=Facts(batches_per_step=local, replicas=local * TOPOLOGIES[cell.topology][1]),
        slots=cell.slots,
        steps=steps,
    )
    differences = [(step.step, difference) for step in comparison.steps for difference in step.variables.differences]
    statistics = [d.rtol_of_max for _, d in differences if kind_of(d.name) == "statistics"]
    trained = [pair for pair in differences if kind_of(pair[1].name) != "statistics"]
    worst = max(trained, key=lambda pair: pair[1].rtol_of_max, default=None)
    losses = [
        (d.relative, s) for s, numbers in comparison.numbers.items() for d in numbers.differences if d.name == "loss"
    ]
    shutil.rmtree(folder)
    return {
        "equal": comparison.equal,
        "fault": None
        if comparison.first_fault is None
        else f"step {comparison.first_fault[0]}: {comparison.first_fault[1].message}",
        "findings": [str(finding) for finding in comparison.findings],
        "steps": len(comparison.steps),
        "records": len(comparison.records),
        "variables": len(comparison.initial.names),
        "largest": 0.0 if worst is None else worst[1].rtol_of_max,
        "where": None if worst is None else f"{worst[1].name}, step {worst[0]}",
        "statistics": max(statistics, default=0.0)
        if any(kind_of(name) == "statistics" for name in variables)
        else None,
        "loss": max(losses)[0] if losses else 0.0,
        "tolerance": cell.tolerance,
    }


def write(results: dict[str, Any]) -> str:
    """Return the page."""
    lines = [HEAD.format(steps=STEPS, batch=BATCH, versions=results["versions"])]

    def text_of(cell: Cell) -> str:
        result = results["cells"].get(cell.key)
        if result is None:
            return "—"
        numbers = [result["largest"]] if result["statistics"] is None else [result["largest"], result["statistics"]]
        shown = ", ".join(f"{number:.1e}" if number else "=" for number in numbers)
        return shown + ("" if result["equal"] else " **differs**")

    for topology in TOPOLOGIES:
        lines += [f"## {topology}", "", "| | " + " | ".join(RATES) + " |", "| --- |" + " --- |" * len(RATES)]
        lines += [
            f"| {model} | " + " | ".join(text_of(Cell(topology, optimizer, model)) for optimizer in RATES) + " |"
            for model in MODELS
        ]
        lines.append("")
    lines += [
        "## V1 and stock Keras optimizers",
        "",
        "The Estimator uses `tf.compat.v1.train`, Keras `tf.keras.optimizers.legacy` with equivalent options: cnn, one",
        "process.",
        "",
        "| optimizer | Keras options | largest difference | note |",
        "| --- | --- | --- | --- |",
    ]
    for optimizer, known in V1_AGAINST_KERAS.items():
        why = "" if known.get("slots", True) else "velocities are not compared: Keras scales them by the learning rate"
        if known.get("differs"):
            why = "slots are not compared; no option makes the two equal, see [keras.md](../guides/keras.md)"
        cell = Cell("single", optimizer, "cnn", V1_KERAS)
        lines.append(f"| {optimizer} | `{known.get('options', '{}')}` | {text_of(cell)} | {why} |")
    return "\n".join(lines) + "\n"


def versions() -> str:
    """Return the versions of TensorFlow and Python."""
    python = ".".join(map(str, sys.version_info[:2]))
    return f"TensorFlow {metadata.version('tensorflow')}, Python {python}"


def read() -> dict[str, Any]:
    """Return the recorded results."""
    if not RESULTS.exists():
        return {"versions": versions(), "cells": {}}
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def select_cells(arguments: Any) -> Iterable[list[Cell]]:
    """Yield the selected cells of each topology."""
    for topology in TOPOLOGIES:
        selected = [
            cell
            for cell in cells()
            if cell.topology == topology
            and (not arguments.topology or topology in arguments.topology)
            and (not arguments.optimizer or cell.optimizer in arguments.optimizer)
            and (not arguments.model or cell.model in arguments.model)
        ]
        if selected:
            yield selected


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    for name, choices in (("topology", TOPOLOGIES), ("optimizer", RATES), ("model", MODELS)):
        run.add_argument(f"--{name}", action="append", choices=list(choices))
    commands.add_parser("write")
    task = commands.add_parser("train")
    task.add_argument("base", type=Path)
    task.add_argument("engine", choices=ENGINES)
    task.add_argument("steps", type=int)
    arguments = parser.parse_args()
    if arguments.command == "train":
        todo = [Cell(*fields) for fields in json.loads((arguments.base / "cells.json").read_text(encoding="utf-8"))]
        train(arguments.base, arguments.engine, todo, arguments.steps)
    elif arguments.command == "write":
        TABLE.write_text(write(read()), encoding="utf-8")
    else:
        for todo in select_cells(arguments):
            with tempfile.TemporaryDirectory() as folder:
                measured = measure(todo, base=Path(folder))
            results = read()
            results["versions"] = versions()
            results["cells"].update(measured)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            for key, result in measured.items():
                print(f"{key}: {result['largest']:.2g} {'' if result['equal'] else result['fault']}", flush=True)


if __name__ == "__main__":
    main()
