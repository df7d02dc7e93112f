"""A row of the catalogue: a construct of Estimator programs and its Keras replacement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["KINDS", "Row", "read_rows"]

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


def read_rows(text: str) -> Iterator[Row]:
    """Yield the rows of constructs.txt, which describes its format."""
    kind = prefix = ""
    common: dict[str, str] = {}
    read: list[tuple[str, str, str, dict[str, str]]] = []
    attributes = common
    for line in text.splitlines():
        if line.startswith("["):
            kind, _, prefix = line[1:].partition("]")
            common = attributes = {}
        elif line.startswith(" "):
            key, _, value = line.strip().partition(": ")
            attributes[key] = value
        elif line and not line.startswith("#"):
            attributes = dict(common)
            read.append((kind, prefix.strip(), line, attributes))
    for kind, prefix, line, attributes in read:
        names, successor, write = (part.strip() for part in line.split("|"))
        for name in names.split(", "):
            of_name = {key: value.replace("*", name) for key, value in attributes.items()}
            yield Row(
                prefix + name, kind, successor, write.replace("\\n", "\n"),
                also=tuple(of_name.get("also", "").split()), fields=tuple(of_name.get("fields", "").split()),
                gives=of_name.get("gives"), runs="gone" not in of_name, because=of_name.get("because", ""),
                keep=of_name.get("keep", ""),
            )  # fmt: skip
