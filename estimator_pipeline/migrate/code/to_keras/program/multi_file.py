"""Conversion of programs of several files: all files of a program, or none."""

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

# Limits above which the files are a library; analyzing them as one file would take minutes.
_FILES, _LINES = 60, 15_000


def convert_together(program: Program, chosen: Sequence[Tree]) -> None:
    """Convert files that failed separately together with their imports; set `tree.keras`.

    Args:
        program: The program.
        chosen: The files with constructs.
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
        if all(member.keras is None or member.keras.text for member in group):
            continue
        members = set(group)
        for other in [member for member in groups if not members.isdisjoint(member)]:
            groups.remove(other)
            group = list(dict.fromkeys([*other, *group]))
        groups.append(group)
    for group in groups:
        if len(group) > 1:
            _convert(program, group)


def _convert(program: Program, group: list[Tree]) -> None:
    line, before_joining = 0, False
    try:
        _check_size(group)
        for tree in group:
            conversion.check_contrib(contrib_layers.lower(program, tree), tree.module)
        linked = link(program, group)
        outcome = _convert_linked(program, group, linked)
        if outcome.text:
            texts = part(linked, outcome.text)
            _check_others(program, texts)
            for tree, text in texts.items():
                tree.keras = ConversionOutcome(text)
            return
        where, line = linked.place(outcome.line)
        reason = outcome.reason
        if not reason:
            for tree in group:
                if tree.keras is not None:
                    text = f"no Estimator is created in it, nor in {_format_others(group, tree)}"
                    tree.keras = ConversionOutcome(reason=text, line=tree.keras.line or _first_line(tree))
            return
    except NotConvertible as declined:
        where, reason, before_joining = _file_of(group, declined.node), declined.reason, True
        if where is not None:
            line = declined.line or (where.position(declined.node)[0] if declined.node is not where.module else 0)
    except conversion.DEFECTS as error:
        where, reason = None, _defect(error)
    for tree in group:
        if tree.keras is None or (before_joining and tree.keras.reason and "this file" not in tree.keras.reason):
            continue  # the reason for the single file is more specific than the reason against linking
        if tree is where and line:
            tree.keras = ConversionOutcome(reason=reason, line=line)
        elif where is not None and line:
            tree.keras = ConversionOutcome(
                reason=reason, line=line, path=where.source.path, together=_format_others(group, tree)
            )
        else:
            at = f"{where.source.path}: " if where is not None else ""
            full_reason = f"in the same program as {_format_others(group, tree)}; {at}{reason}"
            tree.keras = ConversionOutcome(reason=full_reason, line=tree.keras.line or _first_line(tree))


def _defect(error: Exception) -> str:
    return f"the converter failed: {type(error).__name__}: {error}"


def _check_size(group: list[Tree]) -> None:
    lines = sum(tree.source.text.count("\n") for tree in group)
    if len(group) > _FILES or lines > _LINES:
        raise NotConvertible(
            f"a program of {len(group)} files and {lines} lines is too large to convert as one", group[-1].module
        )


def _convert_linked(program: Program, group: list[Tree], linked: Linked) -> ConversionOutcome:
    """Convert the linked files as one file."""
    home = next(
        (tree for tree in group if any(_is_model_fn(function.name.value) for function in tree.functions)), group[-1]
    )
    parsed = parse(SourceFile(home.source.path, linked.text))
    if parsed is None:
        raise NotConvertible("its files are not valid Python when linked", group[-1].module)
    parsed.tensorflow_1 = any(tree.tensorflow_1 for tree in group)
    parsed.contrib = [name for tree in group for name in tree.contrib]
    parsed.needs = list(dict.fromkeys(line for tree in group for line in tree.needs))
    others = [tree for tree in program.trees.values() if tree not in group]
    whole = Program([*others, parsed], program.modules)
    outcome = convert(whole, parsed, list(find_constructs(whole, parsed)))
    return outcome or ConversionOutcome()


def _is_model_fn(name: str) -> bool:
    return name.lower().endswith(("model_fn", "modelfn"))


def _check_others(program: Program, texts: dict[Tree, str]) -> None:
    """Check that the converted files still define the names that other files use."""
    names = {tree: defined(ast.parse(text), imports=True) for tree, text in texts.items()}
    gone = {tree: _changed_names(tree.source.text, text) for tree, text in texts.items()}
    for tree, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and "__all__" in [getattr(target, "id", "") for target in node.targets]:
                with contextlib.suppress(ValueError, TypeError):
                    for name in ast.literal_eval(node.value):
                        if name not in names[tree]:
                            reason = f"{name}, which __all__ of {tree.source.path} lists"
                            raise NotConvertible(reason, tree.module, line_of_name(tree, name))
    for other in program.trees.values():
        if other in texts:
            continue
        for _, binding in other.imports:
            for module in program.module(binding.module, binding.level, other) if binding.kind == "from" else ():
                if isinstance(module, ModuleOf) and module.tree in texts and binding.name in gone[module.tree]:
                    if program.submodule(module, binding.name) is not None:
                        continue
                    raise _missing_name(binding.name, module.tree, other)
        for chain in other.chains:
            if not isinstance(chain, cst.Attribute):
                continue
            for value in program.meaning(chain.value, other, other.where.get(chain, other.scope)):
                if not isinstance(value, ModuleOf) or value.tree is None or value.tree not in texts:
                    continue
                name = chain.attr.value
                if name in gone[value.tree]:
                    raise _missing_name(name, value.tree, other)


def _missing_name(name: str, tree: Tree, other: Tree) -> NotConvertible:
    reason = f"{name}, which {other.source.path} uses from it"
    return NotConvertible(reason, tree.module, line_of_name(tree, name))


def _changed_names(before: str, after: str) -> set[str]:
    """Return the names that a file lost or whose signature changed."""
    old, new = ast.parse(before), ast.parse(after)
    changed = defined(old, imports=True) - defined(new, imports=True)
    shapes = _signatures(new)
    return changed | {name for name, shape in _signatures(old).items() if shapes.get(name, shape) != shape}


def _signatures(module: ast.Module) -> dict[str, str]:
    """Return the parameters of a module's functions and the bases of its classes."""
    signatures = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            signatures[node.name] = ast.dump(node.args)
        elif isinstance(node, ast.ClassDef):
            signatures[node.name] = " ".join(ast.unparse(base) for base in node.bases)
    return signatures


def _line(tree: Tree, node: cst.CSTNode) -> int:
    with contextlib.suppress(KeyError):
        return tree.position(node)[0] if node is not tree.module else _first_line(tree)
    return _first_line(tree)


def _file_of(group: list[Tree], node: cst.CSTNode) -> Tree | None:
    """Return the file that contains a node."""
    for tree in group:
        if node is tree.module:
            return tree
        with contextlib.suppress(KeyError):
            tree.position(node)
            return tree
    return None


def _format_others(group: list[Tree], tree: Tree) -> str:
    others = [other.source.path for other in group if other is not tree]
    return ", ".join(others) if len(others) < 6 else f"{', '.join(others[:4])} and {len(others) - 4} more"


def _first_line(tree: Tree) -> int:
    return tree.position(tree.module.body[0])[0] if tree.module.body else 1
