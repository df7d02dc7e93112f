"""Which weight is which, as a file in YAML."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from estimator_pipeline.utils import durable_files as durable

__all__ = ["write_mapping"]


def write_mapping(path: str, weights: Mapping[str, str], *, reverse: bool) -> None:
    """Write which weight is which, as `--mapping` of this command and of `parity` reads it.

    Args:
        path: of the file.
        weights: the target's name -> the checkpoint's.
        reverse: whether the checkpoint's names come first: it is Keras's, and the target is not.
    """
    from ruamel.yaml import YAML

    from estimator_pipeline import compat

    pairs = {ours.partition(":")[0]: theirs.partition(":")[0] for ours, theirs in weights.items()}
    if reverse:
        pairs = {theirs: ours for ours, theirs in pairs.items()}
    gfile = compat.tensorflow().io.gfile
    if os.path.dirname(path):
        gfile.makedirs(os.path.dirname(path))
    unfinished = f"{path}.unfinished"
    with gfile.GFile(unfinished, "w") as file:
        YAML(typ="safe", pure=True).dump(pairs, _Text(file))
    durable.rename(unfinished, path, by=functools.partial(gfile.rename, overwrite=True))


class _Text:
    """A file of TensorFlow's as ruamel.yaml writes to one: text comes in as bytes."""

    def __init__(self, file: object) -> None:
        self._file = file

    def write(self, text: str | bytes) -> None:
        self._file.write(text.decode() if isinstance(text, bytes) else text)  # type: ignore[attr-defined]
