"""The mapping of weights as a YAML file."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping

from estimator_pipeline.utils import durable_files as durable

__all__ = ["write_mapping"]


def write_mapping(path: str, weights: Mapping[str, str], *, reverse: bool) -> None:
    """Write the mapping of weights in the format of `--mapping`.

    `migrate checkpoint` and `parity` read this format.

    Args:
        path: Path of the file.
        weights: Name in the target -> name in the checkpoint.
        reverse: Whether the checkpoint's names come first, because only the checkpoint is from Keras.
    """
    from ruamel.yaml import YAML

    from estimator_pipeline import compat

    pairs = {ours.partition(":")[0]: theirs.partition(":")[0] for ours, theirs in weights.items()}
    if reverse:
        pairs = {theirs: ours for ours, theirs in pairs.items()}
    gfile = compat.tensorflow().io.gfile
    if os.path.dirname(path):
        gfile.makedirs(os.path.dirname(path))
    content = io.BytesIO()
    YAML(typ="safe", pure=True).dump(pairs, content)
    durable.write(path, content.getvalue(), gfile=gfile)
