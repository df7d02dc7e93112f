"""Conversion of the files of a program to Keras 3. Files that import each other are converted together or not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.to_keras.convert_file import DEFECTS, ConversionOutcome
from estimator_pipeline.migrate.code.to_keras3.convert_text import convert_text, model_functions
from estimator_pipeline.migrate.code.to_keras3.not_convertible import NotInKeras3
from estimator_pipeline.migrate.code.to_keras3.support import MODULE, module_text

__all__ = ["convert_program", "modules_beside"]

_EMBEDS = re.compile(r"\bEmbedding\(|\bgather\(|\bembedding_lookup\(|\bembedding_column\(|\bkeras_canned\.")


def convert_program(
    outcomes: Mapping[str, ConversionOutcome], sources: Iterable[SourceFile], imports: Mapping[str, Iterable[str]]
) -> Mapping[str, ConversionOutcome]:
    """Convert the Keras 2 files of a program to Keras 3.

    Args:
        outcomes: Path -> outcome of the conversion to Keras 2.
        sources: The user's files.
        imports: Path of each file -> paths of the files that it imports.

    Returns:
        Path -> outcome of the conversion to Keras 3: the new text, or the reason why it is not converted.
    """
    by_path = {source.path: source for source in sources}
    converted = dict(outcomes)
    for group in _groups((path for path, outcome in outcomes.items() if outcome.text), imports):
        texts = {path: outcomes[path].text for path in group}
        user_names = {path: _defined(by_path[path].text) for path in group}
        embeds = any(_EMBEDS.search(text) for text in texts.values())
        functions: set[str] = set()
        try:
            functions = model_functions(texts.values(), user_names=set().union(*user_names.values()))
        except DEFECTS as error:
            converted |= {path: _failed_outcome(by_path[path], error) for path in group}
            continue
        for path, text in texts.items():
            try:
                new = convert_text(
                    text, functions, embeds=embeds, user_names=user_names[path], package=_package(path, text)
                )
                if not by_path[path].keeps_cells(new.text):
                    raise NotInKeras3("", "a notebook whose cells would not keep their places", r"\S")
            except NotInKeras3 as error:
                failure = _rejected_outcome(by_path[path], error)
            except DEFECTS as error:
                failure = _failed_outcome(by_path[path], error)
            else:
                converted[path] = dataclasses.replace(outcomes[path], text=new.text, parts=tuple(new.parts))
                continue
            converted |= {other: dataclasses.replace(failure, path="" if other == path else by_path[path].shown)
                     for other in group}  # fmt: skip
            break
    return converted


def modules_beside(parts: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return path -> text of the keras_support.py modules for converted files.

    Args:
        parts: Path of a converted file -> names that it imports from the module.
    """
    parts_of: dict[str, set[str]] = {}
    for path, names in parts.items():
        module_path = str(PurePosixPath(path).with_name(f"{MODULE}.py"))
        parts_of.setdefault(module_path, set()).update(names)
    return {path: module_text(names) for path, names in sorted(parts_of.items()) if names}


def _groups(paths: Iterable[str], imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return groups of files that import each other, directly or indirectly."""
    groups: list[set[str]] = []
    for path, others in imports.items():
        joined = {path, *others}
        for group in [other for other in groups if other & joined]:
            joined |= group
            groups.remove(group)
        groups.append(joined)
    paths = list(paths)
    return [members for group in groups if (members := [path for path in paths if path in group])]


def _defined(text: str) -> set[str]:
    """Return the top-level functions and classes of a text."""
    return set(re.findall(r"(?m)^(?:def|class)\s+(\w+)", text))


def _package(path: str, text: str) -> str:
    """Return the import prefix of keras_support, from how the file imports other files."""
    if re.search(r"(?m)^from \.(?!\.)", text):
        return "."
    folder = PurePosixPath(path).parent.name
    return f"{folder}." if folder and re.search(rf"(?m)^(from|import) {re.escape(folder)}\b", text) else ""


def _rejected_outcome(source: SourceFile, error: NotInKeras3) -> ConversionOutcome:
    """Return the reason with the line of the construct in the user's file."""
    text = re.sub(r'""".*?"""|#[^\n]*', lambda match: re.sub(r"[^\n]", " ", match[0]), source.text, flags=re.DOTALL)
    last = re.escape(error.construct.rpartition(".")[2])
    for pattern in (
        re.escape(error.construct) + r"\b",
        rf"\.{last}\b",
        rf"\b{last}\b",
        error.pattern,
        "Estimator",
    ):
        match = re.search(pattern, text) if pattern.strip("\\b.") else None
        if match:
            return _outcome_at_line(source, text.count("\n", 0, match.start()) + 1, error.reason)
    return _outcome_at_line(source, 1, error.reason)


def _failed_outcome(source: SourceFile, error: Exception) -> ConversionOutcome:
    return _outcome_at_line(source, 1, f"the converter fails at it: {type(error).__name__}: {error}")


def _outcome_at_line(source: SourceFile, line: int, reason: str) -> ConversionOutcome:
    cell, in_cell = source.place(line)
    lines = source.text.splitlines()
    shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return ConversionOutcome(reason=reason, line=in_cell, cell=cell, source=shown)
