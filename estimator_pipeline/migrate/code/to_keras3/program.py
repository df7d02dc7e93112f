"""The files of a program, from Keras by layers to Keras 3: those that import each other, all or none."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.to_keras.convert_file import DEFECTS, ConversionOutcome
from estimator_pipeline.migrate.code.to_keras3.convert_text import convert_text, model_functions
from estimator_pipeline.migrate.code.to_keras3.declined import Declined
from estimator_pipeline.migrate.code.to_keras3.support import MODULE, module_text

__all__ = ["in_keras_3", "modules_beside"]


def in_keras_3(
    outcomes: Mapping[str, ConversionOutcome], sources: Iterable[SourceFile]
) -> Mapping[str, ConversionOutcome]:
    """What becomes of each file as a program of Keras 3: those of Keras 2 by layers, or the reason why not."""
    by_path = {source.path: source for source in sources}
    made = dict(outcomes)
    for group in _groups({path: one.text for path, one in outcomes.items() if one.text}):
        texts = {path: outcomes[path].text for path in group}
        functions: set[str] = set()
        try:
            functions = model_functions(texts.values())
        except DEFECTS as error:
            made |= {path: _failed(by_path[path], error) for path in group}
            continue
        for path, text in texts.items():
            try:
                if by_path[path].cells:
                    raise Declined("", "a notebook, which conversions to Keras 3 do not write", r"\S")
                new = convert_text(text, functions, package=_package(path, text))
            except Declined as declined:
                stopped = _stopped(by_path[path], declined)
            except DEFECTS as error:
                stopped = _failed(by_path[path], error)
            else:
                made[path] = dataclasses.replace(outcomes[path], text=new.text, parts=tuple(new.parts))
                continue
            made |= {other: dataclasses.replace(stopped, path="" if other == path else by_path[path].shown)
                     for other in group}  # fmt: skip
            break
    return made


def modules_beside(parts: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Path -> text of the modules that are written beside converted files.

    Args:
        parts: path of a converted file -> what it takes from the module.
    """
    wanted: dict[str, set[str]] = {}
    for path, names in parts.items():
        beside = str(PurePosixPath(path).with_name(f"{MODULE}.py"))
        wanted.setdefault(beside, set()).update(names)
    return {path: module_text(names) for path, names in sorted(wanted.items()) if names}


def _groups(texts: Mapping[str, str]) -> list[list[str]]:
    """The files that import each other, at once or through others."""
    groups: list[list[str]] = []
    for path, text in texts.items():
        joined = [path]
        for group in list(groups):
            if any(_imports(text, other) or _imports(texts[other], path) for other in group):
                joined += group
                groups.remove(group)
        groups.append(joined)
    return [[path for path in texts if path in group] for group in groups]


def _imports(text: str, path: str) -> bool:
    name = PurePosixPath(path).stem
    return re.search(rf"(?m)^\s*(?:from|import)\b[^#\n]*\b{re.escape(name)}\b", text) is not None


def _package(path: str, text: str) -> str:
    """What stands before the name of the module beside a file, by how it imports other files."""
    if re.search(r"(?m)^from \.(?!\.)", text):
        return "."
    folder = PurePosixPath(path).parent.name
    return f"{folder}." if folder and re.search(rf"(?m)^(from|import) {re.escape(folder)}\b", text) else ""


def _stopped(source: SourceFile, declined: Declined) -> ConversionOutcome:
    """The reason, with the line of the file as its user has it."""
    text = re.sub(r'""".*?"""|#[^\n]*', lambda one: re.sub(r"[^\n]", " ", one[0]), source.text, flags=re.DOTALL)
    last = re.escape(declined.construct.rpartition(".")[2])
    for pattern in (
        re.escape(declined.construct) + r"\b",
        rf"\.{last}\b",
        rf"\b{last}\b",
        declined.pattern,
        "Estimator",
    ):
        found = re.search(pattern, text) if pattern.strip("\\b.") else None
        if found:
            return _at(source, text.count("\n", 0, found.start()) + 1, declined.reason)
    return _at(source, 1, declined.reason)


def _failed(source: SourceFile, error: Exception) -> ConversionOutcome:
    return _at(source, 1, f"the converter fails at it: {type(error).__name__}: {error}")


def _at(source: SourceFile, line: int, reason: str) -> ConversionOutcome:
    cell, in_cell = source.place(line)
    lines = source.text.splitlines()
    shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return ConversionOutcome(reason=reason, line=in_cell, cell=cell, source=shown)
