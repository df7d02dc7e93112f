"""Writing of a converted program into a folder. A new folder is written completely or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code.converter import Converted, ConvertedFile
from estimator_pipeline.utils import durable_files as durable

__all__ = ["check_output", "write"]


def check_output(root: Path, output: Path, *, overwrite: bool) -> None:
    """Check that a converted program may be written to a folder.

    Raises:
        ConfigError: the folder exists and is not empty, is not a folder, or is the program's folder, one of its
            parents or inside it.
    """
    source = Path(os.path.realpath(root if root.is_dir() else root.parent))
    target = Path(os.path.realpath(output))
    if target == source or (root.is_dir() and source in target.parents) or target in source.parents:
        raise ConfigError(
            f"--output {output}: this folder contains the program",
            code="file/exists",
            found=f"the program is {source}",
            hint="name a folder beside the program",
        )
    if target.exists() and not target.is_dir():
        raise ConfigError(f"--output {output} is not a folder", code="file/exists", hint="name a new folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ConfigError(
            f"--output {output} already exists",
            code="file/exists",
            found=f"{len(list(target.iterdir()))} files and folders in it",
            hint="name a new folder, or pass --overwrite: files of the same names are replaced, others are unchanged",
        )


def write(converted: Converted, output: Path) -> None:
    """Write every file that was read, converted or unchanged.

    A new folder appears when it is complete. In an existing folder each file is replaced atomically, after all files
    are written to a temporary folder beside it.

    Raises:
        ConfigError: the program cannot be written; a new folder is not left behind.
    """
    target = Path(os.path.realpath(output))
    unfinished = target.parent / f".{target.name}.{os.getpid()}.unfinished"
    try:
        for file in converted.files:
            _write(file, Path(converted.base), unfinished)
        if target.is_dir():
            for file in converted.files:
                path = target / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                durable.rename(unfinished / file.path, path)
        else:
            durable.rename(unfinished, target, by=os.rename)
    except OSError as error:
        raise ConfigError(
            f"--output {output}: the program cannot be written",
            code="file/unwritable",
            found=f"{error.filename or target}: {error.strerror or error}",
            hint="name a folder where files can be written",
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(file: ConvertedFile, base: Path, folder: Path) -> None:
    path, source = folder / file.path, base / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.changed or file.notebook:
        path.write_bytes(file.after.encode(file.encoding))
        if not file.notebook:  # a file that a notebook writes does not exist yet
            shutil.copymode(source, path)
    else:
        shutil.copy(source, path)  # keeps the bytes of an unconverted file
