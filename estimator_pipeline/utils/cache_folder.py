"""The cache folder of this package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_dir"]


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder "estimator_pipeline" in XDG_CACHE_HOME or ~/.cache."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "estimator_pipeline"
