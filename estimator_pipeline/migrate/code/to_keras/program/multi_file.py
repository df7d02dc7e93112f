"""Programs of several files to Keras: all files of one, or none."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Sequence

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import find_constructs
from estimator_pipeline.migrate.code.analysis.files import SourceFile
from estimator_pipeline.migrate.code.analysis.name_resolution import ModuleOf, Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, parse
from estimator_pipeline.migrate.code.to_keras import contrib_layers
from estimator_pipeline.migrate.code.to_keras import convert_file as conversion
from estimator_pipeline.migrate.code.to_keras.convert_file import ConversionOutcome, convert
from estimator_pipeline.migrate.code.to_keras.program.linking import Linked, line_of_name, link, reached
from estimator_pipeline.migrate.code.to_keras.program.splitting import defined, part
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible

__all__ = ["convert_together"]

# More is no program, but a library; to read it as one file takes minutes.
_FILES, _LINES = 60, 15_000


def convert_together(program: Program, chosen: Sequence[Tree]) -> None:
    """Convert what files are not by themselves, with the files that they import; the outcome is in `tree.keras`.

    Args:
        chosen: the files that have constructs.
    """
    for tree in chosen:
        if tree.keras is not None and tree.keras.text:
            try:
                _check_others(program, {tree: tree.keras.text})
            except NotConvertible as declined:
                tree.keras = ConversionOutcome(reason=declined.reason, line=declined.line or _line(tree, declined.node))
            except conversion.DEFECTS as error:
                tree.keras = ConversionOutcome(reason=_defect(error), line=_first_line(tree))
    groups: list[list[Tree]] = []
    for tree in chosen:
        if tree.keras is not None and tree.keras.text:
            continue
        try:
            group = reached(program, tree, set(chosen))
        except conversion.DEFECTS:
            continue
        if all(one.keras is None or one.keras.text for one in group):
            continue
        members = set(group)
        for other in [one for one in groups if not members.isdisjoint(one)]:
            groups.remove(other)
            group = list(dict.fromkeys([*other, *group]))
        groups.append(group)
    for group in groups:
        if len(group) > 1:
            _convert(program, group)


def _convert(program: Program, group: list[Tree]) -> None:
    line, by_itself = 0, False
    try:
        _check_size(group)
        for tree in group:
            conversion.check_contrib(contrib_layers.lower(program, tree), tree.module)
        linked = link(program, group)
        found = _converted(program, group, linked)
        if found.text:
            texts = part(linked, found.text)
            _check_others(program, texts)
            for tree, text in texts.items():
                tree.keras = ConversionOutcome(text)
            return
        where, line = linked.place(found.line)
        reason = found.reason
        if not reason:
            for tree in group:
                if tree.keras is not None:
                    told = f"no Estimator is made in it, nor in {_named(group, tree)}"
                    tree.keras = ConversionOutcome(reason=told, line=tree.keras.line or _first_line(tree))
            return
    except NotConvertible as declined:
        where, reason, by_itself = _place(group, declined.node), declined.reason, True
        if where is not None:
            line = declined.line or (where.position(declined.node)[0] if declined.node is not where.module else 0)
    except conversion.DEFECTS as error:
        where, reason = None, _defect(error)
    for tree in group:
        if tree.keras is None or (by_itself and tree.keras.reason and "this file" not in tree.keras.reason):
            continue  # what a file is declined for by itself says more than why it is not joined with others
        if tree is where and line:
            tree.keras = ConversionOutcome(reason=reason, line=line)
        elif where is not None and line:
            tree.keras = ConversionOutcome(
                reason=reason, line=line, path=where.source.path, together=_named(group, tree)
            )
        else:
            at = f"{where.source.path}: " if where is not None else ""
            said = f"it is one program with {_named(group, tree)}; {at}{reason}"
            tree.keras = ConversionOutcome(reason=said, line=tree.keras.line or _first_line(tree))


def _defect(error: Exception) -> str:
    return f"the converter fails at it: {type(error).__name__}: {error}"


def _check_size(group: list[Tree]) -> None:
    lines = sum(tree.source.text.count("\n") for tree in group)
    if len(group) > _FILES or lines > _LINES:
        raise NotConvertible(f"a program of {len(group)} files and {lines} lines is not read as one", group[-1].module)


def _converted(program: Program, group: list[Tree], linked: Linked) -> ConversionOutcome:
    """Return the conversion of the files as one."""
    home = next((tree for tree in group if any(_is_model_fn(one.name.value) for one in tree.functions)), group[-1])
    made = parse(SourceFile(home.source.path, linked.text))
    if made is None:
        raise NotConvertible("its files cannot be read as one", group[-1].module)
    made.tensorflow_1 = any(tree.tensorflow_1 for tree in group)
    made.contrib = [one for tree in group for one in tree.contrib]
    made.needs = list(dict.fromkeys(one for tree in group for one in tree.needs))
    others = [tree for tree in program.trees.values() if tree not in group]
    whole = Program([*others, made], program.modules)
    found = convert(whole, made, list(find_constructs(whole, made)))
    return found or ConversionOutcome()


def _is_model_fn(name: str) -> bool:
    return name.lower().endswith(("model_fn", "modelfn"))


def _check_others(program: Program, texts: dict[Tree, str]) -> None:
    """Whether what other files take of the converted ones is still there."""
    names = {tree: defined(ast.parse(text), imports=True) for tree, text in texts.items()}
    gone = {tree: _others(tree.source.text, text) for tree, text in texts.items()}
    for tree, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and "__all__" in [getattr(one, "id", "") for one in node.targets]:
                with contextlib.suppress(ValueError, TypeError):
                    for name in ast.literal_eval(node.value):
                        if name not in names[tree]:
                            told = f"{name}, which __all__ of {tree.source.path} names"
                            raise NotConvertible(told, tree.module, line_of_name(tree, name))
    for other in program.trees.values():
        if other in texts:
            continue
        for _, binding in other.imports:
            for module in program.module(binding.module, binding.level, other) if binding.kind == "from" else ():
                if isinstance(module, ModuleOf) and module.tree in texts and binding.name in gone[module.tree]:
                    if program.submodule(module, binding.name) is not None:
                        continue
                    raise _taken(binding.name, module.tree, other)
        for chain in other.chains:
            if not isinstance(chain, cst.Attribute):
                continue
            for value in program.meaning(chain.value, other, other.where.get(chain, other.scope)):
                if not isinstance(value, ModuleOf) or value.tree is None or value.tree not in texts:
                    continue
                name = chain.attr.value
                if name in gone[value.tree]:
                    raise _taken(name, value.tree, other)


def _taken(name: str, tree: Tree, other: Tree) -> NotConvertible:
    told = f"{name}, which {other.source.path} takes of it"
    return NotConvertible(told, tree.module, line_of_name(tree, name))


def _others(before: str, after: str) -> set[str]:
    """Return the names of a file that are gone from it, or are called otherwise than before."""
    old, new = ast.parse(before), ast.parse(after)
    changed = defined(old, imports=True) - defined(new, imports=True)
    shapes = _shapes(new)
    return changed | {name for name, shape in _shapes(old).items() if shapes.get(name, shape) != shape}


def _shapes(module: ast.Module) -> dict[str, str]:
    """How the functions of a module are called, and what its classes come from."""
    found = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = ast.dump(node.args)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = " ".join(ast.unparse(base) for base in node.bases)
    return found


def _line(tree: Tree, node: cst.CSTNode) -> int:
    with contextlib.suppress(KeyError):
        return tree.position(node)[0] if node is not tree.module else _first_line(tree)
    return _first_line(tree)


def _place(group: list[Tree], node: cst.CSTNode) -> Tree | None:
    """Return the file that a node is in."""
    for tree in group:
        if node is tree.module:
            return tree
        with contextlib.suppress(KeyError):
            tree.position(node)
            return tree
    return None


def _named(group: list[Tree], tree: Tree) -> str:
    others = [other.source.path for other in group if other is not tree]
    return ", ".join(others) if len(others) < 6 else f"{', '.join(others[:4])} and {len(others) - 4} more"


def _first_line(tree: Tree) -> int:
    return tree.position(tree.module.body[0])[0] if tree.module.body else 1
