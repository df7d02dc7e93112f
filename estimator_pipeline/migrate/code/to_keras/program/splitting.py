"""A converted program of several files, see linking.py: each file's part of the text, with the imports it needs."""

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


# What the conversion imports by several names.
_OURS = ("estimator_pipeline", "absl")


@dataclass
class _File:
    """A file of the converted program, as it comes out of the text."""

    part: SourcePart
    text: str

    def __post_init__(self) -> None:
        module = ast.parse(self.text)
        self.given = defined(module)
        self.stored = {node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(
            node.ctx, ast.Store)} | {node.arg for node in ast.walk(module) if isinstance(node, ast.arg)}  # fmt: skip


def part(linked: Linked, text: str) -> dict[Tree, str]:
    """Take a converted text apart.

    Returns:
        The text of each file.

    Raises:
        NotConvertible: a file would need what it cannot import.
    """
    text = re.sub(rf"{linked.suffix}\d+\b", "", text)
    pieces = re.split(r"(?m)^part_of_file_\d+ = None\n", text)
    if len(pieces) != len(linked.parts) + 1:
        raise NotConvertible("the parts of its files cannot be told", linked.parts[0].tree.module)
    header, said = _header(pieces[0]), {ast.unparse(node) for node in ast.parse(pieces[0]).body}
    pieces = _with_their_helpers(pieces[1:])
    files = {one.tree: _File(one, piece) for one, piece in zip(linked.parts, pieces, strict=True)}
    made = {tree: _written(file, header, said, files) for tree, file in files.items()}
    for tree, one in made.items():
        left = sorted(unknown_names(one) - unknown_names(tree.source.text))
        if left:
            raise NotConvertible(f"{left[0]} would have no value in {tree.source.path}", tree.module)
    return made


def _with_their_helpers(pieces: list[str]) -> list[str]:
    """Functions that the conversion brings along, each in the files that call it."""
    helpers: dict[str, str] = {}
    for at, piece in enumerate(pieces):
        lines = piece.splitlines(keepends=True)
        for node in reversed(ast.parse(piece).body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in HELPERS:
                helpers[node.name] = "".join(lines[node.lineno - 1 : node.end_lineno]).rstrip("\n")
                del lines[node.lineno - 1 : node.end_lineno]
        pieces[at] = "".join(lines)
    made = []
    for piece in pieces:
        needed = [name for name in helpers if name in _reads(piece)]
        for name in needed:
            first = next(node for node in ast.parse(piece).body if name in _reads_of(node))
            start = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", ()))])
            lines = piece.splitlines(keepends=True)
            while start > 1 and lines[start - 2].startswith("#"):
                start -= 1
            piece = "".join([*lines[: start - 1], f"{helpers[name]}\n\n\n", *lines[start - 1 :]])
        made.append(re.sub(r"\n{4,}", "\n\n\n", piece))
    return made


def _header(text: str) -> dict[str, str]:
    """Name -> the import that gives it, of all that the files import from elsewhere."""
    found = {}
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        said = ast.get_source_segment(text, node) or ""
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            # `from a import b, c` of what was written anew: each file takes what it needs.
            found[name] = said
            if isinstance(node, ast.ImportFrom) and _module(said) in _OURS:
                found[name] = f"from {node.module} import {ast.unparse(alias)}"
    return found


def _written(file: _File, header: dict[str, str], said: set[str], files: dict[Tree, _File]) -> str:
    """Return the text of a file."""
    part = file.part
    text = re.sub(r"(?m)^((?:\w+ = )*)(import_of_file_\d+_\d+)$", r"\2", file.text)
    markers = {one.marker for one in part.imports}
    missing = unknown_names(text) - markers
    wanted: dict[Tree, set[str]] = {}
    new: set[str] = set()
    for name in sorted(missing):
        owner = next((tree for tree, other in files.items() if name in other.given and other is not file), None)
        if name in header:
            new.add(name)
        elif owner is not None:
            wanted.setdefault(owner, set()).add(name)
    lines = {}
    for one in part.imports:
        if one.module is None:
            lines[one.marker] = _outside(file, one, header, said)
    for owner in {one.module: None for one in part.imports if one.module is not None} | dict.fromkeys(wanted):
        text = _of_file(file, text, owner, wanted.get(owner, set()), files[owner], lines)
    had = {name for one in part.imports for name in one.binds}
    text = _with_new(part, text, lines, {name: header[name] for name in new - had})
    return text if part.text.endswith("\n\n") or not text.strip() else text.rstrip("\n") + "\n"


def _reads(text: str) -> set[str]:
    return _reads_of(ast.parse(text))


def _reads_of(module: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}


def _outside(file: _File, one: Import, header: dict[str, str], said: set[str]) -> str | None:
    """Return an import from elsewhere, as it is now; None where nothing needs it any more."""
    before, after = _reads(file.part.tree.source.text), _reads(file.text)
    used = [name for name in one.binds if name in after or name not in before]
    if one.binds and not used:
        return None
    if one.text.startswith("from __future__") or ast.unparse(ast.parse(one.header)) in said:
        return one.text
    told = {header[name] for name in used if name in header}
    return "\n".join(sorted(told)) or one.text


def _of_file(
    file: _File, text: str, owner: Tree, wanted: set[str], other: _File, lines: dict[str, str | None]
) -> str:  # fmt: skip
    """Return the imports of one of the files; gives the text with the names as they are called there."""
    own = [one for one in file.part.imports if one.module is owner]
    aliases = [(one, name) for one in own for name, was in one.names.items() if was == ""]
    before = _reads(file.part.tree.source.text)
    if aliases:
        one, alias = aliases[0]
        if wanted & file.stored:
            raise NotConvertible(f"{sorted(wanted & file.stored)[0]} of {owner.source.path} has the name of something "
                                 "else", file.part.tree.module)  # fmt: skip
        text = _asked(text, wanted, alias)
        lines[one.marker] = one.text if wanted or alias not in before else None
        for further, name in aliases[1:]:
            lines[further.marker] = further.text if name not in before else None
        wanted = set()
    froms = [one for one in own if all(one.names.values())]
    kept = {one.marker: {was for name, was in one.names.items()
                         if was in other.given and (was in wanted or name not in before)} for one in froms}  # fmt: skip
    for one in froms:
        for name, was in one.names.items():
            if was not in other.given and name not in before:
                raise NotConvertible(f"{was}, which {file.part.tree.source.path} hands on", file.part.tree.module)
    missing = wanted - {name for names in kept.values() for name in names}
    if missing and not froms:
        of = f"{sorted(missing)[0]} of {owner.source.path}"
        raise NotConvertible(f"{of}, which {file.part.tree.source.path} does not import", file.part.tree.module)
    for place, one in enumerate(froms):
        names = kept[one.marker] | (missing if place == 0 else set())
        head = one.text.partition(" import ")[0]
        plain = names == set(one.names) and all(name == was for name, was in one.names.items())
        lines[one.marker] = one.text if plain else f"{head} import {', '.join(sorted(names))}" if names else None
    return text


def _asked(text: str, names: set[str], alias: str) -> str:
    """Return the text with names asked of a module."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    places = [(node.lineno, node.col_offset, node.id) for node in ast.walk(ast.parse(text))
              if isinstance(node, ast.Name) and node.id in names]  # fmt: skip
    for line, column, _ in sorted(places, reverse=True):
        lines[line - 1] = lines[line - 1][:column] + f"{alias}.".encode() + lines[line - 1][column:]
    return b"".join(lines).decode()


def _with_new(part: SourcePart, text: str, lines: dict[str, str | None], new: dict[str, str]) -> str:
    """Return the text with its imports in place of what stands for them, and further ones beside them."""
    if new and part.imports and all(lines.get(one.marker) is None for one in part.imports):
        lines[part.imports[0].marker] = ""  # none of them is needed any more; the new ones stand in their place
    order = [one.marker for one in part.imports if lines.get(one.marker) is not None]
    if new and not order:
        raise NotConvertible("a file without imports would need one", part.tree.module)
    before: dict[str, list[str]] = {}
    behind: dict[str, list[str]] = {}
    plain = [one for one in order if _module(lines[one] or "") in sys.stdlib_module_names]
    ours: dict[str, list[str]] = {}
    for said in (said for _, said in sorted(new.items())):
        module = _module(said)
        if module in _OURS:
            head, _, imported = said.partition(" import ")
            ours.setdefault(head, []).append(imported)
        elif module in sys.stdlib_module_names:
            smaller = [one for one in plain if _module(lines[one] or "") < module]
            if smaller:
                behind.setdefault(smaller[-1], []).append(said)
            elif order:
                before.setdefault((plain or order)[0], []).append(said)
        elif order:
            behind.setdefault((plain or order)[-1], []).append(said)
    third = [one for one in order if _module(lines[one] or "") not in sys.stdlib_module_names]
    if not plain and order and order[0] in before:
        before[order[0]].append("")
    for head, names in ours.items():
        said = f"{head} import {', '.join(names)}"
        if _module(said) == "absl":
            before.setdefault((third or order)[0], []).append(said)
        else:
            behind.setdefault(order[-1], []).extend(["", said])
    for one in part.imports:
        kept = lines.get(one.marker)
        if kept is None:
            text = re.sub(rf"(?m)^{one.marker}\n", "", text)
            continue
        told = "\n".join([*before.get(one.marker, ()), kept, *behind.get(one.marker, ())]).strip("\n")
        text = re.sub(rf"(?m)^{one.marker}\b", told.replace("\\", r"\\"), text)
    return text


def _module(said: str) -> str:
    found = re.match(r"(?:from|import)\s+([\w.]+)", said)
    return found[1].split(".")[0] if found else ""


def defined(module: ast.Module, *, imports: bool = False) -> set[str]:
    """Return the names that the top of a module gives a value; those of its imports where that is asked."""
    found: set[str] = set()
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        elif imports:
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return found
