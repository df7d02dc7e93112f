"""Output folders of a comparison: checked before the runs start, removed if they end empty."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from estimator_pipeline.errors import ConfigError

__all__ = ["kept_if_used", "prepare", "runs"]


def prepare(
    folder: str | os.PathLike[str], *, option: str, contents: str, files: Sequence[str] = (), inner: Sequence[str] = ()
) -> Path:
    """Create a folder and check that it is writable.

    Args:
        folder: the folder.
        option: the command-line option that names it.
        contents: what is written there, for messages: "the report".
        files: names that must be free or files in it.
        inner: names that must be free or folders in it.

    Returns:
        The folder.

    Raises:
        ConfigError: it is a file, or is not writable.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        taken = [f"{folder / name} is a folder" for name in files if (folder / name).is_dir()]
        taken += [f"{folder / name} is not a folder" for name in inner if (folder / name).is_file()]
    except OSError as error:
        problem = f"{error.filename or folder}: {error.strerror}"
    else:
        if not taken:
            return folder
        problem = taken[0]
    raise ConfigError(
        f"{option} {folder}: {contents} cannot be written there",
        code="file/unwritable",
        found="it is a file" if folder.is_file() else problem,
        hint="name a writable folder",
    )


@contextlib.contextmanager
def runs(
    folder: str | os.PathLike[str] | None, *, option: str, engines: Sequence[str],
    kept_after: tuple[type[BaseException], ...] = (BaseException,),
) -> Iterator[Path]:  # fmt: skip
    """Yield the folder of two runs and their records; remove it if it ends empty.

    Args:
        given: the folder; None: a new temporary one.
        option: that names it.
        engines: each has a folder within it.
        kept_after: errors after which a temporary folder is kept for its logs.
    """
    if folder is not None:
        with kept_if_used(folder):
            yield prepare(folder, option=option, contents="the runs and their records", inner=engines)
        return
    base = Path(tempfile.mkdtemp(prefix="estimator-pipeline-parity-"))
    try:
        yield base
    except BaseException as error:
        if not isinstance(error, kept_after):
            shutil.rmtree(base, ignore_errors=True)
        raise
    finally:
        with contextlib.suppress(OSError):
            base.rmdir()  # fails for a folder that is not empty


@contextlib.contextmanager
def kept_if_used(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Remove the folder after the block if the block created it and left it empty.

    Args:
        folder: the folder; folders above it that the block creates are removed as well.
    """
    folder = Path(folder).absolute()
    new = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()  # fails for a folder that is not empty
