"""How a conversion is told: a summary for a terminal, and a unified diff."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from estimator_pipeline.migrate.code.converter import Converted, ConvertedFile

__all__ = ["NOT_RUN", "diff", "summary"]


NOT_RUN = "converted, not run"


def summary(converted: Converted, ran: str = NOT_RUN) -> str:
    """Return what was changed, what a person has to write, what was left out.

    Args:
        ran: what of it was run.
    """
    files = converted.files
    changes, left = sum(len(one.changes) for one in files), sum(len(one.left) for one in files)
    stays = sum(len(one.unchanged) for one in files)
    told = f"{changes} changes in {len(converted.changed)} of {len(files)} files" if changes else "nothing to convert"
    parts = [f"{converted.root}: {told}; {left} manual, {stays} unchanged"]
    parts += _keras(converted, ran)
    parts += [_file(one) for one in files if one.changes or one.left or one.kept]
    if converted.skipped:
        parts.append("\n".join(["Not read, and not copied", *(f"  {s.path}: {s.why}" for s in converted.skipped)]))
    return "\n\n".join(parts)


def _keras(converted: Converted, ran: str) -> list[str]:
    """How many files are Keras now, which, and for which line others are not."""
    lines = []
    for one in converted.files:
        if one.keeps_model_fn:
            why = f"keeps its model_fn as a function that a Keras model calls: {one.keeps_model_fn}"
            lines.append(f"  {one.path}: converted to Keras; {why}")
        elif one.keras:
            lines.append(f"  {one.path}: converted to Keras")
        elif one.kept_as_estimator:
            lines.append(f"  {one.path}: remains an Estimator program: {one.kept_as_estimator}")
            lines.append(f"    {one.verdict.stops_at}: {one.verdict.source}")
    lines += [f"  {path}: helpers that Keras 3 lacks, written beside the program" for path in converted.beside]
    if not lines:
        return []
    done, every = converted.share
    counts = converted.became
    files = f"{counts['keras']} of {counts['of']} files with Estimators became Keras"
    kept = counts["keeps_model_fn"]
    how = f"{counts['keras'] - kept} as Keras layers, {kept} with a kept model_fn"
    share = f"; {done} of {every} constructs are converted" if every else ""
    return ["\n".join([f"To Keras{share}", f"  {files}: {how}; {ran}", *lines])]


def _file(made: ConvertedFile) -> str:
    lines = [made.path if not made.kept else f"{made.path}: copied unchanged: {made.kept}"]
    rows = [
        (f"{made.path}:{one.place}", f"{one.before} -> {one.after}" if one.before else f"+ {one.after}")
        for one in made.changes
    ]
    width = min(max([len(place) for place, _ in rows] + [len(one.place) for one in made.left] or [0]), 48)
    lines += [f"  {place:<{width}}  {what}" for place, what in rows]
    for one in made.left:
        keep = f"; write {one.keep}" if one.keep else ""
        lines.append(f"  {one.place:<{width}}  manual: {one.spelled}: {one.reason}{keep}")
    return "\n".join(lines)


def diff(converted: Converted) -> str:
    """All changes as one unified diff, in the order of the files; "" where there are none."""
    parts: list[str] = []
    for made in converted.files:
        if made.changed and not made.notebook:
            parts += _changes(made.before, made.after, f"a/{made.path}", made.path)
        elif made.notebook:  # what a notebook writes is no file yet
            parts += _changes("", made.after, "/dev/null", made.path)
    for path, text in converted.beside.items():
        parts += _changes("", text, "/dev/null", path)
    return "".join(parts)


def _changes(old: str, new: str, name: str, path: str) -> Iterator[str]:
    before, after = (re.split(r"(?<=\n)", text) for text in (old, new))
    for line in difflib.unified_diff([one for one in before if one], [one for one in after if one], name, f"b/{path}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
