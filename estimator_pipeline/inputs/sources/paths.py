"""File names as users give them: one, several, or a pattern."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sources.tfrecord_index import INDEX_SUFFIX, check_file

__all__ = ["find_files"]


def find_files(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, kind: str) -> tuple[str, ...]:
    """Return the files of names and patterns.

    Args:
        files: A path, a pattern with ``*``, ``?`` or ``[]``, or a sequence of these.
        kind: Purpose of the files, for messages: "training".

    Returns:
        Paths; those of a pattern sorted by name, so that each machine has them in the same order.

    Raises:
        InputError: A file is missing, a pattern matches none, or a file is named twice.
    """
    entries = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    if not entries:
        raise InputError(
            f"There are no {kind} files", code="argument/missing", hint="give at least one path or pattern"
        )
    paths: list[str] = []
    for entry in entries:
        path = os.fspath(entry)
        if glob.has_magic(path) and not os.path.exists(path) and "://" not in path:
            matches = sorted(match for match in glob.glob(path, recursive=True) if os.path.isfile(match))
            # `data/train-*` means the data, not the index files beside them.
            indexed = {match + INDEX_SUFFIX for match in matches}
            matches = [match for match in matches if match not in indexed]
            if not matches:
                folder = os.path.dirname(path.split("*")[0].split("?")[0].split("[")[0]) or "."
                there = "the folder is there" if os.path.isdir(folder) else f"there is no folder {folder}"
                raise InputError(
                    f"A pattern for {kind} files matches none",
                    code="data/not-found",
                    found=f"{path}; {there}",
                    hint="check the pattern",
                )
            paths += matches
        else:
            check_file(path)
            paths.append(path)
    twice = sorted(path for path, times in Counter(paths).items() if times > 1)
    if twice:
        raise InputError(
            f"A {kind} file is named twice, and its records would be read twice",
            code="argument/conflict",
            found=twice[0],
            hint="name each file once",
        )
    return tuple(paths)
