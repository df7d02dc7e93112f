"""Linking of a program's files into one text for the conversion.

`link` concatenates the files, removes the imports between them and renames the names that several files define. The
result is converted like any file. splitting.py then splits it into the files again, each with its imports.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import libcst as cst
from libcst import matchers

from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, apply
from estimator_pipeline.migrate.code.analysis.name_resolution import ModuleOf, Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Binding, Scope, Tree, children, dotted_of
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible

__all__ = ["Import", "Linked", "SourcePart", "imported_files", "line_of_name", "link", "reached"]


@dataclass
class Import:
    """A top-level import of a file.

    Attributes:
        marker: The name that replaces it in the linked text.
        text: Its original text.
        module: The linked file that it imports from, or None.
        names: Local name -> name in that file; "" for the module itself.
        binds: The names that it binds.
        header: Its text in the header of the linked text, with absolute module names.
    """

    marker: str
    text: str
    module: Tree | None
    names: dict[str, str]
    binds: list[str]
    header: str = ""


@dataclass
class SourcePart:
    """A file of a linked program.

    Attributes:
        tree: The file.
        marker: The name whose assignment starts its part of the linked text.
        imports: Its top-level imports.
        start: First line of its part.
        lines: Number of lines of its part.
        text: Its text in the linked text.
    """

    tree: Tree
    marker: str
    imports: list[Import] = field(default_factory=list)
    start: int = 0
    lines: int = 0
    text: str = ""


@dataclass
class Linked:
    """A program as one text.

    Attributes:
        text: The linked text.
        parts: The files, in the order of the text.
        suffix: Suffix of the names that several files define.
    """

    text: str
    parts: list[SourcePart]
    suffix: str = "__of_file_"

    def place(self, line: int) -> tuple[Tree | None, int]:
        """Return the file and line of a line of the linked text; (None, 0) for an import."""
        for part in self.parts:
            if part.start <= line < part.start + part.lines:
                return part.tree, line - part.start + 1
        return None, 0


def reached(program: Program, tree: Tree, chosen: set[Tree]) -> list[Tree]:
    """Return the chosen files that a file imports, directly or indirectly, and the file itself last."""
    files: dict[Tree, None] = {}

    def visit(file: Tree) -> None:
        if file in files or file in waiting:
            return
        waiting.add(file)
        for other in program.imports(file):
            if other is not tree:
                visit(other)
        if file in chosen or any(other in files for other in program.imports(file)):
            files[file] = None

    waiting: set[Tree] = set()
    visit(tree)
    return list(files)


def line_of_name(tree: Tree, name: str) -> int:
    """Return the line where a file imports or defines a top-level name, or 0."""
    for alias, binding in tree.imports:
        if binding.scope is tree.scope and binding.name != "*" and _name(binding) == name:
            return tree.position(alias)[0]
    for binding in tree.scope.names.get(name, ()):
        node = binding.node.name if isinstance(binding.node, (cst.FunctionDef, cst.ClassDef)) else binding.node
        with contextlib.suppress(KeyError):
            return tree.position(node)[0]
    return 0


def imported_files(program: Program, trees: Iterable[Tree]) -> set[Tree]:
    """Return the files that other files of a program import."""
    return {other for tree in trees for other in program.imports(tree) if other is not tree}


def link(program: Program, trees: Sequence[Tree]) -> Linked:
    """Link files into one text.

    Args:
        program: The program.
        trees: The files, each after the files that it imports.

    Raises:
        NotConvertible: The files have conflicting names or unsupported imports.
    """
    linked = Linked("", [SourcePart(tree, f"part_of_file_{at}") for at, tree in enumerate(trees)])
    _check(program, linked)
    renamed = _name_clashes(linked)
    header: dict[str, None] = {}
    bound: dict[str, tuple[str, ...]] = {}
    texts: list[str] = []
    for at, part in enumerate(linked.parts):
        edits = list(_imports(program, linked, part, at))
        for file_import in part.imports:
            if file_import.module is None and not file_import.text.startswith("from __future__"):
                header[file_import.header] = None
        for name, key in _imported_names(program, part.tree):
            if bound.setdefault(name, key) != key:
                reason = f"{name}, which files of the program import from different places"
                raise NotConvertible(reason, part.tree.module, line_of_name(part.tree, name))
        edits += _references(program, linked, part, renamed)
        part.text = apply(part.tree.source.text, edits)
        texts.append(part.text if part.text.endswith("\n") else part.text + "\n")
    text = "".join(f"{line}\n" for line in header)
    for part, part_text in zip(linked.parts, texts, strict=True):
        text += f"{part.marker} = None\n"
        part.start, part.lines = text.count("\n") + 1, part_text.count("\n")
        text += part_text
    linked.text = text
    return linked


def _imported_names(program: Program, tree: Tree) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names that top-level imports bind, each with the imported object."""
    for _, binding in tree.imports:
        if binding.scope is not tree.scope or binding.name == "*" or binding.module.startswith("__future__"):
            continue
        if binding.kind == "import":
            yield _name(binding), ("", binding.module)
        else:
            paths = [module.path for module in program.module(binding.module, binding.level, tree)
                     if isinstance(module, ModuleOf)]  # fmt: skip
            yield _name(binding), (*(paths or [binding.module]), binding.name)


def _absolute_name(tree: Tree, module: str, level: int) -> str:
    """Return the absolute name of an imported module."""
    if not level:
        return module
    folders = list(PurePosixPath(tree.source.path).parent.parts)
    above = folders[: len(folders) - level + 1]
    return ".".join([*above, *([module] if module else [])])


def _check(program: Program, linked: Linked) -> None:
    """Check that the files can be linked and all import TensorFlow in the same way."""
    imports: dict[str, tuple[cst.CSTNode, Tree]] = {}
    for part in linked.parts:
        tree = part.tree
        if tree.source.cells:
            raise NotConvertible("a notebook is part of the program", tree.module, 1)
        if "\r" in tree.source.text:
            line = tree.source.text.count("\n", 0, tree.source.text.index("\r")) + 1
            raise NotConvertible("lines that end with CR", tree.module, line)
        if not tree.verbatim:
            pairs = zip(tree.module.code.splitlines(), tree.source.text.splitlines(), strict=False)
            line = next((at for at, (left, right) in enumerate(pairs, 1) if left != right), 1)
            raise NotConvertible("a line that could not be kept byte for byte", tree.module, line)
        unit = tree.module.default_indent
        if unit != linked.parts[0].tree.module.default_indent:
            indented = re.search(rf"^{unit}\S", tree.source.text, re.MULTILINE)
            line = tree.source.text.count("\n", 0, indented.start()) + 1 if indented else 1
            reason = f"an indentation different from {linked.parts[0].tree.source.path}"
            raise NotConvertible(reason, tree.module, line)
        for node, binding in tree.imports:
            of_file = binding.kind == "from" and binding.name != "*"
            if of_file and any(program.files_of_import(tree, binding)):
                _check_reexport(program, tree, binding)
            if binding.kind == "import" and binding.name in ("tensorflow", "tensorflow.compat.v1"):
                imports.setdefault(binding.name, (node, tree))
    if len(imports) > 1:
        (first, _), (_, second) = list(imports.values())[:2]
        raise NotConvertible(f"its files import TensorFlow in several ways: {second.source.path} differs", first)


def _check_reexport(program: Program, tree: Tree, binding: Binding) -> None:
    """Check that a name imported from a file is not a part of TensorFlow."""
    for chain in tree.chains:
        root = _root(chain)
        if isinstance(root, cst.Name) and root.value == _name(binding):
            for value in program.meaning(root, tree, tree.where.get(root, tree.scope)):
                if isinstance(value, Outside) and value.dotted.startswith("tensorflow"):
                    raise NotConvertible(
                        f"{root.value}, a part of TensorFlow that is imported from another file", chain
                    )


def _name_clashes(linked: Linked) -> set[tuple[Tree, str]]:
    """Return the (file, name) pairs to rename because several files define the name."""
    owners: dict[str, list[Tree]] = {}
    for part in linked.parts:
        for name, bindings in part.tree.scope.names.items():
            if any(binding.kind not in ("import", "from") for binding in bindings):
                owners.setdefault(name, []).append(part.tree)
    clashes = {(tree, name) for name, trees in owners.items() if len(trees) > 1 for tree in trees}
    for part in linked.parts:
        for name, bindings in part.tree.scope.names.items():
            if any(binding.kind in ("import", "from") for binding in bindings):
                clashes |= {(owner, name) for owner in owners.get(name, ()) if not _is_import_of(part.tree, name)}
    for tree, name in clashes:
        if re.search(r"model_?fn$", name, flags=re.IGNORECASE):
            raise NotConvertible(f"{name}, which several files define differently", tree.scope.names[name][0].node)
    return clashes


def _is_import_of(tree: Tree, name: str) -> bool:
    """Whether a file imports a name without an alias."""
    return any(binding.kind == "from" and binding.name == name for binding in tree.scope.names[name])


# Imports


def _imports(program: Program, linked: Linked, part: SourcePart, at: int) -> Iterator[Edit]:
    """Yield the edits that replace each top-level import by its marker."""
    tree = part.tree
    trees = {other_part.tree for other_part in linked.parts}
    lines = Lines(tree.source.text)
    at_the_top = set()
    for statement in tree.module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        statements = [
            small_statement
            for small_statement in statement.body
            if isinstance(small_statement, (cst.Import, cst.ImportFrom))
        ]
        if not statements:
            continue
        at_the_top.update(statements)
        start, end = _span(tree, lines, statement)
        names = [
            alias
            for small_statement in statements
            if not isinstance(small_statement.names, cst.ImportStar)
            for alias in small_statement.names
        ]
        bindings = [binding for alias, binding in tree.imports if alias in names or alias in statements]
        modules = {other for binding in bindings for other in program.files_of_import(tree, binding) if other in trees}
        text, marker = tree.source.text[start:end], f"import_of_file_{at}_{len(part.imports)}"
        bound = [name for binding in bindings if binding.name != "*" for name in [_name(binding)]]
        if not modules:
            part.imports.append(Import(marker, text, None, {}, bound, _header_line(tree, statements, text)))
            yield Edit(start, end, marker)
            continue
        file_import = _of_file(program, tree, bindings, modules, Import(marker, text, None, {}, bound))
        if len(statements) > 1 or file_import is None:
            raise NotConvertible(f"an import of several files, or with `*`: {text}", statement)
        part.imports.append(file_import)
        aliases = [name for name, was in file_import.names.items() if was == ""]
        yield Edit(start, end, "".join(f"{name} = " for name in aliases) + marker)
    for node, binding in tree.imports:
        parent = tree.parents.get(node)
        inside = node not in at_the_top and parent not in at_the_top and not _is_at_the_top(tree, node, at_the_top)
        if inside and any(other in trees for other in program.files_of_import(tree, binding)):
            raise NotConvertible("an import of another file of the program inside a function or a condition", node)


def _header_line(tree: Tree, statements: Sequence[cst.Import | cst.ImportFrom], text: str) -> str:
    """Return an import's line in the header of the linked text."""
    statement = statements[0]
    if not isinstance(statement, cst.ImportFrom) or not statement.relative:
        return text
    names = text.partition("import")[2].strip()
    module = _absolute_name(tree, dotted_of(statement.module) or "", len(statement.relative))
    return f"from {module} import {names}" if module else f"import {names}"


def _is_at_the_top(tree: Tree, node: cst.CSTNode, statements: set[cst.Import | cst.ImportFrom]) -> bool:
    return any(node in getattr(statement, "names", ()) for statement in statements if not isinstance(
        getattr(statement, "names", None), cst.ImportStar))  # fmt: skip


def _name(binding: Binding) -> str:
    alias = binding.node
    if binding.kind == "import":
        return str(alias.evaluated_alias or binding.name.split(".")[0])
    return str(alias.evaluated_alias or alias.evaluated_name)


def _of_file(
    program: Program, tree: Tree, bindings: Sequence[Binding], modules: set[Tree], file_import: Import
) -> Import | None:
    """Return the import of a linked file, or None if it is not supported."""
    for binding in bindings:
        if binding.name == "*":
            return None
        alias = binding.node
        if binding.kind == "import":
            if len(bindings) > 1 or (not alias.evaluated_alias and "." in binding.name):
                return None
            file_import.names[_name(binding)] = ""
            (file_import.module,) = modules
            continue
        values = [
            module for module in program.module(binding.module, binding.level, tree) if isinstance(module, ModuleOf)
        ]
        inner = [submodule for value in values if (submodule := program.submodule(value, binding.name)) is not None]
        home = inner[0] if inner else values[0].tree
        if file_import.module not in (None, home) or (inner and len(bindings) > 1):
            return None
        file_import.module = home
        file_import.names[_name(binding)] = "" if inner else binding.name
    return file_import if file_import.module in modules else None


# Names


def _references(
    program: Program, linked: Linked, part: SourcePart, renamed: set[tuple[Tree, str]]
) -> Iterator[Edit]:  # fmt: skip
    """Yield the edits of names that are imported from linked files or were renamed."""
    tree = part.tree
    lines = Lines(tree.source.text)
    numbers = {other_part.tree: at for at, other_part in enumerate(linked.parts)}
    imported = {
        name: file_import
        for file_import in part.imports
        if file_import.module is not None
        for name in file_import.names
    }

    def new(owner: Tree, name: str) -> str:
        return f"{name}{linked.suffix}{numbers[owner]}" if (owner, name) in renamed else name

    def edit(node: cst.CSTNode, owner: Tree, name: str, scope: Scope) -> Iterator[Edit]:
        new_name = new(owner, name)
        if owner is not tree and _hides(scope, new_name):
            raise NotConvertible(f"{name} of another file, where {name} is also a local name", node)
        start, end = _span(tree, lines, node)
        if tree.source.text[start:end] != new_name:
            yield Edit(start, end, new_name)

    for node, scope in _names(tree, tree.module, tree.scope):
        root = node
        while isinstance(root, cst.Attribute):
            root = cst.ensure_type(root.value, cst.BaseExpression)  # type: ignore[type-abstract]
        if not isinstance(root, cst.Name) or _home(scope, root.value) is not tree.scope:
            continue
        file_import = imported.get(root.value)
        if file_import is None:
            if (tree, root.value) in renamed:
                yield from edit(root, tree, root.value, scope)
            continue
        assert file_import.module is not None
        was = file_import.names[root.value]
        if was:
            yield from edit(root, _owner(program, linked, file_import.module, was, node), was, scope)
            continue
        chain = root if node is root else _next(node, root)
        if not isinstance(chain, cst.Attribute):
            raise NotConvertible(f"the module {root.value} is used as a value", node)
        name = chain.attr.value
        yield from edit(chain, _owner(program, linked, file_import.module, name, node), name, scope)


def _next(chain: cst.CSTNode, root: cst.Name) -> cst.CSTNode:
    """Return the first attribute access of a chain."""
    while isinstance(chain, cst.Attribute) and chain.value is not root:
        chain = chain.value
    return chain


def _owner(program: Program, linked: Linked, tree: Tree, name: str, node: cst.CSTNode) -> Tree:
    """Return the file that defines a name; re-exported names are not followed."""
    bindings = tree.scope.names.get(name, [])
    if any(binding.kind not in ("import", "from") for binding in bindings):
        return tree
    raise NotConvertible(f"{name}, which a file re-exports from a different file", node)


def _hides(scope: Scope, name: str) -> bool:
    """Whether an enclosing function binds a name."""
    home = _home(scope, name)
    return home is not None and home.kind != "module"


def _home(scope: Scope, name: str) -> Scope | None:
    at: Scope | None = scope
    while at is not None:
        if name in at.names and (at.kind != "class" or at is scope):
            return at
        at = at.parent
    return None


def _names(tree: Tree, node: cst.CSTNode, scope: Scope) -> Iterator[tuple[cst.CSTNode, Scope]]:
    """Yield each name or attribute chain outside of imports, with its scope."""
    if isinstance(node, (cst.Import, cst.ImportFrom)):
        return
    if isinstance(node, cst.Name):
        yield node, scope
        return
    if isinstance(node, cst.Attribute):
        if matchers.matches(_root(node), matchers.Name()):
            yield node, scope
        else:
            yield from _names(tree, node.value, scope)
        return
    if isinstance(node, cst.Arg):
        yield from _names(tree, node.value, scope)
        return
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        outer: list[cst.CSTNode] = [node.name, *node.decorators]
        inner: list[cst.CSTNode] = [node.body]
        if isinstance(node, cst.ClassDef):
            outer += [*node.bases, *node.keywords]
        else:
            outer += [
                expression
                for param in _params(node.params)
                for expression in (param.default, param.annotation)
                if expression
            ]
            outer += [node.returns] if node.returns else []
        for child_node in outer:
            yield from _names(tree, child_node, scope)
        for child_node in inner:
            yield from _names(tree, child_node, tree.scopes[node])
        return
    if isinstance(node, cst.Lambda):
        for param in _params(node.params):
            if param.default is not None:
                yield from _names(tree, param.default, scope)
        yield from _names(tree, node.body, tree.scopes.get(node, scope))
        return
    if isinstance(node, (cst.Global, cst.Nonlocal)):
        for item in node.names:
            yield item.name, tree.scope
        return
    scope = tree.scopes.get(node, scope)
    for child in children(node):
        yield from _names(tree, child, scope)


def _params(params: cst.Parameters) -> list[cst.Param]:
    all_params = [*params.posonly_params, *params.params, *params.kwonly_params]
    all_params += [param for param in (params.star_arg, params.star_kwarg) if isinstance(param, cst.Param)]
    return all_params


def _root(node: cst.CSTNode) -> cst.CSTNode:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def _span(tree: Tree, lines: Lines, node: cst.CSTNode) -> tuple[int, int]:
    line, column, end_line, end_column = tree.position(node)
    return lines.offset(line, column), lines.offset(end_line, end_column)
