"""How a conversion is told: a summary for a terminal, and a unified diff."""

from __future__ import annotations

import difflib
import re

from estimator_pipeline.migrate.code.converter import Converted, ConvertedFile

__all__ = ["diff", "summary"]


def summary(converted: Converted) -> str:
    """What was changed, what a person has to write, what was left out."""
    files = converted.files
    changes, left = sum(len(one.changes) for one in files), sum(len(one.left) for one in files)
    stays = sum(len(one.unchanged) for one in files)
    told = f"{changes} changes in {len(converted.changed)} of {len(files)} files" if changes else "nothing to convert"
    parts = [f"{converted.root}: {told}; {left or 'nothing'} left to be written by hand, {stays} constructs stay"]
    parts += _keras(converted)
    parts += [_file(one) for one in files if one.changes or one.left or one.kept]
    if converted.skipped:
        parts.append("\n".join(["Not read, and not copied", *(f"  {s.path}: {s.why}" for s in converted.skipped)]))
    return "\n\n".join(parts)


def _keras(converted: Converted) -> list[str]:
    """Which files are Keras now, and why others are not."""
    lines = []
    for one in converted.files:
        if one.keeps_model_fn:
            why = f"its model_fn stays a function that a Keras model calls: {one.keeps_model_fn}"
            lines.append(f"  {one.path}: Keras now; {why}")
        elif one.keras:
            lines.append(f"  {one.path}: Keras now")
        elif one.kept_as_estimator:
            lines.append(f"  {one.path}: stays an Estimator program: {one.kept_as_estimator}")
    if not lines:
        return []
    done, every = converted.share
    share = f"; {done} of {every} constructs are converted" if every else ""
    return ["\n".join([f"To Keras{share}", *lines])]


def _file(made: ConvertedFile) -> str:
    lines = [made.path if not made.kept else f"{made.path}: copied as it is: {made.kept}"]
    rows = [
        (f"{made.path}:{one.line}:{one.column}", f"{one.before} -> {one.after}" if one.before else f"+ {one.after}")
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
    for made in converted.changed:
        before, after = (re.split(r"(?<=\n)", text) for text in (made.before, made.after))
        for line in difflib.unified_diff(
            [one for one in before if one], [one for one in after if one], f"a/{made.path}", f"b/{made.path}"
        ):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)
