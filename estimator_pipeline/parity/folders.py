"""Folders that a comparison writes to: looked at before hours are spent on its runs, and not left behind empty."""

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
    folder: str | os.PathLike[str], *, option: str, what: str, files: Sequence[str] = (), inner: Sequence[str] = ()
) -> Path:
    """Make a folder, and make sure that it can be written to.

    Args:
        folder: which.
        option: of the command line that names it.
        what: what goes there, in the plural or singular of a sentence: "the report".
        files: names that are to be files there.
        inner: names that are to be folders there.

    Returns:
        The folder.

    Raises:
        ConfigError: it is a file, or cannot be written to.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        taken = [f"{folder / name} is a folder" for name in files if (folder / name).is_dir()]
        taken += [f"{folder / name} is no folder" for name in inner if (folder / name).is_file()]
    except OSError as error:
        found = f"{error.filename or folder}: {error.strerror}"
    else:
        if not taken:
            return folder
        found = taken[0]
    raise ConfigError(
        f"{option} {folder}: {what} cannot be written there",
        code="file/unwritable",
        found="it is a file" if folder.is_file() else found,
        hint="name a folder that can be written to",
    )


@contextlib.contextmanager
def runs(
    given: str | os.PathLike[str] | None, *, option: str, engines: Sequence[str],
    kept_after: tuple[type[BaseException], ...] = (BaseException,),
) -> Iterator[Path]:  # fmt: skip
    """Yield a block in whose folder two runs and their records go; an empty one is not left behind.

    Args:
        given: the folder; None: a new temporary one.
        option: that names it.
        engines: each has a folder within it.
        kept_after: errors after which a temporary one stays, for what is in it tells of them.
    """
    if given is not None:
        with kept_if_used(given):
            yield prepare(given, option=option, what="the runs and their records", inner=engines)
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
            base.rmdir()  # which a folder with something in it refuses


@contextlib.contextmanager
def kept_if_used(folder: str | os.PathLike[str]) -> Iterator[None]:
    """A block that may make a folder; where it did, and leaves it empty, it is taken away again, however it ends.

    Args:
        folder: which; the folders above it that the block makes are taken away as well.
    """
    folder = Path(folder).absolute()
    new = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for one in new:
                one.rmdir()  # which a folder with something in it refuses
