"""Partition of a code base into programs by the imports of its files, without libcst.

Python's own parser is ten times as fast as libcst, and a repository contains many unrelated programs, which can be
read separately.
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
# Constructs that are recognized by name, independent of imports, and code that is not passed to libcst: `except A, b:`.
_BY_NAME = re.compile(
    r"\btf\b|(input|model)_?fn|serving_input|export_saved_?model|export_all_saved_models|make_\w+_iterator"
    r"|^[ \t]*except\s+[\w.]+\s*,",
    re.IGNORECASE | re.MULTILINE,
)
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+)?import[ \t]+(?:\(([^)]*)\)|([\w.,* \t]+))", re.MULTILINE
)


class Imported(NamedTuple):
    """The imports of a file.

    Attributes:
        names: (module, level, name) of `from ..module import name`; the name is "" for `import module` and "as" for
            `import module as alias`.
        read: whether Python's own parser can read the file.
        problems: the problems, if no parser can read the file.
    """

    names: frozenset[tuple[str, int, str]]
    read: bool
    problems: tuple[NotebookProblem, ...] = ()


Part = tuple[str, ...]
"""A program: the sorted paths of files that are connected by imports."""


def imported(source: SourceFile) -> Imported:
    """Return the imports of a file or notebook, including those within functions."""
    names: set[tuple[str, int, str]] = set()
    if source.problems:
        return Imported(frozenset(_by_lines(source.text)), False)
    read, problems = True, []
    for text in [cell.text for cell in source.cells] or [source.text]:
        tree = python_tree(text) if "import" in text or not source.cells else ast.Module([], [])
        if tree is None:
            names.update(_by_lines(text))
            if not source.cells:  # an unreadable cell does not make a notebook unreadable
                alone = SourceFile(source.path, text)
                parse(alone)
                read, problems = False, alone.problems
            continue
        for node in _statements(tree):
            if isinstance(node, ast.Import):
                names.update((alias.name, 0, "as" if alias.asname else "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.update((node.module or "", node.level, alias.name) for alias in node.names)
    return Imported(frozenset(names), read, tuple(problems))


def _by_lines(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield the imports of a file that Python's own parser cannot read, by matching its lines."""
    for dots, module, in_brackets, names in _IMPORT.findall(text):
        for name in re.findall(r"[\w.]+|\*", in_brackets or names):
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
    """Return the files that use TensorFlow, by their text or their imports."""
    chosen = {path for path, source in sources.items() if _OF_INTEREST.search(source.text)}
    waiting = {path: _last_parts(path, imports[path]) for path in sources if path not in chosen}
    new = chosen
    while new:
        # A module may import `tf`, or a class of it, from a different module of the program.
        names = {_module_name(path) for path in new}
        new = {path for path, used in waiting.items() if names & used}
        chosen |= new
        for path in new:
            del waiting[path]
    # A file that Python 3 cannot read also breaks the TensorFlow programs that import it.
    needed = set().union(*(_last_parts(path, imports[path]) for path in chosen))
    return chosen | {path for path in waiting if not imports[path].read and _module_name(path) in needed}


def _last_parts(path: str, imports: Imported) -> set[str]:
    last_parts: set[str] = set()
    for module, level, name in imports.names:
        last_parts.update(module.split("."))
        if name not in ("", "as"):
            last_parts.add(name)
        if level and not module:
            last_parts.add(PurePosixPath(path).parent.name)
    return last_parts


def _module_name(path: str) -> str:
    pure = PurePosixPath(path)
    return pure.parent.name if pure.stem == "__init__" else pure.stem


def parts(
    sources: Mapping[str, SourceFile], imports: Mapping[str, Imported], chosen: Iterable[str], modules: Modules
) -> list[Part]:
    """Return the programs: TensorFlow files that are connected by direct or indirect imports.

    Each part includes the files that its files import. A file that neither uses nor reaches TensorFlow connects
    nothing: it may be in several parts, or in none.
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
    result: list[Part] = []
    joined = {path: [other for other in (*below[path], *importers[path]) if other in alive] for path in alive}
    left = dict.fromkeys(path for path in chosen if path in alive)
    while left:
        together = _all_from([next(iter(left))], joined)
        result.append(tuple(sorted(_all_from(together, below))))
        for path in together:
            del left[path]
    return result


def _all_from(start: Iterable[str], nexts: Mapping[str, Iterable[str]]) -> set[str]:
    reached = set(start)
    waiting = list(reached)
    while waiting:
        new = [node for node in nexts[waiting.pop()] if node not in reached]
        reached.update(new)
        waiting += new
    return reached


def _has_constructs(text: str) -> bool:
    return _OF_INTEREST.search(text) is not None or _BY_NAME.search(text) is not None


def _leads(path: str, imports: Imported, modules: Modules) -> set[str]:
    """Return the modules that a file's imports may resolve to; for a whole package, all modules below it."""
    names: set[str] = set()
    wholes: set[str] = set()
    for dotted, level, name in imports.names:
        module = modules.named(dotted, level, path)
        if not module and name == "":
            module = modules.named(dotted.split(".")[0], 0, path)
        if not module:
            continue
        names.add(module)
        if name == "":
            wholes.add(modules.named(dotted.split(".")[0], 0, path) or module)
        elif name in ("as", "*"):
            wholes.add(module)
        else:
            inner = modules.at(within(module, name))
            if inner is not None:
                names.add(inner)
                wholes.add(inner)
    names |= wholes
    for whole in wholes:
        if whole not in modules.files or whole.rpartition("/")[2] == "__init__":
            names.update(modules.below(whole))
    return names
