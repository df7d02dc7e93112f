"""The other files of a program: what a file imports, and whether they still find what they use in a converted file."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable

import libcst as cst

from estimator_pipeline.migrate.code.analysis.name_resolution import ModuleOf, Program
from estimator_pipeline.migrate.code.analysis.syntax import Binding, Tree
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible

__all__ = ["check_users", "imported_files", "reached"]


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


def imported_files(program: Program, trees: Iterable[Tree]) -> set[Tree]:
    """Return the files that other files import."""
    return {other for tree in trees for other in program.imports(tree) if other is not tree}


def check_users(program: Program, tree: Tree, text: str) -> None:
    """Check that a converted file still defines the names that other files use, with their signatures.

    Raises:
        NotConvertible: it does not.
    """
    new = ast.parse(text)
    names, gone = _defined(new), _changed_names(ast.parse(tree.source.text), new)
    for node in new.body:
        if isinstance(node, ast.Assign) and "__all__" in [getattr(target, "id", "") for target in node.targets]:
            with contextlib.suppress(ValueError, TypeError):
                for name in ast.literal_eval(node.value):
                    if name not in names:
                        reason = f"{name}, which __all__ of {tree.source.path} lists"
                        raise NotConvertible(reason, tree.module, _line_of_name(tree, name))
    for other in program.trees.values():
        if other is tree:
            continue
        for _, binding in other.imports:
            for module in program.module(binding.module, binding.level, other) if binding.kind == "from" else ():
                if isinstance(module, ModuleOf) and module.tree is tree and binding.name in gone:
                    if program.submodule(module, binding.name) is not None:
                        continue
                    raise _missing_name(binding.name, tree, other)
        for chain in other.chains:
            if not isinstance(chain, cst.Attribute) or chain.attr.value not in gone:
                continue
            for value in program.meaning(chain.value, other, other.where.get(chain, other.scope)):
                if isinstance(value, ModuleOf) and value.tree is tree:
                    raise _missing_name(chain.attr.value, tree, other)


def _missing_name(name: str, tree: Tree, other: Tree) -> NotConvertible:
    reason = f"{name}, which {other.source.path} uses from it"
    return NotConvertible(reason, tree.module, _line_of_name(tree, name))


def _line_of_name(tree: Tree, name: str) -> int:
    """Return the line where a file imports or defines a top-level name, or 0."""
    for alias, binding in tree.imports:
        if binding.scope is tree.scope and binding.name != "*" and _bound_name(binding) == name:
            return tree.position(alias)[0]
    for binding in tree.scope.names.get(name, ()):
        node = binding.node.name if isinstance(binding.node, (cst.FunctionDef, cst.ClassDef)) else binding.node
        with contextlib.suppress(KeyError):
            return tree.position(node)[0]
    return 0


def _bound_name(binding: Binding) -> str:
    alias = binding.node
    if binding.kind == "import":
        return str(alias.evaluated_alias or binding.name.split(".")[0])
    return str(alias.evaluated_alias or alias.evaluated_name)


def _changed_names(old: ast.Module, new: ast.Module) -> set[str]:
    """Return the names that a file lost or whose signature changed."""
    shapes = _signatures(new)
    changed = {name for name, shape in _signatures(old).items() if shapes.get(name, shape) != shape}
    return changed | (_defined(old) - _defined(new))


def _signatures(module: ast.Module) -> dict[str, str]:
    """Return the parameters of a module's functions and the bases of its classes."""
    signatures = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            signatures[node.name] = ast.dump(node.args)
        elif isinstance(node, ast.ClassDef):
            signatures[node.name] = " ".join(ast.unparse(base) for base in node.bases)
    return signatures


def _defined(module: ast.Module) -> set[str]:
    """Return the names that a module defines or imports."""
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {
                target.id
                for target in ast.walk(node)
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
            }
    return names
