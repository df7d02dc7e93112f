"""Where this package keeps what it can make again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_dir"]


def cache_dir(environ: Mapping[str, str]) -> Path:
    """XDG_CACHE_HOME or ~/.cache, and this package's own name."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "estimator_pipeline"
