"""Files of TensorFlow 1 by their importers, the place of `disable_v2_behavior()`, and code for some versions only."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from estimator_pipeline.migrate.code.analysis.name_resolution import Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, dotted_of

__all__ = ["is_guarded", "is_run", "last_import", "names_compat", "root_of_tensorflow", "spread", "switch",
           "switch_lines", "switches_behavior"]  # fmt: skip

_SWITCHES = ("disable_v2_behavior", "enable_v2_behavior", "disable_eager_execution", "enable_eager_execution")
_OF_TESTS = re.compile(r"(^|/)(test_[^/]*|[^/]*_test)\.py$")


def spread(program: Program, trees: Sequence[Tree]) -> None:
    """Mark files that only TensorFlow 1 files import as TensorFlow 1 too; imports by tests do not count.

    Names of these files may exist in both versions: `tf.name_scope(name, default_name="loss")`.
    """
    importers: dict[Tree, set[Tree]] = {tree: set() for tree in trees}
    for tree in trees:
        if _OF_TESTS.search(tree.source.path):
            continue
        for other in program.imports(tree):
            if other is not tree and other in importers:
                importers[other].add(tree)
    old = {tree for tree in trees if tree.tensorflow_1}
    # A file that does not import TensorFlow passes the version of its importers on to the files that it imports.
    alone = old | {tree for tree in trees if importers[tree] and not tree.source.cells}
    while True:
        others = {tree for tree in alone - old if not importers[tree] <= alone}
        if not others:
            break
        alone -= others
    while True:  # direct and indirect imports; import cycles are possible
        reached = {tree for tree in alone - old if importers[tree] & old}
        if not reached:
            break
        old |= reached
    for tree in old:
        tree.tensorflow_1 = tree.tensorflow_1 or (
            root_of_tensorflow(program, tree) is not None and not names_compat(tree)
        )


def names_compat(tree: Tree) -> bool:
    """Return whether a file uses tf.compat, so that it may be written for TensorFlow 2."""
    names = [dotted_of(node) or "" for node in tree.chains]
    return any(".compat." in name for name in names) or any("compat" in binding.module for _, binding in tree.imports)


def switch(
    program: Program, tree: Tree, switches: bool, imported: bool, *, of_1: bool = False
) -> cst.BaseStatement | None:  # fmt: skip
    """Return the statement after which a program must disable TensorFlow 2 behavior; None where it need not.

    TensorFlow 1 built graphs: `tf.placeholder` at module level, `shape[1].value`, datasets with iterators. The module
    that is run disables TensorFlow 2 behavior once, after its imports.

    Args:
        of_1: whether a file that this one imports was written for TensorFlow 1.
    """
    if switches or not (of_1 or tree.tensorflow_1):
        return None
    if root_of_tensorflow(program, tree) is None or not (is_run(tree) or (not imported and _acts(tree))):
        return None
    last, by_name = last_import(tree), _import_of_tensorflow(tree)
    if last is None or (by_name is not None and tree.position(by_name) > tree.position(last)):
        return by_name  # TensorFlow is imported after other statements
    return last


def switch_lines(tree: Tree, v1: str) -> list[str]:
    """Return the lines that disable TensorFlow 2 behavior, only when the file is run and not when it is imported."""
    statement = f"{v1}.disable_v2_behavior()"
    by_main = is_run(tree) and not tree.source.cells  # a notebook is always run
    return ["", 'if __name__ == "__main__":', f"    {statement}"] if by_main else ["", statement]


def _import_of_tensorflow(tree: Tree) -> cst.BaseStatement | None:
    """Return the statement at the top of a module that imports tensorflow itself."""
    for alias, binding in tree.imports:
        if binding.kind == "import" and binding.name == "tensorflow" and binding.scope is tree.scope:
            return next((statement for statement in tree.module.body if statement in set(tree.above(alias))), None)
    return None


def last_import(tree: Tree) -> cst.BaseStatement | None:
    """Return the last of the imports at the beginning of a module; None if it begins with something else."""
    last = None
    for statement in tree.module.body:
        if isinstance(statement, cst.SimpleStatementLine):
            if all(isinstance(part, (cst.Import, cst.ImportFrom)) for part in statement.body):
                last = statement
                continue
            if isinstance(statement.body[0], cst.Expr) and last is None:
                continue  # the docstring
        if isinstance(statement, cst.Try) and last is not None:
            continue
        if last is not None:
            break
    return last


def root_of_tensorflow(program: Program, tree: Tree) -> str | None:
    """Return the module-level name of the package tensorflow."""
    for alias, binding in tree.imports:
        if binding.kind == "import" and binding.name == "tensorflow" and binding.scope is tree.scope:
            name = alias.evaluated_alias if isinstance(alias, cst.ImportAlias) else None
            return name or "tensorflow"
    names = ("tf", "tensorflow")  # imported by `from nets import *`
    return next((name for name in names if set(program.look_up(name, tree.scope)) == {Outside("tensorflow")}), None)


def switches_behavior(trees: list[Tree]) -> bool:
    """Return whether a program already selects TensorFlow 1 or TensorFlow 2 behavior."""
    return any(
        (dotted_of(node) or "").rpartition(".")[2] in _SWITCHES for tree in trees for node in tree.chains
    )  # fmt: skip


def _acts(tree: Tree) -> bool:
    """Return whether a module is a script without `__main__`.

    Such a module uses an Estimator or calls one of its functions at module level. A notebook is always run.
    """
    names = ("train", "evaluate", "predict", "train_and_evaluate", "run")
    functions = {node.name.value for node in tree.module.body if isinstance(node, cst.FunctionDef)}
    return bool(tree.source.cells) or any(
        (isinstance(call.func, cst.Attribute) and call.func.attr.value in names)
        or (isinstance(call.func, cst.Name) and call.func.value in functions
            and isinstance(tree.parents.get(call), cst.Expr))
        for call in tree.calls if tree.where.get(call) is tree.scope
    )  # fmt: skip


def is_run(tree: Tree) -> bool:
    """Return whether a module tests for `__main__`."""
    return any(
        isinstance(statement, cst.If) and "__main__" in tree.module.code_for_node(statement.test)
        for statement in tree.module.body
    )


def is_guarded(tree: Tree, node: cst.CSTNode) -> bool:
    """Return whether a node only runs on some TensorFlow versions: `except AttributeError`, `if tf.__version__ …`."""
    below = node
    for above in tree.above(node):
        if isinstance(above, (cst.Try, cst.TryStar)):
            # Both the body and the handler: one runs where the other fails.
            handlers = [handler for handler in above.handlers if _catches_what_is_missing(handler)]
            if handlers and (below is above.body or below in handlers):
                return True
        elif isinstance(above, (cst.If, cst.IfExp)) and below is not above.test:
            test = tree.module.code_for_node(above.test)
            if "hasattr" in test or "version" in test.lower():
                return True
        below = above
    return False


def _catches_what_is_missing(handler: cst.CSTNode) -> bool:
    caught = getattr(handler, "type", None)
    if caught is None:
        return True
    elements = caught.elements if isinstance(caught, cst.Tuple) else ()
    names = [getattr(node, "value", "") for node in (caught, *(element.value for element in elements))]
    return bool({"AttributeError", "ImportError", "ModuleNotFoundError", "Exception"} & set(names))
