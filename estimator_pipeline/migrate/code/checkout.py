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
    command = ["git", "-C", os.fspath(folder), "rev-parse", "--verify", "--quiet", "HEAD^{commit}"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        folder_in_commit = subprocess.run(
            [*command[:-1], "HEAD:./"], capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return commit.stdout.strip() or None if not commit.returncode and not folder_in_commit.returncode else None
