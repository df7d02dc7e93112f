"""Reports of a conversion: a summary for a terminal, and a unified diff."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from estimator_pipeline.migrate.code.converter import Converted, ConvertedFile

__all__ = ["NOT_RUN", "diff", "summary"]


NOT_RUN = "converted, not run"
REWRITE = (
    "  Estimator programs run as they are, with: estimator-pipeline exec FILE. To make one Keras, rewrite it by hand,",
    "  and compare both with: estimator-pipeline parity --estimator OLD.py:A --model NEW.py:B --input-fn OLD.py:C",
)


def summary(converted: Converted, ran: str = NOT_RUN) -> str:
    """Return the changes, the manual work, and the files that were not read.

    Args:
        ran: which converted programs were run.
    """
    files = converted.files
    changes, left = sum(len(file.changes) for file in files), sum(len(file.left) for file in files)
    unchanged = sum(len(file.unchanged) for file in files)
    done = f"{changes} changes in {len(converted.changed)} of {len(files)} files" if changes else "nothing to convert"
    parts = [f"{converted.root}: {done}; {left} manual, {unchanged} unchanged"]
    parts += _keras(converted, ran)
    parts += [_file(file) for file in files if file.changes or file.left or file.kept]
    if converted.skipped:
        parts.append("\n".join(["Not read, and not copied", *(f"  {s.path}: {s.why}" for s in converted.skipped)]))
    return "\n\n".join(parts)


def _keras(converted: Converted, ran: str) -> list[str]:
    """Return how many files were converted to Keras, and the line that blocks each other file."""
    lines = []
    for file in converted.files:
        if file.keras:
            lines.append(f"  {file.path}: converted to Keras")
        elif file.kept_as_estimator:
            lines.append(f"  {file.path}: remains an Estimator program: {file.kept_as_estimator}")
            lines.append(f"    {file.verdict.stops_at}: {file.verdict.source}")
    if any(file.kept_as_estimator for file in converted.files):
        lines += REWRITE
    if not lines:
        return []
    counts = converted.became
    head = f"To Keras: {counts['keras']} of {counts['of']} files with Estimators; {ran}"
    return ["\n".join([head, *lines])]


def _file(file: ConvertedFile) -> str:
    lines = [file.path if not file.kept else f"{file.path}: copied unchanged: {file.kept}"]
    rows = [
        (f"{file.path}:{change.place}", f"{change.before} -> {change.after}" if change.before else f"+ {change.after}")
        for change in file.changes
    ]
    width = min(max([len(place) for place, _ in rows] + [len(change.place) for change in file.left] or [0]), 48)
    lines += [f"  {place:<{width}}  {change}" for place, change in rows]
    for finding in file.left:
        keep = f"; write {finding.keep}" if finding.keep else ""
        lines.append(f"  {finding.place:<{width}}  manual: {finding.spelled}: {finding.reason}{keep}")
    return "\n".join(lines)


def diff(converted: Converted) -> str:
    """Return all changes as one unified diff, in the order of the files; "" without changes."""
    parts: list[str] = []
    for file in converted.files:
        if file.changed and not file.notebook:
            parts += _changes(file.before, file.after, f"a/{file.path}", file.path)
        elif file.notebook:  # a file that a notebook writes does not exist yet
            parts += _changes("", file.after, "/dev/null", file.path)
    return "".join(parts)


def _changes(old: str, new: str, name: str, path: str) -> Iterator[str]:
    before, after = (re.split(r"(?<=\n)", text) for text in (old, new))
    for line in difflib.unified_diff(
        [line for line in before if line], [line for line in after if line], name, f"b/{path}"
    ):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
