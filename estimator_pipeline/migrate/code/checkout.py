"""Which commit a folder is a checkout of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["commit_of"]

_SECONDS = 10


def commit_of(folder: Path) -> str | None:
    """The commit that is checked out in a folder, by git; None where it is no part of one, or git cannot tell."""
    # HEAD:./ is there where the commit has the folder: not in one that lies beside a repository's files by chance.
    command = ["git", "-C", os.fspath(folder), "rev-parse", "--verify", "--quiet", "HEAD^{commit}"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        held = subprocess.run([*command[:-1], "HEAD:./"], capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return told.stdout.strip() or None if not told.returncode and not held.returncode else None
