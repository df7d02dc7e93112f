"""One row of the catalogue: a construct of Estimator programs, and what takes its place in Keras."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

__all__ = ["KINDS", "Row", "table"]

KINDS: Mapping[str, str] = {
    "estimator": "Estimators",
    "canned estimator": "canned Estimators",
    "model_fn": "model functions",
    "input_fn": "input functions",
    "serving input": "serving inputs",
    "spec": "EstimatorSpec and its fields",
    "run config": "RunConfig and its fields",
    "train and eval spec": "TrainSpec, EvalSpec and their fields",
    "call": "training, evaluation, prediction, export",
    "hook": "hooks and listeners",
    "exporter": "exporters",
    "head": "heads",
    "export output": "export outputs",
    "feature column": "feature columns",
    "layer": "V1 layers",
    "loss": "V1 losses",
    "metric": "V1 metrics",
    "optimizer": "V1 optimizers",
    "learning rate": "V1 learning rates",
    "variable": "variables and scopes",
    "session": "graphs and sessions",
    "summary": "summaries",
    "warm start": "warm starts",
    "checkpoint": "checkpoints",
    "tf_config": "TF_CONFIG",
    "strategy": "strategies",
    "tpu": "TPU Estimators",
    "contrib": "tf.contrib",
    "flags": "flags and HParams",
    "private import": "private imports",
    "keras estimator": "Keras models as Estimators",
    "data": "V1 data",
    "behavior": "switches of behaviour",
    "v1 symbol": "other V1 symbols",
    "unreadable": "files that cannot be read",
}
"""Kind -> what a heading calls it, in the order of reports."""


@dataclass(frozen=True)
class Row:
    """What is known of a construct.

    Attributes:
        name: its canonical name: `tf.estimator.X`, `tf.compat.v1.X`, `tf.contrib.X`, or the word for what has no
            name in TensorFlow ("model_fn"). A field is named below its class: `tf.estimator.RunConfig.model_dir`.
        kind: one of `KINDS`.
        successor: what takes its place in Keras, or on TensorFlow 2.
        write: what to write there, as code.
        also: further full names of the same thing.
        rule: the converter's rule; the scan says "automatic" only where `..rules` has it.
        fields: parameters in their order, where each is a row of its own.
        gives: what a call of it gives, where that is an instance of another row's class.
        runs: whether it runs under compat where TensorFlow has its name; False: it is gone, whatever its spelling.
        because: why it does not run; or what to know where it does.
        keep: what to write so that it runs, where it does not.
    """

    name: str
    kind: str
    successor: str
    write: str
    also: tuple[str, ...] = ()
    rule: str | None = None
    fields: tuple[str, ...] = ()
    gives: str | None = None
    runs: bool = True
    because: str = ""
    keep: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every full name that means this, the canonical one first.

        `tf.X` is what `tf.compat.v1.X` was called in TensorFlow 1, so each stands for the other.
        """
        found = [self.name, *self.also]
        for name in list(found):
            if name.startswith("tf.compat.v1."):
                found.append("tf." + name.removeprefix("tf.compat.v1."))
            elif name.startswith("tf.") and not name.startswith("tf.contrib."):
                found.append("tf.compat.v1." + name.removeprefix("tf."))
        return tuple(dict.fromkeys(found))

    @property
    def anchor(self) -> str:
        """The section of docs/reference/migrate-constructs.md for this kind."""
        heading = re.sub(r"[^\w\- ]", "", KINDS[self.kind].lower()).replace(" ", "-")
        return f"docs/reference/migrate-constructs.md#{heading}"


def table(kind: str, prefix: str, rows: Iterable[tuple[str, str, str]], **common: object) -> tuple[Row, ...]:
    """Rows of one kind: (name below `prefix`, successor, what to write)."""
    made = (Row(prefix + name, kind, successor, write) for name, successor, write in rows)
    return tuple(replace(row, **common) for row in made)  # type: ignore[arg-type]
