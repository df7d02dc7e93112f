"""Writes a converted program into a folder of its own: all of it or nothing, where the folder is a new one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code.converter import Converted, ConvertedFile
from estimator_pipeline.utils import durable_files as durable

__all__ = ["check_output", "write"]


def check_output(root: Path, output: Path, *, overwrite: bool) -> None:
    """Whether a converted program may go to a folder.

    Raises:
        ConfigError: the folder is there and not empty, is no folder, or is the program's own, around it or within it.
    """
    source = Path(os.path.realpath(root if root.is_dir() else root.parent))
    target = Path(os.path.realpath(output))
    if target == source or (root.is_dir() and source in target.parents) or target in source.parents:
        raise ConfigError(
            f"--output {output}: the program itself lies there",
            code="file/exists",
            found=f"the program is {source}",
            hint="name a folder beside the program",
        )
    if target.exists() and not target.is_dir():
        raise ConfigError(f"--output {output} is no folder", code="file/exists", hint="name a new folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ConfigError(
            f"--output {output} is there already",
            code="file/exists",
            found=f"{len(list(target.iterdir()))} files and folders in it",
            hint="name a new folder, or pass --overwrite: files of the same names are replaced, others are unchanged",
        )


def write(converted: Converted, output: Path) -> None:
    """Write every file that was read, converted or as it is.

    A new folder appears when it is complete. In one that is there each file is replaced as a whole, the first of them
    after all are written beside it.

    Raises:
        ConfigError: it cannot be written; nothing of a new folder is left then.
    """
    target = Path(os.path.realpath(output))
    unfinished = target.parent / f".{target.name}.{os.getpid()}.unfinished"
    try:
        for made in converted.files:
            _write(made, Path(converted.base), unfinished)
        for name, text in converted.beside.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        if target.is_dir():
            for name in [*(made.path for made in converted.files), *converted.beside]:
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                durable.rename(unfinished / name, path)
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


def _write(made: ConvertedFile, base: Path, folder: Path) -> None:
    path, source = folder / made.path, base / made.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if made.notebook:
        path.write_bytes(made.after.encode(made.encoding))
    elif made.changed:
        content = made.after.encode(made.encoding)
        path.write_bytes(content)
        shutil.copymode(source, path)
    else:
        shutil.copy(source, path)  # what was not converted is kept by its bytes
