"""List of the cases, with their contenders and targets."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.suite.figures import Target
from benchmarks.suite.work import MODELS
from estimator_pipeline.errors import ConfigError

__all__ = ["CASES", "CONTENDERS", "Case", "select_cases"]

CONTENDERS = {
    "plain_estimator": "plain tf.estimator",
    "estimator": "Estimator engine",
    "plain_keras": "plain Keras fit",
    "keras": "Keras engine",
    "limit": "the limit",
    "bare_graph": "bare import, graph, step",
    "bare_keras": "bare import, function, step",
    "plain": "plain tf.data",
    "plain_cached": "plain tf.data, cached",
    "inputs": "inputs.from_tfrecord, streamed",
    "inputs_cached": "inputs.from_tfrecord, in memory",
    "inputs_first": "inputs.from_tfrecord, first start",
    "inputs_indexed": "inputs.from_tfrecord, first start, FILE.idx",
    "inputs_later": "inputs.from_tfrecord, later starts",
    "inputs_by_record": "inputs.from_tfrecord, shared by record",
    "arithmetic": "shards and schedules",
}
"""Name -> title in the tables."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of the benchmark.

    Attributes:
        name: the name on the command line.
        title: one line.
        metric: the compared figure; a measurement has further figures.
        unit: the unit of the figure.
        more: whether a larger value is better.
        contenders: names in `CONTENDERS`, in order.
        measure: the function in `measures.py`.
        settings: options of that function.
        targets: the targets of the ratios.
        runs: the maximum number of measurements of each contender.
        quick: whether `--quick` measures it if no case is named.
        seconds: the approximate time of one full-size measurement on two cores, for the estimate.
    """

    name: str
    title: str
    metric: str
    unit: str
    more: bool
    contenders: tuple[str, ...]
    measure: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    runs: int | None = None
    quick: bool = True
    seconds: float = 10.0


def _training(model: str, workers: int) -> Case:
    dispatch_bound = model in ("softmax", "wide_deep")
    targets = [
        Target(
            contender="estimator",
            against="plain_estimator",
            least=(2.0 if workers == 1 else 1.5) if dispatch_bound else 1.0,
        ),
        Target(contender="keras", against="plain_keras", least=1.0 if workers == 1 else 2.0),
    ]
    if model == "cnn":
        for engine in ("estimator", "keras"):
            if workers == 1:
                targets.append(Target(contender=engine, against="limit", least=0.95))
            else:
                targets.append(Target(contender=engine, against=engine, case="train-cnn-1", times=workers, least=0.8))
    limit = ("limit",) if workers == 1 else ()
    return Case(
        name=f"train-{model}-{workers}",
        title=f"training, {model}, {workers} worker{'s' if workers > 1 else ''}, a core each",
        metric="records_per_sec",
        unit="records/s",
        more=True,
        contenders=("plain_estimator", "estimator", "plain_keras", "keras", *limit),
        measure="training",
        settings={"model": model, "workers": workers, "kind": "single" if workers == 1 else "workers"},
        targets=tuple(targets),
        quick=model != "dnn",
        seconds=7 if workers == 1 else 9,
    )


CASES: tuple[Case, ...] = (
    *(_training(model, workers) for workers in (1, 2) for model in MODELS),
    Case(
        name="train-cnn-ps",
        title="training, cnn, a chief and a worker, one parameter server, asynchronous",
        metric="records_per_sec",
        unit="records/s",
        more=True,
        contenders=("plain_estimator", "estimator"),
        measure="training",
        settings={"model": "cnn", "workers": 2, "kind": "ps"},
        targets=(Target(contender="estimator", against="plain_estimator", least=1.0),),
        quick=False,
        seconds=20,
    ),
    Case(
        name="evaluation",
        title="evaluation cycle, from checkpoint to metrics, cnn, 1,024 records",
        metric="seconds",
        unit="s",
        more=False,
        contenders=("plain_estimator", "estimator", "plain_keras", "keras"),
        measure="evaluation",
        settings={"model": "cnn"},
        targets=(
            Target(contender="estimator", against="plain_estimator", most=0.5),
            Target(contender="keras", against="plain_keras", most=0.5),
        ),
        seconds=6.5,
    ),
    Case(
        name="first-step",
        title="from the launch of a process to its first step, cnn, 1 worker",
        metric="seconds",
        unit="s",
        more=False,
        contenders=("bare_graph", "plain_estimator", "estimator", "bare_keras", "plain_keras", "keras"),
        measure="first_step",
        settings={"model": "cnn"},
        targets=(
            Target(contender="estimator", against="bare_graph", most=1.1),
            Target(contender="keras", against="bare_keras", most=1.1),
        ),
        seconds=5,
    ),
    Case(
        name="restart",
        title="a killed worker: from its death to the next step, beside a first start, 2 workers",
        metric="seconds",
        unit="s",
        more=False,
        contenders=("estimator", "keras"),
        measure="restart",
        runs=2,
        quick=False,
        seconds=30,
    ),
    Case(
        name="input",
        title="input pipeline alone, images, 1 core",
        metric="records_per_sec",
        unit="records/s",
        more=True,
        contenders=("plain", "inputs", "plain_cached", "inputs_cached"),
        measure="pipeline",
        targets=(
            Target(contender="inputs", against="plain", least=1.0),
            Target(contender="inputs_cached", against="plain_cached", least=1.0),
        ),
        seconds=8,
    ),
    Case(
        name="bytes",
        title="bytes that worker 0 of 2 reads in one pass, as parts of its share",
        metric="of_share",
        unit="of its share",
        more=False,
        contenders=("plain", "inputs_first", "inputs_indexed", "inputs_later", "inputs_by_record"),
        measure="bytes_read",
        targets=(
            Target(contender="inputs_first", against="inputs_first", most=1.05, against_metric="one"),
            Target(contender="inputs_indexed", against="inputs_indexed", most=1.05, against_metric="one"),
            Target(contender="inputs_later", against="inputs_later", most=1.05, against_metric="one"),
        ),
        runs=1,
        seconds=5,
    ),
    Case(
        name="simulated",
        title="shard arithmetic and schedules, to 4,096 workers and 10^12 records",
        metric="slowest",
        unit="s",
        more=False,
        contenders=("arithmetic",),
        measure="simulated",
        runs=1,
        seconds=30,
    ),
)
"""All cases, in the order of the table."""


def select_cases(names: Sequence[str], *, quick: bool = False) -> tuple[Case, ...]:
    """Return the cases by name, in the order of the list; "train" selects all cases "train-...".

    Args:
        names: Names of cases, or their prefixes; empty for all.
        quick: Leave out the cases that a quick run omits, if no case is named.

    Raises:
        ConfigError: There is no such case.
    """
    known = [case.name for case in CASES]
    wanted: set[str] = set()
    for name in names:
        matches = [case for case in known if case == name or case.startswith(f"{name}-")]
        if not matches:
            close = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"there is no case {name!r}",
                found=f"cases: {', '.join(known)}",
                hint=f"did you mean {close[0]!r}?" if close else "see python -m benchmarks.suite --list",
            )
        wanted.update(matches)
    return tuple(case for case in CASES if case.name in wanted or (not names and (case.quick or not quick)))
