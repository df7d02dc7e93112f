"""Conversion of the files of a program to Keras 3. Files that import each other are converted together or not."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import re
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from estimator_pipeline.migrate.code.analysis.edits import Lines, damaging_rule
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.to_keras.convert_file import DEFECTS, ConversionOutcome
from estimator_pipeline.migrate.code.to_keras3.convert_text import convert_text, model_functions
from estimator_pipeline.migrate.code.to_keras3.not_convertible import NotInKeras3
from estimator_pipeline.migrate.code.to_keras3.support import MODULE, module_text

__all__ = ["convert_program", "modules_beside"]

_EMBEDS = {"Embedding", "gather", "embedding_lookup", "embedding_column"}


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
        embeds = any(map(_embeds, texts.values()))
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
                steps = [*outcomes[path].steps, new.step]
                if rule := damaging_rule(steps[0].before, new.step.after, steps):
                    raise NotInKeras3("", f"a change of the rule {rule} outside of what it converts", r"\S")
                if not by_path[path].keeps_cells(new.step.after):
                    raise NotInKeras3("", "a notebook whose cells would not keep their places", r"\S")
            except NotInKeras3 as error:
                failure = _rejected_outcome(by_path[path], error)
            except DEFECTS as error:
                failure = _failed_outcome(by_path[path], error)
            else:
                converted[path] = dataclasses.replace(
                    outcomes[path], text=new.step.after, steps=steps, parts=tuple(new.parts)
                )
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
    body = ast.parse(text).body
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}


def _embeds(text: str) -> bool:
    """Return whether a text looks up rows of a variable, or uses canned Estimators, which may."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            func = node.func
            if (func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")) in _EMBEDS:
                return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "keras_canned":
            return True
    return False


def _package(path: str, text: str) -> str:
    """Return the import prefix of keras_support, from how the file imports other files."""
    imported: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            return "."
        if isinstance(node, ast.ImportFrom) and not node.level:
            imported.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
    folder = PurePosixPath(path).parent.name
    return f"{folder}." if folder in imported else ""


def _rejected_outcome(source: SourceFile, error: NotInKeras3) -> ConversionOutcome:
    """Return the reason with the line of the construct in the user's file."""
    text = _code_of(source.text)
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


def _code_of(text: str) -> str:
    """Return a text with spaces for comments and for strings of several lines."""
    lines = Lines(text)
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and "\n" in token.string):
                start = lines.offset(token.start[0], token.start[1] + 1)
                blank = "".join(character if character in "\r\n" else " " for character in token.string)
                text = text[:start] + blank + text[start + len(blank) :]
    return text


def _failed_outcome(source: SourceFile, error: Exception) -> ConversionOutcome:
    return _outcome_at_line(source, 1, f"the converter fails at it: {type(error).__name__}: {error}")


def _outcome_at_line(source: SourceFile, line: int, reason: str) -> ConversionOutcome:
    cell, in_cell = source.place(line)
    lines = source.text.splitlines()
    shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return ConversionOutcome(reason=reason, line=in_cell, cell=cell, source=shown)
