"""A row of the catalogue: a construct of Estimator programs and its Keras replacement."""

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
"""Kind -> its heading, in the order of reports."""


@dataclass(frozen=True)
class Row:
    """A construct of Estimator programs.

    Attributes:
        name: the canonical name: `tf.estimator.X`, `tf.compat.v1.X`, `tf.contrib.X`, or a term for a construct without
            a name in TensorFlow ("model_fn"). A field is named below its class: `tf.estimator.RunConfig.model_dir`.
        kind: one of `KINDS`.
        successor: the replacement in Keras or TensorFlow 2.
        write: the code of the replacement.
        also: other full names of the same object.
        rule: the converter's rule; the scan reports "automatic" only if `..renames.registry` has the rule.
        fields: the parameters in order, if each has its own row.
        gives: the class of the object that a call returns, if that class has a row.
        runs: whether it runs under compat if TensorFlow has its name; False: it was removed under every name.
        because: why it does not run, or a remark if it does.
        keep: the code that runs under compat, if the construct does not run.
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
        """All full names of the construct, the canonical name first.

        TensorFlow 1 called `tf.compat.v1.X` `tf.X`, so both are included.
        """
        names = [self.name, *self.also]
        for name in list(names):
            if name.startswith("tf.compat.v1."):
                names.append("tf." + name.removeprefix("tf.compat.v1."))
            elif name.startswith("tf.") and not name.startswith("tf.contrib."):
                names.append("tf.compat.v1." + name.removeprefix("tf."))
        return tuple(dict.fromkeys(names))

    @property
    def anchor(self) -> str:
        """The section of docs/reference/migrate-constructs.md for this kind."""
        heading = re.sub(r"[^\w\- ]", "", KINDS[self.kind].lower()).replace(" ", "-")
        return f"docs/reference/migrate-constructs.md#{heading}"


def table(kind: str, prefix: str, rows: Iterable[tuple[str, str, str]], **common: object) -> tuple[Row, ...]:
    """Return rows of one kind from (name below `prefix`, successor, code) tuples."""
    built = (Row(prefix + name, kind, successor, write) for name, successor, write in rows)
    return tuple(replace(row, **common) for row in built)  # type: ignore[arg-type]
