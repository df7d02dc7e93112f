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

_EMBEDS = re.compile(r"\bEmbedding\(|\bgather\(|\bembedding_lookup\(|\bembedding_column\(|\bkeras_canned\.")


def in_keras_3(
    outcomes: Mapping[str, ConversionOutcome], sources: Iterable[SourceFile], imports: Mapping[str, Iterable[str]]
) -> Mapping[str, ConversionOutcome]:
    """Return what becomes of each file as a program of Keras 3: those of Keras 2 by layers, or the reason why not.

    Args:
        outcomes: path -> what becomes of a file as a program of Keras 2.
        sources: the user's files.
        imports: path of each file -> the files that it imports.
    """
    by_path = {source.path: source for source in sources}
    made = dict(outcomes)
    for group in _groups((path for path, one in outcomes.items() if one.text), imports):
        texts = {path: outcomes[path].text for path in group}
        own = {path: _defined(by_path[path].text) for path in group}
        embeds = any(_EMBEDS.search(text) for text in texts.values())
        functions: set[str] = set()
        try:
            functions = model_functions(texts.values(), own=set().union(*own.values()))
        except DEFECTS as error:
            made |= {path: _failed(by_path[path], error) for path in group}
            continue
        for path, text in texts.items():
            try:
                new = convert_text(text, functions, embeds=embeds, own=own[path], package=_package(path, text))
                if not by_path[path].keeps_cells(new.text):
                    raise Declined("", "a notebook whose cells would not stay in their places", r"\S")
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


def _groups(paths: Iterable[str], imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the files that import each other, at once or through others."""
    groups: list[set[str]] = []
    for path, others in imports.items():
        joined = {path, *others}
        for group in [one for one in groups if one & joined]:
            joined |= group
            groups.remove(group)
        groups.append(joined)
    paths = list(paths)
    return [found for group in groups if (found := [path for path in paths if path in group])]


def _defined(text: str) -> set[str]:
    """Return the functions and classes at the top of a text."""
    return set(re.findall(r"(?m)^(?:def|class)\s+(\w+)", text))


def _package(path: str, text: str) -> str:
    """Return what stands before the name of the module beside a file, by how it imports other files."""
    if re.search(r"(?m)^from \.(?!\.)", text):
        return "."
    folder = PurePosixPath(path).parent.name
    return f"{folder}." if folder and re.search(rf"(?m)^(from|import) {re.escape(folder)}\b", text) else ""


def _stopped(source: SourceFile, declined: Declined) -> ConversionOutcome:
    """Return the reason, with the line of the file as its user has it."""
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
