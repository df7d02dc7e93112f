"""The file that a command writes: checked before the work, written atomically."""

from __future__ import annotations

from pathlib import Path

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils import durable_files as durable

__all__ = ["check_output", "write_output"]


def check_output(path: Path, *, suffix: str | None = None, overwrite: bool) -> None:
    """Check that a file can be written.

    Args:
        path: The file.
        suffix: The end that its name must have; None: any.
        overwrite: Whether an existing file is replaced.

    Raises:
        ConfigError: Its name has a different end, its folder does not exist, or it exists.
    """
    if suffix is not None and path.suffix.lower() != suffix:
        raise ConfigError(
            f"{path} is not the name of a {suffix} file", code="argument/bad-value", hint=f"name a file: FILE{suffix}"
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"the folder of {path} does not exist", code="file/not-found", hint=f"create it: mkdir -p {path.parent}"
        )
    if path.is_dir() or (path.exists() and not overwrite):
        raise ConfigError(
            f"{path} exists already{', as a folder' if path.is_dir() else ''}",
            code="file/exists",
            hint="name a different file" if path.is_dir() else "name a different file, or replace it with --overwrite",
        )


def write_output(path: Path, content: bytes) -> None:
    """Write the file atomically.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        durable.write(path, content)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}",
            code="file/unwritable",
            hint="name a file in a writable folder",
        ) from None
