"""Programs of several files: read as one file, and taken apart again when that is Keras.

`link` writes the files of a program one below the other, the imports between them away and each name that two of them
have told apart. Its conversion is that of any file; parting.py gives each file its part, with the imports it needs.
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
    """An import at the top of a file.

    Attributes:
        marker: the name that stands for it.
        text: as it stands.
        module: the file that it names; None for what is not among the linked ones.
        names: what it imports of that -> how it is called there; the module itself by "".
        binds: the names that it binds.
        header: how the text of the whole program has it: by the full name of what is relative.
    """

    marker: str
    text: str
    module: Tree | None
    names: dict[str, str]
    binds: list[str]
    header: str = ""


@dataclass
class SourcePart:
    """A file of a program.

    Attributes:
        marker: the line that begins its part of the text.
        start, lines: the part's first line there, and how many lines it has.
    """

    tree: Tree
    marker: str
    imports: list[Import] = field(default_factory=list)
    start: int = 0
    lines: int = 0
    text: str = ""


@dataclass
class Linked:
    """A program as one file.

    Attributes:
        suffix: what stands behind each name that two files have.
    """

    text: str
    parts: list[SourcePart]
    suffix: str = "__of_file_"

    def place(self, line: int) -> tuple[Tree | None, int]:
        """Return the file and the line that a line of the text comes from; (None, 0) for an import."""
        for part in self.parts:
            if part.start <= line < part.start + part.lines:
                return part.tree, line - part.start + 1
        return None, 0


def reached(program: Program, tree: Tree, chosen: set[Tree]) -> list[Tree]:
    """Return the files that one imports, at once or through others, of those that are chosen; itself the last."""
    found: dict[Tree, None] = {}

    def visit(one: Tree) -> None:
        if one in found or one in waiting:
            return
        waiting.add(one)
        for other in program.imports(one):
            if other is not tree:
                visit(other)
        if one in chosen or any(other in found for other in program.imports(one)):
            found[one] = None

    waiting: set[Tree] = set()
    visit(tree)
    return list(found)


def line_of_name(tree: Tree, name: str) -> int:
    """Return the line at which the top of a file imports a name, or gives it its value; 0 where it does neither."""
    for alias, binding in tree.imports:
        if binding.scope is tree.scope and binding.name != "*" and _name(binding) == name:
            return tree.position(alias)[0]
    for binding in tree.scope.names.get(name, ()):
        node = binding.node.name if isinstance(binding.node, (cst.FunctionDef, cst.ClassDef)) else binding.node
        with contextlib.suppress(KeyError):
            return tree.position(node)[0]
    return 0


def imported_files(program: Program, trees: Iterable[Tree]) -> set[Tree]:
    """Return the files that others of a program import."""
    return {other for tree in trees for other in program.imports(tree) if other is not tree}


def link(program: Program, trees: Sequence[Tree]) -> Linked:
    """Write files one below the other.

    Args:
        trees: what is imported before what imports it.

    Raises:
        NotConvertible: they are not told apart, or joined by imports that are not followed.
    """
    linked = Linked("", [SourcePart(tree, f"part_of_file_{at}") for at, tree in enumerate(trees)])
    _check(program, linked)
    renamed = _clashes(linked)
    header: dict[str, None] = {}
    bound: dict[str, tuple[str, ...]] = {}
    texts: list[str] = []
    for at, part in enumerate(linked.parts):
        edits = list(_imports(program, linked, part, at))
        for one in part.imports:
            if one.module is None and not one.text.startswith("from __future__"):
                header[one.header] = None
        for name, key in _bound(program, part.tree):
            if bound.setdefault(name, key) != key:
                told = f"{name}, which files of a program import from several places"
                raise NotConvertible(told, part.tree.module, line_of_name(part.tree, name))
        edits += _references(program, linked, part, renamed)
        part.text = apply(part.tree.source.text, edits)
        texts.append(part.text if part.text.endswith("\n") else part.text + "\n")
    text = "".join(f"{one}\n" for one in header)
    for part, own in zip(linked.parts, texts, strict=True):
        text += f"{part.marker} = None\n"
        part.start, part.lines = text.count("\n") + 1, own.count("\n")
        text += own
    linked.text = text
    return linked


def _bound(program: Program, tree: Tree) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names that the imports at the top of a file bind, each with what it is."""
    for _, binding in tree.imports:
        if binding.scope is not tree.scope or binding.name == "*" or binding.module.startswith("__future__"):
            continue
        if binding.kind == "import":
            yield _name(binding), ("", binding.module)
        else:
            paths = [one.path for one in program.module(binding.module, binding.level, tree)
                     if isinstance(one, ModuleOf)]  # fmt: skip
            yield _name(binding), (*(paths or [binding.module]), binding.name)


def _absolute(tree: Tree, module: str, level: int) -> str:
    """Return the full name of a module that an import of a file names."""
    if not level:
        return module
    folders = list(PurePosixPath(tree.source.path).parent.parts)
    above = folders[: len(folders) - level + 1]
    return ".".join([*above, *([module] if module else [])])


def _check(program: Program, linked: Linked) -> None:
    """Whether all files have TensorFlow in the same way, each by an import of its own."""
    found: dict[str, tuple[cst.CSTNode, Tree]] = {}
    for part in linked.parts:
        tree = part.tree
        if tree.source.cells:
            raise NotConvertible("a notebook is part of it", tree.module, 1)
        if "\r" in tree.source.text:
            line = tree.source.text.count("\n", 0, tree.source.text.index("\r")) + 1
            raise NotConvertible("lines that end by CR", tree.module, line)
        if not tree.verbatim:
            pairs = zip(tree.module.code.splitlines(), tree.source.text.splitlines(), strict=False)
            line = next((at for at, (one, other) in enumerate(pairs, 1) if one != other), 1)
            raise NotConvertible("a line that would not be kept byte for byte", tree.module, line)
        unit = tree.module.default_indent
        if unit != linked.parts[0].tree.module.default_indent:
            indented = re.search(rf"^{unit}\S", tree.source.text, re.MULTILINE)
            line = tree.source.text.count("\n", 0, indented.start()) + 1 if indented else 1
            told = f"an indentation other than that of {linked.parts[0].tree.source.path}"
            raise NotConvertible(told, tree.module, line)
        for node, binding in tree.imports:
            of_file = binding.kind == "from" and binding.name != "*"
            if of_file and any(program.files_of_import(tree, binding)):
                _check_handed_on(program, tree, binding)
            if binding.kind == "import" and binding.name in ("tensorflow", "tensorflow.compat.v1"):
                found.setdefault(binding.name, (node, tree))
    if len(found) > 1:
        (first, _), (_, second) = list(found.values())[:2]
        raise NotConvertible(f"its files have TensorFlow in several ways: {second.source.path} has another", first)


def _check_handed_on(program: Program, tree: Tree, binding: Binding) -> None:
    """Whether a name of another file is one of that file, and not TensorFlow or a part of it."""
    for chain in tree.chains:
        root = _root(chain)
        if isinstance(root, cst.Name) and root.value == _name(binding):
            for value in program.meaning(root, tree, tree.where.get(root, tree.scope)):
                if isinstance(value, Outside) and value.dotted.startswith("tensorflow"):
                    raise NotConvertible(f"{root.value}, which is of TensorFlow and comes from another file", chain)


def _clashes(linked: Linked) -> set[tuple[Tree, str]]:
    """Return the names that have to be told apart: several files have them, for things of their own."""
    owners: dict[str, list[Tree]] = {}
    for part in linked.parts:
        for name, bindings in part.tree.scope.names.items():
            if any(one.kind not in ("import", "from") for one in bindings):
                owners.setdefault(name, []).append(part.tree)
    found = {(tree, name) for name, trees in owners.items() if len(trees) > 1 for tree in trees}
    for part in linked.parts:
        for name, bindings in part.tree.scope.names.items():
            if any(one.kind in ("import", "from") for one in bindings):
                found |= {(one, name) for one in owners.get(name, ()) if not _is_import_of(part.tree, name)}
    for tree, name in found:
        if re.search(r"model_?fn$", name, flags=re.IGNORECASE):
            raise NotConvertible(f"{name}, which is something else in several files", tree.scope.names[name][0].node)
    return found


def _is_import_of(tree: Tree, name: str) -> bool:
    """Whether a file has a name by importing it by that name."""
    return any(one.kind == "from" and one.name == name for one in tree.scope.names[name])


# Imports


def _imports(program: Program, linked: Linked, part: SourcePart, at: int) -> Iterator[Edit]:
    """Each import at the top of a file, as a name that stands for it."""
    tree = part.tree
    trees = {one.tree for one in linked.parts}
    lines = Lines(tree.source.text)
    at_the_top = set()
    for statement in tree.module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        small = [one for one in statement.body if isinstance(one, (cst.Import, cst.ImportFrom))]
        if not small:
            continue
        at_the_top.update(small)
        start, end = _span(tree, lines, statement)
        names = [alias for one in small if not isinstance(one.names, cst.ImportStar) for alias in one.names]
        bindings = [binding for alias, binding in tree.imports if alias in names or alias in small]
        modules = {other for binding in bindings for other in program.files_of_import(tree, binding) if other in trees}
        text, marker = tree.source.text[start:end], f"import_of_file_{at}_{len(part.imports)}"
        bound = [name for binding in bindings if binding.name != "*" for name in [_name(binding)]]
        if not modules:
            part.imports.append(Import(marker, text, None, {}, bound, _in_header(tree, small, text)))
            yield Edit(start, end, marker)
            continue
        made = _of_file(program, tree, bindings, modules, Import(marker, text, None, {}, bound))
        if len(small) > 1 or made is None:
            raise NotConvertible(f"an import of several files, or of all their names: {text}", statement)
        part.imports.append(made)
        aliases = [name for name, was in made.names.items() if was == ""]
        yield Edit(start, end, "".join(f"{name} = " for name in aliases) + marker)
    for node, binding in tree.imports:
        parent = tree.parents.get(node)
        inside = node not in at_the_top and parent not in at_the_top and not _is_at_the_top(tree, node, at_the_top)
        if inside and any(other in trees for other in program.files_of_import(tree, binding)):
            raise NotConvertible("an import of another of its files within a function or a condition", node)


def _in_header(tree: Tree, small: Sequence[cst.Import | cst.ImportFrom], text: str) -> str:
    """Return an import as it is above all files."""
    one = small[0]
    if not isinstance(one, cst.ImportFrom) or not one.relative:
        return text
    names = text.partition("import")[2].strip()
    module = _absolute(tree, dotted_of(one.module) or "", len(one.relative))
    return f"from {module} import {names}" if module else f"import {names}"


def _is_at_the_top(tree: Tree, node: cst.CSTNode, statements: set[cst.Import | cst.ImportFrom]) -> bool:
    return any(node in getattr(one, "names", ()) for one in statements if not isinstance(
        getattr(one, "names", None), cst.ImportStar))  # fmt: skip


def _name(binding: Binding) -> str:
    alias = binding.node
    if binding.kind == "import":
        return str(alias.evaluated_alias or binding.name.split(".")[0])
    return str(alias.evaluated_alias or alias.evaluated_name)


def _of_file(
    program: Program, tree: Tree, bindings: Sequence[Binding], modules: set[Tree], made: Import
) -> Import | None:
    """Return an import of one of the files: of its names, or of itself."""
    for binding in bindings:
        if binding.name == "*":
            return None
        alias = binding.node
        if binding.kind == "import":
            if len(bindings) > 1 or (not alias.evaluated_alias and "." in binding.name):
                return None
            made.names[_name(binding)] = ""
            (made.module,) = modules
            continue
        values = [one for one in program.module(binding.module, binding.level, tree) if isinstance(one, ModuleOf)]
        inner = [one for value in values if (one := program.submodule(value, binding.name)) is not None]
        home = inner[0] if inner else values[0].tree
        if made.module not in (None, home) or (inner and len(bindings) > 1):
            return None
        made.module = home
        made.names[_name(binding)] = "" if inner else binding.name
    return made if made.module in modules else None


# Names


def _references(
    program: Program, linked: Linked, part: SourcePart, renamed: set[tuple[Tree, str]]
) -> Iterator[Edit]:  # fmt: skip
    """Yield what is another name in the text: of another file, or one that several have."""
    tree = part.tree
    lines = Lines(tree.source.text)
    numbers = {one.tree: at for at, one in enumerate(linked.parts)}
    imported = {name: one for one in part.imports if one.module is not None for name in one.names}

    def new(owner: Tree, name: str) -> str:
        return f"{name}{linked.suffix}{numbers[owner]}" if (owner, name) in renamed else name

    def edit(node: cst.CSTNode, owner: Tree, name: str, scope: Scope) -> Iterator[Edit]:
        made = new(owner, name)
        if owner is not tree and _hides(scope, made):
            raise NotConvertible(f"{name} of another file, where {name} is something else", node)
        start, end = _span(tree, lines, node)
        if tree.source.text[start:end] != made:
            yield Edit(start, end, made)

    for node, scope in _names(tree, tree.module, tree.scope):
        root = node
        while isinstance(root, cst.Attribute):
            root = cst.ensure_type(root.value, cst.BaseExpression)  # type: ignore[type-abstract]
        if not isinstance(root, cst.Name) or _home(scope, root.value) is not tree.scope:
            continue
        one = imported.get(root.value)
        if one is None:
            if (tree, root.value) in renamed:
                yield from edit(root, tree, root.value, scope)
            continue
        assert one.module is not None
        was = one.names[root.value]
        if was:
            yield from edit(root, _owner(program, linked, one.module, was, node), was, scope)
            continue
        chain = root if node is root else _next(node, root)
        if not isinstance(chain, cst.Attribute):
            raise NotConvertible(f"the module {root.value} is handed on", node)
        name = chain.attr.value
        yield from edit(chain, _owner(program, linked, one.module, name, node), name, scope)


def _next(chain: cst.CSTNode, root: cst.Name) -> cst.CSTNode:
    """Return the attribute that is asked of a chain's root."""
    while isinstance(chain, cst.Attribute) and chain.value is not root:
        chain = chain.value
    return chain


def _owner(program: Program, linked: Linked, tree: Tree, name: str, node: cst.CSTNode) -> Tree:
    """Return the file that a name of a file is defined in; a name that it imports from outside is not followed."""
    bindings = tree.scope.names.get(name, [])
    if any(one.kind not in ("import", "from") for one in bindings):
        return tree
    raise NotConvertible(f"{name}, which a file hands on from another one", node)


def _hides(scope: Scope, name: str) -> bool:
    """Whether a function around has a name for something else."""
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
    """Each name, or chain of attributes of one, with the scope that it is looked up in; none of imports."""
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
            outer += [one for param in _params(node.params) for one in (param.default, param.annotation) if one]
            outer += [node.returns] if node.returns else []
        for one in outer:
            yield from _names(tree, one, scope)
        for one in inner:
            yield from _names(tree, one, tree.scopes[node])
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
    found = [*params.posonly_params, *params.params, *params.kwonly_params]
    found += [one for one in (params.star_arg, params.star_kwarg) if isinstance(one, cst.Param)]
    return found


def _root(node: cst.CSTNode) -> cst.CSTNode:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def _span(tree: Tree, lines: Lines, node: cst.CSTNode) -> tuple[int, int]:
    line, column, end_line, end_column = tree.position(node)
    return lines.offset(line, column), lines.offset(end_line, end_column)
