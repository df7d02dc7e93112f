"""`tf.estimator` in the child processes of a program under `exec`.

Children are separate Python processes that inherit the environment. A folder with a `sitecustomize.py`, which Python
runs at its start, is therefore put first on PYTHONPATH.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

__all__ = ["VARIABLE", "reach"]

VARIABLE = "ESTIMATOR_PIPELINE_CHILDREN"
FOLDER = str(Path(__file__).with_name("child_site"))


def reach(environ: MutableMapping[str, str]) -> None:
    """Let Python processes with this environment install compat when they import TensorFlow.

    ESTIMATOR_PIPELINE_CHILDREN=0 in the environment disables it, and is not changed.
    """
    if environ.get(VARIABLE) == "0":
        return
    environ[VARIABLE] = "1"
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != FOLDER]
    environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *paths])
