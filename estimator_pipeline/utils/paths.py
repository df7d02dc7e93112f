"""Paths of files and folders, on file systems and in buckets."""

from __future__ import annotations

import os

__all__ = ["real_path"]


def real_path(path: str) -> str:
    """Return the absolute path of a file or folder without symbolic links, to compare it; a URL is unchanged."""
    return path if "://" in path else os.path.realpath(path)
