"""Processes that a program under `exec` starts by itself have `tf.estimator` too.

They are Pythons of their own, of which ours knows nothing but that they inherit the environment. So a folder with a
`sitecustomize.py` is put first on PYTHONPATH, which every Python runs at its start.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

__all__ = ["VARIABLE", "reach"]

VARIABLE = "ESTIMATOR_PIPELINE_CHILDREN"
FOLDER = str(Path(__file__).with_name("child_site"))


def reach(environ: MutableMapping[str, str]) -> None:
    """Has Pythons with this environment install compat when they import TensorFlow.

    ESTIMATOR_PIPELINE_CHILDREN=0 in the environment keeps it from that, and is kept.
    """
    if environ.get(VARIABLE) == "0":
        return
    environ[VARIABLE] = "1"
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != FOLDER]
    environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *paths])
