"""The git commit of a checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["commit_of"]

_SECONDS = 10


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out in a folder; None outside of a checkout or without git."""
    # HEAD:./ exists only where the commit contains the folder, not for an untracked folder inside a repository.
    command = ["git", "-C", os.fspath(folder), "rev-parse", "--revs-only", "HEAD^{commit}", "HEAD:./"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False).stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return names[0] if len(names) == 2 else None
