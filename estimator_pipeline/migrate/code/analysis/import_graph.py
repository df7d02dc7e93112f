"""Which files of a code base have to do with each other, by their imports, before any of them is a tree.

Python's own parser is ten times as fast as libcst, and a repository holds many programs that never meet: each of them
can be read by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.modules import Modules, within
from estimator_pipeline.migrate.code.analysis.notebooks import NotebookProblem, python_tree
from estimator_pipeline.migrate.code.analysis.syntax import parse

__all__ = ["Imported", "Part", "imported", "parts", "with_tensorflow"]

_OF_INTEREST = re.compile(r"tensorflow|TF_CONFIG|\btf\.(estimator|contrib|layers|train|compat)\b")
# What is found by a name alone, whatever a program imports, and what libcst is not asked for: `except A, b:`.
_BY_NAME = re.compile(
    r"\btf\b|(input|model)_?fn|serving_input|export_saved_?model|export_all_saved_models|make_\w+_iterator"
    r"|^[ \t]*except\s+[\w.]+\s*,",
    re.IGNORECASE | re.MULTILINE,
)
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+)?import[ \t]+([\w., \t]+)", re.MULTILINE)


class Imported(NamedTuple):
    """What a file imports.

    Attributes:
        names: (module, level, name): `from ..module import name`; "" for `import module`, "as" where it is bound whole.
        read: whether Python's own parser can read it.
        problems: what of it no parser can read.
    """

    names: frozenset[tuple[str, int, str]]
    read: bool
    problems: tuple[NotebookProblem, ...] = ()


class Part(NamedTuple):
    """Files that meet.

    Attributes:
        paths: of the files, in order.
        modules: what their imports lead to, also outside of the part: whether a result is that of the same imports.
    """

    paths: tuple[str, ...]
    modules: tuple[str, ...]


def imported(source: SourceFile) -> Imported:
    """Return what a file or a notebook imports, in any of its functions."""
    names: set[tuple[str, int, str]] = set()
    if source.problems:
        return Imported(frozenset(_by_lines(source.text)), False)
    read, problems = True, []
    for text in [cell.text for cell in source.cells] or [source.text]:
        tree = python_tree(text) if "import" in text or not source.cells else ast.Module([], [])
        if tree is None:
            alone = SourceFile(source.path, text)
            names.update(_of_libcst(alone))
            if not source.cells:  # a cell that cannot be read leaves the others
                read, problems = False, alone.problems
            continue
        for node in _statements(tree):
            if isinstance(node, ast.Import):
                names.update((alias.name, 0, "as" if alias.asname else "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.update((node.module or "", node.level, alias.name) for alias in node.names)
    return Imported(frozenset(names), read, tuple(problems))


def _of_libcst(source: SourceFile) -> Iterator[tuple[str, int, str]]:
    """Yield the imports of what libcst may read and Python's own parser cannot: code of another version of Python."""
    tree = parse(source)
    if tree is None:
        yield from _by_lines(source.text)
    for _, binding in tree.imports if tree is not None else ():
        if binding.kind == "import":
            yield binding.name, 0, "as" if binding.module == binding.name else ""
        else:
            yield binding.module, binding.level, binding.name


def _by_lines(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield the imports of what no parser can read, as its lines look."""
    for dots, module, names in _IMPORT.findall(text):
        for name in re.findall(r"[\w.]+", names):
            yield (module, len(dots), name) if module or dots else (name, 0, "")


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, field, None)
            if isinstance(below, list):
                waiting += below


def with_tensorflow(sources: Mapping[str, SourceFile], imports: Mapping[str, Imported]) -> set[str]:
    """Return the files that have to do with TensorFlow: by their text, or by what they import."""
    chosen = {path for path, source in sources.items() if _OF_INTEREST.search(source.text)}
    asked = {path: _last_parts(path, imports[path]) for path in sources if path not in chosen}
    new = chosen
    while new:
        # A module may get `tf`, or a class of it, from another module of the program.
        names = {_module_name(path) for path in new}
        new = {path for path, one in asked.items() if names & one}
        chosen |= new
        for path in new:
            del asked[path]
    # What a program of TensorFlow imports and Python 3 cannot read keeps the program from running.
    needed = set().union(*(_last_parts(path, imports[path]) for path in chosen))
    return chosen | {path for path in asked if not imports[path].read and _module_name(path) in needed}


def _last_parts(path: str, one: Imported) -> set[str]:
    found: set[str] = set()
    for module, level, name in one.names:
        found.update(module.split("."))
        if name not in ("", "as"):
            found.add(name)
        if level and not module:
            found.add(PurePosixPath(path).parent.name)
    return found


def _module_name(path: str) -> str:
    pure = PurePosixPath(path)
    return pure.parent.name if pure.stem == "__init__" else pure.stem


def parts(
    sources: Mapping[str, SourceFile], imports: Mapping[str, Imported], chosen: Iterable[str], modules: Modules
) -> list[Part]:
    """Return the files with something of TensorFlow, those together that import each other, at once or through others.

    What they import is with them. A file that neither has nor reaches anything of TensorFlow joins nothing: it may be
    in several parts, or in none.
    """
    chosen = sorted(chosen)
    leads = {path: _leads(path, imports[path], modules) for path in chosen}
    known = set(chosen)
    below = {
        path: sorted({modules.files.get(name, "") for name in names} & known - {path})
        for path, names in leads.items()
    }  # fmt: skip
    importers: dict[str, list[str]] = {path: [] for path in chosen}
    for path, others in below.items():
        for other in others:
            importers[other].append(path)
    alive = _all_from([path for path in chosen if not imports[path].read or _has_constructs(sources[path].text)],
                      importers)  # fmt: skip
    found: list[Part] = []
    joined = {path: [one for one in (*below[path], *importers[path]) if one in alive] for path in alive}
    left = dict.fromkeys(path for path in chosen if path in alive)
    while left:
        together = _all_from([next(iter(left))], joined)
        paths = _all_from(together, below)
        found.append(Part(tuple(sorted(paths)), tuple(sorted({name for path in paths for name in leads[path]}))))
        for path in together:
            del left[path]
    return found


def _all_from(start: Iterable[str], nexts: Mapping[str, Iterable[str]]) -> set[str]:
    found = set(start)
    waiting = list(found)
    while waiting:
        new = [one for one in nexts[waiting.pop()] if one not in found]
        found.update(new)
        waiting += new
    return found


def _has_constructs(text: str) -> bool:
    return _OF_INTEREST.search(text) is not None or _BY_NAME.search(text) is not None


def _leads(path: str, one: Imported, modules: Modules) -> set[str]:
    """Return the modules that the names of a file may lead to; of a package that it has as a whole, all within it."""
    found: set[str] = set()
    wholes: set[str] = set()
    for dotted, level, name in one.names:
        module = modules.named(dotted, level, path)
        if not module and name == "":
            module = modules.named(dotted.split(".")[0], 0, path)
        if not module:
            continue
        found.add(module)
        if name == "":
            wholes.add(modules.named(dotted.split(".")[0], 0, path) or module)
        elif name in ("as", "*"):
            wholes.add(module)
        else:
            inner = modules.at(within(module, name))
            if inner is not None:
                found.add(inner)
                wholes.add(inner)
    found |= wholes
    for whole in wholes:
        if whole not in modules.files or whole.rpartition("/")[2] == "__init__":
            found.update(modules.below(whole))
    return found
