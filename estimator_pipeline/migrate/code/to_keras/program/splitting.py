"""Splitting of a converted program (see linking.py) into its files, each with its imports."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass

from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.code.to_keras.helpers import HELPERS
from estimator_pipeline.migrate.code.to_keras.program.linking import Import, Linked, SourcePart
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible
from estimator_pipeline.migrate.code.to_keras.unresolved_names import unknown_names

__all__ = ["defined", "part"]


# Packages from which the conversion imports several names.
_OURS = ("estimator_pipeline", "absl")


@dataclass
class _File:
    """A file of the converted program."""

    part: SourcePart
    text: str

    def __post_init__(self) -> None:
        module = ast.parse(self.text)
        self.defined = defined(module)
        self.stored = {node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(
            node.ctx, ast.Store)} | {node.arg for node in ast.walk(module) if isinstance(node, ast.arg)}  # fmt: skip


def part(linked: Linked, text: str) -> dict[Tree, str]:
    """Split a converted text into its files.

    Args:
        linked: The program before the conversion.
        text: The converted text.

    Returns:
        The new text of each file.

    Raises:
        NotConvertible: A file would need a name that it cannot import.
    """
    text = re.sub(rf"{linked.suffix}\d+\b", "", text)
    pieces = re.split(r"(?m)^part_of_file_\d+ = None\n", text)
    if len(pieces) != len(linked.parts) + 1:
        raise NotConvertible("its files cannot be separated in the converted text", linked.parts[0].tree.module)
    header, header_lines = _header_imports(pieces[0]), {ast.unparse(node) for node in ast.parse(pieces[0]).body}
    pieces = _with_helpers(pieces[1:])
    files = {
        source_part.tree: _File(source_part, piece) for source_part, piece in zip(linked.parts, pieces, strict=True)
    }
    texts = {tree: _file_text(file, header, header_lines, files) for tree, file in files.items()}
    for tree, new_text in texts.items():
        left = sorted(unknown_names(new_text) - unknown_names(tree.source.text))
        if left:
            raise NotConvertible(f"{left[0]} would be undefined in {tree.source.path}", tree.module)
    return texts


def _with_helpers(pieces: list[str]) -> list[str]:
    """Move each helper function of the conversion into the files that use it."""
    helpers: dict[str, str] = {}
    for at, piece in enumerate(pieces):
        lines = piece.splitlines(keepends=True)
        for node in reversed(ast.parse(piece).body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in HELPERS:
                helpers[node.name] = "".join(lines[node.lineno - 1 : node.end_lineno]).rstrip("\n")
                del lines[node.lineno - 1 : node.end_lineno]
        pieces[at] = "".join(lines)
    texts = []
    for piece in pieces:
        needed = [name for name in helpers if name in _reads(piece)]
        for name in needed:
            first = next(node for node in ast.parse(piece).body if name in _reads_of(node))
            start = min([first.lineno, *(decorator.lineno for decorator in getattr(first, "decorator_list", ()))])
            lines = piece.splitlines(keepends=True)
            while start > 1 and lines[start - 2].startswith("#"):
                start -= 1
            piece = "".join([*lines[: start - 1], f"{helpers[name]}\n\n\n", *lines[start - 1 :]])
        texts.append(re.sub(r"\n{4,}", "\n\n\n", piece))
    return texts


def _header_imports(text: str) -> dict[str, str]:
    """Return name -> import statement for all imports from outside the program."""
    imports = {}
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        statement = ast.get_source_segment(text, node) or ""
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            # A new `from a import b, c` is split, so that each file imports only what it needs.
            imports[name] = statement
            if isinstance(node, ast.ImportFrom) and _module(statement) in _OURS:
                imports[name] = f"from {node.module} import {ast.unparse(alias)}"
    return imports


def _file_text(file: _File, header: dict[str, str], header_lines: set[str], files: dict[Tree, _File]) -> str:
    """Return the new text of a file."""
    part = file.part
    text = re.sub(r"(?m)^((?:\w+ = )*)(import_of_file_\d+_\d+)$", r"\2", file.text)
    markers = {file_import.marker for file_import in part.imports}
    missing = unknown_names(text) - markers
    wanted: dict[Tree, set[str]] = {}
    new: set[str] = set()
    for name in sorted(missing):
        owner = next((tree for tree, other in files.items() if name in other.defined and other is not file), None)
        if name in header:
            new.add(name)
        elif owner is not None:
            wanted.setdefault(owner, set()).add(name)
    lines = {}
    for file_import in part.imports:
        if file_import.module is None:
            lines[file_import.marker] = _external_import(file, file_import, header, header_lines)
    for owner in {
        file_import.module: None for file_import in part.imports if file_import.module is not None
    } | dict.fromkeys(wanted):
        text = _of_file(file, text, owner, wanted.get(owner, set()), files[owner], lines)
    had = {name for file_import in part.imports for name in file_import.binds}
    text = _with_imports(part, text, lines, {name: header[name] for name in new - had})
    return text if part.text.endswith("\n\n") or not text.strip() else text.rstrip("\n") + "\n"


def _reads(text: str) -> set[str]:
    return _reads_of(ast.parse(text))


def _reads_of(module: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}


def _external_import(file: _File, file_import: Import, header: dict[str, str], header_lines: set[str]) -> str | None:
    """Return an external import after the conversion, or None if it is unused."""
    before, after = _reads(file.part.tree.source.text), _reads(file.text)
    used = [name for name in file_import.binds if name in after or name not in before]
    if file_import.binds and not used:
        return None
    if file_import.text.startswith("from __future__") or ast.unparse(ast.parse(file_import.header)) in header_lines:
        return file_import.text
    statements = {header[name] for name in used if name in header}
    return "\n".join(sorted(statements)) or file_import.text


def _of_file(
    file: _File, text: str, owner: Tree, wanted: set[str], other: _File, lines: dict[str, str | None]
) -> str:  # fmt: skip
    """Set the import lines for a file of the program; return the text with qualified names."""
    imports = [file_import for file_import in file.part.imports if file_import.module is owner]
    aliases = [(file_import, name) for file_import in imports for name, was in file_import.names.items() if was == ""]
    before = _reads(file.part.tree.source.text)
    if aliases:
        file_import, alias = aliases[0]
        if wanted & file.stored:
            name = f"{sorted(wanted & file.stored)[0]} of {owner.source.path}"
            raise NotConvertible(f"{name} has the same name as another object", file.part.tree.module)
        text = _qualify(text, wanted, alias)
        lines[file_import.marker] = file_import.text if wanted or alias not in before else None
        for further, name in aliases[1:]:
            lines[further.marker] = further.text if name not in before else None
        wanted = set()
    froms = [file_import for file_import in imports if all(file_import.names.values())]
    kept = {file_import.marker: {was for name, was in file_import.names.items()
                                 if was in other.defined and (was in wanted or name not in before)}
            for file_import in froms}  # fmt: skip
    for file_import in froms:
        for name, was in file_import.names.items():
            if was not in other.defined and name not in before:
                raise NotConvertible(f"{was}, which {file.part.tree.source.path} re-exports", file.part.tree.module)
    missing = wanted - {name for names in kept.values() for name in names}
    if missing and not froms:
        of = f"{sorted(missing)[0]} of {owner.source.path}"
        raise NotConvertible(f"{of}, which {file.part.tree.source.path} does not import", file.part.tree.module)
    for place, file_import in enumerate(froms):
        names = kept[file_import.marker] | (missing if place == 0 else set())
        head = file_import.text.partition(" import ")[0]
        plain = names == set(file_import.names) and all(name == was for name, was in file_import.names.items())
        lines[file_import.marker] = (
            file_import.text if plain else f"{head} import {', '.join(sorted(names))}" if names else None
        )
    return text


def _qualify(text: str, names: set[str], alias: str) -> str:
    """Return the text with names qualified by a module alias."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    places = [(node.lineno, node.col_offset, node.id) for node in ast.walk(ast.parse(text))
              if isinstance(node, ast.Name) and node.id in names]  # fmt: skip
    for line, column, _ in sorted(places, reverse=True):
        lines[line - 1] = lines[line - 1][:column] + f"{alias}.".encode() + lines[line - 1][column:]
    return b"".join(lines).decode()


def _with_imports(part: SourcePart, text: str, lines: dict[str, str | None], new: dict[str, str]) -> str:
    """Return the text with its import markers replaced and the new imports added."""
    if new and part.imports and all(lines.get(file_import.marker) is None for file_import in part.imports):
        lines[part.imports[0].marker] = ""  # all old imports are unused; the new imports replace them
    order = [file_import.marker for file_import in part.imports if lines.get(file_import.marker) is not None]
    if new and not order:
        raise NotConvertible("a file without imports would need an import", part.tree.module)
    before: dict[str, list[str]] = {}
    behind: dict[str, list[str]] = {}
    plain = [marker for marker in order if _module(lines[marker] or "") in sys.stdlib_module_names]
    ours: dict[str, list[str]] = {}
    for statement in (statement for _, statement in sorted(new.items())):
        module = _module(statement)
        if module in _OURS:
            head, _, imported = statement.partition(" import ")
            ours.setdefault(head, []).append(imported)
        elif module in sys.stdlib_module_names:
            smaller = [marker for marker in plain if _module(lines[marker] or "") < module]
            if smaller:
                behind.setdefault(smaller[-1], []).append(statement)
            elif order:
                before.setdefault((plain or order)[0], []).append(statement)
        elif order:
            behind.setdefault((plain or order)[-1], []).append(statement)
    third = [marker for marker in order if _module(lines[marker] or "") not in sys.stdlib_module_names]
    if not plain and order and order[0] in before:
        before[order[0]].append("")
    for head, names in ours.items():
        statement = f"{head} import {', '.join(names)}"
        if _module(statement) == "absl":
            before.setdefault((third or order)[0], []).append(statement)
        else:
            behind.setdefault(order[-1], []).extend(["", statement])
    for file_import in part.imports:
        kept = lines.get(file_import.marker)
        if kept is None:
            text = re.sub(rf"(?m)^{file_import.marker}\n", "", text)
            continue
        block = "\n".join([*before.get(file_import.marker, ()), kept, *behind.get(file_import.marker, ())])
        block = block.strip("\n")
        text = re.sub(rf"(?m)^{file_import.marker}\b", block.replace("\\", r"\\"), text)
    return text


def _module(statement: str) -> str:
    match = re.match(r"(?:from|import)\s+([\w.]+)", statement)
    return match[1].split(".")[0] if match else ""


def defined(module: ast.Module, *, imports: bool = False) -> set[str]:
    """Return the names that a module defines, optionally including its imports."""
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {
                target.id
                for target in ast.walk(node)
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
            }
        elif imports:
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names
